//! Every operation in every state of a session.

use serde_json::{Value, json};

use super::kit::*;
use crate::support::Server;

/// What each operation is answered: `""` = it works.
struct Row {
    state: &'static str,
    checkpoint: &'static str,
    pause: &'static str,
    resume: &'static str,
    close: &'static str,
    /// `exec`, `read-file` and `write-file`.
    using: &'static str,
    checkout: &'static str,
    delete: &'static str,
}

const BUSY: &str = "runtime.session_busy";
const TERMINAL: &str = "session.terminal";
const ERASED: &str = "session.erased";
/// What an operation that works is answered here.
const WORKS: &str = "";

/// Operations are tried from left to right; those that change the state come last.
const TABLE: &[Row] = &[
    Row {
        state: "new",
        checkpoint: WORKS,
        pause: WORKS,
        resume: "runtime.not_paused",
        close: WORKS,
        using: WORKS,
        checkout: WORKS,
        delete: WORKS,
    },
    Row {
        state: "idle",
        checkpoint: WORKS,
        pause: WORKS,
        resume: "runtime.not_paused",
        close: WORKS,
        using: WORKS,
        checkout: WORKS,
        delete: WORKS,
    },
    Row {
        state: "paused",
        checkpoint: "runtime.paused",
        pause: "runtime.already_paused",
        resume: WORKS,
        close: WORKS,
        using: "runtime.paused",
        checkout: WORKS,
        delete: WORKS,
    },
    Row {
        state: "queued",
        checkpoint: BUSY,
        pause: BUSY,
        resume: BUSY,
        close: "session.run_live",
        using: BUSY,
        checkout: WORKS,
        delete: WORKS,
    },
    Row {
        state: "running",
        checkpoint: BUSY,
        pause: BUSY,
        resume: BUSY,
        close: "session.run_live",
        using: BUSY,
        checkout: WORKS,
        delete: WORKS,
    },
    Row {
        state: "parked",
        checkpoint: BUSY,
        pause: BUSY,
        resume: "runtime.not_paused",
        close: "session.run_live",
        using: BUSY,
        checkout: WORKS,
        delete: WORKS,
    },
    Row {
        state: "completed",
        checkpoint: TERMINAL,
        pause: TERMINAL,
        resume: TERMINAL,
        close: TERMINAL,
        using: TERMINAL,
        checkout: WORKS,
        delete: WORKS,
    },
    Row {
        state: "canceled",
        checkpoint: TERMINAL,
        pause: TERMINAL,
        resume: TERMINAL,
        close: TERMINAL,
        using: TERMINAL,
        checkout: WORKS,
        delete: WORKS,
    },
    Row {
        state: "erased",
        checkpoint: ERASED,
        pause: ERASED,
        resume: ERASED,
        close: ERASED,
        using: ERASED,
        checkout: "checkpoint.not_found",
        delete: "checkpoint.not_found",
    },
    Row {
        state: "absent",
        checkpoint: "session.not_found",
        pause: "session.not_found",
        resume: "session.not_found",
        close: "session.not_found",
        using: "session.not_found",
        checkout: "checkpoint.not_found",
        delete: "checkpoint.not_found",
    },
];

/// A session in this state, and a checkpoint of it.
async fn reach(server: &Server, state: &str) -> (String, String) {
    if state == "absent" {
        let zeros = "0".repeat(32);
        return (format!("sess_{zeros}"), format!("ckpt_{zeros}"));
    }
    let harness = match state {
        "parked" => json!({ "kind": "script", "steps": [
            { "question": { "questions": [{ "question": "?" }] } }] }),
        "running" | "queued" => json!({ "kind": "script", "steps": [{ "sleep_ms": 600_000 }] }),
        _ => shell(),
    };
    let session = session_of(server, harness).await;
    if state != "new" {
        write(server, &session, "f", "1").await;
    }
    let made = checkpoint(server, &session).await;
    let path = format!("/v1/sessions/{session}");
    match state {
        "new" => {}
        "idle" => drop(turn(server, &session, "true").await),
        "paused" => {
            let done = op(&server.url(), "pause", json!({ "runtime_id": session })).await;
            done.must();
        }
        "queued" => drop(server.send(&session, "x").await),
        "running" => {
            server.send(&session, "x").await;
            server.wait_status(&session, &["running"]).await;
        }
        "parked" => {
            server.send(&session, "x").await;
            server.wait_status(&session, &["paused"]).await;
        }
        "completed" => drop(server.post(&format!("{path}/complete"), json!({})).await),
        "canceled" => drop(server.post(&format!("{path}/cancel"), json!({})).await),
        "erased" => drop(server.must("DELETE", &path, Value::Null).await),
        other => panic!("{other}"),
    }
    (session, made)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_in_every_state() {
    // One run at a time: the one that runs keeps the others queued.
    let server = Server::start(&["runner.capacity=1"]).await;
    let mut rows: Vec<&Row> = TABLE.iter().collect();
    rows.sort_by_key(|r| match r.state {
        "running" => 1,
        "queued" => 2,
        _ => 0,
    });
    for row in rows {
        let (session, made) = reach(&server, row.state).await;
        let before = match row.state {
            "erased" | "absent" => Vec::new(),
            _ => server.log(&session).await,
        };
        let runtime = json!({ "runtime_id": session });
        let with = |more: Value| {
            let mut all = runtime.as_object().unwrap().clone();
            all.extend(more.as_object().unwrap().clone());
            Value::Object(all)
        };
        let write = with(json!({ "path": "g", "content_base64": "" }));
        let steps = [
            ("checkout", json!({ "checkpoint_id": made }), row.checkout),
            ("write-file", write, row.using),
            ("read-file", with(json!({ "path": "g" })), row.using),
            ("exec", with(json!({ "command": "true" })), row.using),
            ("checkpoint", runtime.clone(), row.checkpoint),
        ];
        for (verb, body, wanted) in steps {
            check(&server, row.state, verb, body, wanted).await;
        }
        let refused = [row.using, row.checkpoint].iter().all(|w| *w != WORKS);
        if refused && !before.is_empty() {
            assert_eq!(
                server.log(&session).await,
                before,
                "{}: a refusal changes nothing",
                row.state
            );
        }
        // Pausing what is paused by this table's own `pause` has its row; this one is resumed.
        if row.pause == WORKS {
            check(&server, row.state, "resume", runtime.clone(), row.resume).await;
            check(&server, row.state, "pause", runtime.clone(), row.pause).await;
        } else {
            check(&server, row.state, "pause", runtime.clone(), row.pause).await;
            check(&server, row.state, "resume", runtime.clone(), row.resume).await;
        }
        check(&server, row.state, "close", runtime, row.close).await;
        let named = json!({ "checkpoint_id": made, "force": true });
        check(
            &server,
            row.state,
            "checkpoint/delete-snapshot",
            named,
            row.delete,
        )
        .await;
        if row.state == "running" {
            // It keeps the only place until the end.
            assert_eq!(
                server.get(&format!("/v1/sessions/{session}")).await["status"],
                "running"
            );
        }
    }
}

async fn check(server: &Server, state: &str, verb: &str, body: Value, wanted: &str) {
    let told = op(&server.url(), verb, body).await;
    let what = format!("{verb} while {state}: {}", told.json);
    assert_eq!(told.code().1, wanted, "{what}");
    if wanted == WORKS {
        assert_eq!(told.status, 200, "{what}");
        return;
    }
    let status = match wanted {
        ERASED => 410,
        "session.not_found" | "checkpoint.not_found" => 404,
        _ => 409,
    };
    assert_eq!(told.status, status, "{what}");
    assert_eq!(told.retry_after, wanted == BUSY, "{what}");
}
