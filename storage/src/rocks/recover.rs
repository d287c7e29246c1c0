//! After a write that failed: find out what is stored, and come back without a restart.
//!
//! A full disk: the database is opened again for reading only, so that reads go on, and a probe
//! looks for room. Anything else leaves the outcome open: the database is closed and opened
//! again, which reads its write-ahead files anew.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::fault;
use crate::log::{AppendError, Health, OpenError};

use super::folder;
use super::shared::{Shared, is_full};

/// A write that the engine did not confirm.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What the engine said.
    pub(crate) cause: String,
    /// The engine's own sequence number before the write: a higher one afterwards says that the
    /// write is there.
    pub(crate) before: u64,
}

/// Waiting that a close can end, and what the probe found.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    stopped: Mutex<bool>,
    stop: Condvar,
    room: AtomicBool,
    failures: AtomicU32,
}

impl Probe {
    /// Ends every wait.
    pub(crate) fn stop(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.notify_all();
    }

    /// Waits so long; false if stopped.
    fn wait(&self, ms: u64) -> bool {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self
            .stop
            .wait_timeout_while(stopped, Duration::from_millis(ms), |s| !*s);
        let (stopped, _) = wait.unwrap_or_else(PoisonError::into_inner);
        !*stopped
    }
}

impl Shared {
    /// Says in `answer` what is known of the write that failed, then comes back as far as it can.
    pub(crate) fn recover(self: &Arc<Self>, failure: Failure, answer: impl FnOnce(AppendError)) {
        if is_full(&failure.cause) {
            tracing::warn!(folder = %self.folder_name(), cause = failure.cause, "disk full");
            let stored = self.read_only();
            let absent = stored.is_some_and(|last| last <= failure.before);
            answer(if absent {
                AppendError::Full {
                    folder: self.folder_name(),
                }
            } else {
                AppendError::Unknown {
                    cause: failure.cause,
                }
            });
            self.look_for_room();
        } else {
            tracing::error!(folder = %self.folder_name(), cause = failure.cause, "write failed");
            self.set_health(Health::Recovering);
            answer(AppendError::Unknown {
                cause: failure.cause,
            });
            self.reopen();
        }
    }

    /// Comes back when the probe has found room.
    pub(crate) fn resume_if_there_is_room(self: &Arc<Self>) {
        if self.probe.room.swap(false, Ordering::AcqRel) {
            self.reopen();
        }
    }

    /// Exchanges the database for one that only reads; its last sequence number, if it opened.
    fn read_only(&self) -> Option<u64> {
        self.set_health(Health::Full);
        if !self.gate.empty() {
            return None;
        }
        fault::point("recover::emptied");
        match self.open_for_reading() {
            Ok(db) => {
                let last = db.latest_sequence_number();
                self.gate.put(db);
                Some(last)
            }
            Err(error) => {
                tracing::error!(folder = %self.folder_name(), %error, "cannot be read");
                self.gate.down();
                None
            }
        }
    }

    /// Exchanges the database for one that reads and writes, with a bounded number of attempts.
    fn reopen(self: &Arc<Self>) {
        let mut reason = String::new();
        for attempt in 0..self.options.reopen_tries_max {
            if attempt > 0 && !self.probe.wait(self.backoff_ms(attempt - 1)) {
                break;
            }
            if !self.gate.empty() {
                return;
            }
            fault::point("recover::emptied");
            match self.open_database() {
                Ok(db) => {
                    self.gate.put(db);
                    self.probe.failures.store(0, Ordering::Relaxed);
                    self.set_health(Health::Ok);
                    fault::point("recover::reopened");
                    tracing::info!(folder = %self.folder_name(), "log reopened");
                    return;
                }
                Err(OpenError::Full { .. }) => {
                    self.read_only();
                    self.look_for_room();
                    return;
                }
                Err(error) => {
                    reason = error.to_string();
                    tracing::error!(folder = %self.folder_name(), attempt, reason, "not reopened");
                    self.gate.down();
                }
            }
        }
        self.read_only();
        self.set_health(Health::Failed(reason));
    }

    fn look_for_room(self: &Arc<Self>) {
        let failures = self.probe.failures.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(self);
        let look = move || {
            let mut wait = failures;
            while shared.probe.wait(shared.backoff_ms(wait)) {
                if folder::has_room(&shared.folder, shared.options.probe_bytes) {
                    tracing::info!(folder = %shared.folder_name(), "room again");
                    shared.probe.room.store(true, Ordering::Release);
                    shared.queue.wake();
                    return;
                }
                wait = wait.saturating_add(1);
            }
        };
        let thread = std::thread::Builder::new()
            .name("longhaul-probe".into())
            .spawn(look);
        if let Err(error) = thread {
            self.set_health(Health::Failed(format!(
                "the probe thread did not start: {error}"
            )));
        }
    }

    fn backoff_ms(&self, failures: u32) -> u64 {
        let factor = 1u64.checked_shl(failures).unwrap_or(u64::MAX);
        self.options
            .probe_ms_min
            .saturating_mul(factor)
            .min(self.options.probe_ms_max)
    }
}
