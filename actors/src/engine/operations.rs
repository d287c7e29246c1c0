//! Operations on sandboxes from outside a run: the session's part of them.

use bytes::Bytes;
use serde_json::Value;

use super::forks::no_checkpoint;
use super::inner::Intake;
use super::{Answer, Engine};
use crate::code::{Code, Rejection};
use crate::codec;
use crate::ids::{CheckpointId, SessionId};
use crate::reader::Class;
use crate::rows;
use crate::session::actor::recover;
use crate::session::command::{Command, Request};
use crate::session::decide::record;
use crate::session::operation::{Begun, Done, Operate, OperationId, OperationKind, Step};
use crate::session::payload::{Pin, WorkspaceRef};
use crate::session::viewer::Viewer;

impl Engine {
    /// Takes the lock of a session's sandbox.
    ///
    /// # Errors
    /// `runtime.session_busy`, `runtime.paused`, `runtime.already_paused`, `runtime.not_paused`,
    /// `runtime.checkpoint_expired`, `runtime.snapshot_deleted`, `session.*`; those of
    /// [`Engine::command`].
    pub async fn begin_operation(
        &self,
        session: SessionId,
        request: Request,
        kind: OperationKind,
        s_max: u64,
    ) -> Result<(OperationId, Begun), Rejection> {
        let id = OperationId(self.inner.door.ids.secret());
        let ms_max = i64::try_from(s_max.saturating_mul(1_000)).unwrap_or(i64::MAX);
        let step = Step::Begin { id, kind, ms_max };
        let command = Command::Operate(Box::new(Operate { request, step }));
        let answer = self.inner.post(session, command, Intake::External)?;
        let outcome = answer.await.map_err(|_| crate::reader::lost())??;
        let begun = outcome.begun.ok_or_else(crate::reader::lost)?;
        Ok((id, *begun))
    }

    /// Lets go of the lock and writes what came of the operation.
    ///
    /// # Errors
    /// `runtime.session_busy` if it took too long, or a run was queued before a pause; those of
    /// [`Engine::command`].
    pub async fn end_operation(
        &self,
        session: SessionId,
        request: Request,
        id: OperationId,
        done: Done,
    ) -> Result<Answer, Rejection> {
        let result = Box::new(done);
        let step = Step::End { id, result };
        let command = Command::Operate(Box::new(Operate { request, step }));
        self.command(session, command).await
    }

    /// Deletes the bytes behind a checkpoint; the checkpoint stays listed.
    ///
    /// # Errors
    /// `checkpoint.not_found`, `snapshot.shared`; those of [`Engine::command`].
    pub async fn delete_snapshot(
        &self,
        session: SessionId,
        request: Request,
        checkpoint: CheckpointId,
        force: bool,
    ) -> Result<Answer, Rejection> {
        let step = Step::DeleteSnapshot { checkpoint, force };
        let command = Command::Operate(Box::new(Operate { request, step }));
        self.command(session, command).await
    }

    /// The session of a checkpoint.
    ///
    /// # Errors
    /// `checkpoint.not_found`; `runtime.*`.
    pub async fn session_of(&self, checkpoint: CheckpointId) -> Result<SessionId, Rejection> {
        let read = self.inner.read(Class::Page, move |view| {
            view.row(&rows::checkpoint_id(checkpoint))
        });
        let row: Option<Bytes> = read.await?;
        let found = row.and_then(|bytes| codec::decode::<(SessionId, u64)>(&bytes).ok());
        found
            .map(|(session, _)| session)
            .ok_or_else(|| no_checkpoint(checkpoint))
    }

    /// The agent of a session, as pinned.
    ///
    /// # Errors
    /// As [`Engine::show`].
    pub async fn pin(&self, viewer: Viewer, session: SessionId) -> Result<Pin, Rejection> {
        let about = self.state(viewer, session).await?.about;
        about
            .map(|a| a.pin)
            .ok_or_else(|| Code::SessionNotFound.into())
    }

    /// The tenant of a session.
    ///
    /// # Errors
    /// As [`Engine::show`].
    pub async fn workspace_of(&self, session: SessionId) -> Result<WorkspaceRef, Rejection> {
        let read = self
            .inner
            .read(Class::Page, move |view| recover(view, session));
        let about = read.await?.state.about;
        about
            .map(|a| a.workspace)
            .ok_or_else(|| Code::SessionNotFound.into())
    }

    /// The session as runtime control shows it.
    ///
    /// # Errors
    /// As [`Engine::show`].
    pub async fn runtime_record(
        &self,
        viewer: Viewer,
        session: SessionId,
    ) -> Result<Value, Rejection> {
        Ok(record(&*self.state(viewer, session).await?))
    }
}
