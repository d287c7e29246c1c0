//! Packs, trees and manifests that nobody here wrote: a typed error, and nothing outside.

use std::fs;

use proptest::prelude::*;

use super::format::chunk;
use super::kit::{Place, bytes, look, refused, text};
use crate::snapshots::pack::{self, Codec, Slot};
use crate::snapshots::tree::{Entry, FileNode, Node, Piece, Time, Tree};
use crate::snapshots::{DEPTH_MAX, Id, Manifest, PackId, SnapshotError, StatCache};

fn id(bytes: &[u8]) -> Id {
    *blake3::hash(bytes).as_bytes()
}

fn file(size: u64, pieces: Vec<Piece>) -> Node {
    Node::File(FileNode {
        mode: 0o644,
        mtime: Time { s: 0, ns: 0 },
        size,
        link: None,
        pieces: pieces.into(),
    })
}

fn small() -> Node {
    let piece = Piece {
        offset: 0,
        len: 10,
        id: id(&chunk(10)),
    };
    file(10, vec![piece])
}

fn link(target: &[u8]) -> Node {
    Node::Symlink {
        mtime: Time { s: 0, ns: 0 },
        target: target.into(),
    }
}

fn tree(entries: Vec<(&[u8], Node)>) -> Vec<u8> {
    let tree = Tree {
        mode: 0o755,
        mtime: Time { s: 0, ns: 0 },
        entries: entries
            .into_iter()
            .map(|(name, node)| Entry {
                name: name.into(),
                node,
            })
            .collect(),
    };
    let mut out = Vec::new();
    tree.encode(&mut out);
    out
}

/// Forges a pack with these objects, the last of which is the root.
fn forge(place: &mut Place, objects: &[Vec<u8>], entries: u64, bytes: u64) -> Manifest {
    let pack = place.pack();
    let mut file = pack::header(pack);
    let mut slots = Vec::new();
    for object in objects {
        slots.push(Slot {
            id: id(object),
            codec: Codec::Plain,
            offset: file.len() as u64,
            stored: object.len() as u32,
            raw: object.len() as u32,
        });
        file.extend(object);
    }
    let footer = pack::footer(pack, &slots, file.len() as u64);
    file.extend(footer);
    let path = place.pack_path(pack);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, file).unwrap();
    Manifest {
        format: 1,
        root: id(objects.last().unwrap()),
        packs: vec![pack],
        entries,
        logical_bytes: bytes,
    }
}

#[test]
fn a_forged_tree_that_keeps_the_rules_is_restored() {
    let mut place = Place::new();
    let inner = tree(vec![(b"in", small())]);
    let root = tree(vec![(b"a", Node::Dir(id(&inner))), (b"b", link(b"../.."))]);
    let manifest = forge(&mut place, &[chunk(10), inner, root], 3, 10);
    let into = place.restore(&manifest);
    assert_eq!(fs::read(into.join("a/in")).unwrap(), chunk(10));
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let names: &[&[u8]] = &[b"", b".", b"..", b"a/b", b"/etc", b"../x", b"a\0b", b"/"];
    for name in names {
        let mut place = Place::new();
        let root = tree(vec![(name, small())]);
        let manifest = forge(&mut place, &[chunk(10), root], 1, 10);
        let error = refused(&mut place, &manifest);
        assert!(
            matches!(error, SnapshotError::Damaged { .. }),
            "{name:?}: {error}"
        );
        place.store().verify(&manifest).unwrap_err();
    }
}

#[test]
fn trees_that_break_a_rule_are_refused() {
    let piece = |offset, len, id| Piece { offset, len, id };
    let chunk10 = id(&chunk(10));
    let dir = || Node::Dir(id(&tree(vec![(b"x", small())])));
    let roots: Vec<(&str, Vec<u8>)> = vec![
        (
            "a link and a directory of one name",
            tree(vec![(b"a", link(b"/tmp")), (b"a", dir())]),
        ),
        (
            "names out of order",
            tree(vec![(b"b", small()), (b"a", small())]),
        ),
        ("no target", tree(vec![(b"a", link(b""))])),
        ("a long target", tree(vec![(b"a", link(&[b'x'; 5000]))])),
        ("a target with NUL", tree(vec![(b"a", link(b"x\0y"))])),
        (
            "a piece beyond the end",
            tree(vec![(b"a", file(9, vec![piece(0, 10, chunk10)]))]),
        ),
        (
            "a piece at the end of the world",
            tree(vec![(b"a", file(10, vec![piece(u64::MAX, 10, chunk10)]))]),
        ),
        (
            "pieces that overlap",
            tree(vec![(
                b"a",
                file(30, vec![piece(0, 10, chunk10), piece(9, 10, chunk10)]),
            )]),
        ),
        (
            "an empty piece",
            tree(vec![(b"a", file(10, vec![piece(0, 0, chunk10)]))]),
        ),
        ("a size of 2^63", tree(vec![(b"a", file(1 << 63, vec![]))])),
        (
            "a chunk of another length",
            tree(vec![(b"a", file(11, vec![piece(0, 11, chunk10)]))]),
        ),
        (
            "a chunk that is nowhere",
            tree(vec![(b"a", file(10, vec![piece(0, 10, [1; 32])]))]),
        ),
        (
            "a tree that is nowhere",
            tree(vec![(b"a", Node::Dir([1; 32]))]),
        ),
        ("a chunk as a tree", tree(vec![(b"a", Node::Dir(chunk10))])),
        ("nothing", vec![0]),
        (
            "a huge count",
            [&tree(vec![])[..15], &[0xff; 4], &[0; 8]].concat(),
        ),
        ("bytes at the end", [tree(vec![]), vec![0]].concat()),
        ("setuid", {
            let mut t = tree(vec![]);
            t[1] = 0o4755_u16.to_be_bytes()[0];
            t
        }),
        ("nanoseconds", {
            let mut t = tree(vec![]);
            t[11] = 0xff;
            t
        }),
    ];
    for (what, root) in roots {
        let mut place = Place::new();
        let inner = tree(vec![(b"x", small())]);
        for (entries, bytes) in [(1, 10), (3, 10), (1, 0), (1, 11), (2, 20)] {
            let objects = [chunk(10), inner.clone(), root.clone()];
            let manifest = forge(&mut place, &objects, entries, bytes);
            let error = refused(&mut place, &manifest);
            assert!(
                matches!(error, SnapshotError::Damaged { .. }),
                "{what}: {error}"
            );
            place.store().verify(&manifest).unwrap_err();
            // Nor is it built upon, or reclaimed.
            if entries == 1 && !what.contains("chunk") {
                let collection = place.store().collection().unwrap();
                collection
                    .reclaim(std::slice::from_ref(&manifest), Default::default())
                    .unwrap_err();
            }
        }
    }
}

#[test]
fn names_of_one_file_must_agree() {
    let member = |mode| {
        Node::File(FileNode {
            mode,
            mtime: Time { s: 0, ns: 0 },
            size: 0,
            link: Some([1; 16]),
            pieces: [].into(),
        })
    };
    let mut place = Place::new();
    let root = tree(vec![(b"a", member(0o644)), (b"b", member(0o600))]);
    let manifest = forge(&mut place, &[root], 2, 0);
    let error = refused(&mut place, &manifest);
    assert!(matches!(error, SnapshotError::Damaged { .. }), "{error}");
}

#[test]
fn a_tree_that_doubles_at_each_level_is_stopped() {
    let mut place = Place::new();
    let mut objects = vec![tree(vec![])];
    for _ in 0..60 {
        let below = id(objects.last().unwrap());
        objects.push(tree(vec![
            (b"a", Node::Dir(below)),
            (b"b", Node::Dir(below)),
        ]));
    }
    for entries in [120, u64::MAX] {
        let manifest = forge(&mut place, &objects, entries, 0);
        let error = refused(&mut place, &manifest);
        let expected = if entries == 120 {
            matches!(error, SnapshotError::Damaged { .. })
        } else {
            matches!(
                error,
                SnapshotError::Limit {
                    which: "entries",
                    ..
                }
            )
        };
        assert!(expected, "{error}");
    }
    let mut chain = vec![tree(vec![])];
    for _ in 0..=DEPTH_MAX {
        let below = id(chain.last().unwrap());
        chain.push(tree(vec![(b"a", Node::Dir(below))]));
    }
    let manifest = forge(&mut place, &chain, DEPTH_MAX as u64 + 1, 0);
    let error = refused(&mut place, &manifest);
    assert!(
        matches!(error, SnapshotError::Limit { max: 2_000, .. }),
        "{error}"
    );
}

#[test]
fn every_changed_byte_of_a_pack_is_an_error_or_harmless() {
    let (mut place, tree) = Place::with_tree();
    fs::write(tree.join("text"), text(3_000, 1)).unwrap();
    fs::write(tree.join("noise"), bytes(500, 2)).unwrap();
    fs::create_dir(tree.join("d")).unwrap();
    fs::write(tree.join("d/x"), b"x").unwrap();
    let manifest = place.first(&tree);
    let path = place.pack_path(manifest.packs[0]);
    let good = fs::read(&path).unwrap();
    let seen = look(&tree);
    let mut harmless = 0;
    for at in 0..good.len() {
        for flip in [0x01, 0x80] {
            let mut bad = good.clone();
            bad[at] ^= flip;
            replace(&path, &bad);
            // Some bits of a compressed frame mean nothing: what comes out is right or an error.
            let Err(error) = place.store().verify(&manifest) else {
                harmless += 1;
                place.check(&manifest, &seen);
                continue;
            };
            let typed = matches!(
                error,
                SnapshotError::Damaged { .. } | SnapshotError::Newer { .. }
            );
            assert!(typed, "{at}: {error}");
            if at % 97 == 0 {
                refused(&mut place, &manifest);
            }
        }
    }
    assert!(harmless < 20, "{harmless}");
    for len in (0..good.len()).step_by(7) {
        replace(&path, &good[..len]);
        let error = refused(&mut place, &manifest);
        assert!(
            matches!(error, SnapshotError::Damaged { .. }),
            "{len}: {error}"
        );
    }
    replace(&path, &[&good[..], &[0]].concat());
    refused(&mut place, &manifest);
    replace(&path, &vec![0; good.len()]);
    refused(&mut place, &manifest);
    replace(&path, &good);
    place.check(&manifest, &seen);
    // In place, under an index that is in memory: zeros are what reclaiming leaves.
    let open = fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&open, &[0; 400], pack::HEADER_LEN as u64).unwrap();
    let error = refused(&mut place, &manifest);
    let typed = matches!(
        error,
        SnapshotError::Gone { .. } | SnapshotError::Damaged { .. }
    );
    assert!(typed, "{error}");
}

/// As another file, as a backup that is put back would be.
fn replace(path: &std::path::Path, bytes: &[u8]) {
    fs::write(path.with_extension("new"), bytes).unwrap();
    fs::rename(path.with_extension("new"), path).unwrap();
}

#[test]
fn a_pack_under_another_name_is_refused() {
    let (mut place, tree) = Place::with_odd_tree();
    let first = place.first(&tree);
    let other = place.pack();
    let to = place.pack_path(other);
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(place.pack_path(first.packs[0]), to).unwrap();
    let renamed = Manifest {
        packs: vec![other],
        ..first
    };
    let error = refused(&mut place, &renamed);
    assert!(matches!(error, SnapshotError::Damaged { .. }), "{error}");
}

#[test]
fn a_manifest_that_lies_is_refused() {
    let (mut place, tree) = Place::with_odd_tree();
    let good = place.first(&tree);
    let other = PackId([0xee; 16]);
    let lies = [
        Manifest {
            root: [1; 32],
            ..good.clone()
        },
        Manifest {
            entries: good.entries - 1,
            ..good.clone()
        },
        Manifest {
            entries: good.entries + 1,
            ..good.clone()
        },
        Manifest {
            logical_bytes: 0,
            ..good.clone()
        },
        Manifest {
            packs: vec![],
            ..good.clone()
        },
        Manifest {
            packs: vec![good.packs[0], other],
            ..good.clone()
        },
        Manifest {
            format: 2,
            ..good.clone()
        },
        Manifest {
            format: 0,
            ..good.clone()
        },
    ];
    for lie in lies {
        refused(&mut place, &lie);
    }
    let pack = place.pack();
    let lie = Manifest {
        root: [1; 32],
        ..good.clone()
    };
    place
        .store()
        .take(pack, &tree, Some(&lie), &mut StatCache::new())
        .unwrap_err();
    assert_eq!(place.store().packs().unwrap(), good.packs);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_a_decoder_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        at in any::<prop::sample::Index>(),
        to in any::<u8>(),
    ) {
        let _ = Tree::decode(&bytes);
        let _ = Manifest::decode(&bytes);
        if let Some(first) = bytes.first_mut() {
            *first = 1;
        }
        let _ = Tree::decode(&bytes);
        let mut sound = tree(vec![(b"a", small()), (b"b", link(b"x")), (b"c", Node::Dir([1; 32]))]);
        let at = at.index(sound.len());
        sound[at] = to;
        if let Ok(tree) = Tree::decode(&sound) {
            // What is read is what was written: there is one encoding only.
            let mut again = Vec::new();
            tree.encode(&mut again);
            prop_assert_eq!(again, sound);
        }
    }
}
