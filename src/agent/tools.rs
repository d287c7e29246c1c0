//! Tool calls: made in parallel, each a step, each answered exactly once whatever its tool does.

use std::panic::AssertUnwindSafe;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{self, StreamExt};
use longhaul_actors::ids::EventId;
use longhaul_actors::session::payload::RunError;
use longhaul_actors::transcript::{Block, Message};
use serde_json::{Value, json};

use super::answer::kept;
use super::approvals::Gate;
use super::drive::{Driver, Halt, unexpected};
use super::past::{Past, TOOL, Use};
use super::{AgentSpec, AgentTool, Limits, sub, talk};
use crate::journal::{
    Begun, Extra, Journal, OnDoubt, OnFailure, OpenStep, Step, StepEffects, StepValue, Verdict,
};
use crate::runner::{Attempt, Compute, End, Parked};
use crate::tool::{Effects, Tool, ToolError, ToolInput, ToolOutput};

/// What a tool's output ends with when it was too long.
const CUT: &str = "\n[the rest of the output was cut]";
/// What the model is told of a call that nobody knows the end of.
const IN_DOUBT: &str = "the call was cut off: it may or may not have happened";

/// A call that is to be made now, or answered without.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// What is called, with its arguments as approved.
    pub(super) asked: Use,
    /// Whether people changed the arguments.
    pub(super) is_edited: bool,
    /// Why it is not made.
    pub(super) denied: Option<String>,
}

/// How a call is done and by what.
pub(super) struct Hands<'a> {
    pub(super) attempt: &'a Attempt,
    pub(super) spec: &'a AgentSpec,
    pub(super) journal: &'a Journal,
}

impl Driver<'_> {
    /// Does what can be done of the open calls. `Some` = the rest waits for people.
    pub(super) async fn calls(&mut self) -> Result<Option<End>, Halt> {
        let mut now = Vec::new();
        let mut waits = Vec::new();
        for call in self.past.open.clone() {
            match self.gate(&call).await? {
                Gate::Open(call) => now.push(call),
                Gate::Wait(on) => waits.push(on),
            }
        }
        self.make(now).await?;
        if waits.is_empty() {
            return Ok(None);
        }
        match self.attempt.park(waits, Compute::Released).await? {
            Parked::Waiting => Ok(Some(End::Over)),
            Parked::Ready(_) => {
                // All was answered already: the log says how.
                self.past = Past::of_run(self.attempt).await?;
                self.talk = None;
                Ok(None)
            }
        }
    }

    /// Makes calls in parallel. All that were begun are ended before anything is said of a budget.
    async fn make(&mut self, calls: Vec<Call>) -> Result<(), Halt> {
        let hands = Hands {
            attempt: self.attempt,
            spec: self.spec,
            journal: &self.journal,
        };
        let parallel = self.spec.limits.calls_parallel_max.max(1);
        let all: Vec<_> = calls.iter().map(|c| hands.logged(c).boxed()).collect();
        let mut running = stream::iter(all).buffer_unordered(parallel);
        let (mut results, mut spent) = (Vec::new(), false);
        while let Some(result) = running.next().await {
            match result {
                Ok(message) => results.push(message),
                Err(Halt::Budget) => spent = true,
                Err(failure) => return Err(failure),
            }
        }
        drop(running);
        results.sort_by_key(|m| m.seq);
        for result in results {
            self.has_result(result);
        }
        match spent {
            true => Err(Halt::Budget),
            false => Ok(()),
        }
    }

    /// Closes a call in what is known of the run.
    pub(super) fn has_result(&mut self, message: Message) {
        for block in &message.content {
            if let Block::ToolResult { tool_use_id, .. } = block {
                self.past.open.retain(|u| u.id != *tool_use_id);
            }
        }
        // Where the conversation was not read yet, the log has it.
        if let Some(talk) = &mut self.talk {
            talk.results(message);
        }
    }
}

impl Hands<'_> {
    /// Makes a call of the log's: its result is an event. Gives back the result as a message.
    async fn logged(&self, call: &Call) -> Result<Message, Halt> {
        let asked = &call.asked;
        let step = self.step(call, format!("{TOOL}{}", asked.id));
        let begun = self.journal.begin(step, &input_of(call)).await;
        let (output, ended) = match begun.map_err(Halt::of)? {
            Begun::Execute(open) => {
                let output = self.perform(call, &asked.id).await?;
                let ids = self.end(open, &asked.id, &output).await?;
                (output, ids)
            }
            Begun::Failed { error, .. } => {
                let output = ToolOutput::error(error.to_string());
                let ids = self.say(&asked.id, &output).await?;
                (output, ids)
            }
            Begun::InDoubt { step_id, .. } => {
                let output = self.doubted(step_id).await?;
                let ids = self.say(&asked.id, &output).await?;
                (output, ids)
            }
            // Its result would be in the log.
            Begun::Completed { .. } => return Err(unexpected(&format!("{TOOL}{}", asked.id))),
        };
        Ok(talk::result(
            ended,
            &asked.id,
            output.output,
            output.is_error,
        ))
    }

    /// The step of a call.
    pub(super) fn step(&self, call: &Call, name: String) -> Step {
        let tool = self.spec.find(&call.asked.name);
        let is_made = call.denied.is_none() && call.asked.malformed.is_none();
        let step = Step::named(name).at(0);
        let step = match tool.filter(|_| is_made) {
            Some(AgentTool::Own { tool, .. }) => own_step(step, &**tool),
            // What a sub-agent has done is in its own steps.
            _ => step.on_doubt(OnDoubt::Retry).on_failure(OnFailure::Retry),
        };
        match call.is_edited || !self.journal.path().is_empty() {
            true => step.showing_input(),
            false => step,
        }
    }

    /// Keeps a result and says it, in one commit; its position.
    async fn end(&self, open: OpenStep, id: &str, output: &ToolOutput) -> Result<u64, Halt> {
        let extra = Extra {
            usage: None,
            events: vec![("agent.tool_result".to_owned(), result_event(id, output))],
        };
        let value = json!({"is_error": output.is_error});
        let ended = self.journal.complete(open, kept(&value), extra).await;
        let ids = ended.map_err(Halt::of)?.event_ids;
        Ok(ids.first().map_or(0, |id| id.seq()))
    }

    /// Says a result of a step that has ended already; its position.
    async fn say(&self, id: &str, output: &ToolOutput) -> Result<u64, Halt> {
        let content = result_event(id, output);
        let event = self.attempt.event("agent.tool_result", content).await?;
        Ok(crate::runner::history::seq_of(&event))
    }

    /// A call whose end nobody knows is not made again: the model is told.
    async fn doubted(&self, step_id: EventId) -> Result<ToolOutput, Halt> {
        let error = RunError {
            code: "tool.in_doubt".to_owned(),
            message: IN_DOUBT.to_owned(),
        };
        // As a later attempt reads it.
        let output = ToolOutput::error(format!("{}: {}", error.code, error.message));
        let resolved = self.journal.resolve(step_id, Verdict::Failed(error)).await;
        resolved.map_err(Halt::of)?;
        Ok(output)
    }

    /// Makes a call. Whatever becomes of it, there is an output; an `Err` is about the attempt.
    pub(super) fn perform<'a>(
        &'a self,
        call: &'a Call,
        id: &'a str,
    ) -> BoxFuture<'a, Result<ToolOutput, Halt>> {
        async move {
            let asked = &call.asked;
            if let Some(why) = &call.denied {
                return Ok(ToolOutput::error(why.clone()));
            }
            if let Some(why) = &asked.malformed {
                let text = format!("the arguments are no JSON that can be read: {why}");
                return Ok(ToolOutput::error(text));
            }
            let output = match self.spec.find(&asked.name) {
                Some(AgentTool::Own { tool, .. }) => self.own(&**tool, call, id).await,
                Some(AgentTool::Agent(agent)) => {
                    let branch = self.journal.branch(&branch_name(&asked.name, id));
                    let prompt = prompt_of(&asked.input);
                    sub::run(self.attempt, &branch, &agent.agent, &prompt).await?
                }
                // The caller's tools are answered by the caller.
                Some(AgentTool::Custom(_)) | None => {
                    let names: Vec<&str> = self.spec.tools.iter().map(name_of).collect();
                    let names = names.join(", ");
                    ToolOutput::error(format!(
                        "there is no tool {:?}; there are: {names}",
                        asked.name
                    ))
                }
            };
            Ok(fitting(output, &self.spec.limits))
        }
        .boxed()
    }

    async fn own(&self, tool: &dyn Tool, call: &Call, id: &str) -> ToolOutput {
        let time_limit = self.spec.limits.tool_time_max;
        let input = ToolInput {
            call_id: id,
            input: &call.asked.input,
            sandbox: self.attempt.sandbox(),
            time_limit,
        };
        let clock = &self.attempt.door().clock;
        let until = clock.mono() + time_limit;
        // A tool may panic when it is called, and later.
        let made = AssertUnwindSafe(async { tool.call(input).await }).catch_unwind();
        tokio::select! {
            biased;
            made = made => match made {
                Ok(Ok(output)) => output,
                Ok(Err(ToolError { code, message })) => ToolOutput::error(format!("{code}: {message}")),
                Err(_) => {
                    tracing::error!(tool = call.asked.name, "a tool panicked");
                    ToolOutput::error("the tool died")
                }
            },
            () = clock.sleep_until(until) => {
                ToolOutput::error(format!("the tool was stopped after {} s", time_limit.as_secs()))
            }
        }
    }
}

fn own_step(step: Step, tool: &dyn Tool) -> Step {
    let effects = match tool.effects() {
        Effects::External => StepEffects::External,
        Effects::Sandbox => StepEffects::Sandbox,
    };
    let again = tool.is_idempotent() || effects == StepEffects::Sandbox;
    step.revision(tool.revision())
        .effects(effects)
        .on_doubt(match again {
            true => OnDoubt::Retry,
            false => OnDoubt::Surface,
        })
}

fn name_of(tool: &AgentTool) -> &str {
    &tool.spec().name
}

/// What the digest of a call's step is made of.
pub(super) fn input_of(call: &Call) -> Value {
    let mut input = json!({"tool": call.asked.name, "input": call.asked.input});
    let notes = [
        ("malformed", &call.asked.malformed),
        ("denied", &call.denied),
    ];
    if let Some(fields) = input.as_object_mut() {
        for (key, note) in notes {
            fields.extend(note.clone().map(|n| (key.to_owned(), Value::String(n))));
        }
    }
    input
}

/// The branch of a sub-agent's call: its name, and what tells it from other calls.
pub(super) fn branch_name(agent: &str, id: &str) -> String {
    format!("{agent}.{id}")
}

fn prompt_of(input: &Value) -> String {
    match input.get("prompt").and_then(Value::as_str) {
        Some(prompt) => prompt.to_owned(),
        None => input.to_string(),
    }
}

fn result_event(id: &str, output: &ToolOutput) -> Value {
    let mut content = json!({
        "tool_use_id": id, "output": output.output, "is_error": output.is_error,
    });
    if let (Some(code), Some(fields)) = (output.exit_code, content.as_object_mut()) {
        fields.insert("exit_code".to_owned(), code.into());
    }
    content
}

/// The output, cut where it is too long. JSON that is too long becomes text.
fn fitting(output: ToolOutput, limits: &Limits) -> ToolOutput {
    let bytes_max = limits.output_bytes_max;
    let text = match &output.output {
        Value::String(text) if text.len() <= bytes_max => return output,
        Value::String(text) => text.clone(),
        other => {
            let text = other.to_string();
            if text.len() <= bytes_max {
                return output;
            }
            text
        }
    };
    let end = (0..=bytes_max)
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    let kept = text.get(..end).unwrap_or_default();
    ToolOutput {
        output: Value::String(format!("{kept}{CUT}")),
        ..output
    }
}

/// Makes a call whose result is in the journal alone, as a sub-agent does.
pub(super) async fn unlogged(
    hands: &Hands<'_>,
    call: &Call,
    name: String,
) -> Result<ToolOutput, Halt> {
    let step = hands.step(call, name.clone());
    let begun = hands.journal.begin(step, &input_of(call)).await;
    match begun.map_err(Halt::of)? {
        Begun::Execute(open) => {
            let id = open.id().to_string();
            let output = hands.perform(call, &id).await?;
            let value = json!({
                "output": output.output, "is_error": output.is_error, "exit_code": output.exit_code,
            });
            let ended = hands.journal.complete(open, kept(&value), Extra::default());
            ended.await.map_err(Halt::of)?;
            Ok(output)
        }
        Begun::Completed { value, .. } => read_output(&value).ok_or_else(|| unexpected(&name)),
        Begun::Failed { error, .. } => Ok(ToolOutput::error(error.to_string())),
        Begun::InDoubt { step_id, .. } => hands.doubted(step_id).await,
    }
}

fn read_output(value: &StepValue) -> Option<ToolOutput> {
    let StepValue::Json(json) = value else {
        return None;
    };
    let value: Value = serde_json::from_slice(json).ok()?;
    let code = value.get("exit_code").and_then(Value::as_i64);
    Some(ToolOutput {
        output: value.get("output")?.clone(),
        is_error: value.get("is_error")?.as_bool()?,
        exit_code: code.and_then(|c| c.try_into().ok()),
    })
}
