//! Physically removing what an erased stream held, or contents that have expired: from the tables,
//! from the files, and from the write-ahead log.

use std::sync::PoisonError;

use rocksdb::{BottommostLevelCompaction, CompactOptions, DB, FlushOptions};

use crate::fault;
use crate::keys;
use crate::log::{AppendError, ReadError, StreamId};
use crate::stream_row::StreamRow;
use crate::table::Table;
use crate::unshared;
use crate::writer::Submission;

use super::batch::Batch;
use super::shared::Shared;
use super::tables::{DbTables, engine_error, family};

impl Shared {
    /// Removes what only `stream` held, if it is erased, and what was overwritten of it.
    pub(crate) fn purge(&self, stream: StreamId) -> Result<(), ReadError> {
        let _one_at_a_time = self.purging.lock().unwrap_or_else(PoisonError::into_inner);
        let row = loop {
            let mut batch = Batch::new(self.ids, 0);
            let removal = {
                let db = self.gate.enter()?;
                unshared::remove(&DbTables::snapshot(&db), stream, &mut batch)?
            };
            let Some(removal) = removal else {
                return Ok(());
            };
            self.write_removal(batch)?;
            if removal.complete {
                break removal.row;
            }
        };
        fault::point("purge::removed");
        flush_all(&*self.gate.enter()?)?;
        fault::point("purge::flushed");
        // A snapshot from before the removal would make the compaction keep what it saw.
        self.gate.wait_for_present();
        compact(&*self.gate.enter()?, &row)?;
        fault::point("purge::compacted");
        Ok(())
    }

    /// Through the writer, so that it alone changes the tables.
    fn write_removal(&self, batch: Batch) -> Result<(), ReadError> {
        let (submission, pending) = Submission::unconditional(batch);
        self.queue.push(submission).map_err(write_error)?;
        pending.wait().map(drop).map_err(write_error)
    }
}

fn write_error(error: AppendError) -> ReadError {
    match error {
        AppendError::Closed => ReadError::Closed,
        other => ReadError::Engine(format!("the removal was not written: {other}")),
    }
}

/// Flushes every column family, so that no write-ahead file is needed any more and the engine
/// deletes them.
pub(super) fn flush_all(db: &DB) -> Result<(), ReadError> {
    let mut families = Vec::new();
    for table in Table::ALL {
        families.push(family(db, table)?);
    }
    let mut options = FlushOptions::default();
    options.set_wait(true);
    db.flush_cfs_opt(&families, &options)
        .map_err(engine_error)?;
    // The `meta` rows share the write-ahead files.
    db.flush_opt(&options).map_err(engine_error)
}

fn compact(db: &DB, row: &StreamRow) -> Result<(), ReadError> {
    let mut options = CompactOptions::default();
    // Also the lowest level, which is where old bytes lie.
    options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
    for table in [Table::Log, Table::State, Table::History] {
        for segment in &row.segments {
            let from = segment.id.0.to_vec();
            let to = unshared::segment_end(segment.id);
            db.compact_range_cf_opt(family(db, table)?, Some(from), Some(to), &options);
        }
    }
    for prefix in &row.prefixes {
        let to = keys::prefix_end(prefix);
        db.compact_range_cf_opt(family(db, Table::Current)?, Some(prefix), to, &options);
    }
    Ok(())
}
