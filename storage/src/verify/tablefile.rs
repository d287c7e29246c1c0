//! A table file by itself: every block's checksum, the blocks being the whole file.
//!
//! ```text
//! blocks, each followed by compression type u8 and masked CRC-32C of block and type u32 LE
//! footer, 53 bytes: checksum type u8 (1), metaindex handle, index handle, zeros, version u32 LE,
//! magic u64 LE
//! handle: offset varint64, size varint64
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::rocks::crc;

const FOOTER_LEN: usize = 53;
const HANDLES_LEN: usize = 40;
const TRAILER_LEN: u64 = 5;
const CHECKSUM_CRC32C: u8 = 1;
const FORMAT_VERSION: u32 = 5;
const MAGIC: u64 = 0x88e2_41b7_85f4_cff7;
/// Larger blocks are taken for a damaged size.
const BLOCK_BYTES_MAX: u64 = 1 << 30;

/// What is wrong with a table file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) reason: String,
    /// For a data block whose index can be read: its keys are after the first and not after the
    /// second.
    pub(super) keys: Option<(Vec<u8>, Vec<u8>)>,
}

/// What a look at a table file found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Checked {
    pub(super) faults: Vec<Fault>,
    /// Whether the data blocks were looked at too: not if their index is compressed.
    pub(super) data: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Handle {
    offset: u64,
    size: u64,
}

impl Handle {
    fn end(self) -> u64 {
        self.offset
            .saturating_add(self.size)
            .saturating_add(TRAILER_LEN)
    }
}

/// Checks one file.
pub(super) fn check(path: &Path) -> Checked {
    let mut checked = Checked::default();
    if let Err(reason) = look(path, &mut checked) {
        checked.faults.push(Fault { reason, keys: None });
    }
    checked
}

fn look(path: &Path, checked: &mut Checked) -> Result<(), String> {
    let file = File::open(path).map_err(|e| e.to_string())?;
    let len = file.metadata().map_err(|e| e.to_string())?.len();
    let footer_at = len
        .checked_sub(FOOTER_LEN as u64)
        .ok_or("shorter than a footer")?;
    let (metaindex, index) = footer(&read(&file, footer_at, FOOTER_LEN)?)?;
    let (meta, _) = block(&file, metaindex).map_err(|e| format!("its metaindex: {e}"))?;
    let mut metas = vec![index];
    for (_, value) in entries(&meta, true).ok_or("its metaindex is malformed")? {
        metas.push(handle(&value).ok_or("its metaindex is malformed")?.0);
    }
    for meta in &metas {
        if let Err(reason) = block(&file, *meta) {
            checked.faults.push(Fault {
                reason: format!("a meta block: {reason}"),
                keys: None,
            });
        }
    }
    let (index_bytes, compression) = block(&file, index).map_err(|e| format!("its index: {e}"))?;
    if compression != 0 {
        return Ok(());
    }
    checked.data = true;
    let mut after = Vec::new();
    let mut blocks = metas;
    blocks.push(metaindex);
    for (key, value) in entries(&index_bytes, false).ok_or("its index is malformed")? {
        let (data, _) = handle(&value).ok_or("its index is malformed")?;
        if let Err(reason) = block(&file, data) {
            let keys = Some((after.clone(), key.clone()));
            checked.faults.push(Fault {
                reason: format!("a data block: {reason}"),
                keys,
            });
        }
        blocks.push(data);
        after = key;
    }
    contiguous(blocks, footer_at)
}

/// The blocks are the whole file, so that no byte of it went unseen.
fn contiguous(mut blocks: Vec<Handle>, footer_at: u64) -> Result<(), String> {
    blocks.sort_by_key(|b| b.offset);
    let mut at = 0;
    for block in blocks {
        if block.offset != at {
            return Err(format!(
                "no block covers the bytes from {at} to {}",
                block.offset
            ));
        }
        at = block.end();
    }
    if at == footer_at {
        Ok(())
    } else {
        Err(format!("no block covers the bytes from {at}"))
    }
}

fn footer(bytes: &[u8]) -> Result<(Handle, Handle), String> {
    let parts = || {
        let (kind, rest) = bytes.split_first()?;
        let (handles, rest) = rest.split_at_checked(HANDLES_LEN)?;
        let (version, magic) = rest.split_first_chunk::<4>()?;
        let magic = u64::from_le_bytes(magic.try_into().ok()?);
        let (metaindex, tail) = handle(handles)?;
        let (index, zeros) = handle(tail)?;
        let intact = *kind == CHECKSUM_CRC32C
            && u32::from_le_bytes(*version) == FORMAT_VERSION
            && magic == MAGIC
            && zeros.iter().all(|b| *b == 0);
        intact.then_some((metaindex, index))
    };
    parts().ok_or_else(|| "its footer is damaged".into())
}

fn read(file: &File, offset: u64, len: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset)
        .map_err(|e| e.to_string())?;
    Ok(bytes)
}

/// A block's bytes and its compression type, once its checksum matches.
fn block(file: &File, handle: Handle) -> Result<(Vec<u8>, u8), String> {
    let at = handle.offset;
    let len = handle
        .size
        .checked_add(TRAILER_LEN)
        .filter(|l| *l <= BLOCK_BYTES_MAX);
    let fits = len.filter(|l| at.checked_add(*l).is_some_and(|end| end <= file_len(file)));
    let len = usize::try_from(fits.ok_or("its handle leads out of the file")?)
        .map_err(|e| e.to_string())?;
    let mut bytes = read(file, at, len)?;
    let trailer = bytes.split_off(len.saturating_sub(TRAILER_LEN as usize));
    let [kind, c0, c1, c2, c3] = *trailer.as_slice() else {
        return Err("it has no trailer".into());
    };
    if crc::masked(&[&bytes, &[kind]]) != u32::from_le_bytes([c0, c1, c2, c3]) {
        return Err(format!("the checksum of the block at {at} does not match"));
    }
    Ok((bytes, kind))
}

fn file_len(file: &File) -> u64 {
    file.metadata().map_or(0, |m| m.len())
}

/// The entries of a metaindex or index block, whose every entry is a restart point: keys are
/// whole. Values of an index have no length of their own.
fn entries(block: &[u8], value_lengths: bool) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let (rest, count) = block.split_last_chunk::<4>()?;
    let restarts = usize::try_from(u32::from_le_bytes(*count) & 0x7fff_ffff).ok()?;
    let mut rest = rest.get(..rest.len().checked_sub(restarts.checked_mul(4)?)?)?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (shared, tail) = varint(rest)?;
        let (key_len, mut tail) = varint(tail)?;
        let mut value_len = None;
        if value_lengths {
            let (len, after) = varint(tail)?;
            (value_len, tail) = (Some(usize::try_from(len).ok()?), after);
        }
        if shared != 0 {
            return None;
        }
        let (key, tail) = tail.split_at_checked(usize::try_from(key_len).ok()?)?;
        let value_len = match value_len {
            Some(len) => len,
            None => tail.len().checked_sub(handle(tail)?.1.len())?,
        };
        let (value, tail) = tail.split_at_checked(value_len)?;
        entries.push((key.to_vec(), value.to_vec()));
        rest = tail;
    }
    Some(entries)
}

fn handle(bytes: &[u8]) -> Option<(Handle, &[u8])> {
    let (offset, rest) = varint(bytes)?;
    let (size, rest) = varint(rest)?;
    Some((Handle { offset, size }, rest))
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (n, byte) in bytes.iter().take(9).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * n);
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(n + 1..)?));
        }
    }
    None
}
