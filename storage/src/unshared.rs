//! What only an erased stream holds: the records, folds and history rows of its segments beyond
//! the last position that a living stream still shares.

use crate::keys;
use crate::log::{Order, ReadError, SegmentId, StreamId};
use crate::reader::stream_row;
use crate::stream_row::StreamRow;
use crate::table::{KeyRange, Sink, Table, Tables};

/// Lays the removal of what only `stream`, which is erased, holds. Returns its row; `None` = it
/// was never written, and there is nothing to remove.
pub(crate) fn remove(
    tables: &dyn Tables,
    stream: StreamId,
    sink: &mut dyn Sink,
) -> Result<Option<StreamRow>, ReadError> {
    let Some(row) = stream_row(tables, stream)? else {
        return Ok(None);
    };
    if !row.erased {
        return Err(ReadError::Engine(
            "only an erased stream can be purged".into(),
        ));
    }
    for segment in &row.segments {
        let shared = shared_through(tables, segment.id)?;
        if shared == u64::MAX {
            continue;
        }
        let from = keys::position(segment.id, shared.saturating_add(1));
        let to = segment_end(segment.id);
        sink.delete_range(Table::Log, &from, &to);
        sink.delete_range(Table::State, &from, &to);
        remove_history(tables, segment.id, shared, sink)?;
    }
    Ok(Some(row))
}

/// The last position of a segment that a living stream is made of; 0 = none, `u64::MAX` = its
/// owner lives.
fn shared_through(tables: &dyn Tables, segment: SegmentId) -> Result<u64, ReadError> {
    let owner = stream_row(tables, StreamId(segment.0))?;
    if owner.is_some_and(|row| !row.erased) {
        return Ok(u64::MAX);
    }
    let mut through = 0;
    let mut cursor = tables.cursor(Table::Refs, KeyRange::prefix(&segment.0), Order::Asc)?;
    while let Some((_, value)) = cursor.item()? {
        let value = value.try_into().map(u64::from_be_bytes);
        let at = value.map_err(|_| ReadError::Engine("a reference has the wrong length".into()))?;
        through = through.max(at);
        cursor.step();
    }
    Ok(through)
}

fn remove_history(
    tables: &dyn Tables,
    segment: SegmentId,
    shared: u64,
    sink: &mut dyn Sink,
) -> Result<(), ReadError> {
    if shared == 0 {
        sink.delete_range(Table::History, &segment.0, &segment_end(segment));
        return Ok(());
    }
    let mut cursor = tables.cursor(Table::History, KeyRange::prefix(&segment.0), Order::Asc)?;
    while let Some((key, _)) = cursor.item()? {
        if keys::parse_history(key).is_some_and(|(_, _, _, seq)| seq > shared) {
            sink.delete(Table::History, key);
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
