//! A disk is never passed off as another: one that began empty is named, one that cannot be read
//! for now is not rejected, and a fork of one that went says so.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::kit::*;
use crate::support::{Server, assert_whole, packs};

fn rebuilt(reason: &str) -> Value {
    json!({ "kind": "event_log_rebuild", "reason": reason })
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_name_why_their_disk_began_empty_and_so_does_the_run_after_them() {
    let mut server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    turn(&server, &session, "echo kept > f").await;
    let of = |more: Value| {
        let mut body = json!({ "runtime_id": session });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let told = op(&server.url(), "exec", of(json!({ "command": "cat f" })))
        .await
        .must();
    assert_eq!(told["resume"], Value::Null, "the disk before: {told}");
    op(&server.url(), "checkpoint", of(json!({}))).await.must();
    server.process.kill9().unwrap();
    server.process.restart().await.unwrap();
    let told = read(&server, &session, "f").await.must();
    assert_eq!(told["resume"], Value::Null, "the same over a kill: {told}");
    op(&server.url(), "pause", of(json!({}))).await.must();
    op(&server.url(), "resume", of(json!({}))).await.must();
    turn(&server, &session, "true").await;

    for c in checkpoints(&server, &session).await {
        let delete = json!({ "checkpoint_id": c["id"], "force": true });
        op(&server.url(), "checkpoint/delete-snapshot", delete)
            .await
            .must();
    }
    let want = rebuilt("snapshot_deleted");
    let told = op(&server.url(), "exec", of(json!({ "command": "ls" })))
        .await
        .must();
    assert_eq!(
        (&told["stdout_base64"], &told["resume"]),
        (&json!(""), &want)
    );
    let file = json!({ "path": "g", "content_base64": BASE64.encode("new") });
    let told = op(&server.url(), "write-file", of(file)).await.must();
    assert_eq!(told["resume"], want, "as long as it is that disk");
    server.process.kill9().unwrap();
    server.process.restart().await.unwrap();
    let told = read(&server, &session, "g").await.must();
    assert_eq!(told["resume"], want, "also over a kill");
    let told = op(&server.url(), "checkpoint", of(json!({}))).await.must();
    assert_eq!(told["resume"], want);
    assert_eq!(turn(&server, &session, "ls").await, "g\n");
    let wanted = json!({ "kind": "attached", "rebuilt": "snapshot_deleted" });
    assert_eq!(resumed(&server, &session).await, wanted);
    turn(&server, &session, "ls").await;
    assert_eq!(resumed(&server, &session).await["kind"], "checkpoint");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_checkpoint_is_named_by_the_operation_after_the_refusal() {
    let server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    turn(&server, &session, "echo kept > f").await;
    for pack in packs(&server.data) {
        std::fs::remove_file(pack).unwrap();
    }
    let of = json!({ "runtime_id": session, "command": "ls" });
    let refused = op(&server.url(), "exec", of.clone()).await;
    refused.refused(409, "runtime.checkpoint_rejected");
    let told = op(&server.url(), "exec", of).await.must();
    assert_eq!(told["resume"], rebuilt("checkpoint_rejected"));
    turn(&server, &session, "true").await;
    let wanted = json!({ "kind": "attached", "rebuilt": "checkpoint_rejected" });
    assert_eq!(resumed(&server, &session).await, wanted);
}

/// Makes a pack's file fail with an error of the system that is no word about its contents; gives
/// back where the file is meanwhile.
fn hide(pack: &Path) -> PathBuf {
    let aside = pack.with_extension("aside");
    std::fs::rename(pack, &aside).unwrap();
    symlink(pack.file_name().unwrap(), pack).unwrap();
    aside
}

fn bring_back(aside: &Path) {
    std::fs::rename(aside, aside.with_extension("pack")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_cannot_be_read_now_is_passed_over_and_not_rejected() {
    let server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    turn(
        &server,
        &session,
        "echo 1 > f; head -c 200000 /dev/urandom > big",
    )
    .await;
    let old = packs(&server.data);
    turn(
        &server,
        &session,
        "echo 2 > f; head -c 200000 /dev/urandom > big",
    )
    .await;
    let listed = checkpoints(&server, &session).await;
    let fresh: Vec<_> = packs(&server.data)
        .into_iter()
        .filter(|p| !old.contains(p))
        .collect();
    let aside: Vec<_> = fresh.iter().map(|p| hide(p)).collect();
    assert!(!aside.is_empty());
    assert_eq!(turn(&server, &session, "cat f").await, "1\n");
    let resume = resumed(&server, &session).await;
    assert_eq!(
        resume["id"], listed[1]["id"],
        "the next older one: {resume}"
    );
    let log = server.log(&session).await;
    assert_whole(&log);
    assert_eq!(of(&log, "checkpoint.rejected").len(), 0);
    aside.iter().for_each(|p| bring_back(p));
    let newer = listed[0]["id"].as_str().unwrap();
    let branch = child(checkout(&server, newer).await);
    assert_eq!(text(read(&server, &branch, "f").await), "2\n", "it is fine");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_older_one_what_cannot_be_read_now_is_tried_again_later() {
    let server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    turn(&server, &session, "echo kept > f").await;
    let id = checkpoints(&server, &session).await[0]["id"].clone();
    let id = id.as_str().unwrap();
    let aside: Vec<_> = packs(&server.data).iter().map(|p| hide(p)).collect();
    let refused = read(&server, &session, "f").await;
    refused.refused(503, "runtime.snapshot_unreadable");
    assert_eq!(refused.json["retryable"], true);
    let detail = refused.json["detail"].as_str().unwrap();
    assert!(detail.contains(id), "{detail}");
    server.send(&session, "cat f").await;
    server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    let settled = of(&log, "run.settled").pop().unwrap();
    assert_eq!(settled["error"]["code"], "runtime.snapshot_unreadable");
    let message = settled["error"]["message"].as_str().unwrap();
    assert!(message.contains(id), "{message}");
    assert_eq!(of(&log, "checkpoint.rejected").len(), 0);
    aside.iter().for_each(|p| bring_back(p));
    assert_eq!(text(read(&server, &session, "f").await), "kept\n");
    assert_eq!(turn(&server, &session, "cat f").await, "kept\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_and_pairs_over_their_limits_are_refused_before_anything_is_made() {
    let server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    let long = "x".repeat(3_000_000);
    let nul = "a\0b";
    let bad = [
        ("command", json!({ "command": format!(": {long}") })),
        ("command", json!({ "command": nul })),
        ("cwd", json!({ "command": "true", "cwd": nul })),
        ("env.A", json!({ "command": "true", "env": { "A": nul } })),
        ("env.A", json!({ "command": "true", "env": { "A": long } })),
        ("env", json!({ "command": "true", "env": { nul: "x" } })),
    ];
    for (field, mut body) in bad {
        body["runtime_id"] = json!(session);
        let refused = op(&server.url(), "exec", body).await;
        refused.refused(422, "request.field_invalid");
        let detail = refused.json["detail"].as_str().unwrap();
        assert!(detail.contains(field), "{field}: {detail}");
        assert!(detail.len() < 300, "{detail}");
    }
    let many: serde_json::Map<_, _> = (0..17).map(|n| (n.to_string(), json!(n))).collect();
    let bad = [
        ("session.metadata_invalid", json!({ "metadata": many })),
        (
            "session.metadata_invalid",
            json!({ "metadata": { "k".repeat(65): 1 } }),
        ),
        (
            "session.metadata_invalid",
            json!({ "metadata": { "k": "v".repeat(511) } }),
        ),
        (
            "session.metadata_invalid",
            json!({ "metadata": { "k": {} } }),
        ),
        ("request.field_invalid", json!({ "name": "" })),
        ("request.field_invalid", json!({ "name": "n".repeat(513) })),
    ];
    for (code, mut body) in bad {
        body["runtime_id"] = json!(session);
        for verb in ["checkpoint", "pause"] {
            op(&server.url(), verb, body.clone())
                .await
                .refused(422, code);
        }
    }
    assert!(works(&server.data).is_empty(), "nothing was made");
    assert!(checkpoints(&server, &session).await.is_empty());
    // As long as the kernel takes it.
    let longest = format!(": {}", "x".repeat(131_069));
    assert_eq!(exec(&server, &session, &longest).await, "");
    let body = json!({ "runtime_id": session, "name": "n".repeat(512),
        "metadata": { "k".repeat(64): "v".repeat(510) } });
    op(&server.url(), "checkpoint", body).await.must();
}
