//! What is said of a step, and what belongs to it.

use longhaul_actors::ids::EventId;
use longhaul_actors::session::payload::Usage;
use longhaul_actors::session::step::{StepPlace, StepValue};
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;

use super::StepError;

/// A step that is to be run now. Dropped without [`Journal::complete`](super::Journal::complete) or
/// [`Journal::fail`](super::Journal::fail), it
/// is in doubt for the next attempt.
#[derive(Debug)]
pub struct OpenStep {
    pub(super) id: EventId,
    pub(super) place: StepPlace,
    /// Another step of the same key waits for it.
    pub(super) _lock: Option<OwnedMutexGuard<()>>,
}

impl OpenStep {
    /// Its id, the same in every attempt: a key for its effect elsewhere.
    pub fn id(&self) -> EventId {
        self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.place.name
    }
}

/// What is known of a step when it is begun.
#[derive(Debug)]
pub enum Begun {
    /// It is to be run now.
    Execute(OpenStep),
    /// It was run.
    Completed {
        /// The step.
        step_id: EventId,
        /// What it gave.
        value: StepValue,
        /// The events that were written with its result.
        event_ids: Vec<EventId>,
    },
    /// It failed, and its options say that it is not run again.
    Failed {
        /// The step.
        step_id: EventId,
        /// Why.
        error: StepError,
        /// How often, over all attempts.
        failures: u32,
    },
    /// An earlier attempt began it and said nothing more, and its options say to surface that.
    InDoubt {
        /// The step.
        step_id: EventId,
        /// The attempt that began it.
        started_attempt: u32,
        /// That attempt's run.
        started_run_id: String,
    },
}

/// What belongs to a step's end and is written in the same commit: so, exactly once with it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Extra {
    /// What it cost, and the model, if one did.
    pub usage: Option<(Usage, Option<String>)>,
    /// Types and contents of `agent.*` events, written before the step's end.
    pub events: Vec<(String, Value)>,
}

/// What the end of a step led to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ended {
    /// The ids of [`Extra::events`].
    pub event_ids: Vec<EventId>,
    /// Whether the session's budget is spent now: no further step may begin.
    pub budget_exceeded: bool,
}

impl OpenStep {
    /// Of a journal that keeps nothing.
    pub(super) fn of_nothing(name: String) -> Self {
        let place = StepPlace {
            path: String::new(),
            name,
            occurrence: 0,
            idempotency_key: None,
        };
        Self {
            id: EventId([0; 16]),
            place,
            _lock: None,
        }
    }
}
