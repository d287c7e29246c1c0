//! An agent of 50 turns whose server is killed 30 times: what it leaves is what it leaves where
//! nothing is killed.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Server, assert_whole};

/// Lost attempts are noticed soon, and there may be many.
const SETTINGS: &[&str] = &[
    "runs.lease_s=1",
    "runs.beat_s=1",
    "runs.backoff_ms_min=10",
    "runs.backoff_ms_max=50",
    "runs.attempts_max=100",
];
const TURNS: usize = 50;
const KILLS: usize = 30;
/// Events that an attempt gets to write before it may be killed, at most.
const PROGRESS_MAX: u64 = 12;
/// The kill comes so long after that, at most.
const DELAY_MS_MAX: u64 = 40;

/// An agent whose turns change the files of those before.
fn agent(checkpoint: &str) -> Value {
    let usage = json!({"input_tokens": 3, "output_tokens": 2, "cost_micros": 1});
    let mut answers: Vec<Value> = (0..TURNS)
        .map(|n| {
            let count = json!({"name": "bash", "input": {"command": format!("echo {n} >> log; wc -l < log")}});
            let write = json!({"name": "write_file", "input": {"path": format!("{n}.txt"), "text": format!("{n}")}});
            let read = json!({"name": "read_file", "input": {"path": "log"}});
            let calls = match n % 3 {
                0 => json!([count]),
                1 => json!([count, write]),
                _ => json!([read]),
            };
            json!({"text": format!("turn {n}"), "tool_calls": calls, "usage": usage})
        })
        .collect();
    answers.push(json!({"text": "done", "usage": usage}));
    json!({
        "kind": "agent",
        "model": {"route": "scripted", "answers": answers, "delay_ms": 5},
        "tools": ["bash", "write_file", "read_file"],
        "checkpoint": checkpoint,
    })
}

/// What agents wrote: types and contents, with calls named by their order instead of their id.
/// The results of one answer's calls come in any order, so they are sorted by their calls.
fn written(log: &[Value]) -> Vec<(String, Value)> {
    let ids: Vec<&Value> = log
        .iter()
        .filter(|e| e["type"] == "agent.tool_use")
        .map(|e| &e["id"])
        .collect();
    let mut out: Vec<(String, Value)> = Vec::new();
    for event in log {
        let kind = event["type"].as_str().unwrap();
        if !kind.starts_with("agent.") && kind != "usage.recorded" {
            continue;
        }
        let mut content = event["content"].clone();
        if let Some(id) = content.get_mut("tool_use_id") {
            *id = json!(ids.iter().position(|u| *u == id).unwrap());
        }
        out.push((kind.to_owned(), content));
    }
    for run in out.chunk_by_mut(|a, b| a.0 == b.0) {
        run.sort_by_key(|(_, content)| content["tool_use_id"].as_u64());
    }
    out
}

async fn last_seq(server: &Server, session: &str) -> (u64, String) {
    let shown = server.get(&format!("/v1/sessions/{session}")).await;
    let status = shown["status"].as_str().unwrap().to_owned();
    (shown["last_seq"].as_u64().unwrap(), status)
}

/// Chance that is the same every time.
struct Dice(u64);

impl Dice {
    fn up_to(&mut self, max: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % (max + 1)
    }
}

async fn killed_while_it_works(checkpoint: &str, seed: u64) {
    let mut server = Server::start(SETTINGS).await;
    let deployment = server.deployment(agent(checkpoint)).await;
    let calm = server.session(&deployment).await;
    server.send(&calm, "go").await;
    server.wait_status(&calm, &["idle"]).await;

    let session = server.session(&deployment).await;
    server.send(&session, "go").await;
    let mut dice = Dice(seed);
    let mut kills = 0;
    let mut every = tokio::time::interval(Duration::from_millis(2));
    while kills < KILLS {
        let (from, _) = last_seq(&server, &session).await;
        let wanted = from + 1 + dice.up_to(PROGRESS_MAX);
        let is_over = loop {
            every.tick().await;
            let (seq, status) = last_seq(&server, &session).await;
            if status == "idle" || seq >= wanted {
                break status == "idle";
            }
        };
        if is_over {
            break;
        }
        tokio::time::sleep(Duration::from_millis(dice.up_to(DELAY_MS_MAX))).await;
        server.process.kill9().unwrap();
        server.process.restart().await.unwrap();
        kills += 1;
    }
    let shown = server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    assert_whole(&log);
    let settled = log.iter().filter(|e| e["type"] == "run.settled");
    let outcomes: Vec<&Value> = settled.map(|e| &e["content"]["outcome"]).collect();
    assert_eq!(outcomes, ["succeeded"]);
    assert!(kills >= KILLS / 2, "only {kills} kills fell into the run");
    println!("{checkpoint}: {kills} kills, {} events", log.len());

    // Once per turn, as far as anybody knows: each answer, its cost, each result.
    let of = |kind: &str| log.iter().filter(|e| e["type"] == kind).collect::<Vec<_>>();
    assert_eq!(of("usage.recorded").len(), TURNS + 1);
    let models: BTreeSet<u64> = of("step.started")
        .iter()
        .filter(|e| e["content"]["name"] == "model")
        .map(|e| e["content"]["occurrence"].as_u64().unwrap())
        .collect();
    assert_eq!(models.len(), TURNS + 1);
    let calm_shown = server.get(&format!("/v1/sessions/{calm}")).await;
    assert_eq!(shown["usage"], calm_shown["usage"]);
    assert_eq!(shown["usage"]["input_tokens"], 3 * (TURNS as u64 + 1));

    let calm = server.log(&calm).await;
    let (ours, theirs) = (written(&log), written(&calm));
    for (at, (a, b)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(a, b, "event {at}");
    }
    assert_eq!(ours.len(), theirs.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_killed_thirty_times_leaves_what_it_leaves_unkilled() {
    tokio::join!(
        killed_while_it_works("turn", 7),
        killed_while_it_works("settle", 11)
    );
}
