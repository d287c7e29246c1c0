//! A disk that is older than the one the session had last is named, whoever goes on with it.

use serde_json::{Value, json};

use super::kit::*;
use crate::support::{Server, packs};

/// Two turns, each with a file of its own; the checkpoints, newest first.
async fn two_turns(server: &Server) -> (String, Vec<Value>) {
    let session = session_of(server, shell()).await;
    for n in 1..=2 {
        let command = format!("echo {n} > f; head -c 200000 /dev/urandom > big");
        turn(server, &session, &command).await;
    }
    let listed = checkpoints(server, &session).await;
    assert_eq!(listed.len(), 2);
    (session, listed)
}

/// How a disk of the checkpoint is announced.
fn older(used: &Value, instead_of: Value) -> Value {
    json!({ "kind": "checkpoint", "id": used["id"],
        "through_sequence": used["through_sequence"], "instead_of": instead_of })
}

async fn cat(server: &Server, session: &str) -> Told {
    let body = json!({ "runtime_id": session, "command": "cat f" });
    op(&server.url(), "exec", body).await
}

/// The older disk, told by everything that uses it, and by the turn that takes it over.
async fn told_by_all(server: &mut Server, session: &str, want: &Value) {
    let told = cat(server, session).await.must();
    assert_eq!(
        (&told["stdout_base64"], &told["resume"]),
        (&json!("MQo="), want)
    );
    let told = read(server, session, "f").await.must();
    assert_eq!(&told["resume"], want);
    server.process.kill9().unwrap();
    server.process.restart().await.unwrap();
    let told = cat(server, session).await.must();
    assert_eq!(&told["resume"], want, "also over a kill");
    assert_eq!(turn(server, session, "cat f").await, "1\n");
    let mut taken = want.clone();
    taken.as_object_mut().unwrap().remove("kind");
    let wanted = json!({ "kind": "attached", "older": taken });
    assert_eq!(resumed(server, session).await, wanted);
    turn(server, session, "true").await;
    let newest = resumed(server, session).await;
    assert_eq!(newest["kind"], "checkpoint");
    assert_eq!(newest["instead_of"], Value::Null, "{newest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_deleted_snapshot_everything_names_the_older_one_that_is_used() {
    let mut server = Server::start(&[]).await;
    let (session, listed) = two_turns(&server).await;
    let delete = json!({ "checkpoint_id": listed[0]["id"] });
    op(&server.url(), "checkpoint/delete-snapshot", delete)
        .await
        .must();
    let gone = json!({ "id": listed[0]["id"], "reason": "snapshot_deleted" });
    let want = older(&listed[1], gone);
    told_by_all(&mut server, &session, &want).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_of_an_older_disk_says_so_although_no_sandbox_is_made() {
    let server = Server::start(&[]).await;
    for verb in ["checkpoint", "pause"] {
        let (session, listed) = two_turns(&server).await;
        let delete = json!({ "checkpoint_id": listed[0]["id"] });
        op(&server.url(), "checkpoint/delete-snapshot", delete)
            .await
            .must();
        let of = json!({ "runtime_id": session });
        let told = op(&server.url(), verb, of).await.must();
        let gone = json!({ "id": listed[0]["id"], "reason": "snapshot_deleted" });
        assert_eq!(told["resume"], older(&listed[1], gone), "{verb}");
        let newest = checkpoints(&server, &session).await[0].clone();
        assert_eq!(newest["snapshot"]["id"], listed[1]["snapshot"]["id"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_rejected_checkpoint_the_next_operation_names_the_older_one() {
    let mut server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    let first = "echo 1 > f; head -c 200000 /dev/urandom > big";
    turn(&server, &session, first).await;
    let old = packs(&server.data);
    turn(
        &server,
        &session,
        "echo 2 > f; head -c 200000 /dev/urandom > big",
    )
    .await;
    for pack in packs(&server.data).iter().filter(|p| !old.contains(p)) {
        std::fs::write(pack, "damaged").unwrap();
    }
    cat(&server, &session)
        .await
        .refused(409, "runtime.checkpoint_rejected");
    let listed = checkpoints(&server, &session).await;
    let gone = json!({ "id": listed[0]["id"], "reason": "checkpoint_rejected" });
    told_by_all(&mut server, &session, &older(&listed[1], gone)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_names_the_older_disk_that_it_starts_with() {
    let server = Server::start(&[]).await;
    let (session, listed) = two_turns(&server).await;
    let delete = json!({ "checkpoint_id": listed[0]["id"] });
    op(&server.url(), "checkpoint/delete-snapshot", delete)
        .await
        .must();
    assert_eq!(turn(&server, &session, "cat f").await, "1\n");
    let started = resumed(&server, &session).await;
    assert_eq!(started["id"], listed[1]["id"]);
    let wanted = json!({ "id": listed[0]["id"], "reason": "snapshot_deleted" });
    assert_eq!(started["instead_of"], wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_operations_that_are_lost_with_their_sandbox_are_named() {
    let mut server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    write(&server, &session, "f", "never kept").await;
    lose(&mut server).await;
    let told = cat(&server, &session).await.must();
    let lost = json!({ "kind": "event_log_rebuild", "reason": "sandbox_lost" });
    assert_eq!(told["resume"], lost, "nothing was ever kept");
    turn(&server, &session, "echo 1 > f").await;
    assert_eq!(text(read(&server, &session, "f").await), "1\n");
    lose(&mut server).await;
    let told = cat(&server, &session).await.must();
    assert_eq!(told["resume"], Value::Null, "nothing had changed");
    write(&server, &session, "f", "2\n").await;
    lose(&mut server).await;
    let newest = checkpoints(&server, &session).await[0].clone();
    let want = older(&newest, json!({ "reason": "sandbox_lost" }));
    let told = cat(&server, &session).await.must();
    assert_eq!(
        (&told["stdout_base64"], &told["resume"]),
        (&json!("MQo="), &want)
    );
    lose(&mut server).await;
    assert_eq!(turn(&server, &session, "cat f").await, "1\n");
    let started = resumed(&server, &session).await;
    assert_eq!(started["instead_of"], json!({ "reason": "sandbox_lost" }));
    let told = cat(&server, &session).await.must();
    assert_eq!(told["resume"], Value::Null, "the turn's own disk");
}

/// The server goes down, and its sandboxes are gone when it comes back.
async fn lose(server: &mut Server) {
    server.process.kill9().unwrap();
    for work in works(&server.data) {
        std::fs::remove_dir_all(work.parent().unwrap()).unwrap();
    }
    server.process.restart().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_names_the_newest_checkpoint_gets_its_disk_or_a_refusal() {
    let server = Server::start(&[]).await;
    let (session, listed) = two_turns(&server).await;
    let path = format!("/v1/sessions/{session}/resume");
    for c in &listed {
        let delete = json!({ "checkpoint_id": c["id"] });
        op(&server.url(), "checkpoint/delete-snapshot", delete)
            .await
            .must();
        let before = server.log(&session).await;
        let from = json!({ "from": c["id"] });
        post(&server.url(), &path, &[], &from)
            .await
            .refused(409, "runtime.snapshot_deleted");
        assert_eq!(server.log(&session).await, before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_whose_disk_is_gone_says_the_way_out_and_an_interrupt_is_it() {
    let server = Server::start(&[]).await;
    let (session, listed) = two_turns(&server).await;
    let of = json!({ "runtime_id": session });
    let paused = op(&server.url(), "pause", of.clone()).await.must();
    let delete = json!({ "checkpoint_id": paused["checkpoint_id"], "force": true });
    op(&server.url(), "checkpoint/delete-snapshot", delete)
        .await
        .must();
    let refused = op(&server.url(), "resume", of.clone()).await;
    refused.refused(409, "runtime.snapshot_deleted");
    let detail = refused.json["detail"].as_str().unwrap();
    assert!(detail.contains("user.interrupt"), "{detail}");
    let interrupt = json!({ "events": [{ "type": "user.interrupt", "content": {} }] });
    server
        .post(&format!("/v1/sessions/{session}/events"), interrupt)
        .await;
    server.wait_status(&session, &["idle"]).await;
    assert_eq!(turn(&server, &session, "cat f").await, "1\n");
    let started = resumed(&server, &session).await;
    assert_eq!(started["id"], listed[1]["id"]);
    let wanted = json!({ "id": paused["checkpoint_id"], "reason": "snapshot_deleted" });
    assert_eq!(started["instead_of"], wanted);
}
