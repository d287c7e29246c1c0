//! How turns begin and end: queueing, requeueing, settling, going on.

use super::draft::{Draft, Emit};
use crate::code::Rejection;
use crate::ids::{EventId, RunId};
use crate::session::command::SettleCheckpoint;
use crate::session::decision::{Reply, RowOp};
use crate::session::event::{Author, Cause, EventType, RunRef};
use crate::session::facts::{EndedClaim, LostReason};
use crate::session::payload::{
    Body, Compute, ItemClosed, ItemState, Outcome, RequeueReason, RunError, RunParked, RunQueued,
    RunRequeued, RunSettled, Trigger, TriggerKind, Usage,
};
use crate::session::state::{Item, ItemKind, LiveRun, Phase};
use crate::session::status::Status;

/// How a turn ends.
pub(super) struct End {
    pub(super) outcome: Outcome,
    pub(super) error: Option<RunError>,
    /// What the run spent beyond what was recorded.
    pub(super) usage: Usage,
    /// Where the session goes; `None` = `idle`, or `pending` with untaken input.
    pub(super) to: Option<Status>,
    pub(super) reason: &'static str,
    pub(super) lost: LostReason,
}

impl End {
    /// An end without an error, further usage, or a place of its own to go.
    pub(super) fn new(outcome: Outcome, reason: &'static str, lost: LostReason) -> Self {
        Self {
            outcome,
            error: None,
            usage: Usage::default(),
            to: None,
            reason,
            lost,
        }
    }
}

/// Queues a run. The caller has set the status.
pub(super) fn queue(draft: &mut Draft<'_>, trigger: Trigger, continues: Option<RunId>) {
    let id = RunId(draft.env.uuid());
    let emit = Emit::system(Some(RunRef { id, attempt: 0 }));
    draft.emit(
        EventType::RunQueued,
        emit,
        Body::RunQueued(RunQueued { trigger, continues }),
    );
}

/// Queues a run for messages that wait.
pub(super) fn queue_message(draft: &mut Draft<'_>, first: Option<EventId>) {
    let trigger = Trigger {
        kind: TriggerKind::Message,
        event_id: first,
    };
    queue(draft, trigger, None);
}

/// Starts a run for a message, unless one is live or the session is paused. It may go on with the
/// run before it.
pub(super) fn start_for(
    draft: &mut Draft<'_>,
    message: EventId,
    continues: Option<RunId>,
) -> Result<(), Rejection> {
    let state = draft.state();
    if state.run.is_some() || !matches!(state.status, Status::Pending | Status::Idle) {
        return Ok(());
    }
    draft.set_status(Status::Pending, "input")?;
    queue(
        draft,
        Trigger {
            kind: TriggerKind::Message,
            event_id: Some(message),
        },
        continues,
    );
    Ok(())
}

/// Ends the live run in one commit: items closed, status, settlement, and the next run if input
/// is left.
pub(super) fn end(draft: &mut Draft<'_>, end: End, by: &Author) -> Result<(), Rejection> {
    let Some(run) = draft.state().run.clone() else {
        return Ok(());
    };
    let run_ref = RunRef {
        id: run.id,
        attempt: run.attempt,
    };
    close_items(draft, run.id, run.attempt, end.outcome);
    let starts_next = end.to.is_none() && starts_next(draft, end.outcome);
    let to = end.to.unwrap_or(rest(starts_next));
    draft.set_status(to, end.reason)?;
    let usage = run.usage.plus(end.usage);
    let settled = RunSettled {
        outcome: end.outcome,
        error: end.error,
        usage,
        cost: usage.cost_micros,
    };
    let boundary = end.outcome != Outcome::Continued;
    let emit = Emit::by(by.clone(), Some(run_ref)).boundary(boundary);
    let id = draft.emit(EventType::RunSettled, emit, Body::RunSettled(settled));
    // A runner's own settle keeps its answer with the claim's end.
    if end.lost != LostReason::Settled {
        end_claim(draft, &run, end.lost, None);
    }
    if starts_next {
        draft.caused_by(Cause::Event(id));
        let event_id = draft.state().untaken.map(|u| u.first_id);
        queue(
            draft,
            Trigger {
                kind: TriggerKind::Message,
                event_id,
            },
            None,
        );
    }
    Ok(())
}

/// Whether the input that is left starts a run after a turn that ended so.
fn starts_next(draft: &mut Draft<'_>, outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Succeeded | Outcome::Failed) && draft.state().untaken.is_some()
}

const fn rest(starts_next: bool) -> Status {
    if starts_next {
        Status::Pending
    } else {
        Status::Idle
    }
}

/// Takes note of the checkpoint of a turn's end, in the place of the commit where it belongs.
pub(super) fn checkpoint(draft: &mut Draft<'_>, end: &End, taken: &SettleCheckpoint) {
    let Some(run) = draft.run_ref() else { return };
    close_items(draft, run.id, run.attempt, end.outcome);
    let starts_next = starts_next(draft, end.outcome);
    let to = end.to.unwrap_or(rest(starts_next));
    let changes = draft.state().status != to;
    if let Some(id) = super::checkpoint::at_settlement(draft, taken, end.usage, changes) {
        draft.promise(id);
    }
}

/// Closes every open item: a settled run leaves none. One that another run goes on from leaves
/// its tool uses: the other one ends them.
pub(super) fn close_items(draft: &mut Draft<'_>, id: RunId, attempt: u32, outcome: Outcome) {
    let run = RunRef { id, attempt };
    let left = |i: &&Item| outcome == Outcome::Continued && i.kind == ItemKind::ToolUse;
    let items = draft.state().items.values();
    let open: Vec<EventId> = items.filter(|i| !left(i)).map(|i| i.id).collect();
    for item_id in open {
        let body = ItemClosed {
            item_id,
            state: ItemState::Cancelled,
            by: Author::system().id,
            answer_id: None,
            signal: None,
        };
        draft.emit(
            EventType::ItemClosed,
            Emit::system(Some(run)),
            Body::ItemClosed(body),
        );
    }
}

/// Keeps how the run's claim ended, if it holds one.
pub(super) fn end_claim(
    draft: &mut Draft<'_>,
    run: &LiveRun,
    reason: LostReason,
    by: Option<(&[u8; 16], &Reply, Option<Outcome>)>,
) {
    let Some(claim) = &run.claim else { return };
    let ended = EndedClaim {
        reason,
        outcome: by.and_then(|(_, _, outcome)| outcome),
        body: by.map(|(body, _, _)| *body).unwrap_or_default(),
        reply: by.map(|(_, reply, _)| reply.clone()),
    };
    draft.row(RowOp::Ended(claim.token, ended));
}

/// Gives the run back to the queue, as its next attempt.
pub(super) fn requeue(draft: &mut Draft<'_>, reason: RequeueReason) -> Result<(), Rejection> {
    let Some(run) = draft.state().run.clone() else {
        return Ok(());
    };
    let (limits, now) = (draft.env.limits, draft.env.now_ms);
    let counts = matches!(reason, RequeueReason::Lease | RequeueReason::Startup);
    let lost = run.lost + u32::from(counts);
    let wait_ms = if counts {
        backoff_ms(limits.backoff_ms_min, limits.backoff_ms_max, lost)
    } else {
        0
    };
    // A claim that was never delivered was no attempt: its number is used again.
    let next_attempt = run.attempt + u32::from(reason != RequeueReason::Undelivered);
    let body = RunRequeued {
        reason,
        next_attempt,
        attempts_lost: lost,
        not_before: now.saturating_add(i64::try_from(wait_ms).unwrap_or(i64::MAX)),
    };
    let text = match reason {
        RequeueReason::Lease => "claim lost",
        RequeueReason::Startup => "startup timeout",
        RequeueReason::Released => "claim released",
        RequeueReason::Undelivered => "claim undelivered",
    };
    draft.set_status(Status::Pending, text)?;
    let emit = Emit::system(Some(RunRef {
        id: run.id,
        attempt: run.attempt,
    }));
    draft.emit(EventType::RunRequeued, emit, Body::RunRequeued(body));
    Ok(())
}

/// Doubles from `min`, at most `max`.
fn backoff_ms(min: u64, max: u64, lost: u32) -> u64 {
    let doublings = lost.saturating_sub(1).min(32);
    min.saturating_mul(1 << doublings).min(max)
}

/// A lost attempt: the next one, or the end if there were enough.
pub(super) fn lose(draft: &mut Draft<'_>, reason: RequeueReason) -> Result<(), Rejection> {
    let Some(run) = draft.state().run.clone() else {
        return Ok(());
    };
    let lost = match reason {
        RequeueReason::Startup => LostReason::Startup,
        RequeueReason::Lease => LostReason::Lease,
        RequeueReason::Released | RequeueReason::Undelivered => LostReason::Released,
    };
    let max = draft.env.limits.attempts_max;
    if run.lost + 1 < max {
        end_claim(draft, &run, lost, None);
        return requeue(draft, reason);
    }
    let error = RunError {
        code: crate::code::Code::AttemptsExhausted.text().to_owned(),
        message: format!("all {max} attempts were lost, the last by {}", lost.text()),
    };
    let end_of = End {
        error: Some(error),
        ..End::new(Outcome::Failed, "attempts exhausted", lost)
    };
    end(draft, end_of, &Author::system())
}

/// Held compute is let go: the run stays parked, without a claim.
pub(super) fn let_go(
    draft: &mut Draft<'_>,
    why: &'static str,
    lost: LostReason,
    by: Option<(&[u8; 16], &Reply)>,
) -> Result<(), Rejection> {
    let Some(run) = draft.state().run.clone() else {
        return Ok(());
    };
    end_claim(draft, &run, lost, by.map(|(b, r)| (b, r, None)));
    draft.set_status(Status::Paused, why)?;
    let body = RunParked {
        waiting_on: run
            .waits
            .iter()
            .filter(|w| !w.done)
            .map(|w| w.on.clone())
            .collect(),
        compute: Compute::Released,
        released_by: Some(why.to_owned()),
        hold_until: None,
        already_in: Vec::new(),
    };
    let emit = Emit::system(Some(RunRef {
        id: run.id,
        attempt: run.attempt,
    }));
    draft.emit(EventType::RunParked, emit, Body::RunParked(body));
    Ok(())
}

/// After an answer: if everything the park waits for is in, the run goes on.
pub(super) fn go_on(draft: &mut Draft<'_>, answer: EventId) -> Result<(), Rejection> {
    let Some(run) = draft.state().run.clone() else {
        return Ok(());
    };
    if run.waits.is_empty() || !run.all_in() {
        return Ok(());
    }
    match run.phase {
        Phase::Waiting => draft.set_status(Status::Running, "answered"),
        Phase::Parked => {
            let to_next = End {
                to: Some(Status::Pending),
                ..End::new(Outcome::Continued, "answered", LostReason::Parked)
            };
            end(draft, to_next, &Author::system())?;
            let trigger = Trigger {
                kind: TriggerKind::Continuation,
                event_id: Some(answer),
            };
            queue(draft, trigger, Some(run.id));
            Ok(())
        }
        Phase::Queued | Phase::Claimed | Phase::Running | Phase::Reconciling => Ok(()),
    }
}
