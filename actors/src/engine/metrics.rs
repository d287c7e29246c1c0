//! Counters, made once: a hot path only adds.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::code::{Kind, Rejection};
use crate::session::payload::{Outcome, RequeueReason};

/// Handles of the metrics. The recorder must be installed before the engine starts.
pub(crate) struct Metrics {
    /// Durable appends of sessions.
    pub(crate) appends: Counter,
    append_seconds: Histogram,
    commands_ok: Counter,
    commands_refused: Counter,
    commands_full: Counter,
    commands_fault: Counter,
    /// Claims granted.
    pub(crate) claims: Counter,
    /// Calls refused because their claim is over.
    pub(crate) fenced: Counter,
    /// Age of the oldest run that waits for a runner.
    pub(crate) oldest_pending: Gauge,
    /// Sessions in memory.
    pub(crate) sessions_live: Gauge,
    /// Open followers.
    pub(crate) followers: Gauge,
    /// Runs that wait for a runner.
    pub(crate) queue_depth: Gauge,
}

impl Metrics {
    /// Registers everything.
    pub(crate) fn new() -> Self {
        let commands =
            |outcome: &'static str| counter!("longhaul_commands_total", "outcome" => outcome);
        Self {
            appends: counter!("longhaul_appends_total"),
            append_seconds: histogram!("longhaul_append_seconds"),
            commands_ok: commands("accepted"),
            commands_refused: commands("refused"),
            commands_full: commands("busy"),
            commands_fault: commands("fault"),
            claims: counter!("longhaul_claims_total"),
            fenced: counter!("longhaul_fenced_writes_total"),
            oldest_pending: gauge!("longhaul_oldest_pending_seconds"),
            sessions_live: gauge!("longhaul_sessions_live"),
            followers: gauge!("longhaul_followers"),
            queue_depth: gauge!("longhaul_queue_depth"),
        }
    }

    /// One durable append.
    pub(crate) fn appended(&self, took: Duration) {
        self.appends.increment(1);
        self.append_seconds.record(took.as_secs_f64());
    }

    /// A command that was taken.
    pub(crate) fn accepted(&self) {
        self.commands_ok.increment(1);
    }

    /// A command that was not. Expected conflicts are counted, not logged.
    pub(crate) fn refused(&self, why: &Rejection) {
        match why.code.info().kind {
            Kind::Refused => self.commands_refused.increment(1),
            Kind::Full | Kind::Stopped => self.commands_full.increment(1),
            Kind::Fault => self.commands_fault.increment(1),
        }
        if why.code == crate::code::Code::ClaimLost {
            self.fenced.increment(1);
        }
        counter!("longhaul_rejections_total", "code" => why.code.text()).increment(1);
    }

    /// A run that is over.
    pub(crate) fn settled(&self, outcome: Outcome) {
        counter!("longhaul_settles_total", "outcome" => outcome.text()).increment(1);
    }

    /// An attempt that ended without settling its run.
    pub(crate) fn requeued(&self, reason: RequeueReason) {
        let reason = match reason {
            RequeueReason::Lease => "lease",
            RequeueReason::Startup => "startup",
            RequeueReason::Released => "released",
            RequeueReason::Undelivered => "undelivered",
        };
        counter!("longhaul_requeues_total", "reason" => reason).increment(1);
    }
}
