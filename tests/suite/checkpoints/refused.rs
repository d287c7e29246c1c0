//! Files that no snapshot holds, and folders that went away under a running server.

use serde_json::json;

use super::kit::*;
use crate::support::{Server, assert_whole, packs};

#[tokio::test(flavor = "multi_thread")]
async fn files_that_cannot_be_kept_are_refused_by_name() {
    let server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    // One path names them, just.
    let deep = |levels| format!("mkdir -p $(printf 'd/%.0s' $(seq {levels}))");
    exec(&server, &session, &deep(2_001)).await;
    for verb in ["checkpoint", "pause"] {
        let refused = op(&server.url(), verb, json!({ "runtime_id": session })).await;
        refused.refused(409, "snapshot.refused");
        assert_eq!(refused.json["retryable"], false);
        let detail = refused.json["detail"].as_str().unwrap();
        assert!(
            detail.ends_with("more than 2000 levels of directories"),
            "{detail}"
        );
    }
    exec(&server, &session, "rm -r d").await;
    exec(&server, &session, &deep(1_500)).await;
    let id = checkpoint(&server, &session).await;
    let branch = child(checkout(&server, &id).await);
    let found = exec(&server, &branch, "find . -type d | wc -l").await;
    assert_eq!(found.trim(), "1501");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_snapshots_that_is_away_rejects_nothing() {
    let mut server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    turn(&server, &session, "echo kept > f").await;
    let id = checkpoints(&server, &session).await[0]["id"].clone();
    let id = id.as_str().unwrap();
    let (folder, aside) = (server.data.join("snapshots"), server.data.join("aside"));
    std::fs::rename(&folder, &aside).unwrap();
    let refused = read(&server, &session, "f").await;
    refused.refused(503, "runtime.snapshot_unreadable");
    let refused = checkout(&server, id).await;
    refused.refused(503, "runtime.snapshot_unreadable");
    let fresh = session_of(&server, shell()).await;
    exec(&server, &fresh, "echo new > f").await;
    let refused = op(&server.url(), "checkpoint", json!({ "runtime_id": fresh })).await;
    refused.refused(503, "runtime.snapshot_unreadable");
    assert!(!folder.exists(), "nothing is made in its place");

    server.process.kill9().unwrap();
    let failed = server.process.restart().await.unwrap_err().to_string();
    assert!(failed.contains("is its disk mounted?"), "{failed}");
    assert!(!folder.exists());
    std::fs::rename(&aside, &folder).unwrap();
    server.process.restart().await.unwrap();
    assert_eq!(text(read(&server, &session, "f").await), "kept\n");
    assert_eq!(turn(&server, &session, "cat f").await, "kept\n");
    let log = server.log(&session).await;
    assert_whole(&log);
    assert_eq!(of(&log, "checkpoint.rejected").len(), 0);
    assert_eq!(text(read(&server, &fresh, "f").await), "new\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_whose_bytes_are_gone_gives_no_child() {
    let server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    turn(&server, &session, "echo kept > f").await;
    let id = checkpoints(&server, &session).await[0]["id"].clone();
    let id = id.as_str().unwrap();
    for pack in packs(&server.data) {
        std::fs::remove_file(pack).unwrap();
    }
    let refused = checkout(&server, id).await;
    refused.refused(409, "runtime.checkpoint_rejected");
    let detail = refused.json["detail"].as_str().unwrap();
    assert!(detail.contains(id) && detail.contains("gone"), "{detail}");
    let fork = json!({ "from": { "checkpoint_id": id } });
    let path = format!("/v1/sessions/{session}/fork");
    let refused = post(&server.url(), &path, &[], &fork).await;
    refused.refused(409, "runtime.checkpoint_rejected");
    let family = server.get(&format!("/v1/sessions/{session}/tree")).await;
    let text = family.to_string();
    assert_eq!(text.matches("\"forked_from\":{").count(), 0, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_was_removed_is_named_and_then_restored() {
    let mut server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    turn(&server, &session, "echo kept > f").await;
    let body = json!({ "runtime_id": session, "command": "cat f" });
    for restart in [false, true] {
        exec(&server, &session, "echo lost > f").await;
        if restart {
            server.process.kill9().unwrap();
            server.process.restart().await.unwrap();
        }
        let work = work(&server.data);
        std::fs::remove_dir_all(work.parent().unwrap()).unwrap();
        let refused = op(&server.url(), "exec", body.clone()).await;
        refused.refused(503, "sandbox.gone");
        assert_eq!(exec(&server, &session, "cat f").await, "kept\n");
    }
    // A run does not begin with it either.
    let work = work(&server.data);
    std::fs::remove_dir_all(work).unwrap();
    assert_eq!(turn(&server, &session, "cat f").await, "kept\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_a_turn_could_not_keep_stays_for_the_next_one() {
    let mut server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    let deep = "echo kept > f; mkdir -p $(printf 'd/%.0s' $(seq 2001))";
    turn(&server, &session, deep).await;
    let failed = of(&server.log(&session).await, "checkpoint.failed");
    assert_eq!(failed.len(), 1);
    assert!(checkpoints(&server, &session).await.is_empty());
    assert_eq!(
        turn(&server, &session, "cat f; echo more >> f").await,
        "kept\n"
    );
    assert_eq!(
        resumed(&server, &session).await,
        json!({ "kind": "attached" })
    );
    // It outlives the process, once it is noted.
    let note = work(&server.data).with_file_name("attached");
    until("the note", || async { note.exists().then_some(()) }).await;
    server.process.kill9().unwrap();
    server.process.restart().await.unwrap();
    assert_eq!(
        exec(&server, &session, "cat f; rm -r d").await,
        "kept\nmore\n"
    );
    assert_eq!(turn(&server, &session, "cat f").await, "kept\nmore\n");
    let listed = checkpoints(&server, &session).await;
    assert_eq!(listed[0]["kind"], "settle");
    assert!(works(&server.data).is_empty(), "kept, it goes");
    assert_eq!(turn(&server, &session, "cat f").await, "kept\nmore\n");
    assert_eq!(resumed(&server, &session).await["kind"], "checkpoint");
    let log = server.log(&session).await;
    assert_whole(&log);
    let kinds: Vec<_> = of(&log, "run.settled");
    assert!(kinds.iter().all(|s| s["outcome"] == "succeeded"));
}
