//! A server in a few lines: one session's log behind [`ClaimApi`], with faults on demand.

mod steps;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use longhaul_actors::env::Door;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::protocol::*;
use super::settings::{IsolationMode, RunnerConfig};
use super::worker::{Registry, Worker};

/// What goes wrong with the next call of a verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is carried out, and its answer is lost.
    AnswerLost,
    /// It never arrives.
    NotReached,
    /// The server is busy.
    Busy,
}

#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) log: Vec<Value>,
    pub(crate) claims: VecDeque<Value>,
    pub(crate) calls: Vec<(String, Value)>,
    pub(crate) faults: VecDeque<(&'static str, Fault)>,
    answers: BTreeMap<(String, u64), CallAnswer>,
    live: Option<String>,
    pub(crate) lost: BTreeMap<String, &'static str>,
    pub(crate) run: u32,
    attempt: u32,
    tokens: u32,
    pub(crate) ended: Option<Value>,
    waiting: Vec<String>,
    chain: u32,
    steps: steps::Steps,
    /// A result that is not kept, and the code of its refusal.
    pub(crate) refused_value: Option<(Value, &'static str)>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct FakeServer {
    world: Arc<Mutex<World>>,
    changed: Arc<Notify>,
}

fn id(prefix: &str, n: usize) -> String {
    format!("{prefix}_{n:032x}")
}

fn refused(status: u16, code: &str, extras: Value) -> ApiError {
    let mut problem = Problem {
        status,
        code: code.to_owned(),
        retryable: status == 503,
        ..Problem::default()
    };
    problem.extras = extras.as_object().cloned().unwrap_or_default();
    ApiError::Refused(Box::new(problem))
}

impl World {
    fn append(&mut self, kind: &str, content: Value) -> String {
        let seq = self.log.len() + 1;
        let event_id = id("evt", seq);
        let run = (!kind.starts_with("user.")).then(|| id("run", self.run as usize));
        self.log.push(json!({
            "seq": seq, "id": event_id, "type": kind, "run_id": run,
            "attempt": self.attempt, "content": content, "content_state": "present",
        }));
        event_id
    }

    pub(crate) fn of(&self, kind: &str) -> Vec<&Value> {
        self.log
            .iter()
            .filter(|e| e["type"] == kind)
            .map(|e| &e["content"])
            .collect()
    }

    fn answered(&self) -> bool {
        let closed = self.of("item.closed");
        self.waiting
            .iter()
            .all(|w| closed.iter().any(|c| c["item_id"] == w.as_str()))
    }

    fn handle(&mut self, verb: &str, body: &Value) -> Result<CallAnswer, ApiError> {
        let ok = |status, body| Ok(CallAnswer { status, body });
        match verb {
            "events" => {
                let list = body["events"].as_array().cloned().unwrap_or_default();
                let add = |e: &Value| json!({"id": self.append(e["type"].as_str().unwrap(), e["content"].clone())});
                let written: Vec<_> = list.iter().map(add).collect();
                ok(202, json!({"events": written}))
            }
            "park" => {
                let ids = body["waiting_on"].as_array().unwrap().iter();
                self.waiting = ids
                    .flat_map(|w| w.as_object().unwrap().values())
                    .filter_map(|v| Some(v.as_str()?.to_owned()))
                    .collect();
                if self.answered() {
                    return ok(200, json!({"state": "ready", "inputs": []}));
                }
                if body["compute"] == "released" {
                    self.live = None;
                    self.ended = Some(json!({"outcome": "continued"}));
                }
                ok(200, json!({"state": "parked"}))
            }
            "inputs" => {
                let done = !self.waiting.is_empty() && self.answered();
                let results = self
                    .log
                    .iter()
                    .filter(|e| done && e["type"] == "user.custom_tool_result");
                ok(200, json!({"inputs": results.cloned().collect::<Vec<_>>()}))
            }
            "settle" | "release" => {
                self.live = None;
                let mut end = body.clone();
                end["verb"] = json!(verb);
                self.ended = Some(end);
                ok(200, json!({}))
            }
            "steps" => self.steps(body),
            "checkpoint" => {
                let mut content = body.clone();
                content["checkpoint_id"] = json!(id("ckpt", self.log.len()));
                content["through_sequence"] = json!(self.log.len());
                self.append("checkpoint.created", content.clone());
                ok(201, content)
            }
            "ready" => {
                self.append("run.started", json!({}));
                ok(200, json!({}))
            }
            _ => ok(200, json!({})),
        }
    }

    fn call(&mut self, token: &str, verb: &str, body: &Value) -> Result<CallAnswer, ApiError> {
        self.calls.push((verb.to_owned(), body.clone()));
        let fault = match self.faults.front() {
            Some((v, _)) if *v == verb => self.faults.pop_front().map(|(_, f)| f),
            _ => None,
        };
        match fault {
            Some(Fault::NotReached) => return Err(ApiError::Unreachable("test".to_owned())),
            Some(Fault::Busy) => return Err(refused(503, "runtime.busy", json!({}))),
            _ => {}
        }
        if let Some(reason) = self.lost.get(token) {
            return Err(refused(
                409,
                "runtime.claim_lost",
                json!({"reason": reason}),
            ));
        }
        let n = body["n"].as_u64();
        let seen = n.and_then(|n| self.answers.get(&(token.to_owned(), n)).cloned());
        let answer = match seen {
            Some(answer) => answer,
            None if self.live.as_deref() != Some(token) => {
                return Err(refused(
                    409,
                    "runtime.claim_lost",
                    json!({"reason": "settled"}),
                ));
            }
            None => {
                let last = self
                    .answers
                    .keys()
                    .filter(|(t, _)| t == token)
                    .map(|(_, n)| *n)
                    .max()
                    .unwrap_or(0);
                if n.is_some_and(|n| n != last + 1) {
                    return Err(refused(
                        409,
                        "claim.out_of_order",
                        json!({"expected": last + 1}),
                    ));
                }
                let answer = self.handle(verb, body)?;
                if let Some(n) = n {
                    self.answers.insert((token.to_owned(), n), answer.clone());
                }
                answer
            }
        };
        if fault == Some(Fault::AnswerLost) {
            Err(ApiError::Unreachable("test".to_owned()))
        } else {
            Ok(answer)
        }
    }
}

impl FakeServer {
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    pub(crate) fn say(&self, text: &str) -> String {
        self.world().append("user.message", json!({"text": text}))
    }

    /// Queues the first attempt of a new run that takes the given messages.
    pub(crate) fn queue(&self, harness: &Value, messages: &[String], continues: bool) {
        let mut world = self.world();
        let before = continues.then(|| id("run", world.run as usize));
        world.run += 1;
        world.chain += u32::from(!continues);
        world.attempt = 0;
        world.append("run.queued", json!({"trigger": {}, "continues": before}));
        drop(world);
        self.requeue(harness, messages);
    }

    /// Queues the next attempt of the same run; `messages` are new inputs.
    pub(crate) fn requeue(&self, harness: &Value, messages: &[String]) {
        let mut world = self.world();
        world.attempt += 1;
        world.tokens += 1;
        world.ended = None;
        let token = format!("clm_{}", world.tokens);
        if let Some(old) = world.live.replace(token.clone()) {
            world.lost.insert(old, "lease");
        }
        if !messages.is_empty() {
            world.append("run.inputs_taken", json!({"event_ids": messages}));
        }
        let run = id("run", world.run as usize);
        let ours = |e: &&Value| e["type"] == "run.inputs_taken" && e["run_id"] == run;
        let taken: Vec<Value> = world
            .log
            .iter()
            .filter(ours)
            .flat_map(|e| e["content"]["event_ids"].as_array().unwrap().clone())
            .collect();
        let inputs: Vec<Value> = world
            .log
            .iter()
            .filter(|e| taken.contains(&e["id"]))
            .cloned()
            .collect();
        let queued = |e: &&Value| e["type"] == "run.queued" && e["run_id"] == run;
        let continues = world
            .log
            .iter()
            .find(queued)
            .map(|e| e["content"]["continues"].clone());
        let claim = json!({
            "claim_token": token, "session_id": id("sess", 1), "run_id": run,
            "attempt": world.attempt, "continues": continues, "lease_ms": 3_000,
            "startup_deadline": "", "deadline": "", "inputs": inputs, "resume": {"kind": "fresh"},
            "deployment": {"release": {"harness": harness}, "sandbox": {"provider": "dir"}},
        });
        world.claims.push_back(claim);
        drop(world);
        self.changed.notify_waiters();
    }

    /// Closes an item as an answer of a person does.
    pub(crate) fn close(&self, kind: &str, content: Value, item: &str) {
        let mut world = self.world();
        world.append(kind, content);
        world.append("item.closed", json!({"item_id": item, "state": "answered"}));
    }

    /// Waits until the attempt has ended; how.
    pub(crate) async fn ended(&self) -> Value {
        self.until(|w| w.ended.clone()).await
    }

    pub(crate) async fn until<T>(&self, mut look: impl FnMut(&World) -> Option<T>) -> T {
        let mut every = tokio::time::interval(Duration::from_millis(5));
        for _ in 0..4_000 {
            every.tick().await;
            if let Some(found) = look(&self.world()) {
                return found;
            }
        }
        panic!(
            "never; log {:#?}\ncalls {:?}",
            self.world().log,
            self.world().calls
        );
    }
}

impl ClaimApi for FakeServer {
    fn enrol(&self) -> BoxFuture<'_, Result<(), ApiError>> {
        async { Ok(()) }.boxed()
    }

    fn claims(&self, max: usize, _: Duration) -> BoxFuture<'_, Result<Vec<Value>, ApiError>> {
        async move {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                let claims: Vec<_> = {
                    let mut world = self.world();
                    let n = world.claims.len().min(max);
                    world.claims.drain(..n).collect()
                };
                if !claims.is_empty() {
                    return Ok(claims);
                }
                changed.await;
            }
        }
        .boxed()
    }

    fn call<'a>(
        &'a self,
        token: &'a str,
        verb: &'a str,
        _: Duration,
        body: &'a Value,
    ) -> BoxFuture<'a, Result<CallAnswer, ApiError>> {
        async move {
            tokio::task::yield_now().await;
            let answer = self.world().call(token, verb, body);
            if verb == "inputs" {
                // As a server that waits for something to bring.
                let short = Duration::from_millis(5);
                let _ = tokio::time::timeout(short, self.changed.notified()).await;
            }
            answer
        }
        .boxed()
    }

    fn events(&self, query: EventsQuery) -> BoxFuture<'_, Result<EventsPage, ApiError>> {
        async move {
            let world = self.world();
            let seq = |e: &Value| e["seq"].as_u64().unwrap();
            // Small pages, and a filter that may leave a page empty.
            let page: Vec<Value> = match query.cursor {
                Cursor::After(after) => world
                    .log
                    .iter()
                    .filter(|e| seq(e) > after)
                    .take(3)
                    .cloned()
                    .collect(),
                Cursor::Before(before) => {
                    let older = world
                        .log
                        .iter()
                        .rev()
                        .filter(|e| before.is_none_or(|b| seq(e) < b));
                    older.take(3).cloned().collect()
                }
            };
            let next = page.last().map(seq);
            let wanted = |e: &Value| {
                query.types.is_empty() || query.types.contains(&e["type"].as_str().unwrap())
            };
            Ok(EventsPage {
                events: page.into_iter().filter(wanted).collect(),
                next,
            })
        }
        .boxed()
    }

    fn drain(&self) -> BoxFuture<'_, Result<(), ApiError>> {
        async { Ok(()) }.boxed()
    }
}

/// A worker on a fake server, with `dir` sandboxes in a folder of its own.
pub(crate) struct Rig {
    pub(crate) server: FakeServer,
    pub(crate) worker: Worker,
    pub(crate) root: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

pub(crate) async fn rig(change: impl FnOnce(&mut Registry)) -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("sandboxes");
    let config = RunnerConfig {
        isolation: IsolationMode::Preferred,
        capacity: 4,
        line_bytes_max: 100_000,
        ..RunnerConfig::default()
    };
    let provider =
        super::sandbox::dir::DirProvider::open(root.clone(), config.clone(), Door::system());
    let mut registry = Registry::built_in();
    registry.add_provider(Arc::new(provider.await.unwrap()));
    change(&mut registry);
    let server = FakeServer::default();
    let worker = Worker::start(Arc::new(server.clone()), registry, config, Door::system());
    Rig {
        server,
        worker,
        root,
        _dir: dir,
    }
}

impl Rig {
    /// The attempts' folders that exist.
    pub(crate) fn folders(&self) -> usize {
        std::fs::read_dir(&self.root)
            .unwrap()
            .filter(|e| e.as_ref().unwrap().path().is_dir())
            .count()
    }
}
