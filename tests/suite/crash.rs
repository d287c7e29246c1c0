//! A real process, killed at every named fault point of start-up, the append path, the claim path
//! and erasing, then started again: everything acknowledged is there, and every row is what a fold
//! of the log says.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use longhaul::load::server::ServerProcess;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{Server, assert_whole, call, call_once, id, spec};

mod agent;
mod disks;
mod expiry;
mod fold;
mod steps;

/// Lost attempts are noticed soon.
const SETTINGS: &[&str] = &[
    "runs.lease_s=1",
    "runs.beat_s=1",
    "runs.backoff_ms_min=20",
    "runs.attempts_max=100",
    "receipts.ttl_s=1",
    "engine.sweep_s=1",
    // Each turn's checkpoint lets the one before go, and its bytes with it.
    "retention.checkpoints_per_session_max=1",
];
/// How long a point may take to be reached.
const REACHED_S_MAX: u64 = 30;
/// Sessions that work at once.
const SESSIONS: usize = 4;
/// Points that need another fault than a kill to be reached (a full disk, an unknown outcome):
/// the storage crate's own tests stop there.
const ELSEWHERE: &str = "recover::";

/// Every point: storage's and the engine's.
fn points() -> Vec<&'static str> {
    let mut all = longhaul_storage::fault::POINTS.to_vec();
    all.extend(longhaul_actors::engine::fault_points());
    all.retain(|p| !p.starts_with(ELSEWHERE));
    chosen(all)
}

/// `POINT=writer::` goes through some of them only.
fn chosen(mut points: Vec<&'static str>) -> Vec<&'static str> {
    if let Ok(only) = std::env::var("POINT") {
        points.retain(|p| p.starts_with(&only));
    }
    points
}

/// Goes through the points, four at once; `killed_at` says whether its point was reached.
async fn at_each<F>(points: Vec<&'static str>, killed_at: impl Fn(&'static str) -> F)
where
    F: Future<Output = bool> + Send + 'static,
{
    let mut work = points.into_iter();
    let mut running = tokio::task::JoinSet::new();
    loop {
        while running.len() < 4
            && let Some(point) = work.next()
        {
            let killed = killed_at(point);
            running.spawn(async move { (point, killed.await) });
        }
        let Some(done) = running.join_next().await else {
            return;
        };
        let (point, reached) = done.unwrap();
        assert!(reached, "{point} was never reached");
    }
}

/// A server that stops dead at a point.
struct Armed {
    /// `None` = it stopped in its start.
    process: Option<ServerProcess>,
    until: Instant,
}

impl Armed {
    /// Starts it on a folder; `points` as the environment variable names them.
    async fn start(data: &Path, settings: &[&str], points: &str, reached_s_max: u64) -> Self {
        let process = ServerProcess::start(spec(data, settings, &[("FAILPOINTS", points)])).await;
        Self {
            process: process.ok(),
            until: Instant::now() + Duration::from_secs(reached_s_max),
        }
    }

    /// Where it listens, as long as it runs and has time.
    fn url(&mut self) -> Option<String> {
        let process = self.process.as_mut()?;
        let runs = process.ended().unwrap().is_none() && Instant::now() < self.until;
        runs.then(|| process.url())
    }

    /// Whether it stopped by itself; it is gone now in any case.
    fn died(self) -> bool {
        self.process
            .is_none_or(|mut process| process.ended().unwrap().is_some())
    }
}

#[test]
fn the_points_cover_every_path() {
    let all = points();
    for path in ["open::", "append::", "writer::", "purge::", "claim::"] {
        assert!(
            all.iter().any(|p| p.starts_with(path)),
            "no point in {path}: {all:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_every_point_nothing_is_lost_and_every_row_fits() {
    at_each(points(), killed_at).await;
}

/// What was acknowledged: per session, position → text.
type Acked = BTreeMap<String, BTreeMap<u64, String>>;

/// Works on a server that stops dead at `point`; whether it did.
async fn killed_at(point: &'static str) -> bool {
    let mut server = Server::start(SETTINGS).await;
    let steps = json!([{ "exec": "echo {{input}} > f" }, { "say": "{{input}}" }]);
    let script = server
        .deployment(json!({ "kind": "script", "steps": steps }))
        .await;
    let mut acked = Acked::new();
    for _ in 0..SESSIONS {
        acked.insert(server.session(&script).await, BTreeMap::new());
    }
    work(&server.url(), &script, &mut acked, 0).await;
    server.process.kill9().unwrap();

    // The third pass of a point on the way of every append; the first where there is only one.
    let once = ["open::", "start::", "purge::"]
        .iter()
        .any(|p| point.starts_with(p));
    let armed = format!("{point}={}return", if once { "" } else { "2*off->" });
    let mut process = Armed::start(&server.data, SETTINGS, &armed, REACHED_S_MAX).await;
    let mut round = 1;
    while let Some(url) = process.url() {
        work(&url, &script, &mut acked, round).await;
        round += 1;
    }
    let died = process.died();
    server.process.restart().await.unwrap();
    settled(&server, &acked).await;
    check(&server, &acked, point).await;
    let stopped = server.stop().await;
    fold::compare(&stopped.data, point);
    died
}

/// One round: a message to each session, and one session made, used and erased. Stops where the
/// server does.
async fn work(url: &str, deployment: &str, acked: &mut Acked, round: usize) {
    for (session, texts) in acked.iter_mut() {
        let text = format!("m{round}");
        let body = json!({ "events": [{ "type": "user.message", "content": { "text": text } }] });
        let path = format!("/v1/sessions/{session}/events");
        match call_once(url, &format!("{session}-{round}"), &path, body).await {
            Ok((202, answer)) => {
                texts.insert(answer["events"][0]["seq"].as_u64().unwrap(), text);
            }
            Ok((status, answer)) => assert!(status >= 500, "{status} {answer}"),
            Err(_) => return,
        }
    }
    let body = json!({ "agent_deployment": deployment });
    let Ok((201, made)) = call(url, "POST", "/v1/sessions", body).await else {
        return;
    };
    // An erased session's answer is checked by its own tests; here it only has to leave no row.
    let _ = call(
        url,
        "DELETE",
        &format!("/v1/sessions/{}", id(&made)),
        Value::Null,
    )
    .await;
}

/// Waits until no session has anything left to do.
async fn settled(server: &Server, acked: &Acked) {
    for session in acked.keys() {
        server.wait_status(session, &["idle"]).await;
    }
}

/// What HTTP shows is what the log says.
async fn check(server: &Server, acked: &Acked, point: &str) {
    let listed = server.get("/v1/sessions?limit=1000").await;
    let listed = listed["sessions"].as_array().unwrap();
    for (session, texts) in acked {
        let log = server.log(session).await;
        assert_whole(&log);
        let at: BTreeMap<u64, &Value> = log
            .iter()
            .map(|e| (e["seq"].as_u64().unwrap(), e))
            .collect();
        for (seq, text) in texts {
            let found = at.get(seq).map(|e| &e["content"]["text"]);
            assert_eq!(
                found,
                Some(&json!(text)),
                "{point}: acknowledged at {seq} of {session}"
            );
        }
        let of = |kind: &str| log.iter().filter(|e| e["type"] == kind).collect::<Vec<_>>();
        let taken: Vec<&Value> = of("run.inputs_taken")
            .into_iter()
            .flat_map(|e| e["content"]["event_ids"].as_array().unwrap())
            .collect();
        let sent: Vec<&Value> = of("user.message").into_iter().map(|e| &e["id"]).collect();
        assert_eq!(taken, sent, "{point}: each message is taken once, in order");

        let shown = server.get(&format!("/v1/sessions/{session}")).await;
        let last_status = of("session.status").last().unwrap()["content"]["to"].clone();
        assert_eq!(shown["status"], last_status, "{point}");
        assert_eq!(shown["last_seq"], log.len(), "{point}");
        let row = listed.iter().find(|s| s["id"] == session.as_str()).unwrap();
        assert_eq!(row["status"], last_status, "{point}");

        let runs = server
            .get(&format!("/v1/sessions/{session}/runs?limit=1000"))
            .await;
        let mut shown: Vec<(Value, Value)> = runs["runs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| (r["id"].clone(), r["outcome"].clone()))
            .collect();
        let mut logged: Vec<(Value, Value)> = of("run.settled")
            .into_iter()
            .map(|e| (e["run_id"].clone(), e["content"]["outcome"].clone()))
            .collect();
        shown.sort_by_key(|r| r.0.to_string());
        logged.sort_by_key(|r| r.0.to_string());
        assert_eq!(shown, logged, "{point}: runs as listed and as logged");
        let said = of("agent.message").len();
        let ok = logged
            .iter()
            .filter(|(_, outcome)| outcome == "succeeded")
            .count();
        assert_eq!(said, ok, "{point}: each run says its line once");
    }
}

#[tokio::test]
async fn a_kill_in_the_middle_of_a_run_leads_to_attempt_two() {
    let mut server = Server::start(SETTINGS).await;
    let steps = json!([{ "say": "one" }, { "sleep_ms": 800 }, { "say": "two" }]);
    let deployment = server
        .deployment(json!({ "kind": "script", "steps": steps }))
        .await;
    let session = server.session(&deployment).await;
    server.send(&session, "go").await;
    let mut every = tokio::time::interval(Duration::from_millis(20));
    while !server
        .log(&session)
        .await
        .iter()
        .any(|e| e["type"] == "agent.message")
    {
        every.tick().await;
    }
    server.process.kill9().unwrap();
    server.process.restart().await.unwrap();
    server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    assert_whole(&log);
    let said: Vec<&Value> = log
        .iter()
        .filter(|e| e["type"] == "agent.message")
        .map(|e| &e["content"]["text"])
        .collect();
    assert_eq!(said, ["one", "two"]);
    let settled = log.iter().find(|e| e["type"] == "run.settled").unwrap();
    assert_eq!(settled["attempt"], 2);
}
