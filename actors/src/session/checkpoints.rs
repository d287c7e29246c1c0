//! The checkpoints of a session, as its state holds them: those that are listed.

use std::collections::BTreeMap;
use std::sync::Arc;

use bincode::{Decode, Encode};
use serde_json::{Value, json};

use super::payload::{CheckpointCreated, Pin, Retention, SnapshotRef, WorkspaceRef};
use crate::ids::{CheckpointId, RunnerId, SessionId};
use crate::time;

/// Whether the bytes of a checkpoint's snapshot are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum SnapshotState {
    /// They are.
    Live,
    /// Its time was over.
    Expired,
    /// They were deleted.
    Deleted,
}

impl SnapshotState {
    /// The wire form.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Expired => "expired",
            Self::Deleted => "deleted",
        }
    }
}

/// A listed checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Checkpoint {
    /// Position of its `checkpoint.created`.
    pub seq: u64,
    /// When that was, milliseconds.
    pub created_at_ms: i64,
    /// What was said then.
    pub created: CheckpointCreated,
    /// Whether it is exempt from the count.
    pub pinned: bool,
    /// Its bytes.
    pub snapshot_state: SnapshotState,
    /// Why it is never used again, if so.
    pub rejected: Option<String>,
}

impl Checkpoint {
    /// Whether its time is over at `now_ms`.
    pub fn is_over(&self, now_ms: i64) -> bool {
        now_ms >= self.created.expires_at_ms
    }

    /// Whether its snapshot holds a counted reference.
    pub fn holds_bytes(&self) -> bool {
        self.snapshot_state == SnapshotState::Live
    }

    /// The identity of its snapshot.
    pub fn snapshot_key(&self, workspace: WorkspaceRef) -> SnapshotKey {
        SnapshotKey::of(workspace, &self.created.snapshot)
    }

    /// As listed, of a session with this agent.
    pub fn json(&self, session: SessionId, pin: Option<&Pin>) -> Value {
        let c = &self.created;
        let s = &c.snapshot;
        let metadata: Value = serde_json::from_str(&c.metadata_json).unwrap_or_default();
        json!({
            "id": c.checkpoint_id,
            "session_id": session,
            "run_id": c.run_id,
            "parent_checkpoint_id": c.parent_checkpoint_id,
            "through_sequence": c.through_sequence,
            "through_event_id": c.through_event_id,
            "harness_revision": pin.map(|p| p.harness_revision),
            "sandbox_profile_revision": pin.map(|p| p.sandbox_profile_revision),
            "agent_deployment": pin.map(|p| p.agent_deployment),
            "agent_deployment_revision_number": pin.map(|p| p.agent_deployment_revision_number),
            "kind": c.kind,
            "name": c.name,
            "metadata": metadata,
            "turn": c.turn,
            "cumulative_usage": c.cumulative_usage,
            "cursor": c.cursor,
            "pinned": self.pinned,
            "rejected": self.rejected,
            "resume": c.resume,
            "snapshot": {
                "id": s.id,
                "provider": s.provider,
                "retention": s.retention,
                "runner_id": s.runner_id,
                "bytes": s.bytes,
                "state": self.snapshot_state.text(),
            },
            "created_at": time::rfc3339(self.created_at_ms),
            "expires_at": time::rfc3339(c.expires_at_ms),
        })
    }
}

/// The identity of a snapshot: workspace, provider, runner where only that one has it, and the
/// provider's id; as a digest, to name rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct SnapshotKey(pub [u8; 16]);

impl SnapshotKey {
    /// The key of a snapshot.
    pub fn of(workspace: WorkspaceRef, snapshot: &SnapshotRef) -> Self {
        let local = snapshot.retention == Retention::HostLocal;
        let runner = snapshot.runner_id.filter(|_| local);
        let mut hasher = blake3::Hasher::new_derive_key("longhaul snapshot key v1");
        hasher.update(&workspace.0.0);
        hasher.update(&runner.map_or([0; 16], |r| r.0));
        for part in [&snapshot.provider, &snapshot.id] {
            // Lengths first, so that no two pairs read alike.
            hasher.update(&(part.len() as u64).to_be_bytes());
            hasher.update(part.as_bytes());
        }
        let mut out = [0; 16];
        hasher.finalize_xof().fill(&mut out);
        Self(out)
    }
}

/// Who alone can restore this snapshot.
pub fn owner(snapshot: &SnapshotRef) -> Option<RunnerId> {
    // Snapshots of the built-in provider lie in its own store, whatever is promised of them.
    let only = snapshot.retention == Retention::HostLocal || snapshot.provider == DIR;
    snapshot.runner_id.filter(|_| only)
}

/// The provider of sandboxes in plain directories.
pub const DIR: &str = "dir";

/// The listed checkpoints by position. They are rows of their own beside the log, written in the
/// commits that change them, so a stored state does not repeat them: it encodes as nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checkpoints(pub BTreeMap<u64, Arc<Checkpoint>>);

impl Checkpoints {
    /// By id.
    pub fn find(&self, id: CheckpointId) -> Option<&Arc<Checkpoint>> {
        self.newest_first().find(|c| c.created.checkpoint_id == id)
    }

    /// Newest first.
    pub fn newest_first(&self) -> impl Iterator<Item = &Arc<Checkpoint>> {
        self.0.values().rev()
    }

    /// The newest, usable or not.
    pub fn head(&self) -> Option<&Arc<Checkpoint>> {
        self.newest_first().next()
    }

    /// Changes one in place.
    pub(crate) fn change(&mut self, id: CheckpointId, change: impl FnOnce(&mut Checkpoint)) {
        let found = self.0.values_mut().rev();
        if let Some(c) = found.into_iter().find(|c| c.created.checkpoint_id == id) {
            change(Arc::make_mut(c));
        }
    }
}

crate::codec::encodes_as_nothing!(Checkpoints);
