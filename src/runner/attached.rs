//! Sandboxes that runtime operations left between runs, by session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_actors::session::payload::Began;

use super::sandbox::Sandbox;

/// A sandbox, and what it began as.
#[derive(Debug, Clone)]
pub struct Disk {
    /// The sandbox.
    pub sandbox: Arc<dyn Sandbox>,
    /// What it began as, where that was not the disk that the session had last.
    pub began: Option<Began>,
}

/// A sandbox between runs.
#[derive(Debug, Clone)]
struct Left {
    disk: Disk,
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
    pub fn find(&self, session_id: &str) -> Option<Disk> {
        self.lock().get(session_id).map(|l| l.disk.clone())
    }

    /// The sandbox of a session, for whoever goes on with it.
    pub fn take(&self, session_id: &str) -> Option<Disk> {
        self.lock().remove(session_id).map(|l| l.disk)
    }

    /// Leaves a sandbox, used at `now`.
    pub fn leave(&self, session_id: &str, disk: Disk, now: Duration) {
        let left = Left { disk, used: now };
        self.lock().insert(session_id.to_owned(), left);
    }

    /// Sessions whose sandbox has not been used since `before`.
    pub fn idle(&self, before: Duration) -> Vec<String> {
        let left = self.lock();
        let idle = left.iter().filter(|(_, l)| l.used < before);
        idle.map(|(id, _)| id.clone()).collect()
    }

    /// All of them, taken out.
    pub fn drain(&self) -> Vec<Disk> {
        self.lock().drain().map(|(_, l)| l.disk).collect()
    }
}
