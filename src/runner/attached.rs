//! Sandboxes that runtime operations left between runs, by session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_actors::session::payload::Began;

use super::sandbox::{Sandbox, Stay};

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
    /// When it was last used, monotonic; later, when it could not be kept.
    used: Duration,
    /// How often it could not be kept.
    failures: u32,
}

/// How long a sandbox that could not be kept stays before that is tried again.
const AGAIN_MIN: Duration = Duration::from_secs(60);
/// Twice as long each time, up to this.
const AGAIN_MAX: Duration = Duration::from_secs(60 * 60);

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
        let mut all = self.lock();
        let failures = all.get(session_id).map_or(0, |left| left.failures);
        let left = Left {
            disk,
            used: now,
            failures,
        };
        all.insert(session_id.to_owned(), left);
    }

    /// Notes in the sandbox of a session, if there is one, that it stays.
    pub fn note(&self, session_id: &str, stay: &Stay) {
        // Locked meanwhile: whoever takes it out may remove the note.
        if let Some(left) = self.lock().get(session_id) {
            left.disk.sandbox.attach_to(Some(stay));
        }
    }

    /// The sandbox could not be kept at `now`: it counts as idle again later, each time twice as
    /// long, up to an hour. Gives how long.
    pub fn put_off(&self, session_id: &str, now: Duration) -> Duration {
        let mut all = self.lock();
        let Some(left) = all.get_mut(session_id) else {
            return AGAIN_MIN;
        };
        let factor = 1_u32.checked_shl(left.failures).unwrap_or(u32::MAX);
        let pause = AGAIN_MIN.saturating_mul(factor).min(AGAIN_MAX);
        left.failures = left.failures.saturating_add(1);
        left.used = now + pause;
        pause
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::sandbox::none::NoneProvider;
    use crate::runner::sandbox::{SandboxProvider, SandboxRequest};

    #[tokio::test]
    async fn what_cannot_be_kept_is_tried_again_less_and_less_often() {
        let request = SandboxRequest {
            session_id: "s".to_owned(),
            run_id: String::new(),
            attempt: 0,
            workspace: None,
            profile: serde_json::Value::Null,
            resume: serde_json::Value::Null,
        };
        let sandbox = NoneProvider.create(request).await.unwrap();
        let disk = Disk {
            sandbox: Arc::from(sandbox),
            began: None,
        };
        let (pool, s) = (Attached::default(), Duration::from_secs);
        let mut now = s(1_000);
        let mut pauses = Vec::new();
        for _ in 0..40 {
            // An attempt to keep it leaves it again, as any use does.
            pool.leave("s", disk.clone(), now);
            let pause = pool.put_off("s", now);
            assert!(pool.idle(now + pause).is_empty());
            now += pause + s(1);
            assert_eq!(pool.idle(now), ["s"]);
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses[..7], [60, 120, 240, 480, 960, 1_920, 3_600]);
        assert_eq!(pauses[39], 3_600);
        // Kept in the end, it begins anew.
        pool.take("s").unwrap();
        pool.leave("s", disk, now);
        assert_eq!(pool.put_off("s", now), s(60));
    }
}
