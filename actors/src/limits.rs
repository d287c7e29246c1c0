//! Limits and times that decisions need: one table, units in the names, the same number for
//! writing and reading. Defaults are the documented ones.

use serde::{Deserialize, Serialize};

/// Largest content of one event, bytes of JSON.
pub const EVENT_CONTENT_BYTES_MAX: usize = 1 << 20;
/// Most events in one submission.
pub const BATCH_EVENTS_MAX: usize = 100;
/// Most content bytes in one submission.
pub const BATCH_BYTES_MAX: usize = 4 << 20;
/// Most events on one page.
pub const PAGE_EVENTS_MAX: usize = 1_000;
/// Most content bytes on one page (its first event is always there).
pub const PAGE_BYTES_MAX: usize = 4 << 20;

/// Longest life of a checkpoint, seconds: 30 days.
pub const CHECKPOINT_TTL_S_MAX: u64 = 30 * 24 * 3_600;

/// What decisions look up. Part of the runtime's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// From claim to ready, seconds.
    pub startup_s_max: u64,
    /// How long a claim lasts without a call of its runner, seconds.
    pub lease_s: u64,
    /// How often a runner is advised to heartbeat, seconds (0 < beat ≤ lease).
    pub beat_s: u64,
    /// Attempts of one run that count (graceful releases do not).
    pub attempts_max: u32,
    /// First back-off before a lost run is offered again, milliseconds.
    pub backoff_ms_min: u64,
    /// Longest back-off, milliseconds.
    pub backoff_ms_max: u64,
    /// How long a park may hold its compute, seconds.
    pub waiting_hold_s_max: u64,
    /// How long a checkpoint lives at most, seconds.
    pub checkpoint_ttl_s: u64,
    /// Checkpoints of one session, pinned ones apart; the oldest go first. 0 = unbounded.
    pub checkpoints_per_session_max: u32,
    /// Pinned checkpoints of one session.
    pub checkpoints_pinned_max: u32,
    /// Events of one session.
    pub session_events_max: u64,
    /// Messages of one session that no run has taken.
    pub untaken_inputs_max: u32,
    /// Open items of one session (questions, approvals, tool calls).
    pub open_items_max: usize,
    /// Signals of one session that nobody has consumed.
    pub signals_max: usize,
    /// Metadata pairs of one session.
    pub metadata_pairs_max: usize,
    /// Bytes of one metadata key.
    pub metadata_key_bytes_max: usize,
    /// Bytes of one metadata value (a JSON scalar).
    pub metadata_value_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            startup_s_max: 60,
            lease_s: 30,
            beat_s: 10,
            attempts_max: 5,
            backoff_ms_min: 1_000,
            backoff_ms_max: 60_000,
            waiting_hold_s_max: 300,
            checkpoint_ttl_s: CHECKPOINT_TTL_S_MAX,
            checkpoints_per_session_max: 20,
            checkpoints_pinned_max: 100,
            session_events_max: 1_000_000,
            untaken_inputs_max: 10_000,
            open_items_max: 64,
            signals_max: 64,
            metadata_pairs_max: 16,
            metadata_key_bytes_max: 64,
            metadata_value_bytes_max: 512,
        }
    }
}
