//! What the machine can do at most, measured beside ours: a bare append + `fdatasync` loop, and
//! RocksDB with group commit and nothing else.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use longhaul_actors::env::{Clock, SystemClock};
use rocksdb::{DB, Options, WriteBatch, WriteOptions};
use tokio::sync::{mpsc, oneshot};

use crate::cli::exit::CliError;

/// Bytes of one append of the bare loop.
const BLOCK_BYTES: usize = 4096;
/// Producers of the raw group commit.
pub const PRODUCERS: usize = 256;
/// Most rows of one raw batch: all producers at once.
const BATCH_ROWS_MAX: usize = PRODUCERS;

/// The bare loop's figures.
#[derive(Debug, Clone, Copy)]
pub struct Fdatasync {
    /// Appends made durable per second, one after the other.
    pub per_s: f64,
    /// Median of one, milliseconds.
    pub p50_ms: f64,
}

/// Appends 4 KiB and syncs, over and over, for `time`. Blocking.
pub fn fdatasync_loop(dir: &Path, time: Duration) -> Result<Fdatasync, CliError> {
    let path = dir.join("fdatasync.probe");
    let clock = SystemClock::new();
    let mut file = File::create(&path).map_err(|e| CliError::io(&path, &e))?;
    let mut times = histogram();
    let block = noise(BLOCK_BYTES, 1);
    let mut count = 0_u64;
    while clock.mono() < time {
        let start = clock.mono();
        file.write_all(&block)
            .and_then(|()| file.sync_data())
            .map_err(|e| CliError::io(&path, &e))?;
        record(&mut times, clock.mono().saturating_sub(start));
        count += 1;
    }
    let took = clock.mono();
    drop(file);
    std::fs::remove_file(&path).map_err(|e| CliError::io(&path, &e))?;
    Ok(Fdatasync {
        per_s: count as f64 / took.as_secs_f64(),
        p50_ms: times.value_at_quantile(0.5) as f64 / 1000.0,
    })
}

/// A RocksDB that takes rows of one size from 256 producers: one thread drains what is queued
/// into one batch, writes it with one sync, and answers each.
#[derive(Debug)]
pub struct Raw {
    queue: mpsc::Sender<Row>,
    writer: std::thread::JoinHandle<Result<(), String>>,
    next: Arc<AtomicU64>,
    value: Arc<[u8]>,
}

type Row = (u64, oneshot::Sender<()>);

impl Raw {
    /// Opens it in a folder of its own below `dir`.
    pub fn open(dir: &Path, event_bytes: usize) -> Result<Self, CliError> {
        let path = dir.join("raw");
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_compression_type(rocksdb::DBCompressionType::None);
        options.set_write_buffer_size(64 << 20);
        options.set_keep_log_file_num(2);
        let db = DB::open(&options, &path)
            .map_err(|e| CliError::failed("load.physical", e.to_string()))?;
        let (queue, rows) = mpsc::channel(PRODUCERS * 2);
        let value: Arc<[u8]> = noise(event_bytes, 2).into();
        let row = Arc::clone(&value);
        let writer = std::thread::Builder::new()
            .name("raw-writer".into())
            .spawn(move || write_all(&db, rows, &row))
            .map_err(|e| CliError::io(dir, &e))?;
        Ok(Self {
            queue,
            writer,
            next: Arc::new(AtomicU64::new(0)),
            value,
        })
    }

    /// Durable rows per second over `time`, 256 producers in a closed loop.
    pub async fn measure(&self, time: Duration) -> f64 {
        let clock = SystemClock::new();
        let stop = Arc::new(AtomicBool::new(false));
        let mut producers = tokio::task::JoinSet::new();
        for _ in 0..PRODUCERS {
            let (queue, stop, next) = (
                self.queue.clone(),
                Arc::clone(&stop),
                Arc::clone(&self.next),
            );
            producers.spawn(async move {
                let mut count = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    let (answer, durable) = oneshot::channel();
                    let key = next.fetch_add(1, Ordering::Relaxed);
                    if queue.send((key, answer)).await.is_err() || durable.await.is_err() {
                        break;
                    }
                    count += 1;
                }
                count
            });
        }
        clock.sleep_until(time).await;
        stop.store(true, Ordering::Relaxed);
        let counts = producers.join_all().await;
        counts.iter().sum::<u64>() as f64 / clock.mono().as_secs_f64()
    }

    /// Bytes of one row's value.
    pub fn value_bytes(&self) -> usize {
        self.value.len()
    }

    /// Stops the writer. Blocking.
    pub fn close(self) -> Result<(), CliError> {
        drop(self.queue);
        match self.writer.join() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(e)) => Err(CliError::failed("load.physical", e)),
            Err(_) => Err(CliError::failed("load.physical", "the raw writer panicked")),
        }
    }
}

fn write_all(db: &DB, mut rows: mpsc::Receiver<Row>, value: &[u8]) -> Result<(), String> {
    let mut durable = WriteOptions::default();
    durable.set_sync(true);
    let mut drained: Vec<Row> = Vec::with_capacity(BATCH_ROWS_MAX);
    loop {
        drained.clear();
        if rows.blocking_recv_many(&mut drained, BATCH_ROWS_MAX) == 0 {
            return Ok(());
        }
        let mut batch = WriteBatch::default();
        for (key, _) in &drained {
            batch.put(key.to_be_bytes(), value);
        }
        db.write_opt(batch, &durable).map_err(|e| e.to_string())?;
        for (_, answer) in drained.drain(..) {
            // A producer that stopped waiting is no error.
            let _ = answer.send(());
        }
    }
}

/// Longest time that is told apart, microseconds: ten minutes. The histogram has fixed bounds,
/// because saturating into one that grows by itself would cut at its first size.
const MICROS_MAX: u64 = 600_000_000;

/// Latencies in microseconds, three digits, growing as needed.
pub(crate) fn histogram() -> Histogram<u64> {
    #[expect(
        clippy::expect_used,
        reason = "three digits are within the crate's bounds"
    )]
    Histogram::new_with_bounds(1, MICROS_MAX, 3).expect("fixed bounds that the histogram takes")
}

/// Notes one latency.
pub(crate) fn record(times: &mut Histogram<u64>, time: Duration) {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    // A growing histogram takes every value that a duration can have.
    let _ = times.record(micros.max(1));
}

/// Printable bytes that do not compress well, the same for the same seed.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut reader = blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof();
    let mut bytes = vec![0; len];
    reader.fill(&mut bytes);
    bytes
        .iter_mut()
        .for_each(|b| *b = *LETTERS.get(usize::from(*b & 63)).unwrap_or(&b'A'));
    bytes
}

/// Whether syncing there costs nothing, so that the figures mean nothing.
pub(crate) fn is_memory_backed(dir: &Path) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    rustix::fs::statfs(dir).is_ok_and(|s| s.f_type as u64 == TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bare_loop_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let got = fdatasync_loop(dir.path(), Duration::from_millis(20)).unwrap();
        assert!(got.per_s > 0.0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn raw_rows_are_counted_and_the_writer_stops() {
        let dir = tempfile::tempdir().unwrap();
        let raw = Raw::open(dir.path(), 100).unwrap();
        assert!(raw.measure(Duration::from_millis(50)).await > 0.0);
        assert_eq!(raw.value_bytes(), 100);
        tokio::task::spawn_blocking(|| raw.close())
            .await
            .unwrap()
            .unwrap();
    }

    #[test]
    fn noise_is_printable_and_repeatable() {
        assert_eq!(noise(100, 7), noise(100, 7));
        assert_ne!(noise(100, 7), noise(100, 8));
        assert!(noise(100, 7).iter().all(u8::is_ascii_graphic));
    }
}
