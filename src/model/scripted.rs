//! A model that plays back recorded answers: for tests, demonstrations and replays.
//!
//! The answer is picked by how many model calls came before, so it is the same whatever the
//! conversation looks like, and the same again when a call is repeated.

use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use longhaul_actors::env::Door;
use longhaul_actors::session::payload::Usage;
use longhaul_actors::transcript::{Block, Message, Role};

use super::{Model, ModelAnswer, ModelError, ModelRequest, StopReason, ToolCall};
use crate::catalog::profile::{ScriptedAnswer, ScriptedModelProfile, UsageStep};

/// Stands for the last thing that a person said.
const INPUT: &str = "{{input}}";

/// Recorded answers, in order.
#[derive(Debug, Clone)]
pub struct ScriptedModel {
    answers: Vec<ScriptedAnswer>,
    delay: Duration,
    door: Door,
}

impl ScriptedModel {
    /// The name under which it counts usage.
    pub const NAME: &str = "scripted/answers";

    /// Plays back the answers of a profile.
    pub fn new(profile: &ScriptedModelProfile, door: Door) -> Self {
        Self {
            answers: profile.answers.clone(),
            delay: Duration::from_millis(profile.delay_ms),
            door,
        }
    }

    fn answer(&self, request: &ModelRequest) -> Result<ModelAnswer, ModelError> {
        let index = usize::try_from(request.call_index).unwrap_or(usize::MAX);
        let recorded = self.answers.get(index).ok_or_else(|| {
            ModelError::Nonsense(format!(
                "there are {} recorded answers, and this is call {}",
                self.answers.len(),
                request.call_index.saturating_add(1)
            ))
        })?;
        if let Some(message) = &recorded.error {
            return Err(ModelError::Unavailable {
                tries: 1,
                message: message.clone(),
                retry_after: None,
            });
        }
        let tool_calls: Vec<ToolCall> = (0..)
            .zip(&recorded.tool_calls)
            .map(|(i, call): (u32, _)| ToolCall {
                id: format!("call_{index}_{i}"),
                name: call.name.clone(),
                input: call.input.clone(),
                malformed: call.malformed.clone(),
            })
            .collect();
        let implied = match tool_calls.is_empty() {
            true => StopReason::End,
            false => StopReason::ToolUse,
        };
        Ok(ModelAnswer {
            text: recorded.text.replace(INPUT, &last_input(&request.messages)),
            stop: recorded.stop.unwrap_or(implied),
            tool_calls,
            usage: recorded.usage.as_ref().map(usage).unwrap_or_default(),
            model: recorded
                .usage
                .as_ref()
                .and_then(|u| u.model.clone())
                .unwrap_or_else(|| Self::NAME.to_owned()),
        })
    }
}

fn usage(step: &UsageStep) -> Usage {
    Usage {
        input_tokens: step.input_tokens,
        output_tokens: step.output_tokens,
        cache_read_tokens: step.cache_read_tokens,
        cache_write_tokens: step.cache_write_tokens,
        cost_micros: step.cost_micros,
    }
}

/// The text of the last message of a person.
fn last_input(messages: &[Message]) -> String {
    let last = messages.iter().rev().find(|m| m.role == Role::User);
    let texts = last.into_iter().flat_map(|m| &m.content);
    let texts = texts.filter_map(|block| match block {
        Block::Text { text } | Block::Summary { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

impl Model for ScriptedModel {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn respond<'a>(
        &'a self,
        request: &'a ModelRequest,
        deltas: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<ModelAnswer, ModelError>> {
        async move {
            if !self.delay.is_zero() {
                let clock = &self.door.clock;
                clock.sleep_until(clock.mono() + self.delay).await;
            }
            let answer = self.answer(request)?;
            if !answer.text.is_empty() {
                deltas(&answer.text);
            }
            Ok(answer)
        }
        .boxed()
    }
}
