//! The store's own folder: away, or with something else under its names.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::kit::{Place, refused};
use crate::snapshots::{SnapshotChecker, SnapshotError, SnapshotOptions, SnapshotStore, StatCache};

fn fifo(path: &Path) {
    fs::remove_file(path).unwrap();
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
}

#[test]
fn a_folder_that_is_away_says_nothing_of_its_packs() {
    let (mut place, tree) = Place::with_odd_tree();
    let manifest = place.first(&tree);
    let (folder, aside) = (place.store_folder(), place.folder.path().join("aside"));
    fs::rename(&folder, &aside).unwrap();
    for mount_point in [false, true] {
        if mount_point {
            fs::create_dir(&folder).unwrap();
        }
        let pack = place.pack();
        let taken = place
            .store()
            .take(pack, &tree, None, &mut StatCache::new())
            .map(drop);
        let errors = [
            refused(&mut place, &manifest),
            place.store().verify(&manifest).unwrap_err(),
            place.store().probe(&manifest).unwrap_err(),
            place.store().collection().map(drop).unwrap_err(),
            place.store().check_in_place().unwrap_err(),
            taken.unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, SnapshotError::Away { .. }), "{error}");
        }
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "nothing is made");
    fs::remove_dir(&folder).unwrap();
    fs::rename(&aside, &folder).unwrap();
    place.store().probe(&manifest).unwrap();
    place.store().verify(&manifest).unwrap();
    // In its place, a missing folder of packs is what it looks like.
    let shard = place.pack_path(manifest.packs[0]);
    fs::remove_dir_all(shard.parent().unwrap()).unwrap();
    for error in [
        refused(&mut place, &manifest),
        place.store().probe(&manifest).unwrap_err(),
    ] {
        assert!(matches!(error, SnapshotError::Gone { .. }), "{error}");
    }
}

#[test]
fn what_is_no_file_is_refused_and_not_waited_for() {
    let (mut place, tree) = Place::with_odd_tree();
    let manifest = place.first(&tree);
    let path = place.pack_path(manifest.packs[0]);
    let kept = path.with_extension("kept");
    fs::copy(&path, &kept).unwrap();
    let make: [fn(&Path); 3] = [
        fifo,
        |path| {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink(path.with_extension("kept"), path).unwrap();
        },
        |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        },
    ];
    for make in make {
        make(&path);
        for error in [
            refused(&mut place, &manifest),
            place.store().verify(&manifest).unwrap_err(),
            place.store().probe(&manifest).unwrap_err(),
        ] {
            // Whatever it is, it says nothing of the pack: that may be brought back.
            assert!(matches!(error, SnapshotError::Io { .. }), "{error}");
            assert!(error.to_string().contains("open"), "{error}");
        }
        let faults = SnapshotChecker::new(&place.store_folder()).check(&manifest);
        assert_eq!(faults[0].file, path);
    }
    // The checker does without a store.
    fs::remove_dir(&path).unwrap();
    fs::copy(&kept, &path).unwrap();
    let faults = SnapshotChecker::new(&place.store_folder()).check(&manifest);
    assert_eq!(faults, []);
}

#[test]
fn stamps_that_are_no_files_are_refused() {
    for name in ["FORMAT", "clock"] {
        let dir = tempfile::tempdir().unwrap();
        let options = SnapshotOptions::default();
        drop(SnapshotStore::open(dir.path(), options.clone()).unwrap());
        fifo(&dir.path().join(name));
        let error = SnapshotStore::open(dir.path(), options).unwrap_err();
        assert!(
            matches!(&error, SnapshotError::Io { path, .. } if path.ends_with(name)),
            "{error}"
        );
    }
}
