//! Settings of the engine.

use serde::{Deserialize, Serialize};

use crate::limits::Limits;

/// Settings of the engine: every queue, cache and pool has its limit here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineConfig {
    /// What decisions look up.
    pub limits: Limits,
    /// Threads that run session actors.
    pub arbiters: usize,
    /// Messages that wait in the mailbox of a shard or the dispatcher.
    pub mailbox_len_max: usize,
    /// Commands that wait in one session.
    pub command_queue_len_max: usize,
    /// Content bytes of the commands that wait in one session; one command is always taken.
    pub command_queue_bytes_max: usize,
    /// Events of one append (a single command may bring more: its batch limit is its own).
    pub batch_events_max: usize,
    /// How long a session without work stays in memory, seconds.
    pub idle_passivate_s: u64,
    /// Sessions read from the log at the same time, per arbiter.
    pub recoveries_max: usize,
    /// Events kept in memory for the followers of one session.
    pub feed_events_max: usize,
    /// Content bytes kept in memory for the followers of one session.
    pub feed_bytes_max: usize,
    /// Threads for reads that may touch the disk.
    pub blocking_threads_max: usize,
    /// Reads that wait for such a thread, per class.
    pub blocking_queue_len_max: usize,
    /// Open followers.
    pub followers_max: usize,
    /// Hands out no claims.
    pub claims_paused: bool,
    /// How long a runner counts as live after its last call, seconds.
    pub runner_live_s: u64,
    /// How long a run whose disk only one runner has waits for that runner, seconds.
    pub host_wait_s: u64,
    /// How long a fork waits for the copy of its disk, seconds.
    pub clone_s_max: u64,
    /// Enrolled runners.
    pub runners_max: usize,
    /// Long polls for claims that wait.
    pub polls_max: usize,
    /// How long answers to Idempotency-Keys are kept, seconds.
    pub receipt_ttl_s: u64,
    /// How often rows are looked through for work that nobody was told of, seconds.
    pub sweep_s: u64,
    /// Rows of one step of such a look.
    pub sweep_rows_max: usize,
    /// How far ahead durable timers are kept in memory, seconds.
    pub timer_ahead_s: u64,
    /// How long closing waits for commands in progress, seconds.
    pub drain_s_max: u64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            arbiters: 1,
            mailbox_len_max: 65_536,
            command_queue_len_max: 1_024,
            command_queue_bytes_max: 32 << 20,
            batch_events_max: 1_024,
            idle_passivate_s: 300,
            recoveries_max: 32,
            feed_events_max: 1_024,
            feed_bytes_max: 4 << 20,
            blocking_threads_max: 4,
            blocking_queue_len_max: 65_536,
            followers_max: 10_000,
            claims_paused: false,
            runner_live_s: 60,
            host_wait_s: 60,
            clone_s_max: 60,
            runners_max: 10_000,
            polls_max: 10_000,
            receipt_ttl_s: 7 * 24 * 3_600,
            sweep_s: 30,
            sweep_rows_max: 500,
            timer_ahead_s: 600,
            drain_s_max: 8,
        }
    }
}
