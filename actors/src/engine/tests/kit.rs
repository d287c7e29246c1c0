//! An engine in a box: a log that can be held or made to fail, a clock that moves when told.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_storage::{
    AppendError, Appended, Health, Log, MemoryLog, Order, PageLimit, Pending, ReadError, StreamId,
    View, Write,
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::code::Rejection;
use crate::dispatch::{RunnerInfo, RunnerTarget, Workspaces};
use crate::engine::{ClaimGrant, Engine, EngineConfig, EventQuery};
use crate::env::ManualWorld;
use crate::ids::{ClaimToken, DeploymentId, HarnessRevision, RunnerId, SandboxRevision, SessionId};
use crate::session::command::{Bearer, Command, Create, Request, Submit};
use crate::session::event::{Author, NewEvent};
use crate::session::input::{Origin, parse_attempt, parse_one};
use crate::session::payload::{Pin, RetentionPolicy, WorkspaceRef};
use crate::session::viewer::Viewer;

/// How long a test waits for something that must come.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) const RUNNER: RunnerId = RunnerId([7; 16]);
/// Sees the whole workspace.
pub(super) const WS: Viewer = Viewer::all(WorkspaceRef::DEFAULT);

/// What the log does with the next appends to a session.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// Refuses, nothing written.
    Refuse(AppendError),
    /// Says that it does not know; `true` = it is written.
    Unknown(bool),
}

type Held = (Write, oneshot::Sender<Result<Appended, AppendError>>);

/// A log in memory whose appends can be counted, held back or made to fail.
pub(super) struct BoxedLog {
    pub(super) inner: Arc<MemoryLog>,
    faults: Mutex<VecDeque<Fault>>,
    held: Mutex<Option<Vec<Held>>>,
    pub(super) appends: AtomicUsize,
    /// How often something was read.
    pub(super) views: AtomicUsize,
}

impl BoxedLog {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryLog::new(),
            faults: Mutex::default(),
            held: Mutex::new(None),
            appends: AtomicUsize::new(0),
            views: AtomicUsize::new(0),
        })
    }

    pub(super) fn fail(&self, fault: Fault) {
        self.faults.lock().unwrap().push_back(fault);
    }

    /// Holds back every append until [`BoxedLog::release`].
    pub(super) fn hold(&self) {
        *self.held.lock().unwrap() = Some(Vec::new());
    }

    pub(super) fn held(&self) -> usize {
        self.held.lock().unwrap().as_ref().map_or(0, Vec::len)
    }

    pub(super) fn release(&self) {
        let held = self.held.lock().unwrap().take().unwrap_or_default();
        for (write, tx) in held {
            let _ = tx.send(now(self.inner.append(write)));
        }
    }
}

impl Log for BoxedLog {
    fn append(&self, write: Write) -> Pending {
        if write.stream.is_none() {
            return self.inner.append(write);
        }
        self.appends.fetch_add(1, Ordering::SeqCst);
        if let Some(held) = self.held.lock().unwrap().as_mut() {
            let (tx, pending) = Pending::new();
            held.push((write, tx));
            return pending;
        }
        match self.faults.lock().unwrap().pop_front() {
            None => self.inner.append(write),
            Some(Fault::Refuse(e)) => Pending::ready(Err(e)),
            Some(Fault::Unknown(written)) => {
                if written {
                    now(self.inner.append(write)).unwrap();
                }
                Pending::ready(Err(AppendError::Unknown {
                    cause: "a test".into(),
                }))
            }
        }
    }

    fn view(&self, f: &mut dyn FnMut(&dyn View)) -> Result<(), ReadError> {
        self.views.fetch_add(1, Ordering::SeqCst);
        self.inner.view(f)
    }

    fn purge(&self, stream: StreamId) -> Result<(), ReadError> {
        self.inner.purge(stream)
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn close(&self) {
        self.inner.close();
    }
}

/// The answer of the log in memory, which is always there.
pub(super) fn now(pending: Pending) -> Result<Appended, AppendError> {
    futures_util::FutureExt::now_or_never(pending).expect("the log in memory never waits")
}

pub(super) struct Boxed {
    pub(super) world: ManualWorld,
    pub(super) log: Arc<BoxedLog>,
    pub(super) engine: Engine,
}

/// Runs a test on an executor that is not the engine's.
pub(super) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE * 3, test)
            .await
            .expect("the test hangs")
    })
}

pub(super) fn config() -> EngineConfig {
    EngineConfig {
        arbiters: 2,
        ..EngineConfig::default()
    }
}

pub(super) fn author() -> Author {
    Author::principal("ann")
}

pub(super) fn request() -> Request {
    Request {
        viewer: WS,
        author: author(),
        request_id: "req".into(),
        receipt: None,
    }
}

pub(super) fn pin() -> Pin {
    Pin {
        agent_deployment: DeploymentId([1; 16]),
        agent_deployment_revision_number: 1,
        harness_revision: HarnessRevision([2; 16]),
        sandbox_profile_revision: SandboxRevision([3; 16]),
        external: true,
        max_duration_seconds: 120,
    }
}

pub(super) fn runner(capacity: u32) -> RunnerInfo {
    RunnerInfo {
        id: RUNNER,
        targets: vec![RunnerTarget::AnyExternal],
        workspaces: Workspaces::All,
        capacity,
        draining: false,
    }
}

impl Boxed {
    pub(super) fn new(config: EngineConfig) -> Self {
        Self::on(ManualWorld::new(1_700_000_000_000), BoxedLog::new(), config)
    }

    pub(super) fn on(world: ManualWorld, log: Arc<BoxedLog>, config: EngineConfig) -> Self {
        let engine = Engine::start(log.clone(), world.door(), config).expect("start");
        Self { world, log, engine }
    }

    /// The same log in a new engine.
    pub(super) async fn restart(self, config: EngineConfig) -> Self {
        self.engine.close().await;
        Self::on(self.world, self.log, config)
    }

    pub(super) async fn create(&self, messages: &[&str]) -> SessionId {
        let id = self.engine.new_session_id();
        self.create_as(id, messages).await.expect("create");
        id
    }

    pub(super) async fn create_as(&self, id: SessionId, m: &[&str]) -> Result<Value, Rejection> {
        self.create_with(id, m, Default::default()).await
    }

    pub(super) async fn create_with(
        &self,
        id: SessionId,
        m: &[&str],
        retention: RetentionPolicy,
    ) -> Result<Value, Rejection> {
        let events = m
            .iter()
            .map(|t| input("user.message", json!({"text": t})))
            .collect();
        let create = Create {
            request: request(),
            principal: "ann".into(),
            pin: pin(),
            metadata: serde_json::Map::new(),
            budget: None,
            retention,
            events,
        };
        self.ask(id, Command::Create(Box::new(create))).await
    }

    pub(super) async fn ask(&self, id: SessionId, command: Command) -> Result<Value, Rejection> {
        let answer = self.engine.command(id, command).await?;
        Ok(serde_json::from_slice(&answer.body).expect("JSON"))
    }

    pub(super) async fn submit(
        &self,
        id: SessionId,
        kind: &str,
        content: Value,
    ) -> Result<Value, Rejection> {
        self.ask(id, submit(kind, content)).await
    }

    pub(super) async fn say(&self, id: SessionId, text: &str) -> Result<Value, Rejection> {
        self.submit(id, "user.message", json!({"text": text})).await
    }

    pub(super) async fn call(
        &self,
        token: ClaimToken,
        verb: &str,
        body: Value,
    ) -> Result<Value, Rejection> {
        let (n, verb) = parse_attempt(verb, body.to_string().as_bytes())?;
        let answer = self
            .engine
            .attempt(Bearer::Trusted, token, n, verb, Duration::ZERO)
            .await?;
        Ok(serde_json::from_slice(&answer.body).expect("JSON"))
    }

    pub(super) async fn write(&self, token: ClaimToken, text: &str) -> Result<Value, Rejection> {
        let event = json!({"type": "agent.message", "content": {"text": text}});
        self.call(token, "events", json!({"events": [event]})).await
    }

    /// Claims one run, delivered.
    pub(super) async fn claim(&self) -> ClaimGrant {
        self.claims(1).await.pop().expect("a claim")
    }

    pub(super) async fn claims(&self, max: usize) -> Vec<ClaimGrant> {
        self.engine
            .claim(RUNNER, max, Duration::from_secs(3_600))
            .await
            .expect("claims")
            .claims
    }

    /// A session whose run is claimed and ready.
    pub(super) async fn running(&self) -> (SessionId, ClaimToken) {
        self.engine.enrol(runner(1_000)).await.expect("enrol");
        let id = self.create(&["hi"]).await;
        let (claimed, token) = self.ready().await;
        assert_eq!(claimed, id);
        (id, token)
    }

    /// Claims a run and says that the claim arrived.
    pub(super) async fn claimed(&self) -> (SessionId, ClaimToken) {
        let grant = self.claim().await;
        grant.confirm.delivered();
        (grant.session, grant.token)
    }

    /// Claims a run and says that its harness is ready.
    pub(super) async fn ready(&self) -> (SessionId, ClaimToken) {
        let (id, token) = self.claimed().await;
        self.call(token, "ready", json!({})).await.expect("ready");
        (id, token)
    }

    pub(super) async fn show(&self, id: SessionId) -> Value {
        self.engine.show(WS, id).await.expect("show")
    }

    /// Types of all events, in order, gap-free.
    pub(super) async fn types(&self, id: SessionId) -> Vec<String> {
        let mut out = Vec::new();
        let mut after = Some(0);
        while let Some(from) = after {
            let page = self
                .engine
                .events(WS, id, query(from))
                .await
                .expect("events");
            for event in &page.events {
                let event: Value = serde_json::from_slice(event).expect("JSON");
                assert_eq!(event["seq"], out.len() + 1);
                out.push(event["type"].as_str().expect("type").to_owned());
            }
            after = page.next_after;
        }
        out
    }

    pub(super) async fn until(&self, id: SessionId, is: impl Fn(&Value) -> bool) -> Value {
        let wait = async {
            loop {
                let shown = self.show(id).await;
                if is(&shown) {
                    return shown;
                }
                tokio::task::yield_now().await;
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(shown) => shown,
            Err(_) => panic!("never: {}", self.show(id).await),
        }
    }
}

pub(super) async fn eventually(is: impl Fn() -> bool) {
    let wait = async {
        while !is() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("it never came");
}

pub(super) fn query(after: u64) -> EventQuery {
    EventQuery {
        after: Some(after),
        before: None,
        order: Order::Asc,
        limit: 1_000,
        types: None,
    }
}

pub(super) fn input(kind: &str, content: Value) -> crate::session::command::Input {
    parse_one(Origin::People, kind, &content.to_string()).expect("a valid event")
}

pub(super) fn submit(kind: &str, content: Value) -> Command {
    let events = vec![input(kind, content)];
    Command::Submit(Submit {
        request: request(),
        expected_seq: None,
        events,
    })
}

pub(super) fn count(types: &[String], kind: &str) -> usize {
    types.iter().filter(|t| *t == kind).count()
}

/// Tables whose rows name the session that they follow from.
const OF_SESSION: [u8; 5] = [
    crate::rows::SESSION,
    crate::rows::LIVE,
    crate::rows::TIMER,
    crate::rows::CHECKPOINT,
    crate::rows::SNAPSHOT_HOLDER,
];

/// Rows and history of a session are what a fold of its log says.
pub(super) fn check(b: &Boxed, id: SessionId) {
    use crate::session::evolve::evolve;
    use crate::session::history::history_rows;
    use crate::session::projection::Projection;
    use crate::session::state::State;
    use crate::session::stored::event_of;

    let everything = PageLimit {
        items_max: 100_000,
        bytes_max: 1 << 30,
    };
    let stream = StreamId(id.0);
    let checked = longhaul_storage::read(&*b.log.inner, |v| {
        let head = v.head(stream)?.expect("a log");
        let mut state = State::new(id);
        let mut history = std::collections::BTreeMap::new();
        for record in v.records(stream, 0, head.last_seq, Order::Asc, everything)? {
            let event = event_of(&record).expect("an event");
            evolve(&mut state, &event);
            let new = NewEvent {
                event,
                content: record.content.clone(),
            };
            for row in history_rows(&state, &new) {
                history.insert((row.kind, row.key), row.value);
            }
        }
        for ((kind, key), value) in history {
            let row = v
                .history_row(stream, kind, key, head.last_seq)?
                .expect("a row");
            assert_eq!(row.value, value, "history kind {kind}");
        }
        let mut rows = Projection::of(&state).rows();
        rows.retain(|(key, _)| OF_SESSION.contains(&key[0]));
        rows.sort();
        let mut found = Vec::new();
        for tag in OF_SESSION {
            let table = v.rows(&crate::rows::table(tag), None, Order::Asc, everything)?;
            let of_id = |key: &[u8]| key.windows(16).any(|w| w == id.0);
            found.extend(table.into_iter().filter(|(key, _)| of_id(key)));
        }
        found.sort();
        assert_eq!(found, rows, "rows of {id} at {}", head.last_seq);
        if let Some((seq, bytes)) = v.state(stream, head.last_seq)? {
            let cached: State = crate::codec::decode(&bytes).expect("a state");
            assert_eq!(cached.last_seq, seq);
        }
        Ok(())
    });
    checked.expect("readable");
}
