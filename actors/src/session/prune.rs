//! What of a session can be pruned: the journals of what is over, and checkpoints.

use std::sync::Arc;

use super::checkpoints::Checkpoint;
use super::decide::is_paused;
use super::payload::Outcome;
use super::state::State;
use crate::ids::CheckpointId;

/// Whether something may go on where it is: a run that is live or parked, or one that failed and
/// can be continued.
pub fn goes_on(state: &State) -> bool {
    let last = state.last_run.as_ref().map(|r| r.outcome);
    let resumable = matches!(last, Some(Outcome::Failed | Outcome::Continued));
    !state.status.is_terminal() && (state.run.is_some() || resumable)
}

/// The last position whose steps belong to chains of runs that are over: nobody asks for their
/// values again.
pub fn settled_through(state: &State) -> u64 {
    match goes_on(state) {
        true => state.journal.chain_seq,
        false => state.last_seq,
    }
}

/// The checkpoints that can go, oldest first: those made before `before_ms` (all = `None`), but
/// for pinned ones, and the disk of what goes on.
///
/// They are looked at in the order of the log and up to the first that is not old enough, so that
/// a clock that was set back lets nothing go before what is older.
pub fn checkpoints(state: &State, before_ms: Option<i64>) -> Vec<CheckpointId> {
    let needed = goes_on(state) || is_paused(state) || state.now.operation.is_some();
    let usable = |c: &&Arc<Checkpoint>| c.holds_bytes() && c.rejected.is_none();
    let kept = state.checkpoints.newest_first().find(usable);
    let kept = kept.filter(|_| needed).map(|c| c.seq);
    let listed = state.checkpoints.0.values();
    listed
        .take_while(|c| before_ms.is_none_or(|before| c.created_at_ms < before))
        .filter(|c| !c.pinned && Some(c.seq) != kept)
        .map(|c| c.created.checkpoint_id)
        .collect()
}
