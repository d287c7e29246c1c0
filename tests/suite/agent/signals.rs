//! Signals: kept until a run takes them, by name, first in first out.

use std::sync::Arc;
use std::time::Duration;

use longhaul::journal::{Journal, JournalError};
use longhaul::runner::{Attempt, BoxFuture, End, Extensions, Failure, Harness, Settlement};
use longhaul::{NewSession, SessionHandle};
use serde_json::{Value, json};

use super::kit::{Stage, of, send, until};
use crate::support::{Server, id};

/// Does what its profile says: `["wait", name]`, `["wait", name, milliseconds]` or
/// `["poll", name]`, in order; then says what it got.
#[derive(Debug)]
struct Listener;

impl Harness for Listener {
    fn kind(&self) -> &str {
        "listener"
    }

    fn run<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<End, Failure>> {
        Box::pin(async move {
            attempt.ready().await?;
            let journal = Journal::open(attempt);
            let mut got = Vec::new();
            for step in attempt.claim().harness()["config"].as_array().unwrap() {
                let name = step[1].as_str().unwrap();
                let limit = step[2].as_u64().map(Duration::from_millis);
                let heard = match step[0].as_str().unwrap() {
                    "poll" => journal.poll_signal(name).await?,
                    _ => match journal.wait_for_signal(name, limit).await {
                        Err(JournalError::TimedOut { .. }) => None,
                        heard => Some(heard?),
                    },
                };
                got.push(heard.map_or(json!("nothing"), |payload| json!([payload])));
            }
            attempt.event("agent.message", json!({"got": got})).await?;
            Ok(End::Settle(Settlement::succeeded()))
        })
    }
}

async fn session(steps: Value) -> (Stage, SessionHandle) {
    let mut extensions = Extensions::default();
    extensions.add_harness(Arc::new(Listener));
    let stage = Stage::open_with(extensions).await;
    let new = json!({
        "name": "listener", "sandbox": {"provider": "none", "max_duration_seconds": 60},
        "release": {"instructions": "", "harness": {"kind": "listener", "config": steps}},
    });
    let new = serde_json::from_str(&new.to_string()).unwrap();
    let agent = stage.runtime.deploy(&new).await.unwrap().id;
    let session = stage.runtime.start(NewSession::of(agent)).await.unwrap();
    (stage, session)
}

async fn signal(session: &SessionHandle, name: &str, payload: Value) {
    let content = json!({"name": name, "payload": payload});
    send(session, "user.signal", content).await;
}

async fn got(session: &SessionHandle, turn: usize) -> Value {
    until(session, "run.settled", turn).await;
    of(session, "agent.message").await[turn - 1]["got"].take()
}

async fn status(session: &SessionHandle) -> Value {
    session.show().await.unwrap()["status"].take()
}

#[tokio::test]
async fn s1_s3_s6_a_wait_parks_and_each_signal_wakes_one_in_order() {
    let (stage, session) = session(json!([["wait", "go"], ["wait", "go"], ["wait", "go"]])).await;
    session.send("listen").await.unwrap();
    until(&session, "run.parked", 1).await;
    assert_eq!(status(&session).await, "paused");
    signal(&session, "other", json!(0)).await;
    assert_eq!(status(&session).await, "paused");
    signal(&session, "go", json!(1)).await;
    // One wait is over, and the next one waits.
    until(&session, "run.parked", 2).await;
    assert_eq!(of(&session, "signal.consumed").await.len(), 1);
    signal(&session, "go", json!(2)).await;
    signal(&session, "go", json!(3)).await;
    assert_eq!(got(&session, 1).await, json!([[1], [2], [3]]));
    let consumed = of(&session, "signal.consumed").await;
    assert!(consumed.iter().all(|c| c["name"] == "go"), "{consumed:?}");
    stage.runtime.close().await;
}

#[tokio::test]
async fn s2_s10_a_signal_before_the_wait_is_kept_and_null_is_not_nothing() {
    let steps = json!([["poll", "go"], ["poll", "none"], ["wait", "early"]]);
    let (stage, session) = session(steps).await;
    signal(&session, "early", json!("kept")).await;
    signal(&session, "go", Value::Null).await;
    session.send("listen").await.unwrap();
    let wanted = json!([[null], "nothing", ["kept"]]);
    assert_eq!(got(&session, 1).await, wanted);
    assert!(of(&session, "run.parked").await.is_empty());
    stage.runtime.close().await;
}

#[tokio::test]
async fn s8_a_wait_that_is_too_long_says_so_and_leaves_nothing() {
    let (stage, session) = session(json!([["wait", "go", 50], ["poll", "go"]])).await;
    session.send("listen").await.unwrap();
    assert_eq!(got(&session, 1).await, json!(["nothing", "nothing"]));
    assert_eq!(status(&session).await, "idle");
    // Nobody waits any more: the next one is kept, and is the next run's.
    signal(&session, "go", json!(1)).await;
    assert!(of(&session, "signal.consumed").await.is_empty());
    session.send("listen").await.unwrap();
    assert_eq!(got(&session, 2).await, json!([[1], "nothing"]));
    stage.runtime.close().await;
}

#[tokio::test]
async fn s9_waits_and_signals_survive_a_kill() {
    let mut server = Server::start(&[]).await;
    let deployment = server.deployment(json!({"kind": "external"})).await;
    let session = server.session(&deployment).await;
    let runner = json!({"name": "r", "host_id": "h", "targets": ["*"], "capacity": 4});
    let runner = id(&server.post("/v1/runners", runner).await);
    let post = async |server: &Server, path: String, body: Value| server.post(&path, body).await;
    let claim = async |server: &Server| {
        let path = format!("/v1/runners/{runner}/claims?wait_ms=10000");
        let mut answer = server.post(&path, json!({})).await;
        answer["claims"][0].take()
    };
    let events = format!("/v1/sessions/{session}/events");
    let signal = |name: &str, n: u32| json!({"events": [{"type": "user.signal", "content": {"name": name, "payload": n}}]});
    server.send(&session, "go").await;
    let first = claim(&server).await;
    let token = first["token"].as_str().unwrap().to_owned();
    post(&server, format!("/v1/claims/{token}/ready"), json!({})).await;
    post(&server, events.clone(), signal("early", 1)).await;
    let park = json!({"waiting_on": [{"signal": "go"}], "compute": "released"});
    post(&server, format!("/v1/claims/{token}/park"), park).await;

    server.process.kill9().unwrap();
    server.process.restart().await.unwrap();
    server.wait_status(&session, &["paused"]).await;
    post(&server, events.clone(), signal("go", 2)).await;

    server.process.kill9().unwrap();
    server.process.restart().await.unwrap();
    let second = claim(&server).await;
    assert_eq!(second["continues"], first["run_id"], "{second}");
    let woke = &second["inputs"][0]["content"];
    assert_eq!(*woke, json!({"name": "go", "payload": 2}));
    let token = second["token"].as_str().unwrap().to_owned();
    post(&server, format!("/v1/claims/{token}/ready"), json!({})).await;
    let poll = json!({"signal": "early"});
    let early = post(&server, format!("/v1/claims/{token}/inputs"), poll.clone()).await;
    assert_eq!(early["inputs"][0]["content"]["payload"], 1, "{early}");
    let none = post(&server, format!("/v1/claims/{token}/inputs"), poll).await;
    assert_eq!(none["inputs"], json!([]), "consumed once");
}
