//! The table files, and the rows through the engine with its checksums on.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rocksdb::{DB, LiveFile, ReadOptions};

use crate::keys;
use crate::log::{Order, SegmentId, StreamId};
use crate::rocks::tables::DbTables;
use crate::table::{KeyRange, Table, Tables};

use super::{Finding, Report, file_in, tablefile};

/// A part of the `log` table that cannot be read: after the first key, not after the second.
pub(super) type BadBlock = (Vec<u8>, Vec<u8>);

/// Checks all table files that the database refers to, and reads all rows in them.
pub(super) fn check(folder: &Path, db: &DB, report: &mut Report) -> Vec<BadBlock> {
    let mut bad_blocks = Vec::new();
    let files = match db.live_files() {
        Ok(files) => files,
        Err(e) => {
            report.add(Finding::of_file(folder, e.to_string()));
            return bad_blocks;
        }
    };
    let mut bad_files = BTreeSet::new();
    for file in &files {
        let path = folder.join(file.name.trim_start_matches('/'));
        let checked = tablefile::check(&path);
        for fault in checked.faults {
            bad_files.insert(path.clone());
            let is_log = file.column_family_name == Table::Log.name();
            match fault.keys {
                Some(keys) if is_log => {
                    name_block(db, &path, &keys, &fault.reason, report);
                    bad_blocks.push(keys);
                }
                _ => name_file(db, &path, file, &fault.reason, report),
            }
        }
        if !checked.data {
            read_through(folder, db, file, &mut bad_files, report);
        }
    }
    bad_blocks.sort();
    bad_blocks
}

/// Names the positions that a damaged block of the `log` table covers, by its neighbours.
fn name_block(db: &DB, path: &Path, block: &BadBlock, reason: &str, report: &mut Report) {
    let tables = DbTables::unchecked(db);
    let neighbour = |range, order| {
        let found = tables.first(Table::Log, range, order).ok()??;
        keys::parse_position(&found.0)
    };
    let below = KeyRange::inclusive(&[], &block.0);
    let below = neighbour(below, Order::Desc);
    let mut from = block.1.clone();
    from.push(0);
    let above = neighbour(KeyRange { from, to: None }, Order::Asc);
    let (first, first_seq) = below.map_or((SegmentId([0; 16]), 1), |(s, seq)| (s, seq + 1));
    let (last, last_seq) = match above {
        Some((segment, seq)) => (segment, Some(seq.saturating_sub(1))),
        None => (SegmentId([u8::MAX; 16]), None),
    };
    let streams = KeyRange::inclusive(&first.0, &last.0);
    let mut named = false;
    if let Ok(mut cursor) = tables.cursor(Table::Streams, streams, Order::Asc) {
        while let Ok(Some((key, _))) = cursor.item() {
            if let Ok(id) = <[u8; 16]>::try_from(key) {
                let last_seq = if id == last.0 { last_seq } else { None };
                if last_seq != Some(0) {
                    named = true;
                    report.add(Finding {
                        stream: Some(StreamId(id)),
                        first_seq: Some(if id == first.0 { first_seq } else { 1 }),
                        last_seq,
                        file: Some(path.to_owned()),
                        reason: reason.to_owned(),
                    });
                }
            }
            cursor.step();
        }
    }
    if !named {
        report.add(Finding::of_file(path, reason));
    }
}

/// Names the stream if a file has only one, and the file.
fn name_file(db: &DB, path: &Path, file: &LiveFile, reason: &str, report: &mut Report) {
    let segment = |key: &Option<Vec<u8>>| {
        let key = key.as_ref()?;
        let of_segments = [Table::Log, Table::State, Table::History].map(Table::name);
        let has = of_segments.contains(&file.column_family_name.as_str());
        key.first_chunk::<16>().copied().filter(|_| has)
    };
    let (first, last) = (segment(&file.start_key), segment(&file.end_key));
    let (Some(first), Some(last)) = (first, last) else {
        report.add(Finding::of_file(path, reason));
        return;
    };
    if file.column_family_name == Table::Log.name()
        && let (Some(start), Some(end)) = (&file.start_key, &file.end_key)
    {
        // Just below its first key.
        let mut start = start.clone();
        start.pop();
        name_block(db, path, &(start, end.clone()), reason, report);
        return;
    }
    let stream = (first == last).then_some(StreamId(first));
    report.add(Finding {
        stream,
        ..Finding::of_file(path, reason)
    });
}

/// Reads the rows of a file whose blocks could not be checked from outside.
fn read_through(
    folder: &Path,
    db: &DB,
    file: &LiveFile,
    bad_files: &mut BTreeSet<PathBuf>,
    report: &mut Report,
) {
    let Some(family) = db.cf_handle(&file.column_family_name) else {
        return;
    };
    let mut options = ReadOptions::default();
    options.fill_cache(false);
    options.set_iterate_lower_bound(file.start_key.clone().unwrap_or_default());
    if let Some(end) = &file.end_key {
        let mut end = end.clone();
        end.push(0);
        options.set_iterate_upper_bound(end);
    }
    let mut rows = db.raw_iterator_cf_opt(family, options);
    rows.seek_to_first();
    while rows.valid() {
        rows.next();
    }
    if let Err(error) = rows.status() {
        let message = error.into_string();
        let path = file_in(folder, &message)
            .unwrap_or_else(|| folder.join(file.name.trim_start_matches('/')));
        if bad_files.insert(path.clone()) {
            name_file(db, &path, file, &message, report);
        }
    }
}
