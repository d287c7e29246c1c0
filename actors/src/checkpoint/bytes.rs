//! The bytes of snapshots, as the engine knows them: something that can be asked to let go.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use crate::session::checkpoints::SnapshotKey;
use crate::session::decision::SnapshotRow;

/// What became of a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BytesGone {
    /// There are no such bytes (any more).
    Gone,
    /// They could not be deleted now; it is tried again. The reason is for the log.
    Later(String),
}

/// A deletion under way.
pub type Deleting = Pin<Box<dyn Future<Output = BytesGone> + Send>>;

/// What a look at a snapshot's bytes showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BytesThere {
    /// Nothing is missing, as far as can be told without reading all of it.
    There,
    /// They are gone or damaged, for good. The reason is for the caller.
    Unusable(String),
    /// They cannot be looked at now. The reason is for the caller.
    Unreadable(String),
}

/// A look under way.
pub type Probing = Pin<Box<dyn Future<Output = BytesThere> + Send>>;

/// Where snapshots' bytes are.
pub trait SnapshotBytes: Send + Sync + Debug {
    /// Sees whether the bytes are there, which is quick. Bytes of runners elsewhere are there.
    fn probe(&self, snapshot: &SnapshotRow) -> Probing {
        let _ = snapshot;
        Box::pin(std::future::ready(BytesThere::There))
    }

    /// Deletes the bytes that no other snapshot's row refers to (see
    /// [`crate::rows::pack_holders`]). Idempotent: absent bytes are gone. Bytes
    /// of runners elsewhere are theirs to delete: they count as gone.
    fn delete(&self, key: SnapshotKey, snapshot: &SnapshotRow) -> Deleting;
}

/// No bytes are kept here.
#[derive(Debug, Clone, Copy, Default)]
pub struct Elsewhere;

impl SnapshotBytes for Elsewhere {
    fn delete(&self, _: SnapshotKey, _: &SnapshotRow) -> Deleting {
        Box::pin(std::future::ready(BytesGone::Gone))
    }
}
