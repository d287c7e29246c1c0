//! The journal: steps of a run whose results outlive the attempt that made them.
//!
//! A step is begun durably before its effect, and its result is durable before anything that
//! depends on it. The next attempt of the run (and a run that goes on from a parked or failed
//! one) walks the same code again: finished steps give what they gave, without being run, and the
//! first unfinished one goes on. A finished run is never replayed into the next.
//!
//! ```
//! use longhaul::journal::Journal;
//! use longhaul::runner::{Attempt, BoxFuture, End, Failure, Harness, Settlement};
//! use serde_json::json;
//!
//! #[derive(Debug)]
//! struct Checkout;
//!
//! async fn charge(cents: u64) -> Result<u64, std::io::Error> {
//!     Ok(cents) // a payment provider, say
//! }
//!
//! impl Harness for Checkout {
//!     fn kind(&self) -> &str {
//!         "checkout"
//!     }
//!
//!     fn run<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<End, Failure>> {
//!         Box::pin(async move {
//!             attempt.ready().await?;
//!             let journal = Journal::open(attempt);
//!             // However often this run is tried, a charge that is recorded is not made again.
//!             let paid: u64 = journal.step("charge", &700, async || charge(700).await).await?;
//!             attempt.event("agent.message", json!({"text": format!("paid {paid}")})).await?;
//!             Ok(End::Settle(Settlement::succeeded()))
//!         })
//!     }
//! }
//! ```
//!
//! Steps are told apart by their branch, their name and how often that name came before on that
//! branch: the code must come to them in the same order each time, as it does when everything it
//! asks of the world (time, chance, other services) is a step. Work at the same time goes to
//! branches ([`Journal::branch`]). The input's digest must be what it was, else the step is
//! [`JournalError::Divergence`].

mod core;
mod effect;
mod error;
mod outcome;
mod replay;
mod signals;
mod step;
mod stream;
mod value;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use longhaul_actors::ids::EventId;
use serde::Serialize;
use serde_json::Value;

use crate::runner::Attempt;

pub(crate) use core::Core;
use effect::{End, FailedStep, Known};
pub use error::{JournalError, StepError};
pub use longhaul_actors::session::step::{OnDoubt, OnFailure, StepEffects, StepValue, Verdict};
pub use outcome::{Begun, Ended, Extra, OpenStep};
pub use step::{Retries, Step};
pub use stream::Chunks;
pub use value::{Binary, JournalValue};

/// The journal of one attempt, or a branch of it. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Journal {
    /// `None` = nothing is kept.
    core: Option<Arc<Core>>,
    path: Arc<str>,
}

impl Journal {
    /// The journal of this attempt. Opened again, it is the same one.
    pub fn open(attempt: &Attempt) -> Self {
        Self {
            core: Some(Arc::clone(attempt.journal())),
            path: "".into(),
        }
    }

    /// A journal that keeps nothing, for code outside a run: every step is run every time, a
    /// signal never comes.
    pub fn off() -> Self {
        Self {
            core: None,
            path: "".into(),
        }
    }

    /// A branch, for work that happens at the same time as other work: its steps are counted for
    /// themselves. The `n`th branch of one name is `name#n`, except for the first: branches are to
    /// be made in the same order each time, their steps are not. `name`: any text without `/` and
    /// `#`; all names down to a branch are at most 1,024 bytes.
    #[must_use]
    pub fn branch(&self, name: &str) -> Self {
        let Some(core) = &self.core else {
            return self.clone();
        };
        Self {
            core: Some(Arc::clone(core)),
            path: core.branch(&self.path, name).into(),
        }
    }

    /// The names down to this branch, `a/b`; empty for the run itself.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Runs `effect`, once: when it was completed earlier in this run, its value is given back
    /// instead. What is given back is always read from what is kept, so the first time and every
    /// later one are the same; a value that cannot be read back fails the step.
    ///
    /// `input` is what the effect depends on: only its digest is kept. The result need not be on
    /// disk when this returns, but nothing that this attempt writes afterwards is before it is.
    ///
    /// # Errors
    /// See [`JournalError`]; [`JournalError::Failed`] for an error of `effect`, which is recorded.
    pub async fn step<T, E, I, F, R>(
        &self,
        step: impl Into<Step>,
        input: &I,
        effect: F,
    ) -> Result<T, JournalError>
    where
        T: JournalValue,
        E: Into<StepError>,
        I: Serialize + ?Sized,
        F: FnOnce() -> R,
        R: Future<Output = Result<T, E>>,
    {
        let step = step.into();
        match self.attempt_step(step.clone(), input, effect).await? {
            End::Value(value) => Ok(value),
            End::Failed(failed) => Err(failed.into_error(&step)),
        }
    }

    /// As [`Journal::step`]; a failed `effect` is tried again, in this attempt and in later ones,
    /// `retries.max` times in all. Every failure is recorded.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub async fn step_retrying<T, E, I, F, R>(
        &self,
        step: impl Into<Step>,
        input: &I,
        retries: Retries,
        effect: F,
    ) -> Result<T, JournalError>
    where
        T: JournalValue,
        E: Into<StepError>,
        I: Serialize + ?Sized,
        F: FnMut() -> R,
        R: Future<Output = Result<T, E>>,
    {
        self.retrying(step.into(), input, retries, effect).await
    }

    /// Begins a step. What is answered with [`Begun::Execute`] is durably begun.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub async fn begin<I: Serialize + ?Sized>(
        &self,
        step: impl Into<Step>,
        input: &I,
    ) -> Result<Begun, JournalError> {
        let step = step.into();
        let Some(core) = &self.core else {
            return Ok(Begun::Execute(OpenStep::of_nothing(step.name)));
        };
        let place = core.place(&self.path, &step)?;
        let (digest, input) = core::digest(&step, input)?;
        core.begin(&step, &place, &digest, input).await
    }

    /// Keeps a step's result. Without `extra` and with a value up to 64 KiB it returns at once:
    /// the result is on its way, and all that this attempt says afterwards waits behind it; if it
    /// is refused, the next call says so, and the run cannot settle as succeeded.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub async fn complete(
        &self,
        step: OpenStep,
        value: StepValue,
        extra: Extra,
    ) -> Result<Ended, JournalError> {
        match &self.core {
            Some(core) => core.complete(step, value, extra).await,
            None => Ok(Ended::default()),
        }
    }

    /// Keeps why a step has no result, and `partial`: what came before it failed, for people.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub async fn fail(
        &self,
        step: OpenStep,
        error: StepError,
        partial: Option<Value>,
        extra: Extra,
    ) -> Result<Ended, JournalError> {
        let Some(core) = &self.core else {
            return Ok(Ended::default());
        };
        let partial = partial.map(|p| p.to_string().into());
        let failed = core.fail(&step, &error, partial, extra).await;
        failed.map(|(ended, _)| ended)
    }

    /// Decides what becomes of a step in doubt, or runs a failed one again
    /// ([`Verdict::Retry`]). Begin it again afterwards, with [`Step::at`].
    ///
    /// # Errors
    /// See [`JournalError`].
    pub async fn resolve(&self, step_id: EventId, verdict: Verdict) -> Result<(), JournalError> {
        match &self.core {
            Some(core) => core.resolve(step_id, verdict).await,
            None => Ok(()),
        }
    }

    /// Waits until everything said so far is on disk.
    ///
    /// # Errors
    /// What was refused of it.
    pub async fn flush(&self) -> Result<(), JournalError> {
        match &self.core {
            Some(core) => core.flush().await,
            None => Ok(()),
        }
    }

    /// A step that gives many values, one after the other. They are kept when all were taken:
    /// then a later attempt gets them in order, without `source`. When `source` fails, or the
    /// stream is dropped before its end, what came is kept as the partial of a failed step, and a
    /// later attempt asks `source` again.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub async fn stream<T, E, I, F, S>(
        &self,
        step: impl Into<Step>,
        input: &I,
        source: F,
    ) -> Result<Chunks<T, S>, JournalError>
    where
        T: Serialize + serde::de::DeserializeOwned,
        E: Into<StepError>,
        I: Serialize + ?Sized,
        F: FnOnce() -> S,
        S: Stream<Item = Result<T, E>> + Unpin,
    {
        let step = step.into();
        let begun = self.begin(step.clone(), input).await?;
        Ok(match self.known(&step, begun)? {
            Known::Value(values) => Chunks::kept(step.name, values),
            Known::Open(open) => Chunks::live(self.core.clone(), open, source()),
        })
    }

    /// Waits for a signal (`user.signal`) of this name, the oldest that nobody has taken; its
    /// payload. While there is none, the run is parked without compute and this is
    /// [`JournalError::Parked`]; the run that goes on comes here again and gets it.
    ///
    /// # Errors
    /// See [`JournalError`]; [`JournalError::TimedOut`] after `time_limit`.
    pub async fn wait_for_signal(
        &self,
        name: &str,
        time_limit: Option<Duration>,
    ) -> Result<Value, JournalError> {
        match &self.core {
            Some(core) => signals::wait(self, core, name, time_limit).await,
            None => Err(JournalError::TimedOut {
                name: name.to_owned(),
            }),
        }
    }

    /// Takes the oldest signal of this name, if there is one now; its payload. Never waits for
    /// one.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub async fn poll_signal(&self, name: &str) -> Result<Option<Value>, JournalError> {
        match &self.core {
            Some(core) => signals::poll(self, core, name).await,
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
