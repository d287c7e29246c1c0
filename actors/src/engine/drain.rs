//! Counts what is still to be answered, so that closing can wait for it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::sync::lock;

/// How often a waiting close looks again, should a wake-up be missed.
const LOOK: Duration = Duration::from_millis(20);

/// Requests that are not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    open: AtomicUsize,
    gate: Mutex<()>,
    empty: Condvar,
}

/// One request that is not answered yet.
pub(crate) struct Open(Arc<Drain>);

impl Drain {
    /// Counts one request until the guard goes.
    pub(crate) fn enter(self: &Arc<Self>) -> Open {
        self.open.fetch_add(1, Ordering::AcqRel);
        Open(Arc::clone(self))
    }

    /// Requests that are not answered yet.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Waits (blocking) until nothing is open, at most `max`. `false` = something still is.
    pub(crate) fn wait(&self, max: Duration) -> bool {
        let mut looks = max.as_millis() / LOOK.as_millis();
        let mut gate = lock(&self.gate);
        while self.open() > 0 && looks > 0 {
            looks -= 1;
            let waited = self.empty.wait_timeout(gate, LOOK);
            gate = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.open() == 0
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.empty.notify_all();
        }
    }
}
