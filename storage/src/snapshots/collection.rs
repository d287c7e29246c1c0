//! Deletion: whole packs first, then dead ranges of packs that are still needed in part.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate};
use rustix::io::Errno;

use super::error::{SnapshotError, failed};
use super::files;
use super::manifest::{Manifest, PackId};
use super::objects::{Marks, Objects};
use super::pack::Pack;
use super::{Id, Inner};
use crate::fault::point;

/// File systems free whole blocks.
const BLOCK: u64 = 4096;

/// An open collection: what is pinned when it begins, or at any time until it is dropped, stays.
///
/// The order makes it safe: **first** open the collection, **then** read the rows. Whatever a
/// writer released before is in the rows by then; whatever it releases later is still pinned here.
#[derive(Debug)]
pub struct Collection {
    inner: Arc<Inner>,
    /// The packs on disk when it began: younger ones are none of its business.
    packs: Vec<PackId>,
}

/// What [`Collection::remove_unlisted`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    /// Packs that are gone.
    pub packs: usize,
    /// Their bytes on the disk.
    pub bytes: u64,
    /// Whether there are more than the budget allowed.
    pub more: bool,
}

/// How much one step of [`Collection::reclaim`] may do.
#[derive(Debug, Clone, Copy)]
pub struct ReclaimBudget {
    /// Most ranges to free.
    pub punches_max: usize,
}

impl Default for ReclaimBudget {
    fn default() -> Self {
        Self { punches_max: 4096 }
    }
}

/// How much of a pack is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackUse {
    /// The pack.
    pub pack: PackId,
    /// Bytes of its live objects.
    pub live_bytes: u64,
    /// Length of the pack, dead ranges included.
    pub bytes: u64,
}

/// What [`Collection::reclaim`] did and saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Ranges that were freed.
    pub punches: usize,
    /// Bytes in them.
    pub bytes: u64,
    /// Whether there are more than the budget allowed: call again.
    pub more: bool,
    /// The file system cannot free ranges: merging is the only way.
    pub unsupported: bool,
    /// Every pack of the snapshots: what to merge.
    pub packs: Vec<PackUse>,
}

impl Collection {
    pub(super) fn open(inner: &Arc<Inner>) -> Result<Self, SnapshotError> {
        // A folder that is away has no packs, and its rows do.
        inner.check_in_place()?;
        inner.pins.open_collection();
        // Dropped on an error: closes it again.
        let mut collection = Self {
            inner: Arc::clone(inner),
            packs: Vec::new(),
        };
        collection.packs = inner.packs()?;
        Ok(collection)
    }

    /// The packs on disk when the collection began.
    pub fn packs(&self) -> &[PackId] {
        &self.packs
    }

    /// Unlinks packs that are neither `live` nor pinned, at most `packs_max` of them.
    ///
    /// `live` are the packs of **all** manifests in the caller's rows, read after the collection
    /// was opened, and of any that the caller is about to write.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Io`]; what was removed stays removed.
    pub fn remove_unlisted(
        &self,
        live: &HashSet<PackId>,
        packs_max: usize,
    ) -> Result<Removed, SnapshotError> {
        let pinned = self.inner.pins.packs();
        let mut removed = Removed::default();
        for pack in &self.packs {
            if live.contains(pack) || pinned.contains(pack) {
                continue;
            }
            let path = self.inner.pack_path(*pack);
            // Removed by an earlier call.
            let Ok(meta) = path.symlink_metadata() else {
                continue;
            };
            if removed.packs >= packs_max {
                removed.more = true;
                break;
            }
            point("snapshot::unlink");
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                other => other.map_err(failed("remove", &path))?,
            }
            self.inner.open.forget(*pack);
            removed.packs += 1;
            removed.bytes += std::os::unix::fs::MetadataExt::blocks(&meta) * 512;
            point("snapshot::unlinked");
        }
        Ok(removed)
    }

    /// Frees the ranges of these snapshots' packs that none of them needs, and no pinned one.
    ///
    /// `live` must hold **every** live manifest that shares a pack with one of them: see
    /// [`lineages`]. Nothing moves, so that readers go on; it may stop at any point and be
    /// repeated. Punching is a hint to the file system and not synced: after a crash some of the
    /// dead bytes may be back.
    ///
    /// # Errors
    ///
    /// Any that reading the snapshots' trees gives: then nothing was freed.
    pub fn reclaim(
        &self,
        live: &[Manifest],
        budget: ReclaimBudget,
    ) -> Result<Reclaimed, SnapshotError> {
        let packs: HashSet<PackId> = live.iter().flat_map(|m| &m.packs).copied().collect();
        let pinned = self.inner.pins.snapshots();
        let mut needed: Vec<&Manifest> = live.iter().collect();
        needed.extend(
            pinned
                .iter()
                .filter(|m| m.packs.iter().any(|p| packs.contains(p))),
        );
        let marks = mark(&self.inner, &needed)?;
        let objects = Objects::of(&self.inner, &live.iter().collect::<Vec<_>>())?;
        let mut reclaimed = Reclaimed::default();
        for pack in &objects.packs {
            let live_slots = pack.slots.iter().filter(|s| marks.live.contains(&s.id));
            reclaimed.packs.push(PackUse {
                pack: pack.id,
                live_bytes: live_slots.map(|s| u64::from(s.stored)).sum(),
                bytes: pack.len(),
            });
            if !reclaimed.more && !reclaimed.unsupported {
                self.punch(pack, &marks.live, budget, &mut reclaimed)?;
            }
        }
        Ok(reclaimed)
    }

    fn punch(
        &self,
        pack: &Pack,
        live: &HashSet<Id>,
        budget: ReclaimBudget,
        reclaimed: &mut Reclaimed,
    ) -> Result<(), SnapshotError> {
        let ranges = dead_ranges(pack, live);
        if ranges.is_empty() {
            return Ok(());
        }
        let path = self.inner.pack_path(pack.id);
        let opened = files::open_own(&path, OFlags::RDWR);
        let file = opened.map_err(failed("open", &path))?;
        for (start, end) in ranges {
            match rustix::fs::seek(&file, SeekFrom::Data(start)) {
                // Free already.
                Err(Errno::NXIO) => continue,
                Ok(data) if data >= end => continue,
                Ok(_) => {}
                Err(e) => return Err(failed("seek", &path)(e)),
            }
            if reclaimed.punches >= budget.punches_max {
                reclaimed.more = true;
                return Ok(());
            }
            point("snapshot::punch");
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match fallocate(&file, flags, start, end - start) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    reclaimed.unsupported = true;
                    return Ok(());
                }
                other => other.map_err(failed("free a range of", &path))?,
            }
            point("snapshot::punched");
            reclaimed.punches += 1;
            reclaimed.bytes += end - start;
        }
        Ok(())
    }
}

impl Drop for Collection {
    fn drop(&mut self) {
        self.inner.pins.close_collection();
    }
}

/// Everything that these snapshots need.
pub(super) fn mark(inner: &Inner, manifests: &[&Manifest]) -> Result<Marks, SnapshotError> {
    let mut marks = Marks::default();
    for manifest in manifests {
        super::manifest::check_format(manifest.format, "a manifest")?;
    }
    let objects = Objects::of(inner, manifests)?;
    for manifest in manifests {
        objects.mark(manifest.root, &mut marks)?;
    }
    Ok(marks)
}

/// Whole blocks that hold nothing but dead objects.
fn dead_ranges(pack: &Pack, live: &HashSet<Id>) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for slot in pack.slots.iter().filter(|slot| !live.contains(&slot.id)) {
        match ranges.last_mut() {
            Some((_, end)) if *end == slot.offset => *end = slot.end(),
            _ => ranges.push((slot.offset, slot.end())),
        }
    }
    ranges
        .into_iter()
        .map(|(start, end)| (start.next_multiple_of(BLOCK), end / BLOCK * BLOCK))
        .filter(|(start, end)| start < end)
        .collect()
}

/// Groups manifests so that no pack is in two groups: each group is what [`Collection::reclaim`]
/// takes. Forks are of the lineage that they came from.
pub fn lineages(manifests: Vec<Manifest>) -> Vec<Vec<Manifest>> {
    let mut group_of: HashMap<PackId, usize> = HashMap::new();
    let mut groups: Vec<Vec<Manifest>> = Vec::new();
    for manifest in manifests {
        let mut joined: Vec<usize> = manifest
            .packs
            .iter()
            .filter_map(|p| group_of.get(p))
            .copied()
            .collect();
        joined.sort_unstable();
        joined.dedup();
        let mut group = vec![manifest];
        for index in &joined {
            if let Some(other) = groups.get_mut(*index) {
                group.append(other);
            }
        }
        let target = joined.first().copied().unwrap_or(groups.len());
        for pack in group.iter().flat_map(|m| &m.packs) {
            group_of.insert(*pack, target);
        }
        match groups.get_mut(target) {
            Some(place) => *place = group,
            None => groups.push(group),
        }
    }
    groups.retain(|group| !group.is_empty());
    groups
}
