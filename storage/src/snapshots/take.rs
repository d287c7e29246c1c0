//! Taking a snapshot of a working directory.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::cache::StatCache;
use super::chunks::{Encoder, LEVEL_FIRST, LEVEL_LATER};
use super::error::SnapshotError;
use super::fill;
use super::manifest::{Manifest, PACKS_MAX, PackId};
use super::objects::{Marks, Objects};
use super::pins::{Pin, Pins};
use super::read::Sink;
use super::tree::{Entry, Node, Tree};
use super::walk::{self, Found, Skipped, Walked, WalkedDir, What};
use super::writer::PackWriter;
use super::{FORMAT, Id, Inner, OBJECT_BYTES_MAX};

/// A snapshot whose bytes are durable, and pinned until this value is dropped or released: commit
/// the row with its manifest first.
#[must_use]
#[derive(Debug)]
pub struct Taken {
    /// What names it; belongs in the caller's row.
    pub manifest: Manifest,
    /// Length of the new pack; 0 when none was written.
    pub new_bytes: u64,
    /// Entries that are not in it; at most [`SKIPPED_MAX`](super::SKIPPED_MAX) of them.
    pub skipped: Vec<Skipped>,
    /// All entries that are not in it.
    pub skipped_count: u64,
    /// Whether it is the parent's tree: then the manifest is the parent's, and nothing was written.
    pub unchanged: bool,
    pub(super) pin: Pin,
}

impl Taken {
    /// Lets go: the row is committed, or nobody wants the snapshot.
    pub fn release(self) -> Manifest {
        drop(self.pin);
        self.manifest
    }
}

/// What the parent has.
struct Base {
    objects: Objects,
    marks: Marks,
}

pub(super) fn take(
    inner: &Arc<Inner>,
    pack: PackId,
    tree: &Path,
    parent: Option<&Manifest>,
    cache: &mut StatCache,
) -> Result<Taken, SnapshotError> {
    // From here on no collection touches what is built upon.
    let _parent_pin = parent.map(|parent| Pins::snapshot(inner, parent));
    let _pack_pin = Pins::pack(inner, pack);
    let base = match parent {
        None => None,
        Some(parent) => {
            let objects = Objects::of(inner, &[parent])?;
            let mut marks = Marks::default();
            objects.mark(parent.root, &mut marks)?;
            Some(Base { objects, marks })
        }
    };
    let none = HashSet::new();
    let known = base.as_ref().map_or(&none, |base| &base.marks.live);
    let start = inner.tick()?;
    let mut walked = walk::walk(tree, &inner.options.limits())?;
    let level = if parent.is_some() {
        LEVEL_LATER
    } else {
        LEVEL_FIRST
    };
    let sink = Sink::new(known, PackWriter::new(inner, pack));
    let files = fill::fill(inner, &mut walked, &sink, cache, level)?;
    let logical_bytes = check_bytes(&walked, inner.options.bytes_max)?;
    let (entries, skipped, skipped_count) = (walked.entries, walked.skipped, walked.skipped_count);
    // All is read: what was made readable for it gets its mode back.
    drop(walked.opened);
    let built = build(walked.dirs, &sink, level)?;
    let (fresh, writer) = sink.into_parts();

    if let Some(parent) = parent.filter(|parent| parent.root == built.root) {
        // Dropping the writer removes what a file that moved may have left.
        drop(writer);
        cache.fill(start, files.into_iter());
        return Ok(Taken {
            manifest: parent.clone(),
            new_bytes: 0,
            skipped,
            skipped_count,
            unchanged: true,
            pin: Pins::snapshot(inner, parent),
        });
    }
    let packs = packs(&built.uses, &fresh, pack, base.as_ref())?;
    let new_bytes = if packs.contains(&pack) {
        writer.finish()?
    } else {
        0
    };
    let manifest = Manifest {
        format: FORMAT,
        root: built.root,
        packs,
        entries,
        logical_bytes,
    };
    cache.fill(start, files.into_iter());
    Ok(Taken {
        pin: Pins::snapshot(inner, &manifest),
        manifest,
        new_bytes,
        skipped,
        skipped_count,
        unchanged: false,
    })
}

fn check_bytes(walked: &Walked, max: u64) -> Result<u64, SnapshotError> {
    let mut sum = 0_u64;
    for entry in walked.dirs.iter().flat_map(|dir| &dir.entries) {
        if let What::File(Found {
            node: Some(node), ..
        }) = &entry.what
        {
            let bytes = node.pieces.iter().map(|p| u64::from(p.len)).sum();
            sum = sum.saturating_add(bytes);
        }
    }
    if sum > max {
        return Err(SnapshotError::Limit {
            which: "bytes of content",
            max,
        });
    }
    Ok(sum)
}

struct Built {
    root: Id,
    /// Every tree and chunk of the snapshot.
    uses: HashSet<Id>,
}

/// Makes the tree objects, from the leaves to the root.
fn build(dirs: Vec<WalkedDir>, sink: &Sink<'_>, level: i32) -> Result<Built, SnapshotError> {
    let mut encoder = Encoder::new(level)?;
    let mut ids: Vec<Id> = vec![[0; 32]; dirs.len()];
    let mut uses = HashSet::new();
    let mut bytes = Vec::new();
    // What is in a directory comes after it.
    for (index, dir) in dirs.into_iter().enumerate().rev() {
        let mut entries = Vec::with_capacity(dir.entries.len());
        for entry in dir.entries {
            let node = match entry.what {
                What::Dir(child) => Node::Dir(ids.get(child).copied().unwrap_or_default()),
                What::Symlink { mtime, target } => Node::Symlink { mtime, target },
                What::File(found) => match found.node {
                    Some(node) => {
                        uses.extend(node.pieces.iter().map(|p| p.id));
                        Node::File(node)
                    }
                    None => continue,
                },
                What::Gone => continue,
            };
            let name = entry.name;
            entries.push(Entry { name, node });
        }
        let tree = Tree {
            mode: dir.mode,
            mtime: dir.mtime,
            entries,
        };
        bytes.clear();
        tree.encode(&mut bytes);
        if bytes.len() > OBJECT_BYTES_MAX {
            return Err(SnapshotError::Limit {
                which: "bytes in the listing of one directory",
                max: OBJECT_BYTES_MAX as u64,
            });
        }
        let id = sink.put(&bytes, &mut encoder)?;
        uses.insert(id);
        if let Some(slot) = ids.get_mut(index) {
            *slot = id;
        }
    }
    Ok(Built {
        root: ids.first().copied().unwrap_or_default(),
        uses,
    })
}

/// The packs that a snapshot lies in.
fn packs(
    uses: &HashSet<Id>,
    fresh: &HashSet<Id>,
    pack: PackId,
    base: Option<&Base>,
) -> Result<Vec<PackId>, SnapshotError> {
    let mut packs = HashSet::new();
    for id in uses {
        if fresh.contains(id) {
            packs.insert(pack);
        } else if let Some(base) = base {
            packs.extend(base.objects.find(id).map(|(pack, _)| pack.id));
        }
    }
    if packs.len() > PACKS_MAX {
        return Err(SnapshotError::Limit {
            which: "packs of one snapshot",
            max: PACKS_MAX as u64,
        });
    }
    let mut packs: Vec<PackId> = packs.into_iter().collect();
    packs.sort_unstable();
    Ok(packs)
}
