//! Operations on a session's sandbox from outside a run.

use serde_json::{Value, json};

use super::checkpoint::{self, Stands};
use super::draft::{Draft, Emit};
use super::people::{first_answer, open};
use super::turn;
use crate::checkpoint::plan;
use crate::code::{Code, Rejection};
use crate::env::Env;
use crate::ids::CheckpointId;
use crate::session::checkpoints::SnapshotState;
use crate::session::command::NewCheckpoint;
use crate::session::decision::{Decision, Reply, RowOp};
use crate::session::event::{Cause, EventType};
use crate::session::facts::Facts;
use crate::session::operation::{
    Begun, Done, Operate, Operation, OperationId, OperationKind, Step,
};
use crate::session::payload::{Body, CheckpointDeleted, CheckpointKind, DeletedWhat, Usage};
use crate::session::state::{Answer, Phase, State};
use crate::session::status::Status;

/// Decides one step.
pub(super) fn operate(
    draft: Draft<'_>,
    facts: &Facts,
    command: &Operate,
) -> Result<Decision, Rejection> {
    if let Step::End { id, result } = &command.step {
        // Its begin found no earlier answer, and nobody else has had the lock since: whatever is
        // asked, the lock goes.
        super::visible(draft.base(), &command.request)?;
        return end(draft, command, *id, result);
    }
    if let Some(decision) = first_answer(&draft, facts, &command.request)? {
        return Ok(decision);
    }
    match &command.step {
        Step::Begin { id, kind, max } => {
            let until = draft.env.mono.saturating_add(*max);
            let (id, kind) = (*id, *kind);
            begin(draft, Operation { id, kind, until })
        }
        Step::End { id, result } => end(draft, command, *id, result),
        Step::DeleteSnapshot { checkpoint, force } => {
            delete_snapshot(draft, command, *checkpoint, *force)
        }
    }
}

/// Whether the session was paused by an operation (not by a park).
pub fn is_paused(state: &State) -> bool {
    state.status == Status::Paused && state.run.is_none()
}

fn busy(detail: impl Into<String>) -> Rejection {
    Rejection::new(Code::SessionBusy, detail)
}

/// Whether anything stands in the way of an operation of this kind.
fn check(state: &State, kind: OperationKind, env: &Env<'_>) -> Result<(), Rejection> {
    if state.now.operation.is_some_and(|o| o.is_held(env.mono)) {
        return Err(busy("another operation is under way"));
    }
    let live = state.run.as_ref().filter(|_| kind != OperationKind::Attach);
    if let Some(run) = live {
        let text = format!("{} is {}", run.id, run.phase.text());
        let parked = matches!(run.phase, Phase::Parked | Phase::Waiting);
        return Err(match kind {
            OperationKind::Close => Rejection::new(Code::SessionRunLive, text),
            OperationKind::Resume if parked => Rejection::new(Code::NotPaused, text),
            _ => busy(text),
        });
    }
    match (is_paused(state), kind) {
        (true, OperationKind::Pause) => Err(Code::AlreadyPaused.into()),
        (true, OperationKind::Resume | OperationKind::Close) => Ok(()),
        (true, _) => Err(Code::RuntimePaused.into()),
        (false, OperationKind::Resume) => Err(Code::NotPaused.into()),
        (false, _) => Ok(()),
    }
}

fn begin(mut draft: Draft<'_>, operation: Operation) -> Result<Decision, Rejection> {
    let state = draft.base();
    open(&draft)?;
    let (now_ms, kind) = (draft.env.now_ms, operation.kind);
    check(state, kind, draft.env)?;
    if matches!(kind, OperationKind::Checkpoint | OperationKind::Pause) {
        checkpoint::allowed(state)?;
    }
    checkpoint::expire(&mut draft, None);
    let state = draft.state();
    if kind == OperationKind::Resume {
        // The disk that was paused, or nothing: a resume never starts anew in silence.
        let head = state.checkpoints.head();
        if let Some(why) = head.and_then(|c| plan::why_named_unusable(c, now_ms)) {
            return Err(no_way_back(why));
        }
    }
    let begun = Begun {
        plan: plan::plan_anywhere(state, now_ms),
        clean: plan::newest_usable(state, now_ms).map(|c| c.created.snapshot.clone()),
    };
    draft.row(RowOp::Operation(Some(operation)));
    let reply = Reply::json(200, &json!({}));
    let mut decision = draft.done(reply);
    decision.begun = Some(Box::new(begun));
    Ok(decision)
}

/// A paused disk that is not to be had: what is left to do.
fn no_way_back(mut why: Rejection) -> Rejection {
    why.detail.push_str(
        "; the session stays paused: a `user.interrupt` ends the pause, and what comes next says \
         in `resume` which disk it gets instead",
    );
    why
}

fn end(
    mut draft: Draft<'_>,
    command: &Operate,
    id: OperationId,
    done: &Done,
) -> Result<Decision, Rejection> {
    let Some(held) = draft.base().now.operation.filter(|o| o.id == id) else {
        return Err(busy(
            "the operation took too long; another one may be under way",
        ));
    };
    draft.row(RowOp::Operation(None));
    let overtaken = held.kind == OperationKind::Pause && draft.base().run.is_some();
    let lets_go = matches!(
        held.kind,
        OperationKind::Pause | OperationKind::Close | OperationKind::Rest
    );
    let left = done
        .attached
        .filter(|_| !(lets_go && done.succeeded) || overtaken);
    draft.row(RowOp::Attached(left));
    if left.is_some_and(|a| a.dirty) && !draft.base().now.changed {
        draft.row(RowOp::Changed(true));
    }
    draft.caused_by(Cause::Request(command.request.request_id.to_string()));
    if let Some((id, reason)) = &done.rejected {
        checkpoint::reject(&mut draft, *id, reason);
    }
    let mut made = None;
    if done.succeeded {
        if overtaken {
            // A run was queued meanwhile: it goes before the pause.
            let mut decision = draft.done(Reply::json(409, &json!({})));
            decision.refused = Some(busy("a run was queued meanwhile"));
            return Ok(decision);
        }
        let kind = match held.kind {
            OperationKind::Pause => CheckpointKind::Pause,
            _ => CheckpointKind::Explicit,
        };
        let parent = draft
            .state()
            .checkpoints
            .head()
            .map(|c| c.created.checkpoint_id);
        made = done
            .checkpoint
            .as_ref()
            .and_then(|new| add(&mut draft, new, kind))
            .map(|id| (id, parent));
        change_status(&mut draft, held.kind)?;
    }
    let mut body = answer(&mut draft, made, done.checkpoint.as_ref());
    if let (Some(began), Some(fields)) = (done.began, body.as_object_mut()) {
        // Never another disk in silence.
        fields.insert("resume".to_owned(), json!(began));
    }
    if !done.succeeded {
        // Not the answer to anything: the caller is refused, and may try again.
        return Ok(draft.done(Reply::json(200, &body)));
    }
    Ok(draft.done_for(&command.request, Reply::json(200, &body)))
}

fn add(draft: &mut Draft<'_>, new: &NewCheckpoint, kind: CheckpointKind) -> Option<CheckpointId> {
    let state = draft.state();
    let stands = Stands {
        kind,
        through: Answer {
            seq: state.last_seq,
            id: state.last_id,
        },
        run: None,
        turn: state.turns,
        usage: Usage::default(),
    };
    checkpoint::add(draft, new, &stands)
}

fn change_status(draft: &mut Draft<'_>, kind: OperationKind) -> Result<(), Rejection> {
    match kind {
        OperationKind::Pause => draft.set_status(Status::Paused, "runtime pause"),
        OperationKind::Close => draft.set_status(Status::Completed, "runtime close"),
        OperationKind::Resume => {
            let waiting = draft.state().untaken;
            match waiting {
                Some(first) => {
                    draft.set_status(Status::Pending, "runtime resume")?;
                    turn::queue_message(draft, Some(first.first_id));
                    Ok(())
                }
                None => draft.set_status(Status::Idle, "runtime resume"),
            }
        }
        OperationKind::Checkpoint
        | OperationKind::Use
        | OperationKind::Rest
        | OperationKind::Attach => Ok(()),
    }
}

fn answer(
    draft: &mut Draft<'_>,
    made: Option<(CheckpointId, Option<CheckpointId>)>,
    new: Option<&NewCheckpoint>,
) -> Value {
    let runtime = record(draft.state());
    match made {
        None => json!({"runtime": runtime}),
        Some((id, parent)) => {
            let metadata: Value = new
                .map(|n| serde_json::from_str(&n.metadata_json).unwrap_or_default())
                .unwrap_or_default();
            json!({
                "runtime": runtime,
                "checkpoint_id": id,
                "parent_checkpoint_id": parent,
                "name": new.and_then(|n| n.name.clone()),
                "metadata": metadata,
            })
        }
    }
}

/// The session as runtime control shows it.
pub fn record(state: &State) -> Value {
    let principal = state.about.as_ref().map(|a| a.principal.as_str());
    let metadata: Value = state
        .about
        .as_ref()
        .and_then(|a| serde_json::from_str(&a.metadata_json).ok())
        .unwrap_or_default();
    let said = |key: &str| metadata.get(key).cloned();
    json!({
        "runtime_id": state.id,
        "conversation_id": said("conversation_id").unwrap_or_else(|| json!(state.id)),
        "sender_id": said("sender_id").unwrap_or_else(|| json!(principal)),
        "status": state.status,
        "created_at_ms": state.created_at_ms,
        "updated_at_ms": state.updated_at_ms,
    })
}

fn delete_snapshot(
    mut draft: Draft<'_>,
    command: &Operate,
    id: CheckpointId,
    force: bool,
) -> Result<Decision, Rejection> {
    let state = draft.base();
    let found = checkpoint::find(state, id)?;
    let live = found.snapshot_state == SnapshotState::Live;
    let snapshot = found.created.snapshot.clone();
    let sharing: Vec<CheckpointId> = state
        .checkpoints
        .newest_first()
        .filter(|c| c.holds_bytes() && c.created.snapshot == snapshot)
        .map(|c| c.created.checkpoint_id)
        .collect();
    if live && sharing.len() > 1 && !force {
        let others: Vec<Value> = sharing
            .iter()
            .filter(|o| **o != id)
            .map(|o| json!(o))
            .collect();
        let r = Rejection::new(Code::SnapshotShared, "other checkpoints share the snapshot");
        return Err(r.with("checkpoint_ids", others));
    }
    if live {
        draft.caused_by(Cause::Request(command.request.request_id.to_string()));
        for checkpoint_id in sharing {
            checkpoint::drop_blob(&mut draft, checkpoint_id);
            let body = CheckpointDeleted {
                checkpoint_id,
                what: DeletedWhat::Snapshot,
            };
            draft.emit(
                EventType::CheckpointDeleted,
                Emit::by(command.request.author.clone(), None),
                Body::CheckpointDeleted(body),
            );
        }
    }
    let body = json!({
        "runtime_id": draft.base().id,
        "checkpoint_id": id,
        "deleted_provider_snapshot": live,
        "runtime": record(draft.state()),
    });
    Ok(draft.done_for(&command.request, Reply::json(200, &body)))
}
