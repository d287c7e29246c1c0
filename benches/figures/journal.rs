//! Durable steps: how many, how fast one alone, and how fast they are replayed.
//!
//! The harness is in this process; so is the runtime, or it is a server in a process of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use longhaul::journal::{Journal, StepError};
use longhaul::load::physical::fdatasync_loop;
use longhaul::runner::http::{HttpApi, Introduction};
use longhaul::runner::{
    Attempt, BoxFuture, End, Failure, Harness, Registry, RunnerConfig, Settlement, Worker,
};
use longhaul::{Config, NewSession, Runtime};
use longhaul_actors::env::Door;
use serde_json::json;
use tokio::sync::{Barrier, mpsc};

use crate::server::Server;
use crate::{Row, quantile};

/// Runs at the same time.
const RUNS: usize = 64;
/// How long steps are counted.
const COUNTED: Duration = Duration::from_secs(10);
/// Steps of the run that is replayed.
const REPLAYED: u32 = 10_000;
/// Steps of one round; bare appends follow for as long as `BARE`.
const ROUND: usize = 1_000;
const BARE: Duration = Duration::from_millis(300);

/// What a step of 1 KiB gives.
fn kilobyte() -> String {
    "x".repeat(1_000)
}

async fn step(journal: &Journal, n: u32) -> Result<(), Failure> {
    let _: String = journal
        .step("work", &n, async || Ok::<_, StepError>(kilobyte()))
        .await?;
    Ok(())
}

/// Steps until told to stop, all runs from the same moment on.
#[derive(Debug)]
struct Busy {
    /// Its kind of harness.
    kind: &'static str,
    begin: Barrier,
    steps: AtomicU64,
    stop: AtomicBool,
}

impl Busy {
    fn new(kind: &'static str) -> Arc<Self> {
        Arc::new(Self {
            kind,
            begin: Barrier::new(RUNS + 1),
            steps: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        })
    }

    /// Steps per second, once all runs are there.
    async fn rate(&self) -> f64 {
        self.begin.wait().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (start, before) = (Instant::now(), self.steps.load(Ordering::Relaxed));
        tokio::time::sleep(COUNTED).await;
        let steps = self.steps.load(Ordering::Relaxed) - before;
        let rate = steps as f64 / start.elapsed().as_secs_f64();
        self.stop.store(true, Ordering::Relaxed);
        rate
    }
}

#[derive(Debug)]
struct BusyHarness(Arc<Busy>);

impl Harness for BusyHarness {
    fn kind(&self) -> &str {
        self.0.kind
    }

    fn run<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<End, Failure>> {
        Box::pin(async move {
            attempt.ready().await?;
            let journal = Journal::open(attempt);
            self.0.begin.wait().await;
            let mut n = 0;
            while !self.0.stop.load(Ordering::Relaxed) {
                step(&journal, n).await?;
                self.0.steps.fetch_add(1, Ordering::Relaxed);
                n += 1;
            }
            Ok(End::Settle(Settlement::succeeded()))
        })
    }
}

/// Steps one after the other, and once more by a second attempt. In turns with the steps it
/// measures bare appends.
#[derive(Debug)]
struct Alone {
    folder: PathBuf,
    said: mpsc::Sender<Said>,
}

/// What it has measured, in milliseconds.
#[derive(Debug)]
enum Said {
    /// The median of a round's steps, and of its bare appends.
    Round { step: f64, bare: f64 },
    /// All steps replayed.
    Replayed(f64),
}

impl Harness for Alone {
    fn kind(&self) -> &str {
        "bench"
    }

    fn run<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<End, Failure>> {
        Box::pin(async move {
            attempt.ready().await?;
            let journal = Journal::open(attempt);
            let first = attempt.claim().attempt == 1;
            let start = Instant::now();
            let mut each = Vec::new();
            for n in 0..REPLAYED {
                let one = Instant::now();
                step(&journal, n).await?;
                each.push(one.elapsed().as_secs_f64() * 1000.0);
                if first && each.len() == ROUND {
                    let step = quantile(&mut each, 0.5);
                    each.clear();
                    let bare = tokio::task::block_in_place(|| fdatasync_loop(&self.folder, BARE));
                    let bare = bare.unwrap().p50_ms;
                    self.said.send(Said::Round { step, bare }).await.unwrap();
                }
            }
            if first {
                return Ok(End::Release);
            }
            let replayed = start.elapsed().as_secs_f64() * 1000.0;
            self.said.send(Said::Replayed(replayed)).await.unwrap();
            Ok(End::Settle(Settlement::succeeded()))
        })
    }
}

fn threads() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// A runtime with the harness, and so many sessions with a run each.
async fn started(folder: &std::path::Path, harness: Arc<dyn Harness>, runs: usize) -> Runtime {
    let kind = harness.kind().to_owned();
    let mut config = Config::in_folder(folder.join("data"));
    config.runner.capacity = u32::try_from(RUNS).unwrap();
    let mut extensions = Registry::default();
    extensions.add_harness(harness);
    let builder = Runtime::builder(config).extensions(extensions);
    let runtime = builder.open().await.unwrap();
    let new = json!({ "name": "bench", "release": { "harness": { "kind": kind } },
        "sandbox": { "provider": "none", "max_duration_seconds": 3_600 } });
    let new = serde_json::from_value(new).unwrap();
    let deployment = runtime.deploy(&new).await.unwrap();
    for _ in 0..runs {
        let session = runtime.start(NewSession::of(deployment.id)).await.unwrap();
        session.send("go").await.unwrap();
    }
    runtime
}

fn in_process() -> f64 {
    let folder = tempfile::tempdir().unwrap();
    threads().block_on(async {
        let busy = Busy::new("bench");
        let harness = Arc::new(BusyHarness(Arc::clone(&busy)));
        let runtime = started(folder.path(), harness, RUNS).await;
        let rate = busy.rate().await;
        runtime.close().await;
        rate
    })
}

fn over_http() -> f64 {
    let mut server = Server::start(&["runner.enabled=false"]);
    let deployment = server.external();
    let create = json!({ "agent_deployment": deployment,
        "events": [{ "type": "user.message", "content": { "text": "go" } }] });
    for _ in 0..RUNS {
        server.post("/v1/sessions", &create);
    }
    let capacity = u32::try_from(RUNS).unwrap();
    let introduction = Introduction {
        name: "bench".to_owned(),
        host_id: "bench".to_owned(),
        capacity,
        snapshot_clone: false,
    };
    let url = server.process.url();
    threads().block_on(async {
        let api = HttpApi::new(&url, None, None, introduction).unwrap();
        api.enrol_with(vec!["*".to_owned()]).await.unwrap();
        // The profile says `external`: driven from elsewhere, that is from here.
        let busy = Busy::new("external");
        let mut registry = Registry::built_in();
        registry.add_harness(Arc::new(BusyHarness(Arc::clone(&busy))));
        let config = RunnerConfig {
            capacity,
            ..RunnerConfig::default()
        };
        let worker = Worker::start(Arc::new(api), registry, config, Door::system());
        let rate = busy.rate().await;
        worker.stop().await;
        rate
    })
}

/// Milliseconds of a step, of a bare append beside it, and of all steps replayed: medians.
fn alone() -> (f64, f64, f64) {
    let folder = tempfile::tempdir().unwrap();
    threads().block_on(async {
        let (said, mut heard) = mpsc::channel(1);
        let harness = Alone {
            folder: folder.path().to_owned(),
            said,
        };
        let runtime = started(folder.path(), Arc::new(harness), 1).await;
        let (mut steps, mut bares) = (Vec::new(), Vec::new());
        let replayed = loop {
            match heard.recv().await.unwrap() {
                Said::Round { step, bare } => {
                    steps.push(step);
                    bares.push(bare);
                }
                Said::Replayed(ms) => break ms,
            }
        };
        runtime.close().await;
        (
            quantile(&mut steps, 0.5),
            quantile(&mut bares, 0.5),
            replayed,
        )
    })
}

pub(crate) fn many() -> Vec<Row> {
    let many = in_process();
    vec![Row::new(
        "durable steps of 1 KiB, 64 runs, in process",
        format!("{many:.0}/s"),
        "≥ 20,000/s",
        many >= 20_000.0,
    )]
}

pub(crate) fn http() -> Vec<Row> {
    let http = over_http();
    vec![Row::new(
        "durable steps of 1 KiB, 64 runs, over HTTP",
        format!("{http:.0}/s"),
        "≥ 8,000/s",
        http >= 8_000.0,
    )]
}

pub(crate) fn one() -> Vec<Row> {
    let (p50, bare, replay) = alone();
    vec![
        Row::new(
            "a step of one run alone: begin and complete",
            format!("p50 {p50:.3} ms; bare {bare:.3} ms: {:.1} ×", p50 / bare),
            "p50 ≤ 3 × bare append + fdatasync",
            p50 <= 3.0 * bare,
        ),
        Row::new(
            "10,000 finished steps replayed",
            format!("{replay:.0} ms"),
            "< 200 ms",
            replay < 200.0,
        ),
    ]
}
