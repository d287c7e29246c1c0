//! Records of a stream, over its segments, checked as they are read.

use crate::frame;
use crate::keys;
use crate::log::{CHAIN_START, Digest, Order, PageLimit, ReadError, Record, SegmentRef, StreamId};
use crate::stream_row::StreamRow;
use crate::table::{KeyRange, Table, Tables};

use super::page::Page;
use super::{bad_key, corrupted, damaged, stream_end};

/// A part of a stream within one segment.
struct Window {
    segment: SegmentRef,
    /// First position asked for.
    first: u64,
    /// Last position asked for, if the stream reaches that far.
    last: u64,
}

impl Window {
    fn range(&self) -> KeyRange {
        KeyRange::inclusive(
            &keys::position(self.segment.id, self.first),
            &keys::position(self.segment.id, self.last),
        )
    }
}

/// The windows of `after < seq <= through`, oldest first.
fn windows(row: &StreamRow, after: u64, through: u64) -> Vec<Window> {
    let mut served = 0;
    let mut windows = Vec::new();
    for segment in &row.segments {
        let first = after.max(served).saturating_add(1);
        let last = through.min(segment.through);
        served = segment.through;
        if first <= last {
            windows.push(Window {
                segment: *segment,
                first,
                last,
            });
        }
    }
    windows
}

/// One page of records.
pub(super) fn page(
    tables: &dyn Tables,
    stream: StreamId,
    row: &StreamRow,
    (after, through): (u64, u64),
    order: Order,
    limit: PageLimit,
) -> Result<Vec<Record>, ReadError> {
    let mut page = Page::new(limit);
    match order {
        Order::Asc => walk(tables, stream, row, (after, through), &mut |record| {
            let fits = page.admits(record.header.len() + record.content.len());
            if fits {
                page.push(record);
            }
            fits
        })?,
        Order::Desc => {
            let through = through.min(stream_end(tables, stream, row)?.last_seq);
            walk_back(tables, stream, row, (after, through), &mut |record| {
                let fits = page.admits(record.header.len() + record.content.len());
                if fits {
                    page.push(record);
                }
                fits
            })?;
        }
    }
    Ok(page.into_items())
}

/// Gives the records to `visit`, ascending, until it answers false. Each is checked against the
/// one before it; the first only where the value before it is known.
fn walk(
    tables: &dyn Tables,
    stream: StreamId,
    row: &StreamRow,
    (after, through): (u64, u64),
    visit: &mut dyn FnMut(Record) -> bool,
) -> Result<(), ReadError> {
    let mut previous = known_hash(row, after);
    for window in windows(row, after, through) {
        let mut expected = window.first;
        let mut cursor = tables.cursor(Table::Log, window.range(), Order::Asc)?;
        while let Some(item) = cursor.item().map_err(corrupted(stream, expected))? {
            let (record, digest) = read(stream, expected, item)?;
            if previous.is_some_and(|p| !frame::follows(&record, &digest, &p)) {
                return Err(damaged(stream, expected, frame::FrameError::Chain));
            }
            previous = Some(record.hash);
            expected = expected.saturating_add(1);
            if !visit(record) {
                return Ok(());
            }
            cursor.step();
        }
        let closed = window.segment.through != u64::MAX;
        if closed && expected <= window.last {
            return Err(missing(stream, expected));
        }
    }
    Ok(())
}

/// Gives the records to `visit`, descending, until it answers false. Each is checked against the
/// one below it; the last only where the value before it is known.
fn walk_back(
    tables: &dyn Tables,
    stream: StreamId,
    row: &StreamRow,
    (after, through): (u64, u64),
    visit: &mut dyn FnMut(Record) -> bool,
) -> Result<(), ReadError> {
    // The record above, which can be checked once the one below it is read.
    let mut above: Option<(Record, Digest)> = None;
    let follows = |above: &Option<(Record, Digest)>, below: &Digest| match above {
        Some((record, digest)) if !frame::follows(record, digest, below) => {
            Err(damaged(stream, record.seq, frame::FrameError::Chain))
        }
        _ => Ok(()),
    };
    for window in windows(row, after, through).into_iter().rev() {
        let mut expected = window.last;
        let mut cursor = tables.cursor(Table::Log, window.range(), Order::Desc)?;
        while let Some(item) = cursor.item().map_err(corrupted(stream, expected))? {
            let (record, digest) = read(stream, expected, item)?;
            follows(&above, &record.hash)?;
            above = Some((record.clone(), digest));
            expected = expected.saturating_sub(1);
            if !visit(record) {
                return Ok(());
            }
            cursor.step();
        }
        if expected >= window.first {
            return Err(missing(stream, expected));
        }
    }
    match (&above, known_hash(row, after)) {
        (Some(_), Some(below)) => follows(&above, &below),
        _ => Ok(()),
    }
}

/// The record that must be the one at `expected`, and the digest of its content.
fn read(
    stream: StreamId,
    expected: u64,
    (key, value): (&[u8], &[u8]),
) -> Result<(Record, Digest), ReadError> {
    let (_, seq) = keys::parse_position(key).ok_or_else(bad_key)?;
    if seq != expected {
        return Err(missing(stream, expected));
    }
    frame::record(seq, value).map_err(|e| damaged(stream, seq, e))
}

/// The chain value at `seq`, where it is known without reading a record.
fn known_hash(row: &StreamRow, seq: u64) -> Option<Digest> {
    if seq == 0 {
        Some(CHAIN_START)
    } else {
        (seq == row.base_seq()).then_some(row.base_hash)
    }
}

fn missing(stream: StreamId, seq: u64) -> ReadError {
    ReadError::Damaged {
        stream,
        seq,
        reason: "the record is missing".into(),
    }
}
