//! What can go wrong, by what the caller can do about it.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::manifest::PackId;

/// Why a snapshot was not taken, restored or collected.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Bytes that the snapshot needs were removed: a pack is missing, or its range was reclaimed.
    #[error("the snapshot is gone: {what} of pack {pack}")]
    Gone {
        /// The pack.
        pack: PackId,
        /// Which part of it.
        what: &'static str,
    },
    /// Bytes on disk or in a row are not what was written.
    #[error("the snapshot is damaged: {what}")]
    Damaged {
        /// What, and where.
        what: String,
    },
    /// Written by a newer version.
    #[error("{what} has snapshot format {found}, newer than {newest}", newest = super::FORMAT)]
    Newer {
        /// The file or the row.
        what: String,
        /// Its format.
        found: u32,
    },
    /// No room on the disk. Nothing was kept; it works again when there is room.
    #[error("the disk of {} is full", path.display())]
    Full {
        /// The file that was being written.
        path: PathBuf,
    },
    /// Beyond a limit of the options or of the format.
    #[error("more than {max} {which}")]
    Limit {
        /// What there is too much of.
        which: &'static str,
        /// How much is allowed.
        max: u64,
    },
    /// An entry of the tree belongs to somebody else, and may not be read.
    #[error("{} may not be read: {source}", path.display())]
    Unreadable {
        /// The entry, relative to the tree.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The store's folder is not the one that was opened: its disk is not mounted, say. Nothing is
    /// known of what is in it.
    #[error("the folder of snapshots, {}, is not there: is its disk mounted?", folder.display())]
    Away {
        /// The folder.
        folder: PathBuf,
    },
    /// What was to be made is there: the destination of a restore, or a pack of that id.
    #[error("{} exists", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// Another process, or another store of this one, has the folder open.
    #[error("{} is in use", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// A system call failed.
    #[error("cannot {op} {}: {source}", path.display())]
    Io {
        /// What was tried, for a sentence.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl SnapshotError {
    pub(super) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged { what: what.into() }
    }

    /// Whether the system said that the path does not exist, or not as a directory.
    pub(super) fn is_missing(&self) -> bool {
        let Self::Io { source, .. } = self else {
            return false;
        };
        let number = source.raw_os_error().map(Errno::from_raw_os_error);
        number.is_some_and(is_elsewhere)
    }
}

/// Whether a name is not what it was when its directory was listed: removed, or another kind of
/// entry.
pub(super) fn is_elsewhere(e: Errno) -> bool {
    matches!(
        e,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE | Errno::INVAL
    )
}

/// As [`failed`], for an entry of the tree that a snapshot is taken of.
pub(super) fn in_tree(op: &'static str, path: PathBuf) -> impl FnOnce(Errno) -> SnapshotError {
    move |e| match e {
        Errno::ACCESS | Errno::PERM => SnapshotError::Unreadable {
            path,
            source: e.into(),
        },
        other => failed(op, &path)(other),
    }
}

/// Turns a failed system call into a [`SnapshotError`].
pub(super) fn failed<E: Into<io::Error>>(
    op: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> SnapshotError {
    move |source| {
        let source = source.into();
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                SnapshotError::Full { path }
            }
            _ => SnapshotError::Io { op, path, source },
        }
    }
}
