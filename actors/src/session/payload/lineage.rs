//! `session.forked`: where a session comes from.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::{CheckpointId, EventId, RunnerId, SessionId};

/// What a fork was asked to start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    /// The end of the source's log at that moment.
    Head,
    /// An event, by id.
    EventId(EventId),
    /// An event, by position.
    Seq(u64),
    /// A checkpoint: its conversation and its disk.
    CheckpointId(CheckpointId),
}

/// `session.forked`: the first event of a fork's own, right after the boundary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct SessionForked {
    pub source_session_id: SessionId,
    /// The first session of the family.
    pub root_session_id: SessionId,
    pub selector: Selector,
    /// The last shared position, inclusive.
    pub boundary_seq: u64,
    pub boundary_event_id: EventId,
    pub principal: String,
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// The copy of the disk that a runner made for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<Adopted>,
}

/// A copy of a disk that a runner made for a fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
pub struct Adopted {
    /// Who has it.
    #[serde(rename = "runner_id")]
    pub runner: RunnerId,
    /// Its name for it.
    pub sandbox_ref: String,
}
