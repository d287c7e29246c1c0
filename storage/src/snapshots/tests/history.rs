//! Random edit histories: every live snapshot restores exactly, whatever was deleted.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::kit::{Look, Place, bytes, look, text};
use crate::snapshots::{Manifest, PackId, ReclaimBudget, StatCache, lineages, remove_tree};

#[derive(Debug, Clone)]
enum Edit {
    Write {
        path: u8,
        len: u32,
        seed: u8,
    },
    Remove {
        path: u8,
    },
    Folder {
        path: u8,
    },
    Rename {
        from: u8,
        to: u8,
    },
    Link {
        from: u8,
        to: u8,
    },
    Take,
    /// Goes on from an older snapshot.
    Fork {
        snapshot: u8,
    },
    Delete {
        snapshot: u8,
    },
    Reclaim {
        punches_max: u8,
    },
    Merge,
    Reopen,
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        6 => (any::<u8>(), 0..60_000_u32, 0..12_u8)
            .prop_map(|(path, len, seed)| Edit::Write { path, len, seed }),
        2 => any::<u8>().prop_map(|path| Edit::Remove { path }),
        2 => any::<u8>().prop_map(|path| Edit::Folder { path }),
        1 => any::<(u8, u8)>().prop_map(|(from, to)| Edit::Rename { from, to }),
        1 => any::<(u8, u8)>().prop_map(|(from, to)| Edit::Link { from, to }),
        4 => Just(Edit::Take),
        2 => any::<u8>().prop_map(|snapshot| Edit::Fork { snapshot }),
        3 => any::<u8>().prop_map(|snapshot| Edit::Delete { snapshot }),
        2 => any::<u8>().prop_map(|punches_max| Edit::Reclaim { punches_max }),
        1 => Just(Edit::Merge),
        1 => Just(Edit::Reopen),
    ];
    prop::collection::vec(edit, 5..45)
}

/// One of 27 paths, three levels of three names.
fn path(n: u8) -> String {
    let name = |n: u8| char::from(b'a' + n % 3);
    match n % 3 {
        0 => format!("{}", name(n / 3)),
        1 => format!("{}/{}", name(n / 3), name(n / 9)),
        _ => format!("{}/{}/{}", name(n / 3), name(n / 9), name(n / 27)),
    }
}

/// Edits that make no sense where they are fail and change nothing.
fn edit(tree: &Path, edit: &Edit) {
    match edit {
        Edit::Write { path: p, len, seed } => {
            let data = if seed % 2 == 0 {
                bytes(*len as usize, (*seed).into())
            } else {
                text(*len as usize, (*seed).into())
            };
            let _ = fs::write(tree.join(path(*p)), data);
        }
        Edit::Remove { path: p } => {
            let path = tree.join(path(*p));
            let _ = fs::remove_file(&path).or_else(|_| remove_tree(&path));
        }
        Edit::Folder { path: p } => {
            let _ = fs::create_dir(tree.join(path(*p)));
        }
        Edit::Rename { from, to } => {
            let _ = fs::rename(tree.join(path(*from)), tree.join(path(*to)));
        }
        Edit::Link { from, to } => {
            let _ = fs::hard_link(tree.join(path(*from)), tree.join(path(*to)));
        }
        _ => {}
    }
}

fn manifests(live: &[(Manifest, Look)]) -> Vec<Manifest> {
    live.iter().map(|l| l.0.clone()).collect()
}

fn packs(live: &[(Manifest, Look)]) -> HashSet<PackId> {
    live.iter().flat_map(|l| &l.0.packs).copied().collect()
}

fn run(edits: &[Edit]) {
    let (mut place, mut tree) = Place::with_tree();
    let mut cache = StatCache::new();
    let mut live: Vec<(Manifest, Look)> = Vec::new();
    let mut parent: Option<Manifest> = None;
    for step in edits {
        match step {
            Edit::Take => {
                let taken = place.take(&tree, parent.as_ref(), &mut cache);
                live.push((taken.release(), look(&tree)));
                parent = live.last().map(|l| l.0.clone());
            }
            Edit::Fork { snapshot } if !live.is_empty() => {
                let (manifest, seen) = live[usize::from(*snapshot) % live.len()].clone();
                tree = place.fresh();
                cache = place.store().restore(&manifest, &tree).unwrap();
                assert_eq!(look(&tree), seen);
                parent = Some(manifest);
            }
            Edit::Delete { snapshot } if !live.is_empty() => {
                let (gone, _) = live.remove(usize::from(*snapshot) % live.len());
                if !live.iter().any(|l| Some(&l.0) == parent.as_ref()) && parent == Some(gone) {
                    parent = None;
                }
            }
            Edit::Reclaim { punches_max } => {
                let collection = place.store().collection().unwrap();
                collection.remove_unlisted(&packs(&live), 100).unwrap();
                for lineage in lineages(manifests(&live)) {
                    let punches_max = usize::from(*punches_max);
                    let budget = ReclaimBudget { punches_max };
                    collection.reclaim(&lineage, budget).unwrap();
                }
            }
            Edit::Merge if !live.is_empty() => {
                let pack = place.pack();
                let old = manifests(&live);
                let new = place
                    .store()
                    .merge(pack, &old, &packs(&live))
                    .unwrap()
                    .release();
                for ((live, _), new) in live.iter_mut().zip(new) {
                    if parent.as_ref() == Some(live) {
                        parent = Some(new.clone());
                    }
                    *live = new;
                }
            }
            Edit::Reopen => place.open(),
            other => edit(&tree, other),
        }
    }
    for (manifest, seen) in &live {
        let encoded = Manifest::decode(&manifest.encode()).unwrap();
        place.check(&encoded, seen);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_live_snapshot_restores_exactly(edits in edits()) {
        run(&edits);
    }
}
