//! Summing up: when the conversation has grown too long, the model writes what stands for it.

use std::sync::Arc;

use longhaul_actors::transcript::{Block, Message, Role};
use serde_json::json;

use super::answer::{cut, kept, priced};
use super::drive::{Driver, Halt, unexpected};
use super::past::COMPACT;
use crate::journal::{Begun, Extra, OnDoubt, OnFailure, Step};
use crate::model::{ModelError, ModelRequest};

/// What the model is asked for.
const ASK: &str = "Sum up this conversation so that you can go on from your summary alone: it will \
     stand for everything above. Keep what was asked for and what is still open, what was decided \
     and why, names, paths, numbers and errors word for word, and what comes next. Call no tool.";

impl Driver<'_> {
    /// Whether the last answer's input was longer than it may be.
    pub(super) fn is_too_long(&self) -> bool {
        let limit = self.spec.limits.compact_at_tokens;
        limit.is_some_and(|limit| self.past.input_tokens > limit)
    }

    /// Lets a summary stand for the conversation so far, but for a last word that nobody has
    /// answered yet.
    pub(super) async fn compact(&mut self) -> Result<(), Halt> {
        let all = self.talk().await?.messages();
        let (mut messages, through_seq) = summed_up(&all);
        self.past.input_tokens = 0;
        // Nothing, or nothing since the last time.
        if messages.is_empty() || through_seq <= summed_up_before(&all) {
            return Ok(());
        }
        messages.push(Message::text(Role::User, ASK));
        let request = ModelRequest {
            messages: Arc::new(messages),
            schema: None,
            ..self.request().await?
        };
        let step = Step::named(COMPACT)
            .at(self.past.compacts)
            .on_doubt(OnDoubt::Retry)
            .on_failure(OnFailure::Retry);
        let begun = self.journal.begin(step, &self.digest).await;
        let open = match begun.map_err(Halt::of)? {
            Begun::Execute(open) => open,
            _ => return Err(unexpected(COMPACT)),
        };
        let answer = match self.spec.model.respond(&request, &mut |_| {}).await {
            Ok(answer) if answer.text.trim().is_empty() => {
                let error = ModelError::Nonsense("the summary is empty".to_owned());
                let spent = Some(priced(&answer, self.spec.prices));
                return Err(self.not_answered(open, &error, spent).await);
            }
            Ok(answer) => answer,
            Err(error) => return Err(self.not_answered(open, &error, None).await),
        };
        let content = json!({"summary": cut(&answer.text), "through_seq": through_seq});
        let extra = Extra {
            usage: Some(priced(&answer, self.spec.prices)),
            events: vec![("agent.context_compacted".to_owned(), content)],
        };
        let value = json!({"call_index": self.call_index, "input_tokens": 0});
        let ended = self.journal.complete(open, kept(&value), extra).await;
        ended.map_err(Halt::of)?;
        self.past.compacts += 1;
        self.call_index = self.call_index.saturating_add(1);
        // The log has it as it is from now on.
        self.talk = None;
        Ok(())
    }
}

/// What is summed up, and up to where. A last word that nobody has answered stays: also one that
/// was said while the last calls were under way, before their results in the log.
fn summed_up(all: &[Message]) -> (Vec<Message>, u64) {
    let through = |messages: &[Message]| messages.iter().map(|m| m.through_seq).max().unwrap_or(0);
    match all.split_last() {
        Some((last, before)) if last.role == Role::User => {
            let said_before = last.seq.saturating_sub(1);
            (before.to_vec(), through(before).min(said_before))
        }
        _ => (all.to_vec(), through(all)),
    }
}

/// Up to where the conversation is summed up already.
fn summed_up_before(all: &[Message]) -> u64 {
    let first = all.first().and_then(|m| m.content.first());
    match first {
        Some(Block::Summary { through_seq, .. }) => *through_seq,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(role: Role, seq: u64) -> Message {
        Message {
            seq,
            through_seq: seq,
            ..Message::text(role, "x")
        }
    }

    #[test]
    fn a_last_word_that_nobody_answered_is_left_out() {
        let talk = [
            said(Role::User, 3),
            said(Role::Assistant, 5),
            said(Role::User, 9),
        ];
        assert_eq!(summed_up(&talk), (talk[..2].to_vec(), 5));
        assert_eq!(summed_up(&talk[..2]), (talk[..2].to_vec(), 5));
        assert_eq!(summed_up(&talk[..1]), (Vec::new(), 0));
    }

    #[test]
    fn a_word_said_while_tools_were_at_work_is_left_out_too() {
        // As a model gets it: the results behind their calls.
        let talk = [
            said(Role::User, 3),
            said(Role::Assistant, 15),
            said(Role::Tool, 24),
            said(Role::User, 20),
        ];
        assert_eq!(summed_up(&talk), (talk[..3].to_vec(), 19));
    }
}
