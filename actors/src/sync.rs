//! Locks that outlive a panic: the data behind them is only changed by steps that cannot fail.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes the lock, whatever happened to an earlier holder.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
