//! What a decision gives back: events, the rows that are not a projection of state, the answer.

use bincode::{Decode, Encode};
use bytes::Bytes;
use serde_json::{Value, json};

use super::checkpoints::SnapshotKey;
use super::command::Kept;
use super::event::NewEvent;
use super::facts::{Created, EndedClaim, Receipt, StoredCall};
use super::operation::{Attached, Begun, Operation};
use super::payload::{Pin, ResumePlan, SnapshotRef};
use super::state::{Answer, Unread};
use super::step::StepsReply;
use crate::code::Rejection;
use crate::ids::{RunId, TokenDigest};

/// A decision. Nothing of it is true before its commit.
#[derive(Debug, Clone)]
pub struct Decision {
    /// Events to append, in order; may be empty.
    pub events: Vec<NewEvent>,
    /// Rows to write in the same commit.
    pub rows: Vec<RowOp>,
    /// The answer, given after the commit.
    pub reply: Reply,
    /// What a claim granted.
    pub granted: Option<Granted>,
    /// What an operation works with.
    pub begun: Option<Box<Begun>>,
    /// The answer, where what was asked is refused although something is written.
    pub refused: Option<Rejection>,
    /// Whether the stream is erased by this.
    pub erase: bool,
    /// Ranges of positions whose contents expire with this.
    pub expire: Vec<(u64, u64)>,
    /// When the timer that asked is to ask again, milliseconds of wall time.
    pub again_ms: Option<i64>,
}

/// Rows that answers to repeated requests are kept in.
#[derive(Debug, Clone, PartialEq)]
pub enum RowOp {
    /// Keeps the answer to an Idempotency-Key.
    Receipt([u8; 16], Receipt),
    /// Keeps which session a creation under an Idempotency-Key made.
    Created([u8; 16], Created),
    /// Keeps the answer to a numbered call.
    Call(TokenDigest, u64, StoredCall),
    /// A snapshot is there now.
    PutSnapshot(SnapshotKey, SnapshotRow),
    /// The resume blob of the checkpoint created at this position.
    PutBlob(u64, Bytes),
    /// The checkpoint created at this position gives nothing back any more.
    DropBlob(u64),
    /// A snapshot that is there already must still be, and not about to go.
    HoldSnapshot(SnapshotKey),
    /// Whose operation is under way: in memory only.
    Operation(Option<Operation>),
    /// The sandbox that is attached: in memory only, its folder is the provider's to keep.
    Attached(Option<Attached>),
    /// What the live run could not read for now: in memory only.
    Unread(Unread),
    /// Whether an operation left changes on the disk that no checkpoint has.
    Changed(bool),
    /// The claim is over: its numbered answers go, its end is kept.
    Ended(TokenDigest, EndedClaim),
}

/// A snapshot, whoever refers to it.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct SnapshotRow {
    /// As its provider knows it.
    pub snapshot: SnapshotRef,
    /// How the server's own store finds it; `None` = the bytes are another's.
    pub kept: Option<Kept>,
}

/// An answer on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// A JSON object.
    pub body: Vec<u8>,
    /// Events to add to the body as `inputs`, loaded when the answer is given.
    pub inputs: Option<Vec<Answer>>,
    /// Answers to operations on the journal: they are the body, with their values.
    pub steps: Option<StepsReply>,
}

impl Reply {
    /// An answer of the given status.
    pub fn json(status: u16, body: &Value) -> Self {
        Self {
            status,
            body: body.to_string().into_bytes(),
            inputs: None,
            steps: None,
        }
    }

    /// The answer to operations on the journal.
    pub fn of_steps(steps: StepsReply) -> Self {
        Self {
            status: 200,
            body: Vec::new(),
            inputs: None,
            steps: Some(steps),
        }
    }

    /// `200 {}`.
    pub fn ok() -> Self {
        Self::json(200, &json!({}))
    }
}

/// What a claim hands to its runner, beside the inputs in [`Reply::inputs`].
#[derive(Debug, Clone, PartialEq)]
pub struct Granted {
    /// The run.
    pub run: RunId,
    /// The attempt's number, from 1.
    pub attempt: u32,
    /// The run it goes on from.
    pub continues: Option<RunId>,
    /// By when it must be ready, milliseconds of wall time.
    pub startup_deadline_ms: i64,
    /// By when it must have settled.
    pub deadline_ms: i64,
    /// How it gets its past.
    pub resume: ResumePlan,
    /// The resume blob of the plan's checkpoint, verified.
    pub blob: Option<Bytes>,
    /// The agent to run.
    pub pin: Pin,
    /// Tools whose approval is decided already, and whether it was granted.
    pub remembered: Vec<(String, bool)>,
}
