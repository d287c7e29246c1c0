//! Walking a working directory: everything in it, before any file is read.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

use super::descent::Descent;
use super::error::{SnapshotError, failed, in_tree, is_elsewhere};
use super::files::{self, Stat};
use super::opened::Opened;
use super::tree::{FileNode, Time};
use super::{DEPTH_MAX, Limits};

/// Most skipped entries that are named.
pub const SKIPPED_MAX: usize = 100;
const LISTING_BYTES: usize = 64 << 10;
/// Longest path in a message.
const SHOWN_BYTES_MAX: usize = 512;
/// How often a name is looked at that becomes another kind of entry each time.
const LOOKS_MAX: usize = 4;

/// Why an entry is not in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipReason {
    /// It is a socket, a FIFO or a device.
    Special,
    /// It is a directory of another file system, mounted there.
    Mount,
    /// It was a file when the directory was listed, and became something else.
    Changed,
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

/// Which entry: directory and number.
pub(super) type At = (usize, usize);

/// A file as it was seen.
pub(super) struct Found {
    pub(super) stat: Stat,
    /// Where the first name of the same file is: directory and entry. That one is read.
    pub(super) same_as: Option<At>,
    /// The mode that it had before it was made readable for this.
    pub(super) mode_before: Option<u16>,
    /// Whether it held still: otherwise nothing may be known of it later.
    pub(super) is_steady: bool,
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
    /// Closed again when all is read.
    pub(super) opened: Opened,
    pub(super) dirs: Vec<WalkedDir>,
    pub(super) entries: u64,
    pub(super) skipped: Vec<Skipped>,
    pub(super) skipped_count: u64,
}

impl Walked {
    /// The path of an entry.
    pub(super) fn full_path(&self, dir: usize, name: &[u8]) -> PathBuf {
        let names = names_to(&self.dirs, dir).into_iter().chain([name]);
        names.map(OsStr::from_bytes).collect()
    }

    /// The path of an entry, for messages: of a very long one, the end.
    pub(super) fn path(&self, dir: usize, name: &[u8]) -> PathBuf {
        let path = self.full_path(dir, name);
        let bytes = path.as_os_str().as_bytes();
        match bytes.len().checked_sub(SHOWN_BYTES_MAX) {
            None | Some(0) => path,
            Some(cut) => {
                let end = bytes.get(cut..).unwrap_or_default();
                Path::new("…").join(OsStr::from_bytes(end.trim_ascii_start()))
            }
        }
    }

    /// What a directory is in, and its name there.
    pub(super) fn about(&self, dir: usize) -> Option<(usize, &[u8])> {
        self.dirs.get(dir).map(|dir| (dir.parent, &*dir.name))
    }

    /// Opens a directory name by name from the topmost one.
    pub(super) fn open_dir(&self, index: usize) -> Result<OwnedFd, SnapshotError> {
        let mut fd = self
            .root
            .try_clone()
            .map_err(failed("open", Path::new(".")))?;
        for name in names_to(&self.dirs, index) {
            let open = files::open_dir(&fd, name);
            fd = open.map_err(|e| in_tree("open", self.path(index, b""))(e))?;
        }
        Ok(fd)
    }
}

/// A directory whose entries are being looked at.
struct Frame {
    index: usize,
    names: std::vec::IntoIter<Box<[u8]>>,
    entries: Vec<WalkedEntry>,
}

/// An entry as it was seen.
enum Seen {
    /// A directory, open, with its state from before it was.
    Dir(OwnedFd, Stat),
    Other(What),
    Skip(SkipReason),
}

struct Walker<'a> {
    walked: Walked,
    limits: &'a Limits,
    device: u64,
    listing: Vec<MaybeUninit<u8>>,
    /// Files with several names: where the first one is.
    several: HashMap<(u64, u64), At>,
    /// The way down to the last of the frames.
    descent: Descent,
    frames: Vec<Frame>,
}

/// Looks at everything below `tree`.
pub(super) fn walk(tree: &Path, limits: &Limits) -> Result<Walked, SnapshotError> {
    let mut opened = Opened::default();
    let root = opened.root(tree);
    let (root, stat) = root.map_err(|e| failed("open", tree)(e))?;
    let start = root.try_clone().map_err(failed("open", tree))?;
    let above = root.try_clone().map_err(failed("open", tree))?;
    let mut walker = Walker {
        walked: Walked {
            root,
            opened,
            dirs: Vec::new(),
            entries: 0,
            skipped: Vec::new(),
            skipped_count: 0,
        },
        limits,
        device: stat.dev,
        listing: vec![MaybeUninit::uninit(); LISTING_BYTES],
        several: HashMap::new(),
        descent: Descent::new(above),
        frames: Vec::new(),
    };
    walker.begin(&start, &stat, 0, Box::default())?;
    walker.everything()?;
    Ok(walker.walked)
}

impl Walker<'_> {
    fn everything(&mut self) -> Result<(), SnapshotError> {
        while let Some(frame) = self.frames.last_mut() {
            let dir = frame.index;
            let Some(name) = frame.names.next() else {
                let entries = std::mem::take(&mut frame.entries);
                if let Some(dir) = self.walked.dirs.get_mut(dir) {
                    dir.entries = entries;
                }
                self.frames.pop();
                self.descent.leave();
                continue;
            };
            let at = (dir, frame.entries.len());
            let what = match self.look(at, &name)? {
                None => None,
                Some(Seen::Other(what)) => Some(what),
                Some(Seen::Skip(reason)) => {
                    self.walked.skip(dir, &name, reason);
                    continue;
                }
                Some(Seen::Dir(fd, stat)) => self.enter(fd, &stat, dir, &name)?.map(What::Dir),
            };
            match (what, self.frame_of(dir)) {
                (Some(what), Some(frame)) => frame.entries.push(WalkedEntry { name, what }),
                _ => self.walked.entries -= 1,
            }
        }
        Ok(())
    }

    /// The frame of a directory: the last one, or the one before it.
    fn frame_of(&mut self, dir: usize) -> Option<&mut Frame> {
        self.frames.iter_mut().rev().find(|f| f.index == dir)
    }

    /// Goes into a directory; `None` when it was removed meanwhile.
    fn enter(
        &mut self,
        fd: OwnedFd,
        stat: &Stat,
        parent: usize,
        name: &[u8],
    ) -> Result<Option<usize>, SnapshotError> {
        if self.descent.depth() >= DEPTH_MAX {
            return Err(SnapshotError::Limit {
                which: "levels of directories",
                max: DEPTH_MAX as u64,
            });
        }
        let index = match self.begin(&fd, stat, parent, name.into()) {
            Err(error) if error.is_missing() => return Ok(None),
            other => other?,
        };
        let entered = self.descent.enter(name, fd);
        entered.map_err(|e| in_tree("stat", self.walked.path(parent, name))(e))?;
        Ok(Some(index))
    }

    /// Lists a directory and begins to look at what is in it.
    fn begin(
        &mut self,
        fd: &OwnedFd,
        stat: &Stat,
        parent: usize,
        name: Box<[u8]>,
    ) -> Result<usize, SnapshotError> {
        let names = self.names(fd, parent, &name)?;
        let index = self.walked.dirs.len();
        self.walked.dirs.push(WalkedDir {
            parent,
            name,
            mode: stat.permissions(),
            mtime: stat.mtime,
            entries: Vec::new(),
        });
        self.frames.push(Frame {
            index,
            entries: Vec::with_capacity(names.len()),
            names: names.into_iter(),
        });
        Ok(index)
    }

    fn names(
        &mut self,
        fd: &OwnedFd,
        parent: usize,
        name: &[u8],
    ) -> Result<Vec<Box<[u8]>>, SnapshotError> {
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut list = RawDir::new(fd, &mut self.listing);
        while let Some(entry) = list.next() {
            let entry = entry.map_err(|e| in_tree("list", self.walked.path(parent, name))(e))?;
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

    /// Looks at an entry; `None` when it is not there any more.
    fn look(&mut self, at: At, name: &[u8]) -> Result<Option<Seen>, SnapshotError> {
        let fd = match self.descent.here() {
            Ok(fd) => fd,
            Err(e) if is_elsewhere(e) => return Ok(None),
            Err(e) => return Err(in_tree("open", self.walked.path(at.0, b""))(e)),
        };
        for _ in 0..LOOKS_MAX {
            match self.look_once(&fd, at, name) {
                Ok(seen) => return Ok(Some(seen)),
                Err((_, Errno::NOENT)) => return Ok(None),
                // It became another kind of entry in between.
                Err((_, e)) if is_elsewhere(e) => {}
                Err((op, e)) => return Err(in_tree(op, self.walked.path(at.0, name))(e)),
            }
        }
        Ok(Some(Seen::Skip(SkipReason::Changed)))
    }

    fn look_once(
        &mut self,
        fd: &OwnedFd,
        at: At,
        name: &[u8],
    ) -> Result<Seen, (&'static str, Errno)> {
        let stat = files::stat_at(fd, name).map_err(|e| ("stat", e))?;
        let Walked { opened, dirs, .. } = &mut self.walked;
        let path = || path_to(dirs, at.0, name);
        match stat.kind() {
            FileType::Directory if stat.dev != self.device => Ok(Seen::Skip(SkipReason::Mount)),
            FileType::Directory => {
                let (child, stat) = opened.dir(fd, name, path).map_err(|e| ("open", e))?;
                Ok(match stat.dev == self.device {
                    true => Seen::Dir(child, stat),
                    false => Seen::Skip(SkipReason::Mount),
                })
            }
            FileType::RegularFile => {
                let stat = opened.file(fd, name, stat, path);
                let stat = stat.map_err(|e| ("open", e))?;
                let mut same_as = None;
                if stat.links > 1 {
                    let first = *self.several.entry((stat.dev, stat.ino)).or_insert(at);
                    same_as = (first != at).then_some(first);
                }
                Ok(Seen::Other(What::File(Found {
                    stat,
                    same_as,
                    mode_before: self.walked.opened.mode_before(&stat),
                    is_steady: true,
                    node: None,
                })))
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(fd.as_fd(), name, Vec::new());
                let target = target.map_err(|e| ("read", e))?;
                Ok(Seen::Other(What::Symlink {
                    mtime: stat.mtime,
                    target: target.into_bytes().into(),
                }))
            }
            _ => Ok(Seen::Skip(SkipReason::Special)),
        }
    }
}

/// The names that lead to a directory.
fn names_to(dirs: &[WalkedDir], dir: usize) -> Vec<&[u8]> {
    let mut names = Vec::new();
    let mut at = dir;
    while let Some(dir) = dirs.get(at).filter(|dir| dir.parent != at) {
        names.push(&*dir.name);
        at = dir.parent;
    }
    names.reverse();
    names
}

/// The names that lead to an entry of a directory.
fn path_to(dirs: &[WalkedDir], dir: usize, name: &[u8]) -> Vec<Box<[u8]>> {
    let names = names_to(dirs, dir).into_iter().chain([name]);
    names.map(Into::into).collect()
}

impl Walked {
    /// Notes that an entry that was counted is not in the snapshot.
    pub(super) fn skip(&mut self, dir: usize, name: &[u8], reason: SkipReason) {
        self.entries -= 1;
        self.skipped_count += 1;
        if self.skipped.len() < SKIPPED_MAX {
            let path = self.path(dir, name);
            self.skipped.push(Skipped { path, reason });
        }
    }
}
