//! One answer of the model: asked for, and written down with what it cost in one commit.

use bytes::Bytes;
use longhaul_actors::ids::EventId;
use longhaul_actors::session::payload::Usage;
use longhaul_actors::transcript::fold::words_of;
use longhaul_actors::transcript::{Block, Message, Role};
use serde_json::{Value, json};

use super::drive::{Driver, Halt, unexpected};
use super::past::{MODEL, Next, Use, after_answer};
use super::talk;
use super::{AgentSpec, AgentTool, CALLS_MAX};
use crate::journal::{Begun, Extra, OnDoubt, OnFailure, OpenStep, Step, StepError, StepValue};
use crate::model::{ModelAnswer, ModelError, ModelRequest, Prices, StopReason, ToolCall, ToolSpec};
use crate::runner::Failure;

/// Longest JSON of one event that an answer makes, bytes; an event's limit is 1 MiB.
const EVENT_BYTES_MAX: usize = 900 << 10;
/// Longest arguments of all calls of an answer together, bytes of JSON.
const CALLS_BYTES_MAX: usize = 2 << 20;
/// Bytes that are left of a text that is too long; each may take six in JSON.
const CUT_BYTES: usize = 128 << 10;
/// What follows a text that was cut.
const CUT: &str = "\n[the rest was cut]";

/// Digest of what every answer depends on beside the conversation.
pub(super) fn digest(spec: &AgentSpec) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("longhaul agent v1");
    fold_in(&mut hasher, spec);
    hasher.finalize().to_hex().to_string()
}

fn fold_in(hasher: &mut blake3::Hasher, spec: &AgentSpec) {
    let mut part = |text: &str| {
        // Lengths first, so that no two lists read alike.
        hasher.update(&(text.len() as u64).to_be_bytes());
        hasher.update(text.as_bytes());
    };
    part(spec.model.name());
    part(&spec.instructions);
    part(&spec.output_schema.clone().unwrap_or_default().to_string());
    part(&format!("{:?}", spec.limits.output_tokens_max));
    for tool in &spec.tools {
        let s = tool.spec();
        part(&s.name);
        part(&s.description);
        part(&s.input_schema.to_string());
        part(tool.revision());
    }
    for tool in &spec.tools {
        if let AgentTool::Agent(agent) = tool {
            fold_in(hasher, &agent.agent);
        }
    }
}

/// Its tools as its model sees them.
pub(super) fn tool_specs(spec: &AgentSpec) -> Vec<ToolSpec> {
    spec.tools.iter().map(|t| t.spec().clone()).collect()
}

/// What was spent, and on which model.
pub(super) type Spent = (Usage, Option<String>);

/// What an answer costs.
pub(super) fn priced(answer: &ModelAnswer, prices: Prices) -> Spent {
    let usage = match answer.usage.cost_micros {
        0 => prices.priced(answer.usage),
        _ => answer.usage,
    };
    (usage, Some(answer.model.clone()))
}

/// Tokens that the model read.
pub(super) fn tokens_read(usage: &Usage) -> u64 {
    usage
        .input_tokens
        .saturating_add(usage.cache_read_tokens)
        .saturating_add(usage.cache_write_tokens)
}

/// A text that fits into an event.
pub(super) fn cut(text: &str) -> String {
    if json!(text).to_string().len() <= EVENT_BYTES_MAX {
        return text.to_owned();
    }
    let end = (0..=CUT_BYTES)
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    format!("{}{CUT}", text.get(..end).unwrap_or_default())
}

/// A value of a step.
pub(super) fn kept(value: &Value) -> StepValue {
    StepValue::Json(Bytes::from(value.to_string()))
}

impl Driver<'_> {
    /// Asks the model once, with what arrived meanwhile.
    pub(super) async fn ask(&mut self) -> Result<(), Halt> {
        let turns_max = self.spec.limits.turns_max;
        if self.past.turns >= turns_max {
            let text = format!("the model was asked {turns_max} times and has not come to an end");
            return Err(Failure::run("agent.turns_exhausted", text).into());
        }
        self.steer().await?;
        let request = self.request().await?;
        let step = Step::named(MODEL)
            .at(self.past.models)
            .on_doubt(OnDoubt::Retry)
            .on_failure(OnFailure::Retry);
        let begun = self.journal.begin(step, &self.digest).await;
        let open = match begun.map_err(Halt::of)? {
            Begun::Execute(open) => open,
            _ => return Err(unexpected(MODEL)),
        };
        let answer = self.spec.model.respond(&request, &mut |_| {}).await;
        // The conversation grows in place once nobody else holds it.
        drop(request);
        match answer {
            Ok(answer) => self.record(open, &answer).await,
            Err(error) => Err(self.not_answered(open, &error, None).await),
        }
    }

    /// Takes messages that arrived since.
    async fn steer(&mut self) -> Result<(), Halt> {
        let (inputs, is_in_log_only) = self.attempt.inputs_now().await?;
        if is_in_log_only {
            self.talk = None;
        }
        if self.talk.is_none() {
            // They are in the log, which is read next.
            return Ok(());
        }
        for input in &inputs {
            if input.get("type") == Some(&json!("user.message")) {
                let seq = input.get("seq").and_then(Value::as_u64).unwrap_or(0);
                let content = words_of(input.get("content").unwrap_or(&Value::Null));
                let message = Message {
                    content,
                    ..talk::text(Role::User, seq, "")
                };
                self.talk().await?.push(message);
            }
        }
        Ok(())
    }

    /// What the model is asked now.
    pub(super) async fn request(&mut self) -> Result<ModelRequest, Failure> {
        let messages = self.talk().await?.messages();
        Ok(ModelRequest {
            system: self.spec.instructions.clone(),
            messages,
            tools: std::sync::Arc::new(tool_specs(self.spec)),
            output_tokens_max: self.spec.limits.output_tokens_max,
            schema: self.spec.output_schema.clone(),
            call_index: self.call_index,
        })
    }

    /// Says why there is no answer; the run fails.
    /// `spent`: what an answer that is none has cost all the same.
    pub(super) async fn not_answered(
        &self,
        open: OpenStep,
        error: &ModelError,
        spent: Option<Spent>,
    ) -> Halt {
        let told = StepError::new(error.code(), error.to_string());
        let extra = Extra {
            usage: spent,
            events: Vec::new(),
        };
        match self.journal.fail(open, told, None, extra).await {
            Ok(_) => Failure::run(error.code(), error.to_string()).into(),
            Err(error) => Halt::of(error),
        }
    }

    /// Writes an answer down, all of it in one commit.
    async fn record(&mut self, open: OpenStep, answer: &ModelAnswer) -> Result<(), Halt> {
        let calls = calls_of(self.spec, answer);
        let text = cut(&answer.text);
        let mut events = Vec::with_capacity(calls.len() + 1);
        if !text.is_empty() {
            let mut content = json!({ "text": text });
            if matches!(answer.stop, StopReason::Length | StopReason::Refusal)
                && let Some(fields) = content.as_object_mut()
            {
                fields.insert("stop".to_owned(), json!(answer.stop));
            }
            events.push(("agent.message".to_owned(), content));
        }
        events.extend(calls.iter().map(event_of));
        let read = tokens_read(&answer.usage);
        let value = json!({
            "call_index": self.call_index,
            "input_tokens": read,
            "stop": answer.stop,
            "calls": calls.len(),
            "model": answer.model,
        });
        let extra = Extra {
            usage: Some(priced(answer, self.spec.prices)),
            events,
        };
        let ended = self.journal.complete(open, kept(&value), extra).await;
        let ids = ended.map_err(Halt::of)?.event_ids;
        self.said(&text, calls, &ids).await?;
        self.call_index = self.call_index.saturating_add(1);
        self.past.models += 1;
        self.past.turns += 1;
        self.past.input_tokens = read;
        self.past.next = after_answer(&value);
        self.past.passes += u32::from(self.past.next != Next::Model);
        Ok(())
    }

    /// Adds an answer to the conversation, under the ids of its events.
    async fn said(&mut self, text: &str, calls: Vec<Use>, ids: &[EventId]) -> Result<(), Failure> {
        let mut ids = ids.iter();
        let mut message = talk::text(Role::Assistant, 0, text);
        let mut place = |id: &EventId| {
            if message.seq == 0 {
                message.seq = id.seq();
            }
            message.through_seq = id.seq();
        };
        let mut content = Vec::new();
        if !text.is_empty() {
            ids.next().into_iter().for_each(&mut place);
            content.push(Block::Text {
                text: text.to_owned(),
            });
        }
        for (mut call, id) in calls.into_iter().zip(ids) {
            place(id);
            call.id = id.to_string();
            content.push(Block::ToolUse {
                id: call.id.clone(),
                name: call.name.clone(),
                input: call.input.clone(),
            });
            self.past.open.push(call);
        }
        if !content.is_empty() {
            message.content = content;
            self.talk().await?.push(message);
        }
        Ok(())
    }
}

/// The calls of an answer that are made, without ids yet.
fn calls_of(spec: &AgentSpec, answer: &ModelAnswer) -> Vec<Use> {
    let mut bytes = 0;
    let calls = answer.tool_calls.iter().take(CALLS_MAX);
    calls
        .map(|call| {
            let (input, malformed) = arguments(call, &mut bytes);
            let is_custom = matches!(spec.find(&call.name), Some(AgentTool::Custom(_)));
            Use {
                id: String::new(),
                // Names of tools are short: what is longer is no tool.
                name: call.name.chars().take(256).collect(),
                input,
                custom: is_custom && malformed.is_none(),
                malformed,
            }
        })
        .collect()
}

/// Arguments that fit, and what is wrong with them.
fn arguments(call: &ToolCall, bytes: &mut usize) -> (Value, Option<String>) {
    let size = call.input.to_string().len();
    *bytes += size;
    if size > EVENT_BYTES_MAX || *bytes > CALLS_BYTES_MAX {
        let why = format!("the arguments are too long: {size} bytes");
        return (Value::Null, Some(why));
    }
    let malformed = call
        .malformed
        .as_ref()
        .map(|why| why.chars().take(1_000).collect());
    (call.input.clone(), malformed)
}

fn event_of(call: &Use) -> (String, Value) {
    let mut content = json!({"name": call.name, "input": call.input});
    if let (Some(why), Some(fields)) = (&call.malformed, content.as_object_mut()) {
        fields.insert("malformed".to_owned(), why.clone().into());
    }
    let kind = match call.custom {
        true => "agent.custom_tool_use",
        false => "agent.tool_use",
    };
    (kind.to_owned(), content)
}
