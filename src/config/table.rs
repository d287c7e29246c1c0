//! Every setting with its unit, default and meaning: the documentation, checked against the code.

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// `section.name` (or `section.part.name`), as in `--set`.
    pub key: &'static str,
    /// What a value is.
    pub kind: Kind,
    /// Its default as text; empty = none.
    pub default: &'static str,
    /// One sentence.
    pub meaning: &'static str,
}

/// What the value of a setting is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number of this unit.
    Number(&'static str),
    /// `true` or `false`.
    Bool,
    /// A path.
    Path,
    /// A word or an address.
    Text,
}

const fn s(key: &'static str, kind: Kind, default: &'static str, meaning: &'static str) -> Setting {
    Setting {
        key,
        kind,
        default,
        meaning,
    }
}

const fn n(
    key: &'static str,
    unit: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Setting {
    s(key, Kind::Number(unit), default, meaning)
}

/// Every setting, in the order of the documentation.
#[rustfmt::skip]
pub const SETTINGS: &[Setting] = &[
    s("storage.engine", Kind::Text, "rocksdb", "`rocksdb`, or `memory` (nothing survives the process)."),
    s("storage.data_dir", Kind::Path, "longhaul-data", "The data folder; made when missing."),
    n("storage.memory_bytes_max", "bytes", "134217728", "Block cache, filters and write buffers of the engine together."),
    n("storage.open_files_max", "files", "512", "Files the engine keeps open."),
    n("storage.wal_bytes_max", "bytes", "67108864", "Write-ahead log that an opening after a crash has to read at most."),
    n("storage.info_log_bytes_max", "bytes", "4194304", "One file of the engine's own log."),
    n("storage.info_log_files_max", "files", "4", "Files of the engine's own log."),
    n("storage.queue_len_max", "writes", "16384", "Writes that may wait for the writer; then `runtime.busy`."),
    n("storage.queue_bytes_max", "bytes", "67108864", "Their size; then `runtime.busy`."),
    n("storage.batch_bytes_max", "bytes", "8388608", "What one sync may carry."),
    n("sessions.events_max", "events", "1000000", "Events of one session; then `session.event_limit`."),
    n("sessions.untaken_inputs_max", "messages", "10000", "Messages of one session that no run has taken."),
    n("sessions.open_items_max", "items", "64", "Open questions, approvals and tool calls of one session."),
    n("sessions.signals_max", "signals", "64", "Signals of one session that nobody has consumed."),
    n("sessions.metadata_pairs_max", "pairs", "16", "Metadata pairs of one session."),
    n("sessions.metadata_key_bytes_max", "bytes", "64", "Length of one metadata key."),
    n("sessions.metadata_value_bytes_max", "bytes", "512", "Length of one metadata value (a JSON scalar)."),
    n("runs.startup_s_max", "s", "60", "From claim to ready; then the same run is offered again."),
    n("runs.lease_s", "s", "30", "How long a claim lasts without a call of its runner."),
    n("runs.beat_s", "s", "10", "How often a runner is advised to heartbeat; more than 0, at most the lease."),
    n("runs.attempts_max", "attempts", "5", "Attempts of one run; graceful releases do not count."),
    n("runs.backoff_ms_min", "ms", "1000", "First wait before a lost run is offered again; doubles."),
    n("runs.backoff_ms_max", "ms", "60000", "Longest such wait."),
    n("runs.waiting_hold_s_max", "s", "300", "How long a park may hold its compute."),
    n("runs.host_wait_s", "s", "60", "A run whose disk only one runner has waits so long for it, or as long as it is live."),
    s("runs.paused", Kind::Bool, "false", "Hands out no claim; everything else works (`serve --paused`)."),
    n("runners.live_s", "s", "60", "A runner counts as live for so long after its last call."),
    n("runners.wait_ms_max", "ms", "60000", "Longest `wait_ms` of one poll; more is shortened to it."),
    n("runners.known_max", "runners", "10000", "Runners that call at the same time."),
    n("runners.polls_max", "polls", "10000", "Polls for claims that wait at the same time."),
    n("forks.clone_s_max", "s", "60", "How long a fork waits for a runner's copy of its disk; then `runtime.clone_timeout`."),
    n("runtimes.attached_idle_s_max", "s", "600", "A sandbox that no operation uses is kept so long; then its files are kept as a checkpoint, if they changed, and it goes."),
    n("engine.arbiters", "threads", "1", "Threads that run session actors."),
    n("engine.mailbox_len_max", "messages", "65536", "Messages that may wait for a shard or the dispatcher; then `runtime.busy`."),
    n("engine.command_queue_len_max", "commands", "1024", "Commands that may wait in one session; then `runtime.busy`."),
    n("engine.command_queue_bytes_max", "bytes", "33554432", "Content of the commands that may wait in one session (one always may); then `runtime.busy`."),
    n("engine.batch_events_max", "events", "1024", "Events that one session commits at once."),
    n("engine.idle_passivate_s", "s", "300", "A session without work leaves memory after so long."),
    n("engine.recoveries_max", "sessions", "32", "Sessions read back from disk at the same time, per arbiter."),
    n("engine.blocking_threads_max", "threads", "4", "Threads for reads that may touch the disk."),
    n("engine.blocking_queue_len_max", "reads", "65536", "Reads that may wait for them; then `runtime.busy`."),
    n("engine.sweep_s", "s", "30", "Rows are looked through so often for work that nobody was told of (also erased bytes to purge)."),
    n("engine.drain_s_max", "s", "3", "How long closing waits for commands in progress."),
    n("feed.events_max", "events", "1024", "Newest events kept in memory per followed session."),
    n("feed.bytes_max", "bytes", "4194304", "Their size; older ones are read from the log."),
    n("feed.followers_max", "followers", "10000", "Followers of all sessions together; then `stream.limit`."),
    n("retention.checkpoint_ttl_s", "s", "2592000", "How long a checkpoint lives, 1 to 2592000 (30 days); a workspace may shorten it."),
    n("retention.checkpoints_per_session_max", "checkpoints", "20", "Checkpoints of one session that are not pinned; the oldest go first. 0 = any number."),
    n("retention.checkpoints_pinned_max", "checkpoints", "100", "Pinned checkpoints of one session; then `checkpoint.pinned_limit`."),
    n("receipts.ttl_s", "s", "604800", "How long the answer to an Idempotency-Key is kept."),
    s("http.listen", Kind::Text, "127.0.0.1:7070", "Address and port. Loopback only while there is no `auth.tokens_file`."),
    n("http.workers", "threads", "2", "Threads that serve connections."),
    n("http.connections_max", "connections", "25000", "Connections at the same time; more wait to be accepted."),
    n("http.streams_max", "streams", "10000", "Event streams at the same time; then `stream.limit`."),
    n("http.stream_age_s_max", "s", "3600", "A stream ends with `event: reconnect` after so long."),
    n("http.heartbeat_s", "s", "15", "A comment is sent on a quiet stream every so often."),
    n("http.body_bytes_max", "bytes", "8388608", "One request body; then `request.body_too_large`."),
    n("http.request_s_max", "s", "30", "A request's head, and then its body, must arrive within this time."),
    n("http.keep_alive_s", "s", "60", "An idle connection is kept for so long."),
    n("http.stalled_write_s_max", "s", "60", "A peer that takes no bytes for so long is cut off."),
    n("http.drain_s_max", "s", "3", "At shutdown, requests in progress get so long (at most 8)."),
    s("auth.tokens_file", Kind::Path, "", "Bearer tokens, JSON lines, read again when the file changes. Without it the server is open, to this machine only."),
    s("runner.enabled", Kind::Bool, "true", "Runs agents in this process: every harness kind but `external`."),
    n("runner.capacity", "runs", "64", "Runs of the built-in runner at the same time."),
    n("runner.commands_max", "commands", "32", "Commands of all its runs at the same time; more wait for their turn."),
    s("runner.isolation", Kind::Text, "preferred", "`required` (or the start is refused), `preferred` (or a warning) or `none`: whether commands are isolated by bubblewrap."),
    s("runner.sandbox_dir", Kind::Path, "", "Where `dir` sandboxes are made; by default `<storage.data_dir>.sandboxes`."),
    n("runner.command_s_max", "s", "3600", "Longest time of one command; a sandbox profile may ask for less."),
    n("runner.output_bytes_max", "bytes", "131072", "Output kept of one command, the rest is dropped; a sandbox profile may ask for less."),
    n("runner.memory_bytes_max", "bytes", "17179869184", "Address space of each process of a command; a sandbox profile may ask for less."),
    n("runner.file_bytes_max", "bytes", "1073741824", "Largest file that a command may write."),
    n("runner.open_files_max", "files", "1024", "Files open in each process of a command."),
    n("runner.processes_max", "processes", "512", "Processes of one isolated command (not enforced when the server runs as root)."),
    s("runner.read_only_paths", Kind::Text, "[]", "Host paths that isolated commands may read, beside `/usr` and its kin: a list."),
    s("runner.process_network", Kind::Bool, "false", "Whether a `process` harness (not the commands of others) reaches the network."),
    n("runner.line_bytes_max", "bytes", "8388608", "Longest line of a `process` harness."),
    n("runner.drain_s_max", "s", "5", "How long attempts have to let go when the runner stops."),
    n("runner.snapshot_s_max", "s", "300", "How long one snapshot may take; without it the turn settles without a checkpoint."),
    s("mcp.servers_file", Kind::Path, "", "MCP servers whose tools deployments may name, TOML or JSON (docs/tools.md); they run outside of the sandboxes."),
    n("mcp.start_s_max", "s", "30", "How long an MCP server has to start, and to list its tools."),
    n("mcp.call_s_max", "s", "600", "Longest call of a tool of an MCP server."),
    s("models.anthropic.base_url", Kind::Text, "https://api.anthropic.com", "Where the route `anthropic/<model>` leads; `/v1/messages` is appended."),
    s("models.anthropic.api_key_env", Kind::Text, "ANTHROPIC_API_KEY", "The environment variable with its key; empty = none."),
    s("models.anthropic.api_key_file", Kind::Path, "", "The file with its key, read again for every attempt; it goes before the variable."),
    n("models.anthropic.output_tokens_max", "tokens", "16384", "Longest answer where the agent names no number: this API must be told one."),
    s("models.openai.base_url", Kind::Text, "https://api.openai.com/v1", "Where the route `openai/<model>` leads; `/chat/completions` is appended."),
    s("models.openai.api_key_env", Kind::Text, "OPENAI_API_KEY", "The environment variable with its key; empty = none."),
    s("models.openai.api_key_file", Kind::Path, "", "The file with its key, read again for every attempt; it goes before the variable."),
    n("models.request_s_max", "s", "600", "How long one answer of a model may take, with all its retries and waits."),
    n("models.retries_max", "retries", "5", "How often a request to a model is made again."),
    n("models.concurrency_max", "requests", "64", "Requests to models at the same time; more wait for their turn."),
];

/// docs/configuration.md.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Configuration\n\n\
         Weakest first: defaults, file (`--config FILE`, TOML), environment\n\
         (`LONGHAUL__RUNS__LEASE_S=20`), `--set runs.lease_s=20`. An unknown key, or a value that\n\
         fits nothing, refuses the start. Units are in the names.\n\n\
         | setting | value | default | meaning |\n|---|---|---|---|\n",
    );
    for setting in SETTINGS {
        let kind = match setting.kind {
            Kind::Number(unit) => unit,
            Kind::Bool => "true or false",
            Kind::Path => "path",
            Kind::Text => "text",
        };
        let default = match setting.default {
            "" => "none".to_owned(),
            text => format!("`{text}`"),
        };
        out.push_str(&format!(
            "| `{}` | {kind} | {default} | {} |\n",
            setting.key, setting.meaning
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::collections::BTreeMap;

    /// Every leaf of the serialised defaults.
    fn leaves() -> BTreeMap<String, String> {
        let tree = toml::Table::try_from(Config::default()).expect("serialises");
        let mut out = BTreeMap::new();
        let mut open: Vec<(String, toml::Value)> = tree.into_iter().collect();
        while let Some((key, value)) = open.pop() {
            if let toml::Value::Table(fields) = value {
                open.extend(fields.into_iter().map(|(n, v)| (format!("{key}.{n}"), v)));
                continue;
            }
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            out.insert(key, text);
        }
        out
    }

    #[test]
    fn the_table_is_the_code() {
        let leaves = leaves();
        let optional = [
            "auth.tokens_file",
            "runner.sandbox_dir",
            "mcp.servers_file",
            "models.anthropic.api_key_file",
            "models.openai.api_key_file",
        ];
        for setting in SETTINGS {
            match leaves.get(setting.key) {
                Some(default) => assert_eq!(default, setting.default, "{}", setting.key),
                None => assert!(
                    optional.contains(&setting.key),
                    "{} is no setting",
                    setting.key
                ),
            }
        }
        for key in leaves.keys() {
            assert!(
                SETTINGS.iter().any(|s| s.key == key),
                "{key} is not in the table"
            );
        }
    }

    #[test]
    fn the_documentation_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
        let found = std::fs::read_to_string(path).unwrap_or_default();
        if found != markdown() && std::env::var_os("LONGHAUL_BLESS").is_some() {
            std::fs::write(path, markdown()).expect("docs/configuration.md is writable");
            return;
        }
        assert_eq!(
            found,
            markdown(),
            "run the tests once with LONGHAUL_BLESS=1"
        );
    }
}
