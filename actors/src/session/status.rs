//! The status of a session, and the table of every change it may make.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// Where a session is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// New, or a run is queued.
    Pending,
    /// A runner has claimed the run and prepares.
    Provisioning,
    /// The harness works.
    Running,
    /// Parked; the runner holds its compute.
    Waiting,
    /// Parked with compute released, or paused by runtime control.
    Paused,
    /// Deliverables are being settled.
    Reconciling,
    /// Nothing to do.
    Idle,
    /// Ended, explicitly.
    Completed,
    /// Ended, for good.
    Failed,
    /// Ended, on request.
    Canceled,
}

use Status::{
    Canceled, Completed, Failed, Idle, Paused, Pending, Provisioning, Reconciling, Running, Waiting,
};

impl Status {
    /// Every status.
    pub const ALL: [Self; 10] = [
        Pending,
        Provisioning,
        Running,
        Waiting,
        Paused,
        Reconciling,
        Idle,
        Completed,
        Failed,
        Canceled,
    ];

    /// Whether nothing can follow.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Completed | Failed | Canceled)
    }

    /// The wire form.
    pub const fn text(self) -> &'static str {
        match self {
            Pending => "pending",
            Provisioning => "provisioning",
            Running => "running",
            Waiting => "waiting",
            Paused => "paused",
            Reconciling => "reconciling",
            Idle => "idle",
            Completed => "completed",
            Failed => "failed",
            Canceled => "canceled",
        }
    }
}

/// One allowed change.
#[derive(Debug, Clone, Copy)]
pub struct Transition {
    /// From.
    pub from: Status,
    /// To.
    pub to: Status,
    /// What causes it.
    pub cause: &'static str,
}

const fn t(from: Status, to: Status, cause: &'static str) -> Transition {
    Transition { from, to, cause }
}

/// Every allowed change; every other pair is refused.
pub const TRANSITIONS: &[Transition] = &[
    t(Pending, Provisioning, "claim"),
    t(Pending, Idle, "interrupt, or failure of the queued run"),
    t(Pending, Paused, "runtime pause, no run queued"),
    t(Pending, Completed, "complete"),
    t(Pending, Failed, "the session cannot run again"),
    t(Pending, Canceled, "cancel"),
    t(Provisioning, Running, "harness ready"),
    t(
        Provisioning,
        Pending,
        "startup timeout, claim lost or released; or settled with untaken input",
    ),
    t(Provisioning, Idle, "settled, interrupt, attempts exhausted"),
    t(Provisioning, Failed, "the session cannot run again"),
    t(Provisioning, Canceled, "cancel"),
    t(Running, Waiting, "parked, compute held"),
    t(Running, Paused, "parked, compute released"),
    t(Running, Reconciling, "deliverables must settle"),
    t(Running, Idle, "settled, interrupted, deadline"),
    t(
        Running,
        Pending,
        "claim lost or released; or settled with untaken input",
    ),
    t(Running, Completed, "settlement that ends the session"),
    t(
        Running,
        Failed,
        "settlement that says the session cannot run again",
    ),
    t(Running, Canceled, "cancel"),
    t(Waiting, Running, "all waited-for items are in"),
    t(Waiting, Paused, "held too long, or claim lost or released"),
    t(Waiting, Pending, "settled with untaken input"),
    t(Waiting, Idle, "settled, interrupt, deadline"),
    t(Waiting, Failed, "the session cannot run again"),
    t(Waiting, Canceled, "cancel"),
    t(
        Paused,
        Pending,
        "items in: continuation; or resumed with untaken input",
    ),
    t(Paused, Idle, "interrupt, runtime resume"),
    t(Paused, Completed, "complete"),
    t(Paused, Failed, "the session cannot run again"),
    t(Paused, Canceled, "cancel"),
    t(Reconciling, Idle, "settled"),
    t(Reconciling, Pending, "settled with untaken input"),
    t(Reconciling, Completed, "settlement that ends the session"),
    t(Reconciling, Failed, "the session cannot run again"),
    t(Reconciling, Canceled, "cancel"),
    t(Idle, Pending, "input"),
    t(Idle, Paused, "runtime pause"),
    t(Idle, Completed, "complete"),
    t(Idle, Failed, "the session cannot run again"),
    t(Idle, Canceled, "cancel"),
];

/// Whether the table allows the change.
pub fn allowed(from: Status, to: Status) -> bool {
    TRANSITIONS.iter().any(|t| t.from == from && t.to == to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_the_documented_one() {
        assert_eq!(TRANSITIONS.len(), 40);
        for t in TRANSITIONS {
            assert!(!t.from.is_terminal(), "{:?} is terminal", t.from);
            assert_ne!(t.from, t.to);
        }
        assert!(!allowed(Pending, Running));
        assert!(!allowed(Reconciling, Running));
        assert!(!allowed(Waiting, Completed));
    }
}
