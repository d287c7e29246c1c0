//! Disks copied for forks by runners elsewhere: asked for, adopted or failed, or not in time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use longhaul_storage::{Condition, RowChange, Write};
use tokio::sync::oneshot;

use super::Engine;
use super::inner::Inner;
use crate::code::{Code, Rejection};
use crate::dispatch::actor::{OfferClone, WithdrawClone};
use crate::dispatch::clones::CloneOffer;
use crate::ids::{CloneToken, RunnerId, SessionId};
use crate::rows;
use crate::session::actor::refusal;
use crate::session::checkpoints::SnapshotKey;
use crate::session::command::Bearer;
use crate::session::payload::{Adopted, WorkspaceRef};
use crate::sync::lock;

/// Position of a reference that a copy in progress holds: no checkpoint is created there.
pub(crate) const CLONE_SEQ: u64 = 0;
/// Longest `sandbox_ref` and reason, bytes.
const TEXT_BYTES_MAX: usize = 4_096;

/// What a runner made of a copy.
type Verdict = Result<String, String>;

/// A runner's answer: who, what, and where to say what became of the fork.
type Heard = (RunnerId, Verdict, oneshot::Sender<Result<(), Rejection>>);

struct Open {
    workspace: WorkspaceRef,
    child: SessionId,
    /// Who was told of it.
    runner: Option<RunnerId>,
    verdict: oneshot::Sender<Heard>,
}

/// Copies in progress.
#[derive(Default)]
pub(crate) struct OpenClones(Mutex<HashMap<CloneToken, Open>>);

impl OpenClones {
    /// Whether a copy for this fork is in progress. It is before its reference is written.
    pub(crate) fn is_open(&self, child: SessionId) -> bool {
        lock(&self.0).values().any(|open| open.child == child)
    }

    /// A runner was told.
    pub(crate) fn given(&self, token: CloneToken, runner: RunnerId) {
        if let Some(open) = lock(&self.0).get_mut(&token) {
            open.runner = Some(runner);
        }
    }
}

/// Keeps the snapshot of a copy in progress, and takes the copy back when nobody waits any more.
struct Progress {
    inner: Arc<Inner>,
    token: CloneToken,
    key: SnapshotKey,
    child: SessionId,
}

impl Drop for Progress {
    fn drop(&mut self) {
        lock(&self.inner.clones.0).remove(&self.token);
        if let Some(parts) = self.inner.parts() {
            // One for each copy asked for, so bounded by those.
            parts.dispatcher.do_send(WithdrawClone(self.token));
        }
        let write = Write {
            rows: vec![
                RowChange::Delete(rows::snapshot_holder(self.key, self.child, CLONE_SEQ)),
                RowChange::Put(rows::collect(self.key), Bytes::new()),
            ],
            ..Write::default()
        };
        // Unwritten, the reference is found stale at the next start.
        drop(self.inner.log.append(write));
    }
}

/// A disk that a runner copied, held until the fork is committed or given up.
pub(crate) struct Copied {
    /// The copy.
    pub(crate) adopted: Adopted,
    answer: oneshot::Sender<Result<(), Rejection>>,
    _progress: Progress,
}

impl Copied {
    /// Tells the runner what became of the fork.
    pub(crate) fn settle(self, result: Result<(), Rejection>) {
        // It may be gone, which changes nothing.
        let _ = self.answer.send(result);
    }
}

impl Engine {
    /// Asks the eligible runners for a copy of a disk and waits for it.
    ///
    /// # Errors
    /// `runtime.no_eligible_runner`, `runtime.clone_timeout`, `runtime.snapshot_deleted`,
    /// `runtime.busy`, `runtime.stopped`, `storage.*`.
    pub(crate) async fn copy_disk(&self, offer: CloneOffer) -> Result<Copied, Rejection> {
        let inner = &self.inner;
        let (token, child) = (offer.token, offer.child);
        let key = SnapshotKey::of(offer.workspace, &offer.snapshot);
        let (verdict, heard) = oneshot::channel();
        let open = Open {
            workspace: offer.workspace,
            child,
            runner: None,
            verdict,
        };
        lock(&inner.clones.0).insert(token, open);
        let progress = Progress {
            inner: Arc::clone(inner),
            token,
            key,
            child,
        };
        hold(inner, key, child).await?;
        let parts = inner.parts().ok_or_else(|| inner.stopped())?;
        let offered = parts.dispatcher.send(OfferClone(offer)).await;
        offered.map_err(|_| inner.stopped())??;
        let limit = Duration::from_secs(inner.config.clone_s_max);
        let until = inner.timer.until(inner.timer.now().saturating_add(limit));
        futures_util::pin_mut!(until);
        let heard = futures_util::future::select(heard, until).await;
        let timeout = || {
            let s = inner.config.clone_s_max;
            Rejection::new(Code::CloneTimeout, format!("not adopted within {s} s"))
        };
        let futures_util::future::Either::Left((Ok((runner, verdict, answer)), _)) = heard else {
            return Err(timeout());
        };
        match verdict {
            Ok(sandbox_ref) => Ok(Copied {
                adopted: Adopted {
                    runner,
                    sandbox_ref,
                },
                answer,
                _progress: progress,
            }),
            Err(reason) => {
                let _ = answer.send(Ok(()));
                let detail = format!("the runner could not copy the disk: {reason}");
                Err(Rejection::new(Code::CloneFailed, detail))
            }
        }
    }

    /// A runner has made the copy; resolves when the fork is there.
    ///
    /// # Errors
    /// `clone.not_found` for one that is over or another's; what became of the fork.
    pub async fn adopt_clone(
        &self,
        by: Bearer,
        token: CloneToken,
        sandbox_ref: String,
    ) -> Result<(), Rejection> {
        self.answer_clone(by, token, Ok(sandbox_ref)).await
    }

    /// A runner cannot make the copy.
    ///
    /// # Errors
    /// `clone.not_found` for one that is over or another's.
    pub async fn fail_clone(
        &self,
        by: Bearer,
        token: CloneToken,
        reason: String,
    ) -> Result<(), Rejection> {
        self.answer_clone(by, token, Err(reason)).await
    }

    async fn answer_clone(
        &self,
        by: Bearer,
        token: CloneToken,
        verdict: Verdict,
    ) -> Result<(), Rejection> {
        let (Ok(text) | Err(text)) = &verdict;
        if text.is_empty() || text.len() > TEXT_BYTES_MAX {
            let detail = format!("`sandbox_ref` and `reason` have 1 to {TEXT_BYTES_MAX} bytes");
            return Err(Rejection::new(Code::FieldInvalid, detail));
        }
        let absent = || Rejection::plain(Code::CloneNotFound);
        let (open, runner) = {
            let mut all = lock(&self.inner.clones.0);
            let open = all.get(&token).ok_or_else(absent)?;
            let runner = open.runner.ok_or_else(absent)?;
            let own = match by {
                Bearer::Trusted => true,
                Bearer::Workspace(workspace) => workspace == open.workspace,
                Bearer::Runner(id) => id == runner,
            };
            if !own {
                return Err(absent());
            }
            (all.remove(&token).ok_or_else(absent)?, runner)
        };
        let (answer, answered) = oneshot::channel();
        open.verdict
            .send((runner, verdict, answer))
            .map_err(|_| absent())?;
        answered.await.unwrap_or_else(|_| Err(absent()))
    }
}

/// Writes the reference of a copy in progress, unless the snapshot is going.
async fn hold(inner: &Arc<Inner>, key: SnapshotKey, child: SessionId) -> Result<(), Rejection> {
    let write = Write {
        stream: None,
        conditions: vec![
            (rows::snapshot(key), Condition::Present),
            (rows::doomed(key), Condition::Absent),
        ],
        rows: vec![RowChange::Put(
            rows::snapshot_holder(key, child, CLONE_SEQ),
            Bytes::new(),
        )],
    };
    match inner.log.append(write).await {
        Ok(_) => Ok(()),
        Err(longhaul_storage::AppendError::Condition { .. }) => Err(Code::SnapshotDeleted.into()),
        Err(e) => Err(refusal(inner, &e)),
    }
}
