//! Steps of a run's journal: what a runner asks of one.
//!
//! A step is named by its place, not by its number: the run chain, a path (of the sub-agent or
//! branch it belongs to), a name, and how often that name came before it there. Its input's digest
//! must be the same whenever it is begun again.

mod answer;

use std::sync::Arc;

use bincode::{Decode, Encode};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::command::Input;
use super::payload::{RunError, Usage};
use crate::ids::EventId;

pub(crate) use answer::body;
pub use answer::{StepAnswer, StepRecorded, StepResult, StepsReply};

/// Longest name of a step, bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Longest path of a step, bytes.
pub const PATH_BYTES_MAX: usize = 1_024;
/// Longest digest of a step's input, bytes.
pub const DIGEST_BYTES_MAX: usize = 128;
/// Longest idempotency key of a step, bytes.
pub const KEY_BYTES_MAX: usize = 256;
/// Most operations in one call.
pub const OPS_MAX: usize = 100;
/// Most steps of a run that are begun and not ended.
pub const OPEN_STEPS_MAX: usize = 256;

/// One operation on a run's journal. Cheap to clone: it is kept until its answer is known.
#[derive(Debug, Clone)]
pub enum StepOp {
    /// Says that a step is about to run; durable before its effect.
    Begin(Arc<BeginStep>),
    /// Keeps its result.
    Complete(Arc<CompleteStep>),
    /// Keeps why it has none.
    Fail(Arc<FailStep>),
    /// Decides what becomes of a step in doubt, or of a failed one.
    Resolve(Arc<ResolveStep>),
}

/// Which step.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepPlace {
    /// The sub-agent or branch, `a/b`; empty for the run itself.
    pub path: String,
    /// Its name.
    pub name: String,
    /// How many steps of this name came before it on this path.
    pub occurrence: u32,
    /// Names the step instead of path, name and occurrence.
    pub idempotency_key: Option<String>,
}

/// What a step changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "snake_case")]
pub enum StepEffects {
    /// The world outside: never made again once its result is kept.
    #[default]
    External,
    /// Files of the sandbox only: made again where they are gone.
    Sandbox,
}

/// What to do with a step that was begun by an earlier attempt and never ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "snake_case")]
pub enum OnDoubt {
    /// Run it again (the default with an idempotency key).
    Retry,
    /// Say so; somebody resolves it (the default without).
    Surface,
}

/// What to do with a step that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// Run it again.
    Retry,
    /// Give its error back.
    #[default]
    Surface,
}

impl StepOp {
    /// Bytes of content that it carries.
    pub fn content_bytes(&self) -> usize {
        let all = |usage: &Option<(Usage, Bytes)>, events: &[Input]| {
            let usage = usage.as_ref().map_or(0, |(_, content)| content.len());
            usage + events.iter().map(|e| e.content.len()).sum::<usize>()
        };
        match self {
            Self::Begin(b) => b.input.as_ref().map_or(0, Bytes::len),
            Self::Complete(c) => c.value.len() + all(&c.usage, &c.events),
            Self::Fail(f) => f.partial.as_ref().map_or(0, Bytes::len) + all(&f.usage, &f.events),
            Self::Resolve(r) => match &r.verdict {
                Verdict::Completed(value) => value.len(),
                Verdict::Retry | Verdict::Failed(_) => 0,
            },
        }
    }
}

impl StepValue {
    /// Bytes of JSON that it takes in its event.
    pub fn len(&self) -> usize {
        match self {
            Self::Json(json) => json.len(),
            Self::Bytes { bytes, .. } => bytes.len().div_ceil(3) * 4,
        }
    }

    /// Whether it takes none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// `begin`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeginStep {
    /// Which step.
    pub place: StepPlace,
    /// Digest of its input, opaque; includes the revision of the code (or model) that runs it.
    pub input_digest: String,
    /// The input itself, JSON, for people.
    pub input: Option<Bytes>,
    /// What it changes.
    pub effects: StepEffects,
    /// What to do in doubt.
    pub on_doubt: OnDoubt,
    /// What to do if it failed.
    pub on_failure: OnFailure,
}

/// What a step gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepValue {
    /// JSON, as received.
    Json(Bytes),
    /// Bytes of a type.
    Bytes {
        /// MIME type.
        content_type: String,
        /// The bytes.
        bytes: Bytes,
    },
}

/// `complete`.
#[derive(Debug, Clone)]
pub struct CompleteStep {
    /// Which: the id of its `step.started`.
    pub step: EventId,
    /// What it gave.
    pub value: StepValue,
    /// What it cost: counted in the same commit, so once. With the content of `usage.recorded`.
    pub usage: Option<(Usage, Bytes)>,
    /// Events of the agent that belong to the result: written in the same commit, before it.
    pub events: Vec<Input>,
}

/// `fail`.
#[derive(Debug, Clone)]
pub struct FailStep {
    /// Which.
    pub step: EventId,
    /// Why.
    pub error: RunError,
    /// What came before it failed (a stream's parts), JSON; never replayed as a result.
    pub partial: Option<Bytes>,
    /// See [`CompleteStep::usage`].
    pub usage: Option<(Usage, Bytes)>,
    /// See [`CompleteStep::events`].
    pub events: Vec<Input>,
}

/// `resolve`.
#[derive(Debug, Clone)]
pub struct ResolveStep {
    /// Which.
    pub step: EventId,
    /// What becomes of it.
    pub verdict: Verdict,
}

/// What becomes of a step in doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It runs again.
    Retry,
    /// It did its work, with this result.
    Completed(StepValue),
    /// It did not.
    Failed(RunError),
}
