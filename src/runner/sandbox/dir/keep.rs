//! Snapshots of `dir` sandboxes: made from one, kept as one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use longhaul_actors::session::payload::{ResumePlan, SnapshotRef, WorkspaceRef};
use serde::Deserialize;

use super::DirSandbox;
use crate::runner::sandbox::{SandboxError, SandboxRequest, Snapshot};
use crate::snapshots::{Base, VaultError};

/// What the sandbox is made from.
#[derive(Debug, PartialEq)]
pub(super) enum Plan {
    /// An empty folder.
    Empty,
    /// A snapshot.
    Snapshot(WorkspaceRef, SnapshotRef),
}

impl Plan {
    /// Reads the resume plan of a request; without one, the folder is empty.
    pub(super) fn read(request: &SandboxRequest) -> Result<Self, SandboxError> {
        if request.resume.is_null() {
            return Ok(Self::Empty);
        }
        let unknown = |why: String| {
            let plan = &request.resume;
            SandboxError::Unsupported(format!("a `dir` sandbox cannot be made from {plan}: {why}"))
        };
        let plan = ResumePlan::deserialize(&request.resume).map_err(|e| unknown(e.to_string()))?;
        match plan {
            ResumePlan::Fresh | ResumePlan::EventLogRebuild { .. } => Ok(Self::Empty),
            ResumePlan::Checkpoint { snapshot, .. } => {
                let workspace = request.workspace.as_deref().unwrap_or("default");
                let workspace =
                    WorkspaceRef::parse(workspace).map_err(|e| unknown(e.to_string()))?;
                Ok(Self::Snapshot(workspace, snapshot))
            }
            ResumePlan::Attached => Err(unknown("nothing is attached".to_owned())),
        }
    }
}

impl From<VaultError> for SandboxError {
    fn from(e: VaultError) -> Self {
        match e {
            VaultError::Unusable(why) => Self::SnapshotUnusable(why),
            VaultError::Failed(why) => Self::Failed(why),
        }
    }
}

impl DirSandbox {
    /// Brings back the disk of the plan; the folder of an empty one is made when needed.
    pub(super) async fn restore(&self, plan: Plan) -> Result<(), SandboxError> {
        let Plan::Snapshot(workspace, snapshot) = plan else {
            return Ok(());
        };
        let Some(snapshots) = self.snapshots.clone() else {
            let why = "this runner keeps no snapshots".to_owned();
            return Err(SandboxError::Unsupported(why));
        };
        let place = self.place.clone();
        let restored = tokio::task::spawn_blocking(move || {
            place
                .make_around()
                .map_err(|e| VaultError::Failed(e.to_string()))?;
            snapshots.restore(workspace, snapshot, &place.work())
        });
        let restored = match restored.await {
            Ok(restored) => restored,
            Err(e) => Err(VaultError::Failed(e.to_string())),
        };
        match restored {
            Ok(base) => {
                *self.base.lock().await = Some(base);
                self.root().await.map(drop)
            }
            Err(why) => {
                super::remove(&self.tools.door, self.place.folder.clone()).await;
                Err(why.into())
            }
        }
    }

    /// Keeps the files as they are now.
    pub(super) async fn keep(&self, fresh: bool) -> Result<Snapshot, SandboxError> {
        let Some(snapshots) = self.snapshots.clone() else {
            let why = "this runner keeps no snapshots".to_owned();
            return Err(SandboxError::Unsupported(why));
        };
        let mut held = self.base.lock().await;
        if self.root.get().is_none() && held.as_ref().is_none_or(|_| fresh) {
            // Never used: there is nothing to look at.
            let base = held.insert(snapshots.empty());
            return Ok(shown(base));
        }
        self.root().await?;
        let (work, mut base) = (self.place.work(), held.take());
        let snapshots = Arc::clone(&snapshots);
        // Cleared before the files are looked at: what happens meanwhile counts for the next one.
        self.dirty.store(false, Ordering::SeqCst);
        let taken = tokio::task::spawn_blocking(move || {
            let taken = snapshots.take(&work, &mut base, fresh);
            (taken, base)
        });
        let failed = match taken.await {
            Ok((taken, base)) => {
                *held = base;
                match (taken, held.as_ref()) {
                    (Ok(()), Some(base)) => return Ok(shown(base)),
                    (Ok(()), None) => SandboxError::Failed("nothing was kept".to_owned()),
                    (Err(why), _) => why.into(),
                }
            }
            Err(e) => SandboxError::Failed(e.to_string()),
        };
        self.dirty.store(true, Ordering::SeqCst);
        Err(failed)
    }
}

fn shown(base: &Base) -> Snapshot {
    Snapshot {
        reference: base.reference.clone(),
        kept: Some(base.kept.clone()),
    }
}
