//! What a run came to.

use longhaul_actors::ids::SessionId;
use longhaul_actors::session::payload::Usage;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::AgentError;

/// What a run came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The agent's last words in it; empty if it said nothing.
    pub text: String,
    /// The session; another one than was asked where a resume forked.
    pub session_id: SessionId,
    /// The run; of those that went on from each other, the last.
    pub run_id: String,
    /// How it ended.
    pub outcome: Outcome,
    /// What this run spent since the prompt.
    pub usage: Usage,
    /// What the session has spent in all its runs, this one included.
    pub session_usage: Usage,
    /// What a fork's shared past had cost before; none of it was spent again.
    pub inherited_usage: Usage,
    /// How often the model answered in it since the prompt.
    pub turns: u32,
    /// The revision of the agent's deployment that the session runs.
    pub revision: u32,
    /// The last position of the log that this answer has seen.
    pub seq: u64,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It came to its end.
    Succeeded,
    /// It failed. [`super::AgentHandle::resume`] goes on from what it has done.
    Failed {
        /// `area.reason`.
        code: String,
        /// For people.
        message: String,
    },
    /// Somebody interrupted it.
    Interrupted,
    /// The session was cancelled.
    Canceled,
    /// It is parked until people answer, a signal comes or the budget is raised: as
    /// `waiting_on` of `run.parked`. It goes on by itself then; [`super::AgentHandle::wait`]
    /// waits for it.
    Waiting(Vec<Value>),
}

/// An answer that was read as JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct Typed<T> {
    /// What it says.
    pub value: T,
    /// The answer itself.
    pub answer: Answer,
}

impl Answer {
    /// Whether the run succeeded.
    pub fn is_success(&self) -> bool {
        self.outcome == Outcome::Succeeded
    }

    /// Itself, if the run succeeded.
    ///
    /// # Errors
    /// [`AgentError::Unfinished`] with the answer.
    pub fn succeeded(self) -> Result<Self, AgentError> {
        match self.is_success() {
            true => Ok(self),
            false => Err(AgentError::Unfinished(Box::new(self))),
        }
    }

    /// Its text read as JSON.
    ///
    /// # Errors
    /// [`AgentError::Unfinished`] if the run did not succeed, [`AgentError::Untyped`] if the text
    /// is no `T`.
    pub fn typed<T: DeserializeOwned>(self) -> Result<Typed<T>, AgentError> {
        let answer = self.succeeded()?;
        match serde_json::from_str(&answer.text) {
            Ok(value) => Ok(Typed { value, answer }),
            Err(why) => Err(AgentError::Untyped {
                why: why.to_string(),
                answer: Box::new(answer),
            }),
        }
    }
}
