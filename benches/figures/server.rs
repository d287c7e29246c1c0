//! A server in a process of its own, and blocking calls to it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use longhaul::load::http::{Connection, Endpoint};
use longhaul::load::server::{ServerProcess, ServerSpec};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

pub(crate) struct Server {
    pub(crate) tokio: Runtime,
    pub(crate) process: ServerProcess,
    pub(crate) connection: Connection,
    _folder: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let spec = ServerSpec {
            program: PathBuf::from(env!("CARGO_BIN_EXE_longhaul")),
            data: folder.path().join("data"),
            settings: settings.iter().map(|s| (*s).to_owned()).collect(),
            env: Vec::new(),
        };
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let process = tokio.block_on(ServerProcess::start(spec)).unwrap();
        let connection = connect(&tokio, &process.url());
        Self {
            tokio,
            process,
            connection,
            _folder: folder,
        }
    }

    /// Kills it with -9 and starts it again; the time from the start of the new process until it
    /// answers.
    pub(crate) fn restart(&mut self) -> Duration {
        self.process.kill9().unwrap();
        let start = Instant::now();
        self.tokio.block_on(self.process.restart()).unwrap();
        self.connection = connect(&self.tokio, &self.process.url());
        start.elapsed()
    }

    pub(crate) fn call(&mut self, method: &str, path: &str, body: &Value) -> Value {
        let text = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        self.send(method, path, text.as_bytes())
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, body: &[u8]) -> Value {
        let patience = Duration::from_secs(10);
        let answer = self
            .tokio
            .block_on(self.connection.call(method, path, body, patience))
            .unwrap();
        let text = String::from_utf8_lossy(&answer.body);
        assert!(
            (200..300).contains(&answer.status),
            "{method} {path}: {} {text}",
            answer.status
        );
        serde_json::from_slice(&answer.body).unwrap_or(Value::Null)
    }

    pub(crate) fn post(&mut self, path: &str, body: &Value) -> Value {
        self.call("POST", path, body)
    }

    /// A deployment whose runs are claimed from outside.
    pub(crate) fn external(&mut self) -> String {
        let body = json!({ "name": "bench",
            "release": { "instructions": "", "harness": { "kind": "external" } },
            "sandbox": { "provider": "none", "max_duration_seconds": 86_400 } });
        id(&self.post("/v1/deployments", &body))
    }

    /// Sessions with a run each, and claims on all of them, ready.
    pub(crate) fn claimed(&mut self, count: usize) -> Vec<Claim> {
        let deployment = self.external();
        let create = json!({ "agent_deployment": deployment,
            "events": [{ "type": "user.message", "content": { "text": "go" } }] });
        for _ in 0..count {
            self.post("/v1/sessions", &create);
        }
        let enrol = json!({ "name": "bench", "host_id": "bench", "targets": ["*"],
            "snapshot_clone": false, "capacity": count });
        let runner = id(&self.post("/v1/runners", &enrol));
        let mut claims = Vec::new();
        while claims.len() < count {
            let path = format!("/v1/runners/{runner}/claims?max=64&wait_ms=2000");
            let answer = self.post(&path, &json!({}));
            for claim in answer["claims"].as_array().unwrap() {
                let text = |key: &str| claim[key].as_str().unwrap().to_owned();
                let (token, session) = (text("claim_token"), text("session_id"));
                self.post(&format!("/v1/claims/{token}/ready"), &json!({}));
                claims.push(Claim { token, session });
            }
        }
        claims
    }

    /// Events of 1 KiB each through a claim.
    pub(crate) fn append(&mut self, claim: &Claim, events: usize) {
        let body = body(events);
        self.send(
            "POST",
            &format!("/v1/claims/{}/events", claim.token),
            body.as_bytes(),
        );
    }

    /// Resident memory, MB.
    pub(crate) fn resident_mb(&self) -> f64 {
        let path = format!("/proc/{}/status", self.process.pid());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<f64>()
            .unwrap()
            / 1024.0
    }
}

/// A session and the claim on its run.
pub(crate) struct Claim {
    pub(crate) token: String,
    pub(crate) session: String,
}

pub(crate) fn body(events: usize) -> String {
    let event = json!({ "type": "agent.message", "content": { "text": "x".repeat(1013) } });
    json!({ "events": vec![event; events] }).to_string()
}

fn connect(tokio: &Runtime, url: &str) -> Connection {
    tokio
        .block_on(Endpoint::parse(url, None).unwrap().connect())
        .unwrap()
}

pub(crate) fn id(answer: &Value) -> String {
    answer["id"].as_str().unwrap().to_owned()
}
