//! A session that starts as a copy of another one's past.

use super::draft::{Draft, Emit};
use super::{people, resume, turn};
use crate::code::{Code, Rejection};
use crate::ids::{CheckpointId, SessionId};
use crate::session::checkpoints::SnapshotKey;
use crate::session::command::{Fork, ForkedDisk};
use crate::session::decision::{Decision, RowOp};
use crate::session::event::{Cause, EventType, RunRef};
use crate::session::facts::{Facts, LostReason};
use crate::session::payload::{
    Body, CheckpointCreated, CheckpointKind, Compute, Outcome, RunError, RunParked, SessionForked,
    Trigger, TriggerKind,
};
use crate::session::state::{LiveRun, Now, Phase, State};
use crate::session::status::Status;

const FORKED: &str = "forked";

/// The state that a fork's first event is folded into: the source at the boundary, under the
/// child's id.
pub fn base_of(fork: &Fork, child: SessionId) -> State {
    let mut base = (*fork.source).clone();
    base.id = child;
    // What is true of the source in this process is not true of the child.
    base.now = Now::default();
    base
}

/// Starts a fork. The draft stands on [`base_of`].
pub(super) fn fork(mut draft: Draft<'_>, facts: &Facts, f: &Fork) -> Result<Decision, Rejection> {
    if let Some(decision) = people::created_before(&draft, facts, &f.request)? {
        return Ok(decision);
    }
    let base = draft.base();
    let about = super::visible(base, &f.request)?;
    let metadata = match &f.metadata {
        Some(metadata) => {
            people::check_metadata(metadata, draft.env.limits)?;
            metadata.clone()
        }
        None => serde_json::from_str(&about.metadata_json).unwrap_or_default(),
    };
    if !base.missing.is_empty() {
        return Err(unreadable(base));
    }
    draft.room_for(1)?;
    draft.caused_by(Cause::Request(f.request.request_id.to_string()));
    let forked = SessionForked {
        source_session_id: f.source.id,
        root_session_id: f.root,
        selector: f.selector,
        boundary_seq: base.last_seq,
        boundary_event_id: base.last_id,
        principal: f
            .principal
            .clone()
            .unwrap_or_else(|| about.principal.clone()),
        metadata,
        adopted: f.checkpoint.as_ref().and_then(|c| c.adopted.clone()),
    };
    let id = draft.emit(
        EventType::SessionForked,
        Emit::by(f.request.author.clone(), None),
        Body::SessionForked(Box::new(forked)),
    );
    draft.caused_by(Cause::Event(id));
    if let Some(disk) = &f.checkpoint {
        checkpoint(&mut draft, disk);
    }
    come_to_rest(&mut draft)?;
    people::note_creation(&mut draft, &f.request);
    let reply = match &f.prompt {
        Some(prompt) => {
            let said = resume::say(&mut draft, &f.request, prompt)?;
            resume::resumed(&draft, said, true)
        }
        None => people::shown(&mut draft, 201),
    };
    Ok(draft.done_for(&f.request, reply))
}

/// The past that was asked for is not all there: nothing is made of the rest.
fn unreadable(base: &State) -> Rejection {
    let detail = "contents of the shared past cannot be read";
    let missing = serde_json::json!(base.missing);
    Rejection::new(Code::HistoryUnavailable, detail).with("missing", missing)
}

/// The child's own checkpoint over the source's snapshot: its own reference, the same end.
fn checkpoint(draft: &mut Draft<'_>, disk: &ForkedDisk) {
    let source = &disk.checkpoint;
    let created = CheckpointCreated {
        checkpoint_id: CheckpointId(draft.env.uuid()),
        kind: CheckpointKind::Fork,
        parent_checkpoint_id: Some(source.checkpoint_id),
        ..source.clone()
    };
    if let Some(about) = &draft.base().about {
        let key = SnapshotKey::of(about.workspace, &source.snapshot);
        draft.row(RowOp::HoldSnapshot(key));
    }
    if let Some(blob) = &disk.blob {
        // The child's own copy, whatever becomes of the source.
        let seq = draft.last_seq() + 1;
        draft.row(RowOp::PutBlob(seq, blob.clone()));
    }
    draft.emit(
        EventType::CheckpointCreated,
        Emit::system(None),
        Body::CheckpointCreated(Box::new(created)),
    );
}

/// What was going on in the source at the boundary ends here, or goes on in the child's own way.
fn come_to_rest(draft: &mut Draft<'_>) -> Result<(), Rejection> {
    let Some(run) = draft.state().run.clone() else {
        return without_run(draft);
    };
    match run.phase {
        Phase::Parked | Phase::Waiting => parked(draft, &run),
        Phase::Queued | Phase::Claimed | Phase::Running | Phase::Reconciling => {
            let left = draft.state().untaken;
            let to = if left.is_some() {
                Status::Pending
            } else {
                Status::Idle
            };
            let end = turn::End {
                error: Some(RunError {
                    code: FORKED.to_owned(),
                    message: "the run goes on in the source only".to_owned(),
                }),
                to: Some(to),
                ..turn::End::new(Outcome::Canceled, FORKED, LostReason::Canceled)
            };
            turn::close_items(draft, run.id, run.attempt, Outcome::Canceled);
            draft.become_status(to, FORKED);
            let by = crate::session::event::Author::system();
            turn::end(draft, end, &by)?;
            if let Some(left) = left {
                turn::queue_message(draft, Some(left.first_id));
            }
            Ok(())
        }
    }
}

fn without_run(draft: &mut Draft<'_>) -> Result<(), Rejection> {
    let state = draft.state();
    let (status, left) = (state.status, state.untaken);
    // Cut between the end of a parked run and its continuation.
    let continued = state
        .last_run
        .as_ref()
        .filter(|r| r.outcome == Outcome::Continued && status == Status::Pending)
        .map(|r| r.id);
    match status {
        Status::Pending if continued.is_some() => {
            let trigger = Trigger {
                kind: TriggerKind::Continuation,
                event_id: None,
            };
            turn::queue(draft, trigger, continued);
        }
        Status::Pending => {
            if let Some(left) = left {
                turn::queue_message(draft, Some(left.first_id));
            }
        }
        _ => draft.become_status(Status::Idle, FORKED),
    }
    Ok(())
}

/// A parked run stays parked, without compute, its items open under the same ids.
fn parked(draft: &mut Draft<'_>, run: &LiveRun) -> Result<(), Rejection> {
    // Everything it waited for may be in at the cut: then it goes on at once.
    let all_in = run.all_in();
    let to = if all_in {
        turn::close_items(draft, run.id, run.attempt, Outcome::Continued);
        Status::Pending
    } else {
        Status::Paused
    };
    draft.become_status(to, FORKED);
    if run.phase == Phase::Waiting {
        let open = run.waits.iter().filter(|w| !w.done);
        let body = RunParked {
            waiting_on: open.map(|w| w.on.clone()).collect(),
            compute: Compute::Released,
            released_by: Some(FORKED.to_owned()),
            hold_until: None,
            already_in: Vec::new(),
        };
        let run_ref = RunRef {
            id: run.id,
            attempt: run.attempt,
        };
        draft.emit(
            EventType::RunParked,
            Emit::system(Some(run_ref)),
            Body::RunParked(body),
        );
    }
    if !all_in {
        return Ok(());
    }
    turn::go_on(draft, run.answers.last().map_or(run.parked_id, |a| a.id))
}
