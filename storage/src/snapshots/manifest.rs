//! The manifest: what a caller keeps of a snapshot, in a row of its own.

use std::fmt;

use super::error::SnapshotError;
use super::wire::{Cut, Reader};
use super::{FORMAT, Id};

/// Most packs that one snapshot may lie in. Merge long before.
pub const PACKS_MAX: usize = 4096;

/// Name of a pack: 16 bytes, minted by the caller and never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackId(pub [u8; 16]);

impl fmt::Display for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackId({self})")
    }
}

impl PackId {
    /// Reads back what [`Display`](fmt::Display) writes.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let lower = text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if text.len() != 32 || !lower {
            return None;
        }
        let value = u128::from_str_radix(text, 16).ok()?;
        Some(Self(value.to_be_bytes()))
    }
}

/// What names a snapshot. Equal roots are equal trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Format of its packs and trees.
    pub format: u16,
    /// Digest of the tree object of the topmost directory.
    pub root: Id,
    /// Every pack with bytes of it, ascending. At least one, at most [`PACKS_MAX`].
    pub packs: Vec<PackId>,
    /// Files, directories and links, without the topmost directory.
    pub entries: u64,
    /// Bytes of content, holes not counted.
    pub logical_bytes: u64,
}

impl Manifest {
    /// The bytes for a row:
    ///
    /// ```text
    /// format          u16 BE
    /// root            32 bytes
    /// entries         u64 BE
    /// logical bytes   u64 BE
    /// packs           u32 BE count, then 16 bytes each, ascending
    /// ```
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(54 + 16 * self.packs.len());
        out.extend(self.format.to_be_bytes());
        out.extend(self.root);
        out.extend(self.entries.to_be_bytes());
        out.extend(self.logical_bytes.to_be_bytes());
        let count = u32::try_from(self.packs.len()).unwrap_or(u32::MAX);
        out.extend(count.to_be_bytes());
        for pack in &self.packs {
            out.extend(pack.0);
        }
        out
    }

    /// Reads a row back.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Newer`], and [`SnapshotError::Damaged`] for any bytes that [`encode`]
    /// does not write.
    ///
    /// [`encode`]: Manifest::encode
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let cut = |Cut| SnapshotError::damaged("the manifest is cut short");
        let mut reader = Reader(bytes);
        let format = reader.u16().map_err(cut)?;
        check_format(format, "the manifest")?;
        let root = reader.array().map_err(cut)?;
        let entries = reader.u64().map_err(cut)?;
        let logical_bytes = reader.u64().map_err(cut)?;
        let count = reader.u32().map_err(cut)? as usize;
        if count == 0 || count > PACKS_MAX {
            return Err(SnapshotError::damaged("the manifest's count of packs"));
        }
        let mut packs = Vec::with_capacity(count);
        for _ in 0..count {
            packs.push(PackId(reader.array().map_err(cut)?));
        }
        if !reader.is_empty() || !packs.is_sorted_by(|a, b| a < b) {
            return Err(SnapshotError::damaged("the manifest's packs"));
        }
        Ok(Self {
            format,
            root,
            packs,
            entries,
            logical_bytes,
        })
    }
}

/// Refuses formats that this version does not read.
pub(super) fn check_format(format: u16, what: &str) -> Result<(), SnapshotError> {
    match format {
        FORMAT => Ok(()),
        0 => Err(SnapshotError::damaged(format!("{what} has format 0"))),
        found => Err(SnapshotError::Newer {
            what: what.to_owned(),
            found: found.into(),
        }),
    }
}
