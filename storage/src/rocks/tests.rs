//! Tests of the durable engine.

mod conformance;
mod faults;
mod format;
mod full_disk;
mod life;
mod model;
mod purging;
mod widths;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rocksdb::{DB, WriteBatch};

use super::*;
use crate::log::{
    AppendError, Appended, ContentState, Expect, NewRecord, Order, PageLimit, Record, RowChange,
    StreamWrite, read,
};

/// A fault in place of a write.
#[derive(Debug)]
pub(crate) enum Injected {
    /// Fails with this message; nothing is written.
    Before(&'static str),
    /// Fails with this message although it is written.
    After(&'static str),
}

/// Gives the batch back to be written, unless a fault is due.
pub(crate) fn inject(
    shared: &Shared,
    db: &DB,
    batch: WriteBatch,
    before: u64,
) -> Result<WriteBatch, recover::Failure> {
    let fault = shared.injected.lock().unwrap().pop_front();
    let cause = match fault {
        None => return Ok(batch),
        Some(Injected::Before(cause)) => cause,
        Some(Injected::After(cause)) => {
            db.write(batch).unwrap();
            cause
        }
    };
    Err(recover::Failure {
        cause: cause.into(),
        before,
    })
}

fn open(folder: &Path) -> Arc<RocksLog> {
    RocksLog::open(folder, small()).unwrap()
}

/// Small enough for many logs at once.
fn small() -> Options {
    Options {
        memory_bytes_max: 8 << 20,
        probe_ms_min: 1,
        probe_ms_max: 5,
        ..Options::default()
    }
}

fn id(n: u8) -> StreamId {
    StreamId([n; 16])
}

fn record(content: &str) -> NewRecord {
    NewRecord {
        header: Bytes::from_static(b"header"),
        content: Bytes::from(content.to_owned()),
        content_state: ContentState::Present,
        key_id: 0,
    }
}

fn write(stream: StreamId, expect: Expect, contents: &[&str]) -> Write {
    let records = contents.iter().map(|c| record(c)).collect();
    let stream = StreamWrite {
        id: stream,
        expect,
        records,
        history: Vec::new(),
        state: None,
        erase: false,
        expire: Vec::new(),
    };
    Write {
        stream: Some(stream),
        ..Write::default()
    }
}

fn at(end: Appended) -> Expect {
    Expect::Last {
        seq: end.last_seq,
        hash: end.last_hash,
    }
}

fn append(log: &RocksLog, write: Write) -> Result<Appended, AppendError> {
    log.append(write).wait()
}

fn records(log: &RocksLog, stream: StreamId) -> Vec<Record> {
    let all = PageLimit {
        items_max: usize::MAX,
        bytes_max: usize::MAX,
    };
    read(log, |v| v.records(stream, 0, u64::MAX, Order::Asc, all)).unwrap()
}

/// The contents of a stream, and that its positions have no gap.
fn contents(log: &RocksLog, stream: StreamId) -> Vec<String> {
    let records = records(log, stream);
    let seqs: Vec<_> = records.iter().map(|r| r.seq).collect();
    assert_eq!(seqs, (1..=records.len() as u64).collect::<Vec<_>>());
    records
        .iter()
        .map(|r| String::from_utf8(r.content.to_vec()).unwrap())
        .collect()
}

/// Every file of a folder with its bytes, but for those that go while it looks.
fn bytes_of(folder: &Path) -> std::collections::BTreeMap<std::path::PathBuf, Vec<u8>> {
    let mut files = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match std::fs::read(&path) {
            Ok(bytes) => drop(files.insert(path, bytes)),
            // An open engine removes what it no longer needs.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => panic!("{}: {e}", path.display()),
        }
    }
    files
}

/// The newest write-ahead file.
fn write_ahead_file(folder: &Path) -> std::path::PathBuf {
    prescan::write_ahead_files(folder).unwrap().pop().unwrap()
}
