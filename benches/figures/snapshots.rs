//! Snapshots of working directories, beside what `tar` and `cp -a` take for the same trees.
//!
//! The tools and the store take turns, under fresh names and without deleting between rounds,
//! since file systems differ much in what deleting costs the next one. Best of the rounds.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use longhaul_storage::snapshots::{
    Manifest, PackId, ReclaimBudget, SnapshotOptions, SnapshotStore, StatCache,
};

use crate::Row;

const ROUNDS: usize = 5;

struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend(self.next().to_le_bytes());
        }
        out.truncate(len);
        out
    }

    /// As compressible as source text.
    fn text(&mut self, len: usize) -> Vec<u8> {
        const WORDS: [&str; 16] = [
            "let", "value", "return", "self", "(", ")", "match", "=>", "&mut", "state", "if",
            "result", "\n    ", "\n", "error", "fn",
        ];
        let mut out = Vec::with_capacity(len + 32);
        while out.len() < len {
            let n = self.next();
            out.extend(WORDS[(n % 16) as usize].as_bytes());
            if n & 0x300 == 0 {
                out.extend(format!("_{:x}", n >> 40).as_bytes());
            }
            out.push(b' ');
        }
        out.truncate(len);
        out
    }
}

/// 2,000 files in 150 directories, 40 MB, four fifths of it text.
fn many_files(tree: &Path, noise: &mut Noise) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for n in 0..2_000_usize {
        let dir = tree.join(format!("m{}/n{}", n % 10, n / 10 % 14));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join(format!("file{n}.rs"));
        let len = 2_000 + (noise.next() % 36_000) as usize;
        let data = if n % 5 == 0 {
            noise.bytes(len)
        } else {
            noise.text(len)
        };
        fs::write(&path, data).unwrap();
        files.push(path);
    }
    symlink("/nowhere", tree.join("link")).unwrap();
    files
}

fn ms<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let value = work();
    (start.elapsed().as_secs_f64() * 1000.0, value)
}

fn run(program: &str, args: &[&Path]) {
    let status = Command::new(program).args(args).status().unwrap();
    assert!(status.success(), "{program}");
}

fn tar(tree: &Path, file: &Path) {
    run(
        "tar",
        &[Path::new("cf"), file, Path::new("-C"), tree, Path::new(".")],
    );
    File::open(file).unwrap().sync_data().unwrap();
}

fn pack(n: &mut u64) -> PackId {
    *n += 1;
    PackId(u128::from(*n).to_be_bytes())
}

fn edit(files: &[PathBuf], round: usize, noise: &mut Noise) -> u64 {
    let one_percent = files.iter().skip(round * 7).step_by(100);
    one_percent
        .map(|path| {
            let data = noise.text(fs::metadata(path).unwrap().len() as usize);
            fs::write(path, &data).unwrap();
            data.len() as u64
        })
        .sum()
}

fn store(folder: &Path) -> SnapshotStore {
    SnapshotStore::open(&folder.join("store"), SnapshotOptions::default()).unwrap()
}

pub(crate) fn many() -> Vec<Row> {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let store = store(folder);
    let tree = folder.join("many");
    let mut noise = Noise(88_172_645_463_325_252);
    let files = many_files(&tree, &mut noise);
    rustix::fs::sync();
    let mut packs = 0;
    let best = f64::INFINITY;
    let (mut first, mut tarred) = (best, best);
    let (mut cache, mut base) = (StatCache::new(), None);
    let mut bytes = 0;
    for round in 0..ROUNDS {
        tarred = tarred.min(ms(|| tar(&tree, &folder.join(format!("{round}.tar")))).0);
        cache = StatCache::new();
        let id = pack(&mut packs);
        let (time, taken) = ms(|| store.take(id, &tree, None, &mut cache).unwrap());
        first = first.min(time);
        bytes = taken.new_bytes;
        base = Some(taken.release());
    }
    let base: Manifest = base.unwrap();
    let (mut unchanged, mut changed, mut share) = (best, best, 0.0_f64);
    // The files are as old as a tree that was worked on: read once more, then known.
    store
        .take(pack(&mut packs), &tree, Some(&base), &mut cache)
        .unwrap()
        .release();
    let mut chain = vec![base];
    for round in 0..ROUNDS {
        let parent = chain.last().unwrap().clone();
        let id = pack(&mut packs);
        let (time, taken) = ms(|| store.take(id, &tree, Some(&parent), &mut cache).unwrap());
        assert!(taken.unchanged);
        unchanged = unchanged.min(time);
        edit(&files, round, &mut noise);
        let id = pack(&mut packs);
        let (time, taken) = ms(|| store.take(id, &tree, Some(&parent), &mut cache).unwrap());
        changed = changed.min(time);
        share = share.max(taken.new_bytes as f64 / taken.manifest.logical_bytes as f64);
        chain.push(taken.release());
    }
    let last = chain.pop().unwrap();
    let (mut restored, mut copied) = (best, best);
    for round in 0..ROUNDS {
        let (copy, into) = (
            folder.join(format!("c{round}")),
            folder.join(format!("r{round}")),
        );
        copied = copied.min(ms(|| run("cp", &[Path::new("-a"), &tree, &copy])).0);
        restored = restored.min(ms(|| store.restore(&last, &into).unwrap()).0);
    }
    let (mut clones, mut copies) = (0.0, 0.0);
    for clone in 0..10 {
        let (copy, into) = (
            folder.join(format!("d{clone}")),
            folder.join(format!("s{clone}")),
        );
        copies += ms(|| run("cp", &[Path::new("-a"), &tree, &copy])).0;
        clones += ms(|| store.restore(&last, &into).unwrap()).0;
    }
    run(
        "diff",
        &[
            Path::new("-r"),
            Path::new("--no-dereference"),
            &tree,
            &folder.join("r0"),
        ],
    );
    let live: HashSet<PackId> = last.packs.iter().copied().collect();
    let (reclaim, freed) = ms(|| {
        let collection = store.collection().unwrap();
        let removed = collection.remove_unlisted(&live, 1_000).unwrap();
        let budget = ReclaimBudget::default();
        removed.bytes
            + collection
                .reclaim(std::slice::from_ref(&last), budget)
                .unwrap()
                .bytes
    });
    store.verify(&last).unwrap();
    let row = Row::new;
    vec![
        row(
            "first snapshot of 2,000 files, 40 MB",
            format!(
                "{first:.0} ms, {:.1} MB; tar and fdatasync {tarred:.0} ms",
                bytes as f64 / 1e6
            ),
            "≤ 2 × tar",
            first <= 2.0 * tarred,
        ),
        row(
            "the same, unchanged",
            format!("{unchanged:.1} ms"),
            "< 10 ms",
            unchanged < 10.0,
        ),
        row(
            "the same, 1 % of the files changed",
            format!("{changed:.1} ms, {:.2} % of the bytes", share * 100.0),
            "< 20 ms, ≤ 1 %",
            changed < 20.0 && share <= 0.01,
        ),
        row(
            "restoring it",
            format!("{restored:.0} ms; cp -a {copied:.0} ms"),
            "≤ 1.2 × cp -a",
            restored <= 1.2 * copied,
        ),
        row(
            "ten clones of it",
            format!("{clones:.0} ms; ten of cp -a {copies:.0} ms"),
            "≤ 10 × cp -a",
            clones <= copies,
        ),
        row(
            "deleting all snapshots of it but the last, with reclaiming",
            format!("{reclaim:.0} ms, {:.0} MB freed", freed as f64 / 1e6),
            "< 100 ms",
            reclaim < 100.0,
        ),
    ]
}

pub(crate) fn large() -> Vec<Row> {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let store = store(folder);
    let tree = folder.join("large");
    fs::create_dir(&tree).unwrap();
    let mut noise = Noise(1_181_783_497_276_652_981);
    for (n, mb) in [500_usize, 300, 150, 50].into_iter().enumerate() {
        let file = File::create(tree.join(format!("data{n}"))).unwrap();
        for at in 0..mb {
            let block = if at % 2 == 0 {
                noise.bytes(1_000_000)
            } else {
                noise.text(1_000_000)
            };
            file.write_all_at(&block, (at * 1_000_000) as u64).unwrap();
        }
    }
    rustix::fs::sync();
    let mut packs = 0;
    let (mut first, mut tarred) = (f64::INFINITY, f64::INFINITY);
    let (mut cache, mut base) = (StatCache::new(), None);
    for round in 0..3 {
        tarred = tarred.min(ms(|| tar(&tree, &folder.join(format!("large{round}.tar")))).0);
        cache = StatCache::new();
        let id = pack(&mut packs);
        let (time, taken) = ms(|| store.take(id, &tree, None, &mut cache).unwrap());
        first = first.min(time);
        base = Some(taken.release());
    }
    let base: Manifest = base.unwrap();
    let mut edits = f64::INFINITY;
    let mut bytes = 0;
    for _ in 0..3 {
        let file = File::options()
            .write(true)
            .open(tree.join("data0"))
            .unwrap();
        for _ in 0..10 {
            let at = noise.next() % 499_000_000;
            file.write_all_at(&noise.bytes(1_000), at).unwrap();
        }
        drop(file);
        let id = pack(&mut packs);
        let (time, taken) = ms(|| store.take(id, &tree, Some(&base), &mut cache).unwrap());
        edits = edits.min(time);
        bytes = taken.new_bytes;
    }
    vec![
        Row::new(
            "first snapshot of 4 files, 1 GB",
            format!("{first:.0} ms; tar and fdatasync {tarred:.0} ms"),
            "≤ 1.5 × tar",
            first <= 1.5 * tarred,
        ),
        Row::new(
            "the same, 10 edits of 1 KB in a file of 500 MB",
            format!("{edits:.0} ms, {:.1} MB", bytes as f64 / 1e6),
            "< 500 ms",
            edits < 500.0,
        ),
    ]
}
