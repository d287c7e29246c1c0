//! What tools did to files that are gone is done again, silently: what they said stands.

use std::collections::BTreeMap;

use serde_json::Value;

use super::answer::kept;
use super::drive::Halt;
use super::past::{Past, SandboxStep, TOOL, Use};
use super::tools::{Call, Hands, input_of};
use super::{AgentSpec, AgentTool};
use crate::journal::{Begun, Extra, Journal};
use crate::runner::Attempt;
use crate::runner::history::text_at;

/// Makes every completed call of the sandbox again whose effect this attempt's files do not
/// have, in order. The journal decides which those are.
pub(super) async fn sandbox_steps(
    attempt: &Attempt,
    spec: &AgentSpec,
    journal: &Journal,
    past: &Past,
) -> Result<(), Halt> {
    let plan = &attempt.claim().resume;
    let through = plan.get("through_sequence").and_then(Value::as_u64);
    let mut branches = BTreeMap::new();
    for step in &past.sandbox {
        // A call that is still open walks its own branch again.
        let top = step.path.split('/').next().unwrap_or_default();
        let is_open = past.open.iter().any(|u| top.ends_with(&u.id));
        if through.is_some_and(|t| step.done_seq <= t) || (is_open && !top.is_empty()) {
            continue;
        }
        let Some((spec, call)) = call_of(spec, step) else {
            continue;
        };
        let branch = branches
            .entry(step.path.clone())
            .or_insert_with(|| branch_of(journal, &step.path));
        let hands = Hands {
            attempt,
            spec,
            journal: branch,
        };
        again(&hands, step, &call).await?;
    }
    Ok(())
}

async fn again(hands: &Hands<'_>, step: &SandboxStep, call: &Call) -> Result<(), Halt> {
    let place = hands.step(call, step.name.clone()).at(step.occurrence);
    let begun = hands.journal.begin(place, &input_of(call)).await;
    let Begun::Execute(open) = begun.map_err(Halt::of)? else {
        return Ok(());
    };
    let id = match step
        .name
        .strip_prefix(TOOL)
        .filter(|_| step.path.is_empty())
    {
        Some(id) => id.to_owned(),
        None => open.id().to_string(),
    };
    let output = hands.perform(call, &id).await?;
    tracing::debug!(step = step.name, "made again: its files were gone");
    let value = serde_json::json!({
        "output": output.output, "is_error": output.is_error, "exit_code": output.exit_code,
    });
    let ended = hands.journal.complete(open, kept(&value), Extra::default());
    ended.await.map_err(Halt::of)?;
    Ok(())
}

/// What was called, and by which agent.
fn call_of<'s>(spec: &'s AgentSpec, step: &SandboxStep) -> Option<(&'s AgentSpec, Call)> {
    let mut spec = spec;
    for part in step.path.split('/').filter(|p| !p.is_empty()) {
        let name = part.split('.').next()?;
        spec = match spec.find(name)? {
            AgentTool::Agent(agent) => &agent.agent,
            _ => return None,
        };
    }
    let shown = step.input.as_ref().and_then(|input| {
        let name = text_at(input, "tool")?.to_owned();
        Some((name, input.get("input")?.clone()))
    });
    let (name, input) = shown.clone().or_else(|| step.tool_use.clone())?;
    let call = Call {
        asked: Use {
            id: String::new(),
            name,
            input,
            malformed: None,
            custom: false,
        },
        is_edited: shown.is_some(),
        denied: None,
    };
    Some((spec, call))
}

fn branch_of(journal: &Journal, path: &str) -> Journal {
    let parts = path.split('/').filter(|p| !p.is_empty());
    parts.fold(journal.clone(), |journal, part| journal.branch(part))
}
