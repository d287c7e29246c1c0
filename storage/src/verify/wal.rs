//! Names what a damaged record of the write-ahead log hit.

use std::collections::BTreeMap;
use std::path::Path;

use rocksdb::DB;

use crate::frame;
use crate::keys;
use crate::log::{CHAIN_START, Digest, SegmentId, StreamId};
use crate::rocks::batch::{self, FamilyIds};
use crate::rocks::tables::DbTables;
use crate::table::{Table, Tables};

use super::{Finding, Report, WalDamage};

/// Finds the frames that the damage hit; failing that, the positions that the record covers;
/// failing that, the file.
pub(super) fn name(db: &DB, ids: FamilyIds, path: &Path, damage: &WalDamage, report: &mut Report) {
    let tables = DbTables::unchecked(db);
    let mut covered: BTreeMap<SegmentId, (u64, u64)> = BTreeMap::new();
    let mut hashes: BTreeMap<(SegmentId, u64), Digest> = BTreeMap::new();
    let mut named = false;
    let whole = batch::walk_puts(&damage.bytes, ids, &mut |table, key, value| {
        if table != Table::Log {
            return;
        }
        let Some((segment, seq)) = keys::parse_position(key) else {
            return;
        };
        let range = covered.entry(segment).or_insert((seq, seq));
        *range = (range.0.min(seq), range.1.max(seq));
        let before = seq.wrapping_sub(1);
        let previous = match before {
            0 => Some(CHAIN_START),
            _ => hashes.get(&(segment, before)).copied().or_else(|| {
                let stored = tables.get(Table::Log, &keys::position(segment, before));
                Some(frame::decode(&stored.ok()??).ok()?.hash)
            }),
        };
        let fault = match (frame::decode(value), previous) {
            (Err(error), _) => Some(error),
            (Ok(frame), previous) => {
                hashes.insert((segment, seq), frame.hash);
                previous
                    .map_or_else(|| frame.verify_content(), |p| frame.verify(&p))
                    .err()
            }
        };
        if let Some(error) = fault {
            named = true;
            let reason = format!("{}: {error}", damage.reason);
            report.add(Finding::of_stream(StreamId(segment.0), seq, reason).in_file(path));
        }
    });
    if named {
        return;
    }
    for (segment, (first, last)) in &covered {
        report.add(Finding {
            stream: Some(StreamId(segment.0)),
            first_seq: Some(*first),
            last_seq: Some(*last),
            file: Some(path.to_owned()),
            reason: damage.reason.clone(),
        });
    }
    if covered.is_empty() || !whole {
        report.add(Finding::of_file(path, damage.reason.clone()));
    }
}
