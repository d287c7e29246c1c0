//! A flipped byte anywhere is found, and named as exactly as it can be.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::*;
use crate::log::{
    Appended, ContentState, Expect, HistoryRow, Log, NewRecord, RowChange, StreamWrite, Write,
};
use crate::rocks::RocksLog;

fn id(n: u8) -> StreamId {
    StreamId([n; 16])
}

fn content(stream: u8, seq: u64) -> String {
    format!(
        "stream {stream} seq {seq} {}",
        blake3::hash(&[stream, seq as u8]).to_hex()
    )
}

fn write(n: u8, expect: Expect, after: u64, count: u64) -> Write {
    let record = |seq| NewRecord {
        header: Bytes::from(format!("header of {n} {seq}")),
        content: Bytes::from(content(n, seq)),
        content_state: ContentState::Present,
        key_id: 0,
    };
    let value = Bytes::from(blake3::hash(&[n]).to_hex().to_string());
    let stream = StreamWrite {
        id: id(n),
        expect,
        records: (after + 1..=after + count).map(record).collect(),
        history: vec![HistoryRow {
            kind: 1,
            key: [n; 16],
            seq: after + 1,
            value: value.clone(),
        }],
        state: Some(value.clone()),
        erase: false,
        expire: Vec::new(),
    };
    let rows = vec![RowChange::Put(
        format!("row of {n} at {after}").into(),
        value,
    )];
    Write {
        stream: Some(stream),
        conditions: Vec::new(),
        rows,
    }
}

/// Streams 1 to 8 in table files, 1 to 4 and 9 also in the write-ahead log; 5 is a fork of 1,
/// 6 is erased.
fn build(folder: &Path) {
    let log = RocksLog::open(folder, Options::default()).unwrap();
    let append = |write| log.append(write).wait().unwrap();
    let at = |end: Appended| Expect::Last {
        seq: end.last_seq,
        hash: end.last_hash,
    };
    let mut ends = BTreeMap::new();
    for n in [1, 2, 3, 4, 6, 7, 8] {
        ends.insert(n, append(write(n, Expect::New, 0, 20)));
    }
    append(write(
        5,
        Expect::Fork {
            from: id(1),
            at: 10,
        },
        10,
        3,
    ));
    let mut erase = write(6, at(ends[&6]), 20, 1);
    erase.stream.as_mut().unwrap().erase = true;
    append(erase);
    log.flush();
    for n in 1..=4 {
        append(write(n, at(ends[&n]), 20, 5));
    }
    append(write(9, Expect::New, 0, 5));
    log.close();
}

fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path());
    entries
        .map(|path| (path.clone(), std::fs::read(&path).unwrap()))
        .collect()
}

fn run(folder: &Path) -> Report {
    let before = files(folder);
    let report = verify(folder, &mut |_, _| Ok(())).unwrap();
    assert_eq!(files(folder), before, "verification changes nothing");
    report
}

fn with_flip(path: &Path, bytes: &[u8], at: usize, check: impl FnOnce()) {
    let mut flipped = bytes.to_vec();
    flipped[at] ^= 0x10;
    std::fs::write(path, &flipped).unwrap();
    check();
    std::fs::write(path, bytes).unwrap();
}

fn is_kind(path: &Path, kind: &str) -> bool {
    let name = path.file_name().unwrap().to_str().unwrap();
    name.ends_with(kind) || name.starts_with(kind)
}

#[test]
fn a_whole_folder_is_clean_and_every_record_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path());
    let mut shown = 0;
    let report = verify(folder.path(), &mut |stream, record| {
        assert_eq!(record.content, content(stream.0[0], record.seq));
        shown += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(report.findings, []);
    let erased = 21;
    let all = 7 * 20 + 1 + 3 + 4 * 5 + 5;
    assert_eq!(
        (report.streams, report.records, shown),
        (9, all, all - erased)
    );
    assert!(!report.torn_tail);
    let refused = verify(folder.path(), &mut |stream, record| {
        if (stream, record.seq) == (id(3), 22) {
            Err("not for me".into())
        } else {
            Ok(())
        }
    });
    assert_eq!(
        refused.unwrap().findings,
        [Finding::of_stream(id(3), 22, "not for me")]
    );
}

#[test]
fn a_torn_tail_is_not_a_fault() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path());
    // As after a crash.
    std::fs::remove_file(folder.path().join(closed::CLOSED_FILE)).unwrap();
    let wal = prescan::write_ahead_files(folder.path())
        .unwrap()
        .pop()
        .unwrap();
    let bytes = std::fs::read(&wal).unwrap();
    std::fs::write(&wal, &bytes[..bytes.len() - 100]).unwrap();
    let report = run(folder.path());
    assert!(report.torn_tail);
    assert_eq!(report.findings, []);
}

#[test]
fn a_flipped_byte_of_a_record_names_its_stream_and_position() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path());
    let mut tried = 0;
    for (path, bytes) in files(folder.path()) {
        if !is_kind(&path, ".sst") && !is_kind(&path, ".log") {
            continue;
        }
        for (stream, seq) in [(1, 1), (2, 20), (3, 13), (5, 12), (8, 20), (4, 23), (9, 5)] {
            for marker in [content(stream, seq), format!("header of {stream} {seq}")] {
                let found = bytes
                    .windows(marker.len())
                    .position(|w| w == marker.as_bytes());
                let Some(at) = found else { continue };
                tried += 1;
                with_flip(&path, &bytes, at + 3, || {
                    let report = run(folder.path());
                    let named = report.findings.iter().any(|f| {
                        (f.stream, f.first_seq, f.last_seq)
                            == (Some(id(stream)), Some(seq), Some(seq))
                    });
                    assert!(named, "{stream} {seq} in {path:?}: {:#?}", report.findings);
                });
            }
        }
    }
    assert!(tried >= 14, "{tried} markers found");
}

#[test]
fn a_flipped_byte_anywhere_is_found() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path());
    for (path, bytes) in files(folder.path()) {
        // Nothing depends on these.
        if ["LOG", "OPTIONS-", "IDENTITY", "LOCK", "longhaul.lock"]
            .iter()
            .any(|k| is_kind(&path, k))
        {
            continue;
        }
        let step = (bytes.len() / 40).max(1);
        let near_end = bytes.len().saturating_sub(60)..bytes.len();
        for at in (0..bytes.len()).step_by(step).chain(near_end.step_by(7)) {
            with_flip(&path, &bytes, at, || {
                let report = run(folder.path());
                assert!(
                    !report.is_clean(),
                    "flip at {at} of {} in {path:?}",
                    bytes.len()
                );
                let placed = report
                    .findings
                    .iter()
                    .any(|f| f.file.is_some() || f.stream.is_some());
                assert!(placed, "flip at {at} in {path:?}: {:#?}", report.findings);
            });
        }
    }
}

#[test]
fn a_missing_or_shortened_file_is_found() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path());
    for (path, bytes) in files(folder.path()) {
        let lost = [".sst", ".log", "MANIFEST-", "CURRENT", "FORMAT"];
        if !lost.iter().any(|k| is_kind(&path, k)) {
            continue;
        }
        std::fs::remove_file(&path).unwrap();
        assert!(!run(folder.path()).is_clean(), "{path:?} is missing");
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        assert!(!run(folder.path()).is_clean(), "{path:?} is half there");
        std::fs::write(&path, &bytes).unwrap();
    }
    assert!(run(folder.path()).is_clean());
}

#[test]
fn without_a_clean_close_the_end_of_the_log_is_no_fault() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path());
    assert!(folder.path().join(closed::CLOSED_FILE).is_file());
    let log = RocksLog::open(folder.path(), Options::default()).unwrap();
    log.append(write(10, Expect::New, 0, 5)).wait().unwrap();
    // What a kill leaves: the files as they are now.
    let left = tempfile::tempdir().unwrap();
    for (path, bytes) in files(folder.path()) {
        std::fs::write(left.path().join(path.file_name().unwrap()), bytes).unwrap();
    }
    log.close();
    assert!(!left.path().join(closed::CLOSED_FILE).exists());
    assert_eq!(run(left.path()).findings, []);
    assert_eq!(run(folder.path()).findings, []);
}

#[test]
fn no_folder_is_an_error_and_an_empty_one_is_clean() {
    let folder = tempfile::tempdir().unwrap();
    assert!(run(folder.path()).is_clean());
    let nowhere = folder.path().join("nowhere");
    assert!(matches!(
        verify(&nowhere, &mut |_, _| Ok(())),
        Err(OpenError::Io { .. })
    ));
}
