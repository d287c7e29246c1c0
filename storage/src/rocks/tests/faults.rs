//! Failed writes: nothing lost, nothing half-written, and back without a restart.

use super::*;
use crate::log::Condition;

fn inject_next(log: &RocksLog, fault: Injected) {
    log.shared.injected.lock().unwrap().push_back(fault);
}

fn wait_until_healthy(log: &RocksLog) {
    while log.health() != Health::Ok {
        std::thread::yield_now();
    }
}

#[test]
fn after_an_unknown_outcome_the_log_is_reopened_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    let first = append(&log, write(id(1), Expect::New, &["1"])).unwrap();
    for (fault, written) in [
        (Injected::Before("IO error: injected"), false),
        (Injected::After("IO error: injected"), true),
    ] {
        let last = records(&log, id(1)).pop().unwrap();
        let end = Appended {
            last_seq: last.seq,
            last_hash: last.hash,
        };
        inject_next(&log, fault);
        let answer = append(&log, write(id(1), at(end), &["open outcome"]));
        assert!(
            matches!(answer, Err(AppendError::Unknown { .. })),
            "{answer:?}"
        );
        // A write that relied on either outcome is checked against what is really there.
        let relying = append(&log, write(id(1), at(end), &["next"]));
        assert_eq!(relying.is_ok(), !written, "{relying:?}");
        wait_until_healthy(&log);
    }
    assert_eq!(contents(&log, id(1)), ["1", "next", "open outcome"]);
    assert_eq!(first.last_seq, 1);
    log.close();
    assert_eq!(contents(&open(folder.path()), id(1)).len(), 3);
}

#[test]
fn everyone_in_a_failed_batch_learns_that_it_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    inject_next(&log, Injected::Before("IO error: injected"));
    // A condition that holds only because of a write that may not be there.
    let row = |condition, value: &str| Write {
        stream: None,
        conditions: vec![("row".into(), condition)],
        rows: vec![RowChange::Put("row".into(), value.to_owned().into())],
    };
    let answers: Vec<_> = (0..20)
        .map(|n| log.append(row(Condition::Absent, &n.to_string())))
        .collect();
    let answers: Vec<_> = answers.into_iter().map(Pending::wait).collect();
    assert!(matches!(answers[0], Err(AppendError::Unknown { .. })));
    let won = answers.iter().filter(|a| a.is_ok()).count();
    let row = read(log.as_ref(), |v| v.row(b"row")).unwrap();
    assert_eq!(
        row.is_some(),
        won == 1,
        "at most one of those behind the failed batch"
    );
    assert!(won <= 1);
}

#[test]
fn on_a_full_disk_reads_go_on_and_writes_come_back() {
    let folder = tempfile::tempdir().unwrap();
    // There is room for the probe all along: the disk is full once.
    let log = open(folder.path());
    let first = append(&log, write(id(1), Expect::New, &["1"])).unwrap();
    inject_next(
        &log,
        Injected::Before("IO error: No space left on device: injected"),
    );
    let refused = append(&log, write(id(1), at(first), &["2"]));
    assert_eq!(
        refused,
        Err(AppendError::Full {
            folder: folder.path().display().to_string()
        })
    );
    assert_eq!(contents(&log, id(1)), ["1"]);
    wait_until_healthy(&log);
    append(&log, write(id(1), at(first), &["2"])).unwrap();
    assert_eq!(contents(&log, id(1)), ["1", "2"]);
}

#[test]
fn a_write_that_is_there_after_all_is_never_called_full() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    inject_next(
        &log,
        Injected::After("IO error: No space left on device: injected"),
    );
    let answer = append(&log, write(id(1), Expect::New, &["1"]));
    assert!(
        matches!(answer, Err(AppendError::Unknown { .. })),
        "{answer:?}"
    );
    wait_until_healthy(&log);
    assert_eq!(contents(&log, id(1)), ["1"]);
}

#[test]
fn a_log_can_be_closed_while_the_disk_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let never = Options {
        probe_bytes: u64::MAX / 2,
        ..small()
    };
    let log = RocksLog::open(folder.path(), never).unwrap();
    append(&log, write(id(1), Expect::New, &["1"])).unwrap();
    inject_next(
        &log,
        Injected::Before("IO error: No space left on device: injected"),
    );
    let refused = append(&log, write(id(2), Expect::New, &["1"]));
    assert!(
        matches!(refused, Err(AppendError::Full { .. })),
        "{refused:?}"
    );
    let refused = append(&log, write(id(2), Expect::New, &["1"]));
    assert!(
        matches!(refused, Err(AppendError::Full { .. })),
        "{refused:?}"
    );
    assert_eq!(log.health(), Health::Full);
    assert_eq!(contents(&log, id(1)), ["1"]);
    log.close();
    assert_eq!(log.health(), Health::Closed);
    assert_eq!(contents(&open(folder.path()), id(1)), ["1"]);
}

#[test]
fn a_panic_of_the_writer_leaves_reads_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    append(&log, write(id(1), Expect::New, &["1"])).unwrap();
    // A poisoned lock makes the next injection panic on the writer's thread.
    let poison = || {
        let _held = log.shared.injected.lock().unwrap();
        panic!("poisons the lock");
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(poison)).is_err());
    let answer = append(&log, write(id(2), Expect::New, &["1"]));
    assert!(
        matches!(answer, Err(AppendError::Unknown { .. })),
        "{answer:?}"
    );
    while log.health() == Health::Ok {
        std::thread::yield_now();
    }
    assert!(matches!(log.health(), Health::Failed(_)));
    assert_eq!(
        append(&log, write(id(2), Expect::New, &["1"])),
        Err(AppendError::Closed)
    );
    log.close();
    assert_eq!(contents(&open(folder.path()), id(1)), ["1"]);
}

#[test]
fn a_full_queue_is_busy_and_never_waits() {
    let folder = tempfile::tempdir().unwrap();
    let tight = Options {
        queue_len_max: 4,
        ..small()
    };
    let log = RocksLog::open(folder.path(), tight).unwrap();
    let mut busy = 0;
    let pending: Vec<_> = (0..200)
        .map(|n| log.append(write(id(n), Expect::New, &["x"])))
        .collect();
    let mut taken = 0u8;
    for answer in pending {
        match answer.wait() {
            Ok(_) => taken += 1,
            Err(AppendError::Busy) => busy += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(busy > 0 && taken >= 4, "{busy} busy, {taken} taken");
    let there = (0..200).filter(|n| read(log.as_ref(), |v| v.head(id(*n))).unwrap().is_some());
    assert_eq!(
        there.count(),
        usize::from(taken),
        "busy means that nothing is written"
    );
}
