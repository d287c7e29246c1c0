//! Runtime control: operations on the sandbox of a session between its runs.
//!
//! Each takes the session's lock, gets the sandbox (the one that the operation before left, or
//! one made from the newest checkpoint), works on it, and leaves it attached. The work runs on
//! the runner's own threads, so that a caller who goes away leaves no lock behind.

mod between;
mod turns;
mod work;

use std::sync::Arc;

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::engine::operations::Opened;
use longhaul_actors::engine::{Answer, ForkRequest, no_checkpoint};
use longhaul_actors::env::Door;
use longhaul_actors::ids::{CheckpointId, RunnerId, SessionId};
use longhaul_actors::limits::Limits;
use longhaul_actors::session::checkpoints::DIR;
use longhaul_actors::session::decide::check_metadata;
use longhaul_actors::session::operation::{Done, OperationKind};
use longhaul_actors::session::payload::{Began, Selector};
use serde_json::{Map, Value, json};

use super::{Asked, Runtime};
use crate::agent::handle::hosted::HostAgents;
use crate::runner::attached::Attached;
use crate::runner::sandbox::{Exec, ExecOutput, SandboxError, SandboxProvider};
pub(crate) use turns::Turns;
use work::Work;

/// Longest time of one operation, seconds.
pub const OPERATION_S_MAX: u64 = 300;
/// Largest file that is read whole, bytes.
pub const FILE_BYTES_MAX: usize = 16 << 20;

/// What operations need of the built-in runner.
#[derive(Debug, Clone)]
pub(crate) struct Control {
    pub(crate) provider: Arc<dyn SandboxProvider>,
    pub(crate) attached: Arc<Attached>,
    pub(crate) runner: RunnerId,
    /// Agents of the host's own that it drives.
    pub(crate) agents: Arc<HostAgents>,
    pub(crate) threads: tokio::runtime::Handle,
    pub(crate) door: Door,
}

/// What is said of a checkpoint that is asked for.
#[derive(Debug, Clone, Default)]
pub struct Named {
    /// For people.
    pub name: Option<String>,
    /// Caller's pairs.
    pub metadata: Map<String, Value>,
}

impl Named {
    /// Holds them to the limits of metadata; a name is as long as a value at most.
    fn check(&self, limits: &Limits) -> Result<(), Rejection> {
        check_metadata(&self.metadata, limits)?;
        let max = limits.metadata_value_bytes_max;
        if self
            .name
            .as_ref()
            .is_some_and(|n| n.is_empty() || n.len() > max)
        {
            let detail = format!("`name` has 1 to {max} bytes");
            return Err(Rejection::new(Code::FieldInvalid, detail));
        }
        Ok(())
    }
}

/// What an operation gave, and the disk it worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used<T> {
    /// What it gave.
    pub value: T,
    /// What the disk began as, where that was not the disk that the session had last.
    pub began: Option<Began>,
}

impl From<SandboxError> for Rejection {
    fn from(e: SandboxError) -> Self {
        let code = match &e {
            SandboxError::PathInvalid(_) => Code::SandboxPathInvalid,
            SandboxError::NotFound(_) => Code::SandboxNotFound,
            SandboxError::TooLarge { .. } => Code::SandboxTooLarge,
            SandboxError::Unsupported(_) => Code::UnsupportedBackend,
            SandboxError::ExecInvalid(_) => Code::FieldInvalid,
            SandboxError::SnapshotUnusable(_) => Code::CheckpointRejected,
            SandboxError::SnapshotUnreadable(_) => Code::SnapshotUnreadable,
            SandboxError::Full(_) => Code::StorageFull,
            SandboxError::SnapshotRefused(_) => Code::SnapshotRefused,
            SandboxError::Gone => Code::SandboxGone,
            SandboxError::Failed(_) => Code::SandboxFailed,
        };
        Self::new(code, e.to_string())
    }
}

impl Runtime {
    /// Keeps the disk of a session as it is now.
    ///
    /// # Errors
    /// `runtime.session_busy`, `runtime.paused`, `runtime.unsupported_backend`, `session.*`,
    /// `runtime.snapshot_unreadable`, `storage.full`, `sandbox.failed`.
    pub async fn checkpoint_runtime(
        &self,
        asked: Asked,
        session: SessionId,
        named: Named,
    ) -> Result<Answer, Rejection> {
        named.check(&self.config().limits())?;
        let work = self.work(asked, session).await?.in_turn().await;
        work.spawn(|work| work.keep(OperationKind::Checkpoint, named))
            .await
    }

    /// Keeps the disk and lets the sandbox go; the session waits for [`Runtime::resume_runtime`].
    ///
    /// # Errors
    /// As [`Runtime::checkpoint_runtime`], and `runtime.already_paused`.
    pub async fn pause_runtime(
        &self,
        asked: Asked,
        session: SessionId,
        named: Named,
    ) -> Result<Answer, Rejection> {
        named.check(&self.config().limits())?;
        let work = self.work(asked, session).await?.in_turn().await;
        work.spawn(|work| work.keep(OperationKind::Pause, named))
            .await
    }

    /// Brings a paused session back, with its disk.
    ///
    /// # Errors
    /// `runtime.not_paused`, `runtime.checkpoint_expired`, `runtime.snapshot_deleted`; as
    /// [`Runtime::checkpoint_runtime`].
    pub async fn resume_runtime(
        &self,
        asked: Asked,
        session: SessionId,
    ) -> Result<Answer, Rejection> {
        let work = self.work(asked, session).await?.in_turn().await;
        work.spawn(Work::resume).await
    }

    /// Ends a session as done and lets its sandbox go; its checkpoints stay. Works with any
    /// sandbox.
    ///
    /// # Errors
    /// `session.run_live`, `runtime.session_busy`, `session.*`.
    pub async fn close_runtime(
        &self,
        asked: Asked,
        session: SessionId,
    ) -> Result<Answer, Rejection> {
        let (engine, request) = (self.engine(), asked.request());
        let _turn = self.turns().wait(request.receipt).await;
        let begun = engine.begin_operation(
            session,
            request.clone(),
            OperationKind::Close,
            OPERATION_S_MAX,
        );
        let id = match begun.await? {
            Opened::Begun(id, _) => id,
            Opened::Answered(first) => return Ok(first),
        };
        self.let_go(session).await;
        let done = Done {
            succeeded: true,
            ..Done::default()
        };
        engine.end_operation(session, request, id, done).await
    }

    /// Runs a command.
    ///
    /// # Errors
    /// As [`Runtime::checkpoint_runtime`]; `sandbox.path_invalid` for the folder,
    /// `request.field_invalid` for a command or an environment that cannot be run.
    pub async fn exec_runtime(
        &self,
        asked: Asked,
        session: SessionId,
        exec: Exec,
    ) -> Result<Used<ExecOutput>, Rejection> {
        exec.check()?;
        let work = self.work(asked, session).await?;
        work.spawn(|work| async move {
            work.used(|sandbox| async move { sandbox.exec(exec).await })
                .await
        })
        .await
    }

    /// Reads a file, at most [`FILE_BYTES_MAX`] long.
    ///
    /// # Errors
    /// As [`Runtime::checkpoint_runtime`]; `sandbox.path_invalid`, `sandbox.not_found`,
    /// `sandbox.file_too_large`.
    pub async fn read_runtime_file(
        &self,
        asked: Asked,
        session: SessionId,
        path: String,
    ) -> Result<Used<Vec<u8>>, Rejection> {
        let work = self.work(asked, session).await?;
        work.spawn(|work| async move {
            work.used(|sandbox| async move { sandbox.read_file(path, FILE_BYTES_MAX).await })
                .await
        })
        .await
    }

    /// Writes a file, making the folders on the way.
    ///
    /// # Errors
    /// As [`Runtime::checkpoint_runtime`]; `sandbox.path_invalid`.
    pub async fn write_runtime_file(
        &self,
        asked: Asked,
        session: SessionId,
        path: String,
        bytes: Vec<u8>,
    ) -> Result<Used<()>, Rejection> {
        let work = self.work(asked, session).await?;
        work.spawn(|work| async move {
            work.used(|sandbox| async move { sandbox.write_file(path, bytes).await })
                .await
        })
        .await
    }

    /// Starts a new session from a checkpoint: its conversation and its disk. The source is left
    /// as it is, whatever it does. Answers the child and the source.
    ///
    /// # Errors
    /// `checkpoint.not_found`, `runtime.checkpoint_expired`, `runtime.snapshot_deleted`,
    /// `runtime.no_eligible_runner`; those of a fork.
    pub async fn checkout_runtime(
        &self,
        asked: Asked,
        checkpoint: CheckpointId,
        conversation_id: Option<String>,
        sender_id: Option<String>,
    ) -> Result<(Value, SessionId), Rejection> {
        let source = self.session_of(&asked, checkpoint).await?;
        let viewer = asked.caller.viewer();
        let said = [
            ("conversation_id", conversation_id),
            ("sender_id", sender_id),
        ];
        let metadata: Map<String, Value> = said
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), json!(value?))))
            .collect();
        let fork = ForkRequest {
            request: asked.request(),
            source,
            selector: Selector::CheckpointId(checkpoint),
            principal: None,
            metadata: Some(metadata),
            prompt: None,
        };
        let child = self.engine().fork(fork).await?;
        let child: Value = serde_json::from_slice(&child.body)
            .map_err(|e| Rejection::new(Code::Internal, e.to_string()))?;
        let id = child.get("id").and_then(Value::as_str).unwrap_or_default();
        let id = SessionId::parse(id).map_err(|e| Rejection::new(Code::Internal, e.to_string()))?;
        Ok((self.engine().runtime_record(viewer, id).await?, source))
    }

    /// Deletes the bytes behind a checkpoint; it stays listed.
    ///
    /// # Errors
    /// `checkpoint.not_found`, `snapshot.shared`.
    pub async fn delete_runtime_snapshot(
        &self,
        asked: Asked,
        checkpoint: CheckpointId,
        force: bool,
    ) -> Result<Answer, Rejection> {
        let session = self.session_of(&asked, checkpoint).await?;
        let (engine, request) = (self.engine(), asked.request());
        engine
            .delete_snapshot(session, request, checkpoint, force)
            .await
    }

    /// The session of a checkpoint, where there is one for the caller.
    async fn session_of(
        &self,
        asked: &Asked,
        checkpoint: CheckpointId,
    ) -> Result<SessionId, Rejection> {
        let session = self.engine().session_of(checkpoint).await?;
        match self.engine().pin(asked.caller.viewer(), session).await {
            Ok(_) => Ok(session),
            Err(e) if e.code == Code::SessionNotFound => Err(no_checkpoint(checkpoint)),
            Err(e) => Err(e),
        }
    }

    async fn work(&self, asked: Asked, session: SessionId) -> Result<Work, Rejection> {
        self.work_with(self.control(), asked, session).await
    }

    /// The session must have a sandbox that the built-in runner makes.
    async fn work_with(
        &self,
        control: Option<Control>,
        asked: Asked,
        session: SessionId,
    ) -> Result<Work, Rejection> {
        let workspace = asked.caller.workspace;
        let pin = self.engine().pin(asked.caller.viewer(), session).await?;
        let unsupported = |why: &str| Rejection::new(Code::UnsupportedBackend, why);
        let revision = self
            .catalog()
            .revision(
                workspace,
                pin.agent_deployment,
                Some(pin.agent_deployment_revision_number),
            )
            .await?;
        let revision: Value = serde_json::from_str(&revision.json())
            .map_err(|e| Rejection::new(Code::Internal, e.to_string()))?;
        let profile = revision.get("sandbox").cloned().unwrap_or_default();
        if pin.external || profile.get("provider").and_then(Value::as_str) != Some(DIR) {
            return Err(unsupported("the server makes no sandbox for this session"));
        }
        let Some(control) = control else {
            return Err(unsupported("this server has no runner of its own"));
        };
        Ok(Work {
            runtime: self.inner_handle(),
            control,
            asked,
            session,
            profile,
            turn: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Error;
    use std::path::PathBuf;

    use longhaul_storage::snapshots::SnapshotError;
    use rustix::io::Errno;

    use super::*;
    use crate::snapshots::VaultError;

    #[test]
    fn a_full_disk_is_its_own_answer_wherever_it_was_met() {
        let path = PathBuf::from("pack");
        let kept = VaultError::from(SnapshotError::Full { path });
        let by_system = |errno: Errno| Error::from_raw_os_error(errno.raw_os_error());
        let all = [
            SandboxError::from(kept),
            SandboxError::from(VaultError::io(&by_system(Errno::NOSPC))),
            SandboxError::io("f", &by_system(Errno::NOSPC)),
            SandboxError::io("f", &by_system(Errno::DQUOT)),
        ];
        for error in all {
            assert_eq!(error.code(), "storage.full", "{error}");
            let answer = Rejection::from(error);
            assert_eq!(answer.code, Code::StorageFull, "{answer}");
            assert!(answer.code.is_retryable());
        }
        let other = SandboxError::io("f", &by_system(Errno::IO));
        assert_eq!(Rejection::from(other).code, Code::SandboxFailed);
    }
}
