//! The configuration: one tree of settings, the same for file, environment, `--set` and hosts.
//!
//! Order of precedence, weakest first: defaults, file (TOML), environment
//! (`LONGHAUL__RUNS__LEASE_S=20`), `--set runs.lease_s=20`. An unknown key or a value that fits
//! nothing refuses the start. Every setting is in [`SETTINGS`] and in docs/configuration.md.

mod load;
mod models;
mod parts;
mod table;

use std::net::SocketAddr;
use std::path::PathBuf;

use longhaul_actors::engine::EngineConfig;
use longhaul_actors::limits::Limits;
use serde::{Deserialize, Serialize};

pub use crate::catalog::profile::Isolation;
pub use crate::runner::settings::RunnerConfig;
pub use load::{ConfigError, Sources};
pub use models::{AnthropicConfig, ModelsConfig, OpenAiConfig};
pub use parts::{
    EngineSettings, FeedConfig, ForksConfig, McpConfig, ReceiptsConfig, RetentionConfig,
    RuntimesConfig, StorageConfig, StorageEngine,
};
pub use table::{SETTINGS, Setting, markdown};

/// The folder of snapshots in the data folder.
pub(crate) const SNAPSHOTS: &str = "snapshots";

/// Every setting.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where the log is.
    pub storage: StorageConfig,
    /// Limits of a session.
    pub sessions: SessionsConfig,
    /// Runs, attempts, claims.
    pub runs: RunsConfig,
    /// Enrolled runners.
    pub runners: RunnersConfig,
    /// Forks.
    pub forks: ForksConfig,
    /// Sandboxes between runs.
    pub runtimes: RuntimesConfig,
    /// Actors and their queues.
    pub engine: EngineSettings,
    /// Live followers.
    pub feed: FeedConfig,
    /// Answers kept for repeated requests.
    pub receipts: ReceiptsConfig,
    /// How long and how many things are kept.
    pub retention: RetentionConfig,
    /// The HTTP server.
    pub http: HttpConfig,
    /// Who may call.
    pub auth: AuthConfig,
    /// The built-in runner.
    pub runner: RunnerConfig,
    /// MCP servers, whose tools agents may have.
    pub mcp: McpConfig,
    /// Routes to models.
    pub models: ModelsConfig,
}

/// `sessions.*`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionsConfig {
    /// Events of one session.
    pub events_max: u64,
    /// Messages of one session that no run has taken.
    pub untaken_inputs_max: u32,
    /// Open items of one session.
    pub open_items_max: usize,
    /// Signals of one session that nobody has consumed.
    pub signals_max: usize,
    /// Metadata pairs of one session.
    pub metadata_pairs_max: usize,
    /// Bytes of one metadata key.
    pub metadata_key_bytes_max: usize,
    /// Bytes of one metadata value.
    pub metadata_value_bytes_max: usize,
}

impl Default for SessionsConfig {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            events_max: limits.session_events_max,
            untaken_inputs_max: limits.untaken_inputs_max,
            open_items_max: limits.open_items_max,
            signals_max: limits.signals_max,
            metadata_pairs_max: limits.metadata_pairs_max,
            metadata_key_bytes_max: limits.metadata_key_bytes_max,
            metadata_value_bytes_max: limits.metadata_value_bytes_max,
        }
    }
}

/// `runs.*`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunsConfig {
    /// From claim to ready, seconds.
    pub startup_s_max: u64,
    /// How long a claim lasts without a call of its runner, seconds.
    pub lease_s: u64,
    /// How often a runner is advised to heartbeat, seconds (0 < beat ≤ lease).
    pub beat_s: u64,
    /// Attempts of one run that count.
    pub attempts_max: u32,
    /// First back-off before a lost run is offered again, milliseconds.
    pub backoff_ms_min: u64,
    /// Longest back-off, milliseconds.
    pub backoff_ms_max: u64,
    /// How long a park may hold its compute, seconds.
    pub waiting_hold_s_max: u64,
    /// How long a run whose disk only one runner has waits for it, once that is not live, seconds.
    pub host_wait_s: u64,
    /// Hands out no claim; everything else works.
    pub paused: bool,
}

impl Default for RunsConfig {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            startup_s_max: limits.startup_s_max,
            lease_s: limits.lease_s,
            beat_s: limits.beat_s,
            attempts_max: limits.attempts_max,
            backoff_ms_min: limits.backoff_ms_min,
            backoff_ms_max: limits.backoff_ms_max,
            waiting_hold_s_max: limits.waiting_hold_s_max,
            host_wait_s: EngineConfig::default().host_wait_s,
            paused: false,
        }
    }
}

/// `runners.*`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunnersConfig {
    /// A runner counts as live for so long after its last call, seconds.
    pub live_s: u64,
    /// Longest wait of one poll for claims or inputs, milliseconds.
    pub wait_ms_max: u64,
    /// Runners that call at the same time.
    pub known_max: usize,
    /// Polls for claims that wait at the same time.
    pub polls_max: usize,
}

impl Default for RunnersConfig {
    fn default() -> Self {
        let engine = EngineConfig::default();
        Self {
            live_s: engine.runner_live_s,
            wait_ms_max: 60_000,
            known_max: engine.runners_max,
            polls_max: engine.polls_max,
        }
    }
}

/// `http.*`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpConfig {
    /// Address and port.
    pub listen: SocketAddr,
    /// Threads that serve connections.
    pub workers: usize,
    /// Connections of all threads together.
    pub connections_max: usize,
    /// Event streams of all connections together.
    pub streams_max: usize,
    /// A stream is closed with `event: reconnect` after so long, seconds.
    pub stream_age_s_max: u64,
    /// A comment is sent on a quiet stream every so often, seconds.
    pub heartbeat_s: u64,
    /// Bytes of one request body.
    pub body_bytes_max: usize,
    /// A request's head, and then its body, must arrive within this time, seconds.
    pub request_s_max: u64,
    /// An idle connection is kept for so long, seconds.
    pub keep_alive_s: u64,
    /// A peer that takes no bytes for so long is cut off, seconds.
    pub stalled_write_s_max: u64,
    /// At shutdown, requests in progress get so long, seconds (at most 8).
    pub drain_s_max: u64,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7_070)),
            workers: 2,
            connections_max: 25_000,
            streams_max: 10_000,
            stream_age_s_max: 3_600,
            heartbeat_s: 15,
            body_bytes_max: 8 << 20,
            request_s_max: 30,
            keep_alive_s: 60,
            stalled_write_s_max: 60,
            drain_s_max: 3,
        }
    }
}

/// `auth.*`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthConfig {
    /// The file of bearer tokens (JSON lines, read again when it changes). Without one the server
    /// is open, but to this machine only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_file: Option<PathBuf>,
}

impl Config {
    /// Everything at its default, the log in `data_dir`.
    pub fn in_folder(data_dir: impl Into<PathBuf>) -> Self {
        let mut config = Self::default();
        config.storage.data_dir = data_dir.into();
        config
    }

    /// Everything at its default, the log in memory: nothing survives the process.
    pub fn in_memory() -> Self {
        let mut config = Self::default();
        config.storage.engine = StorageEngine::Memory;
        config
    }

    /// What decisions look up.
    pub fn limits(&self) -> Limits {
        Limits {
            startup_s_max: self.runs.startup_s_max,
            lease_s: self.runs.lease_s,
            beat_s: self.runs.beat_s,
            attempts_max: self.runs.attempts_max,
            backoff_ms_min: self.runs.backoff_ms_min,
            backoff_ms_max: self.runs.backoff_ms_max,
            waiting_hold_s_max: self.runs.waiting_hold_s_max,
            session_events_max: self.sessions.events_max,
            untaken_inputs_max: self.sessions.untaken_inputs_max,
            open_items_max: self.sessions.open_items_max,
            signals_max: self.sessions.signals_max,
            metadata_pairs_max: self.sessions.metadata_pairs_max,
            metadata_key_bytes_max: self.sessions.metadata_key_bytes_max,
            metadata_value_bytes_max: self.sessions.metadata_value_bytes_max,
            checkpoint_ttl_s: self.retention.checkpoint_ttl_s,
            checkpoints_per_session_max: self.retention.checkpoints_per_session_max,
            checkpoints_pinned_max: self.retention.checkpoints_pinned_max,
        }
    }

    /// What the engine is started with.
    pub fn engine(&self) -> EngineConfig {
        EngineConfig {
            limits: self.limits(),
            arbiters: self.engine.arbiters,
            mailbox_len_max: self.engine.mailbox_len_max,
            command_queue_len_max: self.engine.command_queue_len_max,
            command_queue_bytes_max: self.engine.command_queue_bytes_max,
            batch_events_max: self.engine.batch_events_max,
            idle_passivate_s: self.engine.idle_passivate_s,
            recoveries_max: self.engine.recoveries_max,
            blocking_threads_max: self.engine.blocking_threads_max,
            blocking_queue_len_max: self.engine.blocking_queue_len_max,
            sweep_s: self.engine.sweep_s,
            drain_s_max: self.engine.drain_s_max,
            feed_events_max: self.feed.events_max,
            feed_bytes_max: self.feed.bytes_max,
            followers_max: self.feed.followers_max,
            claims_paused: self.runs.paused,
            runner_live_s: self.runners.live_s,
            host_wait_s: self.runs.host_wait_s,
            clone_s_max: self.forks.clone_s_max,
            runners_max: self.runners.known_max,
            polls_max: self.runners.polls_max,
            receipt_ttl_s: self.receipts.ttl_s,
            ..EngineConfig::default()
        }
    }

    /// Where snapshots of `dir` sandboxes are kept: part of the data folder, so that one copy of
    /// it holds everything.
    pub fn snapshot_dir(&self) -> PathBuf {
        self.storage.data_dir.join(SNAPSHOTS)
    }

    /// Where `dir` sandboxes are made: never inside the log's folder.
    pub fn sandbox_dir(&self) -> PathBuf {
        self.runner.sandbox_dir.clone().unwrap_or_else(|| {
            let mut name = self.storage.data_dir.clone().into_os_string();
            name.push(".sandboxes");
            name.into()
        })
    }
}
