//! Finding objects: the open packs of a store, and all objects of some of them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::error::SnapshotError;
use super::manifest::{Manifest, PackId};
use super::pack::{Pack, Scratch, Slot};
use super::tree::{Node, Tree};
use super::{Id, Inner};

/// Most packs that are kept open.
const PACKS_OPEN_MAX: usize = 128;
/// Most index entries in memory, of all open packs.
const SLOTS_OPEN_MAX: usize = 1 << 20;

/// Packs that are likely to be read again.
#[derive(Debug, Default)]
pub(super) struct OpenPacks(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    packs: HashMap<PackId, (u64, Arc<Pack>)>,
    slots: usize,
    uses: u64,
}

impl Kept {
    fn forget(&mut self, id: PackId) {
        if let Some((_, pack)) = self.packs.remove(&id) {
            self.slots -= pack.slots.len();
        }
    }

    fn keep(&mut self, pack: &Arc<Pack>) {
        self.forget(pack.id);
        self.slots += pack.slots.len();
        self.packs.insert(pack.id, (self.uses, Arc::clone(pack)));
        while self.packs.len() > PACKS_OPEN_MAX || self.slots > SLOTS_OPEN_MAX {
            let Some((_, oldest)) = self.packs.iter().map(|(id, p)| (p.0, *id)).min() else {
                return;
            };
            self.forget(oldest);
        }
    }
}

impl OpenPacks {
    pub(super) fn get(&self, path: &Path, id: PackId) -> Result<Arc<Pack>, SnapshotError> {
        let kept = {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.uses += 1;
            let uses = kept.uses;
            kept.packs.get_mut(&id).map(|(used, pack)| {
                *used = uses;
                Arc::clone(pack)
            })
        };
        // An unlinked file can still be read; it is gone all the same.
        if let Some(pack) = kept.filter(|pack| pack.is_in_place()) {
            return Ok(pack);
        }
        let opened = Pack::open(id, path);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match opened {
            Ok(pack) => {
                let pack = Arc::new(pack);
                kept.keep(&pack);
                Ok(pack)
            }
            Err(error) => {
                kept.forget(id);
                Err(error)
            }
        }
    }

    pub(super) fn forget(&self, id: PackId) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .forget(id);
    }
}

/// Which slot of which pack.
type Place = (u32, u32);

/// All objects of some packs. One that was dead, reclaimed and stored again is in two of them.
pub(super) struct Objects {
    pub(super) packs: Vec<Arc<Pack>>,
    first: HashMap<Id, Place>,
    more: HashMap<Id, Vec<Place>>,
}

impl Objects {
    /// The objects in the packs of these snapshots.
    pub(super) fn of(inner: &Inner, manifests: &[&Manifest]) -> Result<Self, SnapshotError> {
        let ids: BTreeSet<PackId> = manifests.iter().flat_map(|m| &m.packs).copied().collect();
        let packs = ids.into_iter().map(|id| inner.pack(id));
        Ok(Self::in_packs(packs.collect::<Result<_, _>>()?))
    }

    /// The objects in these packs.
    pub(super) fn in_packs(packs: Vec<Arc<Pack>>) -> Self {
        let mut first = HashMap::with_capacity(packs.iter().map(|p| p.slots.len()).sum());
        let mut more: HashMap<Id, Vec<Place>> = HashMap::new();
        for (pack, p) in packs.iter().zip(0..) {
            for (slot, s) in pack.slots.iter().zip(0..) {
                match first.entry(slot.id) {
                    Entry::Vacant(place) => {
                        place.insert((p, s));
                    }
                    Entry::Occupied(_) => more.entry(slot.id).or_default().push((p, s)),
                }
            }
        }
        Self { packs, first, more }
    }

    fn places(&self, id: &Id) -> impl Iterator<Item = Place> + '_ {
        let more = self.more.get(id).into_iter().flatten();
        self.first.get(id).into_iter().chain(more).copied()
    }

    /// Every place of an object.
    pub(super) fn find(&self, id: &Id) -> impl Iterator<Item = (&Pack, &Slot)> + '_ {
        self.places(id).filter_map(|(p, s)| {
            let pack = self.packs.get(p as usize)?;
            Some((pack.as_ref(), pack.slots.get(s as usize)?))
        })
    }

    /// Length of an object's plain bytes.
    pub(super) fn raw_len(&self, id: &Id) -> Option<u32> {
        self.find(id).next().map(|(_, slot)| slot.raw)
    }

    /// Reads an object into the scratch; gives the slot that was sound.
    pub(super) fn read(&self, id: &Id, scratch: &mut Scratch) -> Result<Slot, SnapshotError> {
        let mut error = None;
        for (pack, slot) in self.find(id) {
            match pack.read(slot, scratch) {
                Ok(()) => return Ok(*slot),
                Err(e) => error = Some(e),
            }
        }
        Err(error.unwrap_or_else(|| SnapshotError::damaged("an object is in no pack")))
    }

    pub(super) fn tree(&self, id: &Id, scratch: &mut Scratch) -> Result<Tree, SnapshotError> {
        self.read(id, scratch)?;
        Tree::decode(&scratch.raw)
    }

    /// Adds the tree `root` and everything below it to the marks. Reads trees only.
    pub(super) fn mark(&self, root: Id, marks: &mut Marks) -> Result<(), SnapshotError> {
        let mut scratch = Scratch::new()?;
        // Bounded by the directories of one tree: each is expanded once.
        let mut open = vec![root];
        while let Some(id) = open.pop() {
            if !marks.expanded.insert(id) {
                continue;
            }
            marks.live.insert(id);
            for entry in self.tree(&id, &mut scratch)?.entries {
                match entry.node {
                    Node::Dir(child) => open.push(child),
                    Node::File(file) => marks.live.extend(file.pieces.iter().map(|p| p.id)),
                    Node::Symlink { .. } => {}
                }
            }
        }
        Ok(())
    }
}

/// What snapshots need.
#[derive(Default)]
pub(super) struct Marks {
    /// Trees and chunks.
    pub(super) live: HashSet<Id>,
    /// Trees that were looked into. A chunk may have the bytes of a tree and not be one.
    expanded: HashSet<Id>,
}
