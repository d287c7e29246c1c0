//! What the routes of runtime control read and answer. Contents and output are base64.

use std::collections::BTreeMap;

use longhaul_actors::ids::CheckpointId;
use longhaul_actors::session::payload::{Began, RebuildReason};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// `resume`, `close`.
#[derive(Deserialize, ToSchema)]
#[schema(as = RuntimeRequest)]
#[serde(deny_unknown_fields)]
pub(super) struct Runtime {
    /// The session's id.
    pub(super) runtime_id: String,
}

/// `checkpoint`, `pause`.
#[derive(Deserialize, ToSchema)]
#[schema(as = RuntimeKeepRequest)]
#[serde(deny_unknown_fields)]
pub(super) struct Keep {
    /// The session's id.
    pub(super) runtime_id: String,
    /// For people; 1 to 512 bytes.
    #[serde(default)]
    pub(super) name: Option<String>,
    /// At most 16 pairs: keys of 1 to 64 bytes, scalars of at most 512 bytes of JSON.
    #[serde(default)]
    pub(super) metadata: Map<String, Value>,
}

/// `checkout`.
#[derive(Deserialize, ToSchema)]
#[schema(as = RuntimeCheckoutRequest)]
#[serde(deny_unknown_fields)]
pub(super) struct Checkout {
    /// A listed checkpoint whose snapshot is live.
    pub(super) checkpoint_id: String,
    /// 1 to 500 bytes; absent = the new session's id.
    #[serde(default)]
    pub(super) conversation_id: Option<String>,
    /// 1 to 500 bytes; absent = the principal.
    #[serde(default)]
    pub(super) sender_id: Option<String>,
}

/// `checkpoint/delete-snapshot`.
#[derive(Deserialize, ToSchema)]
#[schema(as = RuntimeDeleteSnapshotRequest)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteSnapshot {
    /// A listed checkpoint.
    pub(super) checkpoint_id: String,
    /// Also where other checkpoints of the session share the snapshot: they lose it too.
    #[serde(default)]
    pub(super) force: bool,
}

/// `exec`.
#[derive(Deserialize, ToSchema)]
#[schema(as = RuntimeExecRequest)]
#[serde(deny_unknown_fields)]
pub(super) struct Run {
    /// The session's id.
    pub(super) runtime_id: String,
    /// For `bash -c`; at most 131,071 bytes, without NUL.
    pub(super) command: String,
    /// Folder inside the sandbox; absent = its root.
    #[serde(default)]
    pub(super) cwd: Option<String>,
    /// 1 to 300,000; the sandbox's own limit holds too.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 300_000)]
    pub(super) timeout_ms: Option<u64>,
    /// Variables: each at most 131,071 bytes with its name, 1 MiB together.
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
}

/// `read-file`.
#[derive(Deserialize, ToSchema)]
#[schema(as = RuntimeReadFileRequest)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadFile {
    /// The session's id.
    pub(super) runtime_id: String,
    /// Relative to the sandbox's root; a file of at most 16 MiB.
    pub(super) path: String,
}

/// `write-file`.
#[derive(Deserialize, ToSchema)]
#[schema(as = RuntimeWriteFileRequest)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteFile {
    /// The session's id.
    pub(super) runtime_id: String,
    /// Relative to the sandbox's root; folders on the way are made.
    pub(super) path: String,
    /// The whole content.
    pub(super) content_base64: String,
}

/// A session as runtime control shows it.
#[derive(ToSchema)]
#[schema(as = RuntimeRecord)]
#[expect(dead_code, reason = "a description of the wire")]
pub(super) struct RecordFields {
    /// The session's id.
    runtime_id: String,
    /// As said at the checkout, else the session's id.
    conversation_id: String,
    /// As said at the checkout, else the principal.
    sender_id: String,
    /// The session's status.
    status: String,
    /// Milliseconds since 1970.
    created_at_ms: i64,
    /// Milliseconds since 1970.
    updated_at_ms: i64,
}

/// What a disk began as that is not the one the session had last.
#[derive(Serialize, ToSchema)]
#[schema(as = RuntimeResume)]
pub(super) struct Resume {
    /// `event_log_rebuild`: empty; `checkpoint`: as an older checkpoint has it.
    kind: &'static str,
    /// Of `event_log_rebuild`: `snapshot_deleted`, `checkpoint_expired`, `checkpoint_rejected`,
    /// `snapshot_unreachable`, `sandbox_lost`, `forked`, `history_incomplete` or `no_checkpoint`.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<RebuildReason>,
    /// Of `checkpoint`: which one.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<CheckpointId>,
    /// Of `checkpoint`: the last position that it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    through_sequence: Option<u64>,
    /// Of `checkpoint`: what was to be had instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    instead_of: Option<Instead>,
}

/// The disk that was not to be had.
#[derive(Serialize, ToSchema)]
#[schema(as = RuntimeResumeInsteadOf)]
pub(super) struct Instead {
    /// The newest checkpoint; absent = what is missing came after it.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<CheckpointId>,
    /// `snapshot_deleted`, `checkpoint_expired`, `checkpoint_rejected`, `snapshot_unreachable`,
    /// `snapshot_unreadable`, `snapshot_failed` or `sandbox_lost`.
    #[schema(value_type = String)]
    reason: RebuildReason,
}

impl From<Began> for Resume {
    fn from(began: Began) -> Self {
        match began {
            Began::EventLogRebuild { reason } => Self {
                kind: "event_log_rebuild",
                reason: Some(reason),
                id: None,
                through_sequence: None,
                instead_of: None,
            },
            Began::Checkpoint(older) => Self {
                kind: "checkpoint",
                reason: None,
                id: Some(older.id),
                through_sequence: Some(older.through_sequence),
                instead_of: Some(Instead {
                    id: older.instead_of.id,
                    reason: older.instead_of.reason,
                }),
            },
        }
    }
}

/// Answer of `close`.
#[derive(ToSchema)]
#[schema(as = RuntimeAnswer)]
#[expect(dead_code, reason = "a description of the wire")]
pub(super) struct Record {
    runtime: RecordFields,
}

/// Answer of `resume`.
#[derive(ToSchema)]
#[schema(as = RuntimeResumeAnswer)]
#[expect(dead_code, reason = "a description of the wire")]
pub(super) struct Resumed {
    runtime: RecordFields,
    /// Absent where the disk is the one before.
    resume: Option<Resume>,
}

/// Answer of `checkpoint` and `pause`.
#[derive(ToSchema)]
#[schema(as = RuntimeKeepAnswer)]
#[expect(dead_code, reason = "a description of the wire")]
pub(super) struct Kept {
    runtime: RecordFields,
    /// The new checkpoint.
    checkpoint_id: String,
    /// The newest one before it.
    parent_checkpoint_id: Option<String>,
    name: Option<String>,
    metadata: Map<String, Value>,
    /// Absent where the disk is the one before.
    resume: Option<Resume>,
}

/// Answer of `checkout`.
#[derive(ToSchema)]
#[schema(as = RuntimeCheckoutAnswer)]
#[expect(dead_code, reason = "a description of the wire")]
pub(super) struct CheckedOut {
    /// The new session.
    runtime: RecordFields,
    source_runtime_id: String,
    checkpoint_id: String,
}

/// Answer of `checkpoint/delete-snapshot`.
#[derive(ToSchema)]
#[schema(as = RuntimeDeleteSnapshotAnswer)]
#[expect(dead_code, reason = "a description of the wire")]
pub(super) struct Deleted {
    runtime_id: String,
    checkpoint_id: String,
    /// `false`: it was gone already.
    deleted_provider_snapshot: bool,
    runtime: RecordFields,
}

/// Answer of `exec`.
#[derive(Serialize, ToSchema)]
#[schema(as = RuntimeExecAnswer)]
pub(super) struct Output {
    pub(super) stdout_base64: String,
    pub(super) stderr_base64: String,
    /// 128 + signal where a signal ended it; null = it was stopped.
    pub(super) exit_code: Option<i32>,
    /// Whether it was stopped because its time was over.
    pub(super) timed_out: bool,
    /// Bytes of output beyond the sandbox's limit.
    pub(super) dropped_bytes: u64,
    /// Absent where the disk is the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resume: Option<Resume>,
}

/// Answer of `read-file`.
#[derive(Serialize, ToSchema)]
#[schema(as = RuntimeReadFileAnswer)]
pub(super) struct Content {
    pub(super) content_base64: String,
    /// Absent where the disk is the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resume: Option<Resume>,
}

/// Answer of `write-file`.
#[derive(Serialize, ToSchema)]
#[schema(as = RuntimeWriteFileAnswer)]
pub(super) struct Written {
    /// Absent where the disk is the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resume: Option<Resume>,
}
