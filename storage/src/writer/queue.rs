//! The writer's queue: bounded in items and bytes; never waits on the way in.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::Submission;
use crate::log::AppendError;

#[derive(Debug, Default)]
struct State {
    items: Vec<Submission>,
    bytes: usize,
    closed: bool,
    woken: bool,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
    len_max: usize,
    bytes_max: usize,
}

/// What the writer found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Writes, or a wake-up, or both.
    Work,
    /// Closed and empty.
    Closed,
}

impl Queue {
    pub(crate) fn new(len_max: usize, bytes_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            filled: Condvar::new(),
            len_max,
            bytes_max,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Pushed and taken in single steps: a panic elsewhere cannot leave it half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a write; one that is not taken is dropped, with the reason.
    pub(crate) fn push(&self, item: Submission) -> Result<(), AppendError> {
        let mut state = self.state();
        if state.closed {
            return Err(AppendError::Closed);
        }
        let bytes = state.bytes.saturating_add(item.bytes);
        let full = state.items.len() >= self.len_max
            || (bytes > self.bytes_max && !state.items.is_empty());
        if full {
            return Err(AppendError::Busy);
        }
        state.bytes = bytes;
        state.items.push(item);
        let first = state.items.len() == 1;
        drop(state);
        // The writer takes everything at once: only the first item can find it asleep.
        if first {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Waits for writes or a wake-up, and takes all there are into `out`, which must be empty.
    pub(crate) fn take(&self, out: &mut Vec<Submission>) -> Turn {
        let mut state = self.state();
        while state.items.is_empty() && !state.closed && !state.woken {
            state = self
                .filled
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut state.items, out);
        state.bytes = 0;
        state.woken = false;
        if out.is_empty() && state.closed {
            Turn::Closed
        } else {
            Turn::Work
        }
    }

    /// Wakes the writer without a write.
    pub(crate) fn wake(&self) {
        self.state().woken = true;
        self.filled.notify_one();
    }

    /// Takes nothing more in.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.filled.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }
}
