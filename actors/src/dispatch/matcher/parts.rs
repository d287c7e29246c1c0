//! Runs and runners as the queue holds them, and which may meet.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use super::PollId;
use crate::dispatch::{RunnerInfo, RunnerTarget, Workspaces};
use crate::ids::SessionId;
use crate::session::payload::WorkspaceRef;
use crate::session::projection::{LiveRow, Target};

#[derive(Debug)]
pub(super) struct Run {
    pub(super) row: LiveRow,
    pub(super) number: u64,
    pub(super) place: Place,
    /// Until when it is kept for its owner alone.
    pub(super) kept_until: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Backoff(Duration),
    Ready,
    Offered,
}

#[derive(Debug)]
pub(super) struct Runner {
    pub(super) info: RunnerInfo,
    pub(super) held: HashSet<SessionId>,
    pub(super) offered: u32,
    pub(super) polls: VecDeque<(PollId, usize)>,
    pub(super) served: u64,
}

impl Runner {
    pub(super) fn free(&self) -> usize {
        let used = self.held.len() + self.offered as usize;
        (self.info.capacity as usize).saturating_sub(used)
    }

    /// What it serves: what it advertises, and runs that are kept for it.
    pub(super) fn targets(&self) -> impl Iterator<Item = RunnerTarget> + use<> {
        let own = RunnerTarget::Only(self.info.id);
        self.info.targets.clone().into_iter().chain([own])
    }

    pub(super) fn only(&self) -> Option<WorkspaceRef> {
        match self.info.workspaces {
            Workspaces::One(ws) => Some(ws),
            Workspaces::All => None,
        }
    }
}

/// Who may have this run now.
pub(super) fn open_to(run: &Run) -> Vec<RunnerTarget> {
    match run.row.owner.filter(|_| run.kept_until.is_some()) {
        Some(owner) => vec![RunnerTarget::Only(owner)],
        None => accepted(run.row.target).collect(),
    }
}

/// What a runner may advertise to be offered a run of this target.
pub(super) fn accepted(target: Target) -> impl Iterator<Item = RunnerTarget> {
    match target {
        Target::Pinned(h, s) => [RunnerTarget::Exact(h, s), RunnerTarget::AnyInternal],
        Target::External(h, s) => [RunnerTarget::Exact(h, s), RunnerTarget::AnyExternal],
    }
    .into_iter()
}
