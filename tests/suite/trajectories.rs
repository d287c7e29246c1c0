//! Two real agent runs, played through the `script` harness: every step is in the log, byte for
//! byte and once, however often the server is killed in between.

use std::time::Duration;

use longhaul_actors::env::Door;
use serde_json::{Value, json};

use crate::support::{Server, assert_whole};

/// Lost attempts are noticed soon, and there are as many as it takes.
const SETTINGS: &[&str] = &[
    "runs.lease_s=1",
    "runs.beat_s=1",
    "runs.backoff_ms_min=10",
    "runs.backoff_ms_max=20",
    "runs.attempts_max=1000",
];
const KILLS: usize = 10;
/// Between two steps, milliseconds: long enough for kills to fall anywhere.
const PAUSE_MS: u64 = 40;

struct Trajectory {
    name: &'static str,
    input: String,
    steps: Vec<Value>,
}

fn trajectories() -> [Trajectory; 2] {
    let texts = [
        (
            "humanevalfix",
            include_str!("../fixtures/trajectories/humanevalfix-python-0.json"),
        ),
        (
            "marshmallow",
            include_str!("../fixtures/trajectories/marshmallow-code__marshmallow-1867.json"),
        ),
    ];
    texts.map(|(name, text)| {
        let read: Value = serde_json::from_str(text).unwrap();
        assert!(read["source"].as_str().unwrap().contains("(MIT)"));
        let input = read["input"].as_str().unwrap().to_owned();
        Trajectory {
            name,
            input,
            steps: read["steps"].as_array().unwrap().clone(),
        }
    })
}

impl Trajectory {
    async fn deploy(&self, server: &Server, pause_ms: u64) -> String {
        let pause = json!({ "sleep_ms": pause_ms });
        let steps: Vec<Value> = self
            .steps
            .iter()
            .flat_map(|step| [pause.clone(), step.clone()])
            .collect();
        server
            .deployment(json!({ "kind": "script", "steps": steps }))
            .await
    }

    async fn play(&self, server: &Server, deployment: &str) -> String {
        let session = server.session(deployment).await;
        server.send(&session, &self.input).await;
        session
    }

    /// The log must hold exactly the trajectory, and one run that took one message.
    async fn check(&self, server: &Server, session: &str) {
        let log = server.log(session).await;
        assert_whole(&log);
        let of = |kind: &str| log.iter().filter(|e| e["type"] == kind).collect::<Vec<_>>();
        assert_eq!(
            of("user.message")[0]["content"]["text"],
            self.input.as_str()
        );
        assert_eq!(of("run.settled").len(), 1, "{}", self.name);
        assert_eq!(of("run.settled")[0]["content"]["outcome"], "succeeded");
        let mut agent = log
            .iter()
            .filter(|e| e["type"].as_str().unwrap().starts_with("agent."));
        for (i, step) in self.steps.iter().enumerate() {
            let mut next = |kind: &str| {
                let event = agent
                    .next()
                    .unwrap_or_else(|| panic!("{} ends before step {i}", self.name));
                assert_eq!(event["type"], kind, "{} step {i}", self.name);
                event.clone()
            };
            if let Some(text) = step.get("say") {
                assert_eq!(next("agent.message")["content"]["text"], *text);
                continue;
            }
            let tool = &step["tool"];
            let used = next("agent.tool_use");
            assert_eq!(used["content"]["name"], tool["name"]);
            assert_eq!(used["content"]["input"], tool["input"]);
            let result = next("agent.tool_result");
            assert_eq!(result["content"]["tool_use_id"], used["id"]);
            assert_eq!(result["content"]["output"], tool["result"]);
        }
        assert_eq!(
            agent.next(),
            None,
            "{}: more than the trajectory",
            self.name
        );
    }
}

/// Random numbers from a printed seed.
struct Dice(u64);

impl Dice {
    #[expect(clippy::print_stdout, reason = "shown when the test fails")]
    fn new() -> Self {
        let given = std::env::var("LONGHAUL_SEED")
            .ok()
            .and_then(|s| s.parse().ok());
        let secret = u128::from_be_bytes(Door::system().ids.secret());
        let seed = given.unwrap_or(secret as u64 | 1);
        println!("seed: LONGHAUL_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[tokio::test]
async fn played_once_every_step_is_there() {
    let server = Server::start(&[]).await;
    for trajectory in trajectories() {
        let deployment = trajectory.deploy(&server, 0).await;
        let session = trajectory.play(&server, &deployment).await;
        server.wait_status(&session, &["idle"]).await;
        trajectory.check(&server, &session).await;
    }
}

#[tokio::test]
async fn killed_at_random_moments_every_step_is_there_once() {
    let mut dice = Dice::new();
    let mut plays = tokio::task::JoinSet::new();
    for trajectory in trajectories() {
        let dice = Dice(dice.below(u64::MAX) | 1);
        plays.spawn(kill_ten_times(trajectory, dice));
    }
    plays.join_all().await;
}

#[expect(clippy::print_stdout, reason = "shown when the test fails")]
async fn kill_ten_times(trajectory: Trajectory, mut dice: Dice) {
    let clock = Door::system().clock;
    let mut server = Server::start(SETTINGS).await;
    let deployment = trajectory.deploy(&server, PAUSE_MS).await;
    let mut kills = 0;
    while kills < KILLS {
        let session = trajectory.play(&server, &deployment).await;
        // A play that ends early is checked, and another one takes the rest of the kills.
        let mut attempt = 0;
        while kills < KILLS {
            match running_after(&server, &session, attempt).await {
                Some(now) => attempt = now,
                None => break,
            }
            // Any moment of the attempt: nothing that could be waited for.
            let moment = Duration::from_micros(dice.below(1_500 * PAUSE_MS));
            clock.sleep_until(clock.mono() + moment).await;
            server.process.kill9().unwrap();
            server.process.restart().await.unwrap();
            kills += 1;
        }
        server.wait_status(&session, &["idle"]).await;
        trajectory.check(&server, &session).await;
        let log = server.log(&session).await;
        let attempts = log.iter().filter(|e| e["type"] == "run.started").count();
        println!(
            "{}: {kills} kills so far, {attempts} attempts",
            trajectory.name
        );
    }
}

/// Waits until an attempt later than `attempt` is at work, or the run is over (`None`).
async fn running_after(server: &Server, session: &str, attempt: u64) -> Option<u64> {
    let mut every = tokio::time::interval(Duration::from_millis(2));
    loop {
        every.tick().await;
        let shown = server.get(&format!("/v1/sessions/{session}")).await;
        let now = shown["run"]["attempt"].as_u64().unwrap_or(0);
        match shown["status"].as_str() {
            Some("running") if now > attempt => return Some(now),
            Some("idle") => return None,
            _ => {}
        }
    }
}
