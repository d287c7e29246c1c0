//! A snapshot's directories, read and held against the limits before anything is made of them.

use super::error::SnapshotError;
use super::manifest::Manifest;
use super::objects::Objects;
use super::pack::Scratch;
use super::tree::{Node, Tree};
use super::{DEPTH_MAX, Id, Limits};

pub(super) struct Planted {
    /// The topmost one is its own parent.
    pub(super) parent: usize,
    pub(super) name: Box<[u8]>,
    pub(super) depth: usize,
    pub(super) tree: Tree,
}

/// Reads every directory of a snapshot. Directories come before what is in them, and each is
/// followed by all that is below it.
///
/// The digests rule out cycles but not a directory that is named twice at every level: entries are
/// counted as they would be made.
pub(super) fn read(
    objects: &Objects,
    manifest: &Manifest,
    limits: &Limits,
) -> Result<Vec<Planted>, SnapshotError> {
    let mut scratch = Scratch::new()?;
    let mut dirs: Vec<Planted> = Vec::new();
    let mut open: Vec<(usize, Box<[u8]>, usize, Id)> = vec![(0, Box::default(), 0, manifest.root)];
    let (mut entries, mut bytes) = (0_u64, 0_u64);
    while let Some((parent, name, depth, id)) = open.pop() {
        limit(depth as u64, DEPTH_MAX as u64, "levels of directories")?;
        let tree = objects.tree(&id, &mut scratch)?;
        entries += tree.entries.len() as u64;
        limit(entries, limits.entries_max, "entries")?;
        if entries > manifest.entries {
            return Err(SnapshotError::damaged(
                "more entries than the manifest says",
            ));
        }
        let index = dirs.len();
        for entry in tree.entries.iter().rev() {
            match &entry.node {
                Node::Dir(child) => open.push((index, entry.name.clone(), depth + 1, *child)),
                Node::File(file) => {
                    for piece in file.pieces.iter() {
                        bytes = bytes.saturating_add(piece.len.into());
                        if objects.raw_len(&piece.id) != Some(piece.len) {
                            return Err(SnapshotError::damaged(
                                "a chunk is missing or of another length",
                            ));
                        }
                    }
                }
                Node::Symlink { .. } => {}
            }
        }
        limit(bytes, limits.bytes_max, "bytes of content")?;
        dirs.push(Planted {
            parent,
            name,
            depth,
            tree,
        });
    }
    if (entries, bytes) != (manifest.entries, manifest.logical_bytes) {
        return Err(SnapshotError::damaged(
            "the manifest's counts are not the tree's",
        ));
    }
    Ok(dirs)
}

fn limit(count: u64, max: u64, which: &'static str) -> Result<(), SnapshotError> {
    if count > max {
        return Err(SnapshotError::Limit { which, max });
    }
    Ok(())
}
