//! The fold: what an event makes of a state. It holds no rules and cannot fail.

use super::aging::{age, miss};
use super::checkpoints::{Checkpoint, Checkpoints, SnapshotState};
use super::event::{AuthorKind, Event, EventType};
use super::journal::{self, Journal};
use super::payload::{
    Body, CheckpointKind, Compute, DeletedWhat, ItemClosed, ItemState, Outcome, RunClaimed,
    RunParked, RunQueued, RunRequeued, RunSettled, SessionForked, Usage, WaitingOn,
};
use super::state::{
    About, Answer, Claim, Compacted, Forked, Item, ItemKind, LiveRun, Phase, SettledRun, Signal,
    State, Untaken, Wait,
};
use super::status::Status;
use crate::ids::EventId;

/// Folds one event.
pub fn evolve(state: &mut State, event: &Event) {
    state.last_seq = event.seq;
    state.last_id = event.header.id;
    state.updated_at_ms = event.header.created_at_ms;
    note_run(state, event);
    age(state, event);
    match &event.body {
        Body::Opaque => {
            if state.keeps_nothing() {
                miss(&mut state.missing, (event.seq, event.seq));
            }
            opaque(state, event);
        }
        Body::SessionCreated(b) => {
            state.created_at_ms = event.header.created_at_ms;
            state.about = Some(About {
                workspace: b.workspace,
                principal: b.principal.clone(),
                pin: b.pin.clone(),
                metadata_json: serde_json::to_string(&b.metadata).unwrap_or_default(),
                budget: b.budget,
                retention: b.retention,
            });
        }
        Body::SessionUpdated(b) => {
            if let Some(about) = &mut state.about {
                if let Some(m) = &b.metadata {
                    about.metadata_json = serde_json::to_string(m).unwrap_or_default();
                }
                about.budget = b.budget.or(about.budget);
            }
            if b.budget.is_some() && !state.budget_exceeded() {
                answered(state, |on| matches!(on, WaitingOn::Budget { .. }), None);
            }
        }
        Body::SessionStatus(b) => status(state, b.to),
        Body::SessionLimitWarning(b) => state.warned_percent = b.percent,
        Body::RunQueued(b) => queued(state, event, b),
        Body::RunClaimed(b) => claimed(state, event, b),
        Body::SessionForked(b) => forked(state, event, b),
        Body::CheckpointCreated(b) => {
            state.ever_checkpointed = true;
            let mut created = (**b).clone();
            created.run_id = created.run_id.or(event.header.run.map(|r| r.id));
            let checkpoint = Checkpoint {
                seq: event.seq,
                created_at_ms: event.header.created_at_ms,
                created,
                pinned: false,
                snapshot_state: SnapshotState::Live,
                rejected: None,
            };
            state.checkpoints.0.insert(event.seq, checkpoint.into());
        }
        Body::CheckpointFailed(b) if b.kind == CheckpointKind::Settle => {
            state.unkept_seq = event.seq;
        }
        Body::CheckpointFailed(_) | Body::ContentErased(_) => {}
        Body::CheckpointRejected(b) => {
            let reason = Some(b.reason.clone());
            state
                .checkpoints
                .change(b.checkpoint_id, |c| c.rejected = reason);
        }
        Body::CheckpointPinned(b) => {
            state
                .checkpoints
                .change(b.checkpoint_id, |c| c.pinned = b.pinned);
        }
        Body::CheckpointExpired(b) => {
            let expired = |c: &mut Checkpoint| c.snapshot_state = SnapshotState::Expired;
            state.checkpoints.change(b.checkpoint_id, expired);
        }
        Body::CheckpointDeleted(b) => match b.what {
            DeletedWhat::Checkpoint => {
                let keep = |c: &Checkpoint| c.created.checkpoint_id != b.checkpoint_id;
                state.checkpoints.0.retain(|_, c| keep(c));
            }
            DeletedWhat::Snapshot => {
                let deleted = |c: &mut Checkpoint| c.snapshot_state = SnapshotState::Deleted;
                state.checkpoints.change(b.checkpoint_id, deleted);
            }
        },
        Body::RunStarted(_) => {
            state.ever_started = true;
            state.started_here = true;
            if let Some(run) = &mut state.run {
                run.phase = Phase::Running;
            }
        }
        Body::RunInputsTaken(b) => {
            // Messages are taken all together, so the first one tells.
            if state
                .untaken
                .is_some_and(|u| b.event_ids.contains(&u.first_id))
            {
                state.untaken = None;
            }
            if let Some(run) = &mut state.run {
                run.answers.retain(|a| !b.event_ids.contains(&a.id));
            }
        }
        Body::RunRequeued(b) => requeued(state, b),
        Body::RunParked(b) => parked(state, event, b),
        Body::RunSettled(b) => settled(state, event, b),
        Body::ItemClosed(b) => closed(state, b),
        Body::SignalConsumed(b) => {
            if let Some(at) = state.signals.iter().position(|s| s.id == b.signal_id) {
                state.signals.remove(at);
            }
            let answer = Answer {
                seq: b.signal_id.seq(),
                id: b.signal_id,
            };
            let name = b.name.as_str();
            answered(
                state,
                |on| matches!(on, WaitingOn::Signal { signal, .. } if signal == name),
                Some(answer),
            );
        }
        Body::UsageRecorded(u) => {
            state.spend(u.usage, u.model.as_deref());
        }
    }
}

/// Notes how far the live run has come: what it wrote or took. What others did to it meanwhile
/// (an answer, a change of status) it has not seen yet.
fn note_run(state: &mut State, event: &Event) {
    let own = matches!(
        event.header.author.kind,
        AuthorKind::Agent | AuthorKind::Runner
    );
    if !own && !matches!(event.body, Body::RunInputsTaken(_)) {
        return;
    }
    if let (Some(run), Some(by)) = (&mut state.run, event.header.run)
        && run.id == by.id
    {
        run.at = Answer {
            seq: event.seq,
            id: event.header.id,
        };
    }
}

/// A fork begins: what is shared stays, what belongs to the source alone does not.
fn forked(state: &mut State, event: &Event, b: &SessionForked) {
    state.created_at_ms = event.header.created_at_ms;
    state.inherited_usage = state.inherited_usage.plus(state.usage);
    state.usage = Usage::default();
    state.spent.clear();
    state.checkpoints = Checkpoints::default();
    state.ever_checkpointed = false;
    state.started_here = false;
    state.forked = Some(Forked {
        source: b.source_session_id,
        root: b.root_session_id,
        boundary_seq: b.boundary_seq,
        adopted: b.adopted.clone(),
    });
    if let Some(about) = &mut state.about {
        if about.principal != b.principal {
            // What one principal decided binds no other.
            state.remembered.clear();
        }
        about.principal.clone_from(&b.principal);
        about.metadata_json = serde_json::to_string(&b.metadata).unwrap_or_default();
    }
    if let Some(run) = &mut state.run {
        // A claim is a right in the source only.
        run.claim = None;
        // Nothing is spent yet, so nothing waits for money.
        for wait in &mut run.waits {
            wait.done |= matches!(wait.on, WaitingOn::Budget { .. });
        }
    }
}

fn status(state: &mut State, to: Status) {
    state.status = to;
    if let Some(run) = &mut state.run
        && run.phase == Phase::Waiting
        && to == Status::Running
    {
        // Everything waited for is in: the same attempt goes on.
        run.phase = Phase::Running;
        run.waits.clear();
        run.hold_until_ms = 0;
    }
}

fn opaque(state: &mut State, event: &Event) {
    let id = event.header.id;
    let kind = match event.header.kind {
        EventType::UserMessage => {
            let first = Untaken {
                first_seq: event.seq,
                first_id: id,
                count: 0,
            };
            let u = state.untaken.get_or_insert(first);
            u.count = u.count.saturating_add(1);
            return;
        }
        EventType::UserSignal => {
            let name = event.header.label.clone().unwrap_or_default();
            state.signals.push_back(Signal {
                name,
                seq: event.seq,
                id,
            });
            return;
        }
        EventType::AgentContextCompacted => {
            let through = event.header.label.as_ref().and_then(|l| l.parse().ok());
            state.compacted = through.map(|through_seq| Compacted {
                seq: event.seq,
                through_seq,
            });
            return;
        }
        EventType::AgentToolResult => {
            if let Some(tool_use) = event.header.refers {
                state.items.remove(&tool_use.seq());
            }
            return;
        }
        EventType::UserActionApproval => {
            // A label is there only where the decision is to be remembered.
            let label = event.header.label.as_deref();
            if let Some((decision, tool)) = label.and_then(|l| l.split_once(' ')) {
                state.remember(tool, decision == ItemState::Granted.text());
            }
            return;
        }
        EventType::StepStarted
        | EventType::StepCompleted
        | EventType::StepFailed
        | EventType::StepResolved => return journal::fold(state, event),
        EventType::AgentToolUse => ItemKind::ToolUse,
        EventType::AgentQuestion => ItemKind::Question,
        EventType::AgentActionApprovalRequested => ItemKind::Approval,
        EventType::AgentCustomToolUse => ItemKind::CustomTool,
        _ => return,
    };
    let attempt = event.header.run.map_or(0, |r| r.attempt);
    let tool = event.header.label.clone();
    let item = Item {
        kind,
        id,
        attempt,
        tool,
    };
    state.items.insert(event.seq, item);
}

fn queued(state: &mut State, event: &Event, b: &RunQueued) {
    let Some(run) = event.header.run else { return };
    let last = state.run.as_ref().map(|r| r.id);
    let last = last.or(state.last_run.as_ref().map(|r| r.id));
    if b.continues.is_none() || b.continues != last {
        // A finished run never replays into another one.
        state.journal = Journal {
            chain_seq: event.seq,
            ..Journal::default()
        };
    }
    // A continuation inherits the answers that its parked run waited for.
    let answers = state.run.take().map(|r| r.answers).or_else(|| {
        let last = state.last_run.as_mut();
        last.filter(|l| Some(l.id) == b.continues)
            .map(|l| std::mem::take(&mut l.answers))
    });
    state.run = Some(LiveRun {
        id: run.id,
        queued_seq: event.seq,
        queued_at_ms: event.header.created_at_ms,
        trigger: b.trigger,
        continues: b.continues,
        attempt: 0,
        lost: 0,
        phase: Phase::Queued,
        not_before_ms: event.header.created_at_ms,
        claim: None,
        waits: Vec::new(),
        parked_seq: 0,
        parked_id: EventId([0; 16]),
        hold_until_ms: 0,
        answers: answers.unwrap_or_default(),
        usage: Default::default(),
        at: Answer {
            seq: event.seq,
            id: event.header.id,
        },
    });
}

fn claimed(state: &mut State, event: &Event, b: &RunClaimed) {
    let Some(run) = &mut state.run else { return };
    run.attempt = event.header.run.map_or(run.attempt, |r| r.attempt);
    run.phase = Phase::Claimed;
    run.claim = Some(Claim {
        token: b.claim_digest,
        runner: b.runner_id,
        claimed_at_ms: event.header.created_at_ms,
        startup_deadline_ms: b.startup_deadline,
        deadline_ms: b.deadline,
        resume: b.resume.clone(),
    });
}

fn requeued(state: &mut State, b: &RunRequeued) {
    let Some(run) = &mut state.run else { return };
    run.phase = Phase::Queued;
    run.claim = None;
    run.attempt = b.next_attempt.saturating_sub(1);
    run.lost = b.attempts_lost;
    run.not_before_ms = b.not_before;
}

fn parked(state: &mut State, event: &Event, b: &RunParked) {
    let Some(run) = &mut state.run else { return };
    if b.released_by.is_some() {
        // Held compute was let go: the same park stands, and so do its waits.
        run.phase = Phase::Parked;
        run.claim = None;
        run.hold_until_ms = 0;
        return;
    }
    run.parked_seq = event.seq;
    run.parked_id = event.header.id;
    run.waits = b
        .waiting_on
        .iter()
        .map(|on| Wait {
            on: on.clone(),
            done: false,
        })
        .collect();
    run.hold_until_ms = b.hold_until.unwrap_or(0);
    run.phase = match b.compute {
        Compute::Held => Phase::Waiting,
        Compute::Released => Phase::Parked,
    };
    if b.compute == Compute::Released {
        run.claim = None;
    }
    // What was answered before the park is in already.
    for (index, answer) in &b.already_in {
        if let Some(wait) = usize::try_from(*index)
            .ok()
            .and_then(|i| run.waits.get_mut(i))
        {
            wait.done = true;
        }
        if let Some(id) = answer {
            run.answers.push(Answer {
                seq: id.seq(),
                id: *id,
            });
        }
    }
}

fn settled(state: &mut State, event: &Event, b: &RunSettled) {
    let Some(run) = state.run.take() else { return };
    if !matches!(b.outcome, Outcome::Failed | Outcome::Continued) {
        state.journal.open.clear();
    }
    if b.outcome != Outcome::Continued {
        state.turns = state.turns.saturating_add(1);
    }
    // `usage` is the run's total; what was not yet counted is added now.
    state.usage = state.usage.plus(b.usage.minus(run.usage));
    state.last_run = Some(SettledRun {
        id: run.id,
        queued_seq: run.queued_seq,
        queued_at_ms: run.queued_at_ms,
        settled_at_ms: event.header.created_at_ms,
        trigger: run.trigger,
        continues: run.continues,
        attempt: run.attempt,
        outcome: b.outcome,
        error: b.error.clone(),
        usage: b.usage,
        answers: run.answers,
    });
}

fn closed(state: &mut State, b: &ItemClosed) {
    let answer = b.answer_id.map(|id| Answer { seq: id.seq(), id });
    if let Some(name) = &b.signal {
        answered(
            state,
            |on| matches!(on, WaitingOn::Signal { signal, .. } if signal == name),
            answer,
        );
        return;
    }
    state.items.remove(&b.item_id.seq());
    let item = b.item_id;
    answered(state, |on| on.item() == Some(item), answer);
}

/// Marks the first open wait that matches as over, and keeps the answer for the run.
fn answered(state: &mut State, is: impl Fn(&WaitingOn) -> bool, answer: Option<Answer>) {
    let Some(run) = &mut state.run else { return };
    if let Some(wait) = run.waits.iter_mut().find(|w| !w.done && is(&w.on)) {
        wait.done = true;
        run.answers.extend(answer);
    }
}
