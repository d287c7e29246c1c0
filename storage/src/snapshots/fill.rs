//! Giving the files of a walk their contents: from the cache, or by reading them.

use std::collections::HashMap;
use std::sync::Arc;

use super::Inner;
use super::cache::{Known, StatCache};
use super::error::SnapshotError;
use super::files::Stat;
use super::moving::{Content, Other};
use super::read::{self, Sink};
use super::tree::{FileNode, Piece};
use super::walk::{At, Found, Walked, WalkedDir, What};

/// Further names of files, by the first one that was seen.
type Names = HashMap<At, Vec<At>>;

/// Gives every file its pieces. Files for the cache come back.
pub(super) fn fill(
    inner: &Inner,
    walked: &mut Walked,
    sink: &Sink<'_>,
    cache: &StatCache,
    level: i32,
) -> Result<Vec<Known>, SnapshotError> {
    let no_pieces: Arc<[Piece]> = Arc::new([]);
    let mut names = names(walked);
    // Each round but the first reads, of files whose name went, the next one.
    loop {
        for found in first_names(&mut walked.dirs).filter(|found| found.node.is_none()) {
            let known = cache
                .get(&found.stat)
                .filter(|pieces| pieces.iter().all(|p| sink.known.contains(&p.id)));
            if found.stat.size == 0 {
                found.node = Some(node(found, Arc::clone(&no_pieces)));
            } else if let Some(pieces) = known {
                found.node = Some(node(found, Arc::clone(pieces)));
            }
        }
        let unread = read::unread(walked);
        if unread.is_empty() {
            break;
        }
        let threads = inner.options.threads();
        let mut lost = Vec::new();
        let wanted: Vec<At> = unread.iter().map(|(at, _)| *at).collect();
        let mut contents = read::read(walked, unread, sink, threads, level)?;
        for at in wanted {
            if settle(walked, at, contents.remove(&at)) {
                lost.push(at);
            }
        }
        for at in lost {
            promote(walked, &mut names, at);
        }
    }
    name_groups(walked, &names);
    let files = first_names(&mut walked.dirs).filter(|found| found.is_steady);
    Ok(files
        .filter_map(|found| {
            let node = found.node.as_ref()?;
            (node.size > 0).then(|| (found.stat, Arc::clone(&node.pieces)))
        })
        .collect())
}

fn first_names(dirs: &mut [WalkedDir]) -> impl Iterator<Item = &mut Found> {
    let entries = dirs.iter_mut().flat_map(|dir| &mut dir.entries);
    entries.filter_map(|entry| match &mut entry.what {
        What::File(found) if found.same_as.is_none() => Some(found),
        _ => None,
    })
}

fn what(walked: &mut Walked, at: At) -> Option<&mut What> {
    let entry = walked.dirs.get_mut(at.0)?.entries.get_mut(at.1)?;
    Some(&mut entry.what)
}

fn node(found: &Found, pieces: Arc<[Piece]>) -> FileNode {
    FileNode {
        mode: found.mode_before.unwrap_or(found.stat.permissions()),
        mtime: found.stat.mtime,
        size: found.stat.size,
        link: None,
        pieces,
    }
}

/// Notes what a reading found. Gives whether the name leads to another file now, or to none.
fn settle(walked: &mut Walked, at: At, content: Option<Content>) -> bool {
    let instead = match content {
        Some(Content::File {
            stat,
            pieces,
            is_steady,
        }) => {
            let Some(What::File(found)) = what(walked, at) else {
                return true;
            };
            let same = is_same(&found.stat, &stat);
            if !same {
                found.mode_before = None;
            }
            found.stat = stat;
            found.is_steady = is_steady;
            found.node = Some(node(found, pieces.into()));
            return !same;
        }
        Some(Content::Changed(Other::Entry(entry))) => entry,
        Some(Content::Changed(Other::Skip(reason))) => {
            let name = read::name(walked, at).to_vec();
            walked.skip(at.0, &name, reason);
            What::Gone
        }
        None => {
            walked.entries -= 1;
            What::Gone
        }
    };
    if let Some(place) = what(walked, at) {
        *place = instead;
    }
    true
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.dev, one.ino) == (other.dev, other.ino)
}

fn names(walked: &Walked) -> Names {
    let mut names = Names::new();
    for (d, dir) in walked.dirs.iter().enumerate() {
        for (e, entry) in dir.entries.iter().enumerate() {
            if let What::File(found) = &entry.what
                && let Some(first) = found.same_as
            {
                names.entry(first).or_default().push((d, e));
            }
        }
    }
    names
}

/// Makes the next name of a file its first: the one before leads elsewhere, and the file is there
/// all the same.
fn promote(walked: &mut Walked, names: &mut Names, at: At) {
    let Some(mut others) = names.remove(&at).filter(|others| !others.is_empty()) else {
        return;
    };
    let next = others.remove(0);
    for (at, first) in std::iter::once((next, None)).chain(others.iter().map(|o| (*o, Some(next))))
    {
        if let Some(What::File(found)) = what(walked, at) {
            found.same_as = first;
        }
    }
    if !others.is_empty() {
        names.insert(next, others);
    }
}

/// Makes the names of one file a group, called after the first of them.
fn name_groups(walked: &mut Walked, names: &Names) {
    for (at, others) in names {
        let Some(entry) = walked.dirs.get(at.0).and_then(|d| d.entries.get(at.1)) else {
            continue;
        };
        let What::File(Found {
            node: Some(node), ..
        }) = &entry.what
        else {
            continue;
        };
        let path = walked.full_path(at.0, &entry.name);
        let digest = blake3::hash(path.as_os_str().as_encoded_bytes());
        let mut node = node.clone();
        node.link = digest.as_bytes().first_chunk().copied();
        for at in others.iter().chain([at]) {
            if let Some(What::File(found)) = what(walked, *at) {
                found.node = Some(node.clone());
            }
        }
    }
}
