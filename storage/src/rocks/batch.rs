//! Write batches in RocksDB's own form, laid by hand, so that a caller's thread can serialise a
//! write without the database and the writer only puts them one behind the other.
//!
//! ```text
//! sequence u64 LE (set by the engine), count u32 LE, then records:
//! 0x05 family varint32, key length varint32, key, value length varint32, value    put
//! 0x04 family varint32, key length varint32, key                                  delete
//! 0x0e family varint32, from length varint32, from, to length varint32, to        delete range
//! ```
//!
//! The tests hold this against what the engine itself writes, and read it back from a database.

use rocksdb::{DB, WriteBatch};

use crate::log::ReadError;
use crate::table::{Sink, Table};

use super::tables::family;

const HEADER_LEN: usize = 12;
const PUT: u8 = 0x05;
const DELETE: u8 = 0x04;
const DELETE_RANGE: u8 = 0x0e;

/// The engine's numbers for the tables' column families; they never change in a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FamilyIds([u32; Table::ALL.len()]);

impl FamilyIds {
    /// Learns the numbers from the engine: it puts them into its own batches.
    pub(crate) fn learn(db: &DB) -> Result<Self, ReadError> {
        let mut ids = [0; Table::ALL.len()];
        for (id, table) in ids.iter_mut().zip(Table::ALL) {
            let mut probe = WriteBatch::new();
            probe.put_cf(family(db, table)?, b"", b"");
            let unknown = || ReadError::Engine("the engine's batches have another form".into());
            let data = probe.data();
            let (tag, rest) = data
                .get(HEADER_LEN..)
                .and_then(<[u8]>::split_first)
                .ok_or_else(unknown)?;
            let (found, _) = take_varint(rest)
                .filter(|_| *tag == PUT)
                .ok_or_else(unknown)?;
            *id = found;
        }
        Ok(Self(ids))
    }

    fn of(&self, table: Table) -> u32 {
        // There is one for each table.
        self.0.get(table.index()).copied().unwrap_or_default()
    }
}

/// The changes of one write.
#[derive(Debug)]
pub(crate) struct Batch {
    ids: FamilyIds,
    records: Vec<u8>,
    count: u32,
}

impl Batch {
    /// An empty batch with room for so many bytes.
    pub(crate) fn new(ids: FamilyIds, capacity: usize) -> Self {
        Self {
            ids,
            records: Vec::with_capacity(capacity),
            count: 0,
        }
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn begin(&mut self, tag: u8, table: Table) {
        self.records.push(tag);
        put_varint(&mut self.records, self.ids.of(table));
        self.count += 1;
    }

    fn put_bytes(&mut self, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        // Longer ones are refused before they come here.
        put_varint(&mut self.records, u32::try_from(len).unwrap_or(u32::MAX));
        for part in parts {
            self.records.extend_from_slice(part);
        }
    }
}

impl Sink for Batch {
    fn put(&mut self, table: Table, key: &[u8], value: &[&[u8]]) {
        self.begin(PUT, table);
        self.put_bytes(&[key]);
        self.put_bytes(value);
    }

    fn delete(&mut self, table: Table, key: &[u8]) {
        self.begin(DELETE, table);
        self.put_bytes(&[key]);
    }

    fn delete_range(&mut self, table: Table, from: &[u8], to: &[u8]) {
        self.begin(DELETE_RANGE, table);
        self.put_bytes(&[from]);
        self.put_bytes(&[to]);
    }
}

/// Puts batches one behind the other into one, whose buffer is used again.
#[derive(Debug, Default)]
pub(crate) struct Concatenation {
    bytes: Vec<u8>,
}

impl Concatenation {
    /// One engine batch of all, in order.
    pub(crate) fn join<'a>(&mut self, batches: impl Iterator<Item = &'a Batch>) -> WriteBatch {
        self.bytes.clear();
        self.bytes.extend([0; HEADER_LEN]);
        let mut count = 0u32;
        for batch in batches {
            self.bytes.extend_from_slice(&batch.records);
            count = count.saturating_add(batch.count);
        }
        if let Some(field) = self.bytes.get_mut(8..HEADER_LEN) {
            field.copy_from_slice(&count.to_le_bytes());
        }
        WriteBatch::from_data(&self.bytes)
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Looks at the table, key and value of a put.
pub(crate) type VisitPut<'a> = dyn FnMut(Table, &[u8], &[u8]) + 'a;

/// Gives the puts of an engine batch to `visit`, as far as it can be read; false if it ends in
/// something that cannot.
pub(crate) fn walk_puts(batch: &[u8], ids: FamilyIds, visit: &mut VisitPut<'_>) -> bool {
    let Some(mut rest) = batch.get(HEADER_LEN..) else {
        return false;
    };
    while !rest.is_empty() {
        let Some((tag, family, key, tail)) = take_record(rest) else {
            return false;
        };
        rest = tail;
        if tag == DELETE {
            continue;
        }
        let Some((value, tail)) = take_bytes(rest) else {
            return false;
        };
        rest = tail;
        let table = Table::ALL.into_iter().find(|t| ids.of(*t) == family);
        if let Some(table) = table
            && tag == PUT
        {
            visit(table, key, value);
        }
    }
    true
}

/// Tag, family and first bytes of a record. The `meta` rows' family, 0, has tags of its own.
fn take_record(bytes: &[u8]) -> Option<(u8, u32, &[u8], &[u8])> {
    const PUT_META: u8 = 0x01;
    let (tag, rest) = bytes.split_first()?;
    let (tag, family, rest) = match *tag {
        PUT | DELETE | DELETE_RANGE => {
            let (family, rest) = take_varint(rest)?;
            (*tag, family, rest)
        }
        PUT_META => (PUT, 0, rest),
        _ => return None,
    };
    let (key, rest) = take_bytes(rest)?;
    Some((tag, family, key, rest))
}

fn take_bytes(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = take_varint(bytes)?;
    rest.split_at_checked(usize::try_from(len).ok()?)
}

/// A varint32 at the start of `bytes`, and what follows it.
fn take_varint(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let mut value = 0u64;
    for (n, byte) in bytes.iter().take(5).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * n);
        if byte & 0x80 == 0 {
            return Some((u32::try_from(value).ok()?, bytes.get(n + 1..)?));
        }
    }
    None
}
