//! What a session is, folded from its log. It holds open things, not history.

use std::collections::{BTreeMap, VecDeque};

use bincode::{Decode, Encode};

use super::aging::Aging;
use super::checkpoints::Checkpoints;
use super::journal::Journal;
use super::operation::{Attached, Operation};
use super::payload::{
    Adopted, Budget, Compute, Outcome, Pin, ResumePlan, RetentionPolicy, RunError, Trigger, Usage,
    WaitingOn, WorkspaceRef,
};
use super::status::Status;
use crate::ids::{EventId, RunId, RunnerId, SessionId, TokenDigest};

/// Models whose usage is told apart; what comes after them is counted as [`OTHER_MODELS`].
pub const MODELS_MAX: usize = 32;
/// See [`MODELS_MAX`].
pub const OTHER_MODELS: &str = "other";
/// Longest name of a model that is told apart, bytes.
const MODEL_BYTES_MAX: usize = 256;
/// Tools whose decisions are remembered; the oldest is forgotten.
pub const REMEMBERED_MAX: usize = 64;

/// A session after its last event. `State::default()` is the session before its first.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct State {
    /// The session.
    pub id: SessionId,
    /// Position of the last folded event.
    pub last_seq: u64,
    /// Its id.
    pub last_id: EventId,
    /// What `session.created` said; `None` before it.
    pub about: Option<About>,
    /// Where it is.
    pub status: Status,
    /// When its first and last events were decided, milliseconds.
    pub created_at_ms: i64,
    /// See `created_at_ms`.
    pub updated_at_ms: i64,
    /// Messages that no run has taken: every message from `first_seq` on.
    pub untaken: Option<Untaken>,
    /// The live run (also while parked).
    pub run: Option<LiveRun>,
    /// The run that settled last.
    pub last_run: Option<SettledRun>,
    /// Open questions, approvals and tool calls, by the position that opened them.
    pub items: BTreeMap<u64, Item>,
    /// Signals nobody has consumed, oldest first.
    pub signals: VecDeque<Signal>,
    /// Spent by this session's own runs.
    pub usage: Usage,
    /// The part of it that named its model, by model; see [`MODELS_MAX`].
    pub spent: BTreeMap<String, Usage>,
    /// The journal of the live run's chain, or of the one that failed last.
    pub journal: Journal,
    /// Decisions on tools that people want remembered, oldest first; see [`REMEMBERED_MAX`].
    pub remembered: Vec<(String, bool)>,
    /// Whether any attempt was ever ready, shared history included.
    pub ever_started: bool,
    /// Where it comes from, if it is a fork.
    pub forked: Option<Forked>,
    /// Whether any attempt was ready since the fork (or since the start, if it is none).
    pub started_here: bool,
    /// Whether it ever had a checkpoint of its own.
    pub ever_checkpointed: bool,
    /// Spent by the shared history of a fork.
    pub inherited_usage: Usage,
    /// Turns settled, shared history included.
    pub turns: u64,
    /// The newest compaction of its conversation.
    pub compacted: Option<Compacted>,
    /// Ranges of positions, inclusive and ascending, whose content cannot be read any more. The
    /// last one swallows what is between when there would be too many.
    pub missing: Vec<(u64, u64)>,
    /// How old its contents are.
    pub aging: Aging,
    /// Its checkpoints.
    pub checkpoints: Checkpoints,
    /// What is not folded from the log, and gone with the process.
    pub now: Now,
    /// The greatest limit mark (percent) already warned of.
    pub warned_percent: u8,
    /// Position of the last turn's end whose disk was to be kept and was not; 0 = none.
    pub unkept_seq: u64,
}

/// What was fixed, or last set, about a session.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct About {
    /// The tenant.
    pub workspace: WorkspaceRef,
    /// Who the session acts as.
    pub principal: String,
    /// The agent as pinned.
    pub pin: Pin,
    /// Caller's pairs, as JSON text (values are scalars).
    pub metadata_json: String,
    /// What it may spend.
    pub budget: Option<Budget>,
    /// What its workspace says of keeping things.
    pub retention: RetentionPolicy,
}

/// What is true of a session in this process only. It encodes as nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Whose operation is under way.
    pub operation: Option<Operation>,
    /// The first position whose content is in memory, where none is ever written.
    pub contents_from: u64,
    /// The sandbox that an operation left.
    pub attached: Option<Attached>,
    /// What the live run could not read for now.
    pub unread: Option<Unread>,
    /// Whether an operation left changes on the disk that no checkpoint has. It is a row beside
    /// the log, so that it is known after the sandbox and the process are gone.
    pub changed: bool,
}

/// A checkpoint whose bytes are there and could not be read: not its fault for good, so nothing
/// of it is written. The run goes on from an older one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unread {
    /// The run that could not; it holds for this one only.
    pub run: RunId,
    /// Position of the checkpoint. Those after it are not tried again either.
    pub from_seq: u64,
}

/// Where a fork comes from.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Forked {
    /// The session it was forked from.
    pub source: SessionId,
    /// The first session of the family.
    pub root: SessionId,
    /// The last shared position.
    pub boundary_seq: u64,
    /// The copy of the disk that a runner made for it; until its first run is ready.
    pub adopted: Option<Adopted>,
}

/// A contiguous tail of messages not yet taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Untaken {
    /// The first one's position.
    pub first_seq: u64,
    /// Its id.
    pub first_id: EventId,
    /// How many.
    pub count: u32,
}

/// A compaction: what stands for everything before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Compacted {
    /// Position of its `agent.context_compacted`.
    pub seq: u64,
    /// The last position that it stands for.
    pub through_seq: u64,
}

/// Where a live run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Phase {
    /// Offered to runners from `not_before_ms` on.
    Queued,
    /// A runner prepares.
    Claimed,
    /// The harness works.
    Running,
    /// Parked; the runner holds its compute.
    Waiting,
    /// Parked; no claim.
    Parked,
    /// Deliverables are being settled.
    Reconciling,
}

impl Phase {
    /// The wire form of the run's state.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Claimed => "claimed",
            Self::Running => "running",
            Self::Waiting | Self::Parked => "waiting",
            Self::Reconciling => "reconciling",
        }
    }
}

/// The one live run of a session.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct LiveRun {
    /// The run.
    pub id: RunId,
    /// Position of its `run.queued`.
    pub queued_seq: u64,
    /// When that was, milliseconds.
    pub queued_at_ms: i64,
    /// What started it.
    pub trigger: Trigger,
    /// The run it goes on from.
    pub continues: Option<RunId>,
    /// Number of the current attempt; 0 before the first claim.
    pub attempt: u32,
    /// Attempts lost so far (they count against the most allowed).
    pub lost: u32,
    /// Where it is.
    pub phase: Phase,
    /// Not offered before, milliseconds of wall time.
    pub not_before_ms: i64,
    /// The claim of the current attempt, while one is held.
    pub claim: Option<Claim>,
    /// What a park waits for, in the order given. Empty unless parked.
    pub waits: Vec<Wait>,
    /// Position of the `run.parked` in force.
    pub parked_seq: u64,
    /// Its id (0 before any park).
    pub parked_id: EventId,
    /// Until when compute may be held, milliseconds of wall time (0 = not held).
    pub hold_until_ms: i64,
    /// Answers that the run waited for and has not taken yet, in log order.
    pub answers: Vec<Answer>,
    /// Spent so far, over all attempts.
    pub usage: Usage,
    /// The last event that it wrote or took.
    pub at: Answer,
}

/// A runner's right to the current attempt. Its lease lives in memory only.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Claim {
    /// Digest of the token.
    pub token: TokenDigest,
    /// Who holds it.
    pub runner: RunnerId,
    /// When it was made, milliseconds of wall time.
    pub claimed_at_ms: i64,
    /// By when it must be ready.
    pub startup_deadline_ms: i64,
    /// By when it must have settled, whatever it does.
    pub deadline_ms: i64,
    /// How the attempt gets its past.
    pub resume: ResumePlan,
}

/// One thing a park waits for, and whether it is in.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Wait {
    /// What.
    pub on: WaitingOn,
    /// Whether it is over (answered, closed, consumed or expired).
    pub done: bool,
}

/// An answer or signal that a run waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Answer {
    /// Its position.
    pub seq: u64,
    /// Its id.
    pub id: EventId,
}

/// What sort of item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum ItemKind {
    /// `agent.question`.
    Question,
    /// `agent.action_approval_requested`.
    Approval,
    /// `agent.custom_tool_use`.
    CustomTool,
    /// `agent.tool_use` without its result.
    ToolUse,
}

impl ItemKind {
    /// The wire form.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Question => "question",
            Self::Approval => "approval",
            Self::CustomTool => "custom_tool",
            Self::ToolUse => "tool_use",
        }
    }
}

/// An open item.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Item {
    /// What sort.
    pub kind: ItemKind,
    /// Its id: that of the event that opened it.
    pub id: EventId,
    /// The attempt that opened it (a lost attempt's tool calls are closed at settlement).
    pub attempt: u32,
    /// The tool that an approval is about.
    pub tool: Option<String>,
}

/// A signal nobody has consumed.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Signal {
    /// Its name.
    pub name: String,
    /// Its position.
    pub seq: u64,
    /// Its id.
    pub id: EventId,
}

/// A run that is over.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct SettledRun {
    /// The run.
    pub id: RunId,
    /// Position of its `run.queued`.
    pub queued_seq: u64,
    /// When that was, milliseconds.
    pub queued_at_ms: i64,
    /// When it settled, milliseconds.
    pub settled_at_ms: i64,
    /// What started it.
    pub trigger: Trigger,
    /// The run it went on from.
    pub continues: Option<RunId>,
    /// Its last attempt.
    pub attempt: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, if badly.
    pub error: Option<RunError>,
    /// What it cost.
    pub usage: Usage,
    /// Answers it did not take: its continuation does.
    pub answers: Vec<Answer>,
}

impl State {
    /// The session before its first event.
    pub fn new(id: SessionId) -> Self {
        Self {
            id,
            last_seq: 0,
            last_id: EventId([0; 16]),
            about: None,
            status: Status::Pending,
            created_at_ms: 0,
            updated_at_ms: 0,
            untaken: None,
            run: None,
            last_run: None,
            items: BTreeMap::new(),
            signals: VecDeque::new(),
            usage: Usage::default(),
            spent: BTreeMap::new(),
            journal: Journal::default(),
            remembered: Vec::new(),
            ever_started: false,
            forked: None,
            started_here: false,
            ever_checkpointed: false,
            inherited_usage: Usage::default(),
            turns: 0,
            compacted: None,
            missing: Vec::new(),
            aging: Aging::default(),
            checkpoints: Checkpoints::default(),
            now: Now::default(),
            warned_percent: 0,
            unkept_seq: 0,
        }
    }

    /// Whether no content is ever written.
    pub fn keeps_nothing(&self) -> bool {
        let about = self.about.as_ref();
        about.is_some_and(|a| a.retention.zero_data_retention)
    }

    /// How long contents stay after the last activity, milliseconds; `None` = for good (or
    /// there are none).
    pub fn content_ttl_ms(&self) -> Option<i64> {
        let about = self.about.as_ref().filter(|_| !self.keeps_nothing());
        let ttl_s = about.and_then(|a| a.retention.content_ttl_s)?;
        Some(i64::try_from(ttl_s.saturating_mul(1_000)).unwrap_or(i64::MAX))
    }

    /// How many messages wait for a run.
    pub fn untaken_count(&self) -> u32 {
        self.untaken.map_or(0, |u| u.count)
    }

    /// The claim of the live run, if one is held.
    pub fn claim(&self) -> Option<&Claim> {
        self.run.as_ref().and_then(|r| r.claim.as_ref())
    }

    /// Whether the budget is spent.
    pub fn budget_exceeded(&self) -> bool {
        self.would_exceed(self.usage)
    }

    /// Whether the budget would be spent with that.
    pub fn would_exceed(&self, usage: Usage) -> bool {
        let budget = self.about.as_ref().and_then(|a| a.budget.as_ref());
        budget.is_some_and(|b| usage.exceeds(b))
    }

    /// Counts usage.
    pub(super) fn spend(&mut self, usage: Usage, model: Option<&str>) {
        self.usage = self.usage.plus(usage);
        if let Some(run) = &mut self.run {
            run.usage = run.usage.plus(usage);
        }
        let Some(model) = model else { return };
        let full = self.spent.len() >= MODELS_MAX && !self.spent.contains_key(model);
        let name = match full || model.len() > MODEL_BYTES_MAX {
            true => OTHER_MODELS,
            false => model,
        };
        match self.spent.get_mut(name) {
            Some(sum) => *sum = sum.plus(usage),
            None => drop(self.spent.insert(name.to_owned(), usage)),
        }
    }

    /// Remembers a decision on a tool, the newest for each.
    pub(super) fn remember(&mut self, tool: &str, granted: bool) {
        self.remembered.retain(|(t, _)| t != tool);
        if self.remembered.len() >= REMEMBERED_MAX {
            self.remembered.remove(0);
        }
        self.remembered.push((tool.to_owned(), granted));
    }

    /// Whether a park of this run keeps its compute.
    pub fn holds_compute(&self) -> bool {
        self.run.as_ref().is_some_and(|r| r.phase == Phase::Waiting)
    }
}

impl LiveRun {
    /// Whether everything it waits for is in.
    pub fn all_in(&self) -> bool {
        self.waits.iter().all(|w| w.done)
    }

    /// What its park said about compute.
    pub fn compute(&self) -> Compute {
        if self.phase == Phase::Waiting {
            Compute::Held
        } else {
            Compute::Released
        }
    }
}

crate::codec::encodes_as_nothing!(Now);
