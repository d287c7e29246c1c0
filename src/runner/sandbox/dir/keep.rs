//! Snapshots of `dir` sandboxes: made from one, kept as one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use longhaul_actors::session::payload::{ResumePlan, SnapshotRef, WorkspaceRef};
use serde::Deserialize;

use super::DirSandbox;
use super::tools::{Place, Tools};
use crate::runner::sandbox::{SandboxError, SandboxRequest, Snapshot};
use crate::snapshots::{Base, Vault, VaultError};

/// What the sandbox is made from.
#[derive(Debug, PartialEq)]
pub(super) enum Plan {
    /// An empty folder.
    Empty,
    /// A snapshot.
    Snapshot {
        workspace: WorkspaceRef,
        snapshot: SnapshotRef,
        /// The copy that was made of it before, by its name.
        copy: Option<String>,
    },
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
            ResumePlan::Checkpoint {
                snapshot,
                sandbox_ref: copy,
                ..
            } => Ok(Self::Snapshot {
                workspace: workspace(request.workspace.as_deref())?,
                snapshot,
                copy,
            }),
            ResumePlan::Attached { .. } => Err(unknown("nothing is attached".to_owned())),
        }
    }

    /// This snapshot.
    pub(super) fn snapshot(
        workspace: Option<&str>,
        snapshot: SnapshotRef,
    ) -> Result<Self, SandboxError> {
        Ok(Self::Snapshot {
            workspace: self::workspace(workspace)?,
            snapshot,
            copy: None,
        })
    }

    /// The copy that was made before, by its name.
    pub(super) fn copy(&self) -> Option<&str> {
        match self {
            Self::Snapshot { copy, .. } => copy.as_deref(),
            Self::Empty => None,
        }
    }
}

fn workspace(text: Option<&str>) -> Result<WorkspaceRef, SandboxError> {
    WorkspaceRef::parse(text.unwrap_or("default"))
        .map_err(|e| SandboxError::Unsupported(format!("an unknown workspace: {e}")))
}

impl From<VaultError> for SandboxError {
    fn from(e: VaultError) -> Self {
        match e {
            VaultError::Unusable(why) => Self::SnapshotUnusable(why),
            VaultError::Unreadable(why) => Self::SnapshotUnreadable(why),
            VaultError::Refused(why) => Self::SnapshotRefused(why),
            VaultError::Full(why) => Self::Full(why),
            VaultError::Failed(why) => Self::Failed(why),
        }
    }
}

/// A folder with the files of a snapshot in it, or none yet.
#[derive(Debug)]
pub(super) struct Restored {
    pub(super) place: Place,
    /// What the files are; `None` = there is no folder yet.
    pub(super) base: Option<Base>,
}

impl Restored {
    /// Brings back the disk of the plan; the folder of an empty one is made when needed.
    pub(super) async fn of(
        tools: &Tools,
        snapshots: Option<Arc<dyn Vault>>,
        plan: Plan,
    ) -> Result<Self, SandboxError> {
        let place = Place::new(tools);
        let Plan::Snapshot {
            workspace,
            snapshot,
            ..
        } = plan
        else {
            return Ok(Self { place, base: None });
        };
        let Some(snapshots) = snapshots else {
            let why = "this runner keeps no snapshots".to_owned();
            return Err(SandboxError::Unsupported(why));
        };
        let at = place.clone();
        let restored = tokio::task::spawn_blocking(move || {
            at.make_around().map_err(|e| VaultError::io(&e))?;
            snapshots.restore(workspace, snapshot, &at.work())
        });
        let restored = match restored.await {
            Ok(restored) => restored,
            Err(e) => Err(VaultError::Failed(e.to_string())),
        };
        match restored {
            Ok(base) => Ok(Self {
                place,
                base: Some(base),
            }),
            Err(why) => {
                super::remove(&tools.door, place.folder).await;
                Err(why.into())
            }
        }
    }
}

impl DirSandbox {
    /// Keeps the files as they are now.
    pub(super) async fn keep(&self, fresh: bool) -> Result<Snapshot, SandboxError> {
        let Some(snapshots) = self.snapshots.clone() else {
            let why = "this runner keeps no snapshots".to_owned();
            return Err(SandboxError::Unsupported(why));
        };
        let mut held = self.base.lock().await;
        // One that was taken back after a restart has its folder, although nothing opened it yet.
        let used = self.root.get().is_some() || self.place.folder.exists();
        if !used && held.as_ref().is_none_or(|_| fresh) {
            // Never used: there is nothing to look at.
            let session = self.session_id.clone();
            let made = tokio::task::spawn_blocking(move || snapshots.empty(&session)).await;
            let made = made.map_err(|e| SandboxError::Failed(e.to_string()))??;
            return Ok(shown(held.insert(made)));
        }
        self.root().await?;
        let (work, mut base) = (self.place.work(), held.take());
        let session = self.session_id.clone();
        let snapshots = Arc::clone(&snapshots);
        // Cleared before the files are looked at: what happens meanwhile counts for the next one.
        self.dirty.store(false, Ordering::SeqCst);
        let taken = tokio::task::spawn_blocking(move || {
            let taken = snapshots.take(&session, &work, &mut base, fresh);
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
