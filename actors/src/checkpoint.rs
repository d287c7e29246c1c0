//! Checkpoints: how a run gets back its disk and its past.

pub mod bytes;
pub mod plan;
pub(crate) mod supervisor;

pub use bytes::{BytesGone, BytesThere, Elsewhere, Probing, SnapshotBytes};
pub use supervisor::{CHECKPOINT_POINTS, COLLECT_POINTS, EXPIRY_POINTS};
