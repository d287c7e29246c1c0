//! Reading settings from a file, the environment and `--set`, and refusing what fits nothing.

use std::net::IpAddr;
use std::path::PathBuf;

use longhaul_actors::limits::CHECKPOINT_TTL_S_MAX;
use toml::{Table, Value};

use super::table::{Kind, SETTINGS, Setting};
use super::{Config, HttpConfig, RunsConfig};

/// Why a configuration is refused. The message names the key and where it came from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// The file is not TOML.
    #[error("{path} is not TOML: {reason}")]
    Syntax {
        /// The file.
        path: String,
        /// What does not fit.
        reason: String,
    },
    /// There is no such setting.
    #[error("{from}: there is no setting `{key}`; the nearest is `{nearest}`")]
    Unknown {
        /// Where it was given.
        from: String,
        /// The key.
        key: String,
        /// The key it most resembles.
        nearest: String,
    },
    /// `--set` without `=`.
    #[error("--set {0}: write it as key=value")]
    NoValue(String),
    /// A value that the setting cannot have.
    #[error("{key}: {reason}")]
    Invalid {
        /// The key.
        key: String,
        /// What it may be.
        reason: String,
    },
}

/// Where settings come from, weakest first.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// A TOML file.
    pub file: Option<PathBuf>,
    /// Environment variables; those that start with `LONGHAUL__` count.
    pub env: Vec<(String, String)>,
    /// `key=value`, in order.
    pub set: Vec<String>,
}

impl Sources {
    /// Reads everything over the defaults and checks the whole.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let mut tree = Table::new();
        if let Some(path) = &self.file {
            let shown = path.display().to_string();
            let text = std::fs::read_to_string(path).map_err(|e| ConfigError::File {
                path: shown.clone(),
                reason: e.to_string(),
            })?;
            tree = read_file(&shown, &text)?;
        }
        for (name, value) in &self.env {
            if let Some(key) = name.strip_prefix("LONGHAUL__") {
                let key = key.to_lowercase().replace("__", ".");
                put(&mut tree, name, &key, value)?;
            }
        }
        for set in &self.set {
            let (key, value) = set
                .split_once('=')
                .ok_or_else(|| ConfigError::NoValue(set.clone()))?;
            put(&mut tree, "--set", key.trim(), value.trim())?;
        }
        let config: Config =
            tree.try_into()
                .map_err(|e: toml::de::Error| ConfigError::Invalid {
                    key: "configuration".into(),
                    reason: e.message().to_owned(),
                })?;
        config.check()?;
        Ok(config)
    }
}

fn read_file(path: &str, text: &str) -> Result<Table, ConfigError> {
    let tree: Table = text
        .parse()
        .map_err(|e: toml::de::Error| ConfigError::Syntax {
            path: path.to_owned(),
            reason: e.to_string(),
        })?;
    check_keys(path, "", &tree)?;
    Ok(tree)
}

/// Every value of a table, and of the tables in it, is that of a setting.
fn check_keys(path: &str, section: &str, table: &Table) -> Result<(), ConfigError> {
    for (name, value) in table {
        let key = match section {
            "" => name.clone(),
            section => format!("{section}.{name}"),
        };
        if let Value::Table(fields) = value {
            check_keys(path, &key, fields)?;
            continue;
        }
        let setting = find(path, &key)?;
        if !fits(setting.kind, value) {
            return Err(wrong_kind(setting));
        }
    }
    Ok(())
}

fn fits(kind: Kind, value: &Value) -> bool {
    match kind {
        Kind::Number(_) => value.is_integer(),
        Kind::Bool => value.is_bool(),
        Kind::Path | Kind::Text => value.is_str(),
    }
}

fn put(tree: &mut Table, from: &str, key: &str, value: &str) -> Result<(), ConfigError> {
    let setting = find(from, key)?;
    let value = match setting.kind {
        Kind::Number(_) => {
            let plain = value.replace('_', "");
            Value::Integer(plain.parse().map_err(|_| wrong_kind(setting))?)
        }
        Kind::Bool => Value::Boolean(value.parse().map_err(|_| wrong_kind(setting))?),
        Kind::Path | Kind::Text => Value::String(value.to_owned()),
    };
    let Some((sections, name)) = key.rsplit_once('.') else {
        return Err(unknown(from, key));
    };
    let mut table = tree;
    for section in sections.split('.') {
        let inner = table
            .entry(section)
            .or_insert_with(|| Value::Table(Table::new()));
        let Value::Table(inner) = inner else {
            return Err(unknown(from, key));
        };
        table = inner;
    }
    table.insert(name.to_owned(), value);
    Ok(())
}

fn find(from: &str, key: &str) -> Result<&'static Setting, ConfigError> {
    SETTINGS
        .iter()
        .find(|s| s.key == key)
        .ok_or_else(|| unknown(from, key))
}

fn wrong_kind(setting: &Setting) -> ConfigError {
    let reason = match setting.kind {
        Kind::Number(unit) => format!("needs a whole number ({unit})"),
        Kind::Bool => "needs true or false".to_owned(),
        Kind::Path => "needs a path".to_owned(),
        Kind::Text => "needs a text".to_owned(),
    };
    ConfigError::Invalid {
        key: setting.key.to_owned(),
        reason,
    }
}

fn unknown(from: &str, key: &str) -> ConfigError {
    let nearest = SETTINGS
        .iter()
        .min_by_key(|s| strsim::damerau_levenshtein(s.key, key));
    ConfigError::Unknown {
        from: from.to_owned(),
        key: key.to_owned(),
        nearest: nearest.map_or_else(String::new, |s| s.key.to_owned()),
    }
}

fn need(holds: bool, key: &str, reason: &str) -> Result<(), ConfigError> {
    if holds {
        Ok(())
    } else {
        Err(ConfigError::Invalid {
            key: key.to_owned(),
            reason: reason.to_owned(),
        })
    }
}

impl Config {
    /// Whether the settings fit together.
    ///
    /// # Errors
    /// The first one that does not, with what it may be.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.runs.check()?;
        self.http.check(self.auth.tokens_file.is_some())?;
        let (storage, engine) = (&self.storage, &self.engine);
        need(
            !storage.data_dir.as_os_str().is_empty(),
            "storage.data_dir",
            "is empty",
        )?;
        let (dir, sandboxes) = (&storage.data_dir, self.sandbox_dir());
        need(
            !sandboxes.starts_with(dir),
            "runner.sandbox_dir",
            "lies in storage.data_dir",
        )?;
        for (key, value) in [
            ("storage.info_log_bytes_max", storage.info_log_bytes_max),
            ("storage.info_log_files_max", storage.info_log_files_max),
            ("storage.queue_len_max", storage.queue_len_max),
            ("storage.queue_bytes_max", storage.queue_bytes_max),
            ("storage.batch_bytes_max", storage.batch_bytes_max),
            ("sessions.open_items_max", self.sessions.open_items_max),
            ("sessions.signals_max", self.sessions.signals_max),
            ("engine.arbiters", engine.arbiters),
            ("engine.mailbox_len_max", engine.mailbox_len_max),
            ("engine.command_queue_len_max", engine.command_queue_len_max),
            (
                "engine.command_queue_bytes_max",
                engine.command_queue_bytes_max,
            ),
            ("engine.batch_events_max", engine.batch_events_max),
            ("engine.recoveries_max", engine.recoveries_max),
            ("engine.blocking_threads_max", engine.blocking_threads_max),
            (
                "engine.blocking_queue_len_max",
                engine.blocking_queue_len_max,
            ),
            ("runners.known_max", self.runners.known_max),
            ("runners.polls_max", self.runners.polls_max),
            ("feed.events_max", self.feed.events_max),
            ("feed.bytes_max", self.feed.bytes_max),
        ] {
            need(value > 0, key, "is at least 1")?;
        }
        let memory = storage.memory_bytes_max;
        need(
            memory >= 16 << 20,
            "storage.memory_bytes_max",
            "is at least 16777216 (16 MiB)",
        )?;
        need(
            storage.open_files_max >= 64,
            "storage.open_files_max",
            "is at least 64",
        )?;
        need(
            self.sessions.events_max >= 100,
            "sessions.events_max",
            "is at least 100",
        )?;
        need(
            self.sessions.untaken_inputs_max > 0,
            "sessions.untaken_inputs_max",
            "is at least 1",
        )?;
        need(engine.arbiters <= 64, "engine.arbiters", "is at most 64")?;
        need(self.runners.live_s > 0, "runners.live_s", "is at least 1")?;
        need(
            self.runners.wait_ms_max > 0,
            "runners.wait_ms_max",
            "is at least 1",
        )?;
        need(
            (1..=604_800).contains(&self.receipts.ttl_s),
            "receipts.ttl_s",
            "is 1 to 604800: no answer is given again after 7 days",
        )?;
        need(
            (1..=CHECKPOINT_TTL_S_MAX).contains(&self.retention.checkpoint_ttl_s),
            "retention.checkpoint_ttl_s",
            "is 1 to 2592000: no checkpoint lives longer than 30 days",
        )?;
        need(
            storage.wal_bytes_max >= 1 << 20,
            "storage.wal_bytes_max",
            "is at least 1048576",
        )?;
        need(engine.sweep_s > 0, "engine.sweep_s", "is at least 1")?;
        need(
            (1..=60).contains(&engine.drain_s_max),
            "engine.drain_s_max",
            "is 1 to 60",
        )?;
        for (key, value) in [
            ("mcp.start_s_max", self.mcp.start_s_max),
            ("mcp.call_s_max", self.mcp.call_s_max),
        ] {
            need((1..=86_400).contains(&value), key, "is 1 to 86400")?;
        }
        self.runner
            .check()
            .and_then(|()| self.models.check())
            .map_err(|(key, reason)| ConfigError::Invalid {
                key: key.to_owned(),
                reason,
            })
    }
}

impl RunsConfig {
    fn check(&self) -> Result<(), ConfigError> {
        // A year: sums of times stay far from overflow.
        let s_max = 366 * 24 * 3_600;
        for (key, value) in [
            ("runs.startup_s_max", self.startup_s_max),
            ("runs.lease_s", self.lease_s),
            ("runs.waiting_hold_s_max", self.waiting_hold_s_max),
        ] {
            need((1..=s_max).contains(&value), key, "is 1 second to 366 days")?;
        }
        let beat = self.beat_s;
        need(
            beat > 0 && beat <= self.lease_s,
            "runs.beat_s",
            "is more than 0, at most the lease",
        )?;
        need(self.attempts_max > 0, "runs.attempts_max", "is at least 1")?;
        let (min, max) = (self.backoff_ms_min, self.backoff_ms_max);
        need(
            min > 0 && min <= max,
            "runs.backoff_ms_min",
            "is 1 to runs.backoff_ms_max",
        )?;
        need(
            max <= s_max * 1_000,
            "runs.backoff_ms_max",
            "is at most 366 days",
        )
    }
}

impl HttpConfig {
    fn check(&self, tokens: bool) -> Result<(), ConfigError> {
        let loopback = match self.listen.ip() {
            IpAddr::V4(ip) => ip.is_loopback(),
            IpAddr::V6(ip) => ip.is_loopback(),
        };
        need(
            tokens || loopback,
            "http.listen",
            "must be a loopback address while there is no auth.tokens_file: \
             anyone who reaches the port could do everything",
        )?;
        let workers = self.workers;
        need((1..=256).contains(&workers), "http.workers", "is 1 to 256")?;
        for (key, value) in [
            ("http.connections_max", self.connections_max),
            ("http.streams_max", self.streams_max),
        ] {
            need(value > 0, key, "is at least 1")?;
        }
        let body = self.body_bytes_max;
        need(body >= 64 << 10, "http.body_bytes_max", "is at least 65536")?;
        for (key, value) in [
            ("http.stream_age_s_max", self.stream_age_s_max),
            ("http.heartbeat_s", self.heartbeat_s),
            ("http.request_s_max", self.request_s_max),
            ("http.keep_alive_s", self.keep_alive_s),
            ("http.stalled_write_s_max", self.stalled_write_s_max),
        ] {
            need((1..=86_400).contains(&value), key, "is 1 to 86400")?;
        }
        let drain = self.drain_s_max;
        need((1..=8).contains(&drain), "http.drain_s_max", "is 1 to 8")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[&str]) -> Result<Config, ConfigError> {
        Sources {
            set: pairs.iter().map(|s| (*s).to_owned()).collect(),
            ..Sources::default()
        }
        .load()
    }

    #[test]
    fn later_sources_win() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("c.toml");
        std::fs::write(
            &file,
            "[runs]\nlease_s = 20\nbeat_s = 5\nattempts_max = 2\n",
        )
        .expect("write");
        let config = Sources {
            file: Some(file),
            env: vec![
                ("LONGHAUL__RUNS__LEASE_S".into(), "21".into()),
                ("LONGHAUL__RUNS__BEAT_S".into(), "6".into()),
                ("HOME".into(), "/".into()),
            ],
            set: vec!["runs.beat_s=7".into()],
        }
        .load()
        .expect("valid");
        let runs = config.runs;
        assert_eq!((runs.attempts_max, runs.lease_s, runs.beat_s), (2, 21, 7));
    }

    #[test]
    fn unknown_keys_name_the_nearest() {
        let refused = set(&["runs.leases_s=3"]).expect_err("unknown");
        assert!(refused.to_string().contains("runs.lease_s"), "{refused}");
        for later in [
            "retention.content_ttl_s=1",
            "forks.copy_s_max=1",
            "runs=1",
            "x=1",
            "=1",
        ] {
            assert!(
                matches!(set(&[later]), Err(ConfigError::Unknown { .. })),
                "{later}"
            );
        }
        assert!(matches!(
            set(&["runs.lease_s"]),
            Err(ConfigError::NoValue(_))
        ));
    }

    #[test]
    fn combinations_that_fit_nothing_are_refused() {
        for bad in [
            &["runs.beat_s=0"][..],
            &["runs.lease_s=5", "runs.beat_s=6"],
            &["runs.backoff_ms_min=2", "runs.backoff_ms_max=1"],
            &["runs.attempts_max=0"],
            &["runs.lease_s=-1"],
            &["runs.lease_s=1.5"],
            &["runner.enabled=yes"],
            &["runner.isolation=some"],
            &["http.listen=0.0.0.0:1"],
            &["http.listen=nowhere"],
            &["http.drain_s_max=9"],
            &["retention.checkpoint_ttl_s=0"],
            &["retention.checkpoint_ttl_s=2592001"],
            &["retention.checkpoints_per_session_max=-1"],
            &["runner.sandbox_dir=longhaul-data/x"],
            &["mcp.start_s_max=0"],
            &["mcp.call_s_max=86401"],
        ] {
            assert!(
                matches!(set(bad), Err(ConfigError::Invalid { .. })),
                "{bad:?}"
            );
        }
        assert!(set(&["http.listen=0.0.0.0:1", "auth.tokens_file=t"]).is_ok());
        assert!(set(&["runs.lease_s=1_0"]).is_ok());
        assert!(set(&["retention.checkpoints_per_session_max=0"]).is_ok());
    }
}
