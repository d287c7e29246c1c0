//! The tree object: one directory, and how it is laid out in bytes.
//!
//! ```text
//! format      u8          1
//! mode        u16 BE      permission bits of the directory itself, sticky included
//! mtime       i64 BE seconds, u32 BE nanoseconds
//! entries     u32 BE count, then each, names strictly ascending by bytes:
//!   name      u8 length (1 to 255), bytes; not `.` or `..`, no `/`, no NUL
//!   kind      u8
//!   1 directory   32 bytes, digest of its tree object
//!   2 file        mode u16, mtime, size u64, link group u8 0 or 1 (then 16 bytes),
//!                 u32 count of pieces, each: offset u64, length u32, 32 bytes digest of the chunk;
//!                 ascending, not overlapping, within the size; what lies between is a hole
//!   3 symlink     mtime, u16 length (1 to 4095), target
//! ```
//!
//! There is no inode, owner or ctime in it, so that the same tree has the same digest wherever it
//! lies. Names of one link group are one file.

use std::sync::Arc;

use super::error::SnapshotError;
use super::wire::{Cut, Reader};
use super::{CHUNK_BYTES_MAX, Id};

const VERSION: u8 = 1;
const DIR: u8 = 1;
const FILE: u8 = 2;
const SYMLINK: u8 = 3;
/// Permission bits that are kept: setuid and setgid are not.
pub(super) const MODE_MASK: u16 = 0o1777;
const TARGET_BYTES_MAX: usize = 4095;
const NANOS: u32 = 1_000_000_000;

/// A file's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Time {
    pub(super) s: i64,
    pub(super) ns: u32,
}

/// A range of a file, and the chunk that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) id: Id,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileNode {
    pub(super) mode: u16,
    pub(super) mtime: Time,
    pub(super) size: u64,
    pub(super) link: Option<[u8; 16]>,
    pub(super) pieces: Arc<[Piece]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    Dir(Id),
    File(FileNode),
    Symlink { mtime: Time, target: Box<[u8]> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: Box<[u8]>,
    pub(super) node: Node,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tree {
    pub(super) mode: u16,
    pub(super) mtime: Time,
    pub(super) entries: Vec<Entry>,
}

fn put_time(out: &mut Vec<u8>, time: Time) {
    out.extend(time.s.to_be_bytes());
    out.extend(time.ns.to_be_bytes());
}

/// Lengths here are limited by what was read from a file system, far below the fields' widths.
fn put_u32(out: &mut Vec<u8>, value: usize) {
    out.extend(u32::try_from(value).unwrap_or(u32::MAX).to_be_bytes());
}

impl Tree {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        out.extend(self.mode.to_be_bytes());
        put_time(out, self.mtime);
        put_u32(out, self.entries.len());
        for entry in &self.entries {
            out.push(u8::try_from(entry.name.len()).unwrap_or(u8::MAX));
            out.extend(&entry.name);
            match &entry.node {
                Node::Dir(id) => {
                    out.push(DIR);
                    out.extend(id);
                }
                Node::File(file) => {
                    out.push(FILE);
                    put_file(out, file);
                }
                Node::Symlink { mtime, target } => {
                    out.push(SYMLINK);
                    put_time(out, *mtime);
                    out.extend(
                        u16::try_from(target.len())
                            .unwrap_or(u16::MAX)
                            .to_be_bytes(),
                    );
                    out.extend(target);
                }
            }
        }
    }

    /// Reads a tree object and holds it against every rule of the format.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        Parser(Reader(bytes)).tree()
    }
}

fn put_file(out: &mut Vec<u8>, file: &FileNode) {
    out.extend(file.mode.to_be_bytes());
    put_time(out, file.mtime);
    out.extend(file.size.to_be_bytes());
    match file.link {
        None => out.push(0),
        Some(group) => {
            out.push(1);
            out.extend(group);
        }
    }
    put_u32(out, file.pieces.len());
    for piece in file.pieces.iter() {
        out.extend(piece.offset.to_be_bytes());
        out.extend(piece.len.to_be_bytes());
        out.extend(piece.id);
    }
}

struct Parser<'a>(Reader<'a>);

impl From<Cut> for SnapshotError {
    fn from(_: Cut) -> Self {
        Self::damaged("a tree is cut short")
    }
}

fn wrong(what: &str) -> SnapshotError {
    SnapshotError::damaged(format!("{what} in a tree"))
}

impl Parser<'_> {
    fn tree(mut self) -> Result<Tree, SnapshotError> {
        match self.0.u8()? {
            VERSION => {}
            0 => return Err(wrong("format 0")),
            found => {
                return Err(SnapshotError::Newer {
                    what: "a tree".to_owned(),
                    found: found.into(),
                });
            }
        }
        let mode = self.mode()?;
        let mtime = self.time()?;
        let count = self.0.u32()?;
        // No capacity from the count: it is not yet known whether so many follow.
        let mut entries: Vec<Entry> = Vec::new();
        for _ in 0..count {
            let name = self.name()?;
            if entries.last().is_some_and(|last| last.name >= name) {
                return Err(wrong("names out of order"));
            }
            let node = self.node()?;
            entries.push(Entry { name, node });
        }
        if !self.0.is_empty() {
            return Err(wrong("bytes after the last entry"));
        }
        Ok(Tree {
            mode,
            mtime,
            entries,
        })
    }

    fn name(&mut self) -> Result<Box<[u8]>, SnapshotError> {
        let len = self.0.u8()?.into();
        let name = self.0.bytes(len)?;
        let special = matches!(name, b"" | b"." | b"..");
        if special || name.iter().any(|b| matches!(b, b'/' | 0)) {
            return Err(wrong("a name that is no name"));
        }
        Ok(name.into())
    }

    fn mode(&mut self) -> Result<u16, SnapshotError> {
        let mode = self.0.u16()?;
        if mode & !MODE_MASK != 0 {
            return Err(wrong("a mode beyond permissions"));
        }
        Ok(mode)
    }

    fn time(&mut self) -> Result<Time, SnapshotError> {
        let time = Time {
            s: self.0.i64()?,
            ns: self.0.u32()?,
        };
        if time.ns >= NANOS {
            return Err(wrong("a time that is no time"));
        }
        Ok(time)
    }

    fn node(&mut self) -> Result<Node, SnapshotError> {
        match self.0.u8()? {
            DIR => Ok(Node::Dir(self.0.array()?)),
            FILE => self.file().map(Node::File),
            SYMLINK => {
                let mtime = self.time()?;
                let len = usize::from(self.0.u16()?);
                let target = self.0.bytes(len)?;
                if target.is_empty() || len > TARGET_BYTES_MAX || target.contains(&0) {
                    return Err(wrong("a link's target that is no path"));
                }
                let target = target.into();
                Ok(Node::Symlink { mtime, target })
            }
            _ => Err(wrong("an unknown kind of entry")),
        }
    }

    fn file(&mut self) -> Result<FileNode, SnapshotError> {
        let mode = self.mode()?;
        let mtime = self.time()?;
        let size = self.0.u64()?;
        if i64::try_from(size).is_err() {
            return Err(wrong("a size that no file has"));
        }
        let link = match self.0.u8()? {
            0 => None,
            1 => Some(self.0.array()?),
            _ => return Err(wrong("a link group")),
        };
        let count = self.0.u32()?;
        let mut pieces = Vec::new();
        let mut end = 0;
        for _ in 0..count {
            let piece = Piece {
                offset: self.0.u64()?,
                len: self.0.u32()?,
                id: self.0.array()?,
            };
            let fits =
                piece.offset >= end && piece.len > 0 && piece.len as usize <= CHUNK_BYTES_MAX;
            // Below 2^63 + 2^32: it cannot overflow.
            end = piece.offset.min(size).saturating_add(piece.len.into());
            if !fits || end > size {
                return Err(wrong("a piece out of its place"));
            }
            pieces.push(piece);
        }
        let pieces = pieces.into();
        Ok(FileNode {
            mode,
            mtime,
            size,
            link,
            pieces,
        })
    }
}
