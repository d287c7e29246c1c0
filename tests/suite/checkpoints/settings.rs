//! The settings of retention, forks, waiting and attached sandboxes do what they say.

use std::time::Duration;

use serde_json::{Value, json};

use super::clones::{Elsewhere, elsewhere};
use super::kit::*;
use crate::support::{Server, call, packs};

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_sandbox_that_nobody_uses_is_kept_as_a_checkpoint_and_goes() {
    let server = Server::start(&["runtimes.attached_idle_s_max=1"]).await;
    let session = session_of(&server, shell()).await;
    write(&server, &session, "f", "1").await;
    let gone = async || works(&server.data).is_empty().then_some(());
    until("the sandbox goes", gone).await;
    let listed = checkpoints(&server, &session).await;
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (&listed[0]["kind"], &listed[0]["name"]),
        (&json!("explicit"), &json!("idle"))
    );
    assert_eq!(text(read(&server, &session, "f").await), "1");
    assert_eq!(works(&server.data).len(), 1, "attached again");
    until("it goes again", gone).await;
    let again = checkpoints(&server, &session).await;
    assert_eq!(again, listed, "nothing changed, so nothing is kept");
    assert_eq!(turn(&server, &session, "cat f").await, "1");
    assert_eq!(resumed(&server, &session).await["kind"], "checkpoint");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_sandbox_that_is_used_stays() {
    let server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    write(&server, &session, "f", "1").await;
    let first = work(&server.data);
    write(&server, &session, "f", "2").await;
    checkpoint(&server, &session).await;
    exec(&server, &session, "true").await;
    assert_eq!(work(&server.data), first);
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_of_turns_are_counted_and_pinned_ones_are_not() {
    let server = Server::start(&[
        "retention.checkpoints_per_session_max=2",
        "retention.checkpoints_pinned_max=1",
    ])
    .await;
    let session = session_of(&server, shell()).await;
    let pin = async |id: &str, pinned: bool| {
        let path = format!("/v1/sessions/{session}/checkpoints/{id}/pin");
        call(&server.url(), "POST", &path, json!({ "pinned": pinned }))
            .await
            .unwrap()
    };
    let mut made = Vec::new();
    for n in 0..5 {
        turn(
            &server,
            &session,
            &format!("head -c 100000 /dev/urandom > big{n}; echo {n} > f"),
        )
        .await;
        let newest = checkpoints(&server, &session).await[0].clone();
        made.push(newest["id"].as_str().unwrap().to_owned());
        if n == 0 {
            assert_eq!(pin(&made[0], true).await.0, 200);
        }
    }
    let listed: Vec<Value> = checkpoints(&server, &session).await;
    let ids: Vec<_> = listed.iter().map(|c| c["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [made[4].as_str(), &made[3], &made[0]]);
    let (status, told) = pin(&made[3], true).await;
    assert_eq!(
        (status, &told["code"]),
        (409, &json!("checkpoint.pinned_limit"))
    );
    let branch = child(checkout(&server, &made[0]).await);
    assert_eq!(text(read(&server, &branch, "f").await), "0\n");
    let log = server.log(&session).await;
    assert_eq!(of(&log, "checkpoint.deleted").len(), 2, "each is said");
    // The settlement is where its checkpoint stands, however many go in its commit.
    for c in listed {
        let at = usize::try_from(c["through_sequence"].as_u64().unwrap()).unwrap() - 1;
        assert_eq!(log[at]["type"], "run.settled");
        assert_eq!(log[at]["id"], c["through_event_id"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn zero_counts_no_checkpoints() {
    let server = Server::start(&["retention.checkpoints_per_session_max=0"]).await;
    let session = session_of(&server, shell()).await;
    for _ in 0..25 {
        checkpoint(&server, &session).await;
    }
    assert_eq!(checkpoints(&server, &session).await.len(), 25);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_ends_on_time_with_an_event_and_its_bytes_go() {
    let mut server = Server::start(&["retention.checkpoint_ttl_s=2"]).await;
    let session = session_of(&server, shell()).await;
    turn(&server, &session, "echo kept > f").await;
    assert!(!packs(&server.data).is_empty());
    // Nobody asks for it: its own timer says so, also after a restart.
    server.process.kill9().unwrap();
    server.process.restart().await.unwrap();
    until("the bytes go", async || {
        packs(&server.data).is_empty().then_some(())
    })
    .await;
    let log = server.log(&session).await;
    assert_eq!(of(&log, "checkpoint.expired").len(), 1);
    let listed = checkpoints(&server, &session).await;
    assert_eq!(listed[0]["snapshot"]["state"], "expired", "it stays listed");
    checkout(&server, listed[0]["id"].as_str().unwrap())
        .await
        .refused(409, "runtime.checkpoint_expired");
    assert_eq!(
        turn(&server, &session, "cat f 2>&1 || echo gone").await,
        "cat: f: No such file or directory\ngone\n"
    );
    let resume = resumed(&server, &session).await;
    assert_eq!(
        (&resume["kind"], &resume["reason"]),
        (&json!("event_log_rebuild"), &json!("checkpoint_expired"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_waits_for_the_runner_that_has_its_disk() {
    let server = Server::start(&["runs.host_wait_s=2", "runners.live_s=1"]).await;
    let Elsewhere {
        session,
        runner,
        checkpoint,
    } = elsewhere(&server).await;
    let other = server
        .post(
            "/v1/runners",
            json!({ "name": "other", "host_id": "there", "targets": ["*"], "capacity": 8 }),
        )
        .await["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let poll = async |runner: &str| {
        let path = format!("/v1/runners/{runner}/claims?wait_ms=20000");
        server.post(&path, json!({})).await["claims"][0].clone()
    };
    let settle = async |claim: &Value| {
        let token = claim["claim_token"].as_str().unwrap();
        server
            .post(&format!("/v1/claims/{token}/ready"), json!({}))
            .await;
        let body = json!({ "outcome": "succeeded" });
        server
            .post(&format!("/v1/claims/{token}/settle"), body)
            .await;
    };
    // Both ask, the other one first: it goes to whoever has the disk.
    server.send(&session, "x").await;
    let (others, claim) = {
        let url = server.url();
        let path = format!("/v1/runners/{other}/claims?wait_ms=1000");
        let others = tokio::spawn(async move { call(&url, "POST", &path, json!({})).await });
        let claim = poll(&runner).await;
        (others.await.unwrap().unwrap().1, claim)
    };
    assert_eq!(others["claims"], json!([]));
    assert_eq!(claim["resume"]["kind"], "checkpoint");
    assert_eq!(claim["resume"]["id"], checkpoint.as_str());
    settle(&claim).await;
    // The owner is silent: the other one gets it after the wait, and is told what it lacks.
    server.send(&session, "y").await;
    let clock = longhaul_actors::env::Door::system().clock;
    let since = clock.mono();
    let claim = poll(&other).await;
    assert!(
        clock.mono().saturating_sub(since) >= Duration::from_millis(1_500),
        "{:?}",
        clock.mono().saturating_sub(since)
    );
    assert_eq!(
        (&claim["resume"]["kind"], &claim["resume"]["reason"]),
        (&json!("event_log_rebuild"), &json!("snapshot_unreachable"))
    );
    settle(&claim).await;
}
