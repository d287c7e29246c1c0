//! The database behind a handle that can be emptied: every use of it is counted, so that it can
//! be closed, reopened, or waited for, without a reader left inside.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rocksdb::DB;

use crate::log::ReadError;

#[derive(Debug)]
enum Inside {
    Open(Arc<DB>),
    /// Being exchanged; who comes waits.
    Exchange,
    /// Not there for now; who comes is turned away.
    Down,
    Closed,
}

#[derive(Debug)]
struct State {
    inside: Inside,
    /// Users, counted apart by the turn in which they came.
    users: [usize; 2],
    turn: usize,
}

impl State {
    fn users_of(&mut self, turn: usize) -> &mut usize {
        let [even, odd] = &mut self.users;
        if turn == 0 { even } else { odd }
    }
}

/// The gate.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn new(db: DB) -> Self {
        let state = State {
            inside: Inside::Open(Arc::new(db)),
            users: [0; 2],
            turn: 0,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Counters are changed in single steps: a panic elsewhere cannot leave them half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Comes in; waits while the database is being exchanged.
    pub(crate) fn enter(&self) -> Result<Inner<'_>, ReadError> {
        let mut state = self.state();
        while matches!(state.inside, Inside::Exchange) {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let Inside::Open(db) = &state.inside else {
            return Err(ReadError::Closed);
        };
        let db = Arc::clone(db);
        let turn = state.turn;
        *state.users_of(turn) += 1;
        Ok(Inner {
            gate: self,
            db: Some(db),
            turn,
        })
    }

    /// Waits until everyone has left who was inside when this was called.
    pub(crate) fn wait_for_present(&self) {
        let mut state = self.state();
        // Who left for an earlier call may still be inside in the other turn.
        for _ in 0..2 {
            let turn = state.turn;
            state.turn = 1 - turn;
            while *state.users_of(turn) > 0 {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Takes the database out, once everyone has left, and drops it. Who comes meanwhile waits
    /// for [`Self::put`] or [`Self::down`]. False if it is closed.
    pub(crate) fn empty(&self) -> bool {
        let mut state = self.state();
        if matches!(state.inside, Inside::Closed) {
            return false;
        }
        let db = std::mem::replace(&mut state.inside, Inside::Exchange);
        drop(self.wait_empty(state));
        close(db);
        true
    }

    /// Puts a database in.
    pub(crate) fn put(&self, db: DB) {
        self.state().inside = Inside::Open(Arc::new(db));
        self.changed.notify_all();
    }

    /// Turns everyone away until there is a database again.
    pub(crate) fn down(&self) {
        self.state().inside = Inside::Down;
        self.changed.notify_all();
    }

    /// Lets nobody wait for an exchange that will not end.
    pub(crate) fn give_up_exchange(&self) {
        let mut state = self.state();
        if matches!(state.inside, Inside::Exchange) {
            state.inside = Inside::Down;
            self.changed.notify_all();
        }
    }

    /// Closes for good: waits until everyone has left and the database is closed.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        let db = std::mem::replace(&mut state.inside, Inside::Closed);
        self.changed.notify_all();
        drop(self.wait_empty(state));
        close(db);
    }

    fn wait_empty<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while state.users != [0; 2] {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state
    }
}

/// Closes a database that nobody uses any more.
fn close(inside: Inside) {
    if let Inside::Open(db) = inside {
        db.cancel_all_background_work(true);
        drop(db);
    }
}

/// A user inside the gate.
#[derive(Debug)]
pub(crate) struct Inner<'a> {
    gate: &'a Gate,
    /// Taken by `drop` only.
    db: Option<Arc<DB>>,
    turn: usize,
}

impl std::ops::Deref for Inner<'_> {
    type Target = DB;

    #[expect(
        clippy::expect_used,
        reason = "only `drop` takes it, and nothing follows that"
    )]
    fn deref(&self) -> &DB {
        self.db.as_ref().expect("a user inside holds the database")
    }
}

impl Drop for Inner<'_> {
    fn drop(&mut self) {
        // Before the count: who waits for the last user closes the database right after.
        self.db = None;
        let mut state = self.gate.state();
        *state.users_of(self.turn) -= 1;
        if state.users == [0; 2] || *state.users_of(self.turn) == 0 {
            self.gate.changed.notify_all();
        }
    }
}
