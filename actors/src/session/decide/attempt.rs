//! A runner's calls under a claim. The fence is here and nowhere else.

use serde_json::json;

use super::claim::take;
use super::draft::{Draft, Emit, agent, runner};
use super::{checkpoint, not_found, park, people, step, turn};
use crate::code::{Code, Rejection};
use crate::ids::EventId;
use crate::session::command::{Ask, AttemptCall, Bearer, Input, Settle, Verb};
use crate::session::decision::{Decision, Reply, RowOp};
use crate::session::event::{Cause, EventType};
use crate::session::facts::{EndedClaim, Facts, LostReason, StoredCall};
use crate::session::payload::{
    Body, Outcome, RequeueReason, ResumePlan, RunError, RunInputsTaken, RunStarted, SignalConsumed,
    Usage, UsageRecorded,
};
use crate::session::state::{Answer, Claim, ItemKind, LiveRun, Phase};
use crate::session::status::Status;

/// Longest name of a tool whose approval can be remembered, bytes.
const TOOL_BYTES_MAX: usize = 256;

/// Decides one call.
pub(super) fn call(
    mut draft: Draft<'_>,
    facts: &Facts,
    call: &AttemptCall,
) -> Result<Decision, Rejection> {
    let base = draft.base();
    let about = base.about.as_ref().ok_or_else(|| not_found(base))?;
    let own = match call.by {
        Bearer::Trusted => true,
        Bearer::Workspace(workspace) => about.workspace == workspace,
        Bearer::Runner(id) => base
            .claim()
            .is_none_or(|c| c.token != call.token || c.runner == id),
    };
    if !own {
        return Err(Code::ClaimNotFound.into());
    }
    let live = |r: &&LiveRun| r.claim.as_ref().is_some_and(|c| c.token == call.token);
    let Some(run) = base.run.as_ref().filter(live) else {
        return after_the_end(facts, call);
    };
    if let Some(decision) = numbered(facts, call)? {
        return Ok(decision);
    }
    let reply = match &call.verb {
        Verb::Ready => ready(&mut draft, run)?,
        Verb::Heartbeat => beat(&mut draft),
        Verb::Events(events) => write(&mut draft, run, events)?,
        Verb::Inputs => inputs(&mut draft, facts, run)?,
        Verb::Signal(name) => signal(&mut draft, run, name)?,
        Verb::Steps { ops, many } => step::steps(&mut draft, facts, run, ops, *many)?,
        Verb::CheckpointFailed { kind, reason } => {
            may_checkpoint(&mut draft, run)?;
            checkpoint::failed(&mut draft, *kind, reason);
            Reply::json(200, &json!({ "checkpoint_id": null }))
        }
        Verb::Checkpoint(new) => {
            may_checkpoint(&mut draft, run)?;
            let metadata = serde_json::from_str(&new.metadata_json).unwrap_or_default();
            people::check_metadata(&metadata, draft.env.limits)?;
            checkpoint::explicit(&mut draft, new)
        }
        Verb::RejectCheckpoint {
            checkpoint,
            reason,
            temporary,
        } => {
            // A runner elsewhere: only what this attempt was to go on from.
            let plan = base.claim().map(|c| &c.resume);
            let named = matches!(plan, Some(ResumePlan::Checkpoint { id, .. }) if id == checkpoint);
            if !named && !matches!(call.by, Bearer::Trusted) {
                let detail = format!("the claim does not go on from {checkpoint}");
                return Err(Rejection::new(Code::CheckpointNotFound, detail));
            }
            match temporary {
                true => checkpoint::pass_over(&mut draft, run, *checkpoint, reason)?,
                false => checkpoint::reject(&mut draft, *checkpoint, reason),
            }
            beat(&mut draft)
        }
        Verb::Park(p) => park::park(&mut draft, facts, run, p)?,
        Verb::Settle(s) => settle(&mut draft, run, s)?,
        Verb::Release => release(&mut draft, run)?,
        Verb::Undeliver => undeliver(&mut draft, run)?,
    };
    // Only a numbered call asks: what it asks for makes the draft fold a copy of the state. Steps
    // end no claim.
    if let Some(n) = call.n
        && (matches!(call.verb, Verb::Steps { .. })
            || draft.state().claim().is_some_and(|c| c.token == call.token))
    {
        let verb = call.verb.text().to_owned();
        draft.row(RowOp::Call(
            call.token,
            n,
            StoredCall {
                verb,
                reply: reply.clone(),
            },
        ));
    }
    Ok(draft.done(reply))
}

/// Whether there may be a checkpoint now.
fn may_checkpoint(draft: &mut Draft<'_>, run: &LiveRun) -> Result<(), Rejection> {
    // The server's own runner keeps an attached sandbox before it is ready.
    let attached = |c: &Claim| matches!(c.resume, ResumePlan::Attached { .. });
    let early = run.phase == Phase::Claimed && run.claim.as_ref().is_some_and(attached);
    if run.phase != Phase::Running && !early {
        return Err(not_ready(run, "checkpoint"));
    }
    checkpoint::allowed(draft.base())?;
    draft.room_for(1)
}

/// A call under a claim that is over: an identical retry of what ended it gets its first answer.
fn after_the_end(facts: &Facts, call: &AttemptCall) -> Result<Decision, Rejection> {
    let Some(ended) = &facts.ended_claim else {
        return Err(Code::ClaimNotFound.into());
    };
    let first_answer = |same: bool| ended.reply.clone().filter(|_| same).map(Decision::answer);
    let answer = match (&call.verb, ended.reason) {
        (Verb::Settle(s), LostReason::Settled) => {
            if let Some(outcome) = ended.outcome.filter(|o| *o != s.outcome) {
                let detail = format!("the run was settled as {}", outcome.text());
                let r = Rejection::new(Code::AlreadySettled, detail);
                return Err(r.with("outcome", outcome.text()));
            }
            first_answer(true)
        }
        (Verb::Park(p), LostReason::Parked) => first_answer(ended.body == p.body),
        (Verb::Release, LostReason::Released) => first_answer(true),
        _ => None,
    };
    answer.ok_or_else(|| lost(ended))
}

fn lost(ended: &EndedClaim) -> Rejection {
    let reason = ended.reason.text();
    let detail = format!("the claim is over: {reason}");
    Rejection::new(Code::ClaimLost, detail).with("reason", reason)
}

/// The kept answer to a number seen before; a refusal of a number out of order.
fn numbered(facts: &Facts, call: &AttemptCall) -> Result<Option<Decision>, Rejection> {
    let Some(n) = call.n else { return Ok(None) };
    let expected = facts.last_n + 1;
    if n == expected {
        return Ok(None);
    }
    let same_verb = |c: &&StoredCall| c.verb == call.verb.text();
    if let Some(stored) = facts
        .call
        .as_ref()
        .filter(|_| n < expected)
        .filter(same_verb)
    {
        return Ok(Some(Decision::answer(stored.reply.clone())));
    }
    let detail = format!("call number {n} under this claim; {expected} is next");
    Err(Rejection::new(Code::OutOfOrder, detail).with("expected", expected))
}

pub(super) fn not_ready(run: &LiveRun, verb: &str) -> Rejection {
    let state = run.phase.text();
    let detail = format!("`{verb}` while the attempt is {state}");
    Rejection::new(Code::ClaimNotReady, detail).with("state", state)
}

fn ready(draft: &mut Draft<'_>, run: &LiveRun) -> Result<Reply, Rejection> {
    match run.phase {
        Phase::Claimed => {}
        // Already ready: saying so again changes nothing.
        Phase::Running | Phase::Waiting => return Ok(beat(draft)),
        Phase::Queued | Phase::Parked | Phase::Reconciling => return Err(not_ready(run, "ready")),
    }
    let state = draft.state();
    let author = runner(state);
    if let (Some(about), Some(claim)) = (&state.about, state.claim()) {
        let started = RunStarted {
            resume: claim.resume.clone(),
            agent_deployment: about.pin.agent_deployment,
            agent_deployment_revision_number: about.pin.agent_deployment_revision_number,
            harness_revision: about.pin.harness_revision,
            sandbox_profile_revision: about.pin.sandbox_profile_revision,
        };
        let emit = Emit::by(author, draft.run_ref());
        let id = draft.emit(EventType::RunStarted, emit, Body::RunStarted(started));
        draft.caused_by(Cause::Event(id));
    }
    draft.set_status(Status::Running, "harness ready")?;
    Ok(beat(draft))
}

/// What every harmless call answers: the lease, advice, and whether the budget is spent.
fn beat(draft: &mut Draft<'_>) -> Reply {
    let limits = draft.env.limits;
    Reply::json(
        200,
        &json!({
            "lease_ms": limits.lease_s.saturating_mul(1_000),
            "beat_ms": limits.beat_s.saturating_mul(1_000),
            "budget_exceeded": draft.state().budget_exceeded(),
        }),
    )
}

fn write(draft: &mut Draft<'_>, run: &LiveRun, events: &[Input]) -> Result<Reply, Rejection> {
    if run.phase != Phase::Running {
        return Err(not_ready(run, "events"));
    }
    draft.room_for(events.len())?;
    let mut ids = Vec::with_capacity(events.len());
    let mut usage = false;
    for input in events {
        usage |= matches!(input.ask, Ask::Usage(_));
        ids.push(write_one(draft, input)?);
    }
    let mut body = draft.accepted(&ids);
    // Only usage moves the budget, and folding is not free: the common call does not ask.
    if usage && draft.state().budget_exceeded() {
        body.insert("budget_exceeded".to_owned(), json!(true));
    }
    Ok(Reply::json(202, &body.into()))
}

pub(super) fn write_one(draft: &mut Draft<'_>, input: &Input) -> Result<EventId, Rejection> {
    let base = draft.base();
    let run = base.run.as_ref().map(|r| crate::session::event::RunRef {
        id: r.id,
        attempt: r.attempt,
    });
    let emit = Emit::by(agent(base), run);
    Ok(match &input.ask {
        Ask::Open => {
            let max = draft.env.limits.open_items_max;
            if draft.state().items.len() >= max {
                let detail = format!("{max} items are open");
                return Err(Rejection::new(Code::ItemsFull, detail).with("items_max", max));
            }
            let mut emit = emit;
            if input.kind == EventType::AgentActionApprovalRequested {
                emit.label = tool(&input.content);
            }
            draft.emit_input(input, emit, Body::Opaque)
        }
        Ask::ToolResult { tool_use } => {
            let item = draft.state().items.get(&tool_use.seq());
            if !item.is_some_and(|i| i.id == *tool_use && i.kind == ItemKind::ToolUse) {
                let detail = format!("{tool_use} is not an open tool use of this session");
                return Err(Rejection::new(Code::ToolUseUnknown, detail));
            }
            draft.emit_input(input, emit.refers(*tool_use), Body::Opaque)
        }
        Ask::Usage(usage) => {
            let emit = Emit::by(runner(base), run);
            let recorded = usage_recorded(*usage, &input.content);
            draft.emit_input(input, emit, Body::UsageRecorded(recorded))
        }
        Ask::Compact { through_seq } => {
            let from = draft.state().compacted.map_or(0, |c| c.through_seq);
            let last = draft.last_seq();
            if *through_seq <= from || *through_seq > last {
                let detail = format!("`through_seq` is above {from} and at most {last}");
                return Err(Rejection::new(Code::FieldInvalid, detail));
            }
            // In the header, because the content may go.
            let label = Some(through_seq.to_string());
            draft.emit_input(input, Emit { label, ..emit }, Body::Opaque)
        }
        _ => draft.emit_input(input, emit, Body::Opaque),
    })
}

/// What a content of `usage.recorded` says, its model too.
pub(super) fn usage_recorded(usage: Usage, content: &[u8]) -> UsageRecorded {
    match Body::from_json(EventType::UsageRecorded, 1, content) {
        Ok(Body::UsageRecorded(recorded)) => recorded,
        _ => usage.into(),
    }
}

/// The tool that an approval is about, where it says so.
fn tool(content: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct About {
        tool: String,
    }
    let about: Option<About> = serde_json::from_slice(content).ok();
    about.map(|a| a.tool).filter(|t| t.len() <= TOOL_BYTES_MAX)
}

/// Takes the oldest signal of a name, if there is one; never waits.
fn signal(draft: &mut Draft<'_>, run: &LiveRun, name: &str) -> Result<Reply, Rejection> {
    if run.phase != Phase::Running {
        return Err(not_ready(run, "inputs"));
    }
    let found = draft.state().signals.iter().find(|s| s.name == name);
    let taken = found.map(|s| Answer {
        seq: s.seq,
        id: s.id,
    });
    if let Some(answer) = taken {
        draft.room_for(2)?;
        let run = draft.run_ref();
        let consumed = SignalConsumed {
            signal_id: answer.id,
            name: name.to_owned(),
        };
        draft.emit(
            EventType::SignalConsumed,
            Emit::system(run),
            Body::SignalConsumed(consumed),
        );
        let inputs = RunInputsTaken {
            event_ids: vec![answer.id],
        };
        draft.emit(
            EventType::RunInputsTaken,
            Emit::system(run),
            Body::RunInputsTaken(inputs),
        );
    }
    let mut reply = Reply::ok();
    reply.inputs = Some(taken.into_iter().collect());
    Ok(reply)
}

fn inputs(draft: &mut Draft<'_>, facts: &Facts, run: &LiveRun) -> Result<Reply, Rejection> {
    let new = match run.phase {
        Phase::Running => take(draft, facts),
        // Not everything waited for is in: nothing is handed out in pieces.
        Phase::Waiting => Vec::new(),
        Phase::Queued | Phase::Claimed | Phase::Parked | Phase::Reconciling => {
            return Err(not_ready(run, "inputs"));
        }
    };
    let mut reply = Reply::ok();
    reply.inputs = Some(new);
    Ok(reply)
}

fn settle(draft: &mut Draft<'_>, run: &LiveRun, settle: &Settle) -> Result<Reply, Rejection> {
    let author = runner(draft.state());
    let keeps_nothing = draft.state().keeps_nothing();
    let told = settle.error.clone().map(|e| match keeps_nothing {
        // What went wrong may quote the conversation.
        true => RunError {
            message: "not kept".to_owned(),
            ..e
        },
        false => e,
    });
    let error = told.or_else(|| {
        (settle.outcome == Outcome::Failed).then(|| RunError {
            code: "run.failed".to_owned(),
            message: "the runner gave no reason".to_owned(),
        })
    });
    let end = turn::End {
        error,
        usage: settle.usage,
        to: settle.session_failed.then_some(Status::Failed),
        ..turn::End::new(settle.outcome, "settled", LostReason::Settled)
    };
    if let Some(taken) = settle.checkpoint.as_ref().filter(|_| !keeps_nothing) {
        turn::checkpoint(draft, &end, taken);
    }
    turn::end(draft, end, &author)?;
    let state = draft.state();
    let usage = state.last_run.as_ref().map(|r| r.usage);
    let body = json!({
        "run_id": run.id,
        "outcome": settle.outcome,
        "status": state.status,
        "usage": usage,
    });
    let reply = Reply::json(200, &body);
    turn::end_claim(
        draft,
        run,
        LostReason::Settled,
        Some((&settle.body, &reply, Some(settle.outcome))),
    );
    Ok(reply)
}

fn release(draft: &mut Draft<'_>, run: &LiveRun) -> Result<Reply, Rejection> {
    let reply = Reply::ok();
    if run.phase == Phase::Waiting {
        turn::let_go(
            draft,
            "claim released",
            LostReason::Released,
            Some((&[0; 16], &reply)),
        )?;
    } else {
        turn::end_claim(
            draft,
            run,
            LostReason::Released,
            Some((&[0; 16], &reply, None)),
        );
        turn::requeue(draft, RequeueReason::Released)?;
    }
    Ok(reply)
}

fn undeliver(draft: &mut Draft<'_>, run: &LiveRun) -> Result<Reply, Rejection> {
    if run.phase != Phase::Claimed {
        // It did arrive: the runner has called since.
        return Err(not_ready(run, "undeliver"));
    }
    turn::end_claim(draft, run, LostReason::Released, None);
    turn::requeue(draft, RequeueReason::Undelivered)?;
    Ok(Reply::ok())
}
