//! Restoring a snapshot: beside its place, then under its name.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{AtFlags, Mode, RenameFlags};
use rustix::io::Errno;

use super::cache::{Known, StatCache};
use super::descent::{Descent, Finder};
use super::error::{SnapshotError, failed};
use super::files::{self, Stat};
use super::forest::{self, Planted};
use super::manifest::{Manifest, check_format};
use super::objects::Objects;
use super::pack::Scratch;
use super::pins::Pins;
use super::tree::{Entry, FileNode, Node, Time};
use super::{Inner, RESTORING};
use crate::fault::point;

/// One job is so many entries of a directory, or so many bytes.
const JOB_ENTRIES: usize = 64;
const JOB_BYTES: u64 = 8 << 20;
/// How often the clock of the file system is asked to move on: some milliseconds at most.
const TICKS_MAX: usize = 50_000;

/// First name of a group of links: directory and entry.
type Groups<'a> = HashMap<[u8; 16], (usize, usize, &'a FileNode)>;

/// Numbers the unfinished restores of this process.
static RESTORES: AtomicU64 = AtomicU64::new(0);

pub(super) fn restore(
    inner: &Arc<Inner>,
    manifest: &Manifest,
    into: &Path,
) -> Result<StatCache, SnapshotError> {
    check_format(manifest.format, "the manifest")?;
    let _pin = Pins::snapshot(inner, manifest);
    let objects = Objects::of(inner, &[manifest])?;
    let dirs = forest::read(&objects, manifest, &inner.options.limits())?;
    let groups = groups(&dirs)?;
    if into.symlink_metadata().is_ok() {
        return Err(SnapshotError::Exists {
            path: into.to_owned(),
        });
    }
    let beside = Beside::make(into)?;
    point("restore::made");
    let root = files::open_root(&beside.path).map_err(failed("open", &beside.path))?;
    let work = Restore {
        objects: &objects,
        dirs: &dirs,
        groups: &groups,
        root: &root,
        place: &beside.path,
    };
    work.each_dir(true)?;
    let mut files = work.files(inner.options.threads())?;
    files.extend(work.links()?);
    let now = settle(&root, files.iter().map(|(stat, _)| stat.ctime).max())
        .map_err(failed("stamp", &beside.path))?;
    work.each_dir(false)?;
    point("restore::filled");
    beside.rename(into)?;
    point("restore::renamed");
    Ok(StatCache::restored(now, files.into_iter()))
}

/// Waits until the clock of the file system has moved past the newest file: then any later change
/// shows. Gives up in the end: what is too young is then read again.
fn settle(root: &OwnedFd, newest: Option<Time>) -> std::io::Result<Time> {
    let mut now = files::tick(root)?;
    let mut ticks = 0;
    while newest.is_some_and(|newest| newest >= now) && ticks < TICKS_MAX {
        std::thread::yield_now();
        now = files::tick(root)?;
        ticks += 1;
    }
    Ok(now)
}

fn groups(dirs: &[Planted]) -> Result<Groups<'_>, SnapshotError> {
    let mut groups = Groups::new();
    for (d, dir) in dirs.iter().enumerate() {
        for (e, entry) in dir.tree.entries.iter().enumerate() {
            if let Node::File(file) = &entry.node
                && let Some(link) = file.link
                && groups.entry(link).or_insert((d, e, file)).2 != file
            {
                return Err(SnapshotError::damaged("names of one file that differ"));
            }
        }
    }
    Ok(groups)
}

/// The unfinished tree, removed by a drop.
struct Beside {
    path: PathBuf,
    done: bool,
}

impl Beside {
    fn make(into: &Path) -> Result<Self, SnapshotError> {
        let pid = rustix::process::getpid().as_raw_nonzero();
        let number = RESTORES.fetch_add(1, Ordering::Relaxed);
        let path = into.with_file_name(format!("{RESTORING}{pid}-{number}"));
        // A process of the same id may have died in the middle.
        if path.symlink_metadata().is_ok() {
            let _ = super::remove_tree(&path);
        }
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Err(Errno::EXIST) => Err(SnapshotError::Exists { path }),
            Err(e) => Err(failed("create", &path)(e)),
            Ok(()) => Ok(Self { path, done: false }),
        }
    }

    fn rename(mut self, into: &Path) -> Result<(), SnapshotError> {
        let cwd = rustix::fs::CWD;
        let flags = RenameFlags::NOREPLACE;
        let renamed = match rustix::fs::renameat_with(cwd, &self.path, cwd, into, flags) {
            // Not every file system can; a directory never replaces one that holds something.
            Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::rename(&self.path, into),
            other => other,
        };
        match renamed {
            Ok(()) => {
                self.done = true;
                Ok(())
            }
            Err(Errno::EXIST | Errno::NOTEMPTY) => Err(SnapshotError::Exists {
                path: into.to_owned(),
            }),
            Err(e) => Err(failed("rename", &self.path)(e)),
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if !self.done {
            // What stays has a name that says what it is.
            let _ = super::remove_tree(&self.path);
        }
    }
}

struct Restore<'a> {
    objects: &'a Objects,
    dirs: &'a [Planted],
    groups: &'a Groups<'a>,
    root: &'a OwnedFd,
    place: &'a Path,
}

/// A range of entries of one directory.
struct Job {
    dir: usize,
    from: usize,
    to: usize,
}

impl Restore<'_> {
    fn io<'b, E: Into<std::io::Error> + 'b>(
        &'b self,
        op: &'static str,
    ) -> impl FnOnce(E) -> SnapshotError + 'b {
        failed(op, self.place)
    }

    /// Goes through all directories: makes them, or gives them their modes and times when all that
    /// is below them is done.
    fn each_dir(&self, make: bool) -> Result<(), SnapshotError> {
        let root = self.root.try_clone().map_err(self.io("open"))?;
        let mut descent = Descent::new(root);
        // The topmost directory, and those that the descent is in.
        let mut open: Vec<&Planted> = Vec::new();
        for dir in self.dirs {
            while open.len() > dir.depth {
                self.leave(&mut descent, open.pop(), make)?;
            }
            if !open.is_empty() {
                let above = descent.here().map_err(self.io("open a directory in"))?;
                if make {
                    let made = rustix::fs::mkdirat(&above, &*dir.name, Mode::RWXU);
                    made.map_err(self.io("create a directory in"))?;
                }
                let fd = files::open_dir(&above, &dir.name);
                let entered = fd.and_then(|fd| descent.enter(&dir.name, fd));
                entered.map_err(self.io("open a directory in"))?;
            }
            open.push(dir);
        }
        while let Some(last) = open.pop() {
            self.leave(&mut descent, Some(last), make)?;
        }
        Ok(())
    }

    fn leave(
        &self,
        descent: &mut Descent,
        dir: Option<&Planted>,
        make: bool,
    ) -> Result<(), SnapshotError> {
        if let Some(dir) = dir.filter(|_| !make) {
            let fd = descent.here().map_err(self.io("open a directory in"))?;
            files::set_mode(&fd, dir.tree.mode).map_err(self.io("set a mode in"))?;
            files::set_mtime(&fd, dir.tree.mtime).map_err(self.io("set a time in"))?;
        }
        descent.leave();
        Ok(())
    }

    fn finder(&self) -> Result<Finder, SnapshotError> {
        let root = self.root.try_clone().map_err(self.io("open"))?;
        Ok(Finder::new(root))
    }

    fn find(&self, finder: &mut Finder, dir: usize) -> Result<Arc<OwnedFd>, SnapshotError> {
        let about = |dir: usize| self.dirs.get(dir).map(|dir| (dir.parent, &*dir.name));
        let found = finder.find(dir, about);
        found.map_err(self.io("open a directory in"))
    }

    fn jobs(&self) -> Vec<Job> {
        let mut jobs = Vec::new();
        for (dir, planted) in self.dirs.iter().enumerate() {
            let (mut from, mut bytes) = (0, 0_u64);
            for (e, entry) in planted.tree.entries.iter().enumerate() {
                if let Node::File(file) = &entry.node {
                    bytes = bytes.saturating_add(file.size);
                }
                if bytes >= JOB_BYTES || e + 1 - from >= JOB_ENTRIES {
                    let to = e + 1;
                    jobs.push(Job { dir, from, to });
                    (from, bytes) = (to, 0);
                }
            }
            let to = planted.tree.entries.len();
            if from < to {
                jobs.push(Job { dir, from, to });
            }
        }
        jobs
    }

    /// Makes all files, but further names of one, and all symbolic links.
    fn files(&self, threads: usize) -> Result<Vec<Known>, SnapshotError> {
        let jobs = self.jobs();
        let next = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let work = || {
            let (mut scratch, mut finder) = (Scratch::new()?, self.finder()?);
            let mut made = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    break;
                };
                let done = self.job(job, &mut scratch, &mut finder, &mut made);
                if done.is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
                done?;
            }
            Ok(made)
        };
        super::on_threads(threads.min(jobs.len()), work)
    }

    fn job(
        &self,
        job: &Job,
        scratch: &mut Scratch,
        finder: &mut Finder,
        made: &mut Vec<Known>,
    ) -> Result<(), SnapshotError> {
        let Some(dir) = self.dirs.get(job.dir) else {
            return Ok(());
        };
        let mut fd = None;
        let entries = dir.tree.entries.iter().enumerate();
        for (e, entry) in entries.take(job.to).skip(job.from) {
            if matches!(entry.node, Node::Dir(_)) {
                continue;
            }
            if fd.is_none() {
                fd = Some(self.find(finder, job.dir)?);
            }
            let Some(fd) = &fd else { continue };
            match &entry.node {
                Node::Dir(_) => {}
                Node::File(file) => {
                    if self
                        .first_of(file)
                        .is_none_or(|first| first == (job.dir, e))
                    {
                        let stat = self.file(fd, &entry.name, file, scratch)?;
                        if file.size > 0 {
                            made.push((stat, Arc::clone(&file.pieces)));
                        }
                    }
                }
                Node::Symlink { mtime, target } => {
                    let link = rustix::fs::symlinkat(&**target, fd, &*entry.name);
                    link.map_err(self.io("create a link in"))?;
                    let set = files::set_link_mtime(fd, &entry.name, *mtime);
                    set.map_err(self.io("set a time in"))?;
                }
            }
        }
        Ok(())
    }

    fn first_of(&self, file: &FileNode) -> Option<(usize, usize)> {
        let (dir, entry, _) = self.groups.get(&file.link?)?;
        Some((*dir, *entry))
    }

    fn file(
        &self,
        dir: &OwnedFd,
        name: &[u8],
        node: &FileNode,
        scratch: &mut Scratch,
    ) -> Result<Stat, SnapshotError> {
        let fd = files::create_file(dir, name, node.mode);
        let file = File::from(fd.map_err(self.io("create a file in"))?);
        let mut end = 0;
        for piece in node.pieces.iter() {
            self.objects.read(&piece.id, scratch)?;
            if scratch.raw.len() != piece.len as usize {
                return Err(SnapshotError::damaged("a chunk of another length"));
            }
            let written = file.write_all_at(&scratch.raw, piece.offset);
            written.map_err(self.io("write a file in"))?;
            end = piece.offset + u64::from(piece.len);
        }
        if end < node.size {
            rustix::fs::ftruncate(&file, node.size).map_err(self.io("lengthen a file in"))?;
        }
        files::set_mtime(&file, node.mtime).map_err(self.io("set a time in"))?;
        let mut stat = files::stat(&file).map_err(self.io("stat a file in"))?;
        // The process's mask took some bits away.
        if stat.permissions() != node.mode {
            files::set_mode(&file, node.mode).map_err(self.io("set a mode in"))?;
            stat = files::stat(&file).map_err(self.io("stat a file in"))?;
        }
        Ok(stat)
    }

    /// Makes the further names of files that have several. Each changes the file's change time, so
    /// the files come back as they are now.
    fn links(&self) -> Result<Vec<Known>, SnapshotError> {
        let mut again = HashMap::new();
        if self.groups.is_empty() {
            return Ok(Vec::new());
        }
        let (mut from, mut to) = (self.finder()?, self.finder()?);
        for (d, dir) in self.dirs.iter().enumerate() {
            for (e, entry) in dir.tree.entries.iter().enumerate() {
                let Node::File(file) = &entry.node else {
                    continue;
                };
                let Some(first) = self.first_of(file).filter(|first| *first != (d, e)) else {
                    continue;
                };
                let dirs = (self.find(&mut from, first.0)?, self.find(&mut to, d)?);
                let stat = self.link(first, dirs, entry)?;
                if file.size > 0 {
                    again.insert(first, (stat, Arc::clone(&file.pieces)));
                }
            }
        }
        Ok(again.into_values().collect())
    }

    fn link(
        &self,
        (first_dir, first_entry): (usize, usize),
        (from, to): (Arc<OwnedFd>, Arc<OwnedFd>),
        entry: &Entry,
    ) -> Result<Stat, SnapshotError> {
        let first = self.dirs.get(first_dir);
        let first = first.and_then(|d| d.tree.entries.get(first_entry));
        let first = first.ok_or_else(|| SnapshotError::damaged("a link to nothing"))?;
        let made = rustix::fs::linkat(
            from.as_fd(),
            &*first.name,
            to.as_fd(),
            &*entry.name,
            AtFlags::empty(),
        );
        made.map_err(self.io("link a file in"))?;
        files::stat_at(&to, &entry.name).map_err(self.io("stat a file in"))
    }
}

/// Reads everything that a restore would read.
pub(super) fn verify(inner: &Arc<Inner>, manifest: &Manifest) -> Result<(), SnapshotError> {
    check_format(manifest.format, "the manifest")?;
    let _pin = Pins::snapshot(inner, manifest);
    let objects = Objects::of(inner, &[manifest])?;
    let dirs = forest::read(&objects, manifest, &inner.options.limits())?;
    groups(&dirs)?;
    let mut ids = Vec::new();
    for entry in dirs.iter().flat_map(|dir| &dir.tree.entries) {
        if let Node::File(file) = &entry.node {
            ids.extend(file.pieces.iter().map(|piece| piece.id));
        }
    }
    ids.sort_unstable();
    ids.dedup();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut scratch = Scratch::new()?;
        while let Some(id) = ids.get(next.fetch_add(1, Ordering::Relaxed)) {
            objects.read(id, &mut scratch)?;
        }
        Ok(Vec::<()>::new())
    };
    super::on_threads(inner.options.threads().min(ids.len()), work).map(drop)
}
