//! Reading the files that changed, on a few threads, into the new pack.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::Id;
use super::chunks::{self, Encoder, SEGMENT_BYTES};
use super::descent::Finder;
use super::error::{SnapshotError, failed, in_tree, is_elsewhere};
use super::files::{self, Stat};
use super::moving::{self, Content};
use super::tree::Piece;
use super::walk::{At, Walked, What};
use super::writer::PackWriter;

/// How often a file that changes is read before it is taken as it is.
const ROUNDS: usize = 4;
/// Fewer files than this are read by one thread.
const FILES_FOR_THREADS: usize = 4;
/// Shorter files are read whole, holes and all.
const SPARSE_BYTES_MIN: u64 = 64 << 10;
/// Most data ranges of one file that are told apart; the rest is read as if without holes.
const RANGES_MAX: usize = 1 << 16;

/// Where new objects go; shared by the threads.
pub(super) struct Sink<'a> {
    /// Objects that the parent has.
    pub(super) known: &'a HashSet<Id>,
    fresh: Mutex<HashSet<Id>>,
    writer: Mutex<PackWriter<'a>>,
}

impl<'a> Sink<'a> {
    pub(super) fn new(known: &'a HashSet<Id>, writer: PackWriter<'a>) -> Self {
        Self {
            known,
            fresh: Mutex::default(),
            writer: Mutex::new(writer),
        }
    }

    /// Stores an object, unless the parent or the new pack has it.
    pub(super) fn put(&self, raw: &[u8], encoder: &mut Encoder) -> Result<Id, SnapshotError> {
        let id = *blake3::hash(raw).as_bytes();
        if self.known.contains(&id) {
            return Ok(id);
        }
        let fresh = self.fresh.lock();
        if !fresh.unwrap_or_else(PoisonError::into_inner).insert(id) {
            return Ok(id);
        }
        let (codec, stored) = encoder.encode(raw);
        let len = u32::try_from(raw.len()).unwrap_or(u32::MAX);
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.append(id, codec, stored, len)?;
        Ok(id)
    }

    /// Stores a range of a file that begins at `offset`, in pieces.
    pub(super) fn cut(
        &self,
        bytes: &[u8],
        mut offset: u64,
        file_bytes: u64,
        encoder: &mut Encoder,
    ) -> Result<Vec<Piece>, SnapshotError> {
        let mut pieces = Vec::new();
        let mut rest = bytes;
        for len in chunks::cut(rest, file_bytes) {
            let (chunk, after) = rest.split_at_checked(len).unwrap_or((rest, &[]));
            rest = after;
            let id = self.put(chunk, encoder)?;
            let len = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
            pieces.push(Piece { offset, len, id });
            offset += u64::from(len);
        }
        Ok(pieces)
    }

    /// The new objects, and the pack with them.
    pub(super) fn into_parts(self) -> (HashSet<Id>, PackWriter<'a>) {
        let fresh = self.fresh.into_inner();
        let writer = self.writer.into_inner();
        (
            fresh.unwrap_or_else(PoisonError::into_inner),
            writer.unwrap_or_else(PoisonError::into_inner),
        )
    }
}

/// One segment of one file.
struct Job {
    at: At,
    start: u64,
    end: u64,
}

enum Outcome {
    Read(Vec<Piece>),
    /// It is not what it was when it was looked at.
    Moved,
}

/// Reads these files; what they hold afterwards, and as what they were seen. What was removed
/// meanwhile is not in it. One that changes at each of the readings is taken as the last one
/// found it: programs that write are no reason to have no snapshot.
pub(super) fn read(
    walked: &Walked,
    mut pending: Vec<(At, Stat)>,
    sink: &Sink<'_>,
    threads: usize,
    level: i32,
) -> Result<BTreeMap<At, Content>, SnapshotError> {
    let mut done = BTreeMap::new();
    for _ in 0..ROUNDS {
        let threads = if pending.len() < FILES_FOR_THREADS && !pending.iter().any(is_long) {
            1
        } else {
            threads
        };
        let jobs = plan(walked, &pending)?;
        let outcomes = run(walked, &pending, &jobs, sink, threads, level)?;
        let mut pieces: BTreeMap<At, Vec<Piece>> =
            pending.iter().map(|(at, _)| (*at, Vec::new())).collect();
        let mut moved = HashSet::new();
        for (job, outcome) in outcomes {
            let Some(job) = jobs.get(job) else { continue };
            match outcome {
                Outcome::Moved => {
                    moved.insert(job.at);
                }
                Outcome::Read(more) => pieces.entry(job.at).or_default().extend(more),
            }
        }
        let mut again = Vec::new();
        for (at, stat) in pending {
            if moved.contains(&at) {
                match moving::look_again(walked, at)? {
                    None => {}
                    Some(Content::Changed(other)) => {
                        done.insert(at, Content::Changed(other));
                    }
                    Some(Content::File { stat, .. }) => again.push((at, stat)),
                }
            } else if let Some(mut pieces) = pieces.remove(&at) {
                pieces.sort_unstable_by_key(|piece| piece.offset);
                done.insert(at, Content::file(stat, pieces, true));
            }
        }
        pending = again;
        if pending.is_empty() {
            return Ok(done);
        }
    }
    let mut reader = moving::Reader::new(walked, sink, level)?;
    for (at, _) in pending {
        if let Some(content) = reader.read(at)? {
            done.insert(at, content);
        }
    }
    Ok(done)
}

fn is_long((_, stat): &(At, Stat)) -> bool {
    stat.size > SEGMENT_BYTES
}

pub(super) fn name(walked: &Walked, (dir, entry): At) -> &[u8] {
    let dir = walked.dirs.get(dir);
    dir.and_then(|d| d.entries.get(entry))
        .map_or(b"", |e| &e.name)
}

/// Cuts the files into jobs, in the order of the walk. Of long files only data is read, so that a
/// huge hole is no work.
fn plan(walked: &Walked, pending: &[(At, Stat)]) -> Result<Vec<Job>, SnapshotError> {
    let mut jobs = Vec::with_capacity(pending.len());
    for (at, stat) in pending {
        if !is_long(&(*at, *stat)) {
            let (at, end) = (*at, stat.size);
            jobs.push(Job { at, start: 0, end });
            continue;
        }
        let ranges = match open(walked, None, *at)? {
            Some(file) => ranges(&file, stat, 0, stat.size),
            None => Ok(vec![(0, SEGMENT_BYTES)]),
        };
        let ranges =
            ranges.map_err(|e| failed("seek", &walked.path(at.0, name(walked, *at)))(e))?;
        for (mut start, end) in ranges {
            while start < end {
                let next = (start / SEGMENT_BYTES + 1) * SEGMENT_BYTES;
                let (at, end) = (*at, end.min(next));
                jobs.push(Job { at, start, end });
                start = end;
            }
        }
    }
    Ok(jobs)
}

/// The data in a part of a file.
pub(super) fn ranges(
    file: impl AsFd,
    stat: &Stat,
    from: u64,
    to: u64,
) -> Result<Vec<(u64, u64)>, Errno> {
    if stat.size <= SPARSE_BYTES_MIN || stat.allocated >= stat.size {
        return Ok(vec![(from, to)]);
    }
    let mut ranges = Vec::new();
    let mut at = from;
    while at < to {
        let start = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(e) => return Err(e),
        };
        if start >= to {
            break;
        }
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start))?.min(to);
        if ranges.len() >= RANGES_MAX {
            ranges.push((start, to));
            break;
        }
        ranges.push((start, end));
        at = end;
    }
    Ok(ranges)
}

fn run(
    walked: &Walked,
    pending: &[(At, Stat)],
    jobs: &[Job],
    sink: &Sink<'_>,
    threads: usize,
    level: i32,
) -> Result<Vec<(usize, Outcome)>, SnapshotError> {
    let stats: BTreeMap<At, Stat> = pending.iter().copied().collect();
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let work = || -> Result<Vec<(usize, Outcome)>, SnapshotError> {
        let root = walked.root.try_clone();
        let mut worker = Worker {
            walked,
            sink,
            encoder: Encoder::new(level)?,
            buffer: Vec::new(),
            finder: Finder::new(root.map_err(failed("open", Path::new(".")))?),
        };
        let mut outcomes = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(index) else { break };
            let Some(stat) = stats.get(&job.at) else {
                break;
            };
            let outcome = worker.read(job, stat);
            if outcome.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            outcomes.push((index, outcome?));
        }
        Ok(outcomes)
    };
    super::on_threads(threads.min(jobs.len()), work)
}

/// Opens a file whose directory may be open; `None` when it is not there.
pub(super) fn open(
    walked: &Walked,
    dir: Option<&OwnedFd>,
    at: At,
) -> Result<Option<OwnedFd>, SnapshotError> {
    let opened;
    let dir = match dir {
        Some(dir) => dir,
        None => match walked.open_dir(at.0) {
            Err(error) if error.is_missing() => return Ok(None),
            other => {
                opened = other?;
                &opened
            }
        },
    };
    match files::open_file(dir, name(walked, at)) {
        Ok(file) => Ok(Some(file)),
        // Removed, or a link, or a socket by now.
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => Ok(None),
        Err(e) => Err(in_tree("open", walked.path(at.0, name(walked, at)))(e)),
    }
}

struct Worker<'a, 's> {
    walked: &'a Walked,
    sink: &'a Sink<'s>,
    encoder: Encoder,
    buffer: Vec<u8>,
    finder: Finder,
}

impl Worker<'_, '_> {
    fn read(&mut self, job: &Job, expected: &Stat) -> Result<Outcome, SnapshotError> {
        let dir = self.finder.find(job.at.0, |dir| self.walked.about(dir));
        let dir = match dir {
            Err(e) if is_elsewhere(e) => return Ok(Outcome::Moved),
            Err(e) => return Err(in_tree("open", self.walked.path(job.at.0, b""))(e)),
            Ok(dir) => dir,
        };
        let dir = Some(&*dir);
        let Some(fd) = open(self.walked, dir, job.at)? else {
            return Ok(Outcome::Moved);
        };
        let walked = self.walked;
        let path = || walked.path(job.at.0, name(walked, job.at));
        let before = files::stat(&fd).map_err(|e| failed("stat", &path())(e))?;
        if !before.is_same_file_state(expected) {
            return Ok(Outcome::Moved);
        }
        let data = ranges(&fd, expected, job.start, job.end);
        let data = data.map_err(|e| failed("seek", &path())(e))?;
        let file = File::from(fd);
        let mut pieces = Vec::new();
        for (start, end) in data {
            // At most a segment.
            self.buffer.resize((end - start) as usize, 0);
            match file.read_exact_at(&mut self.buffer, start) {
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                    return Ok(Outcome::Moved);
                }
                other => other.map_err(|e| failed("read", &path())(e))?,
            }
            let cut = self
                .sink
                .cut(&self.buffer, start, expected.size, &mut self.encoder);
            pieces.extend(cut?);
        }
        let after = files::stat(&file).map_err(|e| failed("stat", &path())(e))?;
        Ok(if after.is_same_file_state(expected) {
            Outcome::Read(pieces)
        } else {
            Outcome::Moved
        })
    }
}

/// The files of a walk that have to be read, and that are not another name of one.
pub(super) fn unread(walked: &Walked) -> Vec<(At, Stat)> {
    let mut unread = Vec::new();
    for (dir, d) in walked.dirs.iter().enumerate() {
        for (entry, e) in d.entries.iter().enumerate() {
            if let What::File(found) = &e.what
                && found.same_as.is_none()
                && found.node.is_none()
            {
                unread.push(((dir, entry), found.stat));
            }
        }
    }
    unread
}
