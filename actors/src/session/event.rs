//! Events: their types, headers and envelopes.

use bincode::{Decode, Encode};
use bytes::Bytes;

use crate::ids::{EventId, RunId};

macro_rules! event_types {
    ($($name:ident = $tag:literal, $text:literal;)*) => {
        /// The type of an event. Tags are stored: never reused, never reordered.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum EventType {
            $(#[doc = $text] $name,)*
        }

        impl EventType {
            /// Every type, with its stored tag.
            pub const ALL: &'static [(EventType, u16)] = &[$((EventType::$name, $tag),)*];

            /// The stored tag.
            pub const fn tag(self) -> u16 {
                match self { $(EventType::$name => $tag,)* }
            }

            /// The type of a stored tag.
            pub const fn from_tag(tag: u16) -> Option<Self> {
                match tag { $($tag => Some(EventType::$name),)* _ => None }
            }

            /// `family.name`.
            pub const fn text(self) -> &'static str {
                match self { $(EventType::$name => $text,)* }
            }

            /// The type of a wire name.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(EventType::$name),)* _ => None }
            }
        }
    };
}

// Tags 1..=99 people, 100..=199 session, 200..=299 run, 300..=399 agent, 400..=499 items and
// signals, 500..=599 journal and usage, 600..=699 checkpoints, 700..=999 later families.
event_types! {
    UserMessage = 1, "user.message";
    UserInterrupt = 2, "user.interrupt";
    UserCustomToolResult = 3, "user.custom_tool_result";
    UserQuestionAnswer = 4, "user.question_answer";
    UserActionApproval = 5, "user.action_approval";
    UserSignal = 6, "user.signal";
    SessionCreated = 100, "session.created";
    SessionUpdated = 101, "session.updated";
    SessionStatus = 102, "session.status";
    SessionForked = 103, "session.forked";
    SessionLimitWarning = 104, "session.limit_warning";
    ContentErased = 105, "content.erased";
    RunQueued = 200, "run.queued";
    RunClaimed = 201, "run.claimed";
    RunStarted = 202, "run.started";
    RunInputsTaken = 203, "run.inputs_taken";
    RunRequeued = 204, "run.requeued";
    RunParked = 205, "run.parked";
    RunSettled = 206, "run.settled";
    AgentMessage = 300, "agent.message";
    AgentThinking = 301, "agent.thinking";
    AgentToolUse = 302, "agent.tool_use";
    AgentToolResult = 303, "agent.tool_result";
    AgentCustomToolUse = 304, "agent.custom_tool_use";
    AgentQuestion = 305, "agent.question";
    AgentActionApprovalRequested = 306, "agent.action_approval_requested";
    AgentContextCompacted = 307, "agent.context_compacted";
    ItemClosed = 400, "item.closed";
    SignalConsumed = 401, "signal.consumed";
    StepStarted = 500, "step.started";
    StepCompleted = 501, "step.completed";
    StepFailed = 502, "step.failed";
    StepResolved = 503, "step.resolved";
    UsageRecorded = 510, "usage.recorded";
    CheckpointCreated = 600, "checkpoint.created";
    CheckpointFailed = 601, "checkpoint.failed";
    CheckpointRejected = 602, "checkpoint.rejected";
    CheckpointPinned = 603, "checkpoint.pinned";
    CheckpointExpired = 604, "checkpoint.expired";
    CheckpointDeleted = 605, "checkpoint.deleted";
}

/// Families kept for later: their events exist, but nobody may write them.
pub const RESERVED_FAMILIES: &[&str] = &["outcome", "thread", "watch", "memory", "project"];

/// Who wrote an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum AuthorKind {
    /// A person or service.
    Principal,
    /// The agent, through its harness.
    Agent,
    /// A runner, for itself.
    Runner,
    /// The runtime.
    System,
}

impl AuthorKind {
    /// The wire form.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Principal => "principal",
            Self::Agent => "agent",
            Self::Runner => "runner",
            Self::System => "system",
        }
    }
}

/// Who wrote an event.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Author {
    /// What sort of author.
    pub kind: AuthorKind,
    /// Its id (a principal's name, a deployment's, a runner's, or `longhaul`).
    pub id: String,
}

impl Author {
    /// The runtime itself.
    pub fn system() -> Self {
        Self {
            kind: AuthorKind::System,
            id: "longhaul".to_owned(),
        }
    }

    /// A person or service.
    pub fn principal(id: impl Into<String>) -> Self {
        Self {
            kind: AuthorKind::Principal,
            id: id.into(),
        }
    }
}

/// What led to an event.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Cause {
    /// Nothing that has a name.
    None,
    /// Another event of this log.
    Event(EventId),
    /// A request from outside, by its id.
    Request(String),
}

/// Which attempt wrote an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct RunRef {
    /// The run.
    pub id: RunId,
    /// Its attempt, from 1 (0 before the first claim).
    pub attempt: u32,
}

/// What is known of an event without its content. Folding needs nothing else of events that
/// people and agents write, so that their content can be erased or expire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The type.
    pub kind: EventType,
    /// Schema version of the content.
    pub version: u16,
    /// The id; its low 40 bits are the position.
    pub id: EventId,
    /// When it was decided, milliseconds since the epoch.
    pub created_at_ms: i64,
    /// Who wrote it.
    pub author: Author,
    /// What led to it.
    pub cause: Cause,
    /// The attempt that wrote it.
    pub run: Option<RunRef>,
    /// Whether a turn settled or parked with it.
    pub boundary: bool,
    /// The earlier event it answers or belongs to (the tool use of a result, the item of an
    /// answer).
    pub refers: Option<EventId>,
    /// A name that folding needs (the name of a signal).
    pub label: Option<String>,
}

/// An event as folded: its position, header and, for the runtime's own events, its content.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Position in the log, from 1.
    pub seq: u64,
    /// Header.
    pub header: Header,
    /// Content.
    pub body: super::payload::Body,
}

/// An event ready to be stored: the fold's view and the bytes.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// What `evolve` sees.
    pub event: Event,
    /// The content as stored: JSON.
    pub content: Bytes,
}
