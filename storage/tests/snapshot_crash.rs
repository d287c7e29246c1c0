//! The process is really stopped at every fault point of snapshots. Every snapshot whose row was
//! written restores, what no row names can be removed, and the store goes on.
//!
//! `cargo test -p longhaul-storage --features failpoints --test snapshot_crash`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

#[path = "kit/stopped.rs"]
mod stopped;

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::path::Path;

use longhaul_storage::fault;
use longhaul_storage::snapshots::{
    Manifest, PackId, ReclaimBudget, SnapshotStore, StatCache, remove_tree,
};

use stopped::stopped_at;

const FOLDER: &str = "LONGHAUL_SNAPSHOT_CRASH_TEST_FOLDER";
const ROUNDS: u8 = 8;
const FILES: u8 = 24;

/// By round.
type Rows = BTreeMap<u8, Manifest>;

fn open(folder: &Path) -> SnapshotStore {
    SnapshotStore::open(&folder.join("store"), Default::default()).unwrap()
}

/// The caller's rows, all in one file, replaced at once.
fn commit(folder: &Path, rows: &Rows) {
    let mut bytes = Vec::new();
    for (round, manifest) in rows {
        let row = manifest.encode();
        bytes.push(*round);
        bytes.extend((row.len() as u32).to_be_bytes());
        bytes.extend(row);
    }
    let tmp = folder.join("rows.tmp");
    fs::write(&tmp, bytes).unwrap();
    File::open(&tmp).unwrap().sync_all().unwrap();
    fs::rename(tmp, folder.join("rows")).unwrap();
}

fn rows(folder: &Path) -> Rows {
    let bytes = fs::read(folder.join("rows")).unwrap_or_default();
    let mut rest = bytes.as_slice();
    let mut rows = Rows::new();
    while let [round, a, b, c, d, more @ ..] = rest {
        let (row, after) = more.split_at(u32::from_be_bytes([*a, *b, *c, *d]) as usize);
        rows.insert(*round, Manifest::decode(row).unwrap());
        rest = after;
    }
    rows
}

/// What file `n` holds after `round`: each round changes every third.
fn content(n: u8, round: u8) -> Vec<u8> {
    let changed = (0..=round)
        .rev()
        .find(|r| (n + r).is_multiple_of(3))
        .unwrap_or(0);
    let mut state = u64::from(n) << 32 | u64::from(changed) | 1 << 50;
    let noise = (0..2_500).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    noise.collect()
}

fn edit(tree: &Path, round: u8) {
    for n in 0..FILES {
        let path = tree.join(format!("d{}/f{n}", n % 4));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if round == 0 || (n + round).is_multiple_of(3) {
            fs::write(path, content(n, round)).unwrap();
        }
    }
}

fn packs(rows: &Rows) -> HashSet<PackId> {
    rows.values().flat_map(|m| &m.packs).copied().collect()
}

fn collect(store: &SnapshotStore, folder: &Path) {
    let collection = store.collection().unwrap();
    let rows = rows(folder);
    collection.remove_unlisted(&packs(&rows), 100).unwrap();
    let live: Vec<Manifest> = rows.into_values().collect();
    collection.reclaim(&live, ReclaimBudget::default()).unwrap();
}

/// Runs in a process of its own, and prints which rows are written.
fn work(folder: &Path) {
    fault::arm();
    let store = open(folder);
    let tree = folder.join("tree");
    let mut cache = StatCache::new();
    let mut live = Rows::new();
    for round in 0..ROUNDS {
        edit(&tree, round);
        let parent = live.last_key_value().map(|(_, m)| m.clone());
        let pack = PackId([round + 1; 16]);
        let taken = store
            .take(pack, &tree, parent.as_ref(), &mut cache)
            .unwrap();
        live.insert(round, taken.manifest.clone());
        commit(folder, &live);
        taken.release();
        println!("acknowledged {round}");
        if round == 3 || round == 6 {
            live.retain(|r, _| *r != round - 3 && *r != round - 2);
            commit(folder, &live);
            println!("deleted {}", round - 2);
            collect(&store, folder);
        }
        if round == 5 {
            let old: Vec<Manifest> = live.values().cloned().collect();
            let merged = store.merge(PackId([99; 16]), &old, &packs(&live)).unwrap();
            for (row, new) in live.values_mut().zip(&merged.manifests) {
                *row = new.clone();
            }
            commit(folder, &live);
            merged.release();
            collect(&store, folder);
        }
    }
    let last = live.last_key_value().unwrap().1;
    store.restore(last, &folder.join("out")).unwrap();
}

fn number(output: &str, word: &str) -> Option<u8> {
    let lines = output.lines().filter_map(|l| l.strip_prefix(word));
    lines.filter_map(|n| n.trim().parse().ok()).max()
}

fn check(point: &str, folder: &Path, output: &str) {
    let store = open(folder);
    let live = rows(folder);
    // Deleted rows aside, all that was acknowledged is there.
    let last = number(output, "acknowledged ");
    if let Some(last) = last {
        assert!(live.contains_key(&last), "{point}: {last} is not there");
    }
    let out = folder.join("out");
    if out.exists() {
        same(point, &out, ROUNDS - 1);
    }
    for look in 0..2 {
        for (round, manifest) in &live {
            let into = folder.join(format!("check-{look}-{round}"));
            store
                .restore(manifest, &into)
                .unwrap_or_else(|e| panic!("{point}: {round}: {e}"));
            same(point, &into, *round);
        }
        collect(&store, folder);
    }
    let on_disk: HashSet<PackId> = store.packs().unwrap().into_iter().collect();
    assert_eq!(on_disk, packs(&live), "{point}");
    edit(&folder.join("tree"), ROUNDS);
    let parent = live.values().next_back();
    let mut cache = StatCache::new();
    let tree = folder.join("tree");
    let taken = store
        .take(PackId([200; 16]), &tree, parent, &mut cache)
        .unwrap();
    store.verify(&taken.manifest).unwrap();
}

fn same(point: &str, tree: &Path, round: u8) {
    for n in 0..FILES {
        let found = fs::read(tree.join(format!("d{}/f{n}", n % 4))).unwrap();
        assert!(found == content(n, round), "{point}: file {n} of {round}");
    }
}

#[test]
fn stopped_at_every_point() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return work(Path::new(&folder));
    }
    let mut reached = HashSet::new();
    for point in fault::SNAPSHOT_POINTS {
        for passes in [0, 1, 5] {
            let folder = tempfile::tempdir().unwrap();
            let place = (FOLDER, folder.path());
            let stopped = stopped_at(point, passes, "stopped_at_every_point", place);
            if stopped.reached {
                reached.insert(*point);
            }
            check(point, folder.path(), &stopped.said);
            for entry in fs::read_dir(folder.path()).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() && !path.ends_with("store") {
                    remove_tree(&path).unwrap();
                }
            }
        }
    }
    for point in fault::SNAPSHOT_POINTS {
        assert!(reached.contains(point), "{point} was never reached");
    }
}
