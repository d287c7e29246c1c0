//! Walking a working directory: everything in it, before any file is read.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

use super::error::{SnapshotError, failed};
use super::files::{self, Stat};
use super::tree::{FileNode, Time};
use super::{DEPTH_MAX, Limits};

/// Most skipped entries that are named.
pub const SKIPPED_MAX: usize = 100;
const LISTING_BYTES: usize = 64 << 10;

/// Why an entry is not in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipReason {
    /// It is a socket, a FIFO or a device.
    Special,
    /// It is a directory of another file system, mounted there.
    Mount,
}

/// An entry that is not in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Its path in the tree.
    pub path: PathBuf,
    /// Why.
    pub reason: SkipReason,
}

pub(super) enum What {
    /// Index of the directory.
    Dir(usize),
    File(Found),
    Symlink {
        mtime: Time,
        target: Box<[u8]>,
    },
    /// It was removed while the tree was read.
    Gone,
}

/// A file as it was seen.
pub(super) struct Found {
    pub(super) stat: Stat,
    /// Where the first name of the same file is: directory and entry. That one is read.
    pub(super) same_as: Option<(usize, usize)>,
    /// Once it is read, or known.
    pub(super) node: Option<FileNode>,
}

pub(super) struct WalkedEntry {
    pub(super) name: Box<[u8]>,
    pub(super) what: What,
}

pub(super) struct WalkedDir {
    /// The topmost one is its own parent.
    pub(super) parent: usize,
    pub(super) name: Box<[u8]>,
    pub(super) mode: u16,
    pub(super) mtime: Time,
    pub(super) entries: Vec<WalkedEntry>,
}

/// A tree as it was found; directories come before what is in them.
pub(super) struct Walked {
    pub(super) root: OwnedFd,
    pub(super) dirs: Vec<WalkedDir>,
    pub(super) entries: u64,
    pub(super) skipped: Vec<Skipped>,
    pub(super) skipped_count: u64,
}

impl Walked {
    pub(super) fn dir_path(&self, index: usize) -> PathBuf {
        let mut names = Vec::new();
        let mut at = index;
        while let Some(dir) = self.dirs.get(at).filter(|dir| dir.parent != at) {
            names.push(&dir.name);
            at = dir.parent;
        }
        let names = names.iter().rev().map(|n| std::ffi::OsStr::from_bytes(n));
        names.collect()
    }

    pub(super) fn path(&self, dir: usize, name: &[u8]) -> PathBuf {
        self.dir_path(dir).join(std::ffi::OsStr::from_bytes(name))
    }

    /// Opens a directory name by name from the topmost one.
    pub(super) fn open_dir(&self, index: usize) -> Result<OwnedFd, SnapshotError> {
        let mut names = Vec::new();
        let mut at = index;
        while let Some(dir) = self.dirs.get(at).filter(|dir| dir.parent != at) {
            names.push(&dir.name);
            at = dir.parent;
        }
        let mut fd = self
            .root
            .try_clone()
            .map_err(failed("open", Path::new(".")))?;
        for name in names.iter().rev() {
            let open = files::open_dir(&fd, name);
            fd = open.map_err(|e| failed("open", &self.dir_path(index))(e))?;
        }
        Ok(fd)
    }
}

struct Walker<'a> {
    walked: Walked,
    limits: &'a Limits,
    device: u64,
    listing: Vec<MaybeUninit<u8>>,
    /// Files with several names: where the first one is.
    several: HashMap<(u64, u64), (usize, usize)>,
}

/// Looks at everything below `tree`.
pub(super) fn walk(tree: &Path, limits: &Limits) -> Result<Walked, SnapshotError> {
    let root = files::open_root(tree).map_err(failed("open", tree))?;
    let stat = files::stat(&root).map_err(failed("stat", tree))?;
    let start = root.try_clone().map_err(failed("open", tree))?;
    let mut walker = Walker {
        walked: Walked {
            root,
            dirs: Vec::new(),
            entries: 0,
            skipped: Vec::new(),
            skipped_count: 0,
        },
        limits,
        device: stat.dev,
        listing: vec![MaybeUninit::uninit(); LISTING_BYTES],
        several: HashMap::new(),
    };
    walker.dir(&start, stat, 0, Box::default(), 0)?;
    Ok(walker.walked)
}

impl Walker<'_> {
    /// At most `DEPTH_MAX` calls deep, with one open directory each.
    fn dir(
        &mut self,
        fd: &OwnedFd,
        stat: Stat,
        parent: usize,
        name: Box<[u8]>,
        depth: usize,
    ) -> Result<usize, SnapshotError> {
        if depth > DEPTH_MAX {
            return Err(SnapshotError::Limit {
                which: "levels of directories",
                max: DEPTH_MAX as u64,
            });
        }
        let index = self.walked.dirs.len();
        self.walked.dirs.push(WalkedDir {
            parent,
            name,
            mode: stat.permissions(),
            mtime: stat.mtime,
            entries: Vec::new(),
        });
        let names = self.names(fd, index)?;
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            if let Some(what) = self.entry(fd, index, entries.len(), &name, depth)? {
                entries.push(WalkedEntry { name, what });
            }
        }
        if let Some(dir) = self.walked.dirs.get_mut(index) {
            dir.entries = entries;
        }
        Ok(index)
    }

    fn names(&mut self, fd: &OwnedFd, index: usize) -> Result<Vec<Box<[u8]>>, SnapshotError> {
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut list = RawDir::new(fd, &mut self.listing);
        while let Some(entry) = list.next() {
            let entry = entry.map_err(|e| failed("list", &self.walked.dir_path(index))(e))?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            names.push(name.into());
            if self.walked.entries + names.len() as u64 > self.limits.entries_max {
                return Err(SnapshotError::Limit {
                    which: "entries",
                    max: self.limits.entries_max,
                });
            }
        }
        self.walked.entries += names.len() as u64;
        names.sort_unstable();
        Ok(names)
    }

    fn entry(
        &mut self,
        fd: &OwnedFd,
        dir: usize,
        entry: usize,
        name: &[u8],
        depth: usize,
    ) -> Result<Option<What>, SnapshotError> {
        match self.look(fd, dir, entry, name, depth) {
            Err(error) if error.is_missing() => {
                self.walked.entries -= 1;
                Ok(None)
            }
            other => other,
        }
    }

    fn look(
        &mut self,
        fd: &OwnedFd,
        dir: usize,
        entry: usize,
        name: &[u8],
        depth: usize,
    ) -> Result<Option<What>, SnapshotError> {
        let io = |op, e: Errno, walked: &Walked| failed(op, &walked.path(dir, name))(e);
        let stat = files::stat_at(fd, name).map_err(|e| io("stat", e, &self.walked))?;
        match stat.kind() {
            FileType::Directory => {
                let child = files::open_dir(fd, name).map_err(|e| io("open", e, &self.walked))?;
                let stat = files::stat(&child).map_err(|e| io("stat", e, &self.walked))?;
                if stat.dev != self.device {
                    self.skip(dir, name, SkipReason::Mount);
                    return Ok(None);
                }
                let index = self.dir(&child, stat, dir, name.into(), depth + 1)?;
                Ok(Some(What::Dir(index)))
            }
            FileType::RegularFile => {
                let mut same_as = None;
                if stat.links > 1 {
                    let first = *self
                        .several
                        .entry((stat.dev, stat.ino))
                        .or_insert((dir, entry));
                    same_as = (first != (dir, entry)).then_some(first);
                }
                Ok(Some(What::File(Found {
                    stat,
                    same_as,
                    node: None,
                })))
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(fd.as_fd(), name, Vec::new());
                let target = target.map_err(|e| io("read", e, &self.walked))?;
                Ok(Some(What::Symlink {
                    mtime: stat.mtime,
                    target: target.into_bytes().into(),
                }))
            }
            _ => {
                self.skip(dir, name, SkipReason::Special);
                Ok(None)
            }
        }
    }

    fn skip(&mut self, dir: usize, name: &[u8], reason: SkipReason) {
        self.walked.entries -= 1;
        self.walked.skipped_count += 1;
        if self.walked.skipped.len() < SKIPPED_MAX {
            let path = self.walked.path(dir, name);
            self.walked.skipped.push(Skipped { path, reason });
        }
    }
}
