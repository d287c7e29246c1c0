//! What an operator can set about a runner (section `runner` of the configuration).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use crate::catalog::profile::Isolation as IsolationMode;

/// One byte of output may take six of JSON, and an event has 1 MiB.
const OUTPUT_BYTES_MAX: usize = 160 << 10;

/// Settings of a runner. Every limit holds for each command or attempt by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunnerConfig {
    /// Whether the server runs its own runner.
    pub enabled: bool,
    /// Attempts at the same time.
    pub capacity: u32,
    /// Commands at the same time, over all attempts; more wait for their turn.
    pub commands_max: usize,
    /// Isolation of commands.
    pub isolation: IsolationMode,
    /// Where `dir` sandboxes are made; absent = `<storage.data_dir>.sandboxes`, beside the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_dir: Option<PathBuf>,
    /// Longest time of one command, seconds; a sandbox profile may ask for less.
    pub command_s_max: u64,
    /// Bytes kept of a command's output (what comes after is counted and dropped); a sandbox
    /// profile may ask for less.
    pub output_bytes_max: usize,
    /// Address space of each process of a command, bytes; a sandbox profile may ask for less.
    pub memory_bytes_max: u64,
    /// Largest file a command may write, bytes.
    pub file_bytes_max: u64,
    /// Files open in each process of a command.
    pub open_files_max: u64,
    /// Processes of one isolated command (not enforced when the runner is root).
    pub processes_max: u64,
    /// Host paths that isolated commands may read, beside the system's own folders.
    pub read_only_paths: Vec<PathBuf>,
    /// Whether a `process` harness (not the commands of other harnesses) reaches the network.
    pub process_network: bool,
    /// Longest line of a `process` harness, bytes.
    pub line_bytes_max: usize,
    /// How long attempts have to let go when the runner stops, seconds.
    pub drain_s_max: u64,
    /// Longest time that one snapshot may take, seconds.
    pub snapshot_s_max: u64,
}

impl Default for RunnerConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            capacity: 64,
            commands_max: 32,
            isolation: IsolationMode::Preferred,
            sandbox_dir: None,
            command_s_max: 3_600,
            output_bytes_max: 128 << 10,
            memory_bytes_max: 16 << 30,
            file_bytes_max: 1 << 30,
            open_files_max: 1_024,
            processes_max: 512,
            read_only_paths: Vec::new(),
            process_network: false,
            line_bytes_max: 8 << 20,
            drain_s_max: 5,
            snapshot_s_max: 300,
        }
    }
}

impl RunnerConfig {
    /// These settings with the stricter limits of a sandbox profile.
    pub fn within(&self, profile: &serde_json::Value) -> Self {
        let limit = |name: &str| {
            profile
                .pointer(&format!("/limits/{name}"))
                .and_then(serde_json::Value::as_u64)
        };
        let mut config = self.clone();
        if let Some(most) = limit("command_s_max") {
            config.command_s_max = config.command_s_max.min(most);
        }
        if let Some(most) = limit("memory_bytes_max") {
            config.memory_bytes_max = config.memory_bytes_max.min(most);
        }
        if let Some(most) = limit("output_bytes_max").and_then(|n| usize::try_from(n).ok()) {
            config.output_bytes_max = config.output_bytes_max.min(most);
        }
        config
    }

    /// Refuses values that cannot work.
    ///
    /// # Errors
    /// The name of the setting, and what it may be.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let positive = [
            ("runner.capacity", u64::from(self.capacity)),
            ("runner.commands_max", self.commands_max as u64),
            ("runner.command_s_max", self.command_s_max),
            ("runner.output_bytes_max", self.output_bytes_max as u64),
            ("runner.memory_bytes_max", self.memory_bytes_max),
            ("runner.file_bytes_max", self.file_bytes_max),
            ("runner.open_files_max", self.open_files_max),
            ("runner.processes_max", self.processes_max),
            ("runner.line_bytes_max", self.line_bytes_max as u64),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err((name, "is at least 1".to_owned()));
        }
        if self.output_bytes_max > OUTPUT_BYTES_MAX {
            let text = format!("is at most {OUTPUT_BYTES_MAX}: it must fit into one event");
            return Err(("runner.output_bytes_max", text));
        }
        Ok(())
    }
}
