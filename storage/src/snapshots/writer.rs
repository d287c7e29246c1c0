//! Writing one pack: to a temporary name, synced, then renamed.

use std::fs::File;
use std::io::Write;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::Advice;

use super::error::{SnapshotError, failed};
use super::manifest::PackId;
use super::pack::{self, Codec, HEADER_LEN, SLOTS_MAX, Slot};
use super::{Id, Inner};
use crate::fault::point;

const BUFFER_BYTES: usize = 1 << 20;
/// Written to the disk while more is being made, in steps of this.
const EARLY_BYTES: u64 = 4 << 20;
const MODE: u32 = 0o600;

/// A pack in the making. The file is made with the first object, and removed by a drop.
pub(super) struct PackWriter<'a> {
    inner: &'a Inner,
    pack: PackId,
    open: Option<Open>,
    slots: Vec<Slot>,
    at: u64,
}

struct Open {
    file: File,
    tmp: PathBuf,
    buffer: Vec<u8>,
    /// Bytes in the file, and how many of them are on their way to the disk.
    written: u64,
    started: u64,
    /// Under its own name: no longer ours to remove.
    done: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.done {
            // The next opening of the store removes what stays.
            let _ = std::fs::remove_file(&self.tmp);
        }
    }
}

impl Open {
    fn flush(&mut self) -> Result<(), SnapshotError> {
        let written = self.file.write_all(&self.buffer);
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        written.map_err(failed("write", &self.tmp))?;
        let len = self.written - self.started;
        if let Some(len) = NonZeroU64::new(len).filter(|len| len.get() >= EARLY_BYTES) {
            // Linux answers this advice by starting to write what is dirty, and does not wait: the
            // final sync has little left to do. Only a hint, so that an error does not matter.
            let _ = rustix::fs::fadvise(&self.file, self.started, Some(len), Advice::DontNeed);
            self.started = self.written;
        }
        Ok(())
    }
}

impl<'a> PackWriter<'a> {
    pub(super) fn new(inner: &'a Inner, pack: PackId) -> Self {
        Self {
            inner,
            pack,
            open: None,
            slots: Vec::new(),
            at: HEADER_LEN as u64,
        }
    }

    fn open(&mut self) -> Result<&mut Open, SnapshotError> {
        if self.open.is_none() {
            let path = self.inner.pack_path(self.pack);
            if path.symlink_metadata().is_ok() {
                return Err(SnapshotError::Exists { path });
            }
            let tmp = path.with_extension("tmp");
            let shard = tmp.parent().unwrap_or(&self.inner.folder);
            if !shard.is_dir() {
                self.make_shard(shard)?;
            }
            let mut options = File::options();
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, MODE);
            let file = options.write(true).create_new(true).open(&tmp);
            let file = file.map_err(failed("create", &tmp))?;
            let mut buffer = Vec::with_capacity(BUFFER_BYTES);
            buffer.extend(pack::header(self.pack));
            self.open = Some(Open {
                file,
                tmp,
                buffer,
                written: 0,
                started: 0,
                done: false,
            });
            point("snapshot::created");
        }
        self.open
            .as_mut()
            .ok_or_else(|| SnapshotError::damaged("a pack in the making"))
    }

    fn make_shard(&self, shard: &Path) -> Result<(), SnapshotError> {
        match std::fs::create_dir(shard) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(failed("create", shard)(e))
            }
            _ => sync_folder(&self.inner.folder),
        }
    }

    pub(super) fn append(
        &mut self,
        id: Id,
        codec: Codec,
        stored: &[u8],
        raw: u32,
    ) -> Result<(), SnapshotError> {
        if self.slots.len() >= SLOTS_MAX as usize {
            return Err(SnapshotError::Limit {
                which: "objects in one snapshot",
                max: SLOTS_MAX.into(),
            });
        }
        let offset = self.at;
        let open = self.open()?;
        if open.buffer.len() + stored.len() > BUFFER_BYTES {
            open.flush()?;
        }
        open.buffer.extend(stored);
        let slot = Slot {
            id,
            codec,
            offset,
            stored: u32::try_from(stored.len()).unwrap_or(u32::MAX),
            raw,
        };
        self.at = slot.end();
        self.slots.push(slot);
        Ok(())
    }

    /// Makes the pack durable under its name; gives its length, 0 when there was no object.
    pub(super) fn finish(mut self) -> Result<u64, SnapshotError> {
        let Some(mut open) = self.open.take() else {
            return Ok(0);
        };
        let footer = pack::footer(self.pack, &self.slots, self.at);
        open.flush()?;
        open.buffer = footer;
        open.flush()?;
        let len = open
            .file
            .metadata()
            .map_err(failed("stat", &open.tmp))?
            .len();
        point("snapshot::written");
        open.file.sync_data().map_err(failed("sync", &open.tmp))?;
        point("snapshot::synced");
        let path = self.inner.pack_path(self.pack);
        std::fs::rename(&open.tmp, &path).map_err(failed("rename", &open.tmp))?;
        open.done = true;
        point("snapshot::renamed");
        let shard = path.parent().unwrap_or(&self.inner.folder);
        if let Err(error) = sync_folder(shard) {
            // The name may or may not survive: better that it is not there at all.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        point("snapshot::durable");
        Ok(len)
    }
}

/// Makes the names in a folder durable.
pub(super) fn sync_folder(folder: &Path) -> Result<(), SnapshotError> {
    let file = File::open(folder).map_err(failed("open", folder))?;
    rustix::fs::fsync(file.as_fd()).map_err(failed("sync", folder))
}
