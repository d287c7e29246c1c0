//! Writing one pack: to a temporary name, synced, then renamed.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use super::error::{SnapshotError, failed};
use super::manifest::PackId;
use super::output::Output;
use super::pack::{self, Codec, HEADER_LEN, SLOTS_MAX, Slot};
use super::{Id, Inner};
use crate::fault::point;

/// A pack in the making. The file is made with the first object, and removed by a drop.
pub(super) struct PackWriter<'a> {
    inner: &'a Inner,
    pack: PackId,
    open: Option<Output>,
    slots: Vec<Slot>,
    at: u64,
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

    fn open(&mut self) -> Result<&mut Output, SnapshotError> {
        if self.open.is_none() {
            // Where its disk should be mounted there may be a folder, too.
            self.inner.check_in_place()?;
            let path = self.inner.pack_path(self.pack);
            if path.symlink_metadata().is_ok() {
                return Err(SnapshotError::Exists { path });
            }
            let tmp = path.with_extension("tmp");
            let shard = tmp.parent().unwrap_or(&self.inner.folder);
            if !shard.is_dir() {
                self.make_shard(shard)?;
            }
            let mut output = Output::create(tmp)?;
            output.write(&pack::header(self.pack))?;
            self.open = Some(output);
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
        self.open()?.write(stored)?;
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
        let Some(mut output) = self.open.take() else {
            return Ok(0);
        };
        output.write(&pack::footer(self.pack, &self.slots, self.at))?;
        let len = output.end()?;
        point("snapshot::written");
        output.sync()?;
        point("snapshot::synced");
        let path = self.inner.pack_path(self.pack);
        output.rename(&path)?;
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
