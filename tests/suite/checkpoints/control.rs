//! Operations beside each other, beside turns, and with things that are not to be had.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::kit::*;
use crate::support::{Server, call, id};

/// A command that waits for a file, so that a test says when it ends.
const HELD: &str = "touch started; until [ -e go ]; do sleep 0.02; done";

async fn started(data: &Path) -> PathBuf {
    until("a command has started", async || {
        works(data).into_iter().find(|w| w.join("started").exists())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_operations_at_the_same_time_one_is_done_and_the_others_are_told_to_wait() {
    let server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    let exec = json!({ "runtime_id": session, "command": HELD });
    let all: Vec<_> = (0..8)
        .map(|_| {
            let (url, body) = (server.url(), exec.clone());
            tokio::spawn(async move { op(&url, "exec", body).await })
        })
        .collect();
    let work = started(&server.data).await;
    until("all but one are refused", async || {
        let ended = all.iter().filter(|t| t.is_finished()).count();
        (ended == 7).then_some(())
    })
    .await;
    std::fs::write(work.join("go"), "").unwrap();
    let mut done = 0;
    for told in all {
        let told = told.await.unwrap();
        if told.status == 200 {
            done += 1;
        } else {
            told.refused(409, "runtime.session_busy");
            assert!(told.retry_after);
        }
    }
    assert_eq!(done, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_during_an_operation_is_answered_afterwards_with_its_sandbox() {
    let server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    let (url, body) = (
        server.url(),
        json!({ "runtime_id": session, "command": HELD }),
    );
    let operation = tokio::spawn(async move { op(&url, "exec", body).await });
    let work = started(&server.data).await;
    server.send(&session, "ls; echo turn > by").await;
    op(&server.url(), "pause", json!({ "runtime_id": session }))
        .await
        .refused(409, "runtime.session_busy");
    let shown = server.wait_status(&session, &["pending"]).await;
    assert!(
        shown.to_string().contains("operation"),
        "it says why: {shown}"
    );
    let log = server.log(&session).await;
    assert!(of(&log, "run.claimed").is_empty(), "the turn waits");
    std::fs::write(work.join("go"), "").unwrap();
    operation.await.unwrap().must();
    server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    assert_eq!(of(&log, "run.started")[0]["resume"]["kind"], "attached");
    assert_eq!(of(&log, "agent.tool_result")[0]["output"], "go\nstarted\n");
    let at = |kind: &str| log.iter().position(|e| e["type"] == kind).unwrap();
    assert!(
        at("checkpoint.created") < at("run.started"),
        "kept before the turn changes it"
    );
    let listed = checkpoints(&server, &session).await;
    let names: Vec<_> = listed.iter().map(|c| (&c["kind"], &c["name"])).collect();
    let attached = json!("attached");
    assert_eq!(
        names,
        [
            (&json!("settle"), &Value::Null),
            (&json!("explicit"), &attached)
        ]
    );
    assert!(
        works(&server.data).is_empty(),
        "the turn's sandbox now, and gone with it"
    );
    let branch = child(checkout(&server, listed[1]["id"].as_str().unwrap()).await);
    read(&server, &branch, "go").await.must();
    read(&server, &branch, "by")
        .await
        .refused(404, "sandbox.not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_is_lost_leaves_the_attached_files_to_the_next() {
    let mut server =
        Server::start(&["runs.lease_s=1", "runs.beat_s=1", "runs.backoff_ms_min=10"]).await;
    let session = session_of(&server, shell()).await;
    write(&server, &session, "by-hand", "1").await;
    server
        .send(
            &session,
            "cat by-hand; [ -e again ] || { touch again; sleep 60; }",
        )
        .await;
    server.wait_status(&session, &["running"]).await;
    server.process.kill9().unwrap();
    server.process.restart().await.unwrap();
    server.send(&session, "cat by-hand").await;
    let shown = until("attempt 2", async || {
        let log = server.log(&session).await;
        of(&log, "run.started").into_iter().nth(1)
    })
    .await;
    assert_eq!(shown["resume"]["kind"], "checkpoint", "{shown}");
    server
        .post(
            &format!("/v1/sessions/{session}/events"),
            json!({ "events": [{ "type": "user.interrupt", "content": {} }] }),
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_after_which_nothing_changed_is_the_same_snapshot() {
    let server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    turn(&server, &session, "echo 1 > f").await;
    let settled = checkpoints(&server, &session).await[0].clone();
    read(&server, &session, "f").await.must();
    let made = checkpoint(&server, &session).await;
    let listed = checkpoints(&server, &session).await;
    assert_eq!(listed[0]["id"], made.as_str());
    assert_eq!(listed[0]["parent_checkpoint_id"], settled["id"]);
    assert_eq!(listed[0]["snapshot"]["id"], settled["snapshot"]["id"]);
    // Whatever a command ends with, it may have changed something.
    exec(&server, &session, "true").await;
    checkpoint(&server, &session).await;
    let newest = checkpoints(&server, &session).await[0].clone();
    assert_ne!(newest["snapshot"]["id"], settled["snapshot"]["id"]);
    // A branch starts with its source's disk, unchanged.
    let branch = child(checkout(&server, newest["id"].as_str().unwrap()).await);
    checkpoint(&server, &branch).await;
    let own = checkpoints(&server, &branch).await;
    assert_eq!(own[0]["snapshot"]["id"], newest["snapshot"]["id"]);
    assert_eq!(own[0]["parent_checkpoint_id"], own[1]["id"]);
    assert_eq!(own[1]["parent_checkpoint_id"], newest["id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_sandbox_here_is_refused_before_anything_is_lost() {
    let server = Server::start(&[]).await;
    let none = json!({ "name": "none", "sandbox": { "provider": "none", "max_duration_seconds": 9 },
        "release": { "instructions": "", "harness": { "kind": "script", "steps": [{ "say": "hi" }] } } });
    let none = id(&server.post("/v1/deployments", none).await);
    let external = server.deployment(json!({ "kind": "external" })).await;
    for deployment in [none, external] {
        let session = server.session(&deployment).await;
        let before = server.log(&session).await;
        for (verb, more) in [
            ("checkpoint", json!({})),
            ("pause", json!({})),
            ("resume", json!({})),
            ("exec", json!({ "command": "true" })),
            ("read-file", json!({ "path": "f" })),
            ("write-file", json!({ "path": "f", "content_base64": "" })),
        ] {
            let mut body = more;
            body["runtime_id"] = json!(session);
            op(&server.url(), verb, body)
                .await
                .refused(501, "runtime.unsupported_backend");
        }
        assert_eq!(server.log(&session).await, before);
        let closed = op(&server.url(), "close", json!({ "runtime_id": session })).await;
        assert_eq!(closed.must()["runtime"]["status"], "completed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_bodies_and_paths_are_refused_and_nothing_is_begun() {
    let server = Server::start(&[]).await;
    let s = session_of(&server, shell()).await;
    let before = server.log(&s).await;
    let exec = |more: Value| {
        let mut body = json!({ "runtime_id": s, "command": "true" });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let field = (422, "request.field_invalid");
    let unknown = (422, "request.field_unknown");
    let bad_id = (400, "request.id_invalid");
    let path = (422, "sandbox.path_invalid");
    let cases: Vec<(&str, Value, (u16, &str))> = vec![
        ("exec", json!({ "command": "true" }), field),
        ("exec", json!({ "runtime_id": s }), field),
        (
            "exec",
            json!({ "runtime_id": "x", "command": "true" }),
            bad_id,
        ),
        ("exec", exec(json!({ "command": 1 })), field),
        ("exec", exec(json!({ "unknown": 1 })), unknown),
        ("exec", exec(json!({ "timeout_ms": 0 })), field),
        ("exec", exec(json!({ "timeout_ms": 300_001 })), field),
        ("exec", exec(json!({ "timeout_ms": -1 })), field),
        ("exec", exec(json!({ "env": { "A": 1 } })), field),
        ("exec", exec(json!({ "env": { "": "x" } })), field),
        ("exec", exec(json!({ "env": { "A=B": "x" } })), field),
        ("exec", exec(json!({ "env": { "A": "x\u{0}" } })), field),
        ("exec", exec(json!({ "env": [] })), field),
        ("exec", exec(json!({ "cwd": "../out" })), path),
        ("exec", exec(json!({ "cwd": "/" })), path),
        (
            "write-file",
            json!({ "runtime_id": s, "path": "f", "content_base64": "?" }),
            field,
        ),
        (
            "write-file",
            json!({ "runtime_id": s, "path": "f", "content_base64": "QQ" }),
            field,
        ),
        (
            "write-file",
            json!({ "runtime_id": s, "path": "../f", "content_base64": "" }),
            path,
        ),
        (
            "write-file",
            json!({ "runtime_id": s, "path": "", "content_base64": "" }),
            path,
        ),
        (
            "read-file",
            json!({ "runtime_id": s, "path": "/etc/passwd" }),
            path,
        ),
        (
            "read-file",
            json!({ "runtime_id": s, "path": "a/../../x" }),
            path,
        ),
        (
            "read-file",
            json!({ "runtime_id": s, "path": "x\u{0}" }),
            path,
        ),
        (
            "read-file",
            json!({ "runtime_id": s, "path": "nothing" }),
            (404, "sandbox.not_found"),
        ),
        ("checkpoint", json!({ "runtime_id": s, "name": "" }), field),
        (
            "checkpoint",
            json!({ "runtime_id": s, "name": "n".repeat(513) }),
            field,
        ),
        (
            "checkpoint",
            json!({ "runtime_id": s, "metadata": [] }),
            field,
        ),
        ("pause", json!({ "runtime_id": s, "force": true }), unknown),
        ("checkout", json!({ "checkpoint_id": s }), bad_id),
        (
            "checkout",
            json!({ "checkpoint_id": format!("ckpt_{}", "0".repeat(32)),
            "sender_id": "" }),
            field,
        ),
        (
            "checkpoint/delete-snapshot",
            json!({ "checkpoint_id": 7 }),
            field,
        ),
    ];
    for (verb, body, wanted) in cases {
        let told = op(&server.url(), verb, body.clone()).await;
        assert_eq!(told.code(), wanted, "{verb} {body}: {}", told.json);
    }
    assert_eq!(server.log(&s).await, before);
    // Links lead nowhere out, and the sandbox still works.
    let link = "ln -s /etc/passwd link; ln -s / root; echo in > f; ln -s f inside";
    let made = op(
        &server.url(),
        "exec",
        json!({ "runtime_id": s, "command": link }),
    )
    .await;
    assert_eq!(made.must()["exit_code"], 0);
    for path in ["link", "root/etc/passwd"] {
        read(&server, &s, path)
            .await
            .refused(422, "sandbox.path_invalid");
    }
    // Its own time limit ends a command, not the operation.
    let slow = json!({ "runtime_id": s, "command": "echo so far; sleep 60", "timeout_ms": 200 });
    let slow = op(&server.url(), "exec", slow).await.must();
    assert_eq!(slow["timed_out"], true);
    let env = exec(json!({ "command": "printf %s \"$A\"; exit 3", "env": { "A": "b" } }));
    let out = op(&server.url(), "exec", env).await.must();
    assert_eq!(
        (&out["stdout_base64"], &out["exit_code"]),
        (&json!("Yg=="), &json!(3))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn another_workspaces_checkpoints_look_absent() {
    let server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    write(&server, &session, "f", "1").await;
    let made = checkpoint(&server, &session).await;
    let workspace = id(&server.post("/v1/workspaces", json!({ "name": "w" })).await);
    let header = [("longhaul-workspace", workspace.as_str())];
    let runtime = json!({ "runtime_id": session });
    let absent = format!("ckpt_{}", "0".repeat(32));
    for (verb, mut body) in [
        ("checkout", json!({})),
        ("checkpoint/delete-snapshot", json!({ "force": true })),
    ] {
        let path = format!("/api/v1/runtimes/{verb}");
        let mut told = Vec::new();
        for id in [&made, &absent] {
            body["checkpoint_id"] = json!(id);
            let answer = post(&server.url(), &path, &header, &body).await;
            answer.refused(404, "checkpoint.not_found");
            let text = answer.json["detail"]
                .as_str()
                .unwrap()
                .replace(id.as_str(), "ID");
            told.push(text);
        }
        assert_eq!(told[0], told[1], "{verb}: foreign and absent look alike");
    }
    for verb in ["checkpoint", "pause", "resume", "close"] {
        let path = format!("/api/v1/runtimes/{verb}");
        post(&server.url(), &path, &header, &runtime)
            .await
            .refused(404, "session.not_found");
    }
    let pin = format!("/v1/sessions/{session}/checkpoints/{made}/pin");
    post(&server.url(), &pin, &header, &json!({ "pinned": true }))
        .await
        .refused(404, "session.not_found");
    // A checkpoint of another session of one's own is not this session's.
    let other = session_of(&server, shell()).await;
    let path = format!("/v1/sessions/{other}/checkpoints/{made}/pin");
    let (status, told) = call(&server.url(), "POST", &path, json!({ "pinned": true }))
        .await
        .unwrap();
    assert_eq!(
        (status, &told["code"]),
        (404, &json!("checkpoint.not_found"))
    );
    assert_eq!(text(read(&server, &session, "f").await), "1");
}
