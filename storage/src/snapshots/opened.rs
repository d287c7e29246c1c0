//! Entries that their owner made unreadable to itself: made readable while a snapshot is taken.
//!
//! Whoever owns a file may always change its mode. What a snapshot records is the mode from
//! before; the entry gets it back when the snapshot is over, whichever way it ends.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::files::{self, Stat};

/// All that `chmod` sets.
const ALL_BITS: u16 = 0o7777;

struct Changed {
    /// Names from the topmost directory; none = that one itself.
    path: Vec<Box<[u8]>>,
    id: (u64, u64),
    before: u16,
    now: u16,
}

/// What was made readable. A drop gives everything its mode back.
#[derive(Default)]
pub(super) struct Opened {
    root: Option<OwnedFd>,
    changed: Vec<Changed>,
    /// The modes of files from before, by device and inode: a file may have several names.
    files: HashMap<(u64, u64), u16>,
}

impl Opened {
    /// Opens the topmost directory; its state from before comes with it.
    pub(super) fn root(&mut self, tree: &Path) -> Result<(OwnedFd, Stat), Errno> {
        let place = files::place(rustix::fs::CWD, tree.as_os_str().as_bytes())?;
        let before = files::stat(&place)?;
        let root = self.directory(&place, Vec::new, || files::open_root(tree))?;
        self.root = Some(root.try_clone().map_err(|_| Errno::MFILE)?);
        Ok((root, before))
    }

    /// Opens a directory for its listing and for what is in it; its state from before comes with
    /// it. `path` are the names that lead to it.
    pub(super) fn dir(
        &mut self,
        above: &OwnedFd,
        name: &[u8],
        path: impl FnOnce() -> Vec<Box<[u8]>>,
    ) -> Result<(OwnedFd, Stat), Errno> {
        let place = files::place(above, name)?;
        let before = files::stat(&place)?;
        let fd = self.directory(&place, path, || files::open_dir(above, name))?;
        Ok((fd, before))
    }

    fn directory(
        &mut self,
        place: &OwnedFd,
        path: impl FnOnce() -> Vec<Box<[u8]>>,
        open: impl Fn() -> Result<OwnedFd, Errno>,
    ) -> Result<OwnedFd, Errno> {
        // One without the right to search opens, and gives nothing of what is in it.
        let whole = || open().and_then(|fd| files::stat_at(&fd, b".").map(|_| fd));
        match whole() {
            Err(Errno::ACCESS) => {
                self.open_up(place, 0o500, path)?;
                whole()
            }
            other => other,
        }
    }

    /// Sees to it that a file can be read, and gives its state then.
    pub(super) fn file(
        &mut self,
        dir: &OwnedFd,
        name: &[u8],
        stat: Stat,
        path: impl FnOnce() -> Vec<Box<[u8]>>,
    ) -> Result<Stat, Errno> {
        if stat.mode & 0o400 != 0 || !files::is_ours(&stat) {
            return Ok(stat);
        }
        match files::open_file(dir, name) {
            Err(Errno::ACCESS) => {}
            // What else is wrong shows when it is read.
            _ => return Ok(stat),
        }
        let place = files::place(dir, name)?;
        let now = files::stat(&place)?;
        if (now.dev, now.ino) != (stat.dev, stat.ino) {
            return Err(Errno::STALE);
        }
        self.open_up(&place, 0o400, path)?;
        self.files.insert((now.dev, now.ino), now.permissions());
        files::stat(&place)
    }

    /// The mode that a file had before it was made readable.
    pub(super) fn mode_before(&self, stat: &Stat) -> Option<u16> {
        self.files.get(&(stat.dev, stat.ino)).copied()
    }

    fn open_up(
        &mut self,
        place: &OwnedFd,
        bits: u16,
        path: impl FnOnce() -> Vec<Box<[u8]>>,
    ) -> Result<(), Errno> {
        let stat = files::stat(place)?;
        let right_kind = matches!(stat.kind(), FileType::Directory | FileType::RegularFile);
        if !right_kind || !files::is_ours(&stat) {
            return Err(Errno::ACCESS);
        }
        let before = stat.mode & ALL_BITS;
        let now = before | bits;
        files::set_place_mode(place, now)?;
        self.changed.push(Changed {
            path: path(),
            id: (stat.dev, stat.ino),
            before,
            now,
        });
        Ok(())
    }

    fn give_back(&self, root: &OwnedFd, changed: &Changed) -> Result<(), Errno> {
        let mut place = root.try_clone().map_err(|_| Errno::MFILE)?;
        for name in &changed.path {
            place = files::place(&place, name)?;
        }
        let stat = files::stat(&place)?;
        // Whatever came in its place, or got another mode meanwhile, keeps that.
        if (stat.dev, stat.ino) == changed.id && stat.mode & ALL_BITS == changed.now {
            files::set_place_mode(&place, changed.before)?;
        }
        Ok(())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let Some(root) = self.root.take() else {
            return;
        };
        // What is deeper was changed later: above it everything is still open.
        for changed in self.changed.iter().rev() {
            // It was removed, or moved away.
            let _ = self.give_back(&root, changed);
        }
    }
}
