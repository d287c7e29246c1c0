//! Harnesses: the code that turns inputs into agent events. A host adds its own by implementing
//! [`Harness`] and registering it; see `docs/harnesses.md`.

pub mod agent;
pub mod process;
pub mod script;

use std::fmt::Debug;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::attempt::Attempt;
use super::calls::CallError;
use super::sandbox::SandboxError;

/// The harness kind that no runner of ours drives: the host polls for claims by itself.
pub const EXTERNAL: &str = "external";

/// Turns the inputs of a run into agent events.
pub trait Harness: Send + Sync + Debug + 'static {
    /// The `kind` of the harness profiles that it serves.
    fn kind(&self) -> &str;

    /// Works on one attempt, from [`Attempt::ready`] to its end.
    ///
    /// The runner heartbeats meanwhile, and drops the future at once when the claim is lost or
    /// the runner stops: nothing that matters may live only in it. When it resolves, the runner
    /// releases the sandbox and then settles as told.
    fn run<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<End, Failure>>;
}

/// How an attempt ends.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// The run is over.
    Settle(Settlement),
    /// The attempt is given back; another one goes on.
    Release,
    /// There is nothing left to say: the run is parked without compute, or the claim is left to
    /// its lease.
    Over,
}

/// The body of `settle`.
#[derive(Debug, Clone, PartialEq)]
pub struct Settlement(pub Map<String, Value>);

impl Settlement {
    /// It went as it should.
    pub fn succeeded() -> Self {
        Self(Map::from_iter([("outcome".to_owned(), json!("succeeded"))]))
    }

    /// It failed. `code` is `area.reason`, `message` for people.
    pub fn failed(code: &str, message: &str) -> Self {
        // Errors are for people: a page of text is enough, and always fits.
        let message: String = message.chars().take(4_000).collect();
        Self(Map::from_iter([
            ("outcome".to_owned(), json!("failed")),
            (
                "error".to_owned(),
                json!({"code": code, "message": message}),
            ),
        ]))
    }
}

/// Why a harness could not go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The run fails with this error.
    #[error("{code}: {message}")]
    Run {
        /// `area.reason`.
        code: String,
        /// For people.
        message: String,
    },
    /// The claim is gone; nothing more can be said.
    #[error("the claim is lost ({0})")]
    Lost(String),
    /// No failure: the run is parked without compute, and another one goes on. As
    /// [`End::Over`], for `?`.
    #[error("the run is parked")]
    Parked,
}

impl Failure {
    /// The run fails with this error.
    pub fn run(code: &str, message: impl Into<String>) -> Self {
        Self::Run {
            code: code.to_owned(),
            message: message.into(),
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Lost(reason) => Self::Lost(reason),
            CallError::Refused(p) => {
                Self::run("harness.call_refused", format!("{}: {}", p.code, p.detail))
            }
        }
    }
}

impl From<SandboxError> for Failure {
    fn from(error: SandboxError) -> Self {
        Self::run(error.code(), error.to_string())
    }
}
