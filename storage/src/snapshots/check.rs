//! Looking at snapshots without opening their store: nothing is made, changed or locked.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::error::SnapshotError;
use super::manifest::{Manifest, PackId};
use super::objects::{Objects, OpenPacks};
use super::pack::Scratch;
use super::tree::{Node, Tree};
use super::{Id, pack_path};

/// Faults that are told of one snapshot.
const FAULTS_MAX: usize = 16;
/// Most objects that are remembered as sound, of all snapshots.
const SOUND_MAX: usize = 1 << 20;

/// One thing that is wrong with a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackFault {
    /// The pack's file; where that cannot be told, the store's folder.
    pub file: PathBuf,
    /// What does not fit.
    pub reason: String,
}

/// Reads the packs of snapshots. What several of them share is read once, as far as memory for
/// it goes.
#[derive(Debug)]
pub struct SnapshotChecker {
    folder: PathBuf,
    open: OpenPacks,
    sound: HashSet<(PackId, Id)>,
}

impl SnapshotChecker {
    /// Of the store in `folder`, which nothing may write to meanwhile.
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            open: OpenPacks::default(),
            sound: HashSet::new(),
        }
    }

    /// Reads everything that a restore of the snapshot would read, against its digests. Empty =
    /// it can be restored; at most 16 faults.
    pub fn check(&mut self, manifest: &Manifest) -> Vec<PackFault> {
        let (mut faults, mut packs) = (Vec::new(), Vec::new());
        for id in &manifest.packs {
            let file = pack_path(&self.folder, *id);
            match self.open.get(&file, *id) {
                Ok(pack) => packs.push(pack),
                Err(e) => faults.push(fault(file, &e)),
            }
        }
        let complete = faults.is_empty();
        let objects = Objects::in_packs(packs);
        match Scratch::new() {
            Ok(scratch) => {
                let mut walk = Walk {
                    checker: self,
                    objects: &objects,
                    complete,
                    scratch,
                    faults: &mut faults,
                };
                walk.everything(manifest.root);
            }
            Err(e) => faults.push(fault(self.folder.clone(), &e)),
        }
        faults.truncate(FAULTS_MAX);
        faults
    }
}

fn fault(file: PathBuf, why: &SnapshotError) -> PackFault {
    PackFault {
        file,
        reason: why.to_string(),
    }
}

struct Walk<'a> {
    checker: &'a mut SnapshotChecker,
    objects: &'a Objects,
    /// Whether every pack is open: otherwise what is nowhere is in one that is named already.
    complete: bool,
    scratch: Scratch,
    faults: &'a mut Vec<PackFault>,
}

impl Walk<'_> {
    fn everything(&mut self, root: Id) {
        // Bounded by the directories of one tree: each is looked into once.
        let (mut open, mut seen) = (vec![root], HashSet::new());
        while let Some(id) = open.pop() {
            if self.faults.len() >= FAULTS_MAX {
                return;
            }
            if !seen.insert(id) || !self.read(&id) {
                continue;
            }
            let tree = match Tree::decode(&self.scratch.raw) {
                Ok(tree) => tree,
                Err(e) => {
                    self.note(&id, &e);
                    continue;
                }
            };
            for entry in tree.entries {
                match entry.node {
                    Node::Dir(child) => open.push(child),
                    Node::File(file) => {
                        file.pieces.iter().for_each(|p| self.chunk(&p.id, p.len));
                    }
                    Node::Symlink { .. } => {}
                }
            }
        }
    }

    fn chunk(&mut self, id: &Id, len: u32) {
        if self.faults.len() >= FAULTS_MAX {
            return;
        }
        if self.objects.raw_len(id).is_some_and(|found| found != len) {
            return self.note(id, &SnapshotError::damaged("a chunk of another length"));
        }
        let mut places = self.objects.find(id);
        if !places.any(|(pack, _)| self.checker.sound.contains(&(pack.id, *id))) {
            self.read(id);
        }
    }

    /// Whether any place of the object has its very bytes; they are in the scratch then.
    fn read(&mut self, id: &Id) -> bool {
        let mut why = None;
        for (pack, slot) in self.objects.find(id) {
            match pack.read(slot, &mut self.scratch) {
                Ok(()) => {
                    let sound = &mut self.checker.sound;
                    if sound.len() >= SOUND_MAX {
                        sound.clear();
                    }
                    sound.insert((pack.id, *id));
                    return true;
                }
                Err(e) => why = Some(e),
            }
        }
        match why {
            Some(e) => self.note(id, &e),
            None if self.complete => {
                self.note(id, &SnapshotError::damaged("an object is in no pack"));
            }
            None => {}
        }
        false
    }

    fn note(&mut self, id: &Id, why: &SnapshotError) {
        let pack = self.objects.find(id).last().map(|(pack, _)| pack.id);
        let folder = &self.checker.folder;
        let file = pack.map_or_else(|| folder.clone(), |pack| pack_path(folder, pack));
        self.faults.push(fault(file, why));
    }
}
