//! What clauses are written with.

use std::sync::Arc;

use bytes::Bytes;

use crate::log::{
    AppendError, Appended, CHAIN_START, Condition, ContentState, Expect, HistoryRow, Log,
    NewRecord, Order, PageLimit, ReadError, Record, RowChange, StreamHead, StreamId, StreamWrite,
    View, Write, read,
};

pub(super) const WIDE: PageLimit = PageLimit {
    items_max: usize::MAX,
    bytes_max: usize::MAX,
};

pub(super) fn id(n: u8) -> StreamId {
    StreamId([n; 16])
}

pub(super) fn record(text: &str) -> NewRecord {
    NewRecord {
        header: Bytes::from(format!("header of {text}")),
        content: Bytes::from(text.to_owned()),
        content_state: ContentState::Present,
        key_id: 0,
    }
}

/// Records whose contents name their positions.
pub(super) fn records(after: u64, count: u64) -> Vec<NewRecord> {
    (after + 1..=after + count)
        .map(|n| record(&format!("content {n}")))
        .collect()
}

pub(super) fn write(stream: StreamId, expect: Expect, records: Vec<NewRecord>) -> Write {
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

pub(super) fn begin(stream: StreamId, count: u64) -> Write {
    write(stream, Expect::New, records(0, count))
}

pub(super) fn at(end: Appended) -> Expect {
    Expect::Last {
        seq: end.last_seq,
        hash: end.last_hash,
    }
}

pub(super) fn go_on(stream: StreamId, end: Appended, count: u64) -> Write {
    write(stream, at(end), records(end.last_seq, count))
}

pub(super) fn rows(conditions: Vec<(&str, Condition)>, rows: Vec<RowChange>) -> Write {
    let conditions = conditions
        .into_iter()
        .map(|(k, c)| (Bytes::from(k.to_owned()), c))
        .collect();
    Write {
        stream: None,
        conditions,
        rows,
    }
}

pub(super) fn put(key: &str, value: &str) -> RowChange {
    RowChange::Put(Bytes::from(key.to_owned()), Bytes::from(value.to_owned()))
}

pub(super) fn history(kind: u8, key: u8, seq: u64, value: &str) -> HistoryRow {
    HistoryRow {
        kind,
        key: [key; 16],
        seq,
        value: Bytes::from(value.to_owned()),
    }
}

pub(super) fn append(log: &Arc<dyn Log>, write: Write) -> Result<Appended, AppendError> {
    log.append(write).wait()
}

pub(super) fn view<T>(
    log: &Arc<dyn Log>,
    f: impl FnOnce(&dyn View) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    read(log.as_ref(), f)
}

pub(super) fn head(log: &Arc<dyn Log>, stream: StreamId) -> Option<StreamHead> {
    view(log, |v| v.head(stream)).unwrap()
}

pub(super) fn all_records(log: &Arc<dyn Log>, stream: StreamId) -> Vec<Record> {
    view(log, |v| v.records(stream, 0, u64::MAX, Order::Asc, WIDE)).unwrap()
}

pub(super) fn row(log: &Arc<dyn Log>, key: &str) -> Option<String> {
    let row = view(log, |v| v.row(key.as_bytes())).unwrap()?;
    Some(String::from_utf8(row.to_vec()).unwrap())
}

/// The stream is `1..=count`, in both directions, without a gap, and each record is the one that
/// was written there.
pub(super) fn assert_whole(log: &Arc<dyn Log>, stream: StreamId, count: u64) -> Vec<Record> {
    let up = all_records(log, stream);
    assert_eq!(
        up.iter().map(|r| r.seq).collect::<Vec<_>>(),
        (1..=count).collect::<Vec<_>>()
    );
    let mut down = view(log, |v| v.records(stream, 0, u64::MAX, Order::Desc, WIDE)).unwrap();
    down.reverse();
    assert_eq!(up, down);
    let head = head(log, stream).unwrap();
    assert_eq!(head.last_seq, count);
    assert_eq!(head.last_hash, up.last().map_or(CHAIN_START, |r| r.hash));
    for record in &up {
        assert_eq!(record.content, format!("content {}", record.seq));
    }
    up
}
