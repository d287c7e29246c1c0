//! What the tests of the whole share: the program, servers, calls.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

use longhaul::load::http::Endpoint;
use longhaul::load::server::{ServerProcess, ServerSpec};
use serde_json::{Value, json};

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_longhaul");

/// A server on a folder of its own.
pub(crate) struct Server {
    pub(crate) process: ServerProcess,
    pub(crate) data: PathBuf,
    pub(crate) _folder: tempfile::TempDir,
}

impl Server {
    pub(crate) async fn start(settings: &[&str]) -> Self {
        Self::start_with(settings, &[]).await
    }

    pub(crate) async fn start_with(settings: &[&str], env: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let process = ServerProcess::start(spec(&data, settings, env))
            .await
            .unwrap();
        Self {
            process,
            data,
            _folder: folder,
        }
    }

    pub(crate) fn url(&self) -> String {
        self.process.url()
    }

    /// Stops it in order, and leaves its folder.
    pub(crate) async fn stop(self) -> Stopped {
        let status = self.process.stop().await.unwrap();
        Stopped {
            status,
            data: self.data,
            _folder: self._folder,
        }
    }

    /// One call that is answered, whatever the answer.
    pub(crate) async fn call(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        call(&self.url(), method, path, body).await.unwrap()
    }

    /// One call that must succeed.
    pub(crate) async fn must(&self, method: &str, path: &str, body: Value) -> Value {
        let (status, answer) = self.call(method, path, body).await;
        assert!(
            (200..300).contains(&status),
            "{method} {path}: {status} {answer}"
        );
        answer
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.must("GET", path, Value::Null).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Value {
        self.must("POST", path, body).await
    }

    pub(crate) async fn deployment(&self, harness: Value) -> String {
        let body = json!({ "name": "test", "release": { "instructions": "", "harness": harness },
            "sandbox": { "provider": "dir", "max_duration_seconds": 120 } });
        id(&self.post("/v1/deployments", body).await)
    }

    pub(crate) async fn session(&self, deployment: &str) -> String {
        id(&self
            .post("/v1/sessions", json!({ "agent_deployment": deployment }))
            .await)
    }

    pub(crate) async fn send(&self, session: &str, text: &str) -> Value {
        let events = json!([{ "type": "user.message", "content": { "text": text } }]);
        self.post(
            &format!("/v1/sessions/{session}/events"),
            json!({ "events": events }),
        )
        .await
    }

    /// The whole log of a session.
    pub(crate) async fn log(&self, session: &str) -> Vec<Value> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let path = format!("/v1/sessions/{session}/events?after={after}&limit=500");
            let page = self.get(&path).await;
            let events = page["events"].as_array().unwrap().clone();
            let more = !events.is_empty();
            all.extend(events);
            match page["next_after"].as_u64() {
                Some(next) if more => after = next,
                _ => return all,
            }
        }
    }

    /// Waits until the session has one of these statuses.
    pub(crate) async fn wait_status(&self, session: &str, wanted: &[&str]) -> Value {
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
        let mut every = tokio::time::interval(std::time::Duration::from_millis(20));
        loop {
            every.tick().await;
            let shown = self.get(&format!("/v1/sessions/{session}")).await;
            if wanted.contains(&shown["status"].as_str().unwrap()) {
                return shown;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "wanted {wanted:?}: {shown}"
            );
        }
    }
}

/// What a server that has ended leaves.
pub(crate) struct Stopped {
    pub(crate) status: ExitStatus,
    pub(crate) data: PathBuf,
    _folder: tempfile::TempDir,
}

pub(crate) fn spec(data: &Path, settings: &[&str], env: &[(&str, &str)]) -> ServerSpec {
    ServerSpec {
        program: PROGRAM.into(),
        data: data.to_owned(),
        settings: settings.iter().map(|s| (*s).to_owned()).collect(),
        env: env
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
    }
}

/// One call; an error when no answer came.
pub(crate) async fn call(
    url: &str,
    method: &str,
    path: &str,
    body: Value,
) -> std::io::Result<(u16, Value)> {
    call_at(Endpoint::parse(url, None).unwrap(), method, path, body).await
}

/// One call with an Idempotency-Key.
pub(crate) async fn call_once(
    url: &str,
    key: &str,
    path: &str,
    body: Value,
) -> std::io::Result<(u16, Value)> {
    let endpoint = Endpoint::parse(url, None)
        .unwrap()
        .with_header("idempotency-key", key);
    call_at(endpoint, "POST", path, body).await
}

async fn call_at(
    endpoint: Endpoint,
    method: &str,
    path: &str,
    body: Value,
) -> std::io::Result<(u16, Value)> {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let mut connection = endpoint.connect().await?;
    let patience = std::time::Duration::from_secs(30);
    let answer = connection
        .call(method, path, body.as_bytes(), patience)
        .await?;
    Ok((
        answer.status,
        serde_json::from_slice(&answer.body).unwrap_or(Value::Null),
    ))
}

pub(crate) fn id(answer: &Value) -> String {
    answer["id"]
        .as_str()
        .unwrap_or_else(|| panic!("no id: {answer}"))
        .to_owned()
}

/// Positions 1, 2, 3… without a gap.
pub(crate) fn assert_whole(log: &[Value]) {
    let seqs: Vec<u64> = log.iter().map(|e| e["seq"].as_u64().unwrap()).collect();
    let wanted: Vec<u64> = (1..=seqs.len() as u64).collect();
    assert_eq!(seqs, wanted);
}

/// Runs the program to its end.
pub(crate) async fn longhaul(args: &[&str]) -> Output {
    let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
    let run = move || {
        Command::new(PROGRAM)
            .args(args)
            .stdin(Stdio::null())
            .env_remove("FAILPOINTS")
            .output()
    };
    tokio::task::spawn_blocking(run).await.unwrap().unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The lines of stdout as JSON.
pub(crate) fn json_lines(output: &Output) -> Vec<Value> {
    let text = stdout(output);
    let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    text.lines().map(read).collect()
}

/// Every pack in the store.
pub(crate) fn packs(data: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![data.join("snapshots")];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "pack") {
                found.push(path);
            }
        }
    }
    found
}
