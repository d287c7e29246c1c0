//! OpenAI's chat completions, as OpenAI and the many servers like it speak them.

use serde_json::{Map, Value, json};

use super::partial::{Fault, Partial, json as parse, text, tokens};
use crate::model::turns::{Speaker, Turn, turns};
use crate::model::{ModelAnswer, ModelRequest, StopReason};
use crate::sse::Frame;

/// What is sent.
pub(super) fn body(model: &str, request: &ModelRequest) -> Value {
    let mut messages = Vec::new();
    if !request.system.trim().is_empty() {
        messages.push(json!({"role": "system", "content": request.system}));
    }
    for turn in &turns(&request.messages) {
        push_turn(&mut messages, turn);
    }
    let mut body = Map::new();
    body.insert("model".to_owned(), model.into());
    body.insert("messages".to_owned(), Value::Array(messages));
    body.insert("stream".to_owned(), Value::Bool(true));
    body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    if let Some(most) = request.output_tokens_max {
        body.insert("max_completion_tokens".to_owned(), most.into());
    }
    if !request.tools.is_empty() {
        let tool = |tool: &crate::model::ToolSpec| {
            json!({"type": "function", "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema,
            }})
        };
        let tools = request.tools.iter().map(tool).collect();
        body.insert("tools".to_owned(), Value::Array(tools));
    }
    if let Some(schema) = &request.schema {
        let format = json!({"type": "json_schema", "json_schema": {
            "name": "answer",
            "schema": schema,
            "strict": is_strict(schema),
        }});
        body.insert("response_format".to_owned(), format);
    }
    Value::Object(body)
}

fn push_turn(messages: &mut Vec<Value>, turn: &Turn) {
    for result in &turn.results {
        // This format has no place for "it failed" but the words.
        let content = if result.is_error {
            format!("Error: {}", result.text)
        } else {
            result.text.clone()
        };
        messages.push(json!({"role": "tool", "tool_call_id": result.id, "content": content}));
    }
    let words = turn.texts.join("\n\n");
    match turn.speaker {
        Speaker::User if turn.texts.is_empty() => {}
        Speaker::User => messages.push(json!({"role": "user", "content": words})),
        Speaker::Agent => {
            let content = match words.as_str() {
                "" => Value::Null,
                words => words.into(),
            };
            let mut message = json!({"role": "assistant", "content": content});
            let call = |call: &crate::model::turns::CallPart| {
                json!({"id": call.id, "type": "function", "function": {
                    "name": call.name,
                    "arguments": call.input.to_string(),
                }})
            };
            let calls: Vec<Value> = turn.calls.iter().map(call).collect();
            if let (false, Value::Object(fields)) = (calls.is_empty(), &mut message) {
                fields.insert("tool_calls".to_owned(), Value::Array(calls));
            }
            messages.push(message);
        }
    }
}

/// Whether a schema is of the kind that `strict` asks for: every object says all its properties
/// and requires them. Any other is refused with `strict`, and a hint without.
fn is_strict(schema: &Value) -> bool {
    match schema {
        Value::Array(parts) => parts.iter().all(is_strict),
        Value::Object(fields) => {
            let is_object = fields.get("type").is_some_and(|t| {
                t == "object"
                    || t.as_array()
                        .is_some_and(|a| a.iter().any(|t| t == "object"))
            });
            let empty = Map::new();
            let properties = fields
                .get("properties")
                .and_then(Value::as_object)
                .unwrap_or(&empty);
            let required = fields.get("required").and_then(Value::as_array);
            let closed = fields.get("additionalProperties") == Some(&Value::Bool(false));
            let all_required = properties
                .keys()
                .all(|name| required.is_some_and(|r| r.iter().any(|x| x == name)));
            // Below `properties` are names, not keywords.
            let inner = fields
                .iter()
                .all(|(name, value)| match (name.as_str(), value) {
                    ("properties" | "$defs" | "definitions", Value::Object(named)) => {
                        named.values().all(is_strict)
                    }
                    ("enum" | "const" | "default" | "examples", _) => true,
                    (_, value) => is_strict(value),
                });
            (!is_object || (closed && all_required)) && inner
        }
        _ => true,
    }
}

/// One answer, event by event.
#[derive(Debug, Default)]
pub(in crate::model) struct Stream {
    partial: Partial,
    refused: bool,
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
        if frame.data.trim() == "[DONE]" {
            self.over = true;
            return Ok(());
        }
        let event = parse(&frame.data)?;
        if let Some(error) = event.get("error").filter(|e| !e.is_null()) {
            return Err(failure(error));
        }
        let model = text(&event, "/model");
        if self.partial.model.is_none() && !model.is_empty() {
            self.partial.model = Some(model.to_owned());
        }
        self.usage(event.get("usage"));
        let Some(choice) = event.pointer("/choices/0") else {
            return Ok(());
        };
        self.partial.text(text(choice, "/delta/content"), deltas)?;
        let refusal = text(choice, "/delta/refusal");
        self.refused |= !refusal.is_empty();
        self.partial.text(refusal, deltas)?;
        if let Some(Value::Array(calls)) = choice.pointer("/delta/tool_calls") {
            for call in calls {
                self.call(call)?;
            }
        }
        let stop = text(choice, "/finish_reason");
        if !stop.is_empty() {
            self.partial.stop = Some(stop_reason(stop));
        }
        Ok(())
    }

    /// A piece of a call. Some servers leave the number out, or give every call the same: another
    /// id is another call.
    fn call(&mut self, piece: &Value) -> Result<(), Fault> {
        let (id, name) = (text(piece, "/id"), text(piece, "/function/name"));
        let last = self.partial.last_call().map(|c| c.index);
        let index = match tokens(piece, "index") {
            Some(index) => index,
            None if id.is_empty() => last.unwrap_or(0),
            None => last.map_or(0, |last| last.saturating_add(1)),
        };
        match self.partial.call(index) {
            Some(call) if id.is_empty() || call.id == id || name.is_empty() => {
                // Some servers repeat the name with every piece.
                if call.name.is_empty() {
                    name.clone_into(&mut call.name);
                }
            }
            _ => self.partial.begin_call(index, id, name)?,
        }
        self.partial
            .arguments(index, text(piece, "/function/arguments"))
    }

    fn usage(&mut self, usage: Option<&Value>) {
        let Some(usage) = usage.filter(|u| u.is_object()) else {
            return;
        };
        let details = usage.get("prompt_tokens_details").unwrap_or(&Value::Null);
        let read = tokens(details, "cached_tokens").unwrap_or(0);
        let written = tokens(details, "cache_write_tokens").unwrap_or(0);
        let all = tokens(usage, "prompt_tokens").unwrap_or(0);
        let of = &mut self.partial.usage;
        // Here the whole contains its parts; in our usage the kinds are apart.
        of.input_tokens = all.saturating_sub(read).saturating_sub(written);
        of.output_tokens = tokens(usage, "completion_tokens").unwrap_or(0);
        of.cache_read_tokens = read;
        of.cache_write_tokens = written;
    }

    /// An end that was announced is an end, also without the last line: some servers leave it out.
    pub(super) fn answer(mut self, asked: &str) -> Result<ModelAnswer, Fault> {
        if self.over && self.partial.stop.is_none() {
            return Err(Fault::nonsense("an answer without a finish reason"));
        }
        if self.refused && self.partial.stop == Some(StopReason::End) {
            self.partial.stop = Some(StopReason::Refusal);
        }
        self.partial.answer(asked)
    }
}

fn stop_reason(word: &str) -> StopReason {
    match word {
        "tool_calls" | "function_call" => StopReason::ToolUse,
        "length" => StopReason::Length,
        "content_filter" => StopReason::Refusal,
        _ => StopReason::End,
    }
}

/// An error amid a stream. Its code, where there is one, is a status.
fn failure(error: &Value) -> Fault {
    let message = match text(error, "/message") {
        "" => error.to_string(),
        message => message.to_owned(),
    };
    let status = error.get("code").and_then(Value::as_u64);
    let refused = status.is_some_and(|s| (400..500).contains(&s) && s != 408 && s != 429)
        || text(error, "/type") == "invalid_request_error";
    if refused {
        Fault::Refused(message)
    } else {
        Fault::Failed(message)
    }
}
