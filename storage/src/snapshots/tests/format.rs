//! Golden files: what this version writes, and that it reads what it wrote.

use std::sync::Arc;

use super::kit::Place;
use crate::snapshots::pack::{self, Codec, Pack, Slot};
use crate::snapshots::tree::{Entry, FileNode, Node, Piece, Time, Tree};
use crate::snapshots::{FORMAT, Manifest, PackId, SnapshotError, SnapshotStore};

/// A thousand times `z` as a zstd frame: another version may compress it otherwise.
const FRAME: [u8; 19] = [
    40, 181, 47, 253, 96, 232, 2, 77, 0, 0, 16, 122, 122, 1, 0, 227, 43, 128, 5,
];

fn time() -> Time {
    Time {
        s: 1_600_000_000,
        ns: 123_456_789,
    }
}

pub(super) fn chunk(len: u8) -> Vec<u8> {
    (0..len).collect()
}

fn tree() -> Tree {
    let piece = |offset, len| Piece {
        offset,
        len: u32::from(len),
        id: *blake3::hash(&chunk(len)).as_bytes(),
    };
    let file = |link, size, pieces: Vec<Piece>| {
        Node::File(FileNode {
            mode: 0o644,
            mtime: time(),
            size,
            link,
            pieces: pieces.into(),
        })
    };
    let entry = |name: &[u8], node| Entry {
        name: name.into(),
        node,
    };
    let target: Arc<[u8]> = Arc::from(&b"../x"[..]);
    Tree {
        mode: 0o1755,
        mtime: time(),
        entries: vec![
            entry(b"a\n\xff", file(None, 10, vec![piece(0, 10)])),
            entry(b"b", Node::Dir([7; 32])),
            entry(
                b"c",
                file(Some([9; 16]), 90_000, vec![piece(0, 10), piece(65_536, 20)]),
            ),
            entry(
                b"d",
                Node::Symlink {
                    mtime: time(),
                    target: target.as_ref().into(),
                },
            ),
        ],
    }
}

fn pack_bytes() -> Vec<u8> {
    let id = PackId([5; 16]);
    let mut bytes = pack::header(id);
    let mut slots = Vec::new();
    let objects = [
        (Codec::Plain, chunk(10), chunk(10)),
        (Codec::Zstd, FRAME.to_vec(), vec![b'z'; 1000]),
    ];
    for (codec, stored, raw) in objects {
        slots.push(Slot {
            id: *blake3::hash(&raw).as_bytes(),
            codec,
            offset: bytes.len() as u64,
            stored: stored.len() as u32,
            raw: raw.len() as u32,
        });
        bytes.extend(stored);
    }
    let footer = pack::footer(id, &slots, bytes.len() as u64);
    bytes.extend(footer);
    bytes
}

fn manifest() -> Manifest {
    Manifest {
        format: 1,
        root: [3; 32],
        packs: vec![PackId([1; 16]), PackId([2; 16])],
        entries: 4,
        logical_bytes: 40,
    }
}

fn golden() -> Vec<(&'static str, Vec<u8>)> {
    let mut encoded = Vec::new();
    tree().encode(&mut encoded);
    vec![
        ("snapshot-1-tree", encoded),
        ("snapshot-1-pack", pack_bytes()),
        ("snapshot-1-manifest", manifest().encode()),
    ]
}

#[test]
fn formats_are_the_golden_bytes() {
    for (name, bytes) in golden() {
        let path = format!("{}/tests/golden/{name}.bin", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("LONGHAUL_BLESS").is_some() {
            std::fs::write(&path, &bytes).unwrap();
        }
        let stored = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert_eq!(stored, bytes, "{name}");
    }
}

#[test]
fn golden_files_read_as_what_they_are() {
    let read = |name: &str| {
        let path = format!("{}/tests/golden/{name}.bin", env!("CARGO_MANIFEST_DIR"));
        std::fs::read(path).unwrap()
    };
    assert_eq!(Tree::decode(&read("snapshot-1-tree")).unwrap(), tree());
    assert_eq!(
        Manifest::decode(&read("snapshot-1-manifest")).unwrap(),
        manifest()
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pack");
    std::fs::write(&path, read("snapshot-1-pack")).unwrap();
    let pack = Pack::open(PackId([5; 16]), &path).unwrap();
    let mut scratch = pack::Scratch::new().unwrap();
    pack.read(&pack.slots[0], &mut scratch).unwrap();
    assert_eq!(scratch.raw, chunk(10));
    pack.read(&pack.slots[1], &mut scratch).unwrap();
    assert_eq!(scratch.raw, [b'z'; 1000]);
}

#[test]
fn newer_formats_are_refused_as_such() {
    let mut newer = manifest().encode();
    newer[1] = 2;
    let error = Manifest::decode(&newer).unwrap_err();
    assert!(
        matches!(error, SnapshotError::Newer { found: 2, .. }),
        "{error}"
    );
    let mut newer = Vec::new();
    tree().encode(&mut newer);
    newer[0] = 9;
    let error = Tree::decode(&newer).unwrap_err();
    assert!(
        matches!(error, SnapshotError::Newer { found: 9, .. }),
        "{error}"
    );
    let mut newer = pack_bytes();
    newer[9] = 3;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pack");
    std::fs::write(&path, newer).unwrap();
    let error = Pack::open(PackId([5; 16]), &path).unwrap_err();
    assert!(
        matches!(error, SnapshotError::Newer { found: 3, .. }),
        "{error}"
    );
}

#[test]
fn the_folder_says_its_format() {
    let mut place = Place::new();
    let stamp = place.store_folder().join("FORMAT");
    assert_eq!(
        std::fs::read_to_string(&stamp).unwrap(),
        format!("longhaul snapshots format {FORMAT}\n")
    );
    let open = |text: &str| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("FORMAT"), text).unwrap();
        SnapshotStore::open(folder.path(), Default::default()).map(drop)
    };
    let newer = open("longhaul snapshots format 2\n").unwrap_err();
    assert!(
        matches!(newer, SnapshotError::Newer { found: 2, .. }),
        "{newer}"
    );
    for text in ["", "longhaul sna", "longhaul snapshots format 1\n"] {
        open(text).unwrap();
    }
    for text in [
        "something",
        "longhaul snapshots format 0\n",
        "longhaul snapshots format x\n",
    ] {
        let damaged = open(text).unwrap_err();
        assert!(
            matches!(damaged, SnapshotError::Damaged { .. }),
            "{text}: {damaged}"
        );
    }
    place.open();
}

#[test]
fn names_of_packs_are_read_as_they_are_written() {
    let id = PackId([0xab; 16]);
    assert_eq!(PackId::parse(&id.to_string()), Some(id));
    let upper = id.to_string().to_uppercase();
    for text in ["", "ab", upper.as_str(), "+b000000000000000000000000000000"] {
        assert_eq!(PackId::parse(text), None, "{text}");
    }
}
