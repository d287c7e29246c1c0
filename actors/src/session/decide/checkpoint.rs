//! Checkpoints on the session's log: made, kept within their count, pinned, over.

use std::sync::Arc;

use serde_json::{Value, json};

use super::draft::{Draft, Emit, runner};
use super::people::first_answer;
use crate::checkpoint::plan;
use crate::code::{Code, Rejection};
use crate::ids::{CheckpointId, EventId};
use crate::session::checkpoints::{Checkpoint, SnapshotKey, SnapshotState};
use crate::session::command::{Kept, NewCheckpoint, PinCheckpoint, SettleCheckpoint};
use crate::session::decision::{Decision, Reply, RowOp, SnapshotRow};
use crate::session::event::{Cause, EventType, RunRef};
use crate::session::facts::Facts;
use crate::session::operation::Attached;
use crate::session::payload::{
    Body, CheckpointCreated, CheckpointDeleted, CheckpointExpired, CheckpointFailed,
    CheckpointKind, CheckpointPinned, CheckpointRejected, DeletedWhat, ResumeFrom, SnapshotRef,
    Usage,
};
use crate::session::state::{Answer, LiveRun, State, Unread};

/// Where a checkpoint stands, and what for.
pub(super) struct Stands {
    pub(super) kind: CheckpointKind,
    /// The last position it holds.
    pub(super) through: Answer,
    pub(super) run: Option<RunRef>,
    /// Turns settled up to there, or the harness's own count.
    pub(super) turn: u64,
    /// Spent up to there beyond what is recorded so far.
    pub(super) usage: Usage,
}

/// A session that keeps nothing has no checkpoints either.
pub(super) fn allowed(state: &State) -> Result<(), Rejection> {
    if state.keeps_nothing() {
        return Err(Code::ZeroDataRetention.into());
    }
    Ok(())
}

/// Adds a checkpoint, and lets the oldest go if there are too many. Returns its id.
pub(super) fn add(
    draft: &mut Draft<'_>,
    new: &NewCheckpoint,
    stands: &Stands,
) -> Option<CheckpointId> {
    let now_ms = draft.env.now_ms;
    let ttl_s_max = draft.env.limits.checkpoint_ttl_s;
    let state = draft.state();
    let about = state.about.clone()?;
    let ttl_s = about
        .retention
        .checkpoint_ttl_s
        .map_or(ttl_s_max, |t| t.min(ttl_s_max));
    let ttl_ms = i64::try_from(ttl_s.saturating_mul(1_000)).unwrap_or(i64::MAX);
    let usage = state.inherited_usage.plus(state.usage).plus(stands.usage);
    let parent = state.checkpoints.head().map(|c| c.created.checkpoint_id);
    let author = runner(state);
    let mut snapshot = new.snapshot.clone();
    // Whoever took it has it.
    snapshot.runner_id = snapshot.runner_id.or(state.claim().map(|c| c.runner));
    let id = CheckpointId(draft.env.uuid());
    let created = CheckpointCreated {
        checkpoint_id: id,
        kind: stands.kind,
        run_id: None,
        parent_checkpoint_id: parent,
        through_sequence: stands.through.seq,
        through_event_id: stands.through.id,
        name: new.name.clone(),
        metadata_json: new.metadata_json.clone(),
        turn: stands.turn,
        cumulative_usage: usage,
        cursor: new.cursor.clone(),
        resume: new.resume.clone(),
        snapshot: snapshot.clone(),
        expires_at_ms: now_ms.saturating_add(ttl_ms),
    };
    let key = SnapshotKey::of(about.workspace, &snapshot);
    snapshot_rows(draft, key, snapshot, new.kept.clone());
    if draft.base().now.changed {
        draft.row(RowOp::Changed(false));
    }
    if let Some(blob) = &new.blob {
        let seq = draft.last_seq() + 1;
        draft.row(RowOp::PutBlob(seq, blob.clone()));
    }
    let emit = if author.id.is_empty() {
        Emit::system(stands.run)
    } else {
        Emit::by(author, stands.run)
    };
    draft.emit(
        EventType::CheckpointCreated,
        emit,
        Body::CheckpointCreated(Box::new(created)),
    );
    prune(draft);
    Some(id)
}

fn snapshot_rows(
    draft: &mut Draft<'_>,
    key: SnapshotKey,
    snapshot: SnapshotRef,
    kept: Option<Kept>,
) {
    let known = draft
        .state()
        .checkpoints
        .newest_first()
        .any(|c| c.holds_bytes() && c.created.snapshot == snapshot);
    draft.row(if known {
        RowOp::HoldSnapshot(key)
    } else {
        RowOp::PutSnapshot(key, SnapshotRow { snapshot, kept })
    });
}

/// The resume blob of a checkpoint that gives nothing back from here on goes.
pub(super) fn drop_blob(draft: &mut Draft<'_>, id: CheckpointId) {
    let found = draft.state().checkpoints.find(id);
    let seq = found
        .filter(|c| matches!(c.created.resume, ResumeFrom::Blob { .. }))
        .map(|c| c.seq);
    if let Some(seq) = seq {
        draft.row(RowOp::DropBlob(seq));
    }
}

/// How many checkpoints [`add`] lets go, and so how many events it writes after its own.
pub(super) fn to_prune(state: &State, max: u32) -> Vec<CheckpointId> {
    if max == 0 {
        return Vec::new();
    }
    let counted = state.checkpoints.newest_first().filter(|c| !c.pinned);
    counted
        .skip(usize::try_from(max).unwrap_or(usize::MAX))
        .map(|c| c.created.checkpoint_id)
        .collect()
}

fn prune(draft: &mut Draft<'_>) {
    let max = draft.env.limits.checkpoints_per_session_max;
    for checkpoint_id in to_prune(draft.state(), max) {
        drop_blob(draft, checkpoint_id);
        let body = CheckpointDeleted {
            checkpoint_id,
            what: DeletedWhat::Checkpoint,
        };
        draft.emit(
            EventType::CheckpointDeleted,
            Emit::system(None),
            Body::CheckpointDeleted(body),
        );
    }
}

/// A snapshot that was due and not taken.
pub(super) fn failed(draft: &mut Draft<'_>, kind: CheckpointKind, reason: &str) {
    let run = draft.run_ref();
    let body = CheckpointFailed {
        kind,
        reason: reason.to_owned(),
    };
    draft.emit(
        EventType::CheckpointFailed,
        Emit::system(run),
        Body::CheckpointFailed(body),
    );
}

/// The checkpoint of a turn's end: it stands at the `run.settled` that follows in this commit,
/// whose id is returned.
pub(super) fn at_settlement(
    draft: &mut Draft<'_>,
    checkpoint: &SettleCheckpoint,
    usage: Usage,
    status_changes: bool,
) -> Option<EventId> {
    let new = match checkpoint {
        SettleCheckpoint::Made(new) => new,
        SettleCheckpoint::Failed { reason, stays } => {
            failed(draft, CheckpointKind::Settle, reason);
            let claim = draft.state().run.as_ref().and_then(|r| r.claim.as_ref());
            if let Some(runner) = claim.map(|c| c.runner).filter(|_| *stays) {
                draft.row(RowOp::Attached(Some(Attached {
                    runner,
                    dirty: true,
                    began: None,
                })));
            }
            return None;
        }
    };
    let max = draft.env.limits.checkpoints_per_session_max;
    let state = draft.state();
    // One more will be listed, so one more may have to go.
    let goes = to_prune(state, max).len() as u64 + u64::from(is_full(state, max));
    let seq = draft.last_seq() + 1 + goes + u64::from(status_changes) + 1;
    let through = Answer {
        seq,
        id: EventId::with_seq(draft.env.uuid(), seq),
    };
    let turn = draft.state().turns.saturating_add(1);
    let stands = Stands {
        kind: CheckpointKind::Settle,
        through,
        run: draft.run_ref(),
        turn,
        usage,
    };
    add(draft, new, &stands)?;
    Some(through.id)
}

/// Whether the count is reached, so that one more lets the oldest go.
fn is_full(state: &State, max: u32) -> bool {
    let counted = state
        .checkpoints
        .newest_first()
        .filter(|c| !c.pinned)
        .count();
    max > 0 && counted >= usize::try_from(max).unwrap_or(usize::MAX)
}

/// Pins a checkpoint, or unpins it.
pub(super) fn pin(
    mut draft: Draft<'_>,
    facts: &Facts,
    command: &PinCheckpoint,
) -> Result<Decision, Rejection> {
    if let Some(decision) = first_answer(&draft, facts, &command.request)? {
        return Ok(decision);
    }
    let (state, max) = (draft.base(), draft.env.limits.checkpoints_pinned_max);
    let found = find(state, command.checkpoint)?;
    let pinned = state
        .checkpoints
        .newest_first()
        .filter(|c| c.pinned)
        .count();
    if found.pinned != command.pinned {
        if command.pinned && pinned >= usize::try_from(max).unwrap_or(usize::MAX) {
            let r = Rejection::new(Code::CheckpointsPinned, format!("{max} are pinned"));
            return Err(r.with("pinned_max", max));
        }
        draft.room_for(1)?;
        draft.caused_by(Cause::Request(command.request.request_id.to_string()));
        let body = CheckpointPinned {
            checkpoint_id: command.checkpoint,
            pinned: command.pinned,
        };
        let emit = Emit::by(command.request.author.clone(), None);
        draft.emit(
            EventType::CheckpointPinned,
            emit,
            Body::CheckpointPinned(body),
        );
        // One that is counted again goes when the next one comes, not before it can be shown.
    }
    let state = draft.state();
    let pin = state.about.as_ref().map(|about| &about.pin);
    let found = state.checkpoints.find(command.checkpoint);
    let shown = found.map_or(Value::Null, |c| c.json(state.id, pin));
    Ok(draft.done_for(&command.request, Reply::json(200, &shown)))
}

/// The listed checkpoint of this id.
pub(super) fn find(state: &State, id: CheckpointId) -> Result<&Checkpoint, Rejection> {
    let found = state.checkpoints.find(id).map(|c| &**c);
    found.ok_or_else(|| {
        Rejection::new(
            Code::CheckpointNotFound,
            format!("there is no checkpoint {id} here"),
        )
    })
}

/// Most checkpoints whose end is said in one commit: the timer of the next one is due at once.
const EXPIRED_MAX: usize = 100;

/// Says of the checkpoints whose time is over that it is, and of the one created at `due` whatever
/// the wall clock says.
pub(super) fn expire(draft: &mut Draft<'_>, due: Option<u64>) {
    let now_ms = draft.env.now_ms;
    let over = |c: &&Arc<Checkpoint>| c.holds_bytes() && (c.is_over(now_ms) || due == Some(c.seq));
    let listed = draft.state().checkpoints.0.values();
    let mut listed: Vec<_> = listed.filter(over).collect();
    // As the timers have it: the one that is due comes first.
    listed.sort_unstable_by_key(|c| (c.created.expires_at_ms, c.seq));
    let ids: Vec<CheckpointId> = listed
        .into_iter()
        .map(|c| c.created.checkpoint_id)
        .take(EXPIRED_MAX)
        .collect();
    for checkpoint_id in ids {
        drop_blob(draft, checkpoint_id);
        draft.emit(
            EventType::CheckpointExpired,
            Emit::system(None),
            Body::CheckpointExpired(CheckpointExpired { checkpoint_id }),
        );
    }
}

/// A checkpoint that does not verify is never used again. Once is enough.
pub(super) fn reject(draft: &mut Draft<'_>, id: CheckpointId, reason: &str) {
    let open = draft
        .state()
        .checkpoints
        .find(id)
        .is_some_and(|c| c.rejected.is_none() && c.snapshot_state == SnapshotState::Live);
    if open {
        let run = draft.run_ref();
        let body = CheckpointRejected {
            checkpoint_id: id,
            reason: reason.to_owned(),
        };
        draft.emit(
            EventType::CheckpointRejected,
            Emit::system(run),
            Body::CheckpointRejected(body),
        );
    }
}

/// A checkpoint whose bytes cannot be read for now: the run gets an older one from its next claim
/// on, and nothing is written. Without an older one, nothing is changed: it may be read later.
pub(super) fn pass_over(
    draft: &mut Draft<'_>,
    run: &LiveRun,
    id: CheckpointId,
    reason: &str,
) -> Result<(), Rejection> {
    let now_ms = draft.env.now_ms;
    let state = draft.state();
    let unread = state.checkpoints.find(id).map(|c| Unread {
        run: run.id,
        from_seq: c.seq,
    });
    let runner = state.claim().map(|c| c.runner);
    let older = runner.and_then(|runner| plan::next_older(state, id, runner, now_ms));
    match (unread, older) {
        (Some(unread), Some(_)) => {
            draft.row(RowOp::Unread(unread));
            Ok(())
        }
        _ => {
            let detail = format!("{id} cannot be read now, and none is older: {reason}");
            Err(Rejection::new(Code::SnapshotUnreadable, detail))
        }
    }
}

/// A runner's own checkpoint, in the middle of its run.
pub(super) fn explicit(draft: &mut Draft<'_>, new: &NewCheckpoint) -> Reply {
    let state = draft.state();
    let through = state.run.as_ref().map(|r| r.at);
    let turn = new.turn.unwrap_or(state.turns);
    let stands = Stands {
        kind: new.kind,
        through: through.unwrap_or(Answer {
            seq: state.last_seq,
            id: state.last_id,
        }),
        run: draft.run_ref(),
        turn,
        usage: Usage::default(),
    };
    let id = add(draft, new, &stands);
    let expires = id.and_then(|id| {
        let found = draft.state().checkpoints.find(id);
        found.map(|c| crate::time::rfc3339(c.created.expires_at_ms))
    });
    Reply::json(
        201,
        &json!({
            "checkpoint_id": id,
            "through_sequence": stands.through.seq,
            "expires_at": expires,
        }),
    )
}
