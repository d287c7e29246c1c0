//! Deletion, reclaiming and merging: what is live stays whole.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::kit::{Look, Place, bytes, look, refused, text};
use crate::snapshots::{
    Manifest, PackId, ReclaimBudget, SnapshotError, StatCache, lineages, take::Taken,
};

/// A chain of snapshots of one tree, each with a few edits.
fn chain(place: &mut Place, links: u64) -> Vec<(Manifest, Look)> {
    let tree = place.fresh();
    fs::create_dir_all(tree.join("some/where/deep")).unwrap();
    fs::write(tree.join("some/where/deep/stays"), bytes(200_000, 1 << 40)).unwrap();
    fs::write(tree.join("some/stays"), text(200_000, 5)).unwrap();
    for file in 0..60 {
        fs::write(tree.join(format!("f{file}")), text(9_000, file * 1_000)).unwrap();
    }
    let mut cache = StatCache::new();
    let mut chain: Vec<(Manifest, Look)> = Vec::new();
    for link in 0..links {
        for edit in 0..3 {
            let file = (link * 7 + edit) % 60;
            fs::write(
                tree.join(format!("f{file}")),
                bytes(9_000, link * 10 + edit),
            )
            .unwrap();
        }
        let parent = chain.last().map(|c| c.0.clone());
        let taken = place.take(&tree, parent.as_ref(), &mut cache);
        chain.push((taken.release(), look(&tree)));
    }
    chain
}

fn packs_of<'a>(manifests: impl IntoIterator<Item = &'a Manifest>) -> HashSet<PackId> {
    manifests
        .into_iter()
        .flat_map(|m| &m.packs)
        .copied()
        .collect()
}

fn on_disk(place: &Place) -> u64 {
    let packs = place.store().packs().unwrap();
    let blocks = |p| fs::metadata(place.pack_path(p)).unwrap().blocks();
    packs.into_iter().map(|p| blocks(p) * 512).sum()
}

#[test]
fn a_chain_of_a_hundred_keeps_every_link() {
    let mut place = Place::new();
    let chain = chain(&mut place, 100);
    let size = on_disk(&place);
    let (last, seen) = chain.last().unwrap();
    assert!(last.packs.len() > 10);
    for (manifest, seen) in chain.iter().step_by(33) {
        place.check(manifest, seen);
    }
    // All but the last and one in the middle are deleted.
    let live = [chain[40].0.clone(), last.clone()];
    let collection = place.store().collection().unwrap();
    let removed = collection.remove_unlisted(&packs_of(&live), 1_000).unwrap();
    assert!(!removed.more);
    let reclaimed = collection.reclaim(&live, ReclaimBudget::default()).unwrap();
    assert!(reclaimed.punches > 20 && !reclaimed.more, "{reclaimed:?}");
    let again = collection.reclaim(&live, ReclaimBudget::default()).unwrap();
    assert_eq!((again.punches, again.bytes), (0, 0), "it is done once");
    drop(collection);
    assert!(on_disk(&place) < size * 9 / 10);
    place.open();
    place.check(&live[0], &chain[40].1);
    place.check(last, seen);
    let error = refused(&mut place, &chain[70].0);
    assert!(is_freed(&error), "{error}");
}

#[test]
fn reclaiming_goes_in_small_steps() {
    let mut place = Place::new();
    let chain = chain(&mut place, 20);
    let live = vec![chain[19].0.clone()];
    let mut steps = 0;
    loop {
        // Each step is a process of its own.
        place.open();
        let collection = place.store().collection().unwrap();
        let removed = collection.remove_unlisted(&packs_of(&live), 1).unwrap();
        let reclaimed = collection
            .reclaim(&live, ReclaimBudget { punches_max: 2 })
            .unwrap();
        assert!(removed.packs <= 1 && reclaimed.punches <= 2);
        steps += 1;
        if !removed.more && !reclaimed.more {
            break;
        }
        assert!(steps < 500);
    }
    assert!(steps > 3);
    place.check(&chain[19].0, &chain[19].1);
}

#[test]
fn merged_packs_hold_the_same_snapshots() {
    let mut place = Place::new();
    let chain = chain(&mut place, 40);
    let live: Vec<Manifest> = [10, 25, 39].iter().map(|n| chain[*n].0.clone()).collect();
    let pack = place.pack();
    let merged = place.store().merge(pack, &live, &packs_of(&live)).unwrap();
    for (new, old) in merged.manifests.iter().zip(&live) {
        assert_eq!((new.root, &new.packs), (old.root, &vec![pack]));
    }
    // Pinned before any row names it.
    let collection = place.store().collection().unwrap();
    collection.remove_unlisted(&packs_of(&live), 1_000).unwrap();
    let new = merged.release();
    collection.remove_unlisted(&packs_of(&new), 1_000).unwrap();
    drop(collection);
    assert_eq!(place.store().packs().unwrap(), vec![pack]);
    for (manifest, n) in new.iter().zip([10, 25, 39]) {
        place.check(manifest, &chain[n].1);
    }
}

#[test]
fn some_packs_merge_and_the_others_stay() {
    let mut place = Place::new();
    let chain = chain(&mut place, 12);
    let live = vec![chain[11].0.clone()];
    let big = chain[0].0.packs[0];
    let mut victims = packs_of(&live);
    victims.remove(&big);
    let pack = place.pack();
    let new = place
        .store()
        .merge(pack, &live, &victims)
        .unwrap()
        .release();
    let expected: HashSet<PackId> = [big, pack].into();
    assert_eq!(packs_of(&new), expected);
    let collection = place.store().collection().unwrap();
    collection.remove_unlisted(&packs_of(&new), 1_000).unwrap();
    collection.reclaim(&new, ReclaimBudget::default()).unwrap();
    drop(collection);
    place.check(&new[0], &chain[11].1);
}

#[test]
fn what_no_row_names_yet_is_pinned() {
    let mut place = Place::new();
    let chain = chain(&mut place, 3);
    let tree = place.restore(&chain[2].0);
    fs::write(tree.join("f1"), b"new").unwrap();
    let seen = look(&tree);
    let taken: Taken = place.take(&tree, Some(&chain[2].0), &mut StatCache::new());
    // All rows are deleted before this one is committed.
    let none = HashSet::new();
    let collection = place.store().collection().unwrap();
    collection.remove_unlisted(&none, 1_000).unwrap();
    let manifest = taken.release();
    // Released while the collection was open, whose rows may be older.
    collection.remove_unlisted(&none, 1_000).unwrap();
    let oldest = [chain[0].0.clone()];
    collection
        .reclaim(&oldest, ReclaimBudget::default())
        .unwrap();
    drop(collection);
    place.check(&manifest, &seen);
    // A pack that was made after it began is not touched either.
    let collection = place.store().collection().unwrap();
    let late = place.first(&tree);
    collection.remove_unlisted(&none, 1_000).unwrap();
    drop(collection);
    place.check(&late, &seen);
    let error = refused(&mut place, &manifest);
    assert!(matches!(error, SnapshotError::Gone { .. }), "{error}");
    let collection = place.store().collection().unwrap();
    collection.remove_unlisted(&none, 1_000).unwrap();
    drop(collection);
    assert!(place.store().packs().unwrap().is_empty());
}

/// Which object is met first depends on the threads: all of it was freed, or whole blocks of it.
fn is_freed(error: &SnapshotError) -> bool {
    matches!(
        error,
        SnapshotError::Gone { .. } | SnapshotError::Damaged { .. }
    )
}

#[test]
fn a_pin_keeps_ranges_too() {
    let mut place = Place::new();
    let chain = chain(&mut place, 10);
    let pin = place.store().pin(&chain[4].0);
    let live = vec![chain[9].0.clone()];
    let collection = place.store().collection().unwrap();
    collection.remove_unlisted(&packs_of(&live), 1_000).unwrap();
    collection.reclaim(&live, ReclaimBudget::default()).unwrap();
    drop(collection);
    place.check(&chain[4].0, &chain[4].1);
    drop(pin);
    let collection = place.store().collection().unwrap();
    collection.remove_unlisted(&packs_of(&live), 1_000).unwrap();
    collection.reclaim(&live, ReclaimBudget::default()).unwrap();
    drop(collection);
    place.check(&live[0], &chain[9].1);
    let error = refused(&mut place, &chain[4].0);
    assert!(is_freed(&error), "{error}");
}

#[test]
fn content_that_was_reclaimed_and_comes_back_is_stored_again() {
    let (mut place, tree) = Place::with_tree();
    fs::write(tree.join("stays"), bytes(20_000, 1)).unwrap();
    fs::write(tree.join("returns"), bytes(50_000, 2)).unwrap();
    let mut cache = StatCache::new();
    let first = place.take(&tree, None, &mut cache).release();
    fs::remove_file(tree.join("returns")).unwrap();
    let second = place.take(&tree, Some(&first), &mut cache).release();
    let live = [second.clone()];
    let collection = place.store().collection().unwrap();
    let reclaimed = collection.reclaim(&live, ReclaimBudget::default()).unwrap();
    assert!(reclaimed.bytes >= 40_000);
    drop(collection);
    fs::write(tree.join("returns"), bytes(50_000, 2)).unwrap();
    let third = place.take(&tree, Some(&second), &mut cache);
    assert!(third.new_bytes > 50_000);
    let (third, seen) = (third.release(), look(&tree));
    place.check(&third, &seen);
    let fourth = place.take(&tree, Some(&third), &mut cache);
    assert!(fourth.unchanged);
    let fourth = fourth.release();
    let collection = place.store().collection().unwrap();
    collection
        .reclaim(std::slice::from_ref(&third), ReclaimBudget::default())
        .unwrap();
    drop(collection);
    let pack = place.pack();
    let merged = place
        .store()
        .merge(pack, &[fourth], &packs_of([&third]))
        .unwrap()
        .release();
    place.check(&merged[0], &seen);
}

#[test]
fn lineages_share_no_pack() {
    let manifest = |packs: &[u8]| Manifest {
        format: 1,
        root: [packs[0]; 32],
        packs: packs.iter().map(|n| PackId([*n; 16])).collect(),
        entries: 0,
        logical_bytes: 0,
    };
    let all = [&[1, 2][..], &[3], &[4, 5], &[2, 3], &[6], &[5, 6], &[7]];
    let groups = lineages(all.iter().map(|p| manifest(p)).collect());
    let mut sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 3, 3]);
    for (n, group) in groups.iter().enumerate() {
        let mine = packs_of(group);
        for other in groups.iter().skip(n + 1) {
            assert!(mine.is_disjoint(&packs_of(other)));
        }
    }
}

#[test]
fn unfinished_packs_are_removed_and_the_folder_is_held() {
    let mut place = Place::new();
    let chain = chain(&mut place, 2);
    let tmp = place.pack_path(PackId([0; 16])).with_extension("tmp");
    fs::create_dir_all(tmp.parent().unwrap()).unwrap();
    fs::write(&tmp, b"half").unwrap();
    let folder = place.store_folder();
    let twice = crate::snapshots::SnapshotStore::open(&folder, Default::default()).unwrap_err();
    assert!(matches!(twice, SnapshotError::InUse { .. }), "{twice}");
    assert!(tmp.exists());
    place.open();
    assert!(!tmp.exists());
    place.check(&chain[1].0, &chain[1].1);
}
