//! Settings of the log and of the actors.

use std::path::PathBuf;

use longhaul_actors::engine::EngineConfig;
use longhaul_actors::limits::Limits;
use longhaul_storage::Options;
use serde::{Deserialize, Serialize};

/// Which engine keeps the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StorageEngine {
    /// On disk, durable.
    #[default]
    Rocksdb,
    /// In memory: nothing survives the process. For tests and trials.
    Memory,
}

/// `storage.*`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StorageConfig {
    /// Which engine.
    pub engine: StorageEngine,
    /// The data folder; made when missing.
    pub data_dir: PathBuf,
    /// Memory of the engine: block cache, filters and write buffers together, bytes.
    pub memory_bytes_max: usize,
    /// Files the engine keeps open.
    pub open_files_max: u32,
    /// Write-ahead log that an opening after a crash has to read at most, bytes.
    pub wal_bytes_max: u64,
    /// The engine's own log, per file, bytes.
    pub info_log_bytes_max: usize,
    /// Files of the engine's own log.
    pub info_log_files_max: usize,
    /// Writes that may wait for the writer.
    pub queue_len_max: usize,
    /// Their size, bytes.
    pub queue_bytes_max: usize,
    /// What one sync may carry, bytes.
    pub batch_bytes_max: usize,
}

impl Default for StorageConfig {
    fn default() -> Self {
        let options = Options::default();
        Self {
            engine: StorageEngine::Rocksdb,
            data_dir: PathBuf::from("longhaul-data"),
            memory_bytes_max: options.memory_bytes_max,
            open_files_max: options.open_files_max,
            wal_bytes_max: options.wal_bytes_max,
            info_log_bytes_max: options.info_log_bytes_max,
            info_log_files_max: options.info_log_files_max,
            queue_len_max: options.queue_len_max,
            queue_bytes_max: options.queue_bytes_max,
            batch_bytes_max: options.batch_bytes_max,
        }
    }
}

impl StorageConfig {
    /// What the engine on disk is opened with.
    pub fn options(&self) -> Options {
        Options {
            memory_bytes_max: self.memory_bytes_max,
            open_files_max: self.open_files_max,
            wal_bytes_max: self.wal_bytes_max,
            info_log_bytes_max: self.info_log_bytes_max,
            info_log_files_max: self.info_log_files_max,
            queue_len_max: self.queue_len_max,
            queue_bytes_max: self.queue_bytes_max,
            batch_bytes_max: self.batch_bytes_max,
            ..Options::default()
        }
    }
}

/// `forks.*`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ForksConfig {
    /// How long a fork waits for a runner's copy of its disk, seconds.
    pub clone_s_max: u64,
}

impl Default for ForksConfig {
    fn default() -> Self {
        Self {
            clone_s_max: EngineConfig::default().clone_s_max,
        }
    }
}

/// `runtimes.*`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuntimesConfig {
    /// How long a sandbox that nobody uses stays between operations, seconds.
    pub attached_idle_s_max: u64,
}

impl Default for RuntimesConfig {
    fn default() -> Self {
        Self {
            attached_idle_s_max: 600,
        }
    }
}

/// `engine.*`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineSettings {
    /// Threads that run session actors.
    pub arbiters: usize,
    /// Messages that may wait in the mailbox of a shard or the dispatcher.
    pub mailbox_len_max: usize,
    /// Commands that may wait in one session.
    pub command_queue_len_max: usize,
    /// Content bytes of the commands that may wait in one session; one is always taken.
    pub command_queue_bytes_max: usize,
    /// Events that one session commits at once.
    pub batch_events_max: usize,
    /// A session without work leaves memory after so long, seconds.
    pub idle_passivate_s: u64,
    /// Sessions that are read back from disk at the same time, per arbiter.
    pub recoveries_max: usize,
    /// Threads for reads that may touch the disk.
    pub blocking_threads_max: usize,
    /// Reads that may wait for them.
    pub blocking_queue_len_max: usize,
    /// How often rows are looked through for work that nobody was told of, seconds.
    pub sweep_s: u64,
    /// How long closing waits for commands in progress, seconds.
    pub drain_s_max: u64,
}

impl Default for EngineSettings {
    fn default() -> Self {
        let engine = EngineConfig::default();
        Self {
            arbiters: engine.arbiters,
            mailbox_len_max: engine.mailbox_len_max,
            command_queue_len_max: engine.command_queue_len_max,
            command_queue_bytes_max: engine.command_queue_bytes_max,
            batch_events_max: engine.batch_events_max,
            idle_passivate_s: engine.idle_passivate_s,
            recoveries_max: engine.recoveries_max,
            blocking_threads_max: engine.blocking_threads_max,
            blocking_queue_len_max: engine.blocking_queue_len_max,
            sweep_s: engine.sweep_s,
            drain_s_max: 3,
        }
    }
}

/// `feed.*`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FeedConfig {
    /// Newest events kept in memory per followed session.
    pub events_max: usize,
    /// Their bytes.
    pub bytes_max: usize,
    /// Followers of all sessions together.
    pub followers_max: usize,
}

impl Default for FeedConfig {
    fn default() -> Self {
        let engine = EngineConfig::default();
        Self {
            events_max: engine.feed_events_max,
            bytes_max: engine.feed_bytes_max,
            followers_max: engine.followers_max,
        }
    }
}

/// `receipts.*`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReceiptsConfig {
    /// How long the answer to an Idempotency-Key is kept, seconds.
    pub ttl_s: u64,
}

impl Default for ReceiptsConfig {
    fn default() -> Self {
        Self {
            ttl_s: EngineConfig::default().receipt_ttl_s,
        }
    }
}

/// `retention.*`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionConfig {
    /// How long a checkpoint lives, seconds (at most 30 days); a workspace may shorten it.
    pub checkpoint_ttl_s: u64,
    /// Checkpoints of one session that are not pinned; the oldest go first. 0 = any number.
    pub checkpoints_per_session_max: u32,
    /// Pinned checkpoints of one session.
    pub checkpoints_pinned_max: u32,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            checkpoint_ttl_s: limits.checkpoint_ttl_s,
            checkpoints_per_session_max: limits.checkpoints_per_session_max,
            checkpoints_pinned_max: limits.checkpoints_pinned_max,
        }
    }
}

/// `mcp.*`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct McpConfig {
    /// The file of MCP servers; absent = there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers_file: Option<PathBuf>,
    /// How long a server has to start, and to list its tools, seconds.
    pub start_s_max: u64,
    /// Longest call of one of their tools, seconds; the agent's own limit may be shorter.
    pub call_s_max: u64,
}

impl Default for McpConfig {
    fn default() -> Self {
        Self {
            servers_file: None,
            start_s_max: 30,
            call_s_max: 600,
        }
    }
}
