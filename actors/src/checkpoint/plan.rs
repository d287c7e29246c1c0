//! The one answer to "how does this run continue", from projections alone.

use std::sync::Arc;

use crate::code::{Code, Rejection};
use crate::ids::{CheckpointId, RunnerId};
use crate::session::checkpoints::{Checkpoint, SnapshotState, owner};
use crate::session::payload::{Adopted, InsteadOf, RebuildReason, ResumeFrom, ResumePlan};
use crate::session::state::State;

/// The plan of a run that `runner` is about to get at `now_ms`. The first that applies.
pub fn plan(state: &State, runner: RunnerId, now_ms: i64) -> ResumePlan {
    if let Some(attached) = state.now.attached {
        return ResumePlan::attached(attached.began);
    }
    if let Some(c) = reachable(state, runner, now_ms).next() {
        let created = &c.created;
        return ResumePlan::Checkpoint {
            id: created.checkpoint_id,
            snapshot: created.snapshot.clone(),
            resume: created.resume.clone(),
            through_sequence: created.through_sequence,
            events_after: state.last_seq.saturating_sub(created.through_sequence),
            missing: state.missing.clone(),
            sandbox_ref: adopted(state)
                .filter(|a| a.runner == runner)
                .map(|a| a.sandbox_ref.clone()),
            instead_of: instead_of(state, c, now_ms),
        };
    }
    if !state.ever_started && !state.ever_checkpointed && !state.now.changed {
        return ResumePlan::Fresh;
    }
    ResumePlan::EventLogRebuild {
        reason: reason(state, now_ms),
        missing: state.missing.clone(),
    }
}

/// Why the disk of this checkpoint is not the one that the session had last, if it is not.
fn instead_of(state: &State, used: &Checkpoint, now_ms: i64) -> Option<InsteadOf> {
    let newest = state.checkpoints.head()?;
    let later = if state.now.changed {
        Some(RebuildReason::SandboxLost)
    } else {
        (state.unkept_seq > newest.seq).then_some(RebuildReason::SnapshotFailed)
    };
    if let Some(reason) = later {
        return Some(InsteadOf { id: None, reason });
    }
    if newest.seq == used.seq {
        return None;
    }
    let unread = newest.seq >= unread_from(state);
    // A usable one that is there to be read is somebody else's.
    let reason = why_unusable(newest, now_ms).unwrap_or(match unread {
        true => RebuildReason::SnapshotUnreadable,
        false => RebuildReason::SnapshotUnreachable,
    });
    Some(InsteadOf {
        id: Some(newest.created.checkpoint_id),
        reason,
    })
}

/// The newest checkpoint that could give a disk at `now_ms`, to whoever can reach it.
pub fn newest_usable(state: &State, now_ms: i64) -> Option<&Arc<Checkpoint>> {
    usable(state, now_ms).next()
}

/// Newest first.
fn usable(state: &State, now_ms: i64) -> impl Iterator<Item = &Arc<Checkpoint>> {
    let listed = state.checkpoints.newest_first();
    listed.filter(move |c| why_unusable(c, now_ms).is_none())
}

/// Those that could give `runner` a disk now, newest first.
fn reachable(
    state: &State,
    runner: RunnerId,
    now_ms: i64,
) -> impl Iterator<Item = &Arc<Checkpoint>> {
    let before = unread_from(state);
    usable(state, now_ms)
        .filter(move |c| c.seq < before)
        .filter(move |c| owner(&c.created.snapshot).is_none_or(|o| o == runner))
}

/// The first position whose checkpoint, and those after it, the live run could not read.
fn unread_from(state: &State) -> u64 {
    let run = state.run.as_ref().map(|r| r.id);
    let unread = state.now.unread.filter(|u| Some(u.run) == run);
    unread.map_or(u64::MAX, |u| u.from_seq)
}

/// The checkpoint that `runner` would get if this one cannot be read for now.
pub fn next_older(
    state: &State,
    than: CheckpointId,
    runner: RunnerId,
    now_ms: i64,
) -> Option<&Arc<Checkpoint>> {
    let seq = state.checkpoints.find(than)?.seq;
    reachable(state, runner, now_ms).find(|c| c.seq < seq)
}

/// The checkpoints with a resume blob that a plan of `runner` at `now_ms` may come to, by
/// position, newest first: each is the plan's if the blobs before it do not verify.
pub fn with_blobs(state: &State, runner: RunnerId, now_ms: i64) -> Vec<(u64, ResumeFrom)> {
    reachable(state, runner, now_ms)
        .map(|c| (c.seq, c.created.resume.clone()))
        .take_while(|(_, resume)| matches!(resume, ResumeFrom::Blob { .. }))
        .collect()
}

/// The copy that a runner made for this fork, while the fork has not run on it yet.
fn adopted(state: &State) -> Option<&Adopted> {
    let forked = state.forked.as_ref().filter(|_| !state.started_here);
    forked.and_then(|f| f.adopted.as_ref())
}

/// The runner that a queued run is kept for, for a while: it alone has the disk, or it made the
/// fork's copy.
pub fn wanted_runner(state: &State) -> Option<RunnerId> {
    let attached = state.now.attached.map(|a| a.runner);
    let copied = adopted(state).map(|a| a.runner);
    attached.or(copied).or_else(|| {
        let usable = newest_usable(state, i64::MIN)?;
        owner(&usable.created.snapshot)
    })
}

/// Why a checkpoint gives no disk at `now_ms`, if it does not.
pub fn why_unusable(c: &Checkpoint, now_ms: i64) -> Option<RebuildReason> {
    match c.snapshot_state {
        SnapshotState::Expired => Some(RebuildReason::CheckpointExpired),
        SnapshotState::Deleted => Some(RebuildReason::SnapshotDeleted),
        SnapshotState::Live if c.is_over(now_ms) => Some(RebuildReason::CheckpointExpired),
        SnapshotState::Live if c.rejected.is_some() => Some(RebuildReason::CheckpointRejected),
        SnapshotState::Live => None,
    }
}

/// The plan of an operation in this process: as [`plan()`] for whoever has the disk.
pub fn plan_anywhere(state: &State, now_ms: i64) -> ResumePlan {
    let owner = newest_usable(state, now_ms).and_then(|c| owner(&c.created.snapshot));
    plan(state, owner.unwrap_or(RunnerId([0; 16])), now_ms)
}

/// Why a checkpoint that was named cannot be used at `now_ms`, if so.
pub fn why_named_unusable(c: &Checkpoint, now_ms: i64) -> Option<Rejection> {
    let code = match why_unusable(c, now_ms)? {
        RebuildReason::SnapshotDeleted => Code::SnapshotDeleted,
        RebuildReason::CheckpointRejected => Code::CheckpointRejected,
        _ => Code::CheckpointExpired,
    };
    let id = c.created.checkpoint_id;
    Some(Rejection::new(code, format!("{id} gives no disk any more")))
}

/// Why there is no disk, given that there is none.
fn reason(state: &State, now_ms: i64) -> RebuildReason {
    if !state.missing.is_empty() {
        return RebuildReason::HistoryIncomplete;
    }
    if state.now.changed {
        return RebuildReason::SandboxLost;
    }
    if state.forked.is_some() && !state.ever_checkpointed && !state.started_here {
        return RebuildReason::Forked;
    }
    match state.checkpoints.head() {
        // A usable one that got no plan is somebody else's.
        Some(c) => why_unusable(c, now_ms).unwrap_or(RebuildReason::SnapshotUnreachable),
        None => RebuildReason::NoCheckpoint,
    }
}
