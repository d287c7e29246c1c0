//! Forks whose disk a runner elsewhere has to copy.

use std::path::Path;
use std::time::Duration;

use longhaul::load::server::ServerProcess;
use longhaul_actors::rows;
use longhaul_storage::{Log, Options, Order, PageLimit, RocksLog, read};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::kit::*;
use crate::support::{Server, call, id, spec};

/// A session whose checkpoint's bytes a runner elsewhere has.
pub(super) struct Elsewhere {
    pub(super) session: String,
    pub(super) runner: String,
    pub(super) checkpoint: String,
}

pub(super) async fn elsewhere(server: &Server) -> Elsewhere {
    let session = session_of(server, json!({ "kind": "external" })).await;
    let runner = json!({ "name": "test", "host_id": "here", "targets": ["*"], "capacity": 8 });
    let runner = id(&server.post("/v1/runners", runner).await);
    server.send(&session, "go").await;
    let claim = poll(server, &runner).await["claims"][0].clone();
    let token = claim["claim_token"].as_str().unwrap();
    let verb = |verb: &str| format!("/v1/claims/{token}/{verb}");
    server.post(&verb("ready"), json!({})).await;
    let snapshot =
        json!({ "provider": "ext", "id": "bytes", "retention": "host_local", "bytes": 1 });
    let body = json!({ "snapshot": snapshot, "resume": { "kind": "rebuild_from_log" } });
    let made = server.post(&verb("checkpoint"), body).await;
    server
        .post(&verb("settle"), json!({ "outcome": "succeeded" }))
        .await;
    Elsewhere {
        session,
        runner,
        checkpoint: made["checkpoint_id"].as_str().unwrap().to_owned(),
    }
}

async fn poll(server: &Server, runner: &str) -> Value {
    let path = format!("/v1/runners/{runner}/claims?wait_ms=20000");
    server.post(&path, json!({})).await
}

fn fork(server: &Server, of: &Elsewhere) -> JoinHandle<std::io::Result<(u16, Value)>> {
    let (url, path) = (server.url(), format!("/v1/sessions/{}/fork", of.session));
    let body = json!({ "from": { "checkpoint_id": of.checkpoint } });
    tokio::spawn(async move { call(&url, "POST", &path, body).await })
}

async fn told(fork: JoinHandle<std::io::Result<(u16, Value)>>) -> (u16, Value) {
    fork.await.unwrap().unwrap()
}

/// The copy that the runner is asked for.
async fn asked(server: &Server, of: &Elsewhere) -> Value {
    let answer = poll(server, &of.runner).await;
    assert_eq!(answer["claims"], json!([]));
    let clones = answer["clones"].as_array().unwrap();
    assert_eq!(clones.len(), 1, "{answer}");
    clones[0].clone()
}

async fn answer(server: &Server, clone: &Value, verb: &str, body: Value) -> (u16, Value) {
    let token = clone["clone_token"].as_str().unwrap();
    server
        .call("POST", &format!("/v1/clones/{token}/{verb}"), body)
        .await
}

async fn is_absent(server: &Server, session: &Value) {
    let path = format!("/v1/sessions/{}", session.as_str().unwrap());
    let (status, told) = server.call("GET", &path, Value::Null).await;
    assert_eq!((status, &told["code"]), (404, &json!("session.not_found")));
}

/// Sessions' rows and references to snapshots, once the server has ended.
async fn rows_left(server: Server) -> (usize, usize) {
    let stopped = server.stop().await;
    rows_in(&stopped.data)
}

fn rows_in(data: &Path) -> (usize, usize) {
    let log = RocksLog::open(data, Options::default()).unwrap();
    let count = |table: u8| {
        let limit = PageLimit {
            items_max: 1_000,
            bytes_max: 1 << 20,
        };
        let all = read(&*log, |v| {
            v.rows(&rows::table(table), None, Order::Asc, limit)
        });
        all.unwrap().len()
    };
    let counted = (count(rows::SESSION), count(rows::SNAPSHOT_HOLDER));
    log.close();
    counted
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_adopted_once_and_its_maker_gets_the_first_run() {
    let server = Server::start(&[]).await;
    let source = elsewhere(&server).await;
    let forking = fork(&server, &source);
    let clone = asked(&server, &source).await;
    assert_eq!(clone["checkpoint_id"], source.checkpoint.as_str());
    assert_eq!(clone["snapshot"]["id"], "bytes");
    is_absent(&server, &clone["child_session_id"]).await;
    for (verb, body) in [
        ("adopt", json!({})),
        ("adopt", json!({ "sandbox_ref": "" })),
        ("adopt", json!({ "sandbox_ref": "r".repeat(4_097) })),
        ("fail", json!({ "reason": "" })),
    ] {
        let (status, told) = answer(&server, &clone, verb, body).await;
        assert_eq!(
            (status, &told["code"]),
            (422, &json!("request.field_invalid"))
        );
    }
    let adopt = json!({ "sandbox_ref": "copy-1" });
    assert_eq!(answer(&server, &clone, "adopt", adopt.clone()).await.0, 200);
    let (status, child) = told(forking).await;
    assert_eq!((status, &child["id"]), (201, &clone["child_session_id"]));
    let (status, again) = answer(&server, &clone, "adopt", adopt).await;
    assert_eq!((status, &again["code"]), (404, &json!("clone.not_found")));

    let child = id(&child);
    let own = checkpoints(&server, &child).await;
    assert_eq!((own.len(), &own[0]["kind"]), (1, &json!("fork")));
    assert_eq!(own[0]["parent_checkpoint_id"], source.checkpoint.as_str());
    server.send(&child, "go").await;
    let claim = poll(&server, &source.runner).await["claims"][0].clone();
    assert_eq!(claim["resume"]["kind"], "checkpoint");
    assert_eq!(claim["resume"]["sandbox_ref"], "copy-1");
    // The source's and the child's; the copy's own went with the copy.
    assert_eq!(rows_left(server).await, (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_fails_or_is_late_leaves_nothing() {
    let server = Server::start(&["forks.clone_s_max=1"]).await;
    let source = elsewhere(&server).await;
    let forking = fork(&server, &source);
    let clone = asked(&server, &source).await;
    let reason = json!({ "reason": "no room" });
    assert_eq!(answer(&server, &clone, "fail", reason).await.0, 200);
    let (status, why) = told(forking).await;
    assert_eq!(
        (status, &why["code"]),
        (502, &json!("runtime.clone_failed"))
    );
    assert!(why["detail"].as_str().unwrap().contains("no room"));
    is_absent(&server, &clone["child_session_id"]).await;

    // Told and silent; never told.
    let clock = longhaul_actors::env::Door::system().clock;
    let since = clock.mono();
    let forking = fork(&server, &source);
    let late = asked(&server, &source).await;
    let never = fork(&server, &source);
    for forking in [forking, never] {
        let (status, why) = told(forking).await;
        assert_eq!(
            (status, &why["code"]),
            (504, &json!("runtime.clone_timeout"))
        );
    }
    assert!(clock.mono().saturating_sub(since) >= Duration::from_secs(1));
    let adopt = json!({ "sandbox_ref": "late" });
    let (status, why) = answer(&server, &late, "adopt", adopt).await;
    assert_eq!((status, &why["code"]), (404, &json!("clone.not_found")));
    is_absent(&server, &late["child_session_id"]).await;
    let path = format!("/v1/runners/{}/claims?wait_ms=1", source.runner);
    let quiet = server.post(&path, json!({})).await;
    assert_eq!(quiet["clones"], json!([]), "nobody waits for it any more");

    let token = format!("cln_{}", "0".repeat(64));
    let nobody = json!({ "clone_token": token });
    let (status, _) = answer(&server, &nobody, "fail", json!({ "reason": "x" })).await;
    assert!([400, 404].contains(&status));

    assert_eq!(rows_left(server).await, (1, 1));
}

/// A fork of the checkpoint is refused, and leaves nothing; the checkpoint stays as it is.
async fn nobody_can(server: &Server, source: &Elsewhere) {
    let fork = format!("/v1/sessions/{}/fork", source.session);
    let from = json!({ "from": { "checkpoint_id": source.checkpoint } });
    let (status, why) = server.call("POST", &fork, from).await;
    assert_eq!(
        (status, &why["code"]),
        (409, &json!("runtime.no_eligible_runner"))
    );
    let listed = server.get("/v1/sessions").await;
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1);
    let own = checkpoints(server, &source.session).await;
    assert_eq!(own.len(), 1);
    let state = (&own[0]["snapshot"]["state"], &own[0]["rejected"]);
    assert_eq!(state, (&json!("live"), &Value::Null), "it may come back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_whose_runner_is_gone_is_out_of_reach() {
    let mut server = Server::start(&[]).await;
    let source = elsewhere(&server).await;
    let other = json!({ "name": "other", "host_id": "there", "targets": ["*"], "capacity": 8 });
    let other = id(&server.post("/v1/runners", other).await);
    let heard = |runner: &str| format!("/v1/runners/{runner}/claims?wait_ms=1");
    // Not heard of since the start; another of the same targets is, and does not help.
    server.process.kill9().unwrap();
    server.process.restart().await.unwrap();
    let quiet = server.post(&heard(&other), json!({})).await;
    assert_eq!(quiet["clones"], json!([]));
    nobody_can(&server, &source).await;
    // Gone for good.
    let runner = format!("/v1/runners/{}", source.runner);
    server.must("DELETE", &runner, Value::Null).await;
    nobody_can(&server, &source).await;
    // Conversation can be forked without anybody.
    let path = format!("/v1/sessions/{}/fork", source.session);
    server
        .post(&path, json!({ "from": { "head": true } }))
        .await;
    assert_eq!(rows_left(server).await, (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_goes_in_the_middle_makes_no_child() {
    let server = Server::start(&["forks.clone_s_max=2"]).await;
    let source = elsewhere(&server).await;
    let forking = fork(&server, &source);
    let clone = asked(&server, &source).await;
    let runner = format!("/v1/runners/{}", source.runner);
    server.must("DELETE", &runner, Value::Null).await;
    let (status, why) = told(forking).await;
    assert!([409, 504].contains(&status), "{why}");
    is_absent(&server, &clone["child_session_id"]).await;
    assert_eq!(rows_left(server).await, (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_in_the_middle_of_a_copy_leaves_neither_child_nor_reference() {
    let mut server = Server::start(&[]).await;
    let source = elsewhere(&server).await;
    let forking = fork(&server, &source);
    let clone = asked(&server, &source).await;
    server.process.kill9().unwrap();
    assert!(forking.await.unwrap().is_err(), "nobody was answered");
    server.process.restart().await.unwrap();
    is_absent(&server, &clone["child_session_id"]).await;
    let adopt = json!({ "sandbox_ref": "late" });
    let (status, why) = answer(&server, &clone, "adopt", adopt).await;
    assert_eq!((status, &why["code"]), (404, &json!("clone.not_found")));
    // It can be forked anew, once its runner is heard of again.
    let path = format!("/v1/runners/{}/claims?wait_ms=1", source.runner);
    server.post(&path, json!({})).await;
    let forking = fork(&server, &source);
    let clone = asked(&server, &source).await;
    let adopt = json!({ "sandbox_ref": "copy" });
    assert_eq!(answer(&server, &clone, "adopt", adopt).await.0, 200);
    assert_eq!(told(forking).await.0, 201);
    let forking = fork(&server, &source);
    asked(&server, &source).await;
    server.process.kill9().unwrap();
    drop(forking.await);
    // Copies that died with their process are found beside the start, of which this stop may be
    // too soon.
    let Server {
        process,
        data,
        _folder,
    } = server;
    drop(process);
    for _ in 0..10 {
        let process = ServerProcess::start(spec(&data, &[], &[])).await.unwrap();
        process.stop().await.unwrap();
        if rows_in(&data) == (2, 2) {
            return;
        }
    }
    panic!("killed copies hold something: {:?}", rows_in(&data));
}
