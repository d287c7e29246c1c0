//! Verification of what checkpoints stand on, offline: every snapshot that a listed checkpoint
//! could still give back. Changes nothing.

use std::path::Path;

use bytes::Bytes;
use longhaul_actors::codec;
use longhaul_actors::ids::SessionId;
use longhaul_actors::rows;
use longhaul_actors::session::checkpoints::{Checkpoint, SnapshotKey};
use longhaul_actors::session::decision::SnapshotRow;
use longhaul_storage::snapshots::{Manifest, PackFault, SnapshotChecker};
use longhaul_storage::verify::Finding;
use longhaul_storage::{Order, ReadError, StreamId, View};

use super::{EMPTY, PAGE};

/// What was looked at, and what is wrong.
#[derive(Debug, Default)]
pub struct Checked {
    /// Snapshots that were read.
    pub snapshots: u64,
    /// What is wrong: each names the session, the position of `checkpoint.created`, and the file.
    pub findings: Vec<Finding>,
}

/// Reads the snapshots in `folder` that the rows name.
///
/// # Errors
/// What the log says; damage is a finding.
pub fn check(view: &dyn View, folder: &Path) -> Result<Checked, ReadError> {
    let mut checker = SnapshotChecker::new(folder);
    let mut checked = Checked::default();
    let mut after: Option<Bytes> = None;
    // A snapshot's references stand together.
    let mut last: Option<(SnapshotKey, Vec<PackFault>)> = None;
    loop {
        let table = rows::table(rows::SNAPSHOT_HOLDER);
        let page = view.rows(&table, after.as_deref(), Order::Asc, PAGE)?;
        let Some((key, _)) = page.last() else {
            return Ok(checked);
        };
        after = Some(key.clone());
        for (holder, _) in &page {
            let Some((key, session, seq)) = rows::snapshot_holder_parts(holder) else {
                continue;
            };
            let row = view.row(&rows::checkpoint(session, seq))?;
            // A copy in progress has no checkpoint; one that does not decode is told as a row.
            let Some(c) = row.and_then(|row| codec::decode::<Checkpoint>(&row).ok()) else {
                continue;
            };
            // Rejected, it is known to give nothing back, and the log says why.
            if !c.holds_bytes() || c.rejected.is_some() {
                continue;
            }
            if last.as_ref().is_none_or(|(of, _)| *of != key) {
                checked.snapshots += 1;
                last = Some((key, faults(view, folder, key, &mut checker)?));
            }
            let faults = last.as_ref().map(|(_, faults)| faults);
            let found = faults.into_iter().flatten();
            checked
                .findings
                .extend(found.map(|fault| finding(session, &c, fault)));
        }
    }
}

fn finding(session: SessionId, c: &Checkpoint, fault: &PackFault) -> Finding {
    let (snapshot, id) = (&c.created.snapshot.id, c.created.checkpoint_id);
    Finding {
        stream: Some(StreamId(session.0)),
        first_seq: Some(c.seq),
        last_seq: Some(c.seq),
        file: Some(fault.file.clone()),
        reason: format!("{id}, snapshot {snapshot}: {}", fault.reason),
    }
}

fn faults(
    view: &dyn View,
    folder: &Path,
    key: SnapshotKey,
    checker: &mut SnapshotChecker,
) -> Result<Vec<PackFault>, ReadError> {
    let wrong = |reason: String| {
        let file = folder.to_owned();
        Ok(vec![PackFault { file, reason }])
    };
    let Some(row) = view.row(&rows::snapshot(key))? else {
        return wrong("the snapshot's row is missing".to_owned());
    };
    let row: SnapshotRow = match codec::decode(&row) {
        Ok(row) => row,
        Err(e) => return wrong(format!("the snapshot's row: {e}")),
    };
    // Another's bytes; or none.
    let Some(kept) = row.kept.filter(|k| k.manifest != EMPTY) else {
        return Ok(Vec::new());
    };
    match Manifest::decode(&kept.manifest) {
        Ok(manifest) => Ok(checker.check(&manifest)),
        Err(e) => wrong(format!("the snapshot's row: {e}")),
    }
}
