//! Contents of the runtime's own events, as JSON on the wire and in storage.

mod checkpoint;
mod item;
mod lineage;
mod run;
mod session;
pub(crate) mod step;
mod usage;

use bytes::Bytes;
use serde::Deserialize;

use super::event::EventType;

pub use checkpoint::{
    CheckpointCreated, CheckpointDeleted, CheckpointExpired, CheckpointFailed, CheckpointKind,
    CheckpointPinned, CheckpointRejected, DeletedWhat, ResumeFrom, Retention, SnapshotRef,
};
pub use item::{ItemClosed, ItemState, SignalConsumed};
pub use lineage::{Adopted, Selector, SessionForked};
pub use run::{
    Began, Compute, InsteadOf, OlderDisk, Outcome, RebuildReason, RequeueReason, ResumePlan,
    RunClaimed, RunError, RunInputsTaken, RunParked, RunQueued, RunRequeued, RunSettled,
    RunStarted, Trigger, TriggerKind, WaitingOn,
};
pub use session::{
    Budget, ContentErased, ErasedReason, Pin, RetentionPolicy, SessionCreated, SessionLimitWarning,
    SessionStatus, SessionUpdated, WorkspaceRef,
};
pub use step::{ResolvedAs, StepCompleted, StepFailed, StepResolved, StepStarted};
pub use usage::{Usage, UsageRecorded};

/// What a folded event carries. `Opaque`: folding needs only the header.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "each variant is named by its event type")]
pub enum Body {
    Opaque,
    SessionCreated(Box<SessionCreated>),
    SessionUpdated(SessionUpdated),
    SessionStatus(SessionStatus),
    SessionForked(Box<SessionForked>),
    SessionLimitWarning(SessionLimitWarning),
    ContentErased(ContentErased),
    RunQueued(RunQueued),
    RunClaimed(RunClaimed),
    RunStarted(RunStarted),
    RunInputsTaken(RunInputsTaken),
    RunRequeued(RunRequeued),
    RunParked(RunParked),
    RunSettled(RunSettled),
    ItemClosed(ItemClosed),
    SignalConsumed(SignalConsumed),
    UsageRecorded(UsageRecorded),
    CheckpointCreated(Box<CheckpointCreated>),
    CheckpointFailed(CheckpointFailed),
    CheckpointRejected(CheckpointRejected),
    CheckpointPinned(CheckpointPinned),
    CheckpointExpired(CheckpointExpired),
    CheckpointDeleted(CheckpointDeleted),
}

/// Why a stored content could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("content of {kind} (version {version}) cannot be read: {reason}")]
pub struct BodyError {
    /// The event type.
    pub kind: &'static str,
    /// Its content's schema version.
    pub version: u16,
    /// What does not fit.
    pub reason: String,
}

impl Body {
    /// The stored JSON.
    pub fn to_json(&self) -> Bytes {
        let json = match self {
            Self::Opaque => return Bytes::new(),
            Self::SessionCreated(b) => serde_json::to_vec(b),
            Self::SessionUpdated(b) => serde_json::to_vec(b),
            Self::SessionStatus(b) => serde_json::to_vec(b),
            Self::SessionLimitWarning(b) => serde_json::to_vec(b),
            Self::ContentErased(b) => serde_json::to_vec(b),
            Self::RunQueued(b) => serde_json::to_vec(b),
            Self::RunClaimed(b) => serde_json::to_vec(b),
            Self::RunStarted(b) => serde_json::to_vec(b),
            Self::RunInputsTaken(b) => serde_json::to_vec(b),
            Self::RunRequeued(b) => serde_json::to_vec(b),
            Self::RunParked(b) => serde_json::to_vec(b),
            Self::RunSettled(b) => serde_json::to_vec(b),
            Self::ItemClosed(b) => serde_json::to_vec(b),
            Self::SignalConsumed(b) => serde_json::to_vec(b),
            Self::UsageRecorded(b) => serde_json::to_vec(b),
            Self::SessionForked(b) => serde_json::to_vec(b),
            Self::CheckpointCreated(b) => serde_json::to_vec(b),
            Self::CheckpointFailed(b) => serde_json::to_vec(b),
            Self::CheckpointRejected(b) => serde_json::to_vec(b),
            Self::CheckpointPinned(b) => serde_json::to_vec(b),
            Self::CheckpointExpired(b) => serde_json::to_vec(b),
            Self::CheckpointDeleted(b) => serde_json::to_vec(b),
        };
        // Plain structs with string keys: serialising them has no failing case.
        json.unwrap_or_default().into()
    }

    /// Reads stored JSON, whatever version it was written in.
    pub fn from_json(kind: EventType, version: u16, json: &[u8]) -> Result<Self, BodyError> {
        fn read<T: for<'de> Deserialize<'de>>(
            json: &[u8],
            wrap: impl FnOnce(T) -> Body,
        ) -> Result<Body, String> {
            serde_json::from_slice(json)
                .map(wrap)
                .map_err(|e| e.to_string())
        }
        if version != 1 {
            let reason = "written by a newer version".to_owned();
            return Err(BodyError {
                kind: kind.text(),
                version,
                reason,
            });
        }
        let body = match kind {
            EventType::SessionCreated => read(json, |b| Self::SessionCreated(Box::new(b))),
            EventType::SessionUpdated => read(json, Self::SessionUpdated),
            EventType::SessionStatus => read(json, Self::SessionStatus),
            EventType::SessionLimitWarning => read(json, Self::SessionLimitWarning),
            EventType::ContentErased => read(json, Self::ContentErased),
            EventType::RunQueued => read(json, Self::RunQueued),
            EventType::RunClaimed => read(json, Self::RunClaimed),
            EventType::RunStarted => read(json, Self::RunStarted),
            EventType::RunInputsTaken => read(json, Self::RunInputsTaken),
            EventType::RunRequeued => read(json, Self::RunRequeued),
            EventType::RunParked => read(json, Self::RunParked),
            EventType::RunSettled => read(json, Self::RunSettled),
            EventType::ItemClosed => read(json, Self::ItemClosed),
            EventType::SignalConsumed => read(json, Self::SignalConsumed),
            EventType::UsageRecorded => read(json, Self::UsageRecorded),
            EventType::SessionForked => read(json, |b| Self::SessionForked(Box::new(b))),
            EventType::CheckpointCreated => read(json, |b| Self::CheckpointCreated(Box::new(b))),
            EventType::CheckpointFailed => read(json, Self::CheckpointFailed),
            EventType::CheckpointRejected => read(json, Self::CheckpointRejected),
            EventType::CheckpointPinned => read(json, Self::CheckpointPinned),
            EventType::CheckpointExpired => read(json, Self::CheckpointExpired),
            EventType::CheckpointDeleted => read(json, Self::CheckpointDeleted),
            _ => Ok(Self::Opaque),
        };
        body.map_err(|reason| BodyError {
            kind: kind.text(),
            version,
            reason,
        })
    }
}
