//! Sandboxes that runtime operations left between runs, by session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::sandbox::Sandbox;

/// A sandbox between runs.
#[derive(Debug, Clone)]
struct Left {
    sandbox: Arc<dyn Sandbox>,
    /// When it was last used, monotonic.
    used: Duration,
}

/// The sandboxes that operations left.
#[derive(Debug, Default)]
pub struct Attached(Mutex<HashMap<String, Left>>);

impl Attached {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Left>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox of a session, which stays.
    pub fn find(&self, session_id: &str) -> Option<Arc<dyn Sandbox>> {
        self.lock().get(session_id).map(|l| Arc::clone(&l.sandbox))
    }

    /// The sandbox of a session, for whoever goes on with it.
    pub fn take(&self, session_id: &str) -> Option<Arc<dyn Sandbox>> {
        self.lock().remove(session_id).map(|l| l.sandbox)
    }

    /// Leaves a sandbox, used at `now`.
    pub fn leave(&self, session_id: &str, sandbox: Arc<dyn Sandbox>, now: Duration) {
        let left = Left { sandbox, used: now };
        self.lock().insert(session_id.to_owned(), left);
    }

    /// Sessions whose sandbox has not been used since `before`.
    pub fn idle(&self, before: Duration) -> Vec<String> {
        let left = self.lock();
        let idle = left.iter().filter(|(_, l)| l.used < before);
        idle.map(|(id, _)| id.clone()).collect()
    }

    /// All of them, taken out.
    pub fn drain(&self) -> Vec<Arc<dyn Sandbox>> {
        self.lock().drain().map(|(_, l)| l.sandbox).collect()
    }
}
