//! Sessions driven by a runner of the bench's own: how soon a run comes back with its plan, and
//! what a mass of checkpoints does to others when their time is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt};
use longhaul::runtime::Builder;
use longhaul::{Config, NewEvent, NewSession, Runtime, SessionHandle};
use longhaul_actors::dispatch::{RunnerInfo, RunnerTarget, Workspaces};
use longhaul_actors::engine::{ClaimGrant, EventQuery};
use longhaul_actors::env::{Clock, Door, Sleep};
use longhaul_actors::ids::{DeploymentId, RunnerId};
use longhaul_actors::session::command::Bearer;
use longhaul_actors::session::event::EventType;
use longhaul_storage::Order;
use serde_json::{Value, json};

use crate::{Row, quantile};

const RUNNER: RunnerId = RunnerId([7; 16]);
const WAIT: Duration = Duration::from_secs(20);
/// Days until a checkpoint's time is over, and one more.
const OVER_MS: i64 = 31 * 24 * 3_600 * 1_000;

/// The machine's clock, whose wall time can be put ahead.
#[derive(Debug)]
struct Ahead {
    clock: Arc<dyn Clock>,
    by_ms: AtomicI64,
}

impl Clock for Ahead {
    fn wall_ms(&self) -> i64 {
        self.clock.wall_ms() + self.by_ms.load(Ordering::Relaxed)
    }

    fn mono(&self) -> Duration {
        self.clock.mono()
    }

    fn sleep_until(&self, until: Duration) -> Sleep {
        self.clock.sleep_until(until)
    }
}

/// A runtime whose `external` runs the bench drives.
struct Site {
    threads: tokio::runtime::Runtime,
    runtime: Option<Runtime>,
    clock: Arc<Ahead>,
    agent: DeploymentId,
    _folder: tempfile::TempDir,
}

impl Site {
    fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let threads = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let mut config = Config::in_folder(folder.path().join("data"));
        config.sessions.untaken_inputs_max = 1_000_000;
        // When it looks at rows is no part of the figure.
        config.engine.sweep_s = 1;
        let door = Door::system();
        let clock = Arc::new(Ahead {
            clock: Arc::clone(&door.clock),
            by_ms: AtomicI64::new(0),
        });
        let shown: Arc<dyn Clock> = Arc::clone(&clock) as _;
        let door = Door {
            clock: shown,
            ..door
        };
        let builder: Builder = Runtime::builder(config).door(door);
        let deployment = json!({
            "name": "bench", "release": {"instructions": "", "harness": {"kind": "external"}},
            "sandbox": {"provider": "none", "max_duration_seconds": 600},
        });
        let deployment = serde_json::from_value(deployment).unwrap();
        let (runtime, agent) = threads.block_on(async {
            let runtime = builder.open().await.unwrap();
            let runner = RunnerInfo {
                id: RUNNER,
                targets: vec![RunnerTarget::AnyExternal],
                workspaces: Workspaces::All,
                capacity: 1_000,
                draining: false,
            };
            runtime.engine().enrol(runner).await.unwrap();
            let agent = runtime.deploy(&deployment).await.unwrap().id;
            (runtime, agent)
        });
        Self {
            threads,
            runtime: Some(runtime),
            clock,
            agent,
            _folder: folder,
        }
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().unwrap()
    }

    async fn session(&self) -> SessionHandle {
        let new = NewSession::of(self.agent);
        self.runtime().start(new).await.unwrap()
    }

    /// The next run, and the text of its claim as a runner reads it.
    async fn claim(&self) -> (Value, ClaimGrant) {
        let offered = self.runtime().claims(RUNNER, 1, WAIT).await.unwrap();
        let grant = offered.claims.into_iter().next().unwrap();
        (self.runtime().claim_json(&grant).await.unwrap(), grant)
    }

    async fn call(&self, token: &str, verb: &str, body: Value) {
        let body = body.to_string();
        let call = self
            .runtime()
            .claim_call(Bearer::Trusted, token, verb, 0, body.as_bytes());
        call.await.unwrap();
    }

    /// Drives the run that waits: ready, so many checkpoints of a disk each, settled.
    async fn drive(&self, checkpoints: usize) {
        let (claim, grant) = self.claim().await;
        grant.confirm.delivered();
        let token = claim["claim_token"].as_str().unwrap();
        self.call(token, "ready", json!({})).await;
        let keep = (0..checkpoints).map(|n| {
            let snapshot = json!({
                "id": format!("{}-{n}", claim["run_id"].as_str().unwrap()),
                "provider": "bench", "retention": "platform", "bytes": 1_000,
            });
            self.call(token, "checkpoint", json!({"snapshot": snapshot}))
        });
        futures_util::future::join_all(keep).await;
        self.call(token, "settle", json!({"outcome": "succeeded"}))
            .await;
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            self.threads.block_on(runtime.close());
        }
    }
}

/// From a message's acceptance to the claim of its run, as a runner reads it, in a session with a
/// checkpoint and so many messages.
pub(crate) fn resume() -> Vec<Row> {
    let site = Site::open();
    let mut times = Vec::new();
    site.threads.block_on(async {
        let session = site.session().await;
        let text = "x".repeat(1_000);
        for _ in 0..10 {
            let batch: Vec<_> = (0..100).map(|_| NewEvent::message(text.clone())).collect();
            session.submit(&batch, Default::default()).await.unwrap();
        }
        site.drive(1).await;
        for _ in 0..200 {
            session.send("go on").await.unwrap();
            let start = Instant::now();
            let (claim, grant) = site.claim().await;
            times.push(start.elapsed().as_secs_f64() * 1_000.0);
            assert_eq!(claim["resume"]["kind"], "checkpoint");
            grant.confirm.delivered();
            let token = claim["claim_token"].as_str().unwrap();
            site.call(token, "ready", json!({})).await;
            site.call(token, "settle", json!({"outcome": "succeeded"}))
                .await;
        }
    });
    let (p50, p99) = (quantile(&mut times, 0.5), quantile(&mut times, 0.99));
    vec![Row::new(
        "resume at 1,000 messages: from a poll to its claim with the checkpoint's plan, durable",
        format!("p50 {p50:.2} ms, p99 {p99:.2} ms"),
        "≤ 2 ms",
        p50 <= 2.0,
    )]
}

/// 100,000 checkpoints whose time is over at one moment, and somebody else's appends meanwhile.
pub(crate) fn expiry() -> Vec<Row> {
    const SESSIONS: usize = 5_000;
    const EACH: usize = 20;
    let site = Site::open();
    let made = site.threads.block_on(async {
        let made = stream::iter(0..SESSIONS).map(|_| async {
            let session = site.session().await;
            session.send("x").await.unwrap();
            site.drive(EACH).await;
            session
        });
        made.buffer_unordered(64).collect::<Vec<_>>().await
    });
    let other = site.threads.block_on(site.session());
    let text = "x".repeat(1_000);
    let append = || {
        let start = Instant::now();
        let sent = site.threads.block_on(other.send(text.clone()));
        sent.unwrap();
        start.elapsed().as_secs_f64() * 1_000.0
    };
    let mut before: Vec<f64> = (0..3_000).map(|_| append()).collect();
    let start = Instant::now();
    site.clock.by_ms.store(OVER_MS, Ordering::Relaxed);
    let mut during = Vec::new();
    let mut left = made.as_slice();
    while let Some((session, rest)) = left.split_last() {
        if site.threads.block_on(expired(session)) == EACH {
            left = rest;
        } else {
            during.extend((0..200).map(|_| append()));
        }
    }
    let took = start.elapsed().as_secs_f64();
    let (before, during) = (quantile(&mut before, 0.99), quantile(&mut during, 0.99));
    vec![Row::new(
        "100,000 checkpoints over at once: appends meanwhile, one caller",
        format!("p99 {during:.2} ms, before {before:.2} ms; over after {took:.0} s"),
        "p99 < 2 × before",
        during < 2.0 * before,
    )]
}

/// How many checkpoints of a session are said to be over.
async fn expired(session: &SessionHandle) -> usize {
    let query = EventQuery {
        after: None,
        before: None,
        order: Order::Desc,
        limit: 100,
        types: Some(vec![EventType::CheckpointExpired]),
    };
    session.events(query).await.unwrap().events.len()
}
