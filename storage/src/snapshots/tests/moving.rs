//! Trees that change while a snapshot is taken of them, and very deep ones.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::kit::Place;
use crate::snapshots::chunks::LEVEL_FIRST;
use crate::snapshots::fill::fill;
use crate::snapshots::moving::{Content, Other, Reader};
use crate::snapshots::read::Sink;
use crate::snapshots::walk::{At, Walked, What, walk};
use crate::snapshots::writer::PackWriter;
use crate::snapshots::{DEPTH_MAX, SkipReason, SnapshotError, StatCache, files, remove_tree};

/// Walks a tree, lets `meanwhile` change it, and reads it then.
fn changed(place: &mut Place, tree: &Path, meanwhile: impl FnOnce()) -> Walked {
    let pack = place.pack();
    let inner = &place.store().0;
    let mut walked = walk(tree, &inner.options.limits()).unwrap();
    meanwhile();
    let known = HashSet::new();
    let sink = Sink::new(&known, PackWriter::new(inner, pack));
    let cache = StatCache::new();
    fill(inner, &mut walked, &sink, &cache, LEVEL_FIRST).unwrap();
    walked
}

fn at(walked: &Walked, name: &str) -> At {
    let entries = &walked.dirs[0].entries;
    let found = entries.iter().position(|e| &*e.name == name.as_bytes());
    (0, found.unwrap())
}

/// The digests of pieces, and the link.
type Digests = (Vec<[u8; 32]>, Option<[u8; 16]>);

/// The digests of a file's pieces and its link; `None` when it is not in the snapshot.
fn content(walked: &Walked, name: &str) -> Option<Digests> {
    let (dir, entry) = at(walked, name);
    match &walked.dirs[dir].entries[entry].what {
        What::File(found) => {
            let node = found.node.as_ref().unwrap();
            Some((node.pieces.iter().map(|p| p.id).collect(), node.link))
        }
        _ => None,
    }
}

fn is(bytes: &[u8]) -> Vec<[u8; 32]> {
    vec![*blake3::hash(bytes).as_bytes()]
}

#[test]
fn a_file_stays_when_another_name_of_it_goes() {
    let (mut place, tree) = Place::with_tree();
    fs::write(tree.join("a"), b"shared").unwrap();
    for name in ["b", "c", "d"] {
        fs::hard_link(tree.join("a"), tree.join(name)).unwrap();
    }
    let walked = changed(&mut place, &tree, || {
        fs::remove_file(tree.join("a")).unwrap();
        fs::remove_file(tree.join("b")).unwrap();
    });
    assert_eq!((content(&walked, "a"), content(&walked, "b")), (None, None));
    let (c, d) = (content(&walked, "c").unwrap(), content(&walked, "d"));
    assert_eq!(c.0, is(b"shared"));
    assert!(c.1.is_some());
    assert_eq!(d, Some(c));
    assert_eq!(walked.entries, 2);
}

#[test]
fn the_last_name_of_a_file_stands_alone() {
    let (mut place, tree) = Place::with_tree();
    fs::write(tree.join("a"), b"shared").unwrap();
    fs::hard_link(tree.join("a"), tree.join("b")).unwrap();
    let walked = changed(&mut place, &tree, || {
        fs::remove_file(tree.join("a")).unwrap();
    });
    assert_eq!(content(&walked, "b"), Some((is(b"shared"), None)));
}

#[test]
fn what_takes_the_name_of_a_linked_file_is_not_taken_for_it() {
    let (mut place, tree) = Place::with_tree();
    fs::write(tree.join("a"), b"shared").unwrap();
    fs::hard_link(tree.join("a"), tree.join("b")).unwrap();
    fs::write(tree.join("new"), b"another").unwrap();
    let walked = changed(&mut place, &tree, || {
        fs::rename(tree.join("new"), tree.join("a")).unwrap();
    });
    assert_eq!(content(&walked, "a"), Some((is(b"another"), None)));
    assert_eq!(content(&walked, "b"), Some((is(b"shared"), None)));
    assert_eq!(content(&walked, "new"), None);
}

#[test]
fn a_file_that_became_something_else_is_taken_as_that() {
    let (mut place, tree) = Place::with_tree();
    for name in ["link", "folder", "gone"] {
        fs::write(tree.join(name), b"file").unwrap();
    }
    fs::create_dir(tree.join("dir")).unwrap();
    fs::write(tree.join("dir/in"), b"file").unwrap();
    let walked = changed(&mut place, &tree, || {
        for name in ["link", "folder", "gone"] {
            fs::remove_file(tree.join(name)).unwrap();
        }
        symlink("target", tree.join("link")).unwrap();
        fs::create_dir(tree.join("folder")).unwrap();
        // A directory that is a file by now takes what was in it along.
        fs::rename(tree.join("dir"), place_for(&tree)).unwrap();
        fs::write(tree.join("dir"), b"no directory").unwrap();
    });
    let what = |name| {
        let (dir, entry) = at(&walked, name);
        &walked.dirs[dir].entries[entry].what
    };
    assert!(matches!(what("link"), What::Symlink { target, .. } if **target == *b"target"));
    assert!(matches!(what("folder"), What::Gone));
    assert!(matches!(what("gone"), What::Gone));
    let skipped: Vec<_> = walked.skipped.iter().map(|s| s.reason).collect();
    assert_eq!(skipped, [SkipReason::Changed]);
    assert_eq!(walked.entries, 2, "the link and the directory");
}

fn place_for(tree: &Path) -> std::path::PathBuf {
    tree.with_file_name("moved")
}

#[test]
fn a_file_is_read_as_it_is_in_the_end() {
    let (mut place, tree) = Place::with_tree();
    for name in ["grown", "cut", "link", "gone"] {
        fs::write(tree.join(name), b"before").unwrap();
    }
    let pack = place.pack();
    let inner = &place.store().0;
    let walked = walk(&tree, &inner.options.limits()).unwrap();
    let known = HashSet::new();
    let sink = Sink::new(&known, PackWriter::new(inner, pack));
    let mut reader = Reader::new(&walked, &sink, LEVEL_FIRST).unwrap();
    fs::write(tree.join("grown"), b"and after").unwrap();
    fs::write(tree.join("cut"), b"").unwrap();
    for name in ["link", "gone"] {
        fs::remove_file(tree.join(name)).unwrap();
    }
    symlink("target", tree.join("link")).unwrap();
    let mut read = |name| reader.read(at(&walked, name)).unwrap();
    let Some(Content::File {
        stat,
        pieces,
        is_steady: false,
    }) = read("grown")
    else {
        panic!("no file");
    };
    assert_eq!((stat.size, pieces[0].len), (9, 9));
    assert_eq!(&pieces[0].id, blake3::hash(b"and after").as_bytes());
    let cut = read("cut").unwrap();
    assert!(matches!(&cut, Content::File { pieces, .. } if pieces.is_empty()));
    let link = read("link").unwrap();
    assert!(matches!(link, Content::Changed(Other::Entry(_))));
    assert!(read("gone").is_none());
}

#[test]
fn programs_that_write_do_not_stop_a_snapshot() {
    let (mut place, tree) = Place::with_tree();
    let log = tree.join("server.log");
    fs::write(&log, vec![b'x'; 4 << 20]).unwrap();
    fs::write(tree.join("swapped"), b"0").unwrap();
    let stop = AtomicBool::new(false);
    let (stop, tree_) = (&stop, &tree);
    let manifest = std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut log = fs::File::options().append(true).open(&log).unwrap();
            while !stop.load(Ordering::Relaxed) {
                std::io::Write::write_all(&mut log, b"x").unwrap();
                fs::write(tree_.join("next"), b"1").unwrap();
                fs::rename(tree_.join("next"), tree_.join("swapped")).unwrap();
            }
        });
        let pack = place.pack();
        let taken = place.store().take(pack, tree_, None, &mut StatCache::new());
        stop.store(true, Ordering::Relaxed);
        taken.unwrap().release()
    });
    let restored = place.restore(&manifest);
    let log = fs::read(restored.join("server.log")).unwrap();
    assert!(log.len() >= 4 << 20 && log.iter().all(|b| *b == b'x'));
    let swapped = fs::read(restored.join("swapped")).unwrap();
    assert!(swapped == b"0" || swapped == b"1", "{swapped:?}");
    place.store().verify(&manifest).unwrap();
}

/// So many directories within each other, by descriptors: no path is that long. Each but the
/// first holds a file.
fn deepen(top: &Path, levels: usize) {
    fs::create_dir(top).unwrap();
    let mut at = files::open_root(top).unwrap();
    for _ in 0..levels {
        let name = [b'd'; 100];
        rustix::fs::mkdirat(&at, &name[..], rustix::fs::Mode::RWXU).unwrap();
        at = files::open_dir(&at, &name).unwrap();
        files::create_file(&at, b"file", 0o600).unwrap();
    }
}

#[test]
fn deep_trees_come_back_and_go_with_few_descriptors() {
    let mut place = Place::new();
    let tree = place.fresh();
    // Far more than are held open, and longer than a path may be.
    deepen(&tree, 300);
    let manifest = place.first(&tree);
    assert_eq!(manifest.entries, 600);
    let restored = place.restore(&manifest);
    let again = place.take(&restored, Some(&manifest), &mut StatCache::new());
    assert!(again.unchanged);
    for tree in [tree, restored] {
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }
}

#[test]
fn too_many_levels_are_refused() {
    let mut place = Place::new();
    let tree = place.fresh();
    deepen(&tree, DEPTH_MAX);
    let manifest = place.first(&tree);
    assert_eq!(manifest.entries, 2 * DEPTH_MAX as u64);
    place.store().verify(&manifest).unwrap();
    let restored = place.restore(&manifest);
    remove_tree(&restored).unwrap();
    remove_tree(&tree).unwrap();
    let tree = place.fresh();
    deepen(&tree, DEPTH_MAX + 1);
    let pack = place.pack();
    let taken = place
        .store()
        .take(pack, &tree, None, &mut StatCache::new())
        .unwrap_err();
    assert!(
        matches!(taken, SnapshotError::Limit { max: 2_000, .. }),
        "{taken}"
    );
    assert!(place.store().packs().unwrap().len() == 1);
    remove_tree(&tree).unwrap();
}

#[test]
fn what_is_deeper_than_a_moved_directory_is_left_out() {
    let mut place = Place::new();
    let tree = place.fresh();
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/b/file"), b"in").unwrap();
    let walked = changed(&mut place, &tree, || {
        fs::rename(tree.join("a/b"), tree.join("b")).unwrap();
    });
    // It was there when it was listed; its content went away under it.
    assert_eq!(walked.entries, 2);
}

#[test]
fn a_fifo_in_the_place_of_a_file_is_not_waited_for() {
    let (mut place, tree) = Place::with_tree();
    fs::write(tree.join("f"), b"file").unwrap();
    let walked = changed(&mut place, &tree, || {
        fs::remove_file(tree.join("f")).unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(tree.join("f"))
            .status();
        assert!(made.unwrap().success());
    });
    assert_eq!(walked.skipped[0].reason, SkipReason::Special);
}
