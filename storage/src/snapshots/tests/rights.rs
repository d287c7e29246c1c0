//! Entries that may not be read.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::kit::{Place, look, set_mode};
use crate::snapshots::{Manifest, SnapshotError, StatCache, remove_tree};

/// Takes a snapshot as somebody for whom modes hold: root gives up what sets it above them.
fn take_bound_by_modes(place: &mut Place, tree: &Path) -> Result<Manifest, SnapshotError> {
    let pack = place.pack();
    let store = place.store();
    std::thread::scope(|scope| {
        let bound = scope.spawn(|| {
            let mut sets = capabilities(None).unwrap();
            let above = CapabilitySet::DAC_OVERRIDE
                | CapabilitySet::DAC_READ_SEARCH
                | CapabilitySet::FOWNER;
            sets.effective -= above;
            sets.permitted -= above;
            set_capabilities(None, sets).unwrap();
            let taken = store.take(pack, tree, None, &mut StatCache::new());
            taken.map(crate::snapshots::Taken::release)
        });
        bound.join().unwrap()
    })
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// A tree with what its owner cannot read: names and their modes.
fn unreadable(tree: &Path) -> Vec<(&'static str, u32)> {
    for dir in ["none/in", "search/in", "list"] {
        fs::create_dir_all(tree.join(dir)).unwrap();
    }
    for file in ["f", "w", "twice", "none/in/f", "search/f", "list/f"] {
        fs::write(tree.join(file), file).unwrap();
    }
    fs::hard_link(tree.join("twice"), tree.join("list/twice")).unwrap();
    fs::write(tree.join("long"), vec![7; 40 << 20]).unwrap();
    let modes = vec![
        ("f", 0o000),
        ("w", 0o222),
        ("long", 0o4004),
        ("twice", 0o100),
        ("none/in/f", 0o044),
        ("none/in", 0o000),
        ("none", 0o000),
        ("search", 0o311),
        ("list", 0o400),
    ];
    for (name, mode) in &modes {
        set_mode(&tree.join(name), *mode);
    }
    modes
}

#[test]
fn what_its_owner_cannot_read_is_kept_with_its_mode() {
    let (mut place, tree) = Place::with_tree();
    let modes = unreadable(&tree);
    set_mode(&tree, 0o000);
    let manifest = take_bound_by_modes(&mut place, &tree).unwrap();
    assert_eq!(mode(&tree), 0o000);
    set_mode(&tree, 0o700);
    for (name, before) in modes.iter().rev() {
        assert_eq!(mode(&tree.join(name)), *before, "{name}");
    }
    let restored = place.restore(&manifest);
    assert_eq!(mode(&restored), 0o000);
    set_mode(&restored, 0o700);
    for (name, before) in modes.iter().rev() {
        assert_eq!(mode(&restored.join(name)), *before & 0o1777, "{name}");
        // For whoever compares them without being root.
        for tree in [&tree, &restored] {
            set_mode(&tree.join(name), 0o700);
        }
    }
    let contents = |tree: &Path| {
        let seen = look(tree).into_iter();
        seen.map(|(path, seen)| (path, seen.bytes().to_vec()))
            .collect::<Vec<_>>()
    };
    assert_eq!(contents(&restored), contents(&tree));
}

#[test]
fn a_snapshot_that_fails_gives_the_modes_back_too() {
    let (mut place, tree) = Place::with_tree();
    fs::create_dir(tree.join("closed")).unwrap();
    fs::write(tree.join("closed/f"), b"f").unwrap();
    fs::write(tree.join("zz"), b"another's").unwrap();
    // Without root there is nobody else to own it.
    if chown(tree.join("zz"), Some(12_345), Some(12_345)).is_err() {
        return;
    }
    set_mode(&tree.join("zz"), 0o600);
    set_mode(&tree.join("closed"), 0o000);
    let error = take_bound_by_modes(&mut place, &tree).unwrap_err();
    assert_eq!(
        error.to_string(),
        "zz may not be read: Permission denied (os error 13)"
    );
    assert!(matches!(error, SnapshotError::Unreadable { .. }));
    assert_eq!(mode(&tree.join("closed")), 0o000);
    assert_eq!(mode(&tree.join("zz")), 0o600);
    assert!(place.store().packs().unwrap().is_empty());
}

#[test]
fn trees_that_may_not_be_written_to_are_removed() {
    let (_place, tree) = Place::with_tree();
    unreadable(&tree);
    set_mode(&tree, 0o000);
    std::thread::scope(|scope| {
        let bound = scope.spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            set_capabilities(None, sets).unwrap();
            remove_tree(&tree)
        });
        bound.join().unwrap().unwrap();
    });
    assert!(!tree.exists());
}
