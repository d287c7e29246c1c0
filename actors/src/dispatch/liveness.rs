//! When each runner was last heard of.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::env::Clock;
use crate::ids::RunnerId;
use crate::sync::lock;

/// One runner's signs of life. Shared with whoever hears of it, so that noting one is a store.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Monotonic milliseconds plus one; 0 = never.
    last: AtomicU64,
    polls: AtomicUsize,
}

impl Seen {
    /// It called.
    pub(crate) fn now(&self, mono: Duration) {
        self.last
            .fetch_max(millis(mono).saturating_add(1), Ordering::Relaxed);
    }

    /// When it last called.
    #[cfg(test)]
    pub(crate) fn last(&self) -> Duration {
        let last = self.last.load(Ordering::Relaxed);
        Duration::from_millis(last.saturating_sub(1))
    }

    /// It has one more poll open, until the guard goes.
    pub(crate) fn poll(self: &Arc<Self>) -> OpenPoll {
        self.polls.fetch_add(1, Ordering::Relaxed);
        OpenPoll(Arc::clone(self))
    }
}

/// A poll that is open.
pub(crate) struct OpenPoll(Arc<Seen>);

impl Drop for OpenPoll {
    fn drop(&mut self) {
        self.0.polls.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Every runner's signs of life.
pub(crate) struct Liveness {
    clock: Arc<dyn Clock>,
    live: Duration,
    seen: Mutex<HashMap<RunnerId, Arc<Seen>>>,
}

impl Liveness {
    /// A runner counts as live for `live_s` after its last call.
    pub(crate) fn new(clock: Arc<dyn Clock>, live_s: u64) -> Self {
        Self {
            clock,
            live: Duration::from_secs(live_s),
            seen: Mutex::default(),
        }
    }

    /// The record of one runner.
    pub(crate) fn of(&self, runner: RunnerId) -> Arc<Seen> {
        Arc::clone(lock(&self.seen).entry(runner).or_default())
    }

    /// Drops the record of a runner that is gone.
    pub(crate) fn forget(&self, runner: RunnerId) {
        lock(&self.seen).remove(&runner);
    }

    /// Whether it has a poll open, or called lately.
    pub(crate) fn is_live(&self, runner: RunnerId) -> bool {
        let Some(seen) = lock(&self.seen).get(&runner).cloned() else {
            return false;
        };
        if seen.polls.load(Ordering::Relaxed) > 0 {
            return true;
        }
        let Some(last) = seen.last.load(Ordering::Relaxed).checked_sub(1) else {
            return false;
        };
        millis(self.clock.mono()) <= last.saturating_add(millis(self.live))
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX - 1)
}
