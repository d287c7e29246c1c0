//! A run waits for something outside it.

use serde_json::json;

use super::draft::{Draft, Emit};
use super::turn::end_claim;
use crate::code::{Code, Rejection};
use crate::ids::EventId;
use crate::session::command::{Park, ParkOn};
use crate::session::decision::Reply;
use crate::session::event::{EventType, RunRef};
use crate::session::facts::{Facts, LostReason};
use crate::session::payload::{
    Body, Compute, RunInputsTaken, RunParked, SignalConsumed, WaitingOn,
};
use crate::session::state::{Answer, ItemKind, LiveRun, Phase, Signal};
use crate::session::status::Status;

/// What one entry of `waiting_on` comes to.
enum Found {
    /// Still to come.
    Open(WaitingOn),
    /// In already, with its answer where there is one.
    In(WaitingOn, Option<Answer>),
}

/// Parks the run, or hands over at once what is in the log already.
pub(super) fn park(
    draft: &mut Draft<'_>,
    facts: &Facts,
    run: &LiveRun,
    park: &Park,
) -> Result<Reply, Rejection> {
    if run.phase != Phase::Running {
        let state = run.phase.text();
        let r = Rejection::new(
            Code::ClaimNotReady,
            format!("`park` while the attempt is {state}"),
        );
        return Err(r.with("state", state));
    }
    let mut free: Vec<Signal> = draft.state().signals.iter().cloned().collect();
    let mut found = Vec::with_capacity(park.waiting_on.len());
    for on in &park.waiting_on {
        found.push(find(draft, facts, on, &mut free)?);
    }
    let run_ref = RunRef {
        id: run.id,
        attempt: run.attempt,
    };
    consume(draft, run_ref, &found);
    if found.iter().all(|f| matches!(f, Found::In(..))) {
        return Ok(go_on_at_once(draft, run_ref, &found));
    }
    let held = park.compute == Compute::Held;
    let reply = Reply::json(200, &json!({"state": "parked"}));
    if !held {
        end_claim(
            draft,
            run,
            LostReason::Parked,
            Some((&park.body, &reply, None)),
        );
    }
    let hold_ms = draft.env.limits.waiting_hold_s_max.saturating_mul(1_000);
    let hold_until = draft
        .env
        .now_ms
        .saturating_add(i64::try_from(hold_ms).unwrap_or(i64::MAX));
    let already_in = (0..).zip(&found).filter_map(|(i, f)| match f {
        Found::In(_, answer) => Some((i, answer.map(|a| a.id))),
        Found::Open(_) => None,
    });
    let body = RunParked {
        waiting_on: found.iter().map(|f| f.on().clone()).collect(),
        compute: park.compute,
        released_by: None,
        hold_until: held.then_some(hold_until),
        already_in: already_in.collect(),
    };
    let (to, reason) = match park.compute {
        Compute::Held => (Status::Waiting, "parked, compute held"),
        Compute::Released => (Status::Paused, "parked, compute released"),
    };
    draft.set_status(to, reason)?;
    let emit = Emit::system(Some(run_ref)).boundary(true);
    draft.emit(EventType::RunParked, emit, Body::RunParked(body));
    Ok(reply)
}

impl Found {
    fn on(&self) -> &WaitingOn {
        match self {
            Self::Open(on) | Self::In(on, _) => on,
        }
    }
}

fn find(
    draft: &mut Draft<'_>,
    facts: &Facts,
    on: &ParkOn,
    free: &mut Vec<Signal>,
) -> Result<Found, Rejection> {
    if let Some(name) = &on.signal {
        let expires_at = on.timeout_ms.map(|ms| {
            draft
                .env
                .now_ms
                .saturating_add(i64::try_from(ms).unwrap_or(i64::MAX))
        });
        let waiting = WaitingOn::Signal {
            signal: name.clone(),
            expires_at,
        };
        let first = free
            .iter()
            .position(|s| s.name == *name)
            .map(|at| free.remove(at));
        return Ok(match first {
            Some(s) => Found::In(
                waiting,
                Some(Answer {
                    seq: s.seq,
                    id: s.id,
                }),
            ),
            None => Found::Open(waiting),
        });
    }
    if on.budget.is_some() {
        let waiting = WaitingOn::Budget { budget: true };
        let spent = draft.state().budget_exceeded();
        return Ok(if spent {
            Found::Open(waiting)
        } else {
            Found::In(waiting, None)
        });
    }
    let (id, kind, waiting) = match (on.question_id, on.approval_id, on.tool_use_id) {
        (Some(id), _, _) => (
            id,
            ItemKind::Question,
            WaitingOn::Question { question_id: id },
        ),
        (_, Some(id), _) => (
            id,
            ItemKind::Approval,
            WaitingOn::Approval { approval_id: id },
        ),
        (_, _, Some(id)) => (
            id,
            ItemKind::CustomTool,
            WaitingOn::ToolUse { tool_use_id: id },
        ),
        _ => return Err(Code::ParkWithoutCause.into()),
    };
    item(draft, facts, id, kind, waiting)
}

fn item(
    draft: &mut Draft<'_>,
    facts: &Facts,
    id: EventId,
    kind: ItemKind,
    waiting: WaitingOn,
) -> Result<Found, Rejection> {
    if let Some(item) = draft.state().items.get(&id.seq()).filter(|i| i.id == id) {
        if item.kind == kind {
            return Ok(Found::Open(waiting));
        }
        let detail = format!("{id} is a {}, not a {}", item.kind.text(), kind.text());
        return Err(Rejection::new(Code::ParkWithoutCause, detail));
    }
    match facts.items.get(&id) {
        Some(fact) if fact.state.is_some() => Ok(Found::In(waiting, fact.answer)),
        _ => {
            let detail = format!("{id} is no item of this session");
            Err(Rejection::new(Code::ParkWithoutCause, detail))
        }
    }
}

/// Consumes the signals that are in, visibly.
fn consume(draft: &mut Draft<'_>, run: RunRef, found: &[Found]) {
    for f in found {
        if let Found::In(WaitingOn::Signal { signal, .. }, Some(answer)) = f {
            let body = SignalConsumed {
                signal_id: answer.id,
                name: signal.clone(),
            };
            let emit = Emit::system(Some(run));
            draft.emit(EventType::SignalConsumed, emit, Body::SignalConsumed(body));
        }
    }
}

/// Nothing is left to wait for: the same claim goes on with the answers.
fn go_on_at_once(draft: &mut Draft<'_>, run: RunRef, found: &[Found]) -> Reply {
    let answer = |f: &Found| match f {
        Found::In(_, answer) => *answer,
        Found::Open(_) => None,
    };
    let mut answers: Vec<Answer> = found.iter().filter_map(answer).collect();
    answers.sort_unstable_by_key(|a| a.seq);
    answers.dedup_by_key(|a| a.seq);
    if !answers.is_empty() {
        let body = RunInputsTaken {
            event_ids: answers.iter().map(|a| a.id).collect(),
        };
        draft.emit(
            EventType::RunInputsTaken,
            Emit::system(Some(run)),
            Body::RunInputsTaken(body),
        );
    }
    let mut reply = Reply::json(200, &json!({"state": "ready"}));
    reply.inputs = Some(answers);
    reply
}
