//! The stat cache: which files of a working directory need not be read again.

use std::collections::HashMap;
use std::sync::Arc;

use super::files::Stat;
use super::tree::{Piece, Time};

/// A file whose change time is younger than this when a snapshot begins is read again by the next
/// one: another change in the same tick of the clock would not show. Kernels tick at 10 ms or less.
const RACY_NS: u32 = 20_000_000;

/// A file as it was seen, and what it held.
pub(super) type Known = (Stat, Arc<[Piece]>);

/// What is known about the files of one working directory, in memory only. Without it everything
/// is read again, and the snapshot is the same.
///
/// A file counts as unchanged when device, inode, size, mode, modification and change time are as
/// they were. That holds for every way of writing but one: a store to a shared writable mapping
/// whose page is already dirty moves no time. Say so with [`StatCache::set_mapped_writers`].
#[derive(Debug, Default)]
pub struct StatCache {
    files: HashMap<(u64, u64), Known>,
    mapped_writers: bool,
}

impl StatCache {
    /// An empty one: for a directory that was never taken nor restored.
    pub fn new() -> Self {
        Self::default()
    }

    /// Files that need not be read again while they stay as they are.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Forgets everything, so that the next snapshot reads every file.
    pub fn distrust(&mut self) {
        self.files.clear();
    }

    /// Says whether a process has a file of the directory mapped shared and writable (`rw-s` in
    /// `/proc/PID/maps`). While it is so, snapshots read everything and remember nothing.
    pub fn set_mapped_writers(&mut self, present: bool) {
        self.mapped_writers = present;
        if present {
            self.distrust();
        }
    }

    /// The pieces of an unchanged file.
    pub(super) fn get(&self, stat: &Stat) -> Option<&Arc<[Piece]>> {
        let (known, pieces) = self.files.get(&(stat.dev, stat.ino))?;
        known.is_same_file_state(stat).then_some(pieces)
    }

    /// Replaces what is known by what a snapshot saw that began at `start`.
    pub(super) fn fill(&mut self, start: Time, files: impl Iterator<Item = Known>) {
        self.files.clear();
        if self.mapped_writers {
            return;
        }
        let settled = match start.ns.checked_sub(RACY_NS) {
            Some(ns) => Time { s: start.s, ns },
            None => Time {
                s: start.s.saturating_sub(1),
                ns: start.ns + 1_000_000_000 - RACY_NS,
            },
        };
        let settled = files.filter(|(stat, _)| stat.ctime < settled);
        self.files
            .extend(settled.map(|(stat, pieces)| ((stat.dev, stat.ino), (stat, pieces))));
    }

    /// What a restore wrote, when the file system's clock stood at `now` after all of it: a later
    /// change cannot have an older stamp.
    pub(super) fn restored(now: Time, files: impl Iterator<Item = Known>) -> Self {
        let settled = files.filter(|(stat, _)| stat.ctime < now);
        Self {
            files: settled
                .map(|(stat, pieces)| ((stat.dev, stat.ino), (stat, pieces)))
                .collect(),
            mapped_writers: false,
        }
    }
}
