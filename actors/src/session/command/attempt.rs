//! What a runner asks under a claim, and the dispatcher of a queued run.

use serde::Deserialize;

use super::{Input, NewCheckpoint, SettleCheckpoint};
use crate::ids::{CheckpointId, EventId, RunId, RunnerId, TokenDigest};
use crate::session::payload::{CheckpointKind, Compute, Outcome, RunError, Usage, WorkspaceRef};
use crate::session::step::StepOp;

/// The dispatcher's offer.
#[derive(Debug, Clone, Copy)]
pub struct ClaimRun {
    /// Which run was offered; another one is refused.
    pub run: RunId,
    /// To whom.
    pub runner: RunnerId,
    /// Digest of the new token.
    pub token: TokenDigest,
}

/// Whose bearer token came with a call. The claim token alone is not enough where callers have
/// tokens: it may have leaked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bearer {
    /// Code of this process, a server without tokens, or an administrator.
    Trusted,
    /// Someone of this workspace.
    Workspace(WorkspaceRef),
    /// This very runner.
    Runner(RunnerId),
}

/// A runner's call.
#[derive(Debug, Clone)]
pub struct AttemptCall {
    /// Who calls; a claim of somebody else's looks absent.
    pub by: Bearer,
    /// Digest of the token it carries.
    pub token: TokenDigest,
    /// Its number, where the runner counts its calls.
    pub n: Option<u64>,
    /// What it asks.
    pub verb: Verb,
}

/// The verbs of the claim protocol.
#[derive(Debug, Clone)]
pub enum Verb {
    /// The harness is ready.
    Ready,
    /// Still here.
    Heartbeat,
    /// Events of the agent.
    Events(Vec<Input>),
    /// Take what arrived meanwhile.
    Inputs,
    /// Take the oldest signal of this name that nobody has consumed, if there is one.
    Signal(String),
    /// Operations on the journal, all or none.
    Steps {
        /// The operations, in order; at least one.
        ops: Vec<StepOp>,
        /// Whether they came as a list.
        many: bool,
    },
    /// Keep a way back.
    Checkpoint(Box<NewCheckpoint>),
    /// A checkpoint was due, and there is none.
    CheckpointFailed {
        /// What it was due for.
        kind: CheckpointKind,
        /// Why.
        reason: String,
    },
    /// The checkpoint of the resume plan does not verify.
    RejectCheckpoint {
        /// Which.
        checkpoint: CheckpointId,
        /// What does not verify.
        reason: String,
        /// It cannot be read for now; nothing is said against it. This run goes on from an older
        /// one.
        temporary: bool,
    },
    /// Wait for something outside.
    Park(Park),
    /// The run is over.
    Settle(Box<Settle>),
    /// The attempt is given back, gracefully.
    Release,
    /// The claim's answer never reached the runner (said by the server, not by a runner).
    Undeliver,
}

impl Verb {
    /// The wire name.
    pub const fn text(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Heartbeat => "heartbeat",
            Self::Events(_) => "events",
            Self::Inputs | Self::Signal(_) => "inputs",
            Self::Steps { .. } => "steps",
            Self::Checkpoint(_) | Self::CheckpointFailed { .. } => "checkpoint",
            Self::RejectCheckpoint { .. } => "reject",
            Self::Park(_) => "park",
            Self::Settle(_) => "settle",
            Self::Release => "release",
            Self::Undeliver => "undeliver",
        }
    }
}

/// `park`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Park {
    /// All of these must be in.
    pub waiting_on: Vec<ParkOn>,
    /// What happens to the compute meanwhile.
    pub compute: Compute,
    /// Digest of the body, to tell an identical retry.
    pub body: [u8; 16],
}

/// One thing to wait for, as a runner says it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct ParkOn {
    #[serde(default)]
    pub question_id: Option<EventId>,
    #[serde(default)]
    pub approval_id: Option<EventId>,
    #[serde(default)]
    pub tool_use_id: Option<EventId>,
    #[serde(default)]
    pub signal: Option<String>,
    /// With `signal` only; 0 is refused.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub budget: Option<bool>,
}

/// `settle`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settle {
    /// How the run ended.
    pub outcome: Outcome,
    /// Why, if badly.
    pub error: Option<RunError>,
    /// What was not yet recorded.
    pub usage: Usage,
    /// Whether the session can never run again.
    pub session_failed: bool,
    /// What became of the snapshot of the turn's end, where one was due.
    pub checkpoint: Option<SettleCheckpoint>,
    /// Digest of the body, to tell an identical retry.
    pub body: [u8; 16],
}
