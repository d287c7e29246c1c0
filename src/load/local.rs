//! The runtime in this process, spoken to with the calls of the protocol.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::engine::EventQuery;
use longhaul_actors::ids::{DeploymentId, RunnerId, SessionId};
use longhaul_actors::session::command::Bearer;
use longhaul_actors::session::payload::WorkspaceRef;
use longhaul_storage::Order;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::http::HttpAnswer;
use super::target::{CLAIM_WAIT, Call, PAGE_EVENTS};
use crate::auth::Caller;
use crate::catalog::deployments::NewDeployment;
use crate::cli::args::LoadArgs;
use crate::cli::exit::CliError;
use crate::config::Config;
use crate::handle::{NewEvent, NewSession, SubmitOptions};
use crate::runtime::{Runtime, claims_body};

/// A runtime of the load's own.
#[derive(Clone)]
pub(crate) struct Local {
    runtime: Runtime,
    caller: Arc<Caller>,
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Local")
    }
}

#[derive(Deserialize)]
struct Create {
    agent_deployment: DeploymentId,
    events: Vec<Submitted>,
}

#[derive(Deserialize)]
struct Events {
    events: Vec<Submitted>,
}

#[derive(Deserialize)]
struct Submitted {
    #[serde(rename = "type")]
    kind: String,
    content: Value,
}

impl From<Submitted> for NewEvent {
    fn from(s: Submitted) -> Self {
        Self::new(s.kind, s.content)
    }
}

impl Local {
    /// Opens one on `data`, without a runner of its own: the load is the runner.
    pub(crate) async fn open(data: &Path, args: &LoadArgs) -> Result<Self, CliError> {
        let mut config = Config::in_folder(data);
        config.runner.enabled = false;
        // A session may take what the load gives it; the limit is not what is measured.
        config.sessions.events_max = 1_000_000_000;
        config.engine.command_queue_len_max = config
            .engine
            .command_queue_len_max
            .max(args.clients as usize * 2);
        let runtime = Runtime::open(config).await?;
        Ok(Self {
            runtime,
            caller: Arc::new(Caller::dev(WorkspaceRef::DEFAULT)),
        })
    }

    /// Stops it.
    pub(crate) async fn close(self) {
        self.runtime.close().await;
    }

    /// One call; a refusal is an answer with its status and code, as over HTTP.
    pub(crate) async fn call(&self, call: Call<'_>, body: &[u8]) -> HttpAnswer {
        match self.answer(call, body).await {
            Ok((status, body)) => HttpAnswer {
                status,
                body: body.to_vec(),
            },
            Err(r) => {
                let info = r.code.info();
                let problem = json!({ "code": info.code, "detail": r.detail, "extras": r.extras });
                HttpAnswer {
                    status: info.status,
                    body: problem.to_string().into_bytes(),
                }
            }
        }
    }

    async fn answer(&self, call: Call<'_>, body: &[u8]) -> Result<(u16, Bytes), Rejection> {
        match call {
            Call::Verb { token, verb } => {
                let answer = self
                    .runtime
                    .claim_call(Bearer::Trusted, token, verb, 0, body)
                    .await?;
                Ok((answer.status, answer.body))
            }
            Call::Deployment => {
                let new: NewDeployment = read(body)?;
                let made = self.runtime.deploy(&new).await?;
                Ok((201, to_bytes(&json!({ "id": made.id }))))
            }
            Call::Create => {
                let create: Create = read(body)?;
                let mut new = NewSession::of(create.agent_deployment);
                for event in create.events {
                    new = new.event(event.into());
                }
                let session = self.runtime.start(new).await?;
                Ok((201, to_bytes(&json!({ "id": session.id() }))))
            }
            Call::Enrol => {
                let new = read(body)?;
                let stored = self
                    .runtime
                    .catalog()
                    .enrol_runner(&self.caller, &new, true, None)
                    .await?;
                Ok((stored.status, stored.body))
            }
            Call::Claims { runner, max } => {
                let runner = RunnerId::parse(runner).map_err(bad_id)?;
                let wait_ms = u64::try_from(CLAIM_WAIT.as_millis()).unwrap_or(u64::MAX);
                let grants = self
                    .runtime
                    .claims_for(&self.caller, runner, max, wait_ms)
                    .await?;
                let body = claims_body(&self.runtime, &grants).await?;
                grants
                    .claims
                    .into_iter()
                    .for_each(|g| g.confirm.delivered());
                Ok((200, body))
            }
            Call::Send { session } => {
                let events: Events = read(body)?;
                let events: Vec<NewEvent> = events.events.into_iter().map(Into::into).collect();
                let session = self.runtime.session(parse(session)?);
                session.submit(&events, SubmitOptions::default()).await?;
                Ok((202, Bytes::new()))
            }
            Call::Page { session, after } => {
                let query = EventQuery {
                    after: Some(after),
                    before: None,
                    order: Order::Asc,
                    limit: PAGE_EVENTS,
                    types: None,
                };
                let page = self.runtime.session(parse(session)?).events(query).await?;
                let mut out = b"{\"events\":[".to_vec();
                out.extend_from_slice(&page.events.join(&b","[..]));
                let next = page.next_after.map_or(Value::Null, Value::from);
                out.extend_from_slice(format!("],\"next_after\":{next}}}").as_bytes());
                Ok((200, out.into()))
            }
            Call::Cancel { session } => {
                self.runtime.session(parse(session)?).cancel().await?;
                Ok((200, Bytes::new()))
            }
        }
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Rejection> {
    serde_json::from_slice(body).map_err(|e| Rejection::new(Code::BodyInvalid, e.to_string()))
}

fn parse(session: &str) -> Result<SessionId, Rejection> {
    SessionId::parse(session).map_err(bad_id)
}

fn bad_id(e: longhaul_actors::ids::IdError) -> Rejection {
    Rejection::new(Code::IdInvalid, e.to_string())
}

fn to_bytes(value: &Value) -> Bytes {
    value.to_string().into()
}
