//! Pins: what must stay although no row may name it.
//!
//! A pin that ends while a collection is open counts until that is closed: the collection may
//! have read the rows before the one that took over.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Inner;
use super::manifest::{Manifest, PackId};

/// Keeps a snapshot's packs and their ranges until it is dropped.
#[must_use]
#[derive(Debug)]
pub struct Pin {
    inner: Arc<Inner>,
    key: u64,
}

#[derive(Debug, Clone)]
enum Held {
    Snapshot(Manifest),
    /// One that is being written.
    Pack(PackId),
}

#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    held: HashMap<u64, Held>,
    collections: usize,
    /// Ended while a collection was open.
    late: Vec<Held>,
}

impl Pins {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(inner: &Arc<Inner>, held: Held) -> Pin {
        let mut state = inner.pins.lock();
        let key = state.next;
        state.next += 1;
        state.held.insert(key, held);
        let inner = Arc::clone(inner);
        Pin { inner, key }
    }

    pub(super) fn snapshot(inner: &Arc<Inner>, manifest: &Manifest) -> Pin {
        Self::hold(inner, Held::Snapshot(manifest.clone()))
    }

    pub(super) fn pack(inner: &Arc<Inner>, pack: PackId) -> Pin {
        Self::hold(inner, Held::Pack(pack))
    }

    pub(super) fn open_collection(&self) {
        self.lock().collections += 1;
    }

    pub(super) fn close_collection(&self) {
        let mut state = self.lock();
        state.collections -= 1;
        if state.collections == 0 {
            state.late.clear();
        }
    }

    /// Everything that is pinned, or was since the first open collection began.
    fn each(&self, mut visit: impl FnMut(&Held)) {
        let state = self.lock();
        state.held.values().chain(&state.late).for_each(&mut visit);
    }

    pub(super) fn packs(&self) -> HashSet<PackId> {
        let mut packs = HashSet::new();
        self.each(|held| match held {
            Held::Snapshot(manifest) => packs.extend(manifest.packs.iter().copied()),
            Held::Pack(pack) => {
                packs.insert(*pack);
            }
        });
        packs
    }

    pub(super) fn snapshots(&self) -> Vec<Manifest> {
        let mut snapshots = Vec::new();
        self.each(|held| {
            if let Held::Snapshot(manifest) = held {
                snapshots.push(manifest.clone());
            }
        });
        snapshots
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.inner.pins.lock();
        let held = state.held.remove(&self.key);
        if state.collections > 0 {
            state.late.extend(held);
        }
    }
}
