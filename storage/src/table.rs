//! What an engine gives to the shared code: tables of ordered keys, read through a snapshot and
//! changed through a sink. Positions, forks, fences and rows are decided above, once for all
//! engines.

use bytes::Bytes;

use crate::log::{Order, ReadError};

/// The tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    /// (segment, position) to frame.
    Log,
    /// Stream to [`StreamRow`](crate::stream_row::StreamRow): written when a stream begins, forks
    /// or is erased, never by a plain append.
    Streams,
    /// (segment, stream): a stream made of another stream's segment, to the last position shared.
    Refs,
    /// (segment, position) to a cached fold.
    State,
    /// (segment, kind, natural key, position) to a row's version.
    History,
    /// The caller's rows of now.
    Current,
}

impl Table {
    /// All tables.
    pub(crate) const ALL: [Self; 6] = [
        Self::Log,
        Self::Streams,
        Self::Refs,
        Self::State,
        Self::History,
        Self::Current,
    ];

    /// Its name in the engine. Never changed, never reused.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Streams => "streams",
            Self::Refs => "refs",
            Self::State => "state",
            Self::History => "history",
            Self::Current => "current",
        }
    }

    /// Its place in [`Self::ALL`].
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// Keys `from <= key < to`; no `to` = to the end of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) from: Vec<u8>,
    pub(crate) to: Option<Vec<u8>>,
}

impl KeyRange {
    /// `from <= key <= last`.
    pub(crate) fn inclusive(from: &[u8], last: &[u8]) -> Self {
        let mut to = last.to_vec();
        to.push(0);
        Self {
            from: from.to_vec(),
            to: Some(to),
        }
    }

    /// Keys that start with `prefix`.
    pub(crate) fn prefix(prefix: &[u8]) -> Self {
        Self {
            from: prefix.to_vec(),
            to: crate::keys::prefix_end(prefix),
        }
    }
}

/// One snapshot of all tables.
pub(crate) trait Tables {
    /// The value of one key.
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError>;

    /// A cursor over one range, on its first key (Asc) or its last (Desc).
    fn cursor(
        &self,
        table: Table,
        range: KeyRange,
        order: Order,
    ) -> Result<Box<dyn Cursor + '_>, ReadError>;

    /// The first item of a range in `order`.
    fn first(
        &self,
        table: Table,
        range: KeyRange,
        order: Order,
    ) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        let cursor = self.cursor(table, range, order)?;
        let item = cursor.item()?;
        Ok(item.map(|(k, v)| (Bytes::copy_from_slice(k), Bytes::copy_from_slice(v))))
    }
}

/// A key and its value.
pub(crate) type Item<'a> = (&'a [u8], &'a [u8]);

/// A place in one range of one table.
pub(crate) trait Cursor {
    /// The key and value here; `None` past the end of the range.
    fn item(&self) -> Result<Option<Item<'_>>, ReadError>;
    /// Goes on in the cursor's order.
    fn step(&mut self);
    /// Goes to the first key at or after `key` (Asc) or the last at or before it (Desc).
    fn seek(&mut self, key: &[u8]);
}

/// Takes changes.
pub(crate) trait Sink {
    /// Writes a key; the value is its parts put together.
    fn put(&mut self, table: Table, key: &[u8], value: &[&[u8]]);
    /// Removes a key, if there.
    fn delete(&mut self, table: Table, key: &[u8]);
    /// Removes the keys `from <= key < to`.
    fn delete_range(&mut self, table: Table, from: &[u8], to: &[u8]);
}
