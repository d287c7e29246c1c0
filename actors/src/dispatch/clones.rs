//! Disks to be copied for forks, and the runners that may. Pure.

use std::collections::VecDeque;

use super::{RunnerInfo, RunnerTarget, Workspaces};
use crate::code::{Code, Rejection};
use crate::ids::{CheckpointId, CloneToken, RunnerId, SessionId};
use crate::session::payload::{SnapshotRef, WorkspaceRef};
use crate::session::projection::Target;

/// Copies asked for at the same time.
pub(crate) const CLONES_MAX: usize = 1_000;

/// A disk to be copied for a fork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloneOffer {
    /// The right to answer: shown to the runner, kept nowhere else.
    pub token: CloneToken,
    /// The fork; it does not exist before its disk is adopted.
    pub child: SessionId,
    /// Its tenant.
    pub workspace: WorkspaceRef,
    /// The source's checkpoint.
    pub checkpoint: CheckpointId,
    /// Its disk.
    pub snapshot: SnapshotRef,
    /// What the runner must be able to drive.
    pub target: Target,
    /// Who alone has the bytes; `None` = any runner of the target.
    pub owner: Option<RunnerId>,
    /// By when it must be answered, milliseconds of wall time.
    pub deadline_ms: i64,
}

impl CloneOffer {
    /// Whether this runner may make the copy.
    pub(crate) fn is_for(&self, runner: &RunnerInfo) -> bool {
        let serves = match runner.workspaces {
            Workspaces::One(workspace) => workspace == self.workspace,
            Workspaces::All => true,
        };
        let drives = match self.target {
            Target::Pinned(h, s) => [RunnerTarget::Exact(h, s), RunnerTarget::AnyInternal],
            Target::External(h, s) => [RunnerTarget::Exact(h, s), RunnerTarget::AnyExternal],
        };
        let able = match self.owner {
            Some(owner) => owner == runner.id,
            None => drives.iter().any(|t| runner.targets.contains(t)),
        };
        serves && able && !runner.draining
    }
}

/// Copies that no runner has been told of.
#[derive(Debug, Default)]
pub(crate) struct Clones(VecDeque<CloneOffer>);

impl Clones {
    /// Adds one.
    ///
    /// # Errors
    /// `runtime.busy` if there are too many.
    pub(crate) fn add(&mut self, offer: CloneOffer) -> Result<(), Rejection> {
        if self.0.len() >= CLONES_MAX {
            return Err(Rejection::new(Code::Busy, "too many forks wait for a disk"));
        }
        self.0.push_back(offer);
        Ok(())
    }

    /// Takes at most `max` for this runner, oldest first.
    pub(crate) fn take_for(&mut self, runner: &RunnerInfo, max: usize) -> Vec<CloneOffer> {
        let mut taken = Vec::new();
        self.0.retain(|offer| {
            let take = taken.len() < max && offer.is_for(runner);
            if take {
                taken.push(offer.clone());
            }
            !take
        });
        taken
    }

    /// Nobody waits for it any more.
    pub(crate) fn withdraw(&mut self, token: CloneToken) {
        self.0.retain(|offer| offer.token != token);
    }
}
