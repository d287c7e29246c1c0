//! Models: what an agent asks for its next words and tool calls.

mod client;
mod key;
mod prices;
mod retry;
mod routes;
pub mod scripted;
#[cfg(test)]
mod tests;
mod turns;
mod wire;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use longhaul_actors::session::payload::Usage;
use longhaul_actors::transcript::Message;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use prices::Prices;
pub use routes::Routes;

/// Answers requests. A host may bring its own.
pub trait Model: Send + Sync + Debug + 'static {
    /// Its name as in usage and in the journal, `<route>/<model>`: another name is another model,
    /// and no earlier answer counts for it.
    fn name(&self) -> &str;

    /// One answer. Parts of the text are given to `deltas` as they come, where the model streams;
    /// the answer has all of it. When a stream breaks off and is asked for again, the parts of the
    /// first one were given, and the answer may say something else. Dropping the future ends the
    /// call.
    ///
    /// # Errors
    /// See [`ModelError`]. What can be tried again was tried again already.
    fn respond<'a>(
        &'a self,
        request: &'a ModelRequest,
        deltas: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<ModelAnswer, ModelError>>;
}

/// Finds models by name, so that an agent's deployment can say which one it wants.
pub trait ModelRoutes: Send + Sync + Debug + 'static {
    /// The model `<route>/<model>`.
    ///
    /// # Errors
    /// [`ModelError::NotConfigured`] if there is no such route here, or it has no key.
    fn model(&self, name: &str) -> Result<Arc<dyn Model>, ModelError>;
}

/// No routes at all: every name is refused.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoRoutes;

impl ModelRoutes for NoRoutes {
    fn model(&self, name: &str) -> Result<Arc<dyn Model>, ModelError> {
        Err(ModelError::NotConfigured(format!(
            "there is no route to the model {name:?}"
        )))
    }
}

/// What a model is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRequest {
    /// What the agent is told to be.
    pub system: String,
    /// The conversation, ending with a person's or a tool's message.
    pub messages: Arc<Vec<Message>>,
    /// What it may call.
    pub tools: Arc<Vec<ToolSpec>>,
    /// Most tokens of the answer; `None` = the model's own limit.
    pub output_tokens_max: Option<u32>,
    /// The JSON Schema that the answer's text must fit, if any.
    pub schema: Option<Value>,
    /// How many model calls of this session came before: a recorded model answers by it.
    pub call_index: u64,
}

/// A tool as a model sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// Its name: 1 to 64 of `a-z A-Z 0-9 _ -`.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema of its arguments.
    pub input_schema: Value,
}

/// What a model answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelAnswer {
    /// Its words; may be empty.
    pub text: String,
    /// The calls it wants made, in order. Arguments are as the model wrote them.
    pub tool_calls: Vec<ToolCall>,
    /// Why it stopped.
    pub stop: StopReason,
    /// What it cost.
    pub usage: Usage,
    /// The model that answered, as its provider names it.
    pub model: String,
}

/// A call that a model wants made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The provider's id of the call; may be repeated by a bad model.
    pub id: String,
    /// The tool; may be unknown.
    pub name: String,
    /// Its arguments: any JSON, or a string where the model's JSON could not be read.
    pub input: Value,
    /// What was wrong with the arguments' JSON, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub malformed: Option<String>,
}

/// Why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It has said what it wanted.
    End,
    /// It waits for its tool calls.
    ToolUse,
    /// Its answer is as long as it may be.
    Length,
    /// It will not answer this.
    Refusal,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The provider refuses the request, for good.
    #[error("the model refused the request ({status}): {message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The provider's words, without secrets.
        message: String,
    },
    /// The provider is away, overloaded or too slow, and stayed so over all tries.
    #[error("the model cannot be reached after {tries} tries: {message}")]
    Unavailable {
        /// How often it was asked.
        tries: u32,
        /// What happened last.
        message: String,
        /// When it asks to be asked again.
        retry_after: Option<Duration>,
    },
    /// The answer makes no sense, or is too long.
    #[error("the model's answer cannot be read: {0}")]
    Nonsense(String),
    /// There is no such route, or it has no key.
    #[error("{0}")]
    NotConfigured(String),
}

impl ModelError {
    /// The stable code of a run's error.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "model.refused",
            Self::Unavailable { .. } => "model.unavailable",
            Self::Nonsense(_) => "model.nonsense",
            Self::NotConfigured(_) => "model.not_configured",
        }
    }
}
