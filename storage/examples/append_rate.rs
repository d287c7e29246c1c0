//! How fast this log appends, against RocksDB's own group commit of one row of the same bytes,
//! in turns, so that a noisy machine is equally noisy to both.
//!
//! `cargo run --release -p longhaul-storage --example append_rate -- [producers] [seconds]
//! [rounds] [rows beside each record]`

#![allow(clippy::print_stdout, reason = "an example talks")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use longhaul_storage::{
    ContentState, Expect, Log, NewRecord, Options, RocksLog, RowChange, StreamId, StreamWrite,
    Write,
};

const HEADER_BYTES: usize = 96;
const CONTENT_BYTES: usize = 1024 - HEADER_BYTES;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1).map(|a| a.parse());
    let producers: u64 = args.next().transpose()?.unwrap_or(256);
    let seconds: u64 = args.next().transpose()?.unwrap_or(3);
    let rounds: u64 = args.next().transpose()?.unwrap_or(3);
    let rows: u64 = args.next().transpose()?.unwrap_or(0);
    let folder = tempfile::tempdir_in(std::env::current_dir()?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()?;
    for round in 0..rounds {
        let path = folder.path().join(format!("raw-{round}"));
        let raw = raw(&path, producers, seconds)?;
        let path = folder.path().join(format!("log-{round}"));
        let ours = runtime.block_on(ours(&path, producers, seconds, rows))?;
        let ratio = ours as f64 / raw as f64;
        println!("raw {raw:>7}/s   log {ours:>7}/s   ratio {ratio:.2}");
    }
    Ok(())
}

/// Rows that threads of their own put and sync, grouped by the engine.
fn raw(
    path: &std::path::Path,
    producers: u64,
    seconds: u64,
) -> Result<u64, Box<dyn std::error::Error>> {
    let db = rocksdb::DB::open_default(path)?;
    let stop = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for producer in 0..producers {
            let (db, stop, done) = (&db, &stop, &done);
            scope.spawn(move || {
                let mut sync = rocksdb::WriteOptions::default();
                sync.set_sync(true);
                let value = vec![b'x'; HEADER_BYTES + CONTENT_BYTES];
                for n in 0u64.. {
                    let mut key = [0; 24];
                    key[..8].copy_from_slice(&producer.to_be_bytes());
                    key[16..].copy_from_slice(&n.to_be_bytes());
                    if stop.load(Ordering::Relaxed) || db.put_opt(key, &value, &sync).is_err() {
                        break;
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        pause(seconds);
        stop.store(true, Ordering::Relaxed);
    });
    Ok(done.into_inner() / seconds)
}

/// Streams that append one record after another.
async fn ours(
    path: &std::path::Path,
    producers: u64,
    seconds: u64,
    rows: u64,
) -> Result<u64, Box<dyn std::error::Error>> {
    let log = RocksLog::open(path, Options::default())?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for producer in 0..producers {
        let (log, stop) = (Arc::clone(&log), Arc::clone(&stop));
        tasks.push(tokio::spawn(produce(log, producer, rows, stop)));
    }
    tokio::task::spawn_blocking(move || pause(seconds)).await?;
    stop.store(true, Ordering::Relaxed);
    let mut done = 0;
    for task in tasks {
        done += task.await?;
    }
    tokio::task::spawn_blocking(move || log.close()).await?;
    Ok(done / seconds)
}

async fn produce(log: Arc<RocksLog>, producer: u64, rows: u64, stop: Arc<AtomicBool>) -> u64 {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&producer.to_be_bytes());
    let record = NewRecord {
        header: Bytes::from(vec![b'h'; HEADER_BYTES]),
        content: Bytes::from(vec![b'x'; CONTENT_BYTES]),
        content_state: ContentState::Present,
        key_id: 0,
    };
    let mut expect = Expect::New;
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let stream = StreamWrite {
            id: StreamId(id),
            expect,
            records: vec![record.clone()],
            history: Vec::new(),
            state: None,
            erase: false,
            expire: Vec::new(),
        };
        let rows = (0..rows)
            .map(|row| {
                let key = [producer.to_be_bytes(), row.to_be_bytes()].concat();
                RowChange::Put(key.into(), Bytes::from_static(&[b'r'; 64]))
            })
            .collect();
        let write = Write {
            stream: Some(stream),
            conditions: Vec::new(),
            rows,
        };
        match log.append(write).await {
            Ok(end) => {
                expect = Expect::Last {
                    seq: end.last_seq,
                    hash: end.last_hash,
                }
            }
            Err(error) => {
                println!("append failed: {error}");
                break;
            }
        }
        done += 1;
    }
    done
}

#[allow(clippy::disallowed_methods, reason = "a measurement takes real time")]
fn pause(seconds: u64) {
    std::thread::sleep(Duration::from_secs(seconds));
}
