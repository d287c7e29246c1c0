//! The developer's face of agents: an [`Agent`] is described in a page, and an [`AgentHandle`] is
//! the same whether its sessions live in a runtime of the program's, in a folder, or on a server
//! elsewhere. Its model and its tools always run in this process.

mod answer;
mod builder;
mod deploy;
mod error;
mod here;
pub(crate) mod hosted;
mod place;
mod resume;
mod there;
mod turn;

use std::sync::Arc;

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::ids::{DeploymentId, SessionId};
use longhaul_actors::session::payload::Budget;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::handle::{Accepted, NewEvent};

pub use answer::{Answer, Outcome, Typed};
pub use builder::{Agent, AgentModel};
pub use error::AgentError;
pub use resume::Resume;
pub use there::Server;
pub use turn::{AgentEvent, Turn};

use place::{Place, Said, Start};

/// Checkpoints that are listed where no limit is given.
pub const CHECKPOINTS_LIMIT: usize = 50;

/// An agent that is open: cheap to clone, usable from any thread.
///
/// While it is open, this process does the work of its sessions. When it is closed or dropped,
/// their runs wait until an agent of this name is open again, in this process or another one.
#[derive(Debug, Clone)]
pub struct AgentHandle {
    parts: Arc<Parts>,
    user: Option<String>,
}

#[derive(Debug)]
struct Parts {
    deployment: DeploymentId,
    revision: u32,
    budget: Option<Budget>,
    place: Place,
}

impl AgentHandle {
    /// For this user: its sessions act as them, and those of others look absent. On a server with
    /// tokens the token must be allowed to.
    #[must_use]
    pub fn as_user(&self, user: impl Into<String>) -> Self {
        Self {
            parts: Arc::clone(&self.parts),
            user: Some(user.into()),
        }
    }

    /// The deployment that its sessions are of.
    pub fn deployment(&self) -> DeploymentId {
        self.parts.deployment
    }

    /// The revision that new sessions get. Instructions that were changed in the code make a new
    /// one; sessions keep theirs.
    pub fn revision(&self) -> u32 {
        self.parts.revision
    }

    /// Starts a session, in which nothing was said yet.
    ///
    /// # Errors
    /// See [`AgentError`].
    pub async fn start(&self) -> Result<SessionId, AgentError> {
        let parts = &self.parts;
        let start = Start {
            deployment: parts.deployment,
            revision: parts.revision,
            budget: parts.budget,
            user: self.user.as_deref(),
        };
        parts.place.start(start).await
    }

    /// Says this in a new session, and waits for the answer.
    ///
    /// # Errors
    /// See [`AgentError`]. A run that fails is an answer: see [`Answer::outcome`].
    pub async fn run(&self, prompt: impl Into<String>) -> Result<Answer, AgentError> {
        self.stream(prompt).await?.answer().await
    }

    /// Says this in a session, and waits for the answer.
    ///
    /// # Errors
    /// As [`AgentHandle::run`]; `session.not_found`, `session.terminal`.
    pub async fn run_in(
        &self,
        session: SessionId,
        prompt: impl Into<String>,
    ) -> Result<Answer, AgentError> {
        self.stream_in(session, prompt).await?.answer().await
    }

    /// As [`AgentHandle::run`], with the answer's text read as JSON. Give the agent the schema of
    /// `T` ([`Agent::output_schema`]), so that its model is held to it.
    ///
    /// # Errors
    /// As [`AgentHandle::run`]; [`AgentError::Unfinished`] if the run did not succeed, and
    /// [`AgentError::Untyped`] if the text is no `T`.
    pub async fn run_typed<T: DeserializeOwned>(
        &self,
        prompt: impl Into<String>,
    ) -> Result<Typed<T>, AgentError> {
        self.run(prompt).await?.typed()
    }

    /// Says this in a new session: the events as they become durable, then the answer.
    ///
    /// # Errors
    /// See [`AgentError`].
    pub async fn stream(&self, prompt: impl Into<String>) -> Result<Turn, AgentError> {
        let session = self.start().await?;
        self.stream_in(session, prompt).await
    }

    /// Says this in a session: the events as they become durable, then the answer.
    ///
    /// # Errors
    /// As [`AgentHandle::run_in`].
    pub async fn stream_in(
        &self,
        session: SessionId,
        prompt: impl Into<String>,
    ) -> Result<Turn, AgentError> {
        let accepted = self.steer(session, prompt).await?;
        let said = accepted.events.first().ok_or(AgentError::Ended)?;
        let said = Said {
            id: said.id,
            seq: said.seq,
        };
        Turn::of_input(self.parts.place.clone(), session, said).await
    }

    /// Goes on with a conversation, and waits for the answer. What was said and done is in the
    /// log: nothing of it is asked, done or paid for again. Where the last run failed, its journal
    /// counts; a run that is under way takes the prompt as a message.
    ///
    /// # Errors
    /// As [`AgentHandle::run_in`]; `checkpoint.not_found`.
    pub async fn resume(&self, resume: Resume) -> Result<Answer, AgentError> {
        self.stream_resume(resume).await?.answer().await
    }

    /// As [`AgentHandle::resume`]: the events as they become durable, then the answer.
    ///
    /// # Errors
    /// As [`AgentHandle::resume`].
    pub async fn stream_resume(&self, mut resume: Resume) -> Result<Turn, AgentError> {
        if resume.user.is_none() {
            resume.user.clone_from(&self.user);
        }
        let resumed = self.parts.place.resume(&resume).await?;
        let said = *resumed.events.first().ok_or(AgentError::Ended)?;
        Turn::of_input(self.parts.place.clone(), resumed.session_id, said).await
    }

    /// Waits for the session's run that is under way, or gives the answer of its last one. Says
    /// nothing: after a crash, this is how to get the answer of a run that goes on by itself.
    ///
    /// # Errors
    /// [`AgentError::NoRun`] if the session never had one; `session.not_found`.
    pub async fn wait(&self, session: SessionId) -> Result<Answer, AgentError> {
        self.stream_last(session).await?.answer().await
    }

    /// As [`AgentHandle::wait`]: the run's events, those that are there already first.
    ///
    /// # Errors
    /// As [`AgentHandle::wait`].
    pub async fn stream_last(&self, session: SessionId) -> Result<Turn, AgentError> {
        self.own(session).await?;
        let place = self.parts.place.clone();
        let run = place.last_run(session).await?.ok_or(AgentError::NoRun)?;
        Turn::of_run(place, session, run).await
    }

    /// The session's checkpoints, newest first: what is known of them, never their contents. At
    /// most `limit`, or [`CHECKPOINTS_LIMIT`].
    ///
    /// # Errors
    /// `session.not_found`.
    pub async fn list_checkpoints(
        &self,
        session: SessionId,
        limit: impl Into<Option<usize>>,
    ) -> Result<Vec<Value>, AgentError> {
        let limit = limit.into().unwrap_or(CHECKPOINTS_LIMIT);
        self.own(session).await?;
        self.parts.place.checkpoints(session, limit).await
    }

    /// Says something, and does not wait: a run that is under way takes it before it asks its
    /// model again; otherwise one starts.
    ///
    /// # Errors
    /// As [`AgentHandle::run_in`].
    pub async fn steer(
        &self,
        session: SessionId,
        text: impl Into<String>,
    ) -> Result<Accepted, AgentError> {
        self.submit(session, NewEvent::message(text)).await
    }

    /// Ends the turn that is under way; the session stays usable.
    ///
    /// # Errors
    /// As [`AgentHandle::run_in`].
    pub async fn interrupt(&self, session: SessionId) -> Result<Accepted, AgentError> {
        self.submit(session, NewEvent::interrupt()).await
    }

    /// Sends a signal: kept until something waits for this name, first in, first out.
    ///
    /// # Errors
    /// As [`AgentHandle::run_in`]; 429 where 64 of the name wait already.
    pub async fn signal(
        &self,
        session: SessionId,
        name: impl Into<String>,
        payload: Value,
    ) -> Result<Accepted, AgentError> {
        let content = json!({"name": name.into(), "payload": payload});
        self.submit(session, NewEvent::new("user.signal", content))
            .await
    }

    /// Submits an event: the answer to an approval, to a question, of a custom tool.
    ///
    /// # Errors
    /// As [`AgentHandle::run_in`], and those of the event.
    pub async fn submit(
        &self,
        session: SessionId,
        event: NewEvent,
    ) -> Result<Accepted, AgentError> {
        self.own(session).await?;
        let user = self.user.as_deref();
        self.parts.place.submit(user, session, &event).await
    }

    /// The session as `GET /v1/sessions/{id}` shows it.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`.
    pub async fn show(&self, session: SessionId) -> Result<Value, AgentError> {
        let shown = self.parts.place.show(session).await?;
        match &self.user {
            Some(user) if shown.get("principal") != Some(&json!(user)) => {
                let detail = format!("there is no session {session} here");
                Err(Rejection::new(Code::SessionNotFound, detail).into())
            }
            _ => Ok(shown),
        }
    }

    /// Refuses another user's session.
    async fn own(&self, session: SessionId) -> Result<(), AgentError> {
        match &self.user {
            Some(_) => self.show(session).await.map(drop),
            None => Ok(()),
        }
    }

    /// Takes no further run; other clones of the handle are closed with it. A runtime that this
    /// agent opened is closed, and runs under way are given back; so they are to a server. In
    /// another runtime they come to their end.
    pub async fn close(self) {
        self.parts.place.close().await;
    }
}
