//! A session as shown to people: where it is, and why.

use serde_json::{Map, Value, json};

use super::decide::is_paused;
use super::journal;
use super::payload::WaitingOn;
use super::projection::Target;
use super::state::{LiveRun, Phase, SettledRun, State};
use crate::time;

/// What the log alone cannot say.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShowExtras<'a> {
    /// What keeps the queued run from being claimed, as the dispatcher sees it.
    pub blocked_by: Option<&'a str>,
    /// The configured most attempts.
    pub attempts_max: u32,
}

/// `GET /v1/sessions/{id}`.
pub fn show(state: &State, extras: ShowExtras<'_>) -> Value {
    let Some(about) = &state.about else {
        return Value::Null;
    };
    let metadata: Map<String, Value> =
        serde_json::from_str(&about.metadata_json).unwrap_or_default();
    let run = state.run.as_ref();
    json!({
        "id": state.id,
        "status": state.status,
        "last_seq": state.last_seq,
        "first_available_seq": state.last_seq.min(1),
        "agent_deployment": about.pin.agent_deployment,
        "agent_deployment_revision_number": about.pin.agent_deployment_revision_number,
        "principal": about.principal,
        "workspace": about.workspace,
        "metadata": metadata,
        "usage": state.usage,
        "usage_by_model": state.spent,
        "inherited_usage": state.inherited_usage,
        "budget": about.budget,
        "budget_exceeded": state.budget_exceeded(),
        "untaken_inputs": state.untaken_count(),
        "forked_from": state.forked.as_ref().map(|f| json!({
            "session_id": f.source,
            "boundary_seq": f.boundary_seq,
        })),
        "waiting_on": run.map_or_else(Vec::new, |r| waiting_on(state, r)),
        "open_items": state.items.values()
            .map(|i| json!({"id": i.id, "kind": i.kind.text()}))
            .collect::<Vec<_>>(),
        "open_steps": journal::shown(state),
        "paused_by": paused_by(state),
        "run": run.map(|r| live(state, r, extras)),
        "last_run": state.last_run.as_ref().map(settled),
        "created_at": time::rfc3339(state.created_at_ms),
        "updated_at": time::rfc3339(state.updated_at_ms),
    })
}

fn paused_by(state: &State) -> Option<&'static str> {
    let parked = state.run.as_ref().is_some_and(|r| r.phase == Phase::Parked);
    match is_paused(state) {
        true => Some("runtime"),
        false => parked.then_some("wait"),
    }
}

fn waiting_on(state: &State, run: &LiveRun) -> Vec<Value> {
    let open = run.waits.iter().filter(|w| !w.done);
    open.map(|w| match &w.on {
        WaitingOn::Signal { .. } | WaitingOn::Budget { .. } => json!(w.on),
        item => {
            let mut value = json!(item);
            let kind = item.item().and_then(|id| state.items.get(&id.seq()));
            if let (Some(object), Some(item)) = (value.as_object_mut(), kind) {
                object.insert("kind".to_owned(), json!(item.kind.text()));
            }
            value
        }
    })
    .collect()
}

fn live(state: &State, run: &LiveRun, extras: ShowExtras<'_>) -> Value {
    let queued = run.phase == Phase::Queued;
    let at = |ms: i64| time::rfc3339(ms);
    let claim = run.claim.as_ref();
    json!({
        "id": run.id,
        "state": run.phase.text(),
        "attempt": run.attempt,
        "attempts_lost": run.lost,
        "attempts_max": extras.attempts_max,
        "trigger": run.trigger,
        "continues": run.continues,
        "next_retry_at": (queued && run.lost > 0).then(|| at(run.not_before_ms)),
        "startup_deadline": claim.filter(|_| run.phase == Phase::Claimed).map(|c| at(c.startup_deadline_ms)),
        "deadline": claim.map(|c| at(c.deadline_ms)),
        "target": state.about.as_ref().map(|a| Target::of(&a.pin).to_string()),
        "runner_id": claim.map(|c| c.runner),
        "blocked_by": extras
            .blocked_by
            .filter(|_| queued)
            .map(|by| if state.now.operation.is_some() { "operation" } else { by }),
    })
}

fn settled(run: &SettledRun) -> Value {
    json!({
        "id": run.id,
        "attempt": run.attempt,
        "outcome": run.outcome,
        "error": run.error,
        "usage": run.usage,
        "cost": run.usage.cost_micros,
        "settled_at": time::rfc3339(run.settled_at_ms),
    })
}
