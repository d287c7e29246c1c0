//! Contents of the runtime's own events, as JSON on the wire and in storage.

mod checkpoint;
mod lineage;

use bincode::{Decode, Encode};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use checkpoint::{
    CheckpointCreated, CheckpointDeleted, CheckpointExpired, CheckpointFailed, CheckpointKind,
    CheckpointPinned, CheckpointRejected, DeletedWhat, ResumeFrom, Retention, SnapshotRef,
};
pub use lineage::{Adopted, Selector, SessionForked};

use super::event::EventType;
use super::status::Status;
use crate::ids::{
    CheckpointId, DeploymentId, EventId, HarnessRevision, RunId, RunnerId, SandboxRevision,
    TokenDigest, WorkspaceId,
};

/// What a folded event carries. `Opaque`: folding needs only the header.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "each variant is named by its event type")]
pub enum Body {
    Opaque,
    SessionCreated(Box<SessionCreated>),
    SessionUpdated(SessionUpdated),
    SessionStatus(SessionStatus),
    SessionForked(Box<SessionForked>),
    SessionLimitWarning(SessionLimitWarning),
    RunQueued(RunQueued),
    RunClaimed(RunClaimed),
    RunStarted(RunStarted),
    RunInputsTaken(RunInputsTaken),
    RunRequeued(RunRequeued),
    RunParked(RunParked),
    RunSettled(RunSettled),
    ItemClosed(ItemClosed),
    SignalConsumed(SignalConsumed),
    UsageRecorded(Usage),
    CheckpointCreated(Box<CheckpointCreated>),
    CheckpointFailed(CheckpointFailed),
    CheckpointRejected(CheckpointRejected),
    CheckpointPinned(CheckpointPinned),
    CheckpointExpired(CheckpointExpired),
    CheckpointDeleted(CheckpointDeleted),
}

/// The agent as pinned at admission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
pub struct Pin {
    /// The deployment.
    pub agent_deployment: DeploymentId,
    /// Its revision, from 1.
    pub agent_deployment_revision_number: u32,
    /// What a runner must be able to drive.
    pub harness_revision: HarnessRevision,
    /// What a runner must be able to make.
    pub sandbox_profile_revision: SandboxRevision,
    /// Whether the harness is the host's own (target `*`).
    pub external: bool,
    /// Longest working time of one attempt after its start-up, seconds.
    pub max_duration_seconds: u64,
}

/// `session.created`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct SessionCreated {
    pub workspace: WorkspaceRef,
    pub principal: String,
    #[serde(flatten)]
    pub pin: Pin,
    #[serde(default)]
    pub metadata: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// How long its checkpoints live, where its workspace shortens that, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_ttl_s: Option<u64>,
}

/// A workspace by id, or the `default` one of a server without tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct WorkspaceRef(pub WorkspaceId);

impl WorkspaceRef {
    /// The workspace that exists without being created.
    pub const DEFAULT: Self = Self(WorkspaceId([0; 16]));

    /// Reads `default` or an id.
    pub fn parse(text: &str) -> Result<Self, crate::ids::IdError> {
        if text == "default" {
            Ok(Self::DEFAULT)
        } else {
            WorkspaceId::parse(text).map(Self)
        }
    }
}

impl std::fmt::Display for WorkspaceRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if *self == Self::DEFAULT {
            f.write_str("default")
        } else {
            self.0.fmt(f)
        }
    }
}

impl Serialize for WorkspaceRef {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WorkspaceRef {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// What a session may spend. Absent fields are unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Encode, Decode)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Millionths of the account's currency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros_max: Option<u64>,
    /// Input and output tokens together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_max: Option<u64>,
}

/// `session.updated`: what changed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct SessionUpdated {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
}

/// `session.status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct SessionStatus {
    pub from: Status,
    pub to: Status,
    pub reason: String,
}

/// `session.limit_warning`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct SessionLimitWarning {
    pub events: u64,
    pub events_max: u64,
    pub percent: u8,
}

/// What started a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
pub struct Trigger {
    /// What sort of thing.
    pub kind: TriggerKind,
    /// The event that did it.
    pub event_id: Option<EventId>,
}

/// What sort of thing started a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "snake_case")]
pub enum TriggerKind {
    /// A message, or messages left over by the run before.
    Message,
    /// The items a parked run waited for.
    Continuation,
}

/// `run.queued`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct RunQueued {
    pub trigger: Trigger,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<RunId>,
}

/// How a run gets its disk and its past.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ResumePlan {
    /// Nothing came before.
    Fresh,
    /// The conversation from the log, an empty disk.
    EventLogRebuild {
        /// Why there is no disk.
        reason: RebuildReason,
        /// Ranges of positions, inclusive, whose content cannot be read.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        missing: Vec<(u64, u64)>,
    },
    /// The disk of a checkpoint, and the conversation after it from the log.
    Checkpoint {
        /// The checkpoint.
        id: CheckpointId,
        /// Its disk.
        snapshot: SnapshotRef,
        /// How the harness gets its own state back.
        resume: ResumeFrom,
        /// What the checkpoint holds: everything up to this position.
        through_sequence: u64,
        /// Events after it.
        events_after: u64,
        /// See `event_log_rebuild`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        missing: Vec<(u64, u64)>,
        /// The copy of the disk that this runner made for the fork, if it did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sandbox_ref: Option<String>,
    },
    /// The sandbox that a runtime operation left.
    Attached,
}

/// Why a run starts without its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "snake_case")]
pub enum RebuildReason {
    /// Contents of the conversation itself cannot be read.
    HistoryIncomplete,
    /// A fork that has not run yet, and shares no disk.
    Forked,
    /// The newest checkpoint's time is over.
    CheckpointExpired,
    /// The newest checkpoint's bytes were deleted.
    SnapshotDeleted,
    /// Only another runner has the newest checkpoint's bytes.
    SnapshotUnreachable,
    /// The newest checkpoint does not verify.
    CheckpointRejected,
    /// No checkpoint was ever taken.
    NoCheckpoint,
}

/// `run.claimed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct RunClaimed {
    pub runner_id: RunnerId,
    /// Digest of the claim token; the token itself is never stored.
    pub claim_digest: TokenDigest,
    #[serde(with = "crate::time::wire")]
    pub startup_deadline: i64,
    #[serde(with = "crate::time::wire")]
    pub deadline: i64,
    pub resume: ResumePlan,
}

/// `run.started`: the versions of everything the attempt reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct RunStarted {
    pub resume: ResumePlan,
    pub agent_deployment: DeploymentId,
    pub agent_deployment_revision_number: u32,
    pub harness_revision: HarnessRevision,
    pub sandbox_profile_revision: SandboxRevision,
}

/// `run.inputs_taken`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct RunInputsTaken {
    pub event_ids: Vec<EventId>,
}

/// Why an attempt ended without settling its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "snake_case")]
pub enum RequeueReason {
    /// The lease ran out.
    Lease,
    /// It was not ready in time.
    Startup,
    /// The runner gave it back.
    Released,
    /// The answer never reached the runner.
    Undelivered,
}

/// `run.requeued`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct RunRequeued {
    pub reason: RequeueReason,
    /// The number the next attempt will have.
    pub next_attempt: u32,
    /// Attempts lost so far, of `attempts_max`.
    pub attempts_lost: u32,
    #[serde(with = "crate::time::wire")]
    pub not_before: i64,
}

/// What happens to the compute of a parked run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "snake_case")]
pub enum Compute {
    /// The runner keeps it and polls `inputs`.
    Held,
    /// The runner lets go; a continuation run goes on.
    Released,
}

/// One thing a park waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[serde(untagged)]
#[expect(missing_docs, reason = "the wire names say it")]
pub enum WaitingOn {
    Question {
        question_id: EventId,
    },
    Approval {
        approval_id: EventId,
    },
    ToolUse {
        tool_use_id: EventId,
    },
    Signal {
        signal: String,
        /// When the wait ends with `expired`.
        #[serde(
            default,
            with = "crate::time::wire_opt",
            skip_serializing_if = "Option::is_none"
        )]
        expires_at: Option<i64>,
    },
    Budget {
        budget: bool,
    },
}

impl WaitingOn {
    /// The item waited for, if it is one.
    pub fn item(&self) -> Option<EventId> {
        match self {
            Self::Question { question_id: id }
            | Self::Approval { approval_id: id }
            | Self::ToolUse { tool_use_id: id } => Some(*id),
            Self::Signal { .. } | Self::Budget { .. } => None,
        }
    }
}

/// `run.parked`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct RunParked {
    pub waiting_on: Vec<WaitingOn>,
    pub compute: Compute,
    /// Set when held compute is let go (held too long, or its claim was lost or released): the
    /// run stays parked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_by: Option<String>,
    /// Until when held compute is kept.
    #[serde(
        default,
        with = "crate::time::wire_opt",
        skip_serializing_if = "Option::is_none"
    )]
    pub hold_until: Option<i64>,
    /// Waits (by index) that were over before the park, with their answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub already_in: Vec<(u32, Option<EventId>)>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As it should.
    Succeeded,
    /// With an error.
    Failed,
    /// By `user.interrupt`.
    Interrupted,
    /// By the session's cancellation.
    Canceled,
    /// Another run goes on with it.
    Continued,
}

impl Outcome {
    /// The wire form.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Canceled => "canceled",
            Self::Continued => "continued",
        }
    }
}

/// An error of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[serde(deny_unknown_fields)]
pub struct RunError {
    /// `area.reason`.
    pub code: String,
    /// For people.
    pub message: String,
}

/// What was spent. Integers, counted where spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Encode, Decode)]
#[serde(default)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
    /// Millionths of the account's currency.
    pub cost_micros: u64,
}

impl Usage {
    /// The sum; saturates.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cache_read_tokens: self
                .cache_read_tokens
                .saturating_add(other.cache_read_tokens),
            cache_write_tokens: self
                .cache_write_tokens
                .saturating_add(other.cache_write_tokens),
            cost_micros: self.cost_micros.saturating_add(other.cost_micros),
        }
    }

    /// What is left after `other`; never below zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_sub(other.input_tokens),
            output_tokens: self.output_tokens.saturating_sub(other.output_tokens),
            cache_read_tokens: self
                .cache_read_tokens
                .saturating_sub(other.cache_read_tokens),
            cache_write_tokens: self
                .cache_write_tokens
                .saturating_sub(other.cache_write_tokens),
            cost_micros: self.cost_micros.saturating_sub(other.cost_micros),
        }
    }

    /// Whether it is over the budget.
    pub fn exceeds(&self, budget: &Budget) -> bool {
        let tokens = self.input_tokens.saturating_add(self.output_tokens);
        budget
            .cost_micros_max
            .is_some_and(|max| self.cost_micros > max)
            || budget.tokens_max.is_some_and(|max| tokens > max)
    }
}

/// `run.settled`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct RunSettled {
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RunError>,
    /// Total of all its attempts.
    pub usage: Usage,
    /// Same as `usage.cost_micros`.
    pub cost: u64,
}

/// How an item ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the wire names say it")]
pub enum ItemState {
    Answered,
    Granted,
    Denied,
    Expired,
    Superseded,
    Cancelled,
}

impl ItemState {
    /// The wire form.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Granted => "granted",
            Self::Denied => "denied",
            Self::Expired => "expired",
            Self::Superseded => "superseded",
            Self::Cancelled => "cancelled",
        }
    }
}

/// `item.closed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct ItemClosed {
    /// The event that opened it (for a signal's wait: the `run.parked`).
    pub item_id: EventId,
    pub state: ItemState,
    /// Who closed it.
    pub by: String,
    /// The answer, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_id: Option<EventId>,
    /// The signal whose wait ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
}

/// `signal.consumed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct SignalConsumed {
    pub signal_id: EventId,
    pub name: String,
}

/// Why a stored content could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("content of {kind} (version {version}) cannot be read: {reason}")]
pub struct BodyError {
    /// The event type.
    pub kind: &'static str,
    /// Its content's schema version.
    pub version: u16,
    /// What does not fit.
    pub reason: String,
}

impl Body {
    /// The stored JSON.
    pub fn to_json(&self) -> Bytes {
        let json = match self {
            Self::Opaque => return Bytes::new(),
            Self::SessionCreated(b) => serde_json::to_vec(b),
            Self::SessionUpdated(b) => serde_json::to_vec(b),
            Self::SessionStatus(b) => serde_json::to_vec(b),
            Self::SessionLimitWarning(b) => serde_json::to_vec(b),
            Self::RunQueued(b) => serde_json::to_vec(b),
            Self::RunClaimed(b) => serde_json::to_vec(b),
            Self::RunStarted(b) => serde_json::to_vec(b),
            Self::RunInputsTaken(b) => serde_json::to_vec(b),
            Self::RunRequeued(b) => serde_json::to_vec(b),
            Self::RunParked(b) => serde_json::to_vec(b),
            Self::RunSettled(b) => serde_json::to_vec(b),
            Self::ItemClosed(b) => serde_json::to_vec(b),
            Self::SignalConsumed(b) => serde_json::to_vec(b),
            Self::UsageRecorded(b) => serde_json::to_vec(b),
            Self::SessionForked(b) => serde_json::to_vec(b),
            Self::CheckpointCreated(b) => serde_json::to_vec(b),
            Self::CheckpointFailed(b) => serde_json::to_vec(b),
            Self::CheckpointRejected(b) => serde_json::to_vec(b),
            Self::CheckpointPinned(b) => serde_json::to_vec(b),
            Self::CheckpointExpired(b) => serde_json::to_vec(b),
            Self::CheckpointDeleted(b) => serde_json::to_vec(b),
        };
        // Plain structs with string keys: serialising them has no failing case.
        json.unwrap_or_default().into()
    }

    /// Reads stored JSON, whatever version it was written in.
    pub fn from_json(kind: EventType, version: u16, json: &[u8]) -> Result<Self, BodyError> {
        fn read<T: for<'de> Deserialize<'de>>(
            json: &[u8],
            wrap: impl FnOnce(T) -> Body,
        ) -> Result<Body, String> {
            serde_json::from_slice(json)
                .map(wrap)
                .map_err(|e| e.to_string())
        }
        if version != 1 {
            let reason = "written by a newer version".to_owned();
            return Err(BodyError {
                kind: kind.text(),
                version,
                reason,
            });
        }
        let body = match kind {
            EventType::SessionCreated => read(json, |b| Self::SessionCreated(Box::new(b))),
            EventType::SessionUpdated => read(json, Self::SessionUpdated),
            EventType::SessionStatus => read(json, Self::SessionStatus),
            EventType::SessionLimitWarning => read(json, Self::SessionLimitWarning),
            EventType::RunQueued => read(json, Self::RunQueued),
            EventType::RunClaimed => read(json, Self::RunClaimed),
            EventType::RunStarted => read(json, Self::RunStarted),
            EventType::RunInputsTaken => read(json, Self::RunInputsTaken),
            EventType::RunRequeued => read(json, Self::RunRequeued),
            EventType::RunParked => read(json, Self::RunParked),
            EventType::RunSettled => read(json, Self::RunSettled),
            EventType::ItemClosed => read(json, Self::ItemClosed),
            EventType::SignalConsumed => read(json, Self::SignalConsumed),
            EventType::UsageRecorded => read(json, Self::UsageRecorded),
            EventType::SessionForked => read(json, |b| Self::SessionForked(Box::new(b))),
            EventType::CheckpointCreated => read(json, |b| Self::CheckpointCreated(Box::new(b))),
            EventType::CheckpointFailed => read(json, Self::CheckpointFailed),
            EventType::CheckpointRejected => read(json, Self::CheckpointRejected),
            EventType::CheckpointPinned => read(json, Self::CheckpointPinned),
            EventType::CheckpointExpired => read(json, Self::CheckpointExpired),
            EventType::CheckpointDeleted => read(json, Self::CheckpointDeleted),
            _ => Ok(Self::Opaque),
        };
        body.map_err(|reason| BodyError {
            kind: kind.text(),
            version,
            reason,
        })
    }
}
