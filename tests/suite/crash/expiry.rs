//! Killed at every fault point of the end of checkpoints' time and of the collection that follows:
//! what is listed as live can be restored, what is over goes with its bytes, and what shares
//! them stays.

use std::time::Duration;

use longhaul_actors::checkpoint::{COLLECT_POINTS, EXPIRY_POINTS};
use longhaul_storage::fault::SNAPSHOT_POINTS;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::disks::{belongs, collected, disk, idle, say};
use super::{Armed, SETTINGS, at_each, chosen};
use crate::support::{Server, assert_whole, call};

/// How long a point may take to be reached.
const REACHED_S_MAX: u64 = 60;
/// How long the checkpoints of the server that is killed live.
const SHORT: &str = "retention.checkpoint_ttl_s=1";
/// Nothing goes because there are many.
const MANY: &str = "retention.checkpoints_per_session_max=100";

fn points() -> Vec<&'static str> {
    let mut all = [EXPIRY_POINTS, COLLECT_POINTS].concat();
    let letting_go = ["snapshot::unlink", "snapshot::punch"];
    let of_storage = SNAPSHOT_POINTS.iter().copied();
    all.extend(of_storage.filter(|p| letting_go.iter().any(|l| p.starts_with(l))));
    chosen(all)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_every_point_of_a_checkpoints_end() {
    at_each(points(), killed_at).await;
}

async fn killed_at(point: &'static str) -> bool {
    let settings: Vec<&str> = SETTINGS.iter().copied().chain([MANY]).collect();
    let mut server = Server::start(&settings).await;
    let shell = json!({ "kind": "script", "steps": [{ "exec": "{{input}}" }] });
    let session = server.session(&server.deployment(shell).await).await;
    // Shared by all that follow, and of a time that is not over.
    say(
        &server.url(),
        &session,
        "head -c 200000 /dev/urandom > keep; echo 0 > f",
    )
    .await;
    server.wait_status(&session, &["idle"]).await;
    let lasting = checkpoints(&server, &session).await[0].clone();
    let pin = format!(
        "/v1/sessions/{session}/checkpoints/{}/pin",
        lasting["id"].as_str().unwrap()
    );
    server.post(&pin, json!({ "pinned": true })).await;
    server.process.kill9().unwrap();

    let short: Vec<&str> = settings.iter().copied().chain([SHORT]).collect();
    let armed = format!("{point}=return");
    let mut process = Armed::start(&server.data, &short, &armed, REACHED_S_MAX).await;
    let mut round = 0;
    while let Some(url) = process.url() {
        round += 1;
        work(&url, &session, round).await;
    }
    let died = process.died();
    server.process.restart().await.unwrap();
    server.wait_status(&session, &["idle"]).await;
    check(&server, &lasting, point).await;
    over(&server, &lasting, point).await;
    let stopped = server.stop().await;
    collected(&stopped.data, &settings, point).await;
    died
}

/// One round: a turn, and now and then a fork, whose checkpoint has the same end. Stops where the
/// server does.
async fn work(url: &str, session: &str, round: usize) -> Option<()> {
    // Packs of which nothing is needed later, and packs of which a part is.
    let part = if round.is_multiple_of(2) {
        format!("echo {round} > k{round}; ")
    } else {
        String::new()
    };
    let command = format!("head -c 60000 /dev/urandom > r; {part}echo {round} > f");
    say(url, session, &command).await?;
    idle(url, session).await?;
    if round.is_multiple_of(3) {
        let path = format!("/v1/sessions/{session}/checkpoints");
        let (_, listed) = call(url, "GET", &path, Value::Null).await.ok()?;
        let from = json!({ "from": { "checkpoint_id": listed["checkpoints"][0]["id"] } });
        let path = format!("/v1/sessions/{session}/fork");
        call(url, "POST", &path, from).await.ok()?;
    }
    Some(())
}

async fn checkpoints(server: &Server, session: &str) -> Vec<Value> {
    let path = format!("/v1/sessions/{session}/checkpoints?limit=1000");
    let listed = server.get(&path).await;
    listed["checkpoints"].as_array().unwrap().clone()
}

/// Every listed checkpoint, with its session.
async fn all(server: &Server) -> Vec<(String, Value)> {
    let listed = server.get("/v1/sessions?limit=1000").await;
    let mut all = Vec::new();
    for session in listed["sessions"].as_array().unwrap() {
        let session = session["id"].as_str().unwrap();
        let own = checkpoints(server, session).await.into_iter();
        all.extend(own.map(|c| (session.to_owned(), c)));
    }
    all
}

/// Whether a checkpoint was made to be over soon.
fn is_short(checkpoint: &Value, lasting: &Value) -> bool {
    let end = |c: &Value| c["expires_at"].as_str().unwrap().to_owned();
    end(checkpoint) < end(lasting)
}

fn is_live(checkpoint: &Value) -> bool {
    checkpoint["snapshot"]["state"] == "live"
}

/// Every live checkpoint gives its disk, unless its time is over meanwhile.
async fn check(server: &Server, lasting: &Value, point: &str) {
    let mut given = 0;
    for (session, checkpoint) in all(server).await {
        let log = server.log(&session).await;
        assert_whole(&log);
        assert!(
            is_live(&checkpoint) || is_short(&checkpoint, lasting),
            "{point}: {checkpoint}"
        );
        if !is_live(&checkpoint) {
            continue;
        }
        match disk(server, &checkpoint).await {
            Ok(text) => {
                belongs(&checkpoint, &text, &log, point);
                given += usize::from(checkpoint["id"] == lasting["id"]);
            }
            Err(code) => {
                // It is over before it is taken, or before the copy of it is looked at.
                let late = ["runtime.checkpoint_expired", "sandbox.not_found"];
                assert!(
                    late.contains(&code.as_str()),
                    "{point}: {code}: {checkpoint}"
                );
                assert!(is_short(&checkpoint, lasting), "{point}: {checkpoint}");
            }
        }
    }
    assert_eq!(given, 1, "{point}: the lasting one gives its disk");
}

/// Waits until every checkpoint that was to be over is.
async fn over(server: &Server, lasting: &Value, point: &str) {
    let deadline = Instant::now() + Duration::from_secs(REACHED_S_MAX);
    let mut every = tokio::time::interval(Duration::from_millis(100));
    loop {
        every.tick().await;
        let all = all(server).await;
        let mut short = all.iter().filter(|(_, c)| is_short(c, lasting));
        assert!(short.clone().count() > 0, "{point}: nothing was to be over");
        if !short.any(|(_, c)| is_live(c)) {
            return;
        }
        assert!(Instant::now() < deadline, "{point}: {all:?}");
    }
}
