//! `checkpoint.*`: what is known of a way back, never its contents.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

use super::Usage;
use crate::ids::{CheckpointId, EventId, RunId, RunnerId};

/// What a checkpoint was taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointKind {
    /// A turn settled.
    Settle,
    /// Somebody asked for it.
    Explicit,
    /// The runtime was paused.
    Pause,
    /// A fork started from another session's checkpoint.
    Fork,
    /// A turn of an agent's loop.
    Turn,
    /// A pass of an agent's loop.
    Pass,
}

/// Who can reach the bytes of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "snake_case")]
pub enum Retention {
    /// Only the runner that took it.
    HostLocal,
    /// Any runner of the provider.
    Platform,
}

/// The bytes of a disk, as their provider knows them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
pub struct SnapshotRef {
    /// The provider's name for it.
    pub id: String,
    /// The provider.
    pub provider: String,
    /// Who can reach it.
    pub retention: Retention,
    /// Who took it, or holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_id: Option<RunnerId>,
    /// Bytes of the disk it holds (not of what it costs).
    pub bytes: u64,
}

/// How the harness gets its own state back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ResumeFrom {
    /// From the conversation in the log.
    RebuildFromLog,
    /// From bytes of its own, given back as they were.
    Blob {
        /// Length, bytes.
        size: u64,
        /// BLAKE3, hexadecimal.
        digest: String,
        /// The harness's own word for their form.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        schema: Option<String>,
    },
}

/// `checkpoint.created`. One is written every turn: what is empty is left out, and so is what
/// `session.created` says once for all of them (the agent's revisions), or its own event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct CheckpointCreated {
    pub checkpoint_id: CheckpointId,
    pub kind: CheckpointKind,
    /// The run it was taken in, where that is not the event's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_checkpoint_id: Option<CheckpointId>,
    /// What it holds of the conversation: everything up to this position.
    pub through_sequence: u64,
    pub through_event_id: EventId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Caller's pairs: a JSON object, as text.
    #[serde(
        default = "json_text::empty",
        skip_serializing_if = "json_text::is_empty",
        with = "json_text",
        rename = "metadata"
    )]
    pub metadata_json: String,
    /// Turns settled so far; with kinds `turn` and `pass` the harness's own count.
    pub turn: u64,
    #[serde(default, skip_serializing_if = "Usage::is_none")]
    pub cumulative_usage: Usage,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    pub resume: ResumeFrom,
    pub snapshot: SnapshotRef,
    #[serde(rename = "expires_at", with = "crate::time::wire")]
    pub expires_at_ms: i64,
}

/// `checkpoint.failed`: there is no checkpoint, and nothing else changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct CheckpointFailed {
    pub kind: CheckpointKind,
    pub reason: String,
}

/// `checkpoint.rejected`: it does not verify and is never used again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct CheckpointRejected {
    pub checkpoint_id: CheckpointId,
    pub reason: String,
}

/// `checkpoint.pinned`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct CheckpointPinned {
    pub checkpoint_id: CheckpointId,
    pub pinned: bool,
}

/// `checkpoint.expired`: its time was over; it stays listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct CheckpointExpired {
    pub checkpoint_id: CheckpointId,
}

/// What went of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "snake_case")]
pub enum DeletedWhat {
    /// All of it: there were too many, or it was pruned. It is no longer listed.
    Checkpoint,
    /// The snapshot's bytes. It stays listed.
    Snapshot,
}

/// `checkpoint.deleted`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct CheckpointDeleted {
    pub checkpoint_id: CheckpointId,
    pub what: DeletedWhat,
}

/// A JSON object kept as text, so that it can be stored without a schema.
mod json_text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::Value;

    const EMPTY: &str = "{}";

    pub(super) fn empty() -> String {
        EMPTY.to_owned()
    }

    pub(super) fn is_empty(text: &str) -> bool {
        text == EMPTY
    }

    pub(super) fn serialize<S: Serializer>(text: &str, s: S) -> Result<S::Ok, S::Error> {
        let value: Value = serde_json::from_str(text).map_err(serde::ser::Error::custom)?;
        value.serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
        Value::deserialize(d).map(|v| v.to_string())
    }
}
