//! Sandboxes that operations leave between runs, over restarts.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::builtin::{QUICK, contents, sandboxes, script};
use crate::support::{Server, assert_whole};

async fn exec(server: &Server, session: &str, command: &str) -> Value {
    let body = json!({ "runtime_id": session, "command": command });
    server.post("/api/v1/runtimes/exec", body).await
}

async fn restart(server: &mut Server, signal: Signal) {
    let pid = i32::try_from(server.process.pid())
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.unwrap(), signal).unwrap();
    let mut every = tokio::time::interval(std::time::Duration::from_millis(10));
    while server.process.ended().unwrap().is_none() {
        every.tick().await;
    }
    server.process.restart().await.unwrap();
}

#[tokio::test]
async fn an_attached_sandbox_outlives_a_crash_and_a_stop_and_counts_as_dirty() {
    let mut server = Server::start(QUICK).await;
    let deployment = server
        .deployment(script(json!([{ "exec": "cat f" }])))
        .await;
    let session = server.session(&deployment).await;
    exec(&server, &session, "echo one > f").await;
    restart(&mut server, Signal::KILL).await;
    assert_eq!(sandboxes(&server.data).len(), 1);
    exec(&server, &session, "echo two >> f").await;
    restart(&mut server, Signal::TERM).await;
    server.send(&session, "go").await;
    server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    assert_whole(&log);
    assert_eq!(
        contents(&log, "run.claimed")[0]["resume"],
        json!({ "kind": "attached" })
    );
    assert_eq!(
        contents(&log, "agent.tool_result")[0]["output"],
        "one\ntwo\n"
    );
    // It counted as dirty: it was kept before the turn changed it.
    assert_eq!(contents(&log, "checkpoint.created")[0]["name"], "attached");
    assert!(
        sandboxes(&server.data).is_empty(),
        "it went with its attempt"
    );
    restart(&mut server, Signal::KILL).await;
    assert!(sandboxes(&server.data).is_empty());
}

#[tokio::test]
async fn what_no_session_goes_on_with_is_removed() {
    let mut server = Server::start(QUICK).await;
    let deployment = server.deployment(script(json!([{ "say": "x" }]))).await;
    let (paused, gone) = (
        server.session(&deployment).await,
        server.session(&deployment).await,
    );
    for session in [&paused, &gone] {
        exec(&server, session, "echo one > f").await;
    }
    let kept: Vec<_> = sandboxes(&server.data);
    let copies: Vec<_> = kept.iter().map(|p| p.with_extension("copy")).collect();
    for (from, to) in kept.iter().zip(&copies) {
        let status = std::process::Command::new("cp")
            .arg("-a")
            .args([from, to])
            .status();
        assert!(status.unwrap().success());
    }
    server
        .post("/api/v1/runtimes/pause", json!({ "runtime_id": paused }))
        .await;
    server
        .must("DELETE", &format!("/v1/sessions/{gone}"), Value::Null)
        .await;
    // As if the process had died before it removed them.
    for (to, from) in kept.iter().zip(&copies) {
        let _ = std::fs::remove_dir_all(to);
        std::fs::rename(from, to).unwrap();
    }
    restart(&mut server, Signal::KILL).await;
    assert!(sandboxes(&server.data).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_kept_after_a_restart_is_the_disk_and_not_an_empty_one() {
    let mut server = Server::start(QUICK).await;
    let steps = script(json!([{ "exec": "true" }]));
    let deployment = server.deployment(steps).await;
    for (signal, verb) in [(Signal::KILL, "pause"), (Signal::TERM, "checkpoint")] {
        let session = server.session(&deployment).await;
        exec(&server, &session, "echo one > f").await;
        restart(&mut server, signal).await;
        let path = format!("/api/v1/runtimes/{verb}");
        let of = json!({ "runtime_id": session });
        let kept = server.post(&path, of.clone()).await;
        if verb == "pause" {
            server.post("/api/v1/runtimes/resume", of).await;
        }
        let checkout = json!({ "checkpoint_id": kept["checkpoint_id"] });
        let child = server.post("/api/v1/runtimes/checkout", checkout).await;
        let child = child["runtime"]["runtime_id"].as_str().unwrap().to_owned();
        for id in [&session, &child] {
            let read = json!({ "runtime_id": id, "path": "f" });
            let read = server.post("/api/v1/runtimes/read-file", read).await;
            assert_eq!(read["content_base64"], "b25lCg==", "{verb}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_of_an_ended_session_goes_at_once() {
    let server = Server::start(QUICK).await;
    let steps = script(json!([{ "exec": "true" }]));
    let deployment = server.deployment(steps).await;
    for end in ["erase", "complete", "cancel"] {
        let session = server.session(&deployment).await;
        exec(&server, &session, "echo one > f").await;
        assert_eq!(sandboxes(&server.data).len(), 1);
        let path = format!("/v1/sessions/{session}");
        match end {
            "erase" => server.must("DELETE", &path, Value::Null).await,
            _ => server.post(&format!("{path}/{end}"), json!({})).await,
        };
        assert!(sandboxes(&server.data).is_empty(), "{end}");
    }
}
