//! Killed between the begin, the effect and the end of a step: an effect that was begun is never
//! begun again unasked, and one whose result is kept happens once.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul::load::server::ServerProcess;
use serde_json::{Value, json};

use super::{SETTINGS, fold};
use crate::support::{Server, assert_whole, call, id, spec};

/// Steps of the run.
const STEPS: usize = 10;
/// How long a run may take to be offered again.
const CLAIM_S_MAX: u64 = 30;

/// The world outside: a line for each effect.
struct Effects(PathBuf);

impl Effects {
    fn make(&self, step: usize) {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.create(true).append(true).open(&self.0).unwrap();
        writeln!(file, "{step}").unwrap();
    }

    fn count(&self, step: usize) -> usize {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().filter(|l| *l == step.to_string()).count()
    }
}

/// A runner in this process, until the server dies.
struct Runner<'a> {
    url: &'a str,
    token: String,
}

impl Runner<'_> {
    async fn call(&self, verb: &str, body: Value) -> std::io::Result<Value> {
        let path = format!("/v1/claims/{}/{verb}", self.token);
        let (status, answer) = call(self.url, "POST", &path, body).await?;
        if status >= 500 {
            return Err(std::io::Error::other(answer.to_string()));
        }
        assert_eq!(status, 200, "{verb}: {answer}");
        Ok(answer)
    }

    async fn claim(url: &str) -> std::io::Result<Runner<'_>> {
        let runner = json!({ "name": "crash", "host_id": "here", "targets": ["*"], "capacity": 1 });
        let (_, enrolled) = call(url, "POST", "/v1/runners", runner).await?;
        let path = format!("/v1/runners/{}/claims?wait_ms=1000", id(&enrolled));
        let until = tokio::time::Instant::now() + Duration::from_secs(CLAIM_S_MAX);
        loop {
            let (_, answer) = call(url, "POST", &path, json!({})).await?;
            if let Some(token) = answer["claims"][0]["claim_token"].as_str() {
                let token = token.to_owned();
                return Ok(Runner { url, token });
            }
            assert!(tokio::time::Instant::now() < until, "no claim: {answer}");
        }
    }

    async fn step(&self, effects: &Effects, i: usize) -> std::io::Result<()> {
        let begin = json!({ "op": "begin", "name": "charge", "occurrence": i,
            "input_digest": format!("d{i}"), "on_doubt": "surface" });
        let mut answer = self.call("steps", begin.clone()).await?;
        if answer["state"] == "in_doubt" {
            // Somebody who looks outside knows how it ended.
            let step = &answer["step_id"];
            let resolve = match effects.count(i) {
                0 => json!({ "op": "resolve", "step_id": step, "as": "retry" }),
                _ => {
                    json!({ "op": "resolve", "step_id": step, "as": "completed", "value": { "n": i } })
                }
            };
            answer = self.call("steps", resolve).await?;
        }
        if answer["state"] == "execute" {
            effects.make(i);
            let complete = json!({ "op": "complete", "step_id": answer["step_id"],
                "value": { "n": i }, "usage": { "cost_micros": 1 } });
            self.call("steps", complete).await?;
        }
        let kept = self.call("steps", begin).await?;
        assert_eq!(kept["value"], json!({ "n": i }), "{kept}");
        Ok(())
    }
}

/// Works on the run until it settles, or the server dies.
async fn work(url: &str, effects: &Effects) -> std::io::Result<()> {
    let runner = Runner::claim(url).await?;
    runner.call("ready", json!({})).await?;
    for i in 0..STEPS {
        runner.step(effects, i).await?;
    }
    let settle = json!({ "outcome": "succeeded" });
    runner.call("settle", settle).await.map(drop)
}

async fn killed_at(point: &'static str, pass: u32) {
    let what = format!("{point}, pass {pass}");
    let mut server = Server::start(SETTINGS).await;
    let effects = Effects(server.data.with_file_name("effects"));
    let deployment = server.deployment(json!({ "kind": "external" })).await;
    let session = server.session(&deployment).await;
    server.send(&session, "go").await;
    server.process.kill9().unwrap();
    let armed = format!("{point}={pass}*off->return");
    let spec = spec(&server.data, SETTINGS, &[("FAILPOINTS", &armed)]);
    let mut dying = ServerProcess::start(spec).await.unwrap();
    let url = dying.url();
    assert!(work(&url, &effects).await.is_err(), "{what}: never reached");
    let mut every = tokio::time::interval(Duration::from_millis(10));
    while dying.ended().unwrap().is_none() {
        every.tick().await;
    }
    server.process.restart().await.unwrap();
    work(&server.url(), &effects).await.unwrap();
    check(&server, &session, &effects, &what).await;
    let (process, data): (ServerProcess, &Path) = (server.process, &server.data);
    process.stop().await.unwrap();
    fold::compare(data, &what);
}

async fn check(server: &Server, session: &str, effects: &Effects, what: &str) {
    for i in 0..STEPS {
        assert_eq!(effects.count(i), 1, "{what}: effect {i}");
    }
    let log = server.log(session).await;
    assert_whole(&log);
    let of = |kind: &str| log.iter().filter(|e| e["type"] == kind).count();
    assert_eq!(of("step.completed"), STEPS, "{what}");
    let settled = log.iter().find(|e| e["type"] == "run.settled").unwrap();
    assert_eq!(settled["attempt"], 2, "{what}");
    // A result that was resolved by hand has no usage; every other has it once.
    let resolved = log.iter().filter(|e| e["content"]["as"] == "completed");
    let paid = STEPS - resolved.count();
    let shown = server.get(&format!("/v1/sessions/{session}")).await;
    assert_eq!(shown["usage"]["cost_micros"], paid, "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_whose_result_is_kept_happens_once() {
    let on_the_way = |p: &&&str| p.starts_with("append::") || p.starts_with("writer::");
    let points = longhaul_storage::fault::POINTS.iter().filter(on_the_way);
    // Of two passes in a row one is a begin, the other an end.
    let mut work = points.flat_map(|p| [(*p, 15), (*p, 16)]);
    let mut running = tokio::task::JoinSet::new();
    loop {
        while running.len() < 4
            && let Some((point, pass)) = work.next()
        {
            running.spawn(killed_at(point, pass));
        }
        match running.join_next().await {
            Some(done) => done.unwrap(),
            None => return,
        }
    }
}
