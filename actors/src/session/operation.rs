//! Operations on a session's sandbox from outside a run: one at a time, never beside a turn.
//!
//! An operation begins with [`Operate::Begin`], which takes the session's lock and tells how to
//! get the disk; the work is done; [`Operate::End`] lets go and writes what came of it. The lock
//! is in memory: whoever held it is gone with the process, and so is the lock.

use std::time::Duration;

use super::command::{NewCheckpoint, Request};
use super::payload::{Began, ResumePlan};
use crate::ids::{CheckpointId, RunnerId};

/// Names one operation, so that a late end of an earlier one is told from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OperationId(pub [u8; 16]);

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationKind {
    /// Keep the disk.
    Checkpoint,
    /// Keep the disk and let the sandbox go.
    Pause,
    /// Bring the disk back after a pause.
    Resume,
    /// End the session.
    Close,
    /// Run a command, read or write a file.
    Use,
    /// The sandbox was not used for long: keep the disk if it changed, and let it go.
    Rest,
    /// A sandbox that operations left is found again after a restart. Its files are as they
    /// left them: an attempt that took it over has not come to work.
    Attach,
}

/// The lock of a session's sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Which operation.
    pub id: OperationId,
    /// What is done.
    pub kind: OperationKind,
    /// After this monotonic time, whoever held it has given up.
    pub until: Duration,
}

/// The sandbox that an operation left, as far as the session knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached {
    /// The runner in whose process it is.
    pub runner: RunnerId,
    /// Whether it changed since the newest checkpoint.
    pub dirty: bool,
    /// What it began as, where that was not the disk that the session had last.
    pub began: Option<Began>,
}

impl Operation {
    /// Whether it may still be under way at this monotonic time.
    pub fn is_held(&self, mono: Duration) -> bool {
        self.until > mono
    }
}

/// What is asked of the session.
#[derive(Debug, Clone)]
pub struct Operate {
    /// Who asks.
    pub request: Request,
    /// What.
    pub step: Step,
}

/// The steps of an operation.
#[derive(Debug, Clone)]
pub enum Step {
    /// Take the lock.
    Begin {
        /// Names the operation.
        id: OperationId,
        /// What is to be done.
        kind: OperationKind,
        /// How long it may take.
        max: Duration,
    },
    /// Let go.
    End {
        /// Which operation.
        id: OperationId,
        /// What came of it.
        result: Box<Done>,
    },
    /// Delete the bytes behind a checkpoint.
    DeleteSnapshot {
        /// Which.
        checkpoint: CheckpointId,
        /// Also if other checkpoints share them.
        force: bool,
    },
}

/// What came of an operation.
#[derive(Debug, Clone, Default)]
pub struct Done {
    /// Whether it did what was asked; otherwise the lock goes and nothing else changes.
    pub succeeded: bool,
    /// The disk as kept.
    pub checkpoint: Option<NewCheckpoint>,
    /// The sandbox that is left, if one is.
    pub attached: Option<Attached>,
    /// What the disk began as, where that was not the one that the session had last.
    pub began: Option<Began>,
    /// A checkpoint whose disk does not verify, and why.
    pub rejected: Option<(CheckpointId, String)>,
}

/// What an operation works with, in its first answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Begun {
    /// How to get the disk, if no sandbox is attached.
    pub plan: ResumePlan,
    /// The snapshot of the newest usable checkpoint: the disk of a sandbox that did not change.
    pub clean: Option<super::payload::SnapshotRef>,
}
