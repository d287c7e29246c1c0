//! Trees there and back.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::Command;

use super::kit::{Place, bytes, look, refused, set_mode, set_mtime, text};
use crate::snapshots::{SkipReason, SnapshotError, StatCache};

#[test]
fn a_tree_with_one_of_everything_comes_back() {
    let (mut place, tree) = Place::with_odd_tree();
    let before = look(&tree);
    let taken = place.take(&tree, None, &mut StatCache::new());
    assert!(taken.skipped.is_empty() && !taken.unchanged);
    assert_eq!(taken.manifest.entries, before.len() as u64 - 1);
    let file = fs::metadata(place.pack_path(taken.manifest.packs[0])).unwrap();
    assert_eq!(taken.new_bytes, file.len());
    let restored = place.restore(&taken.manifest);
    assert_eq!(look(&restored), before);
    let mut diff = Command::new("diff");
    diff.args(["-r", "--no-dereference"]);
    if let Ok(diff) = diff.args([&tree, &restored]).output() {
        assert!(
            diff.status.success(),
            "{}",
            String::from_utf8_lossy(&diff.stdout)
        );
    }
    for hole in ["sparse", "hole"] {
        let on_disk = fs::metadata(restored.join(hole)).unwrap().blocks() * 512;
        assert!(on_disk < 1 << 20, "{hole} has {on_disk} bytes on the disk");
    }
    place.store().verify(&taken.manifest).unwrap();
}

#[test]
fn the_root_of_a_restored_tree_is_the_same() {
    let (mut place, tree) = Place::with_odd_tree();
    let first = place.first(&tree);
    let restored = place.restore(&first);
    let again = place.take(&restored, Some(&first), &mut StatCache::new());
    assert!(again.unchanged);
    assert_eq!((again.new_bytes, &again.manifest), (0, &first));
    assert_eq!(place.store().packs().unwrap(), first.packs);
    let alone = place.first(&restored);
    assert_eq!(alone.root, first.root);
}

#[test]
fn what_did_not_change_is_neither_read_nor_written() {
    let (mut place, tree) = Place::with_odd_tree();
    let first = place.first(&tree);
    let into = place.fresh();
    let mut cache = place.store().restore(&first, &into).unwrap();
    // All but the empty files, with each file once.
    assert!(cache.len() >= 14, "{}", cache.len());
    // Unreadable by its name now; a reader would fail or see a directory.
    let known = cache.len();
    let taken = place.take(&into, Some(&first), &mut cache);
    assert!(taken.unchanged);
    assert!(cache.len() <= known);
    drop(taken);
    fs::write(into.join("plain"), b"new").unwrap();
    let second = place.take(&into, Some(&first), &mut cache);
    assert!(
        !second.unchanged && second.new_bytes < 20_000,
        "{}",
        second.new_bytes
    );
    assert_eq!(second.manifest.packs.len(), 2);
    let now = look(&into);
    let second = second.release();
    place.check(&second, &now);
}

#[test]
fn an_edit_that_hides_its_time_is_seen() {
    let (mut place, tree) = Place::with_tree();
    let file = tree.join("file");
    fs::write(&file, b"aaaa").unwrap();
    set_mtime(&file, 1_600_000_000_000_000_000);
    let mut cache = StatCache::new();
    let mut parent = place.take(&tree, None, &mut cache).release();
    for round in 0..50_u8 {
        if round % 2 == 0 {
            File::options()
                .write(true)
                .open(&file)
                .unwrap()
                .write_all_at(&[round; 4], 0)
                .unwrap();
        } else {
            fs::write(tree.join("other"), [round; 4]).unwrap();
            fs::rename(tree.join("other"), &file).unwrap();
        }
        set_mtime(&file, 1_600_000_000_000_000_000);
        let seen = look(&tree);
        let taken = place.take(&tree, Some(&parent), &mut cache);
        assert!(!taken.unchanged, "round {round}");
        parent = taken.release();
        place.check(&parent, &seen);
    }
}

#[test]
fn a_cache_of_another_snapshot_does_no_harm() {
    let (mut place, tree) = Place::with_odd_tree();
    let first = place.first(&tree);
    let into = place.fresh();
    let mut cache = place.store().restore(&first, &into).unwrap();
    let seen = look(&into);
    // Without the parent nothing that the cache knows is stored.
    let alone = place.take(&into, None, &mut cache).release();
    assert_eq!(alone.packs.len(), 1);
    fs::remove_file(place.pack_path(first.packs[0])).unwrap();
    place.check(&alone, &seen);
    cache.set_mapped_writers(true);
    assert!(place.take(&into, Some(&alone), &mut cache).unchanged && cache.is_empty());
}

#[test]
fn entries_turn_into_others() {
    let (mut place, tree) = Place::with_odd_tree();
    let mut cache = StatCache::new();
    let first = place.take(&tree, None, &mut cache).release();
    let before = look(&tree);
    fs::remove_file(tree.join("plain")).unwrap();
    fs::create_dir(tree.join("plain")).unwrap();
    fs::write(tree.join("plain/in"), b"x").unwrap();
    fs::remove_dir_all(tree.join("a/b/c")).unwrap();
    fs::write(tree.join("a/b/c"), b"a file now").unwrap();
    fs::remove_dir(tree.join("hollow")).unwrap();
    symlink("plain", tree.join("hollow")).unwrap();
    fs::rename(tree.join("big"), tree.join("a/bigger")).unwrap();
    fs::remove_file(tree.join("a/b/linked")).unwrap();
    set_mode(&tree.join("tool"), 0o711);
    let after = look(&tree);
    let second = place.take(&tree, Some(&first), &mut cache);
    assert!(second.new_bytes < 8_000, "{}", second.new_bytes);
    let second = second.release();
    place.check(&second, &after);
    place.check(&first, &before);
}

#[test]
fn a_subtree_that_becomes_the_root_needs_no_pack() {
    let (mut place, tree) = Place::with_odd_tree();
    let first = place.first(&tree);
    let seen = look(&tree.join("a"));
    let inner = place.take(&tree.join("a"), Some(&first), &mut StatCache::new());
    // One name of its link group is outside, so that the group has another name or none.
    let inner = inner.release();
    place.check(&inner, &seen);
    let alone = place.take(&tree.join("a/b/c"), Some(&first), &mut StatCache::new());
    assert_eq!((alone.new_bytes, alone.unchanged), (0, false));
    assert_eq!(alone.manifest.packs, first.packs);
}

#[test]
fn big_files_share_what_did_not_change() {
    let (mut place, tree) = Place::with_tree();
    let file = tree.join("data");
    fs::write(&file, [bytes(20 << 20, 7), text(15 << 20, 8)].concat()).unwrap();
    let mut cache = StatCache::new();
    let first = place.take(&tree, None, &mut cache).release();
    let open = File::options().write(true).open(&file).unwrap();
    open.write_all_at(b"changed", 9 << 20).unwrap();
    let seen = look(&tree);
    let second = place.take(&tree, Some(&first), &mut cache);
    assert!(second.new_bytes < 3 << 20, "{}", second.new_bytes);
    let second = second.release();
    place.check(&second, &seen);
    // Inserted at the front: everything moves, most of it is known.
    let mut all = fs::read(&file).unwrap();
    all.splice(0..0, *b"12345");
    fs::write(&file, all).unwrap();
    let third = place.take(&tree, Some(&second), &mut cache);
    assert!(third.new_bytes < 8 << 20, "{}", third.new_bytes);
    let (third, seen) = (third.release(), look(&tree));
    place.check(&third, &seen);
}

#[test]
fn restores_snapshots_and_collections_run_beside_each_other() {
    let (mut place, tree) = Place::with_odd_tree();
    let seen = look(&tree);
    let first = place.first(&tree);
    let (store, folder) = (place.store().clone(), place.folder.path().to_owned());
    std::thread::scope(|scope| {
        for clone in 0..4_u8 {
            let (store, folder, first, seen) = (&store, &folder, &first, &seen);
            scope.spawn(move || {
                let into = folder.join(format!("clone-{clone}"));
                let mut cache = store.restore(first, &into).unwrap();
                assert_eq!(&look(&into), seen);
                fs::write(into.join("mine"), [clone]).unwrap();
                let taken = store.take(
                    crate::snapshots::PackId([clone + 1; 16]),
                    &into,
                    Some(first),
                    &mut cache,
                );
                let taken = taken.unwrap();
                // Rows are read while the others are at work: only the first is in them.
                let collection = store.collection().unwrap();
                let live = first.packs.iter().copied().collect();
                collection.remove_unlisted(&live, 100).unwrap();
                let live = std::slice::from_ref(first);
                collection.reclaim(live, Default::default()).unwrap();
                drop(collection);
                let back = folder.join(format!("back-{clone}"));
                store.restore(&taken.manifest, &back).unwrap();
                assert_eq!(look(&back), look(&into));
            });
        }
    });
    place.check(&first, &seen);
}

#[test]
fn what_is_no_file_is_skipped_and_named() {
    let (mut place, tree) = Place::with_tree();
    fs::write(tree.join("file"), b"x").unwrap();
    let _socket = UnixListener::bind(tree.join("socket")).unwrap();
    let taken = place.take(&tree, None, &mut StatCache::new());
    let (path, reason) = (&taken.skipped[0].path, taken.skipped[0].reason);
    assert_eq!(
        (path.to_str(), reason),
        (Some("socket"), SkipReason::Special)
    );
    assert_eq!((taken.skipped_count, taken.manifest.entries), (1, 1));
    let restored = place.restore(&taken.manifest);
    assert_eq!(look(&restored), look(&tree));
}

#[test]
fn bits_that_give_rights_are_dropped() {
    let (mut place, tree) = Place::with_tree();
    fs::write(tree.join("su"), b"x").unwrap();
    set_mode(&tree.join("su"), 0o6755);
    let manifest = place.first(&tree);
    let restored = place.restore(&manifest);
    let mode = fs::metadata(restored.join("su")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o755);
}

#[test]
fn limits_are_limits() {
    let (mut place, tree) = Place::with_odd_tree();
    let manifest = place.first(&tree);
    let folder = place.folder.path().join("small");
    let open = |entries_max, bytes_max| {
        let options = crate::snapshots::SnapshotOptions {
            threads: 1,
            entries_max,
            bytes_max,
        };
        crate::snapshots::SnapshotStore::open(&folder, options).unwrap()
    };
    for (entries_max, bytes_max) in [(10, 1 << 30), (1_000, 1 << 20)] {
        let store = open(entries_max, bytes_max);
        let pack = place.pack();
        let error = store
            .take(pack, &tree, None, &mut StatCache::new())
            .unwrap_err();
        assert!(matches!(error, SnapshotError::Limit { .. }), "{error}");
        assert!(store.packs().unwrap().is_empty());
    }
    // What another store wrote is held to this one's limits when it is restored.
    let from = place.pack_path(manifest.packs[0]);
    drop(open(1, 1));
    let shard = folder.join(from.parent().unwrap().file_name().unwrap());
    fs::create_dir_all(&shard).unwrap();
    fs::copy(&from, shard.join(from.file_name().unwrap())).unwrap();
    let error = open(10, 1 << 30).verify(&manifest).unwrap_err();
    assert!(
        matches!(
            error,
            SnapshotError::Limit {
                which: "entries",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_destination_that_exists_is_left_alone() {
    let (mut place, tree) = Place::with_odd_tree();
    let manifest = place.first(&tree);
    let into = place.fresh();
    fs::create_dir(&into).unwrap();
    let error = place.store().restore(&manifest, &into).unwrap_err();
    assert!(matches!(error, SnapshotError::Exists { .. }), "{error}");
    assert_eq!(fs::read_dir(&into).unwrap().count(), 0);
    symlink("nowhere", place.folder.path().join("link")).unwrap();
    let error = place
        .store()
        .restore(&manifest, &place.folder.path().join("link"))
        .unwrap_err();
    assert!(matches!(error, SnapshotError::Exists { .. }), "{error}");
}

#[test]
fn a_pack_id_is_used_once() {
    let (mut place, tree) = Place::with_odd_tree();
    let pack = place.pack();
    let first = place
        .store()
        .take(pack, &tree, None, &mut StatCache::new())
        .unwrap()
        .release();
    fs::write(tree.join("plain"), b"new").unwrap();
    let error = place
        .store()
        .take(pack, &tree, None, &mut StatCache::new())
        .unwrap_err();
    assert!(matches!(error, SnapshotError::Exists { .. }), "{error}");
    place.store().verify(&first).unwrap();
}

#[test]
fn a_pack_that_is_missing_is_gone() {
    let (mut place, tree) = Place::with_odd_tree();
    let mut cache = StatCache::new();
    let first = place.take(&tree, None, &mut cache).release();
    fs::write(tree.join("plain"), b"new").unwrap();
    let second = place.take(&tree, Some(&first), &mut cache).release();
    fs::remove_file(place.pack_path(first.packs[0])).unwrap();
    for manifest in [&first, &second] {
        let error = refused(&mut place, manifest);
        assert!(matches!(error, SnapshotError::Gone { .. }), "{error}");
    }
    let pack = place.pack();
    let error = place
        .store()
        .take(pack, &tree, Some(&second), &mut cache)
        .unwrap_err();
    assert!(matches!(error, SnapshotError::Gone { .. }), "{error}");
}
