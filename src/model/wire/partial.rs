//! An answer while it arrives, within limits.

use serde_json::{Map, Value};

use crate::model::{ModelAnswer, StopReason, ToolCall};
use longhaul_actors::session::payload::Usage;

/// Most bytes of an answer: its words and the arguments of its calls together. What is longer
/// fits into no event.
pub(in crate::model) const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Most calls of one answer.
pub(in crate::model) const CALLS_MAX: usize = 128;

/// Characters that are kept of the name that a provider gives its model.
const MODEL_CHARS_MAX: usize = 200;

/// What is wrong with a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::model) enum Fault {
    /// It ended before the answer did: worth another try.
    Cut,
    /// The provider says that it failed: worth another try.
    Failed(String),
    /// The provider says that the request is wrong.
    Refused(String),
    /// It makes no sense.
    Nonsense(String),
}

impl Fault {
    pub(super) fn nonsense(what: impl Into<String>) -> Self {
        Self::Nonsense(what.into())
    }
}

/// What has come so far.
#[derive(Debug, Default)]
pub(super) struct Partial {
    text: String,
    calls: Vec<PartialCall>,
    bytes: usize,
    pub(super) usage: Usage,
    pub(super) model: Option<String>,
    pub(super) stop: Option<StopReason>,
}

/// A call so far.
#[derive(Debug)]
pub(super) struct PartialCall {
    /// The provider's number of it within the answer.
    pub(super) index: u64,
    pub(super) id: String,
    pub(super) name: String,
    /// JSON, in pieces.
    arguments: String,
    /// Arguments that came whole.
    pub(super) whole: Option<Map<String, Value>>,
}

impl Partial {
    /// Takes words.
    pub(super) fn text(
        &mut self,
        text: &str,
        deltas: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), Fault> {
        if text.is_empty() {
            return Ok(());
        }
        self.count(text.len())?;
        self.text.push_str(text);
        deltas(text);
        Ok(())
    }

    /// Begins a call.
    pub(super) fn begin_call(&mut self, index: u64, id: &str, name: &str) -> Result<(), Fault> {
        if self.calls.len() >= CALLS_MAX {
            return Err(Fault::nonsense(format!("more than {CALLS_MAX} tool calls")));
        }
        self.count(id.len().saturating_add(name.len()))?;
        let id = match id {
            "" => format!("call_{}", self.calls.len()),
            id => id.to_owned(),
        };
        self.calls.push(PartialCall {
            index,
            id,
            name: name.to_owned(),
            arguments: String::new(),
            whole: None,
        });
        Ok(())
    }

    /// The newest call with this number.
    pub(super) fn call(&mut self, index: u64) -> Option<&mut PartialCall> {
        self.calls.iter_mut().rev().find(|c| c.index == index)
    }

    /// The newest call.
    pub(super) fn last_call(&self) -> Option<&PartialCall> {
        self.calls.last()
    }

    /// Takes a piece of a call's arguments.
    pub(super) fn arguments(&mut self, index: u64, piece: &str) -> Result<(), Fault> {
        self.count(piece.len())?;
        let call = self
            .call(index)
            .ok_or_else(|| Fault::nonsense("arguments of no tool call"))?;
        call.arguments.push_str(piece);
        Ok(())
    }

    fn count(&mut self, bytes: usize) -> Result<(), Fault> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > ANSWER_BYTES_MAX {
            let text = format!("an answer of more than {ANSWER_BYTES_MAX} bytes");
            return Err(Fault::Nonsense(text));
        }
        Ok(())
    }

    /// The answer, if its end has come.
    pub(super) fn answer(self, asked: &str) -> Result<ModelAnswer, Fault> {
        let stop = self.stop.ok_or(Fault::Cut)?;
        let tool_calls: Vec<ToolCall> = self.calls.into_iter().map(PartialCall::finish).collect();
        let stop = match (stop, tool_calls.is_empty()) {
            (StopReason::ToolUse, true) => StopReason::End,
            (StopReason::End, false) => StopReason::ToolUse,
            (stop, _) => stop,
        };
        Ok(ModelAnswer {
            text: self.text,
            tool_calls,
            stop,
            usage: self.usage,
            model: self.model.map_or_else(
                || asked.to_owned(),
                |model| model.chars().take(MODEL_CHARS_MAX).collect(),
            ),
        })
    }
}

impl PartialCall {
    fn finish(self) -> ToolCall {
        let (input, malformed) = match self.whole {
            Some(whole) if self.arguments.is_empty() => (Value::Object(whole), None),
            _ if self.arguments.trim().is_empty() => (Value::Object(Map::new()), None),
            _ => match serde_json::from_str(&self.arguments) {
                Ok(input) => (input, None),
                Err(e) => (Value::String(self.arguments), Some(e.to_string())),
            },
        };
        ToolCall {
            id: self.id,
            name: self.name,
            input,
            malformed,
        }
    }
}

/// A number of tokens; anything else is none.
pub(super) fn tokens(usage: &Value, name: &str) -> Option<u64> {
    usage.get(name).and_then(Value::as_u64)
}

/// A text in a JSON value, or nothing.
pub(super) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// The event's JSON.
pub(super) fn json(data: &str) -> Result<Value, Fault> {
    serde_json::from_str(data)
        .map_err(|e| Fault::Nonsense(format!("an event that is no JSON: {e}")))
}
