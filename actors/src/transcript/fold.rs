//! The fold: what events make of a conversation.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Block, Message, Role};
use crate::ids::EventId;

/// Types of the events that a conversation is made of.
pub const TYPES: &[&str] = &[
    "user.message",
    "user.custom_tool_result",
    "user.question_answer",
    "run.inputs_taken",
    "agent.message",
    "agent.tool_use",
    "agent.tool_result",
    "agent.custom_tool_use",
    "agent.question",
    "agent.context_compacted",
    "item.closed",
];

/// A conversation in the making. Compactions are not applied here: a reader starts after the
/// newest one, with [`summary`] first, or ignores them.
#[derive(Debug, Default)]
pub struct Fold {
    messages: Vec<Message>,
    /// Calls without a result.
    open: BTreeSet<String>,
    /// What is before, or at, this position is summed up.
    summed_up_seq: u64,
}

/// Finds an event of the same session by its id.
pub type Find<'a> = &'a mut dyn FnMut(&str) -> Option<Value>;

impl Fold {
    /// A conversation whose past, up to and with `through_seq`, is summed up: a result of a call
    /// in it is part of the summary too, wherever it came.
    pub fn after_summary(through_seq: u64) -> Self {
        Self {
            summed_up_seq: through_seq,
            ..Self::default()
        }
    }

    /// Whether an event is before, or at, the end of what is summed up.
    fn is_summed_up(&self, id: &str) -> bool {
        EventId::parse(id).is_ok_and(|id| id.seq() <= self.summed_up_seq)
    }

    /// Folds one event, as its envelope; events of other types change nothing.
    pub fn push(&mut self, event: &Value, find: Find<'_>) {
        let content = event.get("content").unwrap_or(&Value::Null);
        match text(event, "type") {
            "run.inputs_taken" => {
                let ids = content.get("event_ids").and_then(Value::as_array);
                for id in ids.into_iter().flatten().filter_map(Value::as_str) {
                    self.taken(event, id, find);
                }
            }
            "agent.message" => {
                let role = match text(content, "role") {
                    "user" => Role::User,
                    _ => Role::Assistant,
                };
                self.add(event, role, words(event));
            }
            kind @ ("agent.tool_use" | "agent.custom_tool_use" | "agent.question") => {
                let block = match content {
                    Value::Null => unreadable(event),
                    content => self.call(kind, text(event, "id"), content),
                };
                self.add(event, Role::Assistant, vec![block]);
            }
            "agent.tool_result" | "user.custom_tool_result" => {
                let is_error = content.get("is_error") == Some(&Value::Bool(true));
                let output = content.get("output").cloned().unwrap_or_default();
                self.result(event, "tool_use_id", output, is_error);
            }
            "user.question_answer" => {
                let output = match content.get("answers") {
                    Some(answers) => answers.clone(),
                    None => json!("dismissed"),
                };
                self.result(event, "question_id", output, false);
            }
            "item.closed" => self.closed(event, content, find),
            _ => {}
        }
    }

    /// The messages so far. The last one may still grow.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The messages.
    pub fn into_messages(self) -> Vec<Message> {
        self.messages
    }

    /// A message of a person stands where a run took it.
    fn taken(&mut self, event: &Value, id: &str, find: Find<'_>) {
        match find(id) {
            Some(message) if text(&message, "type") == "user.message" => {
                self.add(event, Role::User, words(&message));
            }
            // Answers and signals stand where they were accepted, or nowhere.
            Some(_) => {}
            None => {
                let gone = json!({"type": "user.message", "content_state": "missing"});
                self.add(event, Role::User, vec![unreadable(&gone)]);
            }
        }
    }

    fn call(&mut self, kind: &str, id: &str, content: &Value) -> Block {
        self.open.insert(id.to_owned());
        let (name, input) = match kind {
            "agent.question" => ("question", content.clone()),
            _ => (
                text(content, "name"),
                content.get("input").cloned().unwrap_or_default(),
            ),
        };
        Block::ToolUse {
            id: id.to_owned(),
            name: name.to_owned(),
            input,
        }
    }

    /// The one result of a call. One whose content is gone still answers its call; one whose call
    /// is gone answers nothing a model could see.
    fn result(&mut self, event: &Value, key: &str, output: Value, is_error: bool) {
        let content = event.get("content").unwrap_or(&Value::Null);
        let id = text(content, key).to_owned();
        if content.is_null() {
            // Calls are answered in any order: which one this was went with the content. What is
            // left open is answered by whoever reads to the end.
            return self.add(event, Role::Tool, vec![unreadable(event)]);
        }
        self.open.remove(&id);
        if self.is_summed_up(&id) {
            return;
        }
        let block = Block::ToolResult {
            tool_use_id: id,
            output,
            is_error,
        };
        self.add(event, Role::Tool, vec![block]);
    }

    /// A call that ended without an answer has one all the same.
    fn closed(&mut self, event: &Value, content: &Value, find: Find<'_>) {
        let (id, state) = (text(content, "item_id"), text(content, "state"));
        let ended = matches!(state, "cancelled" | "expired" | "superseded");
        if !ended || self.is_summed_up(id) {
            return;
        }
        let is_call = self.open.remove(id)
            || find(id).is_some_and(|item| {
                let kind = text(&item, "type");
                let readable = item.get("content").is_some_and(|c| !c.is_null());
                readable
                    && matches!(
                        kind,
                        "agent.tool_use" | "agent.custom_tool_use" | "agent.question"
                    )
            });
        if is_call {
            let block = Block::ToolResult {
                tool_use_id: id.to_owned(),
                output: json!(state),
                is_error: true,
            };
            self.add(event, Role::Tool, vec![block]);
        }
    }

    /// Adds to the last message where that is of the same role.
    fn add(&mut self, event: &Value, role: Role, blocks: Vec<Block>) {
        if blocks.is_empty() {
            return;
        }
        let seq = event.get("seq").and_then(Value::as_u64).unwrap_or(0);
        match self.messages.last_mut().filter(|m| m.role == role) {
            Some(last) => {
                last.content.extend(blocks);
                last.through_seq = seq;
            }
            None => self.messages.push(Message {
                role,
                content: blocks,
                seq,
                through_seq: seq,
            }),
        }
    }
}

/// What stands for everything before a compaction, from its `agent.context_compacted`.
pub fn summary(event: &Value) -> Message {
    let content = event.get("content").unwrap_or(&Value::Null);
    let through_seq = compacted_through(event);
    let block = match content {
        Value::Null => unreadable(event),
        content => Block::Summary {
            text: text(content, "summary").to_owned(),
            through_seq,
        },
    };
    Message {
        role: Role::User,
        content: vec![block],
        seq: through_seq,
        through_seq,
    }
}

/// The last position that a compaction stands for.
pub fn compacted_through(event: &Value) -> u64 {
    let through = event.pointer("/content/through_seq");
    through.and_then(Value::as_u64).unwrap_or(0)
}

/// The texts of a message, or that they cannot be read.
fn words(event: &Value) -> Vec<Block> {
    match event.get("content").filter(|c| !c.is_null()) {
        Some(content) => words_of(content),
        None => vec![unreadable(event)],
    }
}

/// The texts in the content of a message: its `text`, or those of its `blocks`.
pub fn words_of(content: &Value) -> Vec<Block> {
    let block = |text: &str| Block::Text {
        text: text.to_owned(),
    };
    if let Some(text) = content.get("text").and_then(Value::as_str) {
        return match text {
            "" => Vec::new(),
            text => vec![block(text)],
        };
    }
    let blocks = content.get("blocks").and_then(Value::as_array);
    let texts = blocks.into_iter().flatten();
    texts
        .filter_map(|b| b.get("text")?.as_str())
        .map(block)
        .collect()
}

fn unreadable(event: &Value) -> Block {
    Block::Unreadable {
        event_type: text(event, "type").to_owned(),
        content_state: text(event, "content_state").to_owned(),
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests;
