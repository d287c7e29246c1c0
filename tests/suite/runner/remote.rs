//! `longhaul runner` against a server that has no runner of its own.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::builtin::{QUICK, contents, script};
use crate::support::{PROGRAM, Server, assert_whole};

/// A runner in a process of its own, killed when dropped.
struct Elsewhere(Child);

impl Elsewhere {
    fn start(server: &Server, data: &Path) -> Self {
        let child = Command::new(PROGRAM)
            .args(["runner", "--server", &server.url(), "--data"])
            .arg(data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.0.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.unwrap(), signal).unwrap();
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_runner_elsewhere_does_what_the_built_in_one_does() {
    let server = Server::start(&["runner.enabled=false"]).await;
    let folder = tempfile::tempdir().unwrap();
    let steps = json!([
        { "exec": "echo {{input}} > f; cat f" },
        { "question": { "questions": [{ "question": "go on?" }] } },
        { "exec": "cat f" }, { "say": "end" },
    ]);
    let deployment = server.deployment(script(steps)).await;
    let session = server.session(&deployment).await;
    server.send(&session, "far").await;
    let _runner = Elsewhere::start(&server, folder.path());
    server.wait_status(&session, &["paused"]).await;
    let log = server.log(&session).await;
    let question = log.iter().find(|e| e["type"] == "agent.question").unwrap()["id"].clone();
    let answer = json!({ "events": [{ "type": "user.question_answer",
        "content": { "question_id": question, "dismissed": true } }] });
    server
        .post(&format!("/v1/sessions/{session}/events"), answer)
        .await;
    server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    assert_whole(&log);
    let outputs: Vec<_> = contents(&log, "agent.tool_result")
        .iter()
        .map(|c| c["output"].clone())
        .collect();
    assert_eq!(outputs, ["far\n", "far\n"]);
    assert_eq!(contents(&log, "agent.message").len(), 1);
}

#[tokio::test]
async fn a_runner_survives_the_servers_restart_and_gives_back_at_its_own_end() {
    let mut server =
        Server::start(&[QUICK, &["runner.enabled=false", "runs.lease_s=20"]].concat()).await;
    let folder = tempfile::tempdir().unwrap();
    let steps = json!([{ "say": "one" }, { "sleep_ms": 2_000 }, { "say": "two" }]);
    let deployment = server.deployment(script(steps)).await;
    let session = server.session(&deployment).await;
    server.send(&session, "x").await;
    let mut runner = Elsewhere::start(&server, folder.path());
    server.wait_status(&session, &["running"]).await;
    server.process.kill9().unwrap();
    server.process.restart().await.unwrap();
    server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    // The same attempt went on: its calls were repeated until the server was there again.
    assert_eq!(contents(&log, "run.claimed").len(), 1);
    assert_eq!(contents(&log, "agent.message").len(), 2);

    server.send(&session, "y").await;
    server.wait_status(&session, &["running"]).await;
    runner.signal(rustix::process::Signal::TERM);
    assert!(runner.0.wait().unwrap().success());
    let log = server.log(&session).await;
    assert_eq!(
        contents(&log, "run.requeued").last().unwrap()["reason"],
        "released"
    );
}

#[tokio::test]
async fn a_frozen_runner_loses_its_claim_and_writes_nothing_when_it_thaws() {
    use rustix::process::Signal;
    let server = Server::start(&[QUICK, &["runner.enabled=false"]].concat()).await;
    let folder = tempfile::tempdir().unwrap();
    let steps = json!([{ "say": "one" }, { "sleep_ms": 1_500 }, { "exec": "echo two" }, { "say": "three" }]);
    // The disk of the one that is gone would be waited for.
    let mut harness = script(steps);
    harness["checkpoint"] = json!("off");
    let deployment = server.deployment(harness).await;
    let session = server.session(&deployment).await;
    server.send(&session, "x").await;
    let frozen = Elsewhere::start(&server, &folder.path().join("a"));
    server.wait_status(&session, &["running"]).await;
    frozen.signal(Signal::STOP);
    let other = Elsewhere::start(&server, &folder.path().join("b"));
    server.wait_status(&session, &["idle"]).await;
    let before = server.log(&session).await;
    // Its poll may still have been open, and have been given the run once more.
    assert!((2..=3).contains(&contents(&before, "run.claimed").len()));
    assert_eq!(contents(&before, "agent.message").len(), 2);
    drop(other);
    // Thawed, it alone is left, and goes on to serve: with the next turn, not with the old one.
    frozen.signal(Signal::CONT);
    server.send(&session, "y").await;
    server
        .wait_status(&session, &["pending", "provisioning", "running"])
        .await;
    server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    assert_whole(&log);
    assert_eq!(log[..before.len()], before);
    assert_eq!(contents(&log, "agent.message").len(), 4);
    assert_eq!(contents(&log, "run.settled").len(), 2);
}

#[tokio::test]
async fn its_snapshots_outlive_it_and_are_copied_for_forks() {
    let server = Server::start(&[QUICK, &["runner.enabled=false"]].concat()).await;
    let folder = tempfile::tempdir().unwrap();
    let steps = json!([{ "exec": "echo {{input}} >> f; cat f" }]);
    let deployment = server.deployment(script(steps)).await;
    let session = server.session(&deployment).await;
    let output =
        |log: &[Value]| contents(log, "agent.tool_result").pop().unwrap()["output"].clone();
    let mut runner = Elsewhere::start(&server, folder.path());
    for (text, wanted) in [("a", "a\n"), ("b", "a\nb\n")] {
        server.send(&session, text).await;
        server.wait_status(&session, &["idle"]).await;
        assert_eq!(output(&server.log(&session).await), wanted);
    }
    let log = server.log(&session).await;
    let made = contents(&log, "checkpoint.created").pop().unwrap();
    assert_eq!(
        (&made["snapshot"]["retention"], &made["kind"]),
        (&json!("host_local"), &json!("explicit"))
    );

    // Another process with the same folder is the same runner.
    runner.signal(rustix::process::Signal::KILL);
    runner.0.wait().unwrap();
    let mut runner = Elsewhere::start(&server, folder.path());
    server.send(&session, "c").await;
    server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    assert_whole(&log);
    assert_eq!(output(&log), "a\nb\nc\n");
    let claims = contents(&log, "run.claimed");
    assert_eq!(claims[0]["runner_id"], claims[2]["runner_id"]);

    // A fork's disk is copied where it is, and its first run gets that copy.
    let from = json!({ "from": { "checkpoint_id": made["checkpoint_id"] } });
    let child = server
        .post(&format!("/v1/sessions/{session}/fork"), from)
        .await;
    let child = crate::support::id(&child);
    server.send(&child, "d").await;
    server.wait_status(&child, &["idle"]).await;
    let log = server.log(&child).await;
    assert_eq!(output(&log), "a\nb\nd\n");
    let claim = contents(&log, "run.claimed").pop().unwrap();
    assert!(claim["resume"]["sandbox_ref"].is_string(), "{claim}");

    // Without its bytes a checkpoint is rejected, and the conversation goes on.
    runner.signal(rustix::process::Signal::KILL);
    runner.0.wait().unwrap();
    std::fs::remove_dir_all(folder.path().join("snapshots")).unwrap();
    let _runner = Elsewhere::start(&server, folder.path());
    server.send(&session, "e").await;
    server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    assert_whole(&log);
    assert_eq!(output(&log), "e\n");
    assert_eq!(contents(&log, "checkpoint.rejected").len(), 3);
}
