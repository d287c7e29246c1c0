//! What these tests share: a runtime with an agent, a model that plays back answers and notes what
//! it was asked, and tools that note what they did.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul::agent::{Approver, StopHook};
use longhaul::config::StorageEngine;
use longhaul::model::{
    Model, ModelAnswer, ModelError, ModelRequest, ModelRoutes, StopReason, ToolCall, ToolSpec,
};
use longhaul::runner::harness::agent::AgentHarness;
use longhaul::runner::sandbox::Exec;
use longhaul::runner::{BoxFuture, Extensions};
use longhaul::tool::{Effects, Tool, ToolError, ToolInput, ToolOutput};
use longhaul::{Config, NewEvent, NewSession, Runtime, SessionHandle};
use longhaul_actors::engine::EventQuery;
use longhaul_actors::ids::{DeploymentId, SessionId};
use longhaul_actors::session::payload::Usage;
use longhaul_actors::transcript::{Block, Message, Role};
use longhaul_storage::Order;
use serde_json::{Value, json};

/// What each answer costs.
pub(super) const EACH: Usage = Usage {
    input_tokens: 10,
    output_tokens: 5,
    cache_read_tokens: 0,
    cache_write_tokens: 0,
    cost_micros: 7,
};

/// A model of recorded answers that notes its requests, and answers nothing where it is held.
#[derive(Debug, Clone)]
pub(super) struct Played {
    name: String,
    answers: Arc<Vec<ModelAnswer>>,
    held: Arc<Mutex<BTreeSet<u64>>>,
    pub(super) asked: Arc<Mutex<Vec<ModelRequest>>>,
}

impl Played {
    pub(super) fn new(answers: Vec<ModelAnswer>) -> Self {
        Self {
            name: "test/played".to_owned(),
            answers: Arc::new(answers),
            held: Arc::default(),
            asked: Arc::default(),
        }
    }

    pub(super) fn named(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// It never answers this call.
    pub(super) fn hold(self, index: u64) -> Self {
        self.held.lock().unwrap().insert(index);
        self
    }

    pub(super) fn let_go(&self) {
        self.held.lock().unwrap().clear();
    }

    pub(super) fn calls(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// The conversation as the call of this number got it.
    pub(super) fn saw(&self, number: usize) -> Vec<Message> {
        self.asked.lock().unwrap()[number].messages.to_vec()
    }
}

impl Model for Played {
    fn name(&self) -> &str {
        &self.name
    }

    fn respond<'a>(
        &'a self,
        request: &'a ModelRequest,
        _: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<ModelAnswer, ModelError>> {
        Box::pin(async move {
            self.asked.lock().unwrap().push(request.clone());
            let index = request.call_index;
            let held = self.held.lock().unwrap().contains(&index);
            if held {
                std::future::pending::<()>().await;
            }
            let index = usize::try_from(index).unwrap();
            let answer = self.answers.get(index).cloned();
            answer.ok_or_else(|| ModelError::Nonsense(format!("no answer {index}")))
        })
    }
}

impl ModelRoutes for Played {
    fn model(&self, _: &str) -> Result<Arc<dyn Model>, ModelError> {
        Ok(Arc::new(self.clone()))
    }
}

/// An answer of words alone.
pub(super) fn says(text: &str) -> ModelAnswer {
    ModelAnswer {
        text: text.to_owned(),
        tool_calls: Vec::new(),
        stop: StopReason::End,
        usage: EACH,
        model: "played".to_owned(),
    }
}

/// An answer that makes calls.
pub(super) fn calls(list: &[(&str, Value)]) -> ModelAnswer {
    let call = |(name, input): &(&str, Value)| ToolCall {
        // Always the same: a bad model's.
        id: "call".to_owned(),
        name: (*name).to_owned(),
        input: input.clone(),
        malformed: None,
    };
    ModelAnswer {
        tool_calls: list.iter().map(call).collect(),
        stop: StopReason::ToolUse,
        ..says("")
    }
}

/// What the tool `note` wrote down, over all attempts.
pub(super) type Notes = Arc<Mutex<Vec<Value>>>;

/// How a test's tool behaves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Way {
    /// Notes its input; the world's.
    Notes,
    /// Runs `{"sh": …}` in the sandbox.
    Shell,
    /// Notes its input, and never ends.
    Hangs,
    Floods,
    Dies,
    Fails,
}

#[derive(Debug, Clone)]
pub(super) struct TestTool {
    spec: ToolSpec,
    way: Way,
    revision: &'static str,
    is_idempotent: bool,
    notes: Notes,
}

impl TestTool {
    pub(super) fn new(name: &str, way: Way, notes: &Notes) -> Self {
        Self {
            spec: ToolSpec {
                name: name.to_owned(),
                description: String::new(),
                input_schema: json!({"type": "object"}),
            },
            way,
            revision: "1",
            is_idempotent: false,
            notes: Arc::clone(notes),
        }
    }

    /// It may be made again.
    pub(super) fn idempotent(mut self) -> Self {
        self.is_idempotent = true;
        self
    }

    pub(super) fn revision_of(mut self, revision: &'static str) -> Self {
        self.revision = revision;
        self
    }
}

impl Tool for TestTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn revision(&self) -> &str {
        self.revision
    }

    fn effects(&self) -> Effects {
        match self.way {
            Way::Shell => Effects::Sandbox,
            _ => Effects::External,
        }
    }

    fn is_idempotent(&self) -> bool {
        self.is_idempotent
    }

    fn call<'a>(&'a self, call: ToolInput<'a>) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            self.notes.lock().unwrap().push(call.input.clone());
            match self.way {
                Way::Notes => Ok(ToolOutput::text(format!("noted {}", call.input))),
                Way::Hangs => std::future::pending().await,
                Way::Floods => Ok(ToolOutput::text("x".repeat(4 << 20))),
                Way::Dies => panic!("as asked"),
                Way::Fails => Err(ToolError {
                    code: "note.full".to_owned(),
                    message: "no room".to_owned(),
                }),
                Way::Shell => {
                    let exec = Exec {
                        command: call.input["sh"].as_str().unwrap().to_owned(),
                        merge_stderr: true,
                        ..Exec::default()
                    };
                    let output = call.sandbox.exec(exec).await.unwrap();
                    let text = String::from_utf8(output.stdout).unwrap();
                    Ok(ToolOutput {
                        exit_code: output.exit_code,
                        ..ToolOutput::text(text)
                    })
                }
            }
        })
    }
}

/// What an agent is made of in a test.
#[derive(Clone)]
pub(super) struct Cast {
    pub(super) model: Played,
    pub(super) tools: Vec<TestTool>,
    pub(super) approver: Option<Arc<dyn Approver>>,
    pub(super) hook: Option<Arc<dyn StopHook>>,
}

impl Cast {
    pub(super) fn new(model: &Played) -> Self {
        Self {
            model: model.clone(),
            tools: Vec::new(),
            approver: None,
            hook: None,
        }
    }

    pub(super) fn tool(mut self, tool: TestTool) -> Self {
        self.tools.push(tool);
        self
    }

    pub(super) fn extensions(&self) -> Extensions {
        let mut harness = AgentHarness::new(Arc::new(self.model.clone()));
        for tool in &self.tools {
            harness = harness.tool(Arc::new(tool.clone()));
        }
        if let Some(approver) = &self.approver {
            harness = harness.approver(Arc::clone(approver));
        }
        if let Some(hook) = &self.hook {
            harness = harness.stop_hook(Arc::clone(hook));
        }
        let mut extensions = Extensions::default();
        extensions.add_harness(Arc::new(harness));
        extensions
    }
}

/// A runtime on a folder, which can be closed in the middle of a run and opened again.
pub(super) struct Stage {
    _folder: tempfile::TempDir,
    config: Config,
    pub(super) runtime: Runtime,
}

impl Stage {
    pub(super) async fn open(cast: &Cast) -> Self {
        Self::open_with(cast.extensions()).await
    }

    pub(super) async fn open_with(extensions: Extensions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::in_folder(folder.path().join("data"));
        config.storage.engine = StorageEngine::Rocksdb;
        config.runs.backoff_ms_min = 1;
        let runtime = open(&config, extensions).await;
        Self {
            _folder: folder,
            config,
            runtime,
        }
    }

    /// Closes the runtime, which gives its runs back, and opens it with another cast.
    pub(super) async fn reopen(self, cast: &Cast) -> Self {
        self.runtime.close().await;
        let runtime = open(&self.config, cast.extensions()).await;
        Self { runtime, ..self }
    }

    /// An agent without a sandbox.
    pub(super) async fn agent(&self, harness: Value) -> DeploymentId {
        self.agent_in("none", "be brief", harness).await
    }

    pub(super) async fn agent_in(
        &self,
        provider: &str,
        instructions: &str,
        harness: Value,
    ) -> DeploymentId {
        let new = deployment(provider, instructions, harness);
        let new = serde_json::from_value(new).unwrap();
        self.runtime.deploy(&new).await.unwrap().id
    }

    pub(super) async fn session(&self, harness: Value) -> SessionHandle {
        let agent = self.agent(harness).await;
        self.runtime.start(NewSession::of(agent)).await.unwrap()
    }

    pub(super) async fn session_in_dir(&self, harness: Value) -> SessionHandle {
        let agent = self.agent_in("dir", "be brief", harness).await;
        self.runtime.start(NewSession::of(agent)).await.unwrap()
    }

    pub(super) fn again(&self, id: SessionId) -> SessionHandle {
        self.runtime.session(id)
    }
}

async fn open(config: &Config, extensions: Extensions) -> Runtime {
    let builder = Runtime::builder(config.clone()).extensions(extensions);
    builder.open().await.unwrap()
}

/// A deployment of an agent; its model is the played one unless the harness says otherwise.
pub(super) fn deployment(provider: &str, instructions: &str, mut harness: Value) -> Value {
    harness["kind"] = json!("agent");
    if harness["model"].is_null() {
        harness["model"] = json!("test/played");
    }
    json!({
        "name": "agent", "sandbox": {"provider": provider, "max_duration_seconds": 120},
        "release": {"instructions": instructions, "harness": harness},
    })
}

/// The whole log of a session.
pub(super) async fn log(session: &SessionHandle) -> Vec<Value> {
    let query = EventQuery {
        after: None,
        before: None,
        order: Order::Asc,
        limit: 1_000,
        types: None,
    };
    let page = session.events(query).await.unwrap();
    let read = |json: &bytes::Bytes| serde_json::from_slice(json).unwrap();
    page.events.iter().map(read).collect()
}

/// Contents of the events of one type.
pub(super) async fn of(session: &SessionHandle, kind: &str) -> Vec<Value> {
    let log = log(session).await;
    let found = log.into_iter().filter(|e| e["type"] == kind);
    found.map(|mut e| e["content"].take()).collect()
}

/// Waits until the log has so many events of a type; the last of them.
pub(super) async fn until(session: &SessionHandle, kind: &str, count: usize) -> Value {
    let wait = async {
        let mut follow = session.follow(0).await.unwrap();
        let mut seen = 0;
        while let Some(event) = follow.next().await {
            let event = event.unwrap();
            // A parked run settles when another one goes on from it: that is no end.
            let is_end = event.content()["outcome"] != "continued";
            seen += usize::from(event.kind.text() == kind && is_end);
            if seen == count {
                return serde_json::from_slice(&event.json).unwrap();
            }
        }
        panic!("the session ended before {count} {kind}");
    };
    let patience = Duration::from_secs(60);
    match tokio::time::timeout(patience, wait).await {
        Ok(event) => event,
        Err(_) => panic!("no {count} {kind} in {:#?}", log(session).await),
    }
}

/// Sends a message and waits for the end of the turn; the content of its `run.settled`.
pub(super) async fn turn(session: &SessionHandle, text: &str) -> Value {
    let settled = of(session, "run.settled").await;
    let settled = settled.iter().filter(|s| s["outcome"] != "continued");
    let settled = settled.count();
    session.send(text).await.unwrap();
    until(session, "run.settled", settled + 1).await["content"].clone()
}

pub(super) async fn send(session: &SessionHandle, kind: &str, content: Value) {
    let event = NewEvent::new(kind, content);
    session
        .submit(&[event], longhaul::handle::SubmitOptions::default())
        .await
        .unwrap();
}

/// Waits until something is so.
pub(super) async fn wait(what: &str, so: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    let mut every = tokio::time::interval(Duration::from_millis(5));
    while !so() {
        every.tick().await;
        assert!(tokio::time::Instant::now() < deadline, "{what}");
    }
}

/// The usage that the session shows.
pub(super) async fn spent(session: &SessionHandle) -> Usage {
    let shown = session.show().await.unwrap();
    serde_json::from_value(shown["usage"].clone()).unwrap()
}

/// So many answers.
pub(super) fn times(n: u64) -> Usage {
    Usage {
        input_tokens: EACH.input_tokens * n,
        output_tokens: EACH.output_tokens * n,
        cost_micros: EACH.cost_micros * n,
        ..Usage::default()
    }
}

/// A conversation without what only a log knows: roles and texts, calls and results.
pub(super) fn plain(messages: &[Message]) -> Vec<String> {
    messages
        .iter()
        .flat_map(|m| m.content.iter().map(|b| (m.role, b)))
        .map(|(role, block)| match block {
            Block::Text { text } => format!("{}: {text}", who(role)),
            Block::Summary { text, .. } => format!("{} summary: {text}", who(role)),
            Block::ToolUse { name, input, .. } => format!("{} calls {name} {input}", who(role)),
            Block::ToolResult {
                output, is_error, ..
            } => match is_error {
                true => format!("{} error: {}", who(role), shown(output)),
                false => format!("{}: {}", who(role), shown(output)),
            },
            Block::Unreadable { event_type, .. } => format!("unreadable {event_type}"),
        })
        .collect()
}

fn who(role: Role) -> &'static str {
    match role {
        Role::User => "user",
        Role::Assistant => "agent",
        Role::Tool => "tool",
    }
}

fn shown(output: &Value) -> String {
    output
        .as_str()
        .map_or_else(|| output.to_string(), str::to_owned)
}
