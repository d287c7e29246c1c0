//! The records of all streams, read without the engine's checksums, against their chains.

use rocksdb::DB;

use crate::frame;
use crate::keys;
use crate::log::{CHAIN_START, Digest, Order, ReadError, SegmentId, StreamId};
use crate::reader::{hash_at, stream_row};
use crate::rocks::tables::DbTables;
use crate::stream_row::StreamRow;
use crate::table::{Cursor, KeyRange, Table, Tables};

use super::rows::BadBlock;
use super::{Finding, Report, Visit};

/// Walks the `log` table once, segment by segment, then the streams.
pub(super) fn check(db: &DB, bad_blocks: &[BadBlock], visit: &mut Visit<'_>, report: &mut Report) {
    let tables = DbTables::unchecked(db);
    walk_log(&tables, bad_blocks, visit, report);
    walk_streams(&tables, report);
}

/// Where the walk is in a segment.
struct Segment {
    id: SegmentId,
    /// Whether records are given to the visitor: not those of an erased stream.
    live: bool,
    next: u64,
    /// Chain values that the record before may have had: as stored, and as computed.
    previous: Vec<Digest>,
}

fn walk_log(
    tables: &DbTables<'_>,
    bad_blocks: &[BadBlock],
    visit: &mut Visit<'_>,
    report: &mut Report,
) {
    let mut from = Vec::new();
    let mut segment = None;
    loop {
        let range = KeyRange {
            from: from.clone(),
            to: None,
        };
        let mut cursor = match tables.cursor(Table::Log, range, Order::Asc) {
            Ok(cursor) => cursor,
            Err(error) => return report.add(unreadable(segment.as_ref(), &error)),
        };
        let Err(error) = walk_on(
            tables,
            cursor.as_mut(),
            &mut segment,
            &mut from,
            visit,
            report,
        ) else {
            return;
        };
        // A block that does not even parse: go on behind it, if its end is known.
        let behind = bad_blocks.iter().find(|(_, end)| *end >= from);
        let Some((_, end)) = behind else {
            return report.add(unreadable(segment.as_ref(), &error));
        };
        from = end.clone();
        from.push(0);
    }
}

fn unreadable(segment: Option<&Segment>, error: &ReadError) -> Finding {
    Finding {
        stream: segment.map(|s| StreamId(s.id.0)),
        first_seq: segment.map(|s| s.next),
        last_seq: None,
        file: None,
        reason: format!("the records from here on cannot be read: {error}"),
    }
}

/// Walks until the end or an error; `from` is left behind the last key that was read.
fn walk_on(
    tables: &DbTables<'_>,
    cursor: &mut dyn Cursor,
    segment: &mut Option<Segment>,
    from: &mut Vec<u8>,
    visit: &mut Visit<'_>,
    report: &mut Report,
) -> Result<(), ReadError> {
    while let Some((key, value)) = cursor.item()? {
        from.clear();
        from.extend_from_slice(key);
        from.push(0);
        match keys::parse_position(key) {
            None => {
                report.add(Finding::of_table(
                    "a key of the log table has the wrong length",
                ));
            }
            Some((id, seq)) => {
                let here = match segment.take().filter(|s| s.id == id) {
                    Some(segment) => segment,
                    None => begin(tables, id, seq, report),
                };
                *segment = Some(check_record(here, seq, value, visit, report));
            }
        }
        cursor.step();
    }
    Ok(())
}

fn begin(tables: &DbTables<'_>, id: SegmentId, seq: u64, report: &mut Report) -> Segment {
    let stream = StreamId(id.0);
    let row = stream_row(tables, stream);
    let row = match row {
        Ok(Some(row)) => row,
        Ok(None) => {
            report.add(Finding::of_stream(
                stream,
                seq,
                "records of a stream without a row",
            ));
            return Segment {
                id,
                live: false,
                next: seq,
                previous: Vec::new(),
            };
        }
        Err(error) => {
            report.add(Finding::of_stream(stream, seq, error.to_string()));
            return Segment {
                id,
                live: false,
                next: seq,
                previous: Vec::new(),
            };
        }
    };
    // Part of an erased stream may be there still, or again only what forks share of it.
    let base = row.base_seq();
    Segment {
        id,
        live: !row.erased,
        next: base + 1,
        previous: vec![row.base_hash],
    }
}

fn check_record(
    mut here: Segment,
    seq: u64,
    value: &[u8],
    visit: &mut Visit<'_>,
    report: &mut Report,
) -> Segment {
    let stream = StreamId(here.id.0);
    if seq != here.next {
        if seq > here.next {
            report.add(Finding {
                last_seq: Some(seq - 1),
                ..Finding::of_stream(stream, here.next, "records are missing")
            });
        } else {
            report.add(Finding::of_stream(
                stream,
                seq,
                "a record before the stream's own",
            ));
        }
        here.previous.clear();
    }
    here.next = seq.saturating_add(1);
    let (record, digest) = match frame::record(seq, value) {
        Ok(record) => record,
        Err(error) => {
            report.add(Finding::of_stream(stream, seq, error.to_string()));
            // Where only the content is damaged the chain still goes on.
            here.previous = frame::decode(value)
                .map(|f| vec![f.hash])
                .unwrap_or_default();
            return here;
        }
    };
    let follows = here.previous.is_empty()
        || here
            .previous
            .iter()
            .any(|p| frame::follows(&record, &digest, p));
    if follows {
        here.previous = vec![record.hash];
        report.records += 1;
        if here.live
            && let Err(reason) = visit(stream, &record)
        {
            report.add(Finding::of_stream(stream, seq, reason));
        }
        return here;
    }
    report.add(Finding::of_stream(
        stream,
        seq,
        frame::FrameError::Chain.to_string(),
    ));
    // Either the header or the stored value is damaged: the next record tells which.
    let computed = here
        .previous
        .iter()
        .map(|p| frame::chained(&record, &digest, p));
    here.previous = computed.chain([record.hash]).collect();
    here
}

/// Every stream has its records, and every fork its shared part.
fn walk_streams(tables: &DbTables<'_>, report: &mut Report) {
    let all = KeyRange {
        from: Vec::new(),
        to: None,
    };
    let mut walk = || -> Result<(), ReadError> {
        let mut cursor = tables.cursor(Table::Streams, all.clone(), Order::Asc)?;
        while let Some((key, value)) = cursor.item()? {
            match <[u8; 16]>::try_from(key) {
                Ok(id) => check_stream(tables, StreamId(id), value, report),
                Err(_) => {
                    let reason = "a key of the streams table has the wrong length";
                    report.add(Finding::of_table(reason));
                }
            }
            cursor.step();
        }
        Ok(())
    };
    if let Err(error) = walk() {
        report.add(Finding::of_table(format!("the streams table: {error}")));
    }
}

fn check_stream(tables: &DbTables<'_>, stream: StreamId, value: &[u8], report: &mut Report) {
    report.streams += 1;
    let row = match StreamRow::decode(stream, value) {
        Ok(row) if row.erased => return,
        Ok(row) => row,
        Err(reason) => return report.add(Finding::of_stream(stream, 1, reason)),
    };
    let Some(base) = row.shared().last() else {
        let own = KeyRange::prefix(&stream.0);
        if row.base_hash != CHAIN_START {
            report.add(Finding::of_stream(
                stream,
                1,
                "the stream's row has a base it cannot have",
            ));
        }
        if let Ok(None) = tables.first(Table::Log, own, Order::Asc) {
            report.add(Finding {
                last_seq: None,
                ..Finding::of_stream(stream, 1, "all its records are missing")
            });
        }
        return;
    };
    let mut served = 0;
    for shared in row.shared() {
        // The segment's own stream is walked by itself, unless it is erased.
        let last = KeyRange::inclusive(
            &keys::position(shared.id, served + 1),
            &keys::position(shared.id, shared.through),
        );
        let end = tables.first(Table::Log, last, Order::Desc).ok().flatten();
        let end = end
            .and_then(|(key, _)| keys::parse_position(&key))
            .map(|(_, seq)| seq);
        if end != Some(shared.through) {
            report.add(Finding {
                last_seq: Some(shared.through),
                ..Finding::of_stream(
                    stream,
                    end.unwrap_or(served) + 1,
                    "shared records are missing",
                )
            });
        }
        served = shared.through;
    }
    let found = hash_at(tables, stream, &row, base.through);
    if found.is_ok_and(|hash| hash != row.base_hash) {
        let reason = "the stream does not follow what it shares";
        report.add(Finding::of_stream(stream, base.through, reason));
    }
}
