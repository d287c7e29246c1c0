//! What only one stream holds: the records, folds and history rows of its segments beyond the
//! last position that another living stream shares.

use crate::frame;
use crate::keys;
use crate::log::{ContentState, Order, ReadError, SegmentId, StreamId};
use crate::reader::stream_row;
use crate::stream_row::StreamRow;
use crate::table::{KeyRange, Sink, Table, Tables};

/// Most history rows removed at once; more take further rounds.
const HISTORY_ROWS_MAX: usize = 10_000;

/// One round of a removal.
pub(crate) struct Removal {
    /// The stream's row.
    pub(crate) row: StreamRow,
    /// Whether nothing is left for a further round.
    pub(crate) complete: bool,
}

/// Lays the removal of what only `stream` holds, if it is erased. `None` = it was never written,
/// and there is nothing to remove.
pub(crate) fn remove(
    tables: &dyn Tables,
    stream: StreamId,
    sink: &mut dyn Sink,
) -> Result<Option<Removal>, ReadError> {
    let Some(row) = stream_row(tables, stream)? else {
        return Ok(None);
    };
    if !row.erased {
        // Its expired contents were overwritten: no row has to go.
        return Ok(Some(Removal {
            row,
            complete: true,
        }));
    }
    let mut room = HISTORY_ROWS_MAX;
    for segment in &row.segments {
        let shared = shared_through(tables, segment.id)?;
        if shared == u64::MAX {
            continue;
        }
        let from = keys::position(segment.id, shared.saturating_add(1));
        let to = segment_end(segment.id);
        sink.delete_range(Table::Log, &from, &to);
        sink.delete_range(Table::State, &from, &to);
        remove_history(tables, segment.id, shared, &mut room, sink)?;
    }
    let complete = room > 0;
    Ok(Some(Removal { row, complete }))
}

/// The last position of a segment that a living stream is made of; 0 = none, `u64::MAX` = its
/// owner lives.
fn shared_through(tables: &dyn Tables, segment: SegmentId) -> Result<u64, ReadError> {
    let owner = stream_row(tables, StreamId(segment.0))?;
    if owner.is_some_and(|row| !row.erased) {
        return Ok(u64::MAX);
    }
    referenced_through(tables, segment, None)
}

/// The last position of a segment that streams other than its owner, and other than `but`, are
/// made of.
fn referenced_through(
    tables: &dyn Tables,
    segment: SegmentId,
    but: Option<StreamId>,
) -> Result<u64, ReadError> {
    let mut through = 0;
    let mut cursor = tables.cursor(Table::Refs, KeyRange::prefix(&segment.0), Order::Asc)?;
    while let Some((key, value)) = cursor.item()? {
        let value = value.try_into().map(u64::from_be_bytes);
        let at = value.map_err(|_| ReadError::Engine("a reference has the wrong length".into()))?;
        if but.is_none_or(|but| !key.ends_with(&but.0)) {
            through = through.max(at);
        }
        cursor.step();
    }
    Ok(through)
}

/// The last position of `stream` that another living stream is made of too. Streams share
/// beginnings only, so everything before it is shared as well.
pub(crate) fn held_by_others(
    tables: &dyn Tables,
    stream: StreamId,
    row: &StreamRow,
) -> Result<u64, ReadError> {
    let mut through = 0;
    for segment in &row.segments {
        let owner = StreamId(segment.id.0);
        let owned = owner != stream && stream_row(tables, owner)?.is_some_and(|row| !row.erased);
        let held = match owned {
            true => segment.through,
            false => referenced_through(tables, segment.id, Some(stream))?.min(segment.through),
        };
        through = through.max(held);
    }
    Ok(through)
}

/// The frames of the records in `ranges` without their contents, by key. Records whose content
/// is gone already are left as they are.
pub(crate) fn expired_frames(
    tables: &dyn Tables,
    stream: StreamId,
    row: &StreamRow,
    ranges: &[(u64, u64)],
) -> Result<Vec<Overwrite>, ReadError> {
    let mut frames = Vec::new();
    for seq in ranges.iter().flat_map(|(from, to)| *from..=*to) {
        let damaged = |reason: String| ReadError::Damaged {
            stream,
            seq,
            reason,
        };
        let segment = row.segments.iter().find(|s| s.through >= seq);
        let segment = segment.ok_or_else(|| damaged("no segment serves it".into()))?;
        let key = keys::position(segment.id, seq);
        let stored = tables.get(Table::Log, &key)?;
        let stored = stored.ok_or_else(|| damaged("the record is missing".into()))?;
        let state = frame::decode(&stored).map(|f| f.content_state);
        if state.map_err(|e| damaged(e.to_string()))? == ContentState::Present {
            let stripped = frame::strip(&stored, ContentState::Expired);
            frames.push((key, stripped.map_err(|e| damaged(e.to_string()))?));
        }
    }
    Ok(frames)
}

/// A key of the `log` table and its new frame.
pub(crate) type Overwrite = ([u8; keys::POSITION_LEN], Vec<u8>);

fn remove_history(
    tables: &dyn Tables,
    segment: SegmentId,
    shared: u64,
    room: &mut usize,
    sink: &mut dyn Sink,
) -> Result<(), ReadError> {
    if shared == 0 {
        sink.delete_range(Table::History, &segment.0, &segment_end(segment));
        return Ok(());
    }
    let mut cursor = tables.cursor(Table::History, KeyRange::prefix(&segment.0), Order::Asc)?;
    while let Some((key, _)) = cursor.item()? {
        if keys::parse_history(key).is_some_and(|(_, _, _, seq)| seq > shared) {
            if *room == 0 {
                return Ok(());
            }
            sink.delete(Table::History, key);
            *room -= 1;
        }
        cursor.step();
    }
    Ok(())
}

/// The key after all keys of a segment, in every table that starts with the segment.
pub(crate) fn segment_end(segment: SegmentId) -> Vec<u8> {
    // The one segment of 0xff bytes has no such key of its own length; a longer one does.
    keys::prefix_end(&segment.0).unwrap_or_else(|| vec![u8::MAX; keys::HISTORY_LEN + 1])
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::log::{
        Appended, Expect, HistoryRow, Log, NewRecord, StreamWrite, View, Write, read,
    };
    use crate::memory::MemoryLog;

    fn write(n: u8, expect: Expect, seq: u64, history: u32) -> Write {
        let row = |key: u32| {
            let mut natural = [0; 16];
            natural[..4].copy_from_slice(&key.to_be_bytes());
            HistoryRow {
                kind: 1,
                key: natural,
                seq,
                value: Bytes::from_static(b"x"),
            }
        };
        let record = NewRecord {
            header: Bytes::new(),
            content: Bytes::new(),
            content_state: ContentState::Present,
            key_id: 0,
        };
        let stream = StreamWrite {
            id: StreamId([n; 16]),
            expect,
            records: vec![record],
            history: (0..history).map(row).collect(),
            state: None,
            erase: false,
            expire: Vec::new(),
        };
        Write {
            stream: Some(stream),
            ..Write::default()
        }
    }

    fn last(end: Appended) -> Expect {
        Expect::Last {
            seq: end.last_seq,
            hash: end.last_hash,
        }
    }

    #[test]
    fn more_history_rows_than_one_round_takes_all_go() {
        let log = MemoryLog::new();
        let first = log.append(write(1, Expect::New, 1, 3)).wait().unwrap();
        let rows = HISTORY_ROWS_MAX as u32 * 2 + 500;
        let end = log.append(write(1, last(first), 2, rows)).wait().unwrap();
        let fork = Expect::Fork {
            from: StreamId([1; 16]),
            at: 1,
        };
        log.append(write(2, fork, 2, 0)).wait().unwrap();
        let mut erase = write(1, last(end), 3, 0);
        erase.stream.as_mut().unwrap().erase = true;
        log.append(erase).wait().unwrap();
        assert!(log.history_len() > rows as usize);
        log.purge(StreamId([1; 16])).unwrap();
        assert_eq!(log.history_len(), 3, "only what the fork shares");
        let shared = |v: &dyn View| v.history_row(StreamId([2; 16]), 1, [0; 16], u64::MAX);
        assert!(read(log.as_ref(), shared).unwrap().is_some());
    }
}
