//! What all journals of one attempt share: counts, and the way to the server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use longhaul_actors::env::Door;
use longhaul_actors::ids::EventId;
use longhaul_actors::session::command::Input;
use longhaul_actors::session::input::{Origin, parse_one};
use longhaul_actors::session::payload::Usage;
use longhaul_actors::session::step::{
    BeginStep, CompleteStep, FailStep, KEY_BYTES_MAX, NAME_BYTES_MAX, OnDoubt, PATH_BYTES_MAX,
    ResolveStep, StepOp, StepPlace, StepRecorded, StepResult, StepValue, Verdict,
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::OwnedMutexGuard;

use super::replay::{Done, Replay};
use super::{Begun, Ended, Extra, FailedStep, JournalError, OpenStep, Step, StepError};
use crate::runner::calls::{CallError, Calls};
use crate::runner::protocol::{CallAnswer, Claim, ClaimApi};
use crate::runner::queue::{Answered, Told, was_done};

/// Longest value that is sent without waiting for the answer, bytes.
const UNWAITED_BYTES_MAX: usize = 64 << 10;
/// Longest partial of a failed stream that is kept, bytes.
const PARTIAL_BYTES_MAX: usize = 1_000_000;
/// Locks of named steps that are kept before those that nobody holds are let go.
const LOCKS_KEPT: usize = 64;

/// What was spent, and the content of its `usage.recorded`.
type Cost = (Usage, Bytes);

/// What all journals of one attempt share.
#[derive(Debug)]
pub(crate) struct Core {
    calls: Arc<Calls>,
    door: Door,
    run_id: String,
    attempt: u32,
    pub(super) replay: Replay,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Steps so far, by branch and name.
    steps: HashMap<(Arc<str>, String), u32>,
    /// Branches so far, by path.
    branches: HashMap<String, u32>,
    /// One at a time for each step that is named and not counted.
    locks: HashMap<StepPlace, Arc<tokio::sync::Mutex<()>>>,
}

impl Core {
    pub(crate) fn new(
        claim: &Claim,
        calls: Arc<Calls>,
        api: Arc<dyn ClaimApi>,
        door: Door,
    ) -> Self {
        Self {
            calls,
            replay: Replay::of(claim, api, door.clone()),
            door,
            run_id: claim.run_id.clone(),
            attempt: claim.attempt,
            counts: Mutex::default(),
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Every change is complete when the lock is let go.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path of the next branch of this name.
    pub(super) fn branch(&self, parent: &str, name: &str) -> String {
        let path = match parent {
            "" => name.to_owned(),
            parent => format!("{parent}/{name}"),
        };
        let mut counts = self.counts();
        let count = counts.branches.entry(path.clone()).or_default();
        *count += 1;
        match *count {
            1 => path,
            n => format!("{path}#{}", n - 1),
        }
    }

    /// The place of a step; counts it.
    pub(super) fn place(&self, path: &Arc<str>, step: &Step) -> Result<StepPlace, JournalError> {
        let too = |what: &str, text: &str, max: usize| {
            let invalid = text.is_empty() || text.len() > max;
            let detail = || format!("{what} of a step is 1 to {max} bytes: {text:.80?}");
            invalid.then(|| JournalError::Invalid(detail()))
        };
        let wrong = too("the name", &step.name, NAME_BYTES_MAX)
            .or_else(|| too("the key", step.key.as_ref()?, KEY_BYTES_MAX))
            .or_else(|| {
                let path = Some(path).filter(|p| p.len() > PATH_BYTES_MAX)?;
                too("the path", path, PATH_BYTES_MAX)
            });
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        let occurrence = match (step.occurrence, &step.key) {
            (Some(occurrence), _) => occurrence,
            (None, Some(_)) => 0,
            (None, None) => {
                let mut counts = self.counts();
                let key = (Arc::clone(path), step.name.clone());
                let count = counts.steps.entry(key).or_default();
                *count += 1;
                *count - 1
            }
        };
        Ok(StepPlace {
            path: path.to_string(),
            name: step.name.clone(),
            occurrence,
            idempotency_key: step.key.clone(),
        })
    }

    /// Steps that are named, not counted, may be begun twice: one after the other then.
    async fn lock(&self, step: &Step, place: &StepPlace) -> Option<OwnedMutexGuard<()>> {
        if step.key.is_none() && step.occurrence.is_none() {
            return None;
        }
        let lock = {
            let mut counts = self.counts();
            if counts.locks.len() >= LOCKS_KEPT {
                counts.locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            }
            Arc::clone(counts.locks.entry(known_as(place.clone())).or_default())
        };
        Some(lock.lock_owned().await)
    }

    /// Begins a step at its place, or finds what it gave.
    pub(super) async fn begin(
        &self,
        step: &Step,
        place: &StepPlace,
        digest: &str,
        input: Option<Bytes>,
    ) -> Result<Begun, JournalError> {
        let lock = self.lock(step, place).await;
        if let Some(done) = self.replay.find(&known_as(place.clone())).await? {
            return replayed(place, digest, done);
        }
        let begin = BeginStep {
            place: place.clone(),
            input_digest: digest.to_owned(),
            input,
            effects: step.effects,
            on_doubt: step.doubt(),
            on_failure: step.on_failure,
        };
        let asked = self.calls.queue().ask(StepOp::Begin(Arc::new(begin))).await;
        let Answered { result, repeated } = asked.map_err(|e| refused(e, place))?;
        let open = |id: EventId| {
            Begun::Execute(OpenStep {
                id,
                place: place.clone(),
                _lock: lock,
            })
        };
        Ok(match result {
            StepResult::Execute { step: id } => open(id),
            // The first try of this very call, or a step that this attempt has let go of.
            StepResult::InProgress { step: id } if repeated || step.doubt() == OnDoubt::Retry => {
                open(id)
            }
            StepResult::InProgress { step } => Begun::InDoubt {
                step_id: step,
                started_attempt: self.attempt,
                started_run_id: self.run_id.clone(),
            },
            StepResult::InDoubt {
                step,
                started_attempt,
                started_run,
            } => Begun::InDoubt {
                step_id: step,
                started_attempt,
                started_run_id: started_run.to_string(),
            },
            StepResult::Completed {
                step,
                value,
                event_ids,
            } => Begun::Completed {
                step_id: step,
                value,
                event_ids,
            },
            StepResult::Failed {
                step,
                error,
                failures,
                ..
            } => Begun::Failed {
                step_id: step,
                error: StepError::recorded(error),
                failures,
            },
            StepResult::Recorded(_) => return Err(misread(place)),
        })
    }

    /// Keeps a result. Without an answer to wait for, it is only queued.
    pub(super) async fn complete(
        &self,
        step: OpenStep,
        value: StepValue,
        extra: Extra,
    ) -> Result<Ended, JournalError> {
        let waits = extra != Extra::default() || value.len() > UNWAITED_BYTES_MAX;
        let (usage, events) = extra.into_parts()?;
        let op = StepOp::Complete(Arc::new(CompleteStep {
            step: step.id,
            value,
            usage,
            events,
        }));
        let op = match waits {
            true => op,
            false => match self.calls.queue().tell(op) {
                Ok(()) => return Ok(Ended::default()),
                Err(Told::Failed(error)) => return Err(refused(error, &step.place)),
                Err(Told::NoRoom(op)) => op,
            },
        };
        let answered = self.calls.queue().ask(op).await;
        answered
            .map(ended)
            .map_err(|error| refused(error, &step.place))
    }

    /// Keeps a result; one that is too large for the log fails the step.
    pub(super) async fn complete_or_fail(
        &self,
        step: OpenStep,
        value: StepValue,
    ) -> Result<Option<FailedStep>, JournalError> {
        if value.len() <= UNWAITED_BYTES_MAX {
            return self
                .complete(step, value, Extra::default())
                .await
                .map(|_| None);
        }
        let open = OpenStep {
            id: step.id,
            place: step.place.clone(),
            _lock: None,
        };
        match self.complete(open, value, Extra::default()).await {
            Ok(_) => Ok(None),
            Err(JournalError::Refused(problem)) if problem.code == "event.too_large" => {
                let error = StepError::new("journal.value_too_large", problem.detail);
                let (_, failures) = self.fail(&step, &error, None, Extra::default()).await?;
                Ok(Some(FailedStep::new(&step, error, failures)))
            }
            Err(error) => Err(error),
        }
    }

    pub(super) async fn pause(&self, pause: Duration) {
        let until = self.door.clock.mono() + pause;
        self.door.clock.sleep_until(until).await;
    }

    /// Keeps why there is no result; how often the step has failed.
    pub(super) async fn fail(
        &self,
        step: &OpenStep,
        error: &StepError,
        partial: Option<Bytes>,
        extra: Extra,
    ) -> Result<(Ended, u32), JournalError> {
        let answered = self
            .calls
            .queue()
            .ask(failed(step, error, partial, extra)?)
            .await;
        match answered {
            Ok(answered) => {
                let failures = match answered.result {
                    StepResult::Recorded(StepRecorded { failures, .. }) => failures,
                    _ => 0,
                };
                Ok((ended(answered), failures.max(1)))
            }
            // Nobody else ends this attempt's steps.
            Err(error) if was_done(&error, true) => Ok((Ended::default(), 1)),
            Err(error) => Err(refused(error, &step.place)),
        }
    }

    /// As [`Core::fail`]; what is too large to be kept of `partial` is left out.
    pub(super) async fn fail_with(
        &self,
        step: &OpenStep,
        error: &StepError,
        partial: Bytes,
    ) -> Result<(Ended, u32), JournalError> {
        let partial = (partial.len() <= PARTIAL_BYTES_MAX).then_some(partial);
        self.fail(step, error, partial, Extra::default()).await
    }

    /// As [`Core::fail_with`], in a destructor.
    pub(super) fn fail_last(&self, step: &OpenStep, error: &StepError, partial: Bytes) {
        let partial = (partial.len() <= PARTIAL_BYTES_MAX).then_some(partial);
        if let Ok(op) = failed(step, error, partial, Extra::default()) {
            self.calls.queue().tell_last(op);
        }
    }

    pub(super) async fn resolve(
        &self,
        step: EventId,
        verdict: Verdict,
    ) -> Result<(), JournalError> {
        let op = StepOp::Resolve(Arc::new(ResolveStep { step, verdict }));
        self.calls.queue().ask(op).await?;
        Ok(())
    }

    pub(super) async fn flush(&self) -> Result<(), JournalError> {
        Ok(self.calls.queue().flush().await?)
    }

    /// A call of the claim protocol, behind all that was said of steps.
    pub(super) async fn call(
        &self,
        verb: &str,
        body: Map<String, Value>,
    ) -> Result<CallAnswer, CallError> {
        self.calls.call(verb, Duration::ZERO, body).await
    }
}

/// As a step is known: with a key, by nothing else.
pub(super) fn known_as(place: StepPlace) -> StepPlace {
    match place.idempotency_key {
        None => place,
        key => StepPlace {
            path: String::new(),
            name: String::new(),
            occurrence: 0,
            idempotency_key: key,
        },
    }
}

fn replayed(place: &StepPlace, digest: &str, done: Done) -> Result<Begun, JournalError> {
    if done.digest != digest {
        return Err(JournalError::Divergence {
            step_id: Some(done.step_id),
            name: place.name.clone(),
            path: place.path.clone(),
            occurrence: place.occurrence,
        });
    }
    Ok(Begun::Completed {
        step_id: done.step_id,
        value: done.value,
        event_ids: done.event_ids,
    })
}

fn refused(error: CallError, place: &StepPlace) -> JournalError {
    match error {
        CallError::Refused(problem) if problem.code == "journal.divergence" => {
            let id = problem.extras.get("step_id").and_then(Value::as_str);
            JournalError::Divergence {
                step_id: id.and_then(|id| EventId::parse(id).ok()),
                name: place.name.clone(),
                path: place.path.clone(),
                occurrence: place.occurrence,
            }
        }
        error => error.into(),
    }
}

fn misread(place: &StepPlace) -> JournalError {
    JournalError::Value {
        name: place.name.clone(),
        reason: "the server's answer is none to a begin".to_owned(),
    }
}

fn failed(
    step: &OpenStep,
    error: &StepError,
    partial: Option<Bytes>,
    extra: Extra,
) -> Result<StepOp, JournalError> {
    let (usage, events) = extra.into_parts()?;
    Ok(StepOp::Fail(Arc::new(FailStep {
        step: step.id,
        error: error.to_run_error(),
        partial,
        usage,
        events,
    })))
}

fn ended(answered: Answered) -> Ended {
    match answered.result {
        StepResult::Recorded(recorded) => Ended {
            event_ids: recorded.event_ids,
            budget_exceeded: recorded.budget_exceeded,
        },
        _ => Ended::default(),
    }
}

impl Extra {
    /// As operations carry it.
    fn into_parts(self) -> Result<(Option<Cost>, Vec<Input>), JournalError> {
        let usage = self.usage.map(|(usage, model)| {
            let mut content = json!(usage);
            if let (Some(content), Some(model)) = (content.as_object_mut(), model) {
                content.insert("model".to_owned(), model.into());
            }
            (usage, Bytes::from(content.to_string()))
        });
        let events = self.events.into_iter().map(|(kind, content)| {
            parse_one(Origin::Runner, &kind, &content.to_string()).map_err(|r| {
                let detail = format!("{kind}: {}: {}", r.code.text(), r.detail);
                JournalError::Invalid(detail)
            })
        });
        Ok((usage, events.collect::<Result<_, _>>()?))
    }
}

/// The digest of a step's input and of the revision of its code. Objects are digested with their
/// keys in order, so a map's order does not count.
pub(super) fn digest<I: Serialize + ?Sized>(
    step: &Step,
    input: &I,
) -> Result<(String, Option<Bytes>), JournalError> {
    let unwritable = |e: serde_json::Error| JournalError::Value {
        name: step.name.clone(),
        reason: format!("has an input that cannot be written as JSON: {e}"),
    };
    let input = serde_json::to_value(input).map_err(unwritable)?;
    let input = serde_json::to_vec(&input).map_err(unwritable)?;
    let mut hasher = blake3::Hasher::new();
    // With its length, so that no revision reads as part of an input.
    hasher.update(&(step.revision.len() as u64).to_be_bytes());
    hasher.update(step.revision.as_bytes());
    hasher.update(&input);
    let digest = hasher.finalize().to_hex().to_string();
    Ok((digest, step.shows_input.then(|| input.into())))
}
