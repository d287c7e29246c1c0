//! What can go wrong with a step.

use longhaul_actors::ids::EventId;
use longhaul_actors::session::payload::RunError;

use crate::runner::calls::CallError;
use crate::runner::harness::Failure;
use crate::runner::protocol::Problem;

/// Longest message of a failed step that is kept, characters.
const MESSAGE_CHARS_MAX: usize = 4_000;

/// Why a step has no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The run is parked, without compute: return [`End::Over`](crate::runner::End::Over) (`?` in
    /// a harness does). Another run goes on from here when what it waits for has come.
    #[error("the run is parked")]
    Parked,
    /// The step was begun before with another input, or by another revision of the code: an
    /// earlier result does not count, and nothing is run in its place.
    #[error("step {name:?} at {occurrence} of path {path:?} was begun with another input")]
    Divergence {
        /// The step as it was begun first.
        step_id: Option<EventId>,
        /// Its name.
        name: String,
        /// Its branch.
        path: String,
        /// How many steps of its name came before it there.
        occurrence: u32,
    },
    /// An earlier attempt began the step and said nothing more: its effect may or may not have
    /// happened. [`Journal::resolve`](super::Journal::resolve) decides.
    #[error("step {name:?} is in doubt: attempt {started_attempt} of {started_run_id} began it")]
    InDoubt {
        /// The step.
        step_id: EventId,
        /// Its name.
        name: String,
        /// The attempt that began it.
        started_attempt: u32,
        /// That attempt's run.
        started_run_id: String,
    },
    /// The step failed, now or in an earlier attempt, and is not to be tried again.
    #[error("step {name:?} failed after {failures} tries: {error}")]
    Failed {
        /// The step.
        step_id: EventId,
        /// Its name.
        name: String,
        /// Why, as recorded.
        error: StepError,
        /// How often it has failed, over all attempts.
        failures: u32,
    },
    /// The session has spent its budget: no step may begin. Park on `{"budget": true}`.
    #[error("the session's budget is spent")]
    BudgetExceeded,
    /// The signal did not come in time. The same wait gives the same answer when it is replayed.
    #[error("signal {name:?} did not come in time")]
    TimedOut {
        /// Its name.
        name: String,
    },
    /// A value cannot be written as JSON, or cannot be read back as the type that is asked for.
    #[error("step {name:?}: {reason}")]
    Value {
        /// The step.
        name: String,
        /// What does not fit.
        reason: String,
    },
    /// A name, path or key is empty, too long or has characters that it must not have.
    #[error("{0}")]
    Invalid(String),
    /// The claim is gone: stop at once. Carries the server's reason.
    #[error("the claim is lost ({0})")]
    Lost(String),
    /// The server refused; among others `journal.value_unavailable` (the step is completed and
    /// its value is gone), `step.limit` (too many are open) and `event.too_large`.
    #[error("{}: {}", .0.code, .0.detail)]
    Refused(Box<Problem>),
}

impl From<CallError> for JournalError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Lost(reason) => Self::Lost(reason),
            CallError::Refused(problem) if problem.code == "run.budget_exceeded" => {
                Self::BudgetExceeded
            }
            CallError::Refused(problem) => Self::Refused(problem),
        }
    }
}

impl From<JournalError> for Failure {
    fn from(error: JournalError) -> Self {
        let code = match &error {
            JournalError::Parked => return Self::Parked,
            JournalError::Lost(reason) => return Self::Lost(reason.clone()),
            JournalError::Refused(problem) => problem.code.clone(),
            JournalError::Divergence { .. } => "journal.divergence".to_owned(),
            JournalError::InDoubt { .. } => "journal.in_doubt".to_owned(),
            JournalError::Failed { error, .. } => error.code.clone(),
            JournalError::BudgetExceeded => "run.budget_exceeded".to_owned(),
            JournalError::TimedOut { .. } => "signal.timed_out".to_owned(),
            JournalError::Value { .. } => "journal.value_invalid".to_owned(),
            JournalError::Invalid(_) => "journal.step_invalid".to_owned(),
        };
        Self::run(&code, error.to_string())
    }
}

/// Why a step failed, as it is recorded. Any [`std::error::Error`] becomes one by `?` or `into`;
/// its code is `step.failed` then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepError {
    /// `area.reason`.
    pub code: String,
    /// For people; cut after 4,000 characters when it is recorded.
    pub message: String,
}

impl StepError {
    /// With a code of its own.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            message: message.into(),
        }
    }

    /// As it was recorded.
    pub(super) fn recorded(error: RunError) -> Self {
        Self {
            code: error.code,
            message: error.message,
        }
    }

    /// As it is recorded.
    pub fn to_run_error(&self) -> RunError {
        RunError {
            code: self.code.clone(),
            message: self.message.chars().take(MESSAGE_CHARS_MAX).collect(),
        }
    }
}

impl std::fmt::Display for StepError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl<E: std::error::Error> From<E> for StepError {
    fn from(error: E) -> Self {
        Self::new("step.failed", error.to_string())
    }
}
