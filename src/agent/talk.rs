//! The conversation as the next model call gets it.
//!
//! It starts as the projection of the log and grows as that would. One thing differs: results
//! stand right behind the calls that they answer, whatever was said between the two, because
//! models insist on it.

use std::sync::Arc;

use longhaul_actors::transcript::{Block, Message, Role};
use serde_json::Value;

/// Messages that only grow at their end.
#[derive(Debug, Clone, Default)]
pub(super) struct Talk(Arc<Vec<Message>>);

impl Talk {
    /// From the log.
    pub(super) fn of(messages: Vec<Message>) -> Self {
        let mut talk = Self::default();
        for message in messages {
            match message.role {
                Role::Tool => talk.results(message),
                _ => talk.push(message),
            }
        }
        talk
    }

    /// For a model.
    pub(super) fn messages(&self) -> Arc<Vec<Message>> {
        Arc::clone(&self.0)
    }

    /// Adds to the last message where that is of the same role.
    pub(super) fn push(&mut self, message: Message) {
        let messages = Arc::make_mut(&mut self.0);
        add(messages, message);
    }

    /// Adds results behind the calls that they answer.
    pub(super) fn results(&mut self, message: Message) {
        let messages = Arc::make_mut(&mut self.0);
        let asked = messages
            .iter()
            .rposition(|m| m.role == Role::Assistant && calls(m) > 0);
        // Without their calls (those may be summed up) they stand where they came.
        let Some(asked) = asked else {
            return add(messages, message);
        };
        match messages.get_mut(asked + 1).filter(|m| m.role == Role::Tool) {
            Some(results) => join(results, message),
            None => messages.insert(asked + 1, message),
        }
    }
}

fn add(messages: &mut Vec<Message>, message: Message) {
    if message.content.is_empty() {
        return;
    }
    match messages.last_mut().filter(|m| m.role == message.role) {
        Some(last) => join(last, message),
        None => messages.push(message),
    }
}

fn join(to: &mut Message, message: Message) {
    to.through_seq = to.through_seq.max(message.through_seq);
    to.content.extend(message.content);
}

fn calls(message: &Message) -> usize {
    let is_call = |b: &&Block| matches!(b, Block::ToolUse { .. });
    message.content.iter().filter(is_call).count()
}

/// A result as a message, at its position.
pub(super) fn result(seq: u64, id: &str, output: Value, is_error: bool) -> Message {
    Message {
        role: Role::Tool,
        content: vec![Block::ToolResult {
            tool_use_id: id.to_owned(),
            output,
            is_error,
        }],
        seq,
        through_seq: seq,
    }
}

/// A text as a message, at its position.
pub(super) fn text(role: Role, seq: u64, text: impl Into<String>) -> Message {
    Message {
        seq,
        through_seq: seq,
        ..Message::text(role, text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(id: &str, seq: u64) -> Message {
        let block = Block::ToolUse {
            id: id.to_owned(),
            name: "t".to_owned(),
            input: json!({}),
        };
        Message {
            content: vec![block],
            ..text(Role::Assistant, seq, "")
        }
    }

    fn roles(talk: &Talk) -> Vec<(Role, usize)> {
        let messages = talk.messages();
        messages.iter().map(|m| (m.role, m.content.len())).collect()
    }

    #[test]
    fn results_stand_behind_their_calls_whatever_was_said_between() {
        let log = vec![
            text(Role::User, 1, "go"),
            call("a", 3),
            call("b", 4),
            result(6, "b", json!("2"), false),
            text(Role::User, 8, "hurry"),
            result(9, "a", json!("1"), false),
        ];
        let talk = Talk::of(log);
        let wanted = [
            (Role::User, 1),
            (Role::Assistant, 2),
            (Role::Tool, 2),
            (Role::User, 1),
        ];
        assert_eq!(roles(&talk), wanted);
    }

    #[test]
    fn a_result_whose_call_is_summed_up_stays_where_it_came() {
        let talk = Talk::of(vec![
            text(Role::User, 1, "summary"),
            result(6, "b", json!("2"), false),
        ]);
        assert_eq!(roles(&talk), [(Role::User, 1), (Role::Tool, 1)]);
    }

    #[test]
    fn words_of_one_role_are_one_message() {
        let mut talk = Talk::of(vec![text(Role::User, 1, "a")]);
        talk.push(text(Role::User, 2, "b"));
        talk.push(Message {
            content: Vec::new(),
            ..text(Role::Assistant, 3, "")
        });
        assert_eq!(roles(&talk), [(Role::User, 2)]);
        assert_eq!(talk.messages()[0].through_seq, 2);
    }
}
