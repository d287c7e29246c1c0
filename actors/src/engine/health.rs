//! How the engine is.

use serde::Serialize;

use super::Engine;

/// Whether the engine does its work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Health {
    /// It takes commands.
    Ok,
    /// It reads; writes return when the log does.
    Degraded {
        /// What is amiss.
        reason: String,
    },
    /// Out of order: the process must be restarted.
    Failed {
        /// What died.
        reason: String,
    },
    /// Closed, or being closed.
    Closed,
}

impl Health {
    /// Whether traffic should be sent here.
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Ok)
    }
}

/// Counts of now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Runs that wait for a runner.
    pub queue_depth: usize,
    /// How long the oldest of them waits, milliseconds.
    pub oldest_pending_ms: u64,
    /// Sessions in memory.
    pub sessions_live: usize,
    /// Claims watched.
    pub claims_live: usize,
    /// Open followers.
    pub followers: usize,
    /// Enrolled runners.
    pub runners: usize,
    /// Commands that are not answered yet.
    pub commands_open: usize,
}

impl Engine {
    /// How the engine and its log are.
    pub fn health(&self) -> Health {
        use longhaul_storage::Health as Log;
        let inner = &self.inner;
        let log = inner.log.health();
        if let Log::Failed(cause) = &log {
            inner.fail(format!("the log failed: {cause}"));
        }
        if let Some(reason) = inner.failure() {
            return Health::Failed {
                reason: reason.to_owned(),
            };
        }
        if !inner.is_running() {
            return Health::Closed;
        }
        let reason = match log {
            Log::Ok => return Health::Ok,
            Log::Closed => return Health::Closed,
            Log::Full => "the disk that holds the log is full",
            Log::Recovering => "the log is being reopened",
            Log::Failed(_) => "the log failed",
        };
        Health::Degraded {
            reason: reason.to_owned(),
        }
    }

    /// Counts of now; the gauges of the metrics are set to them.
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }
}

impl super::inner::Inner {
    /// Counts of now; the gauges of the metrics are set to them.
    pub(crate) fn stats(&self) -> Stats {
        use std::sync::atomic::Ordering::Relaxed;
        let oldest = self.queue.oldest_ms.load(Relaxed);
        let age = self.door.clock.wall_ms().saturating_sub(oldest);
        let stats = Stats {
            queue_depth: self.queue.depth.load(Relaxed),
            oldest_pending_ms: u64::try_from(age).unwrap_or(0),
            sessions_live: self.directory.len(),
            claims_live: self.claims_live.load(Relaxed),
            followers: self.feed.followers(),
            runners: self.queue.runners.load(Relaxed),
            commands_open: self.drain.open(),
        };
        let m = &self.metrics;
        // Gauges are floating-point numbers; counts of this size fit them exactly.
        m.queue_depth.set(stats.queue_depth as f64);
        m.oldest_pending
            .set(stats.oldest_pending_ms as f64 / 1_000.0);
        m.sessions_live.set(stats.sessions_live as f64);
        m.followers.set(stats.followers as f64);
        stats
    }
}
