//! Contents of `run.*`.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

use super::{ResumeFrom, SnapshotRef, Usage};
use crate::ids::{
    CheckpointId, DeploymentId, EventId, HarnessRevision, RunId, RunnerId, SandboxRevision,
    TokenDigest,
};

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
        /// Why this is not the disk that the session had last, if it is not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instead_of: Option<InsteadOf>,
    },
    /// The sandbox that a runtime operation left.
    Attached {
        /// Why the operation began it empty, where there had been a disk before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rebuilt: Option<RebuildReason>,
        /// The older disk that the operation began it with, where it did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        older: Option<OlderDisk>,
    },
}

/// What a disk is instead of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
pub struct InsteadOf {
    /// The newest checkpoint, which was not used; `None` = what is missing came after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<CheckpointId>,
    /// Why.
    pub reason: RebuildReason,
}

/// A disk of a checkpoint that is not the one that the session had last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
pub struct OlderDisk {
    /// The checkpoint.
    pub id: CheckpointId,
    /// What it holds: everything up to this position.
    pub through_sequence: u64,
    /// What was to be had instead.
    pub instead_of: InsteadOf,
}

/// What a disk began as, where that is not the one that the session had last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Began {
    /// Empty.
    EventLogRebuild {
        /// Why.
        reason: RebuildReason,
    },
    /// As an older checkpoint has it.
    Checkpoint(OlderDisk),
}

impl ResumePlan {
    /// An empty disk, for this reason.
    pub const fn rebuild(reason: RebuildReason) -> Self {
        Self::EventLogRebuild {
            reason,
            missing: Vec::new(),
        }
    }

    /// The sandbox that an operation left, which began as said.
    pub const fn attached(began: Option<Began>) -> Self {
        let (rebuilt, older) = match began {
            Some(Began::EventLogRebuild { reason }) => (Some(reason), None),
            Some(Began::Checkpoint(older)) => (None, Some(older)),
            None => (None, None),
        };
        Self::Attached { rebuilt, older }
    }

    /// What the disk begins as, where that is not the one that the session had last.
    pub fn began(&self) -> Option<Began> {
        match self {
            Self::EventLogRebuild { reason, .. } => {
                Some(Began::EventLogRebuild { reason: *reason })
            }
            Self::Attached { rebuilt, older } => rebuilt
                .map(|reason| Began::EventLogRebuild { reason })
                .or(older.map(Began::Checkpoint)),
            Self::Checkpoint {
                id,
                through_sequence,
                instead_of,
                ..
            } => instead_of.map(|instead_of| {
                Began::Checkpoint(OlderDisk {
                    id: *id,
                    through_sequence: *through_sequence,
                    instead_of,
                })
            }),
            Self::Fresh => None,
        }
    }
}

/// Why a disk is not the one that the session had last.
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
    /// The newest checkpoint's bytes cannot be read for now.
    SnapshotUnreadable,
    /// The disk of a turn after the newest checkpoint was not kept: `checkpoint.failed`.
    SnapshotFailed,
    /// A sandbox that operations had changed since the newest checkpoint is gone.
    SandboxLost,
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
