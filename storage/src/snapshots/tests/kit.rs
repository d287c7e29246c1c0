//! What the tests share: trees to take, and an independent comparison of two of them.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::snapshots::{
    Manifest, PackId, SnapshotError, SnapshotOptions, SnapshotStore, StatCache, Taken,
};

/// A folder with a store and room for trees.
pub(super) struct Place {
    pub(super) folder: tempfile::TempDir,
    store: Option<SnapshotStore>,
    packs: u64,
    trees: u64,
}

impl Place {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut place = Self {
            folder,
            store: None,
            packs: 0,
            trees: 0,
        };
        place.open();
        place
    }

    /// With a tree that has one of everything.
    pub(super) fn with_odd_tree() -> (Self, PathBuf) {
        let mut place = Self::new();
        let tree = place.fresh();
        odd_tree(&tree);
        (place, tree)
    }

    /// With an empty tree.
    pub(super) fn with_tree() -> (Self, PathBuf) {
        let mut place = Self::new();
        let tree = place.fresh();
        fs::create_dir(&tree).unwrap();
        (place, tree)
    }

    /// Lets go of the store, as a process that ends, and opens it again.
    pub(super) fn open(&mut self) {
        self.store = None;
        let options = SnapshotOptions {
            threads: 2,
            ..SnapshotOptions::default()
        };
        self.store = Some(SnapshotStore::open(&self.store_folder(), options).unwrap());
    }

    pub(super) fn store_folder(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    pub(super) fn store(&self) -> &SnapshotStore {
        self.store.as_ref().unwrap()
    }

    pub(super) fn pack(&mut self) -> PackId {
        self.packs += 1;
        PackId(u128::from(self.packs).to_be_bytes())
    }

    pub(super) fn pack_path(&self, pack: PackId) -> PathBuf {
        self.store().0.pack_path(pack)
    }

    /// A path for a tree that is not there yet.
    pub(super) fn fresh(&mut self) -> PathBuf {
        self.trees += 1;
        self.folder.path().join(format!("tree-{}", self.trees))
    }

    pub(super) fn take(
        &mut self,
        tree: &Path,
        parent: Option<&Manifest>,
        cache: &mut StatCache,
    ) -> Taken {
        let pack = self.pack();
        self.store().take(pack, tree, parent, cache).unwrap()
    }

    /// Without a parent and a cache.
    pub(super) fn first(&mut self, tree: &Path) -> Manifest {
        self.take(tree, None, &mut StatCache::new()).release()
    }

    pub(super) fn restore(&mut self, manifest: &Manifest) -> PathBuf {
        let into = self.fresh();
        self.store().restore(manifest, &into).unwrap();
        into
    }

    /// Restores and compares.
    pub(super) fn check(&mut self, manifest: &Manifest, tree: &Look) {
        let restored = self.restore(manifest);
        assert_eq!(&look(&restored), tree);
        crate::snapshots::remove_tree(&restored).unwrap();
        self.store().verify(manifest).unwrap();
    }
}

/// All that is compared of an entry.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(super) struct Seen {
    mode: u32,
    mtime: (i64, i64),
    size: u64,
    /// Digest of the content, or the target.
    bytes: Vec<u8>,
    /// The first path of the same file.
    same_as: Option<PathBuf>,
}

impl Seen {
    /// Digest of the content, or the target.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

pub(super) type Look = BTreeMap<PathBuf, Seen>;

/// Reads a tree by other means than the product does.
pub(super) fn look(root: &Path) -> Look {
    let mut seen = Look::new();
    let mut first: HashMap<u64, PathBuf> = HashMap::new();
    let mut open = vec![PathBuf::new()];
    while let Some(relative) = open.pop() {
        let path = root.join(&relative);
        let meta = fs::symlink_metadata(&path).unwrap();
        let mut bytes = Vec::new();
        let mut same_as = None;
        if meta.is_dir() {
            let mut names: Vec<_> = fs::read_dir(&path)
                .unwrap()
                .map(|e| e.unwrap().file_name())
                .collect();
            names.sort();
            open.extend(names.iter().rev().map(|name| relative.join(name)));
        } else if meta.is_symlink() {
            bytes = fs::read_link(&path).unwrap().as_os_str().as_bytes().into();
        } else if meta.is_file() {
            bytes = blake3::hash(&fs::read(&path).unwrap()).as_bytes().into();
            if meta.nlink() > 1 {
                let name = first.entry(meta.ino()).or_insert(relative.clone());
                same_as = (*name != relative).then(|| name.clone());
            }
        } else {
            continue;
        }
        let entry = Seen {
            mode: meta.mode(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            size: if meta.is_dir() { 0 } else { meta.size() },
            bytes,
            same_as,
        };
        seen.insert(relative, entry);
    }
    seen
}

pub(super) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend(state.to_le_bytes());
    }
    out.truncate(len);
    out
}

pub(super) fn text(len: usize, seed: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 80);
    let mut line = seed;
    while out.len() < len {
        out.extend(format!("let value_{line} = compute({});\n", line % 7).into_bytes());
        line += 1;
    }
    out.truncate(len);
    out
}

pub(super) fn set_mtime(path: &Path, ns: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(ns);
    let file = File::open(path).unwrap();
    file.set_times(FileTimes::new().set_modified(time)).unwrap();
}

pub(super) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A tree with one of everything.
pub(super) fn odd_tree(root: &Path) {
    fs::create_dir(root).unwrap();
    let name = |bytes: &[u8]| root.join(OsStr::from_bytes(bytes));
    fs::write(root.join("plain"), text(5_000, 1)).unwrap();
    fs::write(root.join("empty"), b"").unwrap();
    fs::write(name(b"line\nbreak \xff\xfe"), b"odd").unwrap();
    fs::write(name(b" spaces  "), b"space").unwrap();
    fs::write(name(&[b'n'; 255]), b"long").unwrap();
    fs::write(root.join("-rf"), b"dash").unwrap();
    fs::create_dir(root.join("hollow")).unwrap();
    symlink("nowhere/at/all", root.join("dangling")).unwrap();
    symlink("/etc/passwd", root.join("absolute")).unwrap();
    symlink("..", root.join("up")).unwrap();
    symlink(OsStr::from_bytes(b"odd \xff\n"), root.join("odd-target")).unwrap();
    fs::write(root.join("secret"), b"read only").unwrap();
    set_mode(&root.join("secret"), 0o400);
    fs::write(root.join("tool"), b"#!/bin/sh\n").unwrap();
    set_mode(&root.join("tool"), 0o755);
    fs::write(root.join("open"), b"all may").unwrap();
    set_mode(&root.join("open"), 0o666);
    let deep = root.join("a/b/c/d/e/f");
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("leaf"), bytes(100_000, 2)).unwrap();
    fs::write(root.join("a/same"), text(5_000, 1)).unwrap();
    fs::hard_link(root.join("a/same"), root.join("a/b/linked")).unwrap();
    fs::hard_link(root.join("a/same"), root.join("zlinked")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"island", 3 << 20).unwrap();
    fs::write(
        root.join("big"),
        [text(1 << 20, 9), bytes(2 << 20, 3)].concat(),
    )
    .unwrap();
    let huge = File::create(root.join("hole")).unwrap();
    huge.set_len(20 << 20).unwrap();
    fs::create_dir(root.join("sealed")).unwrap();
    fs::write(root.join("sealed/in"), b"inside").unwrap();
    fs::create_dir(root.join("sticky")).unwrap();
    set_mode(&root.join("sticky"), 0o1777);
    set_mtime(&root.join("sealed/in"), 1_600_000_000_123_456_789);
    set_mode(&root.join("sealed"), 0o555);
    set_mtime(&root.join("hollow"), 1_500_000_000_000_000_001);
    set_mtime(&root.join("a"), 1_700_000_000_999_999_999);
}

/// The error of a call that must fail, and no destination.
pub(super) fn refused(place: &mut Place, manifest: &Manifest) -> SnapshotError {
    let into = place.fresh();
    let error = place.store().restore(manifest, &into).unwrap_err();
    assert!(into.symlink_metadata().is_err(), "{error}: yet it is there");
    let left = fs::read_dir(place.folder.path()).unwrap();
    for entry in left {
        let name = entry.unwrap().file_name();
        let name = name.to_string_lossy();
        assert!(
            !name.starts_with(crate::snapshots::RESTORING),
            "{name} stays"
        );
    }
    error
}
