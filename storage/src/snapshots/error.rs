//! What can go wrong, by what the caller can do about it.

use std::io;
use std::path::{Path, PathBuf};

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
    /// A file changed each time that it was read.
    #[error("{} does not hold still", path.display())]
    Moving {
        /// The file, relative to the tree.
        path: PathBuf,
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

    /// Whether the system said that the path does not exist.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
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
