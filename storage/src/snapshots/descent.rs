//! Going down a tree of any depth, with few directories open at a time.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::files;

/// Directories that are held open, counted from the deepest. A process may often have no more
/// than 1,024 descriptors, and several trees are looked at at once.
const OPEN_MAX: usize = 32;

struct Level {
    name: Box<[u8]>,
    /// Device and inode.
    id: (u64, u64),
    fd: Option<Arc<OwnedFd>>,
}

/// Where one is in a tree. The deepest directories are open; one further up is opened again by its
/// name when it is needed, and must still be the same.
pub(super) struct Descent {
    root: Arc<OwnedFd>,
    levels: Vec<Level>,
}

impl Descent {
    /// At the topmost directory.
    pub(super) fn new(root: OwnedFd) -> Self {
        Self {
            root: Arc::new(root),
            levels: Vec::new(),
        }
    }

    /// How far down it is; 0 at the topmost directory.
    pub(super) fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Goes into a directory of the one where it is.
    pub(super) fn enter(&mut self, name: &[u8], fd: OwnedFd) -> Result<(), Errno> {
        let stat = files::stat(&fd)?;
        self.levels.push(Level {
            name: name.into(),
            id: (stat.dev, stat.ino),
            fd: Some(Arc::new(fd)),
        });
        let far = self.levels.len().checked_sub(OPEN_MAX + 1);
        if let Some(level) = far.and_then(|far| self.levels.get_mut(far)) {
            level.fd = None;
        }
        Ok(())
    }

    /// Goes back up.
    pub(super) fn leave(&mut self) {
        self.levels.pop();
    }

    /// The directory where it is.
    ///
    /// [`Errno::NOENT`] and [`Errno::NOTDIR`] when it, or one above it, is not there any more;
    /// [`Errno::STALE`] when another took its place.
    pub(super) fn here(&mut self) -> Result<Arc<OwnedFd>, Errno> {
        match self.levels.last() {
            None => Ok(Arc::clone(&self.root)),
            Some(Level { fd: Some(fd), .. }) => Ok(Arc::clone(fd)),
            Some(_) => self.reopen(),
        }
    }

    /// Opens the way down again, and keeps the deepest part of it open.
    fn reopen(&mut self) -> Result<Arc<OwnedFd>, Errno> {
        let keep_from = self.levels.len().saturating_sub(OPEN_MAX);
        let mut at = Arc::clone(&self.root);
        for (index, level) in self.levels.iter_mut().enumerate() {
            let fd = files::open_dir(&at, &level.name)?;
            let stat = files::stat(&fd)?;
            if (stat.dev, stat.ino) != level.id {
                return Err(Errno::STALE);
            }
            at = Arc::new(fd);
            if index >= keep_from {
                level.fd = Some(Arc::clone(&at));
            }
        }
        Ok(at)
    }
}

/// Finds one directory after the other in a list where each names the one that it is in, and comes
/// after it. From one to the next it goes the shortest way.
pub(super) struct Finder {
    descent: Descent,
    /// The directories on the way down, ascending.
    way: Vec<usize>,
}

impl Finder {
    /// In the tree of this topmost directory.
    pub(super) fn new(root: OwnedFd) -> Self {
        Self {
            descent: Descent::new(root),
            way: Vec::new(),
        }
    }

    /// Opens a directory. `about` gives what one is in and its name there; the topmost one is in
    /// itself. Errors are those of [`Descent::here`].
    pub(super) fn find<'d>(
        &mut self,
        dir: usize,
        about: impl Fn(usize) -> Option<(usize, &'d [u8])>,
    ) -> Result<Arc<OwnedFd>, Errno> {
        let mut down = Vec::new();
        let (mut at, mut keep) = (dir, 0);
        while let Some((parent, name)) = about(at).filter(|(parent, _)| *parent != at) {
            if let Ok(known) = self.way.binary_search(&at) {
                keep = known + 1;
                break;
            }
            down.push((at, name));
            at = parent;
        }
        while self.way.len() > keep {
            self.way.pop();
            self.descent.leave();
        }
        for (dir, name) in down.into_iter().rev() {
            let fd = files::open_dir(self.descent.here()?, name)?;
            self.descent.enter(name, fd)?;
            self.way.push(dir);
        }
        self.descent.here()
    }
}
