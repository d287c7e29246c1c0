//! Keys of `current` rows and kinds of history rows: hand-laid, big-endian. Tags are stored:
//! never reused.

use bytes::{BufMut, Bytes, BytesMut};

use crate::ids::{CheckpointId, DeploymentId, RunnerId, SessionId, TokenDigest, WorkspaceId};
use crate::session::checkpoints::SnapshotKey;
use crate::session::payload::WorkspaceRef;
use crate::session::projection::{Due, TimerRow};

/// Sessions by workspace.
pub const SESSION: u8 = 1;
/// Sessions with a live run.
pub const LIVE: u8 = 2;
/// Durable timers, by time.
pub const TIMER: u8 = 3;
/// Answers to Idempotency-Keys of requests to no session.
pub const RECEIPT: u8 = 4;
/// Answers to numbered calls of live claims.
pub const CALL: u8 = 5;
/// How claims ended.
pub const ENDED: u8 = 6;
/// Deployment revisions by workspace.
pub const DEPLOYMENT: u8 = 7;
/// Workspaces.
pub const WORKSPACE: u8 = 8;
/// Enrolled runners.
pub const RUNNER: u8 = 9;
/// Erased sessions whose bytes are still to be purged.
pub const PURGE: u8 = 10;
/// Answers to Idempotency-Keys of requests to a session; they show it, so they go with it.
pub const SESSION_RECEIPT: u8 = 11;
/// Which session the creation under an Idempotency-Key made.
pub const CREATED: u8 = 12;

/// Listed checkpoints, by session.
pub const CHECKPOINT: u8 = 13;
/// Sessions of checkpoints, by the checkpoint's id.
pub const CHECKPOINT_ID: u8 = 14;
/// Snapshots.
pub const SNAPSHOT: u8 = 15;
/// Counted references to snapshots: by checkpoints, and by clones in progress.
pub const SNAPSHOT_HOLDER: u8 = 16;
/// Snapshots that lost a reference: their bytes may have to go.
pub const COLLECT: u8 = 17;
/// Snapshots about to go: no new reference is made to them.
pub const DOOMED: u8 = 18;
/// Forks, by the first session of their family.
pub const MEMBER: u8 = 19;
/// Counted references to packs: by snapshots.
pub const PACK_HOLDER: u8 = 20;
/// What is missing of sessions whose contents have expired.
pub const EXPIRED: u8 = 21;

/// Resume blobs, by session and position of their checkpoint.
pub const BLOB: u8 = 22;
/// Sessions whose disk operations changed since the newest checkpoint.
pub const CHANGED: u8 = 23;

/// History: one row per change of a run; natural key = position of its `run.queued`.
pub const HISTORY_RUN: u8 = 1;
/// History: one row per message; natural key = its position; value = its id.
pub const HISTORY_INPUT: u8 = 2;
/// History: inputs taken; natural key = position of `run.queued`, then of the input.
pub const HISTORY_TAKEN: u8 = 3;
/// History: items; natural key = the position that opened them.
pub const HISTORY_ITEM: u8 = 4;
/// History: steps that ended; natural key = the step's key.
pub const HISTORY_STEP: u8 = 5;

fn key(tag: u8, parts: &[&[u8]]) -> Bytes {
    let mut out = BytesMut::with_capacity(1 + parts.iter().map(|p| p.len()).sum::<usize>());
    out.put_u8(tag);
    parts.iter().for_each(|p| out.put_slice(p));
    out.freeze()
}

/// A session in its workspace's list.
pub fn session(workspace: WorkspaceRef, id: SessionId) -> Bytes {
    key(SESSION, &[&workspace.0.0, &id.0])
}

/// Prefix of a workspace's list.
pub fn sessions(workspace: WorkspaceRef) -> Bytes {
    key(SESSION, &[&workspace.0.0])
}

/// A session with a live run.
pub fn live(id: SessionId) -> Bytes {
    key(LIVE, &[&id.0])
}

/// A durable timer. Times before the epoch sort as the epoch.
pub fn timer(t: &TimerRow) -> Bytes {
    let due_ms = u64::try_from(t.due_ms).unwrap_or(0).to_be_bytes();
    let due = match t.due {
        Due::Hold => 0,
        Due::Wait(index) => index.saturating_add(1),
        Due::Checkpoint => u32::MAX,
        Due::Contents => u32::MAX - 1,
    };
    key(
        TIMER,
        &[
            &due_ms,
            &t.session.0,
            &t.seq.to_be_bytes(),
            &due.to_be_bytes(),
        ],
    )
}

/// A listed checkpoint, by the position of its creation.
pub fn checkpoint(session: SessionId, seq: u64) -> Bytes {
    key(CHECKPOINT, &[&session.0, &seq.to_be_bytes()])
}

/// Prefix of a session's listed checkpoints.
pub fn checkpoints(session: SessionId) -> Bytes {
    key(CHECKPOINT, &[&session.0])
}

/// The resume blob of a checkpoint, by the position of its creation.
pub fn blob(session: SessionId, seq: u64) -> Bytes {
    key(BLOB, &[&session.0, &seq.to_be_bytes()])
}

/// Where a checkpoint is.
pub fn checkpoint_id(id: CheckpointId) -> Bytes {
    key(CHECKPOINT_ID, &[&id.0])
}

/// A snapshot.
pub fn snapshot(id: SnapshotKey) -> Bytes {
    key(SNAPSHOT, &[&id.0])
}

/// A reference to a snapshot by the checkpoint created at `seq`.
pub fn snapshot_holder(id: SnapshotKey, session: SessionId, seq: u64) -> Bytes {
    key(SNAPSHOT_HOLDER, &[&id.0, &session.0, &seq.to_be_bytes()])
}

/// What a key of [`snapshot_holder`] says.
pub fn snapshot_holder_parts(key: &[u8]) -> Option<(SnapshotKey, SessionId, u64)> {
    let (_, rest) = key.split_first()?;
    let (snapshot, rest) = rest.split_first_chunk::<16>()?;
    let (session, rest) = rest.split_first_chunk::<16>()?;
    let seq = u64::from_be_bytes(rest.try_into().ok()?);
    Some((SnapshotKey(*snapshot), SessionId(*session), seq))
}

/// Prefix of a snapshot's references.
pub fn snapshot_holders(id: SnapshotKey) -> Bytes {
    key(SNAPSHOT_HOLDER, &[&id.0])
}

/// A snapshot that lost a reference.
pub fn collect(id: SnapshotKey) -> Bytes {
    key(COLLECT, &[&id.0])
}

/// A snapshot about to go.
pub fn doomed(id: SnapshotKey) -> Bytes {
    key(DOOMED, &[&id.0])
}

/// A reference to a pack of the server's own store by a snapshot.
pub fn pack_holder(pack: [u8; 16], id: SnapshotKey) -> Bytes {
    key(PACK_HOLDER, &[&pack, &id.0])
}

/// Prefix of a pack's references.
pub fn pack_holders(pack: [u8; 16]) -> Bytes {
    key(PACK_HOLDER, &[&pack])
}

/// A fork in its family.
pub fn member(root: SessionId, id: SessionId) -> Bytes {
    key(MEMBER, &[&root.0, &id.0])
}

/// Prefix of a family.
pub fn members(root: SessionId) -> Bytes {
    key(MEMBER, &[&root.0])
}

/// The answer to an Idempotency-Key of a request to no session.
pub fn receipt(scope: [u8; 16]) -> Bytes {
    key(RECEIPT, &[&scope])
}

/// The answer to an Idempotency-Key of a request to a session, its creation too.
pub fn session_receipt(session: SessionId, scope: [u8; 16]) -> Bytes {
    key(SESSION_RECEIPT, &[&session.0, &scope])
}

/// The session that the creation under an Idempotency-Key made.
pub fn created(scope: [u8; 16]) -> Bytes {
    key(CREATED, &[&scope])
}

/// The answer to a numbered call.
pub fn call(session: SessionId, token: TokenDigest, n: u64) -> Bytes {
    key(CALL, &[&session.0, &token.0, &n.to_be_bytes()])
}

/// Prefix of a claim's numbered calls.
pub fn calls(session: SessionId, token: TokenDigest) -> Bytes {
    key(CALL, &[&session.0, &token.0])
}

/// How a claim ended.
pub fn ended(session: SessionId, token: TokenDigest) -> Bytes {
    key(ENDED, &[&session.0, &token.0])
}

/// Prefixes of everything keyed by session alone (for erasing).
pub fn of_session(session: SessionId) -> Vec<Bytes> {
    [
        LIVE,
        CALL,
        ENDED,
        SESSION_RECEIPT,
        CHECKPOINT,
        BLOB,
        EXPIRED,
        CHANGED,
    ]
    .iter()
    .map(|tag| key(*tag, &[&session.0]))
    .collect()
}

/// What is missing of a session's past because it has expired: the ranges.
pub fn expired(session: SessionId) -> Bytes {
    key(EXPIRED, &[&session.0])
}

/// Whether operations left changes on the session's disk that no checkpoint has.
pub fn changed(session: SessionId) -> Bytes {
    key(CHANGED, &[&session.0])
}

/// One revision of a deployment.
pub fn deployment(workspace: WorkspaceRef, id: DeploymentId, revision: u32) -> Bytes {
    key(
        DEPLOYMENT,
        &[&workspace.0.0, &id.0, &revision.to_be_bytes()],
    )
}

/// Prefix of a deployment's revisions (or, without id, of a workspace's deployments).
pub fn deployments(workspace: WorkspaceRef, id: Option<DeploymentId>) -> Bytes {
    match id {
        Some(id) => key(DEPLOYMENT, &[&workspace.0.0, &id.0]),
        None => key(DEPLOYMENT, &[&workspace.0.0]),
    }
}

/// A workspace.
pub fn workspace(id: WorkspaceId) -> Bytes {
    key(WORKSPACE, &[&id.0])
}

/// An enrolled runner.
pub fn runner(id: RunnerId) -> Bytes {
    key(RUNNER, &[&id.0])
}

/// An erased session whose bytes are still to be purged.
pub fn purge(id: SessionId) -> Bytes {
    key(PURGE, &[&id.0])
}

/// A whole table, for scans.
pub fn table(tag: u8) -> Bytes {
    key(tag, &[])
}

/// The natural key of a position.
pub fn at(seq: u64) -> [u8; 16] {
    u128::from(seq).to_be_bytes()
}

/// The natural key of an input taken by the run queued at `queued_seq`.
pub fn taken(queued_seq: u64, input_seq: u64) -> [u8; 16] {
    ((u128::from(queued_seq) << 64) | u128::from(input_seq)).to_be_bytes()
}
