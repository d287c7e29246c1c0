//! Anthropic's Messages.

use longhaul_actors::session::payload::Usage;
use serde_json::{Map, Value, json};

use super::partial::{Fault, Partial, json as parse, text, tokens};
use crate::model::turns::{Speaker, Turn, turns};
use crate::model::{ModelAnswer, ModelRequest, StopReason};
use crate::sse::Frame;

/// The version of the API that this is written for.
pub(super) const VERSION: &str = "2023-06-01";

/// What is sent. The instructions and the newest turn are marked as ends of what the provider may
/// cache: a conversation grows at its end only, so the next request finds all of this one there.
pub(super) fn body(model: &str, request: &ModelRequest, output_tokens_max: u32) -> Value {
    let mut messages: Vec<Value> = turns(&request.messages).iter().map(message).collect();
    if let Some(Value::Array(blocks)) = messages.last_mut().and_then(|m| m.get_mut("content")) {
        mark_cached(blocks.last_mut());
    }
    let mut body = json!({
        "model": model,
        "max_tokens": request.output_tokens_max.unwrap_or(output_tokens_max),
        "stream": true,
        "messages": messages,
    });
    let mut tools: Vec<Value> = request
        .tools
        .iter()
        .map(|tool| {
            json!({
                "name": tool.name,
                "description": tool.description,
                "input_schema": tool.input_schema,
            })
        })
        .collect();
    if request.system.trim().is_empty() {
        mark_cached(tools.last_mut());
    } else {
        let mut system = vec![json!({"type": "text", "text": request.system})];
        mark_cached(system.last_mut());
        put(&mut body, "system", Value::Array(system));
    }
    if !tools.is_empty() {
        put(&mut body, "tools", Value::Array(tools));
    }
    if let Some(schema) = &request.schema {
        let format = json!({"format": {"type": "json_schema", "schema": schema}});
        put(&mut body, "output_config", format);
    }
    body
}

fn put(body: &mut Value, name: &str, value: Value) {
    if let Value::Object(fields) = body {
        fields.insert(name.to_owned(), value);
    }
}

fn mark_cached(block: Option<&mut Value>) {
    if let Some(block) = block {
        put(block, "cache_control", json!({"type": "ephemeral"}));
    }
}

fn message(turn: &Turn) -> Value {
    let results = turn.results.iter().map(|result| {
        let mut block = json!({
            "type": "tool_result",
            "tool_use_id": result.id,
            "content": result.text,
        });
        if result.is_error {
            put(&mut block, "is_error", Value::Bool(true));
        }
        block
    });
    let texts = turn
        .texts
        .iter()
        .map(|text| json!({"type": "text", "text": text}));
    let calls = turn.calls.iter().map(
        |call| json!({"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}),
    );
    let role = match turn.speaker {
        Speaker::User => "user",
        Speaker::Agent => "assistant",
    };
    let content: Vec<Value> = results.chain(texts).chain(calls).collect();
    json!({"role": role, "content": content})
}

/// One answer, event by event.
#[derive(Debug, Default)]
pub(in crate::model) struct Stream {
    partial: Partial,
    over: bool,
}

impl Stream {
    pub(super) const fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn take(
        &mut self,
        frame: &Frame,
        deltas: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), Fault> {
        let event = parse(&frame.data)?;
        match text(&event, "/type") {
            "message_start" => {
                let message = event.get("message").unwrap_or(&Value::Null);
                let model = text(message, "/model");
                if !model.is_empty() {
                    self.partial.model = Some(model.to_owned());
                }
                self.usage(message.get("usage"));
            }
            "content_block_start" => self.block_start(&event, deltas)?,
            "content_block_delta" => self.block_delta(&event, deltas)?,
            "message_delta" => {
                self.usage(event.get("usage"));
                let stop = text(&event, "/delta/stop_reason");
                if !stop.is_empty() {
                    self.partial.stop = Some(stop_reason(stop));
                }
            }
            "message_stop" => {
                if self.partial.stop.is_none() {
                    return Err(Fault::nonsense("an answer without a stop reason"));
                }
                self.over = true;
            }
            "error" => return Err(failure(&event)),
            // Beats, ends of blocks, and what later versions may bring.
            _ => {}
        }
        Ok(())
    }

    fn block_start(
        &mut self,
        event: &Value,
        deltas: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), Fault> {
        let index = index(event)?;
        let block = event.get("content_block").unwrap_or(&Value::Null);
        match text(block, "/type") {
            "text" => self.partial.text(text(block, "/text"), deltas),
            "tool_use" => {
                let (id, name) = (text(block, "/id"), text(block, "/name"));
                self.partial.begin_call(index, id, name)?;
                let whole = block.get("input").and_then(Value::as_object);
                if let (Some(whole), Some(call)) = (whole, self.partial.call(index))
                    && !whole.is_empty()
                {
                    call.whole = Some(Map::clone(whole));
                }
                Ok(())
            }
            // Thoughts are not part of the answer.
            _ => Ok(()),
        }
    }

    fn block_delta(
        &mut self,
        event: &Value,
        deltas: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), Fault> {
        match text(event, "/delta/type") {
            "text_delta" => self.partial.text(text(event, "/delta/text"), deltas),
            "input_json_delta" => {
                let piece = text(event, "/delta/partial_json");
                self.partial.arguments(index(event)?, piece)
            }
            _ => Ok(()),
        }
    }

    /// Later numbers replace earlier ones: they are totals.
    fn usage(&mut self, usage: Option<&Value>) {
        let Some(usage) = usage else {
            return;
        };
        let take = |name: &str, into: &mut u64| {
            if let Some(count) = tokens(usage, name) {
                *into = count;
            }
        };
        let of: &mut Usage = &mut self.partial.usage;
        take("input_tokens", &mut of.input_tokens);
        take("output_tokens", &mut of.output_tokens);
        take("cache_read_input_tokens", &mut of.cache_read_tokens);
        take("cache_creation_input_tokens", &mut of.cache_write_tokens);
    }

    pub(super) fn answer(self, asked: &str) -> Result<ModelAnswer, Fault> {
        if self.over {
            self.partial.answer(asked)
        } else {
            Err(Fault::Cut)
        }
    }
}

fn index(event: &Value) -> Result<u64, Fault> {
    tokens(event, "index").ok_or_else(|| Fault::nonsense("a content block without an index"))
}

fn stop_reason(word: &str) -> StopReason {
    match word {
        "tool_use" => StopReason::ToolUse,
        "max_tokens" | "model_context_window_exceeded" => StopReason::Length,
        "refusal" => StopReason::Refusal,
        _ => StopReason::End,
    }
}

/// An error amid a stream: the status was 200 already, so its kind decides.
fn failure(event: &Value) -> Fault {
    let kind = text(event, "/error/type");
    let message = format!("{kind}: {}", text(event, "/error/message"));
    match kind {
        "invalid_request_error"
        | "authentication_error"
        | "billing_error"
        | "permission_error"
        | "not_found_error"
        | "request_too_large" => Fault::Refused(message),
        _ => Fault::Failed(message),
    }
}
