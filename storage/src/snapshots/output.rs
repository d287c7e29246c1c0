//! The file of a pack in the making. What is long is written by a thread of its own, so that those
//! who read and compress do not wait for the disk; what is very long goes past the page cache,
//! which costs half the time of the processors and leaves nothing to do for the final sync.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

use rustix::fs::{Advice, OFlags};

use super::error::{SnapshotError, failed};

/// One write of a long file.
const BLOCK_BYTES: usize = 4 << 20;
/// Writes past the page cache begin, end and lie in memory at multiples of this.
const ALIGN_BYTES: usize = 4096;
/// Blocks that wait for the thread, at most.
const QUEUED_MAX: usize = 3;
/// Files up to this length stay in the page cache: they are likely to be read soon.
const CACHED_BYTES_MAX: u64 = 64 << 20;
const MODE: u32 = 0o600;

/// Bytes that begin at an aligned place in memory.
struct Block {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Block {
    fn new() -> Self {
        let memory = vec![0; BLOCK_BYTES + ALIGN_BYTES];
        // Where that cannot be said the writes are refused, and go through the page cache.
        let start = memory.as_ptr().align_offset(ALIGN_BYTES).min(ALIGN_BYTES);
        Self {
            memory,
            start,
            len: 0,
        }
    }

    /// Takes as much as there is room for; gives the rest.
    fn fill<'a>(&mut self, data: &'a [u8]) -> &'a [u8] {
        let now = data.len().min(BLOCK_BYTES - self.len);
        let (now, rest) = data.split_at_checked(now).unwrap_or((data, &[]));
        let at = self.start + self.len;
        if let Some(room) = self.memory.get_mut(at..at + now.len()) {
            room.copy_from_slice(now);
            self.len += now.len();
        }
        rest
    }

    fn filled(&self) -> &[u8] {
        self.memory
            .get(self.start..self.start + self.len)
            .unwrap_or_default()
    }
}

/// The thread that writes whole blocks, one behind the other.
struct Writing {
    full: SyncSender<Block>,
    empty: Receiver<Block>,
    thread: JoinHandle<io::Result<()>>,
}

/// A file in the making; removed by a drop, unless it was kept.
pub(super) struct Output {
    file: Arc<File>,
    path: PathBuf,
    block: Block,
    writing: Option<Writing>,
    /// Bytes that were handed to the thread.
    handed: u64,
    kept: bool,
}

impl Output {
    /// A new file of this name.
    pub(super) fn create(path: PathBuf) -> Result<Self, SnapshotError> {
        let mut options = File::options();
        options.write(true).create_new(true).mode(MODE);
        let file = options.open(&path).map_err(failed("create", &path))?;
        Ok(Self {
            file: Arc::new(file),
            path,
            block: Block::new(),
            writing: None,
            handed: 0,
            kept: false,
        })
    }

    /// Puts bytes behind those before.
    pub(super) fn write(&mut self, mut data: &[u8]) -> Result<(), SnapshotError> {
        loop {
            data = self.block.fill(data);
            if data.is_empty() {
                return Ok(());
            }
            self.hand_over()?;
        }
    }

    /// Gives the full block to the thread and goes on with an empty one.
    fn hand_over(&mut self) -> Result<(), SnapshotError> {
        let writing = match &mut self.writing {
            Some(writing) => writing,
            None => {
                let started = start(&self.file).map_err(failed("write", &self.path))?;
                self.writing.insert(started)
            }
        };
        let next = match writing.empty.try_recv() {
            Ok(mut block) => {
                block.len = 0;
                block
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => Block::new(),
        };
        let full = std::mem::replace(&mut self.block, next);
        self.handed += full.len as u64;
        if writing.full.send(full).is_err() {
            // It ended, for a reason that it tells.
            self.settle()?;
            return Err(SnapshotError::damaged("a pack in the making"));
        }
        Ok(())
    }

    /// Waits until all that was handed over is written.
    fn settle(&mut self) -> Result<(), SnapshotError> {
        let Some(Writing {
            full,
            empty,
            thread,
        }) = self.writing.take()
        else {
            return Ok(());
        };
        drop((full, empty));
        let lost = || Err(io::Error::other("the writing thread died"));
        let written = thread.join().unwrap_or_else(|_| lost());
        written.map_err(failed("write", &self.path))
    }

    /// Writes what is left; gives the length.
    pub(super) fn end(&mut self) -> Result<u64, SnapshotError> {
        self.settle()?;
        let rest = self.block.filled();
        let written = self.file.write_all_at(rest, self.handed);
        written.map_err(failed("write", &self.path))?;
        Ok(self.handed + rest.len() as u64)
    }

    /// Makes the bytes durable.
    pub(super) fn sync(&self) -> Result<(), SnapshotError> {
        self.file.sync_data().map_err(failed("sync", &self.path))
    }

    /// Gives the file its name, which keeps it.
    pub(super) fn rename(&mut self, to: &Path) -> Result<(), SnapshotError> {
        std::fs::rename(&self.path, to).map_err(failed("rename", &self.path))?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // Why it ended does not matter any more.
        let _ = self.settle();
        if !self.kept {
            // The next opening of the store removes what stays.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn start(file: &Arc<File>) -> io::Result<Writing> {
    let (full, blocks) = sync_channel::<Block>(QUEUED_MAX);
    // Room for all there are: giving one back never waits.
    let (back, empty) = sync_channel(QUEUED_MAX + 2);
    let file = Arc::clone(file);
    let thread = std::thread::Builder::new().name("pack".to_owned());
    let thread = thread.spawn(move || {
        let mut at = 0;
        let mut direct = false;
        for block in blocks {
            if !direct && at >= CACHED_BYTES_MAX && at.is_multiple_of(ALIGN_BYTES as u64) {
                direct = set_direct(&file, true).is_ok();
            }
            put(&file, block.filled(), at, &mut direct)?;
            at += block.len as u64;
            let _ = back.try_send(block);
        }
        if direct {
            // The end is no whole block.
            set_direct(&file, false)?;
        }
        Ok(())
    });
    Ok(Writing {
        full,
        empty,
        thread: thread?,
    })
}

/// Writes one block. Where the file system wants another alignment, or none of this at all, it
/// goes through the page cache like the rest from there on.
fn put(file: &File, bytes: &[u8], at: u64, direct: &mut bool) -> io::Result<()> {
    if *direct {
        match file.write_all_at(bytes, at) {
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                set_direct(file, false)?;
                *direct = false;
            }
            other => return other,
        }
    }
    file.write_all_at(bytes, at)?;
    // Linux answers this advice by starting to write what is dirty, and does not wait: the final
    // sync has little left to do. Only a hint, so that an error does not matter.
    let _ = rustix::fs::fadvise(
        file,
        at,
        NonZeroU64::new(bytes.len() as u64),
        Advice::DontNeed,
    );
    Ok(())
}

fn set_direct(file: &File, on: bool) -> io::Result<()> {
    let mut flags = rustix::fs::fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, on);
    Ok(rustix::fs::fcntl_setfl(file, flags)?)
}
