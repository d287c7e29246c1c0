//! A log that fails as it is told, around any other: for tests and simulations.
//!
//! Nothing happens by chance or by the clock: faults are queued, one for each append that
//! follows, and what is held back goes on when it is released.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::log::{AppendError, Appended, Health, Log, Pending, ReadError, StreamId, View, Write};

/// What happens to one append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: it is passed on.
    Pass,
    /// It is not written, and answers this.
    Refuse(AppendError),
    /// It is written, but answers that its outcome is not known.
    LoseAnswer,
    /// It is not written, and answers that its outcome is not known.
    LoseWrite,
}

/// A log around another, with faults.
pub struct FaultyLog {
    inner: Arc<dyn Log>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    faults: VecDeque<Fault>,
    read_faults: VecDeque<ReadError>,
    /// Writes that came while the writer was stalled, in order: `None` = it is not stalled.
    stalled: Option<VecDeque<(Write, Answer)>>,
    /// Writes that are done while answers are held back: `None` = they are not.
    unanswered: Option<VecDeque<(Pending, Answer)>>,
    full: bool,
}

type Answer = oneshot::Sender<Result<Appended, AppendError>>;

impl std::fmt::Debug for FaultyLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultyLog").finish_non_exhaustive()
    }
}

impl FaultyLog {
    /// Puts faults around `inner`; none to begin with.
    pub fn new(inner: Arc<dyn Log>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happens to the next append for which nothing is queued yet.
    pub fn inject(&self, fault: Fault) {
        self.state().faults.push_back(fault);
    }

    /// The next view fails.
    pub fn fail_read(&self, error: ReadError) {
        self.state().read_faults.push_back(error);
    }

    /// From here on appends are taken but wait, as behind a writer that stands still between
    /// numbering and commit: nobody sees them.
    pub fn stall(&self) {
        self.state().stalled.get_or_insert_default();
    }

    /// The writer goes on: what waited is written, in order.
    pub fn release(&self) {
        let waiting = self.state().stalled.take().unwrap_or_default();
        for (write, answer) in waiting {
            self.settle(self.inner.append(write), answer);
        }
    }

    /// From here on appends are written but not answered.
    pub fn hold_answers(&self) {
        self.state().unanswered.get_or_insert_default();
    }

    /// Gives the answers that were held back, in order.
    pub fn release_answers(&self) {
        let held = self.state().unanswered.take().unwrap_or_default();
        for (pending, answer) in held {
            self.settle(pending, answer);
        }
    }

    /// The disk is full, or has room again.
    pub fn set_full(&self, full: bool) {
        self.state().full = full;
    }

    /// Appends that wait behind [`Self::stall`].
    pub fn stalled_len(&self) -> usize {
        self.state().stalled.as_ref().map_or(0, VecDeque::len)
    }

    fn settle(&self, pending: Pending, answer: Answer) {
        match &mut self.state().unanswered {
            Some(held) => held.push_back((pending, answer)),
            None => forward(pending, answer, |result| result),
        }
    }
}

/// Answers with what becomes of `pending`; never waits, so that it can be used by async code.
fn forward(
    pending: Pending,
    answer: Answer,
    as_what: impl FnOnce(Result<Appended, AppendError>) -> Result<Appended, AppendError>
    + Send
    + 'static,
) {
    // A caller that no longer waits has lost interest, not its write.
    match pending.try_now() {
        Ok(result) => drop(answer.send(as_what(result))),
        Err(later) => {
            std::thread::spawn(move || drop(answer.send(as_what(later.wait()))));
        }
    }
}

fn unknown() -> AppendError {
    AppendError::Unknown {
        cause: "injected".into(),
    }
}

impl Log for FaultyLog {
    fn append(&self, write: Write) -> Pending {
        let mut state = self.state();
        if state.full {
            return Pending::ready(Err(AppendError::Full {
                folder: "injected".into(),
            }));
        }
        match state.faults.pop_front().unwrap_or(Fault::Pass) {
            Fault::Pass => {}
            Fault::Refuse(error) => return Pending::ready(Err(error)),
            Fault::LoseWrite => return Pending::ready(Err(unknown())),
            Fault::LoseAnswer => {
                drop(state);
                // Settled before it is called unknown, so that a test can look at once.
                let (answer, pending) = Pending::new();
                forward(self.inner.append(write), answer, |_| Err(unknown()));
                return pending;
            }
        }
        if let Some(stalled) = &mut state.stalled {
            let (answer, pending) = Pending::new();
            stalled.push_back((write, answer));
            return pending;
        }
        let holding = state.unanswered.is_some();
        drop(state);
        let written = self.inner.append(write);
        if !holding {
            return written;
        }
        let (answer, pending) = Pending::new();
        self.settle(written, answer);
        pending
    }

    fn view(&self, f: &mut dyn FnMut(&dyn View)) -> Result<(), ReadError> {
        if let Some(error) = self.state().read_faults.pop_front() {
            return Err(error);
        }
        self.inner.view(f)
    }

    fn purge(&self, stream: StreamId) -> Result<(), ReadError> {
        self.inner.purge(stream)
    }

    fn health(&self) -> Health {
        let full = self.state().full;
        match self.inner.health() {
            Health::Ok if full => Health::Full,
            health => health,
        }
    }

    fn close(&self) {
        self.release();
        self.release_answers();
        self.inner.close();
    }
}

#[cfg(test)]
mod tests;
