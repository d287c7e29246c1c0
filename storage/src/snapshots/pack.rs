//! The pack: one file with the new objects of one snapshot, and its index at the end.
//!
//! ```text
//! header    "LHSNAPPK", format u16 BE, pack id 16 bytes
//! objects   the stored bytes of each, one after the other
//! index     for each object, ascending by offset:
//!           32 bytes BLAKE3 of the plain bytes, codec u8 (0 plain, 1 zstd),
//!           offset u64 BE, stored length u32 BE, plain length u32 BE
//! trailer   offset of the index u64 BE, count of objects u32 BE,
//!           32 bytes BLAKE3 of header, index, offset and count, "LHSNAPEN"
//! ```
//!
//! A pack never changes, but for ranges of dead objects that become holes.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use zstd::bulk::Decompressor;

use super::error::{SnapshotError, failed};
use super::files;
use super::manifest::{PackId, check_format};
use super::wire::{Cut, Reader};
use super::{Id, OBJECT_BYTES_MAX};

pub(super) const MAGIC: &[u8; 8] = b"LHSNAPPK";
pub(super) const MAGIC_END: &[u8; 8] = b"LHSNAPEN";
pub(super) const HEADER_LEN: usize = 26;
pub(super) const SLOT_LEN: usize = 49;
pub(super) const TRAILER_LEN: usize = 52;
/// Most objects in one pack.
pub(super) const SLOTS_MAX: u32 = 1 << 24;

/// How an object's bytes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Plain = 0,
    Zstd = 1,
}

/// Where an object lies in its pack.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) id: Id,
    pub(super) codec: Codec,
    pub(super) offset: u64,
    pub(super) stored: u32,
    pub(super) raw: u32,
}

impl Slot {
    pub(super) fn end(&self) -> u64 {
        self.offset + u64::from(self.stored)
    }
}

pub(super) fn header(pack: PackId) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_LEN);
    out.extend(MAGIC);
    out.extend(super::FORMAT.to_be_bytes());
    out.extend(pack.0);
    out
}

/// Index and trailer of a pack with these objects.
pub(super) fn footer(pack: PackId, slots: &[Slot], offset: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(slots.len() * SLOT_LEN + TRAILER_LEN);
    for slot in slots {
        out.extend(slot.id);
        out.push(slot.codec as u8);
        out.extend(slot.offset.to_be_bytes());
        out.extend(slot.stored.to_be_bytes());
        out.extend(slot.raw.to_be_bytes());
    }
    out.extend(offset.to_be_bytes());
    let count = u32::try_from(slots.len()).unwrap_or(u32::MAX);
    out.extend(count.to_be_bytes());
    let mut hasher = blake3::Hasher::new();
    hasher.update(&header(pack)).update(&out);
    out.extend(hasher.finalize().as_bytes());
    out.extend(MAGIC_END);
    out
}

/// An open pack with its index.
#[derive(Debug)]
pub(super) struct Pack {
    pub(super) id: PackId,
    pub(super) file: File,
    pub(super) slots: Vec<Slot>,
    path: PathBuf,
    ino: u64,
    len: u64,
}

/// Buffers and the decoder of one thread.
pub(super) struct Scratch {
    stored: Vec<u8>,
    pub(super) raw: Vec<u8>,
    zstd: Decompressor<'static>,
}

impl Scratch {
    pub(super) fn new() -> Result<Self, SnapshotError> {
        Ok(Self {
            stored: Vec::new(),
            raw: Vec::new(),
            zstd: Decompressor::new().map_err(failed("start", Path::new("zstd")))?,
        })
    }
}

impl Pack {
    /// Opens a pack and checks its index; the objects are checked when they are read.
    pub(super) fn open(id: PackId, path: &Path) -> Result<Self, SnapshotError> {
        let file = files::open_own(path, OFlags::RDONLY).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => SnapshotError::Gone {
                pack: id,
                what: "the file",
            },
            _ => failed("open", path)(e),
        })?;
        let meta = file.metadata().map_err(failed("stat", path))?;
        let len = meta.len();
        let damaged = |what: &str| SnapshotError::damaged(format!("{what} of pack {id}"));
        let least = (HEADER_LEN + TRAILER_LEN) as u64;
        if len < least {
            return Err(damaged("the length"));
        }
        let read = |buffer: &mut [u8], at: u64| {
            file.read_exact_at(buffer, at).map_err(failed("read", path))
        };
        let mut head = [0; HEADER_LEN];
        read(&mut head, 0)?;
        let mut trailer = [0; TRAILER_LEN];
        read(&mut trailer, len - TRAILER_LEN as u64)?;

        let cut = |Cut| damaged("the header");
        let mut reader = Reader(&head);
        if reader.array().map_err(cut)? != *MAGIC {
            return Err(damaged("the header"));
        }
        check_format(reader.u16().map_err(cut)?, &format!("pack {id}"))?;
        let mut reader = Reader(&trailer);
        let offset = reader.u64().map_err(cut)?;
        let count = reader.u32().map_err(cut)?;
        let digest = reader.array::<32>().map_err(cut)?;
        let index_len = u64::from(count) * SLOT_LEN as u64;
        let place = offset.checked_add(index_len + TRAILER_LEN as u64);
        if reader.0 != MAGIC_END || count > SLOTS_MAX || place != Some(len) {
            return Err(damaged("the trailer"));
        }
        // As long as that part of the file is: the length is no claim of the trailer alone.
        let mut index = vec![0; index_len as usize];
        read(&mut index, offset)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&header(id)).update(&index);
        hasher
            .update(&offset.to_be_bytes())
            .update(&count.to_be_bytes());
        if *hasher.finalize().as_bytes() != digest || head != *header(id) {
            return Err(damaged("the index"));
        }
        let slots = slots(&index, offset).ok_or_else(|| damaged("the index"))?;
        Ok(Self {
            id,
            file,
            slots,
            path: path.to_owned(),
            ino: meta.ino(),
            len,
        })
    }

    /// Whether the file of this name is still the one that is open.
    pub(super) fn is_in_place(&self) -> bool {
        std::fs::symlink_metadata(&self.path)
            .is_ok_and(|m| m.ino() == self.ino && m.len() == self.len)
    }

    /// Length of the file, holes included.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Reads the stored bytes of an object and its plain bytes into the scratch, and checks them.
    pub(super) fn read(&self, slot: &Slot, scratch: &mut Scratch) -> Result<(), SnapshotError> {
        scratch.stored.resize(slot.stored as usize, 0);
        let read = self.file.read_exact_at(&mut scratch.stored, slot.offset);
        read.map_err(failed("read", &self.path))?;
        let sound = match slot.codec {
            Codec::Plain => {
                scratch.raw.clone_from(&scratch.stored);
                true
            }
            Codec::Zstd => {
                scratch.raw.clear();
                scratch.raw.reserve(slot.raw as usize);
                // A frame may say that it is longer; the spare room of a vector is no limit.
                let exact = zstd::zstd_safe::get_frame_content_size(&scratch.stored);
                exact.is_ok_and(|len| len == Some(slot.raw.into()))
                    && scratch
                        .zstd
                        .decompress_to_buffer(&scratch.stored, &mut scratch.raw)
                        .is_ok()
            }
        };
        if sound
            && scratch.raw.len() == slot.raw as usize
            && *blake3::hash(&scratch.raw).as_bytes() == slot.id
        {
            return Ok(());
        }
        if scratch.stored.iter().all(|b| *b == 0) {
            return Err(SnapshotError::Gone {
                pack: self.id,
                what: "a range",
            });
        }
        let what = format!("the object at {} of pack {}", slot.offset, self.id);
        Err(SnapshotError::damaged(what))
    }

    /// The stored bytes of the object that was read last.
    pub(super) fn stored(scratch: &Scratch) -> &[u8] {
        &scratch.stored
    }
}

/// Decodes an index whose digest was right; it must still make sense.
fn slots(index: &[u8], end: u64) -> Option<Vec<Slot>> {
    let mut reader = Reader(index);
    let mut slots = Vec::with_capacity(index.len() / SLOT_LEN);
    let mut at = HEADER_LEN as u64;
    while !reader.is_empty() {
        let id = reader.array().ok()?;
        let codec = match reader.u8().ok()? {
            0 => Codec::Plain,
            1 => Codec::Zstd,
            _ => return None,
        };
        let slot = Slot {
            id,
            codec,
            offset: reader.u64().ok()?,
            stored: reader.u32().ok()?,
            raw: reader.u32().ok()?,
        };
        let lengths = match codec {
            Codec::Plain => slot.stored == slot.raw,
            Codec::Zstd => slot.stored < slot.raw,
        };
        let limits = slot.stored > 0 && slot.raw as usize <= OBJECT_BYTES_MAX;
        if !lengths || !limits || slot.offset != at || slot.offset > end {
            return None;
        }
        at = slot.end();
        slots.push(slot);
    }
    (at == end).then_some(slots)
}
