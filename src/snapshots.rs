//! Snapshots of `dir` sandboxes in this process's own store, and the rows that say which of them
//! are still wanted.
//!
//! The bytes are durable before any row names them; a pack goes only when no row does, counted
//! again after the store has begun to look (see [`longhaul_storage::snapshots::Collection`]).

mod bytes;
pub mod check;
pub mod local;

pub use bytes::SnapshotsHandle;

use std::collections::HashSet;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use crate::runner::sandbox::is_full;
use bytes::{has_packs, holders, is_held, manifests};
use longhaul_actors::checkpoint::BytesGone;
use longhaul_actors::codec;
use longhaul_actors::env::Door;
use longhaul_actors::rows;
use longhaul_actors::session::checkpoints::{DIR, SnapshotKey};
use longhaul_actors::session::command::Kept;
use longhaul_actors::session::decision::SnapshotRow;
use longhaul_actors::session::payload::{Retention, SnapshotRef, WorkspaceRef};
use longhaul_storage::snapshots::{
    Manifest, PackId, Pin, ReclaimBudget, SnapshotError, SnapshotOptions, SnapshotStore, StatCache,
};
use longhaul_storage::{Log, PageLimit, ReadError, View, read};

/// Prefix of the ids of snapshots made here.
const ID_PREFIX: &str = "snap_";
/// Packs unlinked in one step.
const UNLINK_MAX: usize = 1_000;
/// The manifest of a folder that nothing was ever put into: it needs no pack.
const EMPTY: &[u8] = b"\0";

/// One page of rows.
const PAGE: PageLimit = PageLimit {
    items_max: 1_000,
    bytes_max: 4 << 20,
};

/// Why a snapshot could not be taken or given back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VaultError {
    /// Its bytes are not there, or do not verify: trying again does not help.
    #[error("{0}")]
    Unusable(String),
    /// Its bytes are there, and cannot be read for now.
    #[error("{0}")]
    Unreadable(String),
    /// A file may not be read, or there are more files, bytes or levels than a snapshot holds.
    #[error("{0}")]
    Refused(String),
    /// There is no room on the disk.
    #[error("{0}")]
    Full(String),
    /// It failed this time.
    #[error("{0}")]
    Failed(String),
}

impl VaultError {
    /// A failed system call.
    pub fn io(error: &std::io::Error) -> Self {
        match is_full(error) {
            true => Self::Full(error.to_string()),
            false => Self::Failed(error.to_string()),
        }
    }
}

impl From<SnapshotError> for VaultError {
    fn from(e: SnapshotError) -> Self {
        match e {
            SnapshotError::Gone { .. }
            | SnapshotError::Damaged { .. }
            | SnapshotError::Newer { .. } => Self::Unusable(e.to_string()),
            SnapshotError::Away { .. } => Self::Unreadable(e.to_string()),
            SnapshotError::Unreadable { .. } | SnapshotError::Limit { .. } => {
                Self::Refused(e.to_string())
            }
            SnapshotError::Full { .. } => Self::Full(e.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}

/// A snapshot, and what the next one of the same folder builds upon.
#[derive(Debug)]
pub struct Base {
    /// As the log names it.
    pub reference: SnapshotRef,
    /// As the store finds it.
    pub kept: Kept,
    manifest: Option<Manifest>,
    cache: StatCache,
    /// Keeps the bytes while no row may name them.
    _pin: Option<Pin>,
}

impl Base {
    /// The snapshot of a folder that nothing was ever put into.
    fn empty(reference: SnapshotRef) -> Self {
        Self {
            reference,
            kept: Kept {
                manifest: EMPTY.to_vec(),
                packs: Vec::new(),
            },
            manifest: None,
            cache: StatCache::new(),
            _pin: None,
        }
    }
}

/// Where snapshots of `dir` sandboxes are kept. Its calls block.
pub trait Vault: Send + Sync + Debug {
    /// Takes a snapshot of `folder` for a session, on top of `base`, the snapshot it was made
    /// from or last taken as, and leaves the new one there. An unchanged folder gives the same
    /// snapshot again, unless a `fresh` one is asked for.
    ///
    /// # Errors
    /// See [`VaultError`].
    fn take(
        &self,
        session: &str,
        folder: &Path,
        base: &mut Option<Base>,
        fresh: bool,
    ) -> Result<(), VaultError>;

    /// The snapshot of a folder that nothing was put into.
    ///
    /// # Errors
    /// See [`VaultError`].
    fn empty(&self, session: &str) -> Result<Base, VaultError>;

    /// Gives a snapshot back as the folder `into`, which must not exist.
    ///
    /// # Errors
    /// See [`VaultError`]; then there is no `into`.
    fn restore(
        &self,
        workspace: WorkspaceRef,
        reference: SnapshotRef,
        into: &Path,
    ) -> Result<Base, VaultError>;
}

fn new_reference(door: &Door, retention: Retention, bytes: u64) -> SnapshotRef {
    let id = u128::from_be_bytes(door.ids.uuid(door.clock.wall_ms()));
    SnapshotRef {
        id: format!("{ID_PREFIX}{id:032x}"),
        provider: DIR.to_owned(),
        retention,
        runner_id: None,
        bytes,
    }
}

/// How a snapshot is taken, wherever it is kept.
struct Taking<'a> {
    store: &'a SnapshotStore,
    door: &'a Door,
    fresh: bool,
}

impl Taking<'_> {
    /// See [`Vault::take`].
    fn take(
        &self,
        folder: &Path,
        base: &mut Option<Base>,
        reference: impl FnOnce(u64) -> SnapshotRef,
    ) -> Result<(), VaultError> {
        let pack = PackId(self.door.ids.secret());
        let cache = base.as_mut().map(|b| std::mem::take(&mut b.cache));
        let mut cache = cache.unwrap_or_default();
        let parent = base.as_ref().and_then(|b| b.manifest.as_ref());
        let taken = self.store.take(pack, folder, parent, &mut cache);
        if let Some(base) = base.as_mut() {
            base.cache = std::mem::take(&mut cache);
        }
        let taken = taken?;
        if taken.skipped_count > 0 {
            tracing::warn!(
                count = taken.skipped_count,
                "sockets, devices and the like are not part of a snapshot"
            );
        }
        let pin = Some(self.store.pin(&taken.manifest));
        if let Some(base) = base.as_mut().filter(|_| taken.unchanged && !self.fresh) {
            base._pin = pin;
            return Ok(());
        }
        if let Some(base) = base.take() {
            cache = base.cache;
        }
        let manifest = taken.manifest.clone();
        *base = Some(Base {
            reference: reference(manifest.logical_bytes),
            kept: Kept {
                manifest: manifest.encode(),
                packs: manifest.packs.iter().map(|p| p.0).collect(),
            },
            manifest: Some(manifest),
            cache,
            _pin: pin,
        });
        Ok(())
    }
}

fn restored(
    store: &SnapshotStore,
    reference: SnapshotRef,
    kept: Kept,
    into: &Path,
) -> Result<Base, VaultError> {
    if kept.manifest == EMPTY {
        std::fs::create_dir(into).map_err(|e| VaultError::io(&e))?;
        return Ok(Base::empty(reference));
    }
    let manifest = Manifest::decode(&kept.manifest)?;
    let pin = store.pin(&manifest);
    let cache = store.restore(&manifest, into);
    let cache = cache.map_err(|e| unread(store, e))?;
    Ok(Base {
        reference,
        kept,
        manifest: Some(manifest),
        cache,
        _pin: Some(pin),
    })
}

/// Why a snapshot could not be read.
fn unread(store: &SnapshotStore, e: SnapshotError) -> VaultError {
    match e {
        // The store's own file, not one that is being made.
        SnapshotError::Io { ref path, .. } if path.starts_with(store.folder()) => {
            VaultError::Unreadable(e.to_string())
        }
        other => other.into(),
    }
}

/// The store and the log whose rows count its packs.
pub struct Snapshots {
    store: SnapshotStore,
    log: Arc<dyn Log>,
    door: Door,
}

impl Debug for Snapshots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshots").finish_non_exhaustive()
    }
}

impl Snapshots {
    /// Opens the store in `folder` and removes packs that no row names. Blocking.
    ///
    /// # Errors
    /// What the store or the log says; and where there is no store although checkpoints have bytes
    /// in one: a new one would make their absence look final.
    pub fn open(folder: &Path, log: Arc<dyn Log>, door: Door) -> Result<Self, String> {
        if !SnapshotStore::exists(folder) && has_packs(&*log)? {
            let format = folder.join("FORMAT");
            return Err(format!(
                "checkpoints have their bytes in {}, and there are none: is its disk mounted? To \
                 go on without them, make an empty file {}",
                folder.display(),
                format.display(),
            ));
        }
        let store =
            SnapshotStore::open(folder, SnapshotOptions::default()).map_err(|e| e.to_string())?;
        let this = Self { store, log, door };
        let removed = this.remove_orphans().map_err(|e| e.to_string())?;
        if removed > 0 {
            tracing::info!(
                removed,
                "removed packs of snapshots that no checkpoint names"
            );
        }
        Ok(this)
    }

    fn remove_orphans(&self) -> Result<usize, VaultError> {
        let collection = self.store.collection()?;
        let packs = collection.packs().to_vec();
        let live = self.with_rows(|view| {
            let mut live = HashSet::new();
            for pack in packs {
                if is_held(view, pack, None)? {
                    live.insert(pack);
                }
            }
            Ok(live)
        })?;
        let removed = collection.remove_unlisted(&live, usize::MAX)?;
        Ok(removed.packs)
    }

    fn with_rows<T>(
        &self,
        f: impl FnOnce(&dyn View) -> Result<T, ReadError>,
    ) -> Result<T, VaultError> {
        read(&*self.log, f).map_err(|e| VaultError::Failed(e.to_string()))
    }

    /// Deletes what only this snapshot needs, and frees dead ranges of what others share with it.
    fn delete_now(&self, key: SnapshotKey, row: &SnapshotRow) -> Result<BytesGone, VaultError> {
        let Some(kept) = &row.kept else {
            // Another's bytes.
            return Ok(BytesGone::Gone);
        };
        if kept.packs.is_empty() {
            return Ok(BytesGone::Gone);
        }
        let collection = self.store.collection()?;
        let packs: Vec<PackId> = kept.packs.iter().map(|p| PackId(*p)).collect();
        let (orphans, relatives) = self.with_rows(|view| {
            let (mut orphans, mut relatives) = (HashSet::new(), HashSet::new());
            for pack in packs {
                let others = holders(view, pack, key)?;
                if others.is_empty() {
                    orphans.insert(pack);
                }
                relatives.extend(others);
            }
            Ok((orphans, manifests(view, &relatives)?))
        })?;
        let live: HashSet<PackId> = collection
            .packs()
            .iter()
            .filter(|p| !orphans.contains(p))
            .copied()
            .collect();
        let removed = collection.remove_unlisted(&live, UNLINK_MAX)?;
        let there = collection
            .packs()
            .iter()
            .filter(|p| orphans.contains(p))
            .count();
        if removed.packs < there {
            return Ok(BytesGone::Later("a sandbox still stands on it".to_owned()));
        }
        if !relatives.is_empty() {
            let freed = collection.reclaim(&relatives, ReclaimBudget::default());
            // What cannot be freed now goes with the relatives.
            if let Err(why) = freed {
                tracing::warn!(%why, "dead ranges of shared packs stay for now");
            }
        }
        Ok(BytesGone::Gone)
    }
}

impl Vault for Snapshots {
    fn take(
        &self,
        _: &str,
        folder: &Path,
        base: &mut Option<Base>,
        fresh: bool,
    ) -> Result<(), VaultError> {
        let taking = Taking {
            store: &self.store,
            door: &self.door,
            fresh,
        };
        taking.take(folder, base, |bytes| {
            new_reference(&self.door, Retention::Platform, bytes)
        })
    }

    fn empty(&self, _: &str) -> Result<Base, VaultError> {
        Ok(Base::empty(new_reference(
            &self.door,
            Retention::Platform,
            0,
        )))
    }

    fn restore(
        &self,
        workspace: WorkspaceRef,
        reference: SnapshotRef,
        into: &Path,
    ) -> Result<Base, VaultError> {
        let key = SnapshotKey::of(workspace, &reference);
        let row = self.with_rows(|view| view.row(&rows::snapshot(key)))?;
        let gone = || VaultError::Unusable(format!("the snapshot {} is gone", reference.id));
        let row: SnapshotRow = codec::decode(&row.ok_or_else(gone)?)
            .map_err(|e| VaultError::Unusable(format!("the snapshot's row: {e}")))?;
        let kept = row.kept.ok_or_else(gone)?;
        restored(&self.store, reference, kept, into)
    }
}
