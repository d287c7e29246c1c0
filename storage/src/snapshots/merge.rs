//! Merging: the live objects of many packs into one new pack.

use std::collections::HashSet;
use std::sync::Arc;

use super::Inner;
use super::collection::mark;
use super::error::SnapshotError;
use super::manifest::{Manifest, PackId};
use super::objects::Objects;
use super::pack::{Pack, Scratch};
use super::pins::{Pin, Pins};
use super::writer::PackWriter;
use crate::fault::point;

/// The same snapshots in fewer packs; pinned until it is dropped: commit the rows first.
#[must_use]
#[derive(Debug)]
pub struct Merged {
    /// What replaces the manifests that were given, in their order. Same roots, other packs.
    pub manifests: Vec<Manifest>,
    /// Length of the new pack.
    pub new_bytes: u64,
    pins: Vec<Pin>,
}

impl Merged {
    /// Lets go: the rows are committed, or the merge is not wanted.
    pub fn release(self) -> Vec<Manifest> {
        drop(self.pins);
        self.manifests
    }
}

pub(super) fn merge(
    inner: &Arc<Inner>,
    pack: PackId,
    live: &[Manifest],
    victims: &HashSet<PackId>,
) -> Result<Merged, SnapshotError> {
    let _pack_pin = Pins::pack(inner, pack);
    let old_pins: Vec<Pin> = live.iter().map(|m| Pins::snapshot(inner, m)).collect();
    let needed: Vec<&Manifest> = live.iter().collect();
    let marks = mark(inner, &needed)?;
    let objects = Objects::of(inner, &needed)?;
    let mut scratch = Scratch::new()?;
    let mut writer = PackWriter::new(inner, pack);
    let mut copied = HashSet::new();
    // In the order of the packs, so that what was written together stays together.
    for old in objects.packs.iter().filter(|p| victims.contains(&p.id)) {
        for slot in &old.slots {
            if !marks.live.contains(&slot.id) || !copied.insert(slot.id) {
                continue;
            }
            let sound = objects.read(&slot.id, &mut scratch)?;
            writer.append(sound.id, sound.codec, Pack::stored(&scratch), sound.raw)?;
        }
    }
    let new_bytes = writer.finish()?;
    point("snapshot::merged");
    let manifests: Vec<Manifest> = live
        .iter()
        .map(|manifest| {
            let mut packs = manifest.packs.clone();
            packs.retain(|pack| !victims.contains(pack));
            if packs.len() < manifest.packs.len() && new_bytes > 0 {
                packs.push(pack);
                packs.sort_unstable();
            }
            Manifest {
                packs,
                ..manifest.clone()
            }
        })
        .collect();
    let pins = manifests.iter().map(|m| Pins::snapshot(inner, m)).collect();
    drop(old_pins);
    Ok(Merged {
        manifests,
        new_bytes,
        pins,
    })
}
