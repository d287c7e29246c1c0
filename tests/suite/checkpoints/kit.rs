//! What these tests share: operations with their headers, turns, and an independent look at files.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::support::{Server, id};

/// The turn does what the message says.
pub(super) fn shell() -> Value {
    json!({ "kind": "script", "steps": [{ "exec": "{{input}}" }] })
}

/// What came of a call.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) status: u16,
    pub(super) retry_after: bool,
    pub(super) json: Value,
}

impl Told {
    pub(super) fn code(&self) -> (u16, &str) {
        (self.status, self.json["code"].as_str().unwrap_or_default())
    }

    #[track_caller]
    pub(super) fn must(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.json);
        self.json
    }

    #[track_caller]
    pub(super) fn refused(&self, status: u16, code: &str) {
        assert_eq!(self.code(), (status, code), "{}", self.json);
    }
}

/// One POST, with the answer's headers.
pub(super) async fn post(url: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Told {
    let mut request = reqwest::Client::new()
        .post(format!("{url}{path}"))
        .json(body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    Told {
        status: response.status().as_u16(),
        retry_after: response.headers().contains_key("retry-after"),
        json: response.json().await.unwrap_or(Value::Null),
    }
}

/// One operation of runtime control.
pub(super) async fn op(url: &str, verb: &str, body: Value) -> Told {
    post(url, &format!("/api/v1/runtimes/{verb}"), &[], &body).await
}

pub(super) async fn write(server: &Server, session: &str, path: &str, text: &str) {
    let body = json!({ "runtime_id": session, "path": path,
        "content_base64": BASE64.encode(text) });
    op(&server.url(), "write-file", body).await.must();
}

pub(super) async fn read(server: &Server, session: &str, path: &str) -> Told {
    let body = json!({ "runtime_id": session, "path": path });
    op(&server.url(), "read-file", body).await
}

pub(super) fn text(told: Told) -> String {
    let bytes = BASE64.decode(told.must()["content_base64"].as_str().unwrap());
    String::from_utf8(bytes.unwrap()).unwrap()
}

/// Runs a command that must succeed; its output.
pub(super) async fn exec(server: &Server, session: &str, command: &str) -> String {
    let body = json!({ "runtime_id": session, "command": command });
    let out = op(&server.url(), "exec", body).await.must();
    let stderr = BASE64.decode(out["stderr_base64"].as_str().unwrap());
    let stderr = String::from_utf8_lossy(&stderr.unwrap()).into_owned();
    assert_eq!(out["exit_code"], 0, "{command}: {stderr}");
    let stdout = BASE64.decode(out["stdout_base64"].as_str().unwrap());
    String::from_utf8_lossy(&stdout.unwrap()).into_owned()
}

pub(super) async fn checkpoint(server: &Server, session: &str) -> String {
    let made = op(
        &server.url(),
        "checkpoint",
        json!({ "runtime_id": session }),
    )
    .await;
    made.must()["checkpoint_id"].as_str().unwrap().to_owned()
}

/// A new session with a copy of the checkpoint's disk.
pub(super) async fn checkout(server: &Server, checkpoint: &str) -> Told {
    let body = json!({ "checkpoint_id": checkpoint });
    op(&server.url(), "checkout", body).await
}

pub(super) fn child(told: Told) -> String {
    let id = told.must()["runtime"]["runtime_id"].clone();
    id.as_str().unwrap().to_owned()
}

pub(super) async fn checkpoints(server: &Server, session: &str) -> Vec<Value> {
    let answer = server
        .get(&format!("/v1/sessions/{session}/checkpoints"))
        .await;
    answer["checkpoints"].as_array().unwrap().clone()
}

/// One turn to its end; the output of its last command.
pub(super) async fn turn(server: &Server, session: &str, command: &str) -> String {
    server.send(session, command).await;
    server.wait_status(session, &["idle"]).await;
    let log = server.log(session).await;
    let result = of(&log, "agent.tool_result").pop();
    result.unwrap()["output"].as_str().unwrap().to_owned()
}

/// Contents of the events of one type.
pub(super) fn of(log: &[Value], kind: &str) -> Vec<Value> {
    log.iter()
        .filter(|e| e["type"] == kind)
        .map(|e| e["content"].clone())
        .collect()
}

/// How the newest attempt got its disk.
pub(super) async fn resumed(server: &Server, session: &str) -> Value {
    let log = server.log(session).await;
    of(&log, "run.started").pop().unwrap()["resume"].clone()
}

/// Looks until there is something.
pub(super) async fn until<T, F: Future<Output = Option<T>>>(what: &str, look: impl Fn() -> F) -> T {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    let mut every = tokio::time::interval(Duration::from_millis(20));
    loop {
        every.tick().await;
        if let Some(found) = look().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
    }
}

/// The files of the sandboxes that there are.
pub(super) fn works(data: &Path) -> Vec<PathBuf> {
    let root = data.with_extension("sandboxes");
    let entries = std::fs::read_dir(root).unwrap().flatten();
    let works = entries.map(|e| e.path().join("work"));
    works.filter(|p| p.is_dir()).collect()
}

/// The only sandbox's files.
pub(super) fn work(data: &Path) -> PathBuf {
    let mut works = works(data);
    assert_eq!(works.len(), 1, "{works:?}");
    works.remove(0)
}

/// A copy by another program.
pub(super) fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(done.unwrap().success());
}

/// Two folders hold the same, as `diff` and a walk of our own see it.
pub(super) fn assert_same(wanted: &Path, found: &Path, what: &str) {
    let diff = Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args([wanted, found])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&diff.stdout).into_owned();
    assert!(diff.status.success(), "{what}: {said}");
    let (wanted, found) = (walk(wanted), walk(found));
    assert_eq!(wanted, found, "{what}: names, kinds, modes, times");
}

/// What is known of a name, but for the contents.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    name: Vec<u8>,
    kind_and_mode: u32,
    modified: (i64, i64),
    /// `None` = a folder: its length is the file system's business.
    bytes: Option<u64>,
    target: Option<PathBuf>,
}

fn walk(root: &Path) -> Vec<Named> {
    let (mut all, mut open) = (Vec::new(), vec![root.to_owned()]);
    while let Some(path) = open.pop() {
        let about = path.symlink_metadata().unwrap();
        let name = path.strip_prefix(root).unwrap();
        all.push(Named {
            name: name.as_os_str().as_bytes().to_vec(),
            kind_and_mode: about.mode(),
            modified: (about.mtime(), about.mtime_nsec()),
            bytes: (!about.is_dir()).then_some(about.len()),
            target: about.is_symlink().then(|| path.read_link().unwrap()),
        });
        if about.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        }
    }
    all.sort();
    all
}

/// A deployment of its own, and a session with it.
pub(super) async fn session_of(server: &Server, harness: Value) -> String {
    let deployment = server.deployment(harness).await;
    let body = json!({ "agent_deployment": deployment });
    id(&server.post("/v1/sessions", body).await)
}
