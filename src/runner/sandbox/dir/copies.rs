//! Copies of disks that were made for forks and wait for their first run.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::keep::Restored;

/// Most copies that wait: a run whose copy is gone restores the snapshot.
const COPIES_MAX: usize = 64;

/// The copies that wait, oldest first. They go with the process.
#[derive(Debug, Default)]
pub(super) struct Copies(Mutex<VecDeque<Restored>>);

impl Copies {
    /// Keeps a copy. Gives back its name, and the oldest one where there are too many.
    pub(super) fn put(&self, copy: Restored) -> (String, Option<Restored>) {
        let name = copy.place.name.clone();
        let mut copies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        copies.push_back(copy);
        let many = copies.len() > COPIES_MAX;
        (name, if many { copies.pop_front() } else { None })
    }

    /// Takes the copy of this name out, if it is there.
    pub(super) fn take(&self, name: Option<&str>) -> Option<Restored> {
        let mut copies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = copies
            .iter()
            .position(|c| Some(c.place.name.as_str()) == name)?;
        copies.remove(at)
    }
}
