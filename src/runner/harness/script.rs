//! The `script` harness: runs the steps of its profile once per run, without a model.
//!
//! Every event carries `step`, the index of its step. A later attempt, and a continuation, walk
//! the script again beside the log of the run chain: a completed step writes nothing, a step
//! begun and not completed runs again under its first tool use. A checkpoint carries its step in
//! its metadata; one that could not be made is left out for good once a later step has begun.

pub mod past;
pub mod step;

use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use serde_json::{Map, Value, json};

use super::{End, Failure, Harness, Settlement};
use crate::runner::attempt::{Attempt, Compute, Parked};
use crate::runner::history::{Chain, text_at};
use crate::runner::sandbox::{Exec, ExecOutput};
use past::{Opened, Past};
use step::{Step, fill, parse_steps};

/// The harness of kind `script`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScriptHarness;

impl Harness for ScriptHarness {
    fn kind(&self) -> &str {
        "script"
    }

    fn run<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<End, Failure>> {
        play(attempt).boxed()
    }
}

async fn play(attempt: &Attempt) -> Result<End, Failure> {
    let steps = parse_steps(attempt.claim().harness())
        .map_err(|reason| Failure::run("harness.script_invalid", reason))?;
    attempt.ready().await?;
    let chain = Chain::read(attempt).await?;
    let past = Past::of(&chain.events);
    let mut player = Player {
        attempt,
        past,
        texts: chain.texts,
        restored_seq: restored_seq(&attempt.claim().resume),
    };
    for (index, step) in steps.iter().enumerate() {
        match player.step(index, step).await? {
            Next::GoOn => {}
            Next::End(end) => return Ok(end),
        }
    }
    Ok(End::Settle(Settlement::succeeded()))
}

/// What follows a step.
enum Next {
    GoOn,
    End(End),
}

struct Player<'a> {
    attempt: &'a Attempt,
    past: Past,
    /// Texts of the messages taken by the chain.
    texts: Vec<String>,
    /// The sandbox has what was done up to this position.
    restored_seq: u64,
}

fn restored_seq(plan: &Value) -> u64 {
    let through = plan.get("through_sequence").and_then(Value::as_u64);
    let checkpoint = text_at(plan, "kind") == Some("checkpoint");
    through.filter(|_| checkpoint).unwrap_or(0)
}

impl Player<'_> {
    async fn step(&mut self, index: usize, step: &Step) -> Result<Next, Failure> {
        let input = self.texts.join("\n");
        let done = self.past.is_complete(index);
        match step {
            Step::Say(text) if !done => {
                let content = json!({"text": fill(text, &input), "step": index});
                self.attempt.event("agent.message", content).await?;
            }
            // Done, and the restored files have it.
            Step::Exec(_) | Step::Write { .. } if self.past.is_within(index, self.restored_seq) => {
            }
            Step::Exec(command) => {
                let call = json!({"command": fill(command, &input)});
                self.sandbox_step(index, "bash", call, done).await?;
            }
            Step::Write { path, text } => {
                let call = json!({"path": fill(path, &input), "text": fill(text, &input)});
                self.sandbox_step(index, "write", call, done).await?;
            }
            Step::Tool {
                name,
                input,
                result,
            } if !done => {
                let (id, _) = self.begin(index, name, input.clone()).await?;
                let content =
                    json!({"tool_use_id": id, "output": result, "is_error": false, "step": index});
                self.attempt.event("agent.tool_result", content).await?;
            }
            // It left no trace of its own: it is over when anything after it happened.
            Step::SleepMs(ms) if !self.past.is_behind(index) => {
                let clock = &self.attempt.door().clock;
                clock
                    .sleep_until(clock.mono() + Duration::from_millis(*ms))
                    .await;
            }
            Step::Question(question) if !done => {
                let content = fill_all(question, &input);
                return self
                    .ask(index, "agent.question", content, "question_id")
                    .await;
            }
            Step::Approval { tool, input: call } if !done => {
                let content = json!({"tool": tool, "input": fill_all(call, &input)});
                return self
                    .ask(
                        index,
                        "agent.action_approval_requested",
                        content,
                        "approval_id",
                    )
                    .await;
            }
            Step::CustomTool { name, input: call } if !done => {
                let content = json!({"name": name, "input": fill_all(call, &input)});
                return self.custom_tool(index, content).await;
            }
            Step::Usage(usage) if !done => {
                let content = with_step(Value::Object(usage.clone()), index);
                self.attempt.event("usage.recorded", content).await?;
            }
            Step::Checkpoint { name } if !done && !self.past.is_behind(index) => {
                self.keep(index, name.as_deref()).await?;
            }
            Step::Fail(message) => {
                let message = fill(message, &input);
                return Ok(Next::End(End::Settle(Settlement::failed(
                    "harness.script_failed",
                    &message,
                ))));
            }
            // Complete in the log.
            _ => {}
        }
        Ok(Next::GoOn)
    }

    /// Opens a tool use, or takes up the one that an earlier attempt opened, with its input.
    async fn begin(
        &mut self,
        index: usize,
        name: &str,
        call: Value,
    ) -> Result<(String, Value), Failure> {
        if let Some(Opened { id, input }) = self.past.opened(index) {
            return Ok((id.clone(), input.clone()));
        }
        let content = json!({"name": name, "input": call, "step": index});
        let id = self.attempt.event("agent.tool_use", content).await?;
        Ok((id, call))
    }

    async fn sandbox_step(
        &mut self,
        index: usize,
        tool: &str,
        call: Value,
        done: bool,
    ) -> Result<(), Failure> {
        let (id, call) = self.begin(index, tool, call).await?;
        let mut result = self.act(tool, &call).await?;
        if done {
            // It ran again only for its files, which went with the sandbox of another attempt;
            // what it said stands in the log.
            return Ok(());
        }
        if let Some(fields) = result.as_object_mut() {
            fields.insert("tool_use_id".to_owned(), id.into());
        }
        let result = with_step(result, index);
        self.attempt.event("agent.tool_result", result).await?;
        Ok(())
    }

    /// Keeps the files. Without a checkpoint the script goes on all the same.
    async fn keep(&self, index: usize, name: Option<&str>) -> Result<(), Failure> {
        let mut about = Map::from_iter([("metadata".to_owned(), json!({"step": index}))]);
        about.extend(name.map(|name| ("name".to_owned(), name.into())));
        match self.attempt.checkpoint_with(about).await {
            Err(lost @ Failure::Lost(_)) => Err(lost),
            Err(error) => {
                tracing::warn!(step = index, %error, "no checkpoint");
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// Runs a command or writes a file, for real.
    async fn act(&self, tool: &str, call: &Value) -> Result<Value, Failure> {
        let sandbox = self.attempt.sandbox();
        if tool == "bash" {
            let command = text_at(call, "command").unwrap_or_default().to_owned();
            let exec = Exec {
                command,
                merge_stderr: true,
                ..Exec::default()
            };
            return Ok(exec_result(&sandbox.exec(exec).await?));
        }
        let path = text_at(call, "path").unwrap_or_default().to_owned();
        let text = text_at(call, "text")
            .unwrap_or_default()
            .as_bytes()
            .to_vec();
        match sandbox.write_file(path, text).await {
            Ok(()) => Ok(json!({"output": "", "is_error": false})),
            // A bad path is the script's own mistake, told to it as to any agent.
            Err(e) if e.code() == "sandbox.path_invalid" => {
                Ok(json!({"output": e.to_string(), "is_error": true}))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Opens an item (or takes up the open one) and parks on it without compute.
    async fn ask(
        &mut self,
        index: usize,
        kind: &str,
        content: Value,
        key: &str,
    ) -> Result<Next, Failure> {
        let id = self.open_item(index, kind, content).await?;
        let parked = self
            .attempt
            .park(vec![json!({key: id})], Compute::Released)
            .await?;
        Ok(match parked {
            Parked::Waiting => Next::End(End::Over),
            Parked::Ready(inputs) => self.take(&inputs),
        })
    }

    /// Asks the outside for a tool call and waits for it with its sandbox in hand.
    async fn custom_tool(&mut self, index: usize, content: Value) -> Result<Next, Failure> {
        let id = self
            .open_item(index, "agent.custom_tool_use", content)
            .await?;
        let parked = self
            .attempt
            .park(vec![json!({"tool_use_id": id})], Compute::Held)
            .await?;
        if let Parked::Ready(inputs) = parked {
            return Ok(self.take(&inputs));
        }
        // Bounded by the server: held too long, the claim is lost and the run stays parked.
        loop {
            let inputs = self.attempt.inputs(self.attempt.wait_max()).await?;
            let answered = inputs.iter().any(|e| {
                e.pointer("/content/tool_use_id").and_then(Value::as_str) == Some(id.as_str())
            });
            self.take(&inputs);
            if answered {
                return Ok(Next::GoOn);
            }
        }
    }

    async fn open_item(
        &mut self,
        index: usize,
        kind: &str,
        content: Value,
    ) -> Result<String, Failure> {
        if let Some(opened) = self.past.opened(index) {
            return Ok(opened.id.clone());
        }
        Ok(self.attempt.event(kind, with_step(content, index)).await?)
    }

    fn take(&mut self, inputs: &[Value]) -> Next {
        self.texts.extend(
            inputs
                .iter()
                .filter_map(crate::runner::protocol::message_text),
        );
        Next::GoOn
    }
}

/// Every event of a script says which step it belongs to.
fn with_step(mut content: Value, index: usize) -> Value {
    if let Some(fields) = content.as_object_mut() {
        fields.insert("step".to_owned(), index.into());
    }
    content
}

/// What an agent is told of a command.
fn exec_result(output: &ExecOutput) -> Value {
    let mut text = lossy(&output.stdout);
    if output.dropped_bytes > 0 {
        text.push_str("\n[the rest of the output was cut]");
    }
    if output.timed_out {
        text.push_str("\n[the command was stopped: its time was over]");
    }
    let mut result = json!({"output": text, "is_error": output.exit_code != Some(0)});
    if let (Some(code), Some(fields)) = (output.exit_code, result.as_object_mut()) {
        fields.insert("exit_code".to_owned(), code.into());
    }
    result
}

/// Bytes as text: what is no UTF-8 becomes U+FFFD, a character cut at the end goes.
fn lossy(bytes: &[u8]) -> String {
    let whole = match std::str::from_utf8(bytes) {
        Err(e) if e.error_len().is_none() => bytes.get(..e.valid_up_to()).unwrap_or_default(),
        _ => bytes,
    };
    String::from_utf8_lossy(whole).into_owned()
}

/// Puts the input into every string of a value.
fn fill_all(value: &Value, input: &str) -> Value {
    match value {
        Value::String(text) => Value::String(fill(text, input)),
        Value::Array(items) => items.iter().map(|v| fill_all(v, input)).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(k, v)| (k.clone(), fill_all(v, input)))
            .collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests;
