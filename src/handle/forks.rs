//! Forks and checkpoints of a session, for a host program.

use longhaul_actors::ids::{CheckpointId, SessionId};
use longhaul_actors::session::payload::Selector;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::Arc;

use super::{SessionHandle, asked, read_answer};
use crate::error::Error;
use crate::runtime::{Diff, DiffQuery, ForkSession, ResumeSession};

/// How a session is forked.
#[derive(Debug, Clone, Default)]
pub struct ForkOptions {
    /// Who the child acts as; `None` = as the source.
    pub principal: Option<String>,
    /// The child's pairs; `None` = the source's.
    pub metadata: Option<Map<String, Value>>,
    /// Forking twice with one key gives the same child.
    pub idempotency_key: Option<String>,
}

impl SessionHandle {
    /// Forks the session: a new one with the same past up to and with the selected place, at the
    /// same cost whatever the length of that past.
    ///
    /// # Errors
    /// `event.not_found`, `checkpoint.not_found`, `runtime.checkpoint_expired`…
    pub async fn fork(&self, from: Selector, options: ForkOptions) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Made {
            id: SessionId,
        }
        let body = format!("{from:?} {:?} {:?}", options.principal, options.metadata);
        let path = format!("POST /v1/sessions/{}/fork", self.id);
        let (runtime, key) = (&self.runtime, &options.idempotency_key);
        let asked = asked(runtime, &self.caller, &path, key, &body);
        let fork = ForkSession {
            from,
            principal: options.principal,
            metadata: options.metadata,
        };
        let answer = runtime.fork(asked, self.id, fork).await?;
        let Made { id } = read_answer(&answer.body)?;
        Ok(Self::new(runtime.clone(), Arc::clone(&self.caller), id))
    }

    /// Goes on with the conversation; gives back the session that it goes on in: this one, or a
    /// fork where it goes on from an older checkpoint. A run that failed is continued: its
    /// completed steps are not made again.
    ///
    /// # Errors
    /// `checkpoint.not_found`, `session.not_found` (also for another user's), `session.terminal`…
    pub async fn resume(
        &self,
        resume: ResumeSession,
        idempotency_key: Option<String>,
    ) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Resumed {
            session_id: SessionId,
        }
        let path = format!("POST /v1/sessions/{}/resume", self.id);
        let (runtime, body) = (&self.runtime, format!("{resume:?}"));
        let asked = asked(runtime, &self.caller, &path, &idempotency_key, &body);
        let answer = runtime.resume(asked, self.id, resume).await?;
        let Resumed { session_id } = read_answer(&answer.body)?;
        Ok(Self::new(
            runtime.clone(),
            Arc::clone(&self.caller),
            session_id,
        ))
    }

    /// Compares it with another session: what they share, and what each has of its own.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`, of either.
    pub async fn diff(&self, against: SessionId, query: DiffQuery) -> Result<Diff, Error> {
        let viewer = self.caller.viewer();
        self.runtime.diff(viewer, self.id, against, query).await
    }

    /// Its family, as `GET /v1/sessions/{id}/tree` shows it.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`.
    pub async fn tree(&self) -> Result<Value, Error> {
        self.runtime.tree(self.caller.viewer(), self.id).await
    }

    /// Its checkpoints, newest first.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`.
    pub async fn checkpoints(&self) -> Result<Vec<Value>, Error> {
        let viewer = self.caller.viewer();
        self.runtime.checkpoints(viewer, self.id).await
    }

    /// Exempts a checkpoint from the count, or no longer; the checkpoint as shown.
    ///
    /// # Errors
    /// `checkpoint.not_found`, `checkpoint.pinned_limit`.
    pub async fn pin(&self, checkpoint: CheckpointId, pinned: bool) -> Result<Value, Error> {
        let asked = self.plain("pin");
        let answer = self.runtime.pin(asked, self.id, checkpoint, pinned).await?;
        read_answer(&answer.body)
    }
}
