//! A step around the effect that it stands for.

use std::future::Future;

use longhaul_actors::ids::EventId;
use serde::Serialize;

use super::{
    Begun, Extra, Journal, JournalError, JournalValue, OnFailure, OpenStep, Retries, Step,
    StepError,
};

impl Journal {
    /// One try: the value, or how often it has failed by now.
    pub(super) async fn attempt_step<T, E, I, R>(
        &self,
        step: Step,
        input: &I,
        effect: impl FnOnce() -> R,
    ) -> Result<End<T>, JournalError>
    where
        T: JournalValue,
        E: Into<StepError>,
        I: Serialize + ?Sized,
        R: Future<Output = Result<T, E>>,
    {
        let begun = self.begin(step.clone(), input).await?;
        let open = match self.known(&step, begun) {
            Ok(Known::Value(value)) => return Ok(End::Value(value)),
            Ok(Known::Open(open)) => open,
            Err(JournalError::Failed {
                step_id,
                error,
                failures,
                ..
            }) => {
                return Ok(End::Failed(FailedStep {
                    step_id,
                    error,
                    failures,
                }));
            }
            Err(error) => return Err(error),
        };
        self.end(open, effect().await.map_err(Into::into)).await
    }

    pub(super) async fn retrying<T, E, I, R>(
        &self,
        mut step: Step,
        input: &I,
        retries: Retries,
        mut effect: impl FnMut() -> R,
    ) -> Result<T, JournalError>
    where
        T: JournalValue,
        E: Into<StepError>,
        I: Serialize + ?Sized,
        R: Future<Output = Result<T, E>>,
    {
        if let (Some(core), None) = (&self.core, &step.key) {
            // Every try is the same step.
            step.occurrence = Some(core.place(&self.path, &step)?.occurrence);
        }
        let mut failures = 0;
        loop {
            let failed = match self.attempt_step(step.clone(), input, &mut effect).await? {
                End::Value(value) => return Ok(value),
                End::Failed(failed) => failed,
            };
            // A journal that keeps nothing counts nothing.
            failures = failed.failures.max(failures + 1);
            if failures > retries.max {
                return Err(failed.into_error(&step));
            }
            if let Some(core) = &self.core {
                core.pause(retries.pause_after(failures)).await;
            }
            step.on_failure = OnFailure::Retry;
        }
    }

    /// What is known of a step, as a value of the type that is asked for.
    pub(super) fn known<T: JournalValue>(
        &self,
        step: &Step,
        begun: Begun,
    ) -> Result<Known<T>, JournalError> {
        let name = step.name.clone();
        match begun {
            Begun::Execute(open) => Ok(Known::Open(open)),
            Begun::Completed { value, .. } => {
                T::from_kept(&value)
                    .map(Known::Value)
                    .map_err(|error| JournalError::Value {
                        name,
                        reason: error.message,
                    })
            }
            Begun::Failed {
                step_id,
                error,
                failures,
            } => Err(JournalError::Failed {
                step_id,
                name,
                error,
                failures,
            }),
            Begun::InDoubt {
                step_id,
                started_attempt,
                started_run_id,
            } => Err(JournalError::InDoubt {
                step_id,
                name,
                started_attempt,
                started_run_id,
            }),
        }
    }

    /// Records how a step ended.
    pub(super) async fn end<T: JournalValue>(
        &self,
        open: OpenStep,
        result: Result<T, StepError>,
    ) -> Result<End<T>, JournalError> {
        let kept = result.and_then(|value| {
            let kept = value.to_kept()?;
            // What is given back is what a later attempt will get.
            Ok((T::from_kept(&kept)?, kept))
        });
        let Some(core) = &self.core else {
            return Ok(match kept {
                Ok((value, _)) => End::Value(value),
                Err(error) => End::Failed(FailedStep::new(&open, error, 1)),
            });
        };
        let (value, kept) = match kept {
            Ok(kept) => kept,
            Err(error) => {
                let (_, failures) = core.fail(&open, &error, None, Extra::default()).await?;
                return Ok(End::Failed(FailedStep::new(&open, error, failures)));
            }
        };
        match core.complete_or_fail(open, kept).await? {
            None => Ok(End::Value(value)),
            Some(failed) => Ok(End::Failed(failed)),
        }
    }
}

/// What is known of a step.
pub(super) enum Known<T> {
    Value(T),
    Open(OpenStep),
}

/// How a step ended.
pub(super) enum End<T> {
    Value(T),
    Failed(FailedStep),
}

/// A step whose failure is recorded.
#[derive(Debug)]
pub(super) struct FailedStep {
    pub(super) step_id: EventId,
    pub(super) error: StepError,
    pub(super) failures: u32,
}

impl FailedStep {
    pub(super) fn new(open: &OpenStep, error: StepError, failures: u32) -> Self {
        Self {
            step_id: open.id,
            error,
            failures,
        }
    }

    pub(super) fn into_error(self, step: &Step) -> JournalError {
        JournalError::Failed {
            step_id: self.step_id,
            name: step.name.clone(),
            error: self.error,
            failures: self.failures,
        }
    }
}
