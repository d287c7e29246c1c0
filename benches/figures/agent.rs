//! What the loop of an agent costs beside its model and its tools, and whether a long past makes
//! it dearer. The model and the tool are in this process and answer at once.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul::agent::{self, AgentSpec};
use longhaul::load::physical::fdatasync_loop;
use longhaul::model::{
    Model, ModelAnswer, ModelError, ModelRequest, StopReason, ToolCall, ToolSpec,
};
use longhaul::runner::{Attempt, BoxFuture, End, Failure, Harness, Registry};
use longhaul::tool::{Tool, ToolError, ToolInput, ToolOutput};
use longhaul::{Config, NewSession, Runtime};
use longhaul_actors::session::payload::Usage;
use longhaul_storage::{Log as _, Options, Order, PageLimit, RocksLog, StreamId, read};
use serde_json::json;
use tokio::sync::mpsc;

use crate::forks::bytes_below;
use crate::{Row, quantile};

/// Turns of the run whose history is long: each adds two messages to the conversation.
const LONG: usize = 2_000;
/// Turns of the run whose bytes are counted.
const COUNTED: usize = 200;
/// Turns with about 10 messages before them.
const FEW: Range<usize> = 2..13;
/// Turns with about 1,000.
const MANY: Range<usize> = 460..541;
/// A bare append and fdatasync is measured once in so many turns, in this one of them.
const BARE_EVERY: usize = 100;
const BARE_AT: usize = 50;

/// Answers with a call until it has answered so often; tells when it was asked and had answered.
#[derive(Debug)]
struct Instantly {
    answers: usize,
    folder: PathBuf,
    asked: mpsc::Sender<Asked>,
}

/// A question to the model.
struct Asked {
    at: Instant,
    answered: Instant,
    /// What the process had used by then, in the turns where that is looked at.
    used: Option<Used>,
    /// A bare append of 4 KiB with fdatasync, milliseconds.
    bare_ms: Option<f64>,
}

#[derive(Clone, Copy)]
struct Used {
    cpu_ms: f64,
    resident_kb: f64,
}

impl Model for Instantly {
    fn name(&self) -> &str {
        "bench/instantly"
    }

    fn respond<'a>(
        &'a self,
        request: &'a ModelRequest,
        _: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<ModelAnswer, ModelError>> {
        let at = Instant::now();
        let turn = request.call_index as usize;
        let edges = [
            FEW.start,
            FEW.end - 1,
            MANY.start,
            MANY.end - 1,
            LONG / 4,
            LONG - 1,
        ];
        let used = edges.contains(&turn).then(Used::now);
        let bare_ms = (turn % BARE_EVERY == BARE_AT).then(|| {
            let time = Duration::from_millis(100);
            tokio::task::block_in_place(|| fdatasync_loop(&self.folder, time).unwrap().p50_ms)
        });
        let over = turn + 1 >= self.answers;
        let call = ToolCall {
            id: format!("call_{turn}"),
            name: "look".to_owned(),
            input: json!({ "at": turn }),
            malformed: None,
        };
        let answer = ModelAnswer {
            text: "x".repeat(800),
            tool_calls: if over { Vec::new() } else { vec![call] },
            stop: if over {
                StopReason::End
            } else {
                StopReason::ToolUse
            },
            usage: Usage {
                input_tokens: 1_000,
                output_tokens: 200,
                ..Usage::default()
            },
            model: self.name().to_owned(),
        };
        let answered = Instant::now();
        let _ = self.asked.try_send(Asked {
            at,
            answered,
            used,
            bare_ms,
        });
        Box::pin(std::future::ready(Ok(answer)))
    }
}

/// A tool that gives 200 bytes.
#[derive(Debug)]
struct Look(ToolSpec);

impl Look {
    fn new() -> Self {
        Self(ToolSpec {
            name: "look".to_owned(),
            description: "Looks.".to_owned(),
            input_schema: json!({ "type": "object", "properties": { "at": { "type": "integer" } } }),
        })
    }
}

impl Tool for Look {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn is_idempotent(&self) -> bool {
        true
    }

    fn call<'a>(&'a self, _: ToolInput<'a>) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(std::future::ready(Ok(ToolOutput::text("y".repeat(200)))))
    }
}

#[derive(Debug)]
struct Agent(AgentSpec);

impl Harness for Agent {
    fn kind(&self) -> &str {
        "bench"
    }

    fn run<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<End, Failure>> {
        Box::pin(agent::run(attempt, &self.0))
    }
}

/// What a run of so many turns came to.
struct Ran {
    asked: Vec<Asked>,
    /// By how much the folder grew.
    disk_bytes: u64,
    /// What the log keeps of the run, each record with its header and digests.
    frames_bytes: u64,
}

impl Ran {
    /// Milliseconds between two questions, of these turns.
    fn turns_ms(&self, range: Range<usize>) -> f64 {
        let pairs = self.asked[range].windows(2);
        let mut each: Vec<f64> = pairs
            .map(|pair| (pair[1].at - pair[0].answered).as_secs_f64() * 1000.0)
            .collect();
        quantile(&mut each, 0.5)
    }

    /// Milliseconds of the processors, of all threads, for one of these turns.
    fn cpu_ms(&self, range: Range<usize>) -> f64 {
        let used = |turn: usize| self.asked[turn].used.unwrap().cpu_ms;
        (used(range.end - 1) - used(range.start)) / (range.len() - 1) as f64
    }

    /// Resident kilobytes that a turn adds.
    fn resident_kb(&self) -> f64 {
        let used = |turn: usize| self.asked[turn].used.unwrap().resident_kb;
        (used(LONG - 1) - used(LONG / 4)) / (LONG - 1 - LONG / 4) as f64
    }

    fn bare_ms(&self) -> f64 {
        let mut each: Vec<f64> = self.asked.iter().filter_map(|a| a.bare_ms).collect();
        quantile(&mut each, 0.5)
    }
}

fn ran(turns: usize) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let threads = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let (said, mut heard) = mpsc::channel(turns);
    let folder_of_bare = folder.path().to_owned();
    let model = Instantly {
        answers: turns,
        folder: folder_of_bare,
        asked: said,
    };
    let mut spec = AgentSpec::new("You look.", Arc::new(model)).tool(Arc::new(Look::new()));
    spec.limits.turns_max = u32::MAX;
    let mut extensions = Registry::default();
    extensions.add_harness(Arc::new(Agent(spec)));
    let (asked, session, disk_bytes) = threads.block_on(async {
        let builder = Runtime::builder(Config::in_folder(data.clone())).extensions(extensions);
        let runtime = builder.open().await.unwrap();
        let new = json!({ "name": "bench", "release": { "harness": { "kind": "bench" } },
            "sandbox": { "provider": "none", "max_duration_seconds": 3_600 } });
        let deployment = runtime
            .deploy(&serde_json::from_value(new).unwrap())
            .await
            .unwrap();
        let session = runtime.start(NewSession::of(deployment.id)).await.unwrap();
        let before = bytes_below(&data);
        session.send("go").await.unwrap();
        let mut asked = Vec::new();
        while asked.len() < turns {
            asked.push(heard.recv().await.unwrap());
        }
        while session.show().await.unwrap()["status"] != "idle" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let grown = bytes_below(&data).saturating_sub(before);
        runtime.close().await;
        (asked, session.id(), grown)
    });
    Ran {
        asked,
        disk_bytes,
        frames_bytes: frames_bytes(&data, StreamId(session.0)),
    }
}

/// What the log holds of a stream, each record as its frame.
fn frames_bytes(data: &Path, stream: StreamId) -> u64 {
    /// Of a frame beside header and content: its prefix and two digests.
    const REST_BYTES: usize = 10 + 64;
    let log = RocksLog::open(data, Options::default()).unwrap();
    let page = PageLimit {
        items_max: 1_000,
        bytes_max: 4 << 20,
    };
    let bytes = read(&*log, |view| {
        let last = view.head(stream)?.unwrap().last_seq;
        let (mut after, mut bytes) = (0, 0);
        while after < last {
            for record in view.records(stream, after, last, Order::Asc, page)? {
                bytes += record.header.len() + record.content.len() + REST_BYTES;
                after = record.seq;
            }
        }
        Ok(bytes)
    });
    log.close();
    bytes.unwrap() as u64
}

impl Used {
    /// By this process, all its threads.
    fn now() -> Self {
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        let nanos = threads.map(|thread| {
            let file = thread.unwrap().path().join("schedstat");
            // A thread may have ended meanwhile.
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let first = text.split_whitespace().next();
            first.and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0)
        });
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        let kb = line.split_whitespace().nth(1).unwrap();
        Self {
            cpu_ms: nanos.sum::<f64>() / 1e6,
            resident_kb: kb.parse().unwrap(),
        }
    }
}

pub(crate) fn rows() -> Vec<Row> {
    let counted = ran(COUNTED);
    let long = ran(LONG);
    let (few, many) = (long.turns_ms(FEW), long.turns_ms(MANY));
    let (few_cpu, many_cpu) = (long.cpu_ms(FEW), long.cpu_ms(MANY));
    let bare = long.bare_ms();
    let (early, late) = (counted.turns_ms(1..21), counted.turns_ms(180..200));
    let ratio = counted.disk_bytes as f64 / counted.frames_bytes as f64;
    let frames_kb = long.frames_bytes as f64 / 1024.0 / LONG as f64;
    let resident_kb = long.resident_kb();
    vec![
        Row::new(
            "a turn of an agent beside its model and tool, 10 and 1,000 messages before it",
            format!(
                "p50 {few:.2} and {many:.2} ms ({few_cpu:.2} and {many_cpu:.2} ms of processors; \
                 a bare append + fdatasync {bare:.3} ms)"
            ),
            "< 1 ms",
            few < 1.0 && many < 1.0,
        ),
        Row::new(
            "200 turns of 1 KB of one run: turns 2–20 and 182–200",
            format!("p50 {early:.2} and {late:.2} ms"),
            "alike",
            late < early * 1.3,
        ),
        Row::new(
            "disk of 200 turns of 1 KB, against what the log keeps of them",
            format!(
                "{} against {} bytes a turn: {ratio:.2} ×",
                counted.disk_bytes / COUNTED as u64,
                counted.frames_bytes / COUNTED as u64
            ),
            "≤ 1.5 ×",
            ratio <= 1.5,
        ),
        Row::new(
            "memory that a turn adds, turns 500 to 2,000 of one run",
            format!("{resident_kb:.1} KB; its events in the log are {frames_kb:.1} KB"),
            "≤ 2 × its events",
            resident_kb <= 2.0 * frames_kb,
        ),
    ]
}
