use super::*;
use crate::conformance::{self, Engine};
use crate::log::{ContentState, Expect, NewRecord, Order, PageLimit, StreamWrite, read};
use crate::memory::MemoryLog;

struct Faulty;

impl Engine for Faulty {
    fn open(&self) -> Arc<dyn Log> {
        FaultyLog::new(MemoryLog::new())
    }

    fn reopen(&self, _: Arc<dyn Log>) -> Option<Arc<dyn Log>> {
        None
    }
}

#[test]
fn keeps_every_clause_when_nothing_fails() {
    conformance::run(&Faulty);
}

fn write(n: u8, expect: Expect, count: usize) -> Write {
    let record = NewRecord {
        header: "header".into(),
        content: "content".into(),
        content_state: ContentState::Present,
        key_id: 0,
    };
    let stream = StreamWrite {
        id: StreamId([n; 16]),
        expect,
        records: vec![record; count],
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

fn len(log: &FaultyLog, n: u8) -> usize {
    let all = PageLimit {
        items_max: usize::MAX,
        bytes_max: usize::MAX,
    };
    let records = read(log, |v| {
        v.records(StreamId([n; 16]), 0, u64::MAX, Order::Asc, all)
    })
    .unwrap();
    let seqs: Vec<_> = records.iter().map(|r| r.seq).collect();
    assert_eq!(
        seqs,
        (1..=records.len() as u64).collect::<Vec<_>>(),
        "no gap"
    );
    records.len()
}

#[test]
fn a_refused_append_leaves_no_gap() {
    let log = FaultyLog::new(MemoryLog::new());
    let first = log.append(write(1, Expect::New, 2)).wait().unwrap();
    for error in [AppendError::Busy, AppendError::Closed] {
        log.inject(Fault::Refuse(error.clone()));
        assert_eq!(log.append(write(1, at(first), 3)).wait(), Err(error));
    }
    assert_eq!(len(&log, 1), 2);
    assert_eq!(
        log.append(write(1, at(first), 1)).wait().unwrap().last_seq,
        3
    );
    assert_eq!(len(&log, 1), 3);
}

#[test]
fn an_unknown_outcome_is_either() {
    let log = FaultyLog::new(MemoryLog::new());
    let first = log.append(write(1, Expect::New, 1)).wait().unwrap();
    log.inject(Fault::LoseWrite);
    assert_eq!(log.append(write(1, at(first), 1)).wait(), Err(unknown()));
    assert_eq!(len(&log, 1), 1);
    log.inject(Fault::LoseAnswer);
    assert_eq!(log.append(write(1, at(first), 1)).wait(), Err(unknown()));
    assert_eq!(len(&log, 1), 2);
    let again = log.append(write(1, at(first), 1)).wait();
    assert_eq!(again, Err(AppendError::Conflict { actual: 2 }));
}

#[test]
fn nobody_sees_past_a_stalled_append() {
    let log = FaultyLog::new(MemoryLog::new());
    let first = log.append(write(1, Expect::New, 1)).wait().unwrap();
    log.stall();
    let stalled = log.append(write(1, at(first), 2));
    let behind = log.append(write(2, Expect::New, 1));
    assert_eq!(log.stalled_len(), 2);
    assert_eq!(len(&log, 1), 1);
    assert_eq!(
        read(log.as_ref(), |v| v.head(StreamId([2; 16]))).unwrap(),
        None
    );
    log.release();
    assert_eq!(stalled.wait().unwrap().last_seq, 3);
    assert_eq!(behind.wait().unwrap().last_seq, 1);
    assert_eq!(len(&log, 1), 3);
}

#[test]
fn answers_can_be_late() {
    let log = FaultyLog::new(MemoryLog::new());
    log.hold_answers();
    let mut late = log.append(write(1, Expect::New, 1));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let polled = Future::poll(std::pin::Pin::new(&mut late), &mut context);
    assert!(polled.is_pending());
    assert_eq!(len(&log, 1), 1, "durable before it is answered");
    log.release_answers();
    assert_eq!(late.wait().unwrap().last_seq, 1);
}

#[test]
fn a_full_disk_refuses_writes_and_serves_reads() {
    let log = FaultyLog::new(MemoryLog::new());
    let first = log.append(write(1, Expect::New, 1)).wait().unwrap();
    log.set_full(true);
    assert_eq!(log.health(), Health::Full);
    let refused = log.append(write(1, at(first), 1)).wait();
    assert!(matches!(refused, Err(AppendError::Full { .. })));
    assert_eq!(len(&log, 1), 1);
    log.set_full(false);
    log.append(write(1, at(first), 1)).wait().unwrap();
    assert_eq!(log.health(), Health::Ok);
}

#[test]
fn reads_can_fail() {
    let log = FaultyLog::new(MemoryLog::new());
    log.append(write(1, Expect::New, 1)).wait().unwrap();
    log.fail_read(ReadError::Closed);
    assert_eq!(
        read(log.as_ref(), |v| v.head(StreamId([1; 16]))),
        Err(ReadError::Closed)
    );
    assert_eq!(len(&log, 1), 1);
}
