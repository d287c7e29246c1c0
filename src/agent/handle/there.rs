//! Sessions on a server elsewhere. The work is done in this process, as a runner of that server.

mod follow;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::env::Door;
use longhaul_actors::ids::{CheckpointId, DeploymentId, SessionId};
use reqwest::{Client, Method, RequestBuilder, Response, Url};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::hosted::{HostAgents, HostHarness};
use super::place::{Events, LastRun, Resumed, Start};
use super::{AgentError, Resume};
use crate::agent::AgentSpec;
use crate::config::ModelsConfig;
use crate::handle::{Accepted, NewEvent};
use crate::runner::protocol::Problem;
use crate::runner::remote::{self, RemoteConfig};
use crate::runner::{Registry, RunnerConfig};

const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long one call may take.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Tries of one call that did not reach the server, or was turned away for a moment.
const TRIES_MAX: u32 = 4;
/// First wait between tries; each is twice the one before.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// A server on which an agent's sessions live.
#[derive(Debug, Clone)]
pub struct Server {
    url: String,
    token: Option<String>,
    workspace: Option<String>,
    folder: Option<PathBuf>,
    runner: RunnerConfig,
    pub(super) models: ModelsConfig,
}

impl Server {
    /// The server at `http://host:port`.
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            token: None,
            workspace: None,
            folder: None,
            runner: RunnerConfig::default(),
            models: ModelsConfig::default(),
        }
    }

    /// A token with the scopes `read`, `write` and `run`, where the server has tokens.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The workspace, where the server has no tokens; `default` otherwise.
    #[must_use]
    pub fn workspace(mut self, workspace: impl Into<String>) -> Self {
        self.workspace = Some(workspace.into());
        self
    }

    /// Where sandboxes and their snapshots are kept. Without it they go when the agent is closed,
    /// and runs go on with the conversation and an empty folder.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// How the work is done: how many runs at a time, how isolated…
    #[must_use]
    pub fn runner(mut self, runner: RunnerConfig) -> Self {
        self.runner = runner;
        self
    }

    /// Where models are, for an agent that names one.
    #[must_use]
    pub fn models(mut self, models: ModelsConfig) -> Self {
        self.models = models;
        self
    }
}

/// A server, and the runner in this process.
pub(super) struct There {
    http: Client,
    base: Url,
    server: Server,
    door: Door,
    name: String,
    agents: Arc<HostAgents>,
    /// Why the runner has ended, once it has.
    ended: watch::Sender<Option<String>>,
    runner: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl std::fmt::Debug for There {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("There")
            .field("server", &self.base.as_str())
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl There {
    pub(super) fn new(server: Server, name: &str, spec: AgentSpec) -> Result<Self, AgentError> {
        let base = Url::parse(&server.url).ok();
        let base = base.filter(|u| matches!(u.scheme(), "http" | "https"));
        let base = base.ok_or_else(|| {
            let text = format!("{:?} is no http:// or https:// address", server.url);
            AgentError::Unreachable(text)
        })?;
        let http = Client::builder().connect_timeout(CONNECT_MAX).build();
        let agents = Arc::new(HostAgents::default());
        agents.add(name, Arc::new(spec), Vec::new());
        Ok(Self {
            http: http.map_err(|e| AgentError::Unreachable(e.to_string()))?,
            base,
            server,
            door: Door::system(),
            name: name.to_owned(),
            agents,
            ended: watch::Sender::new(None),
            runner: Mutex::new(None),
        })
    }

    pub(super) async fn deployments(
        &self,
        page: Option<String>,
    ) -> Result<(Vec<Value>, Option<String>), AgentError> {
        let mut query = vec![("limit", "1000".to_owned())];
        query.extend(page.map(|p| ("page", p)));
        let mut body: Value = self.get(&["deployments"], &query).await?;
        let next = body.get("next_page").and_then(Value::as_str);
        let next = next.map(str::to_owned);
        let lines = body.get_mut("deployments").map(Value::take);
        Ok((read(lines.unwrap_or_default())?, next))
    }

    pub(super) async fn newest(&self, id: DeploymentId) -> Result<Value, AgentError> {
        self.get(&["deployments", &id.to_string()], &[]).await
    }

    pub(super) async fn create(&self, new: &Value) -> Result<Value, AgentError> {
        // Opened twice at the same time, it is one deployment.
        let digest = blake3::hash(new.to_string().as_bytes());
        let key = format!("agent-{}", digest.to_hex());
        self.post_once(&["deployments"], new, &key).await
    }

    pub(super) async fn revise(&self, id: DeploymentId, new: &Value) -> Result<Value, AgentError> {
        let path = ["deployments", &id.to_string(), "revisions"];
        self.post(&path, new).await
    }

    pub(super) async fn start(&self, start: Start<'_>) -> Result<SessionId, AgentError> {
        let new = json!({
            "agent_deployment": start.deployment,
            "agent_deployment_revision_number": start.revision,
            "principal": start.user,
            "budget": start.budget,
        });
        let made: Value = self.post(&["sessions"], &new).await?;
        read(made.get("id").cloned().unwrap_or_default())
    }

    pub(super) async fn submit(
        &self,
        _user: Option<&str>,
        session: SessionId,
        event: &NewEvent,
    ) -> Result<Accepted, AgentError> {
        let body = json!({"events": [{"type": event.kind, "content": event.content}]});
        let path = ["sessions", &session.to_string(), "events"];
        self.post(&path, &body).await
    }

    pub(super) async fn resume(
        &self,
        resume: &Resume,
        from: Option<CheckpointId>,
    ) -> Result<Resumed, AgentError> {
        let body = json!({"prompt": resume.prompt, "from": from, "user": resume.user});
        let path = ["sessions", &resume.session.to_string(), "resume"];
        self.post(&path, &body).await
    }

    pub(super) async fn show(&self, session: SessionId) -> Result<Value, AgentError> {
        self.get(&["sessions", &session.to_string()], &[]).await
    }

    pub(super) async fn checkpoints(&self, session: SessionId) -> Result<Vec<Value>, AgentError> {
        let path = ["sessions", &session.to_string(), "checkpoints"];
        let mut body: Value = self.get(&path, &[("limit", "1000".to_owned())]).await?;
        read(
            body.get_mut("checkpoints")
                .map(Value::take)
                .unwrap_or_default(),
        )
    }

    pub(super) async fn last_run(&self, session: SessionId) -> Result<Option<LastRun>, AgentError> {
        let path = ["sessions", &session.to_string(), "events"];
        let query = [
            ("order", "desc".to_owned()),
            ("limit", "1".to_owned()),
            ("types", "run.queued".to_owned()),
        ];
        let body: Value = self.get(&path, &query).await?;
        body.pointer("/events/0").cloned().map(read).transpose()
    }

    pub(super) fn follow(there: Arc<Self>, session: SessionId, after: u64) -> Events {
        follow::Following::start(there, session, after)
    }

    /// Starts the runner.
    pub(super) fn serve(&self, id: DeploymentId) -> Result<(), AgentError> {
        let mut running = self.runner.lock().unwrap_or_else(PoisonError::into_inner);
        let tokio =
            tokio::runtime::Handle::try_current().map_err(|e| AgentError::Runner(e.to_string()))?;
        let made = || tempfile::Builder::new().prefix("longhaul-agent-").tempdir();
        let (folder, temporary) = match &self.server.folder {
            Some(folder) => (folder.clone(), None),
            None => {
                let made = made().map_err(|e| AgentError::Runner(e.to_string()))?;
                (made.path().to_owned(), Some(made))
            }
        };
        let config = RemoteConfig {
            server: self.server.url.clone(),
            token: self.server.token.clone(),
            workspace: self.server.workspace.clone(),
            name: self.name.clone(),
            deployments: vec![id.to_string()],
            data_dir: folder,
            runner: self.server.runner.clone(),
        };
        let mut registry = Registry::built_in();
        registry.add_harness(Arc::new(HostHarness(Arc::clone(&self.agents))));
        let (stop, stopped) = oneshot::channel::<()>();
        let (ended, door) = (self.ended.clone(), self.door.clone());
        let work = async move {
            let told = async {
                // A dropped sender means the same.
                let _ = stopped.await;
            };
            let why = match remote::run(config, registry, door, told).await {
                Ok(()) => "it was closed".to_owned(),
                Err(error) => error.to_string(),
            };
            ended.send_replace(Some(why));
            drop(temporary);
        };
        *running = Some((stop, tokio.spawn(work)));
        Ok(())
    }

    pub(super) async fn close(&self) {
        let running = self.runner.lock();
        let running = running.unwrap_or_else(PoisonError::into_inner).take();
        if let Some((stop, ended)) = running {
            drop(stop);
            if let Err(error) = ended.await {
                tracing::error!(%error, "the agent's runner ended by a panic");
            }
        }
    }

    fn request(&self, method: Method, path: &[&str], query: &[(&str, String)]) -> RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("v1").extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.http.request(method, url);
        if let Some(token) = &self.server.token {
            request = request.bearer_auth(token);
        }
        if let Some(workspace) = &self.server.workspace {
            request = request.header("longhaul-workspace", workspace);
        }
        request
    }

    async fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<T, AgentError> {
        self.call(|| self.request(Method::GET, path, query)).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &Value,
    ) -> Result<T, AgentError> {
        let id = self.door.ids.uuid(self.door.clock.wall_ms());
        let key = format!("{:032x}", u128::from_be_bytes(id));
        self.post_once(path, body, &key).await
    }

    /// A repeated call with this key happens once.
    async fn post_once<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &Value,
        key: &str,
    ) -> Result<T, AgentError> {
        let request = || {
            let request = self.request(Method::POST, path, &[]);
            request.header("idempotency-key", key).json(body)
        };
        self.call(request).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        request: impl Fn() -> RequestBuilder,
    ) -> Result<T, AgentError> {
        let mut pause = PAUSE_MIN;
        for tries in 1.. {
            let (error, again) = match request().timeout(ANSWER_MAX).send().await {
                Ok(response) => match answer(response).await {
                    Ok(body) => return read(body),
                    Err(refused) => refused,
                },
                Err(error) => (AgentError::Unreachable(cause(&error)), true),
            };
            if !again || tries >= TRIES_MAX {
                return Err(error);
            }
            let clock = &self.door.clock;
            clock.sleep_until(clock.mono() + pause).await;
            pause *= 2;
        }
        Err(AgentError::Ended)
    }
}

/// The body, or why there is none and whether the same call may have one later.
async fn answer(response: Response) -> Result<Value, (AgentError, bool)> {
    let status = response.status();
    let body = response.bytes().await;
    let body = body.map_err(|e| (AgentError::Unreachable(cause(&e)), true))?;
    if !status.is_success() {
        // Not every 4xx or 5xx on the way is the server's own.
        let problem: Problem = serde_json::from_slice(&body).unwrap_or_default();
        let again = problem.retryable || (problem.code.is_empty() && status.is_server_error());
        return Err((refused(status.as_u16(), problem), again));
    }
    serde_json::from_slice(&body).map_err(|e| (AgentError::Unreachable(e.to_string()), false))
}

fn refused(status: u16, problem: Problem) -> AgentError {
    let known = Code::ALL.iter().find(|c| c.text() == problem.code);
    match known {
        Some(code) => AgentError::Refused(Rejection {
            code: *code,
            detail: problem.detail,
            extras: problem.extras,
        }),
        None => AgentError::Unreachable(format!("{status} {}: {}", problem.code, problem.detail)),
    }
}

fn read<T: DeserializeOwned>(body: Value) -> Result<T, AgentError> {
    serde_json::from_value(body)
        .map_err(|e| AgentError::Unreachable(format!("the answer makes no sense: {e}")))
}

/// The innermost cause: the outer layers only repeat the URL.
fn cause(error: &reqwest::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
