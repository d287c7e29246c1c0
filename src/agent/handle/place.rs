//! Where the sessions of an agent live.

use std::sync::Arc;

use futures_util::stream::BoxStream;
use longhaul_actors::ids::{DeploymentId, EventId, SessionId};
use longhaul_actors::session::payload::Budget;
use serde::Deserialize;
use serde_json::Value;

use super::deploy::Deployed;
use super::here::Here;
use super::there::There;
use super::{AgentError, AgentEvent, Resume};
use crate::handle::{Accepted, NewEvent};

/// A runtime of this process, or a server.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Here(Arc<Here>),
    There(Arc<There>),
}

/// A session to start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start<'a> {
    pub(super) deployment: DeploymentId,
    pub(super) revision: u32,
    pub(super) budget: Option<Budget>,
    pub(super) user: Option<&'a str>,
}

/// How a conversation went on.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Resumed {
    pub(super) session_id: SessionId,
    pub(super) events: Vec<Said>,
}

/// An event as accepted.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Said {
    pub(super) id: EventId,
    pub(super) seq: u64,
}

/// A run, and the position at which it was queued.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct LastRun {
    pub(super) run_id: String,
    pub(super) seq: u64,
}

/// Events of a session, in order.
pub(super) type Events = BoxStream<'static, Result<AgentEvent, AgentError>>;

/// Calls the same method of either.
macro_rules! either {
    ($self:ident, $place:ident => $call:expr) => {
        match $self {
            Self::Here($place) => $call.await.map_err(AgentError::from),
            Self::There($place) => $call.await,
        }
    };
}

impl Place {
    /// A page of deployments, each with its newest revision; where the next page starts.
    pub(super) async fn deployments(
        &self,
        page: Option<String>,
    ) -> Result<(Vec<Value>, Option<String>), AgentError> {
        either!(self, at => at.deployments(page))
    }

    /// The newest revision.
    pub(super) async fn newest(&self, id: DeploymentId) -> Result<Value, AgentError> {
        either!(self, at => at.newest(id))
    }

    pub(super) async fn create(&self, new: &Value) -> Result<Value, AgentError> {
        either!(self, at => at.create(new))
    }

    pub(super) async fn revise(&self, id: DeploymentId, new: &Value) -> Result<Value, AgentError> {
        either!(self, at => at.revise(id, new))
    }

    pub(super) async fn start(&self, start: Start<'_>) -> Result<SessionId, AgentError> {
        either!(self, at => at.start(start))
    }

    pub(super) async fn submit(
        &self,
        user: Option<&str>,
        session: SessionId,
        event: &NewEvent,
    ) -> Result<Accepted, AgentError> {
        either!(self, at => at.submit(user, session, event))
    }

    pub(super) async fn resume(&self, resume: &Resume) -> Result<Resumed, AgentError> {
        // A name that cannot be one of a checkpoint is found out here.
        let from = resume.checkpoint()?;
        either!(self, at => at.resume(resume, from))
    }

    pub(super) async fn show(&self, session: SessionId) -> Result<Value, AgentError> {
        either!(self, at => at.show(session))
    }

    /// At most `limit`, newest first.
    pub(super) async fn checkpoints(
        &self,
        session: SessionId,
        limit: usize,
    ) -> Result<Vec<Value>, AgentError> {
        let mut all = either!(self, at => at.checkpoints(session))?;
        all.truncate(limit);
        Ok(all)
    }

    /// The newest run.
    pub(super) async fn last_run(&self, session: SessionId) -> Result<Option<LastRun>, AgentError> {
        either!(self, at => at.last_run(session))
    }

    /// Events after a position, history and live.
    pub(super) async fn follow(
        &self,
        session: SessionId,
        after: u64,
    ) -> Result<Events, AgentError> {
        match self {
            Self::Here(here) => Ok(here.follow(session, after).await?),
            Self::There(there) => Ok(There::follow(Arc::clone(there), session, after)),
        }
    }

    /// Begins to do the work of this agent.
    pub(super) async fn serve(&self, deployed: &Deployed) -> Result<(), AgentError> {
        match self {
            Self::Here(here) => here.serve(deployed.id).await,
            Self::There(there) => there.serve(deployed.id),
        }
    }

    pub(super) async fn close(&self) {
        match self {
            Self::Here(here) => here.close().await,
            Self::There(there) => there.close().await,
        }
    }
}
