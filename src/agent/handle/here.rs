//! Sessions in a runtime of this process, whose built-in runner does the work.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::dispatch::RunnerTarget;
use longhaul_actors::engine::EventQuery;
use longhaul_actors::ids::{CheckpointId, DeploymentId, IdError, SessionId};
use longhaul_actors::session::event::EventType;
use longhaul_actors::session::payload::WorkspaceRef;
use longhaul_storage::Order;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::place::{Events, LastRun, Resumed, Start};
use super::{AgentError, AgentEvent, Resume};
use crate::agent::AgentSpec;
use crate::auth::Caller;
use crate::catalog::runners::TARGETS_MAX;
use crate::handle::{Accepted, NewEvent, NewSession, SubmitOptions, read_answer};
use crate::runtime::{Asked, Control, ResumeSession, Runtime, receipt_key};

/// Lines of one page of a list.
const PAGE_LEN: usize = 1_000;
const WORKSPACE: WorkspaceRef = WorkspaceRef::DEFAULT;

/// A runtime of this process.
pub(super) struct Here {
    runtime: Runtime,
    /// Whether the runtime is this agent's own.
    owns: bool,
    control: Control,
    name: String,
    spec: Arc<AgentSpec>,
}

impl std::fmt::Debug for Here {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Here")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Here {
    pub(super) fn new(
        runtime: Runtime,
        owns: bool,
        name: &str,
        spec: AgentSpec,
    ) -> Result<Self, AgentError> {
        let control = runtime.control().ok_or_else(|| {
            AgentError::Runner("the runtime has no built-in runner (`runner.enabled`)".to_owned())
        })?;
        Ok(Self {
            runtime,
            owns,
            control,
            name: name.to_owned(),
            spec: Arc::new(spec),
        })
    }

    fn caller(user: Option<&str>) -> Arc<Caller> {
        let mut caller = Caller::dev(WORKSPACE);
        if let Some(user) = user {
            user.clone_into(&mut caller.id);
        }
        Arc::new(caller)
    }

    pub(super) async fn deployments(
        &self,
        page: Option<String>,
    ) -> Result<(Vec<Value>, Option<String>), Rejection> {
        let after = page.map(|p| DeploymentId::parse(&p)).transpose();
        let after = after.map_err(|e: IdError| Rejection::new(Code::IdInvalid, e.to_string()))?;
        let catalog = self.runtime.catalog();
        let found = catalog.list_deployments(WORKSPACE, after, PAGE_LEN).await?;
        Ok((found.items, found.next.map(|id| id.to_string())))
    }

    pub(super) async fn newest(&self, id: DeploymentId) -> Result<Value, Rejection> {
        let catalog = self.runtime.catalog();
        let revision = catalog.revision(WORKSPACE, id, None).await?;
        read_answer(revision.json().as_bytes())
    }

    pub(super) async fn create(&self, new: &Value) -> Result<Value, Rejection> {
        let caller = Self::caller(None);
        let body = new.to_string();
        // Opened twice at the same time, it is one deployment.
        let key = receipt_key(&caller, "agent", &self.name, body.as_bytes());
        let new = described(new)?;
        let catalog = self.runtime.catalog();
        let made = catalog.create_deployment(WORKSPACE, &caller.id, &new, Some(key));
        read_answer(&made.await?.body)
    }

    pub(super) async fn revise(&self, id: DeploymentId, new: &Value) -> Result<Value, Rejection> {
        let new = described(new)?;
        let (catalog, by) = (self.runtime.catalog(), Self::caller(None));
        let made = catalog.create_revision(WORKSPACE, &by.id, id, &new, None);
        read_answer(&made.await?.body)
    }

    pub(super) async fn start(&self, start: Start<'_>) -> Result<SessionId, Rejection> {
        let mut new = NewSession::of(start.deployment).revision(start.revision);
        if let Some(user) = start.user {
            new = new.principal(user);
        }
        if let Some(budget) = start.budget {
            new = new.budget(budget);
        }
        let started = self.runtime.start_as(Self::caller(start.user), new).await?;
        Ok(started.id())
    }

    pub(super) async fn submit(
        &self,
        user: Option<&str>,
        session: SessionId,
        event: &NewEvent,
    ) -> Result<Accepted, Rejection> {
        let session = self.runtime.session_as(Self::caller(user), session);
        let events = std::slice::from_ref(event);
        session.submit(events, SubmitOptions::default()).await
    }

    pub(super) async fn resume(
        &self,
        resume: &Resume,
        from: Option<CheckpointId>,
    ) -> Result<Resumed, Rejection> {
        let asked = Asked {
            caller: Self::caller(resume.user.as_deref()),
            request_id: self.runtime.new_request_id(),
            receipt: None,
        };
        let how = ResumeSession {
            prompt: resume.prompt.clone(),
            from,
            user: resume.user.clone(),
        };
        let answer = self.runtime.resume(asked, resume.session, how).await?;
        read_answer(&answer.body)
    }

    pub(super) async fn show(&self, session: SessionId) -> Result<Value, Rejection> {
        self.runtime.session(session).show().await
    }

    pub(super) async fn checkpoints(&self, session: SessionId) -> Result<Vec<Value>, Rejection> {
        self.runtime.session(session).checkpoints().await
    }

    pub(super) async fn last_run(&self, session: SessionId) -> Result<Option<LastRun>, Rejection> {
        let query = EventQuery {
            after: None,
            before: None,
            order: Order::Desc,
            limit: 1,
            types: Some(vec![EventType::RunQueued]),
        };
        let page = self.runtime.session(session).events(query).await?;
        page.events.first().map(|e| read_answer(e)).transpose()
    }

    pub(super) async fn follow(&self, session: SessionId, after: u64) -> Result<Events, Rejection> {
        let events = self.runtime.session(session).follow(after).await?;
        let events = events.map(|event| match event {
            Ok(event) => read::<AgentEvent>(&event.json),
            Err(refused) => Err(refused.into()),
        });
        Ok(events.boxed())
    }

    /// The built-in runner takes the runs of all revisions of this agent.
    pub(super) async fn serve(&self, id: DeploymentId) -> Result<(), AgentError> {
        let catalog = self.runtime.catalog();
        let mut targets = BTreeSet::new();
        let mut after = None;
        loop {
            let page = catalog
                .list_revisions(WORKSPACE, id, after, PAGE_LEN)
                .await?;
            targets.extend(page.items.iter().filter_map(target));
            match page.next.filter(|_| targets.len() < TARGETS_MAX) {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let (agents, spec) = (&self.control.agents, Arc::clone(&self.spec));
        agents.add(&self.name, spec, targets.into_iter().collect());
        Ok(self.runtime.serve_agents(&self.control).await?)
    }

    pub(super) async fn close(&self) {
        if self.owns {
            return self.runtime.clone().close().await;
        }
        self.control.agents.remove(&self.name, &self.spec);
        if let Err(error) = self.runtime.serve_agents(&self.control).await {
            tracing::debug!(%error, "the runner still asks for runs of an agent that is closed");
        }
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        self.control.agents.remove(&self.name, &self.spec);
        let (runtime, control) = (self.runtime.inner_handle(), self.control.clone());
        self.control.threads.spawn(async move {
            // A runtime that has stopped asks for nothing anyway.
            let _ = runtime.serve_agents(&control).await;
        });
    }
}

/// What a runner that drives this revision advertises.
fn target(revision: &Value) -> Option<RunnerTarget> {
    let text = |key: &str| revision.get(key).and_then(Value::as_str);
    let (harness, sandbox) = (text("harness_revision")?, text("sandbox_profile_revision")?);
    RunnerTarget::parse(&format!("{harness}/{sandbox}")).ok()
}

fn described<T: DeserializeOwned>(new: &Value) -> Result<T, Rejection> {
    // Read as text: parts of a deployment are kept to the byte.
    serde_json::from_str(&new.to_string())
        .map_err(|e| Rejection::new(Code::DeploymentInvalid, e.to_string()))
}

fn read<T: DeserializeOwned>(json: &Bytes) -> Result<T, AgentError> {
    Ok(read_answer(json)?)
}
