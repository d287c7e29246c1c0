//! One operation, from taking the session's lock to letting go of it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::engine::Answer;
use longhaul_actors::engine::operations::Opened;
use longhaul_actors::ids::SessionId;
use longhaul_actors::session::command::{Kept, NewCheckpoint};
use longhaul_actors::session::operation::{self, Begun, Done, OperationKind};
use longhaul_actors::session::payload::{ResumePlan, SnapshotRef};
use serde_json::{Value, json};

use super::turns::Turn;
use super::{Control, Named, OPERATION_S_MAX, Used};
use crate::runner::attached::Disk;
use crate::runner::sandbox::{Sandbox, SandboxError, SandboxRequest, Stay};
use crate::runtime::{Asked, Runtime};

/// Time to let go after the work, seconds.
const END_S: u64 = 30;

/// One operation: for whom, and what it works with.
pub(super) struct Work {
    pub(super) runtime: Runtime,
    pub(super) control: Control,
    pub(super) asked: Asked,
    pub(super) session: SessionId,
    pub(super) profile: Value,
    /// Held to the end by a request with an Idempotency-Key.
    pub(super) turn: Option<Turn>,
}

impl Work {
    /// Waits for the same request, where it is under way: it is answered once.
    pub(super) async fn in_turn(mut self) -> Self {
        self.turn = self.runtime.turns().wait(self.asked.receipt).await;
        self
    }

    /// Does the work on the runner's threads, to its end whether or not the caller waits.
    pub(super) async fn spawn<T, F>(
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

    pub(super) async fn begin(&self, kind: OperationKind) -> Result<Opened, Rejection> {
        let request = self.asked.clone().request();
        let engine = self.runtime.engine();
        let begun = engine.begin_operation(self.session, request, kind, OPERATION_S_MAX + END_S);
        let (id, begun) = match begun.await? {
            Opened::Begun(id, begun) => (id, begun),
            first @ Opened::Answered(_) => return Ok(first),
        };
        if let ResumePlan::Checkpoint { snapshot, .. } = &begun.plan
            && snapshot.runner_id.is_some_and(|r| r != self.control.runner)
        {
            // Healthy, but out of reach: nothing is written about it, and no other disk is made.
            let detail = "another runner alone has the session's disk";
            let why = Rejection::new(Code::NoEligibleRunner, detail);
            return Err(self.give_up(id, &begun, why).await);
        }
        Ok(Opened::Begun(id, begun))
    }

    /// Gets the disk, or gives up.
    async fn open(&self, id: operation::OperationId, begun: Box<Begun>) -> Result<Disk, Rejection> {
        match self.disk(&begun).await {
            Ok(disk) => Ok(disk),
            Err(why) => Err(self.give_up(id, &begun, why).await),
        }
    }

    /// Leaves the sandbox attached and lets go of the lock: it did what was asked.
    pub(super) async fn end_attached(
        &self,
        id: operation::OperationId,
        disk: &Disk,
    ) -> Result<Answer, Rejection> {
        let done = Done {
            succeeded: true,
            attached: Some(self.leave(disk)),
            began: disk.began,
            ..Done::default()
        };
        self.end(id, done).await
    }

    async fn end(&self, id: operation::OperationId, done: Done) -> Result<Answer, Rejection> {
        let request = self.asked.clone().request();
        let engine = self.runtime.engine();
        let ended = engine.end_operation(self.session, request, id, done).await;
        if ended.as_ref().is_err_and(|e| e.code == Code::SessionErased) {
            self.runtime.let_go(self.session).await;
        }
        ended
    }

    /// The sandbox: the attached one, or one made from the plan.
    async fn disk(&self, begun: &Begun) -> Result<Disk, Rejection> {
        let id = self.session.to_string();
        if let Some(disk) = self.control.attached.find(&id) {
            if !disk.sandbox.is_gone() {
                return Ok(disk);
            }
            // Let go of: the next operation makes one from the newest snapshot.
            self.control.attached.take(&id);
            disk.sandbox.release().await;
            return Err(SandboxError::Gone.into());
        }
        if matches!(begun.plan, ResumePlan::Attached { .. }) {
            // Lost with its actor: the next operation makes one from the newest snapshot.
            let detail = "the attached sandbox is gone";
            return Err(Rejection::new(Code::SandboxFailed, detail));
        }
        let request = SandboxRequest {
            session_id: id.clone(),
            run_id: String::new(),
            attempt: 0,
            workspace: Some(self.asked.caller.workspace.to_string()),
            profile: self.profile.clone(),
            resume: json!(begun.plan),
        };
        let made = self.control.provider.create(request).await;
        let sandbox: Arc<dyn Sandbox> = match (made, &begun.plan) {
            (Ok(sandbox), _) => Arc::from(sandbox),
            (Err(why @ SandboxError::SnapshotUnreadable(_)), ResumePlan::Checkpoint { id, .. }) => {
                let detail = format!("{id}: {why}");
                return Err(Rejection::new(Code::SnapshotUnreadable, detail));
            }
            (Err(why), _) => return Err(why.into()),
        };
        Ok(Disk {
            sandbox,
            began: begun.plan.began(),
        })
    }

    fn leave(&self, disk: &Disk) -> operation::Attached {
        let session_id = self.session.to_string();
        let now = self.control.door.clock.mono();
        self.control.attached.leave(&session_id, disk.clone(), now);
        disk.sandbox.attach_to(Some(&Stay {
            session_id,
            began: disk.began,
        }));
        operation::Attached {
            runner: self.control.runner,
            dirty: disk.sandbox.is_dirty(),
            began: disk.began,
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
    pub(super) async fn used<T, F>(
        self,
        work: impl FnOnce(Arc<dyn Sandbox>) -> F,
    ) -> Result<Used<T>, Rejection>
    where
        F: Future<Output = Result<T, SandboxError>>,
    {
        let Opened::Begun(id, begun) = self.begin(OperationKind::Use).await? else {
            // Such requests have no key, and so no earlier answer.
            return Err(Code::Internal.into());
        };
        let disk = self.open(id, begun).await?;
        let done = self.timed(work(Arc::clone(&disk.sandbox))).await;
        self.end_attached(id, &disk).await?;
        done.map(|value| Used {
            value,
            began: disk.began,
        })
    }

    async fn give_up(
        &self,
        id: operation::OperationId,
        begun: &Begun,
        why: Rejection,
    ) -> Rejection {
        let rejected = match begun.plan {
            ResumePlan::Checkpoint { id, .. } if why.code == Code::CheckpointRejected => {
                Some((id, why.detail.clone()))
            }
            _ => None,
        };
        // An attached sandbox stays; one that was not to be had leaves nothing.
        let left = self.control.attached.find(&self.session.to_string());
        let done = Done {
            attached: left.as_ref().map(|d| self.leave(d)),
            rejected,
            ..Done::default()
        };
        // The lock lapses by itself should this fail.
        if let Err(e) = self.end(id, done).await {
            tracing::warn!(session = %self.session, error = %e, "an operation's lock stays until it lapses");
        }
        why
    }

    /// Keeps the disk; with a pause or a rest, the sandbox goes.
    pub(super) async fn keep(self, kind: OperationKind, named: Named) -> Result<Answer, Rejection> {
        let (id, begun) = match self.begin(kind).await? {
            Opened::Begun(id, begun) => (id, begun),
            Opened::Answered(first) => return Ok(first),
        };
        let here = self.session.to_string();
        let found = self.control.attached.find(&here);
        let began = match &found {
            Some(disk) => disk.began,
            None => begun.plan.began(),
        };
        let attached = found.map(|d| d.sandbox);
        // The disk is that of the newest usable checkpoint, which need not be where it came from.
        let clean = attached
            .as_ref()
            .is_none_or(|s| !s.is_dirty() && s.base() == begun.clean);
        let checkpoint = match &begun.clean {
            // Nothing changed: the same snapshot again, and the store is not asked.
            Some(same) if clean => Ok(new_checkpoint(same.clone(), None, &named)),
            _ => self.take(&begun, &named).await,
        };
        let checkpoint = match checkpoint {
            Ok(checkpoint) => checkpoint,
            Err(why) => return Err(self.give_up(id, &begun, why).await),
        };
        let wanted = kind != OperationKind::Rest || !clean;
        let attached = self.control.attached.find(&here).map(|d| self.leave(&d));
        // Taken out first: whoever comes after the end must not find a sandbox that goes.
        let going = match kind {
            OperationKind::Checkpoint => None,
            _ => self.control.attached.take(&here),
        };
        let done = Done {
            succeeded: true,
            checkpoint: Some(checkpoint).filter(|_| wanted),
            attached,
            began,
            rejected: None,
        };
        let ended = self.end(id, done).await;
        match (going, &ended) {
            (Some(disk), Ok(_)) => disk.sandbox.release().await,
            (Some(disk), Err(_)) => drop(self.leave(&disk)),
            (None, _) => {}
        }
        ended
    }

    async fn take(&self, begun: &Begun, named: &Named) -> Result<NewCheckpoint, Rejection> {
        let disk = self.disk(begun).await?;
        self.leave(&disk);
        let sandbox = disk.sandbox;
        let fresh = sandbox.is_dirty() || begun.clean.is_none() || sandbox.base() != begun.clean;
        let taken = self.timed(sandbox.snapshot(fresh)).await?;
        Ok(new_checkpoint(taken.reference, taken.kept, named))
    }

    pub(super) async fn resume(self) -> Result<Answer, Rejection> {
        let (id, begun) = match self.begin(OperationKind::Resume).await? {
            Opened::Begun(id, begun) => (id, begun),
            Opened::Answered(first) => return Ok(first),
        };
        let disk = self.open(id, begun).await?;
        self.end_attached(id, &disk).await
    }
}

fn new_checkpoint(snapshot: SnapshotRef, kept: Option<Kept>, named: &Named) -> NewCheckpoint {
    NewCheckpoint {
        name: named.name.clone(),
        metadata_json: Value::Object(named.metadata.clone()).to_string(),
        ..NewCheckpoint::of(snapshot, kept)
    }
}
