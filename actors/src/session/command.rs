//! What can be asked of a session. Imperative; everything a decision needs is in here, in the
//! state, or in the facts.

mod attempt;

use std::sync::Arc;

use bincode::{Decode, Encode};
use bytes::Bytes;
use serde_json::{Map, Value};

use super::event::{Author, EventType};
use super::operation::Operate;
use super::payload::{
    Adopted, Budget, CheckpointCreated, CheckpointKind, Pin, ResumeFrom, RetentionPolicy, Selector,
    SnapshotRef, Usage,
};
use super::state::State;
use super::step::StepOp;
use super::viewer::Viewer;
use crate::ids::{CheckpointId, EventId, SessionId, TokenDigest};

pub use attempt::{AttemptCall, Bearer, ClaimRun, Park, ParkOn, Settle, Verb};

/// One request to a session.
#[derive(Debug, Clone)]
pub enum Command {
    /// Admits the session: its first events.
    Create(Box<Create>),
    /// Appends events of people.
    Submit(Submit),
    /// Goes on with the conversation, and with a run that failed.
    Resume(Box<Resume>),
    /// Ends the session as done. Idempotent.
    Complete(Request),
    /// Ends the session and whatever runs in it. Idempotent.
    Cancel(Request),
    /// Removes everything but a tombstone. Idempotent.
    Erase(Request),
    /// Starts a session as a fork of another one's prefix.
    Fork(Box<Fork>),
    /// Changes what the session may spend.
    Budget(SetBudget),
    /// A step of an operation on the sandbox from outside a run.
    Operate(Box<Operate>),
    /// Keeps a checkpoint from being pruned, or no longer.
    Pin(Box<PinCheckpoint>),
    /// Lets go of journals of what is over, and of checkpoints.
    Prune(Box<Prune>),
    /// Gives the queued run to a runner (asked by the dispatcher only).
    Claim(ClaimRun),
    /// A runner's call under a claim.
    Attempt(AttemptCall),
    /// A time has come (asked by run actors and timers; each names what it is about, so that a
    /// late one changes nothing).
    Expire(Expiry),
}

impl Command {
    /// Bytes of content that it carries.
    pub fn content_bytes(&self) -> usize {
        let of = |events: &[Input]| -> usize { events.iter().map(|e| e.content.len()).sum() };
        match self {
            Self::Create(c) => of(&c.events),
            Self::Submit(s) => of(&s.events),
            Self::Resume(r) => r.prompt.message.content.len(),
            Self::Attempt(AttemptCall {
                verb: Verb::Events(events),
                ..
            }) => of(events),
            Self::Attempt(AttemptCall {
                verb: Verb::Steps { ops, .. },
                ..
            }) => ops.iter().map(StepOp::content_bytes).sum(),
            _ => 0,
        }
    }
}

/// Who asks, for the envelope and for idempotency.
#[derive(Debug, Clone)]
pub struct Request {
    /// Which sessions there are for the caller: any other looks absent.
    pub viewer: Viewer,
    /// The author of what is written.
    pub author: Author,
    /// The request's id (`caused_by`).
    pub request_id: Arc<str>,
    /// The receipt to keep, where the caller gave an Idempotency-Key.
    pub receipt: Option<ReceiptKey>,
}

/// Where the answer to an Idempotency-Key is kept, and what it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiptKey {
    /// Digest of workspace, principal, method, path and key.
    pub scope: [u8; 16],
    /// Digest of the body.
    pub body: [u8; 16],
}

/// Admission.
#[derive(Debug, Clone)]
pub struct Create {
    /// Who asks.
    pub request: Request,
    /// Who the session acts as.
    pub principal: String,
    /// The agent, resolved.
    pub pin: Pin,
    /// Caller's pairs (checked by the decision).
    pub metadata: Map<String, Value>,
    /// What it may spend.
    pub budget: Option<Budget>,
    /// What its workspace says of keeping things.
    pub retention: RetentionPolicy,
    /// First events (may be empty).
    pub events: Vec<Input>,
}

/// A fork: what the source was at the boundary, and what the child is to be.
#[derive(Debug, Clone)]
pub struct Fork {
    /// Who asks.
    pub request: Request,
    /// The source, folded up to and with the boundary; what is missing of its past is so by now.
    pub source: Box<State>,
    /// The source's row of what is missing, as it was then: no more may be at the commit.
    pub expired: Option<Bytes>,
    /// The first session of the source's family. The source itself may be a fork although it was
    /// none yet at the boundary.
    pub root: SessionId,
    /// What was asked for.
    pub selector: Selector,
    /// Who the child acts as; `None` = the source's principal.
    pub principal: Option<String>,
    /// The child's pairs; `None` = the source's.
    pub metadata: Option<Map<String, Value>>,
    /// The checkpoint whose disk the child gets.
    pub checkpoint: Option<Box<ForkedDisk>>,
    /// The child's first own message.
    pub prompt: Option<Box<Prompt>>,
}

/// The disk of a checkpoint fork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkedDisk {
    /// The source's checkpoint.
    pub checkpoint: CheckpointCreated,
    /// Its resume blob, verified.
    pub blob: Option<Bytes>,
    /// The copy that a runner made, by its own name, and which runner.
    pub adopted: Option<Adopted>,
}

/// Pins a checkpoint, or unpins it.
#[derive(Debug, Clone)]
pub struct PinCheckpoint {
    /// Who asks.
    pub request: Request,
    /// Which.
    pub checkpoint: CheckpointId,
    /// Whether it is to be exempt from the count.
    pub pinned: bool,
}

/// Lets go of what is no longer wanted.
#[derive(Debug, Clone)]
pub struct Prune {
    /// Who asks.
    pub request: Request,
    /// Checkpoints made before this go, milliseconds; `None` = all that can.
    pub before_ms: Option<i64>,
    /// Contents of steps' events that were found, by range, inclusive and ascending.
    pub ranges: Vec<(u64, u64)>,
    /// The last position that living sessions shared then.
    pub shared_seq: u64,
}

/// Changes what a session may spend.
#[derive(Debug, Clone)]
pub struct SetBudget {
    /// Who asks.
    pub request: Request,
    /// Millionths of the account's currency: `None` = as it is, `Some(None)` = unlimited.
    pub cost_micros_max: Option<Option<u64>>,
    /// Input and output tokens together, likewise.
    pub tokens_max: Option<Option<u64>>,
}

/// A snapshot that was taken, and what to say of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCheckpoint {
    /// What it was taken for; a runner's own may be `explicit`, `turn` or `pass`.
    pub kind: CheckpointKind,
    /// The harness's own count of turns; `None` = the turns settled so far.
    pub turn: Option<u64>,
    /// The bytes, durable already.
    pub snapshot: SnapshotRef,
    /// What the server's own store needs to read them; `None` = they are another's.
    pub kept: Option<Kept>,
    /// How the harness gets its own state back.
    pub resume: ResumeFrom,
    /// The bytes of a blob, as `resume` describes them.
    pub blob: Option<Bytes>,
    /// For people.
    pub name: Option<String>,
    /// Caller's pairs, checked; JSON.
    pub metadata_json: String,
    /// The harness's own place, opaque.
    pub cursor: Option<String>,
}

impl NewCheckpoint {
    /// Of the files alone: the harness gets its own state back from the log.
    pub fn of(snapshot: SnapshotRef, kept: Option<Kept>) -> Self {
        Self {
            kind: CheckpointKind::Explicit,
            turn: None,
            snapshot,
            kept,
            resume: ResumeFrom::RebuildFromLog,
            blob: None,
            name: None,
            metadata_json: "{}".to_owned(),
            cursor: None,
        }
    }
}

/// How the server's own store finds a snapshot's bytes.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Kept {
    /// The store's own description.
    pub manifest: Vec<u8>,
    /// The packs that hold the bytes. They are counted.
    pub packs: Vec<[u8; 16]>,
}

/// What became of the snapshot at the end of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettleCheckpoint {
    /// It was taken.
    Made(Box<NewCheckpoint>),
    /// It was not, which changes nothing about the turn.
    Failed {
        /// Why, for people.
        reason: String,
        /// Whether the sandbox stays with the runner, attached: no other place has the files.
        stays: bool,
    },
}

/// Events of people.
#[derive(Debug, Clone)]
pub struct Submit {
    /// Who asks.
    pub request: Request,
    /// The `If-Match` position.
    pub expected_seq: Option<u64>,
    /// The events, in order; all or none.
    pub events: Vec<Input>,
}

/// Goes on with the conversation: a message, and where it must go on from.
#[derive(Debug, Clone)]
pub struct Resume {
    /// Who asks.
    pub request: Request,
    /// What is said.
    pub prompt: Prompt,
    /// The checkpoint that must be the newest; `None` = wherever the conversation is.
    pub checkpoint: Option<CheckpointId>,
}

/// A message to go on with.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// Who says it: a person, or the runtime where nothing was said.
    pub author: Author,
    /// The message.
    pub message: Input,
}

/// One event from outside, checked for form (see [`super::input`]).
#[derive(Debug, Clone)]
pub struct Input {
    /// Its type.
    pub kind: EventType,
    /// Its content: a JSON object, as received.
    pub content: Bytes,
    /// What the decision needs of it.
    pub ask: Ask,
}

/// What a decision needs to know of an event from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Nothing: it is only recorded.
    Record,
    /// A message: input for a run.
    Message,
    /// Ends the current turn.
    Interrupt,
    /// Closes an item; `None` = the only one open.
    Answer {
        /// The item.
        item: Option<EventId>,
        /// For approvals: whether it was granted.
        granted: Option<bool>,
        /// Whether the decision is to be remembered for the tool.
        remember: bool,
    },
    /// A signal by name.
    Signal {
        /// Its name.
        name: String,
    },
    /// Opens an item.
    Open,
    /// Closes a tool use of the agent's own.
    ToolResult {
        /// The `agent.tool_use`.
        tool_use: EventId,
    },
    /// Counts usage.
    Usage(Usage),
    /// Lets a summary stand for everything up to a position.
    Compact {
        /// The position.
        through_seq: u64,
    },
}

/// A time that has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// The runner was silent for a whole lease.
    Lease(TokenDigest),
    /// The attempt is not ready.
    Startup(TokenDigest),
    /// The attempt is past its absolute deadline.
    Deadline(TokenDigest),
    /// Compute was held long enough.
    Hold {
        /// The park it belongs to.
        parked_seq: u64,
    },
    /// The wait for a signal is over.
    Wait {
        /// The park it belongs to.
        parked_seq: u64,
        /// Which of its waits.
        index: u32,
    },
    /// The time of the checkpoint created at this position is over.
    Checkpoint {
        /// Position of its `checkpoint.created`.
        seq: u64,
    },
    /// Contents may be old enough to go.
    Contents {
        /// The event since which it was due.
        since_seq: u64,
    },
}
