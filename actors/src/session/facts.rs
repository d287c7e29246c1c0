//! The few rows a decision needs that State must not hold for ever, and what each command needs.

use std::collections::BTreeMap;

use super::aging::Aging;
use super::command::{Command, Expiry, Verb};
use super::decision::Reply;
use super::journal::{StepKey, StepRow};
use super::payload::{ItemState, Outcome, ResumeFrom};
use super::state::{Answer, State};
use super::step::StepOp;
use crate::ids::{EventId, SessionId, TokenDigest};
use bincode::{Decode, Encode};
use bytes::Bytes;

/// What to load before a decision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Needs {
    /// The session's receipt under this scope.
    pub receipt: Option<[u8; 16]>,
    /// What a creation under this scope made, and its receipt.
    pub created: Option<[u8; 16]>,
    /// How this claim ended (its token is not the live one).
    pub ended_claim: Option<TokenDigest>,
    /// The numbered calls of this claim: the last number, and the answer to this one.
    pub calls: Option<(TokenDigest, u64)>,
    /// The items with these ids, open or closed.
    pub items: Vec<EventId>,
    /// Every untaken message from this position on.
    pub inputs_from: Option<u64>,
    /// Every input the run queued at this position ever took.
    pub taken_by: Option<u64>,
    /// Checkpoints with a resume blob, by position, newest first: the blobs up to the first that
    /// is what was said of it.
    pub blobs: Vec<(u64, ResumeFrom)>,
    /// The next contents to expire, seen from here.
    pub aged: Option<Aging>,
    /// The rows of the steps with these keys, where they ended.
    pub steps: Vec<StepKey>,
    /// The steps with these ids, where they ended.
    pub step_ids: Vec<EventId>,
}

impl Needs {
    /// Whether nothing has to be loaded.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What was loaded, overlaid with what the batch in progress has decided.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// The stored answer under the command's receipt scope.
    pub receipt: Option<Receipt>,
    /// What an earlier creation under the command's receipt scope made.
    pub created: Option<Earlier>,
    /// How the command's claim ended.
    pub ended_claim: Option<EndedClaim>,
    /// The last number used under the claim (0 = none).
    pub last_n: u64,
    /// The answer to the command's number, if it was used.
    pub call: Option<StoredCall>,
    /// Items by id: those of the live session that are known at all.
    pub items: BTreeMap<EventId, ItemFact>,
    /// Untaken messages, ascending.
    pub inputs: Vec<Answer>,
    /// Inputs taken by the run so far, ascending.
    pub taken: Vec<Answer>,
    /// Resume blobs by position of their checkpoint: the bytes, or why they are not to be used.
    pub blobs: BTreeMap<u64, Result<Bytes, String>>,
    /// The next contents to expire.
    pub aged: Option<Aged>,
    /// Steps that ended, by key.
    pub steps: BTreeMap<StepKey, StepRow>,
    /// Steps that ended, by id.
    pub step_ids: BTreeMap<EventId, EndedStep>,
}

/// A step that ended, with what it left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedStep {
    /// What names it.
    pub key: StepKey,
    /// What is kept of it.
    pub row: StepRow,
    /// The content of the event that ended it; `None` = it cannot be read (any more).
    pub content: Option<Bytes>,
}

/// Contents that can go in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aged {
    /// [`Aging::through_seq`] and [`Aging::kept_seq`] that this was found with.
    pub looked_at: (u64, u64),
    /// Positions by range, inclusive and ascending: contents that are there and can go.
    pub ranges: Vec<(u64, u64)>,
    /// See [`Aging::through_seq`], once they are gone.
    pub through_seq: u64,
    /// See [`Aging::kept_seq`], once they are gone.
    pub kept_seq: u64,
    /// The last position that living sessions share.
    pub shared_seq: u64,
}

/// A kept answer to an Idempotency-Key.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Receipt {
    /// Digest of the body it answered.
    pub body: [u8; 16],
    /// The answer.
    pub reply: Reply,
    /// When, milliseconds.
    pub at_ms: i64,
}

/// What a creation under an Idempotency-Key made. Its answer is kept with the session: erasing the
/// session takes it along, and this, which shows nothing, tells that there was one.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Created {
    /// Digest of the body it answered.
    pub body: [u8; 16],
    /// The session.
    pub session: SessionId,
    /// When, milliseconds.
    pub at_ms: i64,
}

/// An earlier creation under the same key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Earlier {
    /// What it made.
    pub made: Created,
    /// Whether that is erased by now.
    pub erased: bool,
}

/// A kept answer to a numbered call.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct StoredCall {
    /// The verb it answered.
    pub verb: String,
    /// The answer.
    pub reply: Reply,
}

/// Why a claim ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum LostReason {
    /// Its lease ran out.
    Lease,
    /// It was not ready in time.
    Startup,
    /// The turn was interrupted.
    Interrupted,
    /// The session was canceled (or erased).
    Canceled,
    /// It ran past its deadline.
    Deadline,
    /// It was given back.
    Released,
    /// It was parked, compute released.
    Parked,
    /// It settled.
    Settled,
}

impl LostReason {
    /// The wire form.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Startup => "startup",
            Self::Interrupted => "interrupted",
            Self::Canceled => "canceled",
            Self::Deadline => "deadline",
            Self::Released => "released",
            Self::Parked => "parked",
            Self::Settled => "settled",
        }
    }
}

/// How a claim ended, and the answer of the call that ended it, for an identical retry.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct EndedClaim {
    /// Why.
    pub reason: LostReason,
    /// The outcome, where it settled.
    pub outcome: Option<Outcome>,
    /// Digest of the body of the call that ended it (zero where none did).
    pub body: [u8; 16],
    /// The answer of that call.
    pub reply: Option<Reply>,
}

/// What is known of an item.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct ItemFact {
    /// How it ended; `None` = open.
    pub state: Option<ItemState>,
    /// The answer that closed it.
    pub answer: Option<Answer>,
}

/// What must be loaded for `command`, seen from `state`.
///
/// The state may change before the decision (an earlier command of the same batch), so this
/// asks for whatever the decision could need then.
pub fn needs(state: &State, command: &Command) -> Needs {
    let mut needs = Needs::default();
    match command {
        Command::Create(c) => needs.created = c.request.receipt.map(|r| r.scope),
        Command::Submit(s) => {
            needs.receipt = s.request.receipt.map(|r| r.scope);
            for input in &s.events {
                if let super::command::Ask::Answer { item: Some(id), .. } = &input.ask {
                    needs.items.push(*id);
                }
            }
        }
        Command::Resume(r) => {
            needs.receipt = r.request.receipt.map(|r| r.scope);
            // The same request may have made a fork, when its checkpoint was not the newest.
            needs.created = needs.receipt;
        }
        Command::Fork(f) => needs.created = f.request.receipt.map(|r| r.scope),
        Command::Operate(o) => needs.receipt = o.request.receipt.map(|r| r.scope),
        Command::Pin(p) => needs.receipt = p.request.receipt.map(|r| r.scope),
        Command::Budget(b) => needs.receipt = b.request.receipt.map(|r| r.scope),
        Command::Complete(r) | Command::Cancel(r) => needs.receipt = r.receipt.map(|r| r.scope),
        Command::Claim(_) => {
            needs.inputs_from = Some(state.untaken.map_or(state.last_seq + 1, |u| u.first_seq));
            needs.taken_by = state.run.as_ref().map(|r| r.queued_seq);
        }
        Command::Attempt(call) => {
            needs.ended_claim = Some(call.token).filter(|t| {
                // An earlier command of the batch may end this very claim; its row is then in
                // the overlay, so nothing has to be read for the live one.
                state.claim().is_none_or(|c| c.token != *t)
            });
            needs.calls = call.n.map(|n| (call.token, n));
            match &call.verb {
                Verb::Inputs => {
                    needs.inputs_from =
                        Some(state.untaken.map_or(state.last_seq + 1, |u| u.first_seq));
                }
                Verb::Steps { ops, .. } => {
                    for op in ops {
                        match op {
                            StepOp::Begin(b) => needs.steps.push(state.journal.key(&b.place)),
                            StepOp::Complete(c) => needs.step_ids.push(c.step),
                            StepOp::Fail(f) => needs.step_ids.push(f.step),
                            StepOp::Resolve(r) => needs.step_ids.push(r.step),
                        }
                    }
                }
                Verb::Park(p) => {
                    let ids = p.waiting_on.iter();
                    needs.items.extend(
                        ids.filter_map(|w| w.question_id.or(w.approval_id).or(w.tool_use_id)),
                    );
                }
                _ => {}
            }
        }
        Command::Expire(Expiry::Contents { .. }) => needs.aged = Some(state.aging),
        Command::Erase(_) | Command::Prune(_) | Command::Expire(_) => {}
    }
    needs
}
