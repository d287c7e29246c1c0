//! Forks and checkpoints, in process: what they cost, and whether the past makes them dearer.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use longhaul::auth::Caller;
use longhaul::runtime::{Asked, Named};
use longhaul::{Config, NewEvent, NewSession, Runtime, SessionHandle};
use longhaul_actors::engine::EventQuery;
use longhaul_actors::session::payload::{Selector, WorkspaceRef};
use longhaul_storage::Order;
use serde_json::json;

use crate::{Row, quantile};

/// A runtime on a folder of its own, and threads to call it from.
struct Site {
    threads: tokio::runtime::Runtime,
    runtime: Option<Runtime>,
    folder: tempfile::TempDir,
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
        let runtime = threads.block_on(Runtime::open(config)).unwrap();
        Self {
            threads,
            runtime: Some(runtime),
            folder,
        }
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().unwrap()
    }

    fn session(&self, harness: serde_json::Value) -> SessionHandle {
        let deployment = json!({
            "name": "bench", "release": {"instructions": "", "harness": harness},
            "sandbox": {"provider": "dir", "max_duration_seconds": 60},
        });
        let deployment = serde_json::from_value(deployment).unwrap();
        self.threads.block_on(async {
            let agent = self.runtime().deploy(&deployment).await.unwrap();
            let new = NewSession::of(agent.id);
            self.runtime().start(new).await.unwrap()
        })
    }

    /// A session whose log has at least so many events of 1 KiB.
    fn filled(&self, events: usize) -> SessionHandle {
        let session = self.session(json!({"kind": "external"}));
        let text = "x".repeat(1_000);
        self.threads.block_on(async {
            for left in (0..events).step_by(100).map(|at| (events - at).min(100)) {
                let batch: Vec<_> = (0..left).map(|_| NewEvent::message(text.clone())).collect();
                session.submit(&batch, Default::default()).await.unwrap();
            }
        });
        session
    }

    fn timed<T>(&self, work: impl Future<Output = T>) -> (f64, T) {
        let start = Instant::now();
        let out = self.threads.block_on(work);
        (start.elapsed().as_secs_f64() * 1000.0, out)
    }

    fn asked(&self) -> Asked {
        Asked {
            caller: Arc::new(Caller::dev(WorkspaceRef::DEFAULT)),
            request_id: self.runtime().new_request_id(),
            receipt: None,
        }
    }

    fn bytes(&self) -> u64 {
        bytes_below(self.folder.path())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            self.threads.block_on(runtime.close());
        }
    }
}

pub(crate) fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap();
    let of = |entry: std::fs::DirEntry| {
        let about = entry.metadata().unwrap();
        if about.is_dir() {
            bytes_below(&entry.path())
        } else {
            about.len()
        }
    };
    entries.map(|e| of(e.unwrap())).sum()
}

/// Forks of a short and of a long session in turns, and a chain of forks.
pub(crate) fn forks() -> Vec<Row> {
    let site = Site::open();
    let (short, long) = (site.filled(10), site.filled(100_000));
    let (mut of_short, mut of_long) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        for (session, times) in [(&short, &mut of_short), (&long, &mut of_long)] {
            let fork = session.fork(Selector::Head, Default::default());
            times.push(site.timed(fork).0);
        }
    }
    let mut rows = Vec::new();
    for (what, mut times) in [("10", of_short), ("100,000", of_long)] {
        let (p50, p99) = (quantile(&mut times, 0.5), quantile(&mut times, 0.99));
        rows.push(Row::new(
            format!("fork of a session of {what} events, durable"),
            format!("p50 {p50:.2} ms, p99 {p99:.2} ms"),
            "< 1 ms, both alike",
            p50 < 1.0,
        ));
    }
    rows.push(chain(&site));
    rows
}

/// Reads 1,000 events of a session and of the hundredth fork of a fork.
fn chain(site: &Site) -> Row {
    let source = site.filled(1_000);
    let mut last = source.clone();
    for _ in 0..100 {
        let fork = last.fork(Selector::Seq(900), Default::default());
        last = site.timed(fork).1.unwrap();
    }
    let (mut plain, mut forked) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        for (session, times) in [(&source, &mut plain), (&last, &mut forked)] {
            let query = EventQuery {
                after: None,
                before: None,
                order: Order::Asc,
                limit: 900,
                types: None,
            };
            times.push(site.timed(session.events(query)).0);
        }
    }
    let (plain, forked) = (quantile(&mut plain, 0.5), quantile(&mut forked, 0.5));
    Row::new(
        "900 events of the 100th fork of a fork, read",
        format!("{forked:.2} ms; of the session itself {plain:.2} ms"),
        "as fast",
        forked < plain * 1.2,
    )
}

/// Checkpoints of a disk that did not change, after few and after many messages.
pub(crate) fn checkpoints() -> Vec<Row> {
    let site = Site::open();
    let mut rows = Vec::new();
    for messages in [10, 10_000] {
        let session = site.session(json!({"kind": "script", "steps": [{"say": "ok"}]}));
        site.threads.block_on(async {
            session.send("x").await.unwrap();
            let mut follow = session.follow(0).await.unwrap().until_boundary();
            while follow.next().await.is_some() {}
            // Many more, which one run takes.
            let text = "x".repeat(1_000);
            for _ in 0..messages / 100 {
                let batch: Vec<_> = (0..100).map(|_| NewEvent::message(text.clone())).collect();
                session.submit(&batch, Default::default()).await.unwrap();
            }
            while session.show().await.unwrap()["status"] != "idle" {
                tokio::task::yield_now().await;
            }
        });
        let take = || {
            let asked = site.asked();
            site.runtime()
                .checkpoint_runtime(asked, session.id(), Named::default())
        };
        let mut times = Vec::new();
        site.timed(take()).1.unwrap();
        let before = site.bytes();
        for _ in 0..200 {
            let (ms, taken) = site.timed(take());
            taken.unwrap();
            times.push(ms);
        }
        let each = (site.bytes().saturating_sub(before)) / 200;
        let p50 = quantile(&mut times, 0.5);
        rows.push(Row::new(
            format!("checkpoint of an unchanged disk after {messages} messages"),
            format!("p50 {p50:.2} ms, {each} bytes of log and rows"),
            "<= 1 ms, <= 2 KB",
            p50 <= 1.0 && each <= 2_048,
        ));
    }
    rows.extend(turns());
    rows
}

/// 200 turns of 1 KB of text, with a checkpoint of each and without.
fn turns() -> Vec<Row> {
    let mut bytes = Vec::new();
    let mut rows = Vec::new();
    for mode in ["settle", "off"] {
        let site = Site::open();
        let steps = json!([{"say": "{{input}}"}]);
        let session = site.session(json!({"kind": "script", "steps": steps, "checkpoint": mode}));
        let before = site.bytes();
        let mut times = Vec::new();
        let text = "x".repeat(1_000);
        for _ in 0..200 {
            let turn = async {
                let at = session.send(text.clone()).await.unwrap();
                let seq = at.events.last().map_or(0, |e| e.seq);
                let mut follow = session.follow(seq).await.unwrap().until_boundary();
                while follow.next().await.is_some() {}
            };
            times.push(site.timed(turn).0);
        }
        bytes.push(site.bytes().saturating_sub(before) / 200);
        let (first, last) = (
            quantile(&mut times[1..20].to_vec(), 0.5),
            quantile(&mut times[181..].to_vec(), 0.5),
        );
        rows.push(Row::new(
            format!("200 turns of 1 KB, checkpoint `{mode}`: turns 2–20 and 182–200"),
            format!("p50 {first:.1} and {last:.1} ms"),
            "alike",
            last < first * 1.3,
        ));
    }
    let more = bytes[0].saturating_sub(bytes[1]);
    rows.push(Row::new(
        "disk that a checkpoint of each of 200 turns costs, a turn",
        format!("{more} bytes ({} with, {} without)", bytes[0], bytes[1]),
        "<= 2 KB",
        more <= 2_048,
    ));
    rows
}
