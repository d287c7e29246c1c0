//! The times of one attempt: lease, start-up, absolute deadline.
//!
//! All are monotonic here, computed once when the watch begins, so that a step of the wall clock
//! moves none of them. What follows from an expiry is decided by the session alone.

pub mod actor;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::limits::Limits;
use crate::session::command::Expiry;
use crate::session::projection::LiveClaim;

/// When the holder of a claim last gave a sign of life. Shared by a session and its run actor,
/// which live on one thread: renewing is a store, not a message.
#[derive(Debug, Clone)]
pub(crate) struct Renewal(Rc<Cell<Duration>>);

impl Renewal {
    /// Renewed now.
    pub(crate) fn new(now: Duration) -> Self {
        Self(Rc::new(Cell::new(now)))
    }

    /// Renewed again.
    pub(crate) fn renew(&self, now: Duration) {
        self.0.set(self.0.get().max(now));
    }

    /// When it was last renewed.
    pub(crate) fn at(&self) -> Duration {
        self.0.get()
    }
}

/// The times of one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    claim: LiveClaim,
    lease: Duration,
    startup_at: Duration,
    deadline_at: Duration,
}

impl Times {
    /// What is left of the deadlines, counted from this instant on both clocks, and never more
    /// than they were in full: after a restart, or when the wall clock was stepped.
    pub(crate) fn new(claim: LiveClaim, limits: &Limits, wall_ms: i64, mono: Duration) -> Self {
        let left = |deadline_ms: i64| {
            let full = deadline_ms.saturating_sub(claim.claimed_at_ms);
            let left = deadline_ms.saturating_sub(wall_ms).clamp(0, full.max(0));
            mono.saturating_add(Duration::from_millis(u64::try_from(left).unwrap_or(0)))
        };
        Self {
            claim,
            lease: Duration::from_secs(limits.lease_s),
            startup_at: left(claim.startup_deadline_ms),
            deadline_at: left(claim.deadline_ms),
        }
    }

    /// The claim has moved on (it is ready, parked or unparked).
    pub(crate) fn update(&mut self, claim: LiveClaim) {
        self.claim = claim;
    }

    /// What comes next, and when.
    pub(crate) fn next(&self, renewed: Duration) -> (Duration, Expiry) {
        let token = self.claim.token;
        let lease = (renewed.saturating_add(self.lease), Expiry::Lease(token));
        let deadline = (self.deadline_at, Expiry::Deadline(token));
        let startup = (self.startup_at, Expiry::Startup(token));
        let mut next = if deadline.0 <= lease.0 {
            deadline
        } else {
            lease
        };
        if !self.claim.ready && startup.0 < next.0 {
            next = startup;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{RunnerId, TokenDigest};

    const TOKEN: TokenDigest = TokenDigest([1; 16]);

    fn claim(ready: bool) -> LiveClaim {
        LiveClaim {
            token: TOKEN,
            runner: RunnerId([2; 16]),
            claimed_at_ms: 1_000_000,
            startup_deadline_ms: 1_060_000,
            deadline_ms: 1_660_000,
            ready,
            waiting: false,
        }
    }

    fn secs(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn the_earliest_time_comes_first() {
        let limits = Limits {
            lease_s: 90,
            ..Limits::default()
        };
        let mut times = Times::new(claim(false), &limits, 1_000_000, secs(5));
        assert_eq!(times.next(secs(5)), (secs(65), Expiry::Startup(TOKEN)));
        times.update(claim(true));
        assert_eq!(times.next(secs(5)), (secs(95), Expiry::Lease(TOKEN)));
        // Renewing never moves the absolute deadline.
        assert_eq!(times.next(secs(660)), (secs(665), Expiry::Deadline(TOKEN)));
    }

    #[test]
    fn after_a_restart_the_rest_counts_and_never_more_than_the_whole() {
        let limits = Limits::default();
        // Half of the start-up time is over.
        let times = Times::new(claim(false), &limits, 1_030_000, secs(0));
        assert_eq!(times.next(secs(0)).0, secs(30), "start-up and lease");
        // Two hours ahead: all over. Two hours back: the full times, not two hours more.
        let ahead = Times::new(claim(true), &limits, 8_200_000, secs(0));
        assert_eq!(ahead.next(secs(0)), (secs(0), Expiry::Deadline(TOKEN)));
        let back = Times::new(claim(true), &limits, -6_200_000, secs(0));
        assert_eq!(back.next(secs(700)), (secs(660), Expiry::Deadline(TOKEN)));
    }

    #[test]
    fn renewing_never_goes_back() {
        let renewal = Renewal::new(secs(5));
        renewal.clone().renew(secs(9));
        renewal.renew(secs(7));
        assert_eq!(renewal.at(), secs(9));
    }
}
