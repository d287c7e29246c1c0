//! Snapshots of working directories: immutable, sharing what did not change, restored verified.
//!
//! A [`SnapshotStore`] is a folder of packs. [`take`](SnapshotStore::take) looks at every entry of
//! a directory, reads what changed since the parent snapshot, and writes the new objects into one
//! new pack; what comes back is a [`Manifest`], which the caller keeps in a row of its own. Nothing
//! counts until that row is committed: a pack that no row names is garbage.
//!
//! Plain blocking calls on files; call them from a thread that may block. One process opens a
//! folder at a time; every call may run beside every other.
//!
//! # What is kept
//!
//! Names (any bytes), contents, holes, permission bits with sticky, modification times in
//! nanoseconds, symbolic links with their own times, empty directories, hard links within the tree,
//! and the topmost directory's own mode and time. Not kept: owners (a restore is owned by its
//! process), setuid and setgid, extended attributes, access times. Sockets, FIFOs, devices and
//! directories of other file systems are skipped and reported.
//!
//! # Format
//!
//! ```text
//! FORMAT              "longhaul snapshots format 1"; locked while the store is open
//! clock               touched to learn the time of the file system
//! <last byte>/        256 folders by the last byte of the pack's id, made when needed
//!   <id>.pack         a pack, see `pack.rs`
//!   <id>.tmp          one in the making; removed when the store opens
//! ```
//!
//! * An object is bytes named by their BLAKE3: a chunk of a file, or a tree (`tree.rs`), which is
//!   one directory. A snapshot is the digest of its topmost tree: equal trees have equal roots.
//! * Files up to 512 KiB are one chunk; bigger ones are cut by content (FastCDC as of 2020, 64 KiB
//!   to 1 MiB, 256 KiB on average) within segments of 16 MiB. How they are cut, and how well an
//!   object is compressed (zstd, or not at all), may change without a new format.
//! * An object is written once per chain: what the parent's tree reaches is not written again.
//!   Nothing else is shared, so that no live object depends on a snapshot that it does not know.
//!
//! # Order of writing
//!
//! temporary file → objects, index → `fdatasync` → rename → `fsync` of the folder → the caller's
//! row. Restored trees are not synced: the snapshot is the durable copy.
//!
//! # Order of deletion
//!
//! The caller deletes the row; then, in a [`Collection`], packs that no row names are unlinked, and
//! dead ranges of the others are freed in place. Where that leaves many or half-empty packs,
//! [`merge`](SnapshotStore::merge) writes one new pack, and the caller commits the new manifests.
//! What a running call needs is pinned, also when its row is deleted meanwhile.
//!
//! # Damage
//!
//! Index, trees and chunks are verified against their digests at every read, and every name, count
//! and length against its limit. A restore builds the tree beside its place and renames it only
//! when all of it was right.

use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod cache;
mod check;
mod chunks;
mod collection;
mod descent;
mod error;
mod files;
mod fill;
mod forest;
mod manifest;
mod merge;
mod moving;
mod objects;
mod opened;
mod output;
mod pack;
mod pins;
mod read;
mod remove;
mod restore;
mod take;
#[cfg(test)]
mod tests;
mod tree;
mod walk;
mod wire;
mod writer;

pub use cache::StatCache;
pub use check::{PackFault, SnapshotChecker};
pub use collection::{Collection, PackUse, ReclaimBudget, Reclaimed, Removed, lineages};
pub use error::SnapshotError;
pub use manifest::{Manifest, PACKS_MAX, PackId};
pub use merge::Merged;
pub use pins::Pin;
pub use remove::remove_tree;
pub use take::Taken;
pub use walk::{SKIPPED_MAX, SkipReason, Skipped};

use error::failed;
use objects::OpenPacks;
use pins::Pins;
use rustix::fs::OFlags;
use tree::Time;

/// The snapshot format that this version writes, and the newest it reads.
pub const FORMAT: u16 = 1;
/// Directories within directories, at most: about as many as one path can name.
pub const DEPTH_MAX: usize = 2_000;
/// Unfinished restores have a name that begins so, beside their destination. One whose process
/// died stays; the caller may remove it.
pub const RESTORING: &str = ".restoring-";

/// Longest chunk, plain.
const CHUNK_BYTES_MAX: usize = 1 << 20;
/// Longest object, plain: the listing of one directory.
const OBJECT_BYTES_MAX: usize = 256 << 20;
/// More threads do not help one snapshot.
const THREADS_MAX: usize = 4;
const FORMAT_FILE: &str = "FORMAT";
const CLOCK_FILE: &str = "clock";
const FORMAT_PREFIX: &str = "longhaul snapshots format ";

/// A BLAKE3 digest.
type Id = [u8; 32];

/// Settings of a [`SnapshotStore`].
#[derive(Debug, Clone)]
pub struct SnapshotOptions {
    /// Threads of one call: 0 for as many as there are processors, at most 4.
    pub threads: usize,
    /// Most entries of one tree, to take or to restore.
    pub entries_max: u64,
    /// Most bytes of content of one tree, holes not counted.
    pub bytes_max: u64,
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        Self {
            threads: 0,
            entries_max: 1_000_000,
            bytes_max: 64 << 30,
        }
    }
}

struct Limits {
    entries_max: u64,
    bytes_max: u64,
}

impl SnapshotOptions {
    fn threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS_MAX)),
            n => n.min(THREADS_MAX),
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            entries_max: self.entries_max,
            bytes_max: self.bytes_max,
        }
    }
}

/// A folder of snapshots. Clones are the same store.
#[derive(Debug, Clone)]
pub struct SnapshotStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    options: SnapshotOptions,
    /// Locked; the lock goes with it.
    format: File,
    clock: File,
    open: OpenPacks,
    pins: Pins,
}

/// Where a store has a pack.
fn pack_path(folder: &Path, pack: PackId) -> PathBuf {
    let shard = pack.0.last().copied().unwrap_or(0);
    folder.join(format!("{shard:02x}/{pack}.pack"))
}

impl Inner {
    fn pack_path(&self, pack: PackId) -> PathBuf {
        pack_path(&self.folder, pack)
    }

    /// Whether the folder is still the one that was opened. Where it is not, a missing pack says
    /// nothing.
    fn check_in_place(&self) -> Result<(), SnapshotError> {
        let there = std::fs::symlink_metadata(self.folder.join(FORMAT_FILE));
        let same = there.and_then(|there| {
            let ours = self.format.metadata()?;
            Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino()))
        });
        match same {
            Ok(true) => Ok(()),
            _ => Err(SnapshotError::Away {
                folder: self.folder.clone(),
            }),
        }
    }

    /// A pack, open.
    fn pack(&self, id: PackId) -> Result<Arc<pack::Pack>, SnapshotError> {
        let opened = self.open.get(&self.pack_path(id), id);
        if let Err(SnapshotError::Gone { .. }) = opened {
            self.check_in_place()?;
        }
        opened
    }

    /// The time of the file system, now.
    fn tick(&self) -> Result<Time, SnapshotError> {
        files::tick(&self.clock).map_err(failed("touch", &self.folder.join(CLOCK_FILE)))
    }

    /// Visits every file in the folders of packs.
    fn each_file(
        &self,
        mut visit: impl FnMut(&Path, &str) -> Result<(), SnapshotError>,
    ) -> Result<(), SnapshotError> {
        for shard in 0..=u8::MAX {
            let folder = self.folder.join(format!("{shard:02x}"));
            let list = match std::fs::read_dir(&folder) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                other => other.map_err(failed("list", &folder))?,
            };
            for entry in list {
                let entry = entry.map_err(failed("list", &folder))?;
                if let Some(name) = entry.file_name().to_str() {
                    visit(&folder.join(name), name)?;
                }
            }
        }
        Ok(())
    }

    fn packs(&self) -> Result<Vec<PackId>, SnapshotError> {
        let mut packs = Vec::new();
        self.each_file(|_, name| {
            packs.extend(name.strip_suffix(".pack").and_then(PackId::parse));
            Ok(())
        })?;
        packs.sort_unstable();
        Ok(packs)
    }
}

impl SnapshotStore {
    /// The folder that it was opened in.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Opens the store in `folder`, making it when it is not there, and removes what unfinished
    /// snapshots left.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Newer`], [`SnapshotError::InUse`], [`SnapshotError::Damaged`] for a format
    /// stamp that is none, [`SnapshotError::Full`], [`SnapshotError::Io`].
    pub fn open(folder: &Path, options: SnapshotOptions) -> Result<Self, SnapshotError> {
        std::fs::create_dir_all(folder).map_err(failed("create", folder))?;
        let format = stamp(folder)?;
        let path = folder.join(CLOCK_FILE);
        let clock = files::open_own(&path, OFlags::WRONLY | OFlags::CREATE);
        let inner = Inner {
            folder: folder.to_owned(),
            options,
            format,
            clock: clock.map_err(failed("create", &path))?,
            open: OpenPacks::default(),
            pins: Pins::default(),
        };
        inner.each_file(|path, name| match name.strip_suffix(".tmp") {
            Some(_) => std::fs::remove_file(path).map_err(failed("remove", path)),
            None => Ok(()),
        })?;
        Ok(Self(Arc::new(inner)))
    }

    /// Takes a snapshot of the directory `tree` into the new pack `pack`.
    ///
    /// What `parent` has is not written again; give the snapshot that the directory was restored
    /// from or last taken as. `cache` belongs to that directory alone, and saves reading what did
    /// not change. When it returns, the bytes are durable, and pinned by the value.
    ///
    /// Processes that write in the directory meanwhile should be stopped: each file is consistent
    /// in itself, all of them together are not; and one that changed at each of four readings is
    /// taken as a fifth one found it, up to the size that it had when that began. What its owner,
    /// if that is this process's user, made unreadable is made readable meanwhile.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Unreadable`] for what belongs to others and may not be read,
    /// [`SnapshotError::Away`], [`SnapshotError::Exists`] for a pack id that was used, [`SnapshotError::Limit`],
    /// [`SnapshotError::Gone`] and [`SnapshotError::Damaged`] when the parent cannot be read,
    /// [`SnapshotError::Full`], [`SnapshotError::Io`]. Then no pack is left, and the cache is as
    /// it was.
    pub fn take(
        &self,
        pack: PackId,
        tree: &Path,
        parent: Option<&Manifest>,
        cache: &mut StatCache,
    ) -> Result<Taken, SnapshotError> {
        take::take(&self.0, pack, tree, parent, cache)
    }

    /// Restores a snapshot as the directory `into`, which must not exist; the directory that it is
    /// in must. The cache that comes back is for the next [`take`](Self::take) of it.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Exists`], [`SnapshotError::Gone`], [`SnapshotError::Damaged`],
    /// [`SnapshotError::Newer`], [`SnapshotError::Limit`], [`SnapshotError::Full`],
    /// [`SnapshotError::Io`]. Then there is no `into`.
    pub fn restore(&self, manifest: &Manifest, into: &Path) -> Result<StatCache, SnapshotError> {
        restore::restore(&self.0, manifest, into)
    }

    /// Reads and verifies all that a restore would read, and writes nothing.
    ///
    /// # Errors
    ///
    /// As [`restore`](Self::restore).
    pub fn verify(&self, manifest: &Manifest) -> Result<(), SnapshotError> {
        restore::verify(&self.0, manifest)
    }

    /// Whether `folder` has a store in it.
    pub fn exists(folder: &Path) -> bool {
        folder.join(FORMAT_FILE).symlink_metadata().is_ok()
    }

    /// Whether the store's folder is still the one that was opened.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Away`].
    pub fn check_in_place(&self) -> Result<(), SnapshotError> {
        self.0.check_in_place()
    }

    /// Sees that every pack of a snapshot is there and whole by its index, which is cheap: what is
    /// in them is not read.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Gone`], [`SnapshotError::Away`], [`SnapshotError::Damaged`],
    /// [`SnapshotError::Newer`], [`SnapshotError::Io`].
    pub fn probe(&self, manifest: &Manifest) -> Result<(), SnapshotError> {
        manifest::check_format(manifest.format, "the manifest")?;
        manifest
            .packs
            .iter()
            .try_for_each(|id| self.0.pack(*id).map(drop))
    }

    /// Keeps a snapshot's bytes although its row may be deleted. The row must still be there.
    pub fn pin(&self, manifest: &Manifest) -> Pin {
        Pins::snapshot(&self.0, manifest)
    }

    /// Every pack on disk, ascending.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Io`].
    pub fn packs(&self) -> Result<Vec<PackId>, SnapshotError> {
        self.0.packs()
    }

    /// Begins a collection. Read the rows after it, not before.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Io`].
    pub fn collection(&self) -> Result<Collection, SnapshotError> {
        Collection::open(&self.0)
    }

    /// Copies what the snapshots `live` need of the packs `victims` into the new pack `pack`.
    /// Worth it for packs with much dead, and for snapshots in more than 32 packs. Commit the
    /// manifests that come back in place of the old ones, in one commit, before letting go; the
    /// victims are then unlinked by a collection.
    ///
    /// # Errors
    ///
    /// As [`take`](Self::take); then no pack is left.
    pub fn merge(
        &self,
        pack: PackId,
        live: &[Manifest],
        victims: &std::collections::HashSet<PackId>,
    ) -> Result<Merged, SnapshotError> {
        merge::merge(&self.0, pack, live, victims)
    }
}

/// Reads or writes the format stamp; gives it locked.
fn stamp(folder: &Path) -> Result<File, SnapshotError> {
    let path = folder.join(FORMAT_FILE);
    let opened = files::open_own(&path, OFlags::RDWR | OFlags::CREATE);
    let mut file = opened.map_err(failed("open", &path))?;
    file.try_lock().map_err(|e| match e {
        TryLockError::WouldBlock => SnapshotError::InUse {
            folder: folder.to_owned(),
        },
        TryLockError::Error(e) => failed("lock", &path)(e),
    })?;
    let mut text = Vec::new();
    let read = Read::by_ref(&mut file).take(64).read_to_end(&mut text);
    read.map_err(failed("read", &path))?;
    let stamp = format!("{FORMAT_PREFIX}{FORMAT}\n");
    // What a crash left of the very first opening is the beginning of it.
    if stamp.as_bytes().starts_with(&text) && text.len() < stamp.len() {
        let rest = stamp.as_bytes().get(text.len()..).unwrap_or_default();
        file.write_all(rest).map_err(failed("write", &path))?;
        file.sync_all().map_err(failed("sync", &path))?;
        writer::sync_folder(folder)?;
        return Ok(file);
    }
    let text = String::from_utf8_lossy(&text);
    let found = text
        .strip_prefix(FORMAT_PREFIX)
        .and_then(|t| t.trim().parse().ok());
    match found {
        Some(found) if found == u32::from(FORMAT) => Ok(file),
        Some(found) if found > u32::from(FORMAT) => Err(SnapshotError::Newer {
            what: path.display().to_string(),
            found,
        }),
        _ => Err(SnapshotError::damaged(format!(
            "{} is no format stamp",
            path.display()
        ))),
    }
}

/// Runs `work` on so many threads, at least one of them this, and gathers what they give.
fn on_threads<T: Send>(
    threads: usize,
    work: impl Fn() -> Result<Vec<T>, SnapshotError> + Sync,
) -> Result<Vec<T>, SnapshotError> {
    std::thread::scope(|scope| {
        let work = &work;
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut all = work();
        for other in others {
            let more = other
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            all = all.and_then(|mut all| {
                all.extend(more?);
                Ok(all)
            });
        }
        all
    })
}
