//! Runtime control: operations on the sandbox of a session between its runs.
//!
//! Each takes the session's lock, gets the sandbox (the one that the operation before left, or
//! one made from the newest checkpoint), works on it, and leaves it attached. The work runs on
//! the runner's own threads, so that a caller who goes away leaves no lock behind.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::engine::{Answer, ForkRequest};
use longhaul_actors::env::Door;
use longhaul_actors::ids::{CheckpointId, RunnerId, SessionId};
use longhaul_actors::session::command::NewCheckpoint;
use longhaul_actors::session::operation::{self, Begun, Done, OperationKind};
use longhaul_actors::session::payload::{ResumeFrom, Selector, SnapshotRef};
use serde_json::{Map, Value, json};

use super::{Asked, Runtime};
use crate::runner::attached::Attached;
use crate::runner::sandbox::{
    Exec, ExecOutput, Sandbox, SandboxError, SandboxProvider, SandboxRequest,
};

/// Longest time of one operation, seconds.
pub const OPERATION_S_MAX: u64 = 300;
/// Time to let go after the work, seconds.
const END_S: u64 = 30;
/// Largest file that is read whole, bytes.
pub const FILE_BYTES_MAX: usize = 16 << 20;

/// What operations need of the built-in runner.
#[derive(Debug, Clone)]
pub(crate) struct Control {
    pub(crate) provider: Arc<dyn SandboxProvider>,
    pub(crate) attached: Arc<Attached>,
    pub(crate) runner: RunnerId,
    pub(crate) threads: tokio::runtime::Handle,
    pub(crate) door: Door,
}

/// One operation: for whom, and what it works with.
pub(super) struct Work {
    runtime: Runtime,
    control: Control,
    asked: Asked,
    session: SessionId,
    profile: Value,
}

/// What is said of a checkpoint that is asked for.
#[derive(Debug, Clone, Default)]
pub struct Named {
    /// For people.
    pub name: Option<String>,
    /// Caller's pairs.
    pub metadata: Map<String, Value>,
}

impl From<SandboxError> for Rejection {
    fn from(e: SandboxError) -> Self {
        let code = match &e {
            SandboxError::PathInvalid(_) => Code::SandboxPathInvalid,
            SandboxError::NotFound(_) => Code::SandboxNotFound,
            SandboxError::TooLarge { .. } => Code::SandboxTooLarge,
            SandboxError::Unsupported(_) => Code::UnsupportedBackend,
            SandboxError::SnapshotUnusable(_) => Code::CheckpointRejected,
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
    /// `sandbox.failed`.
    pub async fn checkpoint_runtime(
        &self,
        asked: Asked,
        session: SessionId,
        named: Named,
    ) -> Result<Answer, Rejection> {
        let work = self.work(asked, session).await?;
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
        let work = self.work(asked, session).await?;
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
        let work = self.work(asked, session).await?;
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
        let begun = engine.begin_operation(
            session,
            request.clone(),
            OperationKind::Close,
            OPERATION_S_MAX,
        );
        let (id, _) = begun.await?;
        if let Some(control) = self.control()
            && let Some(sandbox) = control.attached.take(&session.to_string())
        {
            sandbox.release().await;
        }
        let done = Done {
            succeeded: true,
            ..Done::default()
        };
        engine.end_operation(session, request, id, done).await
    }

    /// Runs a command.
    ///
    /// # Errors
    /// As [`Runtime::checkpoint_runtime`]; `sandbox.path_invalid` for the folder.
    pub async fn exec_runtime(
        &self,
        asked: Asked,
        session: SessionId,
        exec: Exec,
    ) -> Result<ExecOutput, Rejection> {
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
    ) -> Result<Vec<u8>, Rejection> {
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
    ) -> Result<(), Rejection> {
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
        let workspace = asked.caller.workspace;
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
        };
        let child = self.engine().fork(fork).await?;
        let child: Value = serde_json::from_slice(&child.body)
            .map_err(|e| Rejection::new(Code::Internal, e.to_string()))?;
        let id = child.get("id").and_then(Value::as_str).unwrap_or_default();
        let id = SessionId::parse(id).map_err(|e| Rejection::new(Code::Internal, e.to_string()))?;
        Ok((self.engine().runtime_record(workspace, id).await?, source))
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

    /// The session of a checkpoint of the caller's workspace.
    async fn session_of(
        &self,
        asked: &Asked,
        checkpoint: CheckpointId,
    ) -> Result<SessionId, Rejection> {
        let session = self.engine().session_of(checkpoint).await?;
        match self.engine().pin(asked.caller.workspace, session).await {
            Ok(_) => Ok(session),
            Err(e) if e.code == Code::SessionNotFound => Err(Code::CheckpointNotFound.into()),
            Err(e) => Err(e),
        }
    }

    /// The session must have a sandbox that the built-in runner makes.
    pub(super) async fn work(&self, asked: Asked, session: SessionId) -> Result<Work, Rejection> {
        let profile = self.dir_profile(asked.caller.workspace, session).await?;
        let control = self.control().ok_or_else(|| {
            let why = "this server has no runner of its own";
            Rejection::new(Code::UnsupportedBackend, why)
        })?;
        Ok(Work {
            runtime: self.inner_handle(),
            control,
            asked,
            session,
            profile,
        })
    }
}

impl Work {
    /// Does the work on the runner's threads, to its end whether or not the caller waits.
    async fn spawn<T, F>(
        self,
        work: impl FnOnce(Self) -> F + Send + 'static,
    ) -> Result<T, Rejection>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Rejection>> + Send,
    {
        let threads = self.control.threads.clone();
        let done = threads.spawn(async move { work(self).await });
        let died = |e: tokio::task::JoinError| Rejection::new(Code::Internal, e.to_string());
        done.await.map_err(died)?
    }

    async fn begin(
        &self,
        kind: OperationKind,
    ) -> Result<(operation::OperationId, Begun), Rejection> {
        let request = self.asked.clone().request();
        let engine = self.runtime.engine();
        // Without the receipt: it is kept at the end.
        let request = longhaul_actors::session::command::Request {
            receipt: None,
            ..request
        };
        engine
            .begin_operation(self.session, request, kind, OPERATION_S_MAX + END_S)
            .await
    }

    async fn end(&self, id: operation::OperationId, done: Done) -> Result<Answer, Rejection> {
        let request = self.asked.clone().request();
        let engine = self.runtime.engine();
        engine.end_operation(self.session, request, id, done).await
    }

    /// The sandbox: the attached one, or one made from the plan.
    async fn sandbox(&self, begun: &Begun) -> Result<Arc<dyn Sandbox>, Rejection> {
        let id = self.session.to_string();
        if let Some(sandbox) = self.control.attached.find(&id) {
            return Ok(sandbox);
        }
        let request = SandboxRequest {
            session_id: id.clone(),
            run_id: String::new(),
            attempt: 0,
            workspace: Some(self.asked.caller.workspace.to_string()),
            profile: self.profile.clone(),
            resume: match begun.plan {
                // It was lost with its actor: the newest snapshot is what is left.
                longhaul_actors::session::payload::ResumePlan::Attached => Value::Null,
                ref plan => json!(plan),
            },
        };
        let made: Arc<dyn Sandbox> = Arc::from(self.control.provider.create(request).await?);
        Ok(made)
    }

    async fn leave(&self, sandbox: &Arc<dyn Sandbox>) -> operation::Attached {
        sandbox.attach().await;
        let now = self.control.door.clock.mono();
        self.control
            .attached
            .leave(&self.session.to_string(), Arc::clone(sandbox), now);
        operation::Attached {
            runner: self.control.runner,
            dirty: sandbox.is_dirty(),
        }
    }

    /// At most [`OPERATION_S_MAX`].
    async fn timed<T>(
        &self,
        work: impl Future<Output = Result<T, SandboxError>>,
    ) -> Result<T, Rejection> {
        let clock = &self.control.door.clock;
        let until = clock.mono() + Duration::from_secs(OPERATION_S_MAX);
        tokio::select! {
            done = work => Ok(done?),
            () = clock.sleep_until(until) => Err(Code::OperationTimeout.into()),
        }
    }

    /// Works on the sandbox, and leaves it attached.
    async fn used<T, F>(self, work: impl FnOnce(Arc<dyn Sandbox>) -> F) -> Result<T, Rejection>
    where
        F: Future<Output = Result<T, SandboxError>>,
    {
        let (id, begun) = self.begin(OperationKind::Use).await?;
        let sandbox = match self.sandbox(&begun).await {
            Ok(sandbox) => sandbox,
            Err(why) => return Err(self.give_up(id, why).await),
        };
        let done = self.timed(work(Arc::clone(&sandbox))).await;
        let attached = Some(self.leave(&sandbox).await);
        let ended = Done {
            succeeded: true,
            attached,
            checkpoint: None,
        };
        self.end(id, ended).await?;
        done
    }

    async fn give_up(&self, id: operation::OperationId, why: Rejection) -> Rejection {
        // The lock lapses by itself should this fail.
        if let Err(e) = self.end(id, Done::default()).await {
            tracing::warn!(session = %self.session, error = %e, "an operation's lock stays until it lapses");
        }
        why
    }

    /// Keeps the disk; with a pause or a rest, the sandbox goes.
    pub(super) async fn keep(self, kind: OperationKind, named: Named) -> Result<Answer, Rejection> {
        let (id, begun) = self.begin(kind).await?;
        let attached = self.control.attached.find(&self.session.to_string());
        let clean = attached.as_ref().is_none_or(|s| !s.is_dirty());
        let checkpoint = match &begun.clean {
            // Nothing changed: the same snapshot again, and the store is not asked.
            Some(same) if clean => Ok(new_checkpoint(same.clone(), None, &named)),
            _ => self.take(&begun, &named).await,
        };
        let checkpoint = match checkpoint {
            Ok(checkpoint) => checkpoint,
            Err(why) => return Err(self.give_up(id, why).await),
        };
        let wanted = kind != OperationKind::Rest || !clean;
        let attached = match self.control.attached.find(&self.session.to_string()) {
            Some(sandbox) => Some(self.leave(&sandbox).await),
            None => None,
        };
        let done = Done {
            succeeded: true,
            checkpoint: Some(checkpoint).filter(|_| wanted),
            attached,
        };
        let answer = self.end(id, done).await?;
        if kind != OperationKind::Checkpoint
            && let Some(sandbox) = self.control.attached.take(&self.session.to_string())
        {
            sandbox.release().await;
        }
        Ok(answer)
    }

    async fn take(&self, begun: &Begun, named: &Named) -> Result<NewCheckpoint, Rejection> {
        let sandbox = self.sandbox(begun).await?;
        self.leave(&sandbox).await;
        let fresh = sandbox.is_dirty() || begun.clean.is_none();
        let taken = self.timed(sandbox.snapshot(fresh)).await?;
        Ok(new_checkpoint(taken.reference, taken.kept, named))
    }

    async fn resume(self) -> Result<Answer, Rejection> {
        let (id, begun) = self.begin(OperationKind::Resume).await?;
        let sandbox = match self.sandbox(&begun).await {
            Ok(sandbox) => sandbox,
            Err(why) => return Err(self.give_up(id, why).await),
        };
        let done = Done {
            succeeded: true,
            attached: Some(self.leave(&sandbox).await),
            checkpoint: None,
        };
        self.end(id, done).await
    }
}

fn new_checkpoint(
    snapshot: SnapshotRef,
    kept: Option<longhaul_actors::session::command::Kept>,
    named: &Named,
) -> NewCheckpoint {
    NewCheckpoint {
        snapshot,
        kept,
        resume: ResumeFrom::RebuildFromLog,
        blob: None,
        name: named.name.clone(),
        metadata_json: Value::Object(named.metadata.clone()).to_string(),
        cursor: None,
    }
}
