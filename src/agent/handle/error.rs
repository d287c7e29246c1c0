//! Why an agent has no answer.

use crate::error::{Code, Error, OpenError};
use crate::model::ModelError;

use super::Answer;

/// Why there is no answer. What a run itself came to is in the answer: [`Answer::outcome`].
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Refused, or a part failed; the code says what.
    #[error(transparent)]
    Refused(#[from] Error),
    /// The server was not reached, also not when asked again; nothing is known of the effect.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// The folder's runtime does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The agent's model is not to be had here.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// There is no runner in this process that could do the work, or it has ended.
    #[error("nobody does the work of this agent: {0}")]
    Runner(String),
    /// The session ended first.
    #[error("the session ended before there was an answer")]
    Ended,
    /// The session never had a run.
    #[error("nothing was said in this session yet")]
    NoRun,
    /// The run did not succeed.
    #[error("the run did not succeed: {:?}", .0.outcome)]
    Unfinished(Box<Answer>),
    /// The answer is not of the wanted type.
    #[error("the answer is not of the wanted type: {why}")]
    Untyped {
        /// What does not fit.
        why: String,
        /// The answer as it is.
        answer: Box<Answer>,
    },
}

impl AgentError {
    /// `area.reason`, where a refusal is behind it.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(refused) => Some(refused.code),
            _ => None,
        }
    }
}
