//! From a [`Write`] to changes of tables: the same for every engine. Nothing here reads.

use crate::check::Taken;
use crate::frame::{Encoded, FrameError};
use crate::keys;
use crate::log::{
    AppendError, Appended, CHAIN_START, Condition, ContentState, Expect, NewRecord, RowChange,
    SegmentRef, StreamId, StreamWrite, Write,
};
use crate::stream_row::{PREFIX_BYTES_MAX, PREFIXES_MAX, StreamRow, own_segment};
use crate::table::{Sink, Table};

/// Most records in one write.
pub const RECORDS_MAX: usize = 10_000;
/// Most positions whose contents expire in one write: it reads them on the writer's thread.
pub const EXPIRE_MAX: u64 = 1_000;
/// Most rows, history rows and conditions in one write, each.
pub const ROWS_MAX: usize = 100_000;
/// Most bytes of a row's key.
pub const KEY_BYTES_MAX: usize = 4_096;
/// Most bytes of a row's value, of a history row's value, and of a cached fold.
pub const VALUE_BYTES_MAX: usize = 64 << 20;

/// Refuses what no engine may be asked to do.
pub(crate) fn validate(write: &Write) -> Result<(), AppendError> {
    let refuse = |reason| Err(AppendError::Malformed(reason));
    if write.rows.len() > ROWS_MAX || write.conditions.len() > ROWS_MAX {
        return refuse("too many rows or conditions");
    }
    for (key, condition) in &write.conditions {
        let value = match condition {
            Condition::Unchanged(value) => value.len(),
            Condition::Absent | Condition::Present => 0,
        };
        check_row(key, value)?;
    }
    for change in &write.rows {
        match change {
            RowChange::Put(key, value) => check_row(key, value.len())?,
            RowChange::Delete(key) => check_row(key, 0)?,
            RowChange::DeletePrefix(prefix) => {
                check_row(prefix, 0)?;
                if keys::prefix_end(prefix).is_none() {
                    return refuse("a prefix of 0xff bytes only has no end");
                }
            }
        }
    }
    match &write.stream {
        Some(stream) => validate_stream(stream, &write.rows),
        None => Ok(()),
    }
}

fn check_row(key: &[u8], value_len: usize) -> Result<(), AppendError> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(AppendError::Malformed("a row key is empty or too long"));
    }
    if value_len > VALUE_BYTES_MAX {
        return Err(AppendError::Malformed("a row value is too long"));
    }
    Ok(())
}

fn validate_stream(stream: &StreamWrite, rows: &[RowChange]) -> Result<(), AppendError> {
    let refuse = |reason| Err(AppendError::Malformed(reason));
    if stream.records.len() > RECORDS_MAX || stream.history.len() > ROWS_MAX {
        return refuse("too many records or history rows");
    }
    let expected = match stream.expect {
        Expect::New if stream.records.is_empty() => {
            return refuse("a new stream needs a record");
        }
        Expect::New => 0,
        Expect::Fork { at: 0, .. } => return refuse("a fork shares at least one record"),
        Expect::Fork { at, .. } => at,
        Expect::Last { seq: 0, .. } => return refuse("position 0 is before every stream"),
        Expect::Last { seq, .. } => seq,
    };
    // `u64::MAX` stands for an open segment.
    let Some(last) = expected
        .checked_add(stream.records.len() as u64)
        .filter(|l| *l < u64::MAX)
    else {
        return refuse("positions are used up");
    };
    for record in &stream.records {
        if !matches!(
            record.content_state,
            ContentState::Present | ContentState::Omitted
        ) {
            return refuse("a new record's content is present or omitted");
        }
    }
    for row in &stream.history {
        if row.seq <= expected || row.seq > last {
            return refuse("a history row is made by a record of its own write");
        }
        if row.value.len() > VALUE_BYTES_MAX {
            return refuse("a history row's value is too long");
        }
    }
    if stream
        .state
        .as_ref()
        .is_some_and(|s| s.len() > VALUE_BYTES_MAX)
    {
        return refuse("a cached fold is too long");
    }
    if !stream.expire.is_empty() {
        validate_expiry(stream, expected)?;
    }
    if stream.erase {
        if !matches!(stream.expect, Expect::Last { .. }) {
            return refuse("only an existing stream can be erased");
        }
        if removed_prefixes(rows).count() > PREFIXES_MAX {
            return refuse("too many prefixes in an erasure");
        }
        const { assert!(KEY_BYTES_MAX <= PREFIX_BYTES_MAX) };
    }
    Ok(())
}

fn validate_expiry(stream: &StreamWrite, expected: u64) -> Result<(), AppendError> {
    let refuse = |reason| Err(AppendError::Malformed(reason));
    if stream.erase || !matches!(stream.expect, Expect::Last { .. }) {
        return refuse("only contents of an existing stream that stays can expire");
    }
    let (mut before, mut count) = (0, 0u64);
    for (from, to) in &stream.expire {
        if *from <= before || to < from || *to > expected {
            return refuse("ranges to expire are ascending, and before the write");
        }
        before = *to;
        count = count.saturating_add(to - from + 1);
    }
    if count > EXPIRE_MAX {
        return refuse("too many contents to expire at once");
    }
    Ok(())
}

/// The end of a write of rows only.
pub(crate) const NO_STREAM: Appended = Appended {
    last_seq: 0,
    last_hash: CHAIN_START,
};

/// The end of a stream before a write, as far as its fence names it: a fork's is read later.
pub(crate) fn start(expect: &Expect) -> Option<Appended> {
    match *expect {
        Expect::New => Some(Appended {
            last_seq: 0,
            last_hash: CHAIN_START,
        }),
        Expect::Last { seq, hash } => Some(Appended {
            last_seq: seq,
            last_hash: hash,
        }),
        Expect::Fork { .. } => None,
    }
}

/// Lays the records, history, cached fold and rows of a write that begins after `start`.
/// Returns the end of the stream after it. The stream's own row is not part of this.
pub(crate) fn lay(
    write: &Write,
    start: Appended,
    sink: &mut dyn Sink,
) -> Result<Appended, AppendError> {
    let mut end = NO_STREAM;
    if let Some(stream) = &write.stream {
        end = lay_records(stream.id, &stream.records, start, sink)?;
        let segment = own_segment(stream.id);
        for row in &stream.history {
            let key = keys::history(segment, row.kind, row.key, row.seq);
            sink.put(Table::History, &key, &[&row.value]);
        }
        if let Some(state) = &stream.state {
            sink.put(
                Table::State,
                &keys::position(segment, end.last_seq),
                &[state],
            );
        }
        if stream.expect == Expect::New {
            lay_row(stream.id, &StreamRow::new(stream.id), sink);
        }
    }
    for change in &write.rows {
        match change {
            RowChange::Put(key, value) => sink.put(Table::Current, key, &[value]),
            RowChange::Delete(key) => sink.delete(Table::Current, key),
            RowChange::DeletePrefix(prefix) => {
                if let Some(end) = keys::prefix_end(prefix) {
                    sink.delete_range(Table::Current, prefix, &end);
                }
            }
        }
    }
    Ok(end)
}

/// Lays a whole write that was checked and taken.
pub(crate) fn lay_taken(
    write: &Write,
    taken: Taken,
    sink: &mut dyn Sink,
) -> Result<Appended, AppendError> {
    let Some(stream) = &write.stream else {
        return lay(write, NO_STREAM, sink);
    };
    match taken {
        Taken::Plain => {}
        Taken::Fork { shared, base } => {
            lay_fork(stream.id, shared, base, sink);
            return lay(write, base, sink);
        }
        Taken::Erase(row) => lay_erasure(stream.id, row, &write.rows, sink),
        Taken::Expire(frames) => {
            for (key, frame) in &frames {
                sink.put(Table::Log, key, &[frame]);
            }
        }
    }
    lay(write, start(&stream.expect).unwrap_or(NO_STREAM), sink)
}

fn lay_records(
    stream: StreamId,
    records: &[NewRecord],
    start: Appended,
    sink: &mut dyn Sink,
) -> Result<Appended, AppendError> {
    let segment = own_segment(stream);
    let mut end = start;
    for record in records {
        let frame = Encoded::new(record, &end.last_hash).map_err(malformed_frame)?;
        end = Appended {
            last_seq: end.last_seq.saturating_add(1),
            last_hash: frame.hash,
        };
        let key = keys::position(segment, end.last_seq);
        sink.put(Table::Log, &key, &frame.parts(record));
    }
    Ok(end)
}

fn malformed_frame(error: FrameError) -> AppendError {
    AppendError::Malformed(match error {
        FrameError::Unexpected => "a record whose content is omitted carries content",
        _ => "a record's header or content is too long",
    })
}

fn lay_row(stream: StreamId, row: &StreamRow, sink: &mut dyn Sink) {
    sink.put(Table::Streams, &stream.0, &[&row.encode()]);
}

/// Lays the row of a fork and its references to the segments it shares.
fn lay_fork(stream: StreamId, shared: Vec<SegmentRef>, base: Appended, sink: &mut dyn Sink) {
    for segment in &shared {
        let key = keys::reference(segment.id, stream);
        sink.put(Table::Refs, &key, &[&segment.through.to_be_bytes()]);
    }
    lay_row(
        stream,
        &StreamRow::with_shared(stream, shared, base.last_hash),
        sink,
    );
}

/// Lays the tombstone of a stream whose row is `row`: it keeps its segments, so that a purge can
/// be repeated, and gives up its references.
fn lay_erasure(stream: StreamId, mut row: StreamRow, rows: &[RowChange], sink: &mut dyn Sink) {
    for segment in row.shared() {
        sink.delete(Table::Refs, &keys::reference(segment.id, stream));
    }
    row.erased = true;
    row.prefixes = removed_prefixes(rows).map(<[u8]>::to_vec).collect();
    lay_row(stream, &row, sink);
}

fn removed_prefixes(rows: &[RowChange]) -> impl Iterator<Item = &[u8]> {
    rows.iter().filter_map(|change| match change {
        RowChange::DeletePrefix(prefix) => Some(prefix.as_ref()),
        RowChange::Put(..) | RowChange::Delete(_) => None,
    })
}
