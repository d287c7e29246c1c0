//! What is purged is gone from the files.

use super::*;

fn count(folder: &Path, marker: &str) -> usize {
    let in_file = |bytes: &[u8]| {
        bytes
            .windows(marker.len())
            .filter(|w| *w == marker.as_bytes())
            .count()
    };
    bytes_of(folder).values().map(|b| in_file(b)).sum()
}

fn erase(log: &RocksLog, stream: StreamId, prefix: &str) {
    let last = records(log, stream).pop().unwrap();
    let end = Appended {
        last_seq: last.seq,
        last_hash: last.hash,
    };
    let mut erase = write(stream, at(end), &[]);
    erase.stream.as_mut().unwrap().erase = true;
    erase.rows = vec![RowChange::DeletePrefix(prefix.to_owned().into())];
    append(log, erase).unwrap();
}

/// A value that no compression can hide from a search.
fn secret(n: u8) -> String {
    format!("secret-{n}-{}", blake3::hash(&[n]).to_hex())
}

fn with_secret(n: u8, expect: Expect) -> Write {
    let mut write = write(id(n), expect, &[&secret(n)]);
    let seq = match write.stream.as_ref().unwrap().expect {
        Expect::Last { seq, .. } | Expect::Fork { at: seq, .. } => seq + 1,
        Expect::New => 1,
    };
    let stream = write.stream.as_mut().unwrap();
    let value = Bytes::from(secret(n));
    stream.state = Some(value.clone());
    stream.history = vec![crate::log::HistoryRow {
        kind: 1,
        key: [1; 16],
        seq,
        value: value.clone(),
    }];
    write.rows = vec![RowChange::Put(format!("rows/{n}/a").into(), value)];
    write
}

#[test]
fn the_bytes_of_an_erased_stream_leave_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    for n in 1..=3 {
        append(&log, with_secret(n, Expect::New)).unwrap();
    }
    // Some of it in table files, some in the write-ahead log only.
    log.flush();
    for n in 1..=3 {
        let last = records(&log, id(n)).pop().unwrap();
        let end = Appended {
            last_seq: last.seq,
            last_hash: last.hash,
        };
        append(&log, with_secret(n, at(end))).unwrap();
    }
    assert!(count(folder.path(), &secret(1)) > 0);
    erase(&log, id(1), "rows/1/");
    log.purge(id(1)).unwrap();
    assert_eq!(count(folder.path(), &secret(1)), 0);
    for n in 2..=3 {
        assert_eq!(contents(&log, id(n)), [secret(n), secret(n)]);
        assert!(count(folder.path(), &secret(n)) > 0);
    }
    log.close();
    assert_eq!(count(folder.path(), &secret(1)), 0);
    let log = open(folder.path());
    assert_eq!(
        read(log.as_ref(), |v| v.head(id(1))),
        Err(ReadError::Erased)
    );
    assert_eq!(count(folder.path(), &secret(1)), 0);
    log.close();
    assert!(
        crate::verify::verify(folder.path(), &mut |_, _| Ok(()))
            .unwrap()
            .is_clean()
    );
}

#[test]
fn what_a_fork_shares_stays_until_the_fork_goes_too() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    append(&log, write(id(1), Expect::New, &[&secret(1)])).unwrap();
    append(
        &log,
        write(id(2), Expect::Fork { from: id(1), at: 1 }, &[&secret(2)]),
    )
    .unwrap();
    let first = records(&log, id(1)).pop().unwrap();
    let end = Appended {
        last_seq: 1,
        last_hash: first.hash,
    };
    append(&log, write(id(1), at(end), &[&secret(3)])).unwrap();
    erase(&log, id(1), "rows/1/");
    log.purge(id(1)).unwrap();
    assert_eq!(
        count(folder.path(), &secret(3)),
        0,
        "beyond what the fork shares"
    );
    assert_eq!(contents(&log, id(2)), [secret(1), secret(2)]);
    log.close();
    assert!(
        crate::verify::verify(folder.path(), &mut |_, _| Ok(()))
            .unwrap()
            .is_clean()
    );
    let log = open(folder.path());
    erase(&log, id(2), "rows/2/");
    log.purge(id(2)).unwrap();
    for n in 1..=3 {
        assert_eq!(count(folder.path(), &secret(n)), 0);
    }
}

#[test]
fn a_purge_waits_for_views_that_still_see_the_stream() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    append(&log, with_secret(1, Expect::New)).unwrap();
    log.flush();
    std::thread::scope(|scope| {
        let (entered, wait) = std::sync::mpsc::channel();
        let (leave, left) = std::sync::mpsc::channel::<()>();
        let reader = &log;
        scope.spawn(move || {
            read(reader.as_ref(), |v| {
                entered.send(()).unwrap();
                left.recv().unwrap();
                v.head(id(1))
            })
            .unwrap()
            .unwrap()
        });
        wait.recv().unwrap();
        erase(&log, id(1), "rows/1/");
        let purge = scope.spawn(|| log.purge(id(1)));
        leave.send(()).unwrap();
        purge.join().unwrap().unwrap();
        assert_eq!(count(folder.path(), &secret(1)), 0);
    });
}

#[test]
fn the_bytes_of_expired_contents_leave_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    let secrets = [secret(1), secret(2), secret(3)];
    let all: Vec<&str> = secrets.iter().map(String::as_str).collect();
    append(&log, write(id(1), Expect::New, &all)).unwrap();
    append(&log, write(id(2), Expect::New, &[&secret(4)])).unwrap();
    // Some of it in table files, some in the write-ahead log only.
    log.flush();
    let last = records(&log, id(1)).pop().unwrap();
    let end = Appended {
        last_seq: 3,
        last_hash: last.hash,
    };
    let end = append(&log, write(id(1), at(end), &[&secret(5)])).unwrap();
    let mut expire = write(id(1), at(end), &["still here"]);
    expire.stream.as_mut().unwrap().expire = vec![(1, 2), (4, 4)];
    append(&log, expire).unwrap();
    log.purge(id(1)).unwrap();
    for (n, there) in [(1, false), (2, false), (3, true), (4, true), (5, false)] {
        let found = count(folder.path(), &secret(n));
        assert_eq!(found > 0, there, "secret {n}: {found}");
    }
    assert_eq!(
        contents(&log, id(1)),
        ["", "", &secret(3), "", "still here"]
    );
    log.close();
    assert!(
        crate::verify::verify(folder.path(), &mut |_, _| Ok(()))
            .unwrap()
            .is_clean()
    );
    let log = open(folder.path());
    for n in [1, 2, 5] {
        assert_eq!(count(folder.path(), &secret(n)), 0);
    }
    assert_eq!(contents(&log, id(1)).len(), 5);
}
