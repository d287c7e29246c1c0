//! Reading streams from tables: the same for every engine.

mod history;
mod page;
mod records;

use bytes::Bytes;

use crate::frame::{self, FrameError};
use crate::keys;
use crate::log::{
    Appended, Digest, HistoryRow, Order, PageLimit, ReadError, Record, StreamHead, StreamId, View,
};
use crate::stream_row::{StreamRow, own_segment};
use crate::table::{KeyRange, Table, Tables};
use crate::unshared;

use page::Page;

/// A [`View`] over one snapshot of an engine's tables.
pub(crate) struct Reader<'a> {
    tables: &'a dyn Tables,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(tables: &'a dyn Tables) -> Self {
        Self { tables }
    }

    /// The row of a stream that can be read.
    fn live(&self, stream: StreamId) -> Result<StreamRow, ReadError> {
        match stream_row(self.tables, stream)? {
            None => Err(ReadError::NotFound),
            Some(row) if row.erased => Err(ReadError::Erased),
            Some(row) => Ok(row),
        }
    }
}

/// The row of a stream, erased or not.
pub(crate) fn stream_row(
    tables: &dyn Tables,
    stream: StreamId,
) -> Result<Option<StreamRow>, ReadError> {
    let Some(bytes) = tables.get(Table::Streams, &stream.0)? else {
        return Ok(None);
    };
    match StreamRow::decode(stream, &bytes) {
        Ok(row) => Ok(Some(row)),
        Err(reason) => Err(ReadError::Damaged {
            stream,
            seq: 1,
            reason: reason.into(),
        }),
    }
}

/// The end of a stream: its last frame, or where its shared part ends.
pub(crate) fn stream_end(
    tables: &dyn Tables,
    stream: StreamId,
    row: &StreamRow,
) -> Result<Appended, ReadError> {
    let own = own_segment(stream);
    let base = Appended {
        last_seq: row.base_seq(),
        last_hash: row.base_hash,
    };
    let from = keys::position(own, base.last_seq.saturating_add(1));
    let range = KeyRange::inclusive(&from, &keys::position(own, u64::MAX));
    let last = tables.first(Table::Log, range, Order::Desc);
    let Some((key, value)) = last.map_err(corrupted(stream, base.last_seq.saturating_add(1)))?
    else {
        if base.last_seq == 0 {
            let reason = "all its records are missing".into();
            return Err(ReadError::Damaged {
                stream,
                seq: 1,
                reason,
            });
        }
        return Ok(base);
    };
    let (_, last_seq) = keys::parse_position(&key).ok_or_else(bad_key)?;
    let frame = frame::decode(&value).map_err(|e| damaged(stream, last_seq, e))?;
    Ok(Appended {
        last_seq,
        last_hash: frame.hash,
    })
}

/// The chain value at one position of a stream.
pub(crate) fn hash_at(
    tables: &dyn Tables,
    stream: StreamId,
    row: &StreamRow,
    at: u64,
) -> Result<Digest, ReadError> {
    let missing = || ReadError::Damaged {
        stream,
        seq: at,
        reason: "the record is missing".into(),
    };
    let segment = row
        .segments
        .iter()
        .find(|s| s.through >= at)
        .ok_or_else(missing)?;
    let value = tables
        .get(Table::Log, &keys::position(segment.id, at))?
        .ok_or_else(missing)?;
    Ok(frame::decode(&value)
        .map_err(|e| damaged(stream, at, e))?
        .hash)
}

fn damaged(stream: StreamId, seq: u64, error: FrameError) -> ReadError {
    ReadError::Damaged {
        stream,
        seq,
        reason: error.to_string(),
    }
}

/// What the engine calls corruption is damage of the stream being read.
fn corrupted(stream: StreamId, seq: u64) -> impl Fn(ReadError) -> ReadError {
    move |error| match error {
        ReadError::Engine(reason) if reason.starts_with("Corruption") => ReadError::Damaged {
            stream,
            seq,
            reason,
        },
        other => other,
    }
}

fn bad_key() -> ReadError {
    ReadError::Engine("a key has the wrong length".into())
}

impl View for Reader<'_> {
    fn head(&self, stream: StreamId) -> Result<Option<StreamHead>, ReadError> {
        let row = match self.live(stream) {
            Err(ReadError::NotFound) => return Ok(None),
            other => other?,
        };
        let end = stream_end(self.tables, stream, &row)?;
        Ok(Some(StreamHead {
            last_seq: end.last_seq,
            last_hash: end.last_hash,
            segments: row.segments,
        }))
    }

    fn records(
        &self,
        stream: StreamId,
        after: u64,
        through: u64,
        order: Order,
        limit: PageLimit,
    ) -> Result<Vec<Record>, ReadError> {
        let row = self.live(stream)?;
        records::page(self.tables, stream, &row, (after, through), order, limit)
    }

    fn shared_through(&self, stream: StreamId) -> Result<u64, ReadError> {
        let row = self.live(stream)?;
        unshared::held_by_others(self.tables, stream, &row)
    }

    fn state(&self, stream: StreamId, at_most: u64) -> Result<Option<(u64, Bytes)>, ReadError> {
        let row = self.live(stream)?;
        for segment in row.segments.iter().rev() {
            let last = keys::position(segment.id, segment.through.min(at_most));
            let range = KeyRange::inclusive(&keys::position(segment.id, 0), &last);
            if let Some((key, value)) = self.tables.first(Table::State, range, Order::Desc)? {
                let (_, seq) = keys::parse_position(&key).ok_or_else(bad_key)?;
                return Ok(Some((seq, value)));
            }
        }
        Ok(None)
    }

    fn history_row(
        &self,
        stream: StreamId,
        kind: u8,
        key: [u8; 16],
        at: u64,
    ) -> Result<Option<HistoryRow>, ReadError> {
        let row = self.live(stream)?;
        for segment in row.segments.iter().rev() {
            let last = keys::history(segment.id, kind, key, segment.through.min(at));
            let range = KeyRange::inclusive(&keys::history(segment.id, kind, key, 0), &last);
            if let Some((k, value)) = self.tables.first(Table::History, range, Order::Desc)? {
                let (_, kind, key, seq) = keys::parse_history(&k).ok_or_else(bad_key)?;
                return Ok(Some(HistoryRow {
                    kind,
                    key,
                    seq,
                    value,
                }));
            }
        }
        Ok(None)
    }

    fn history(
        &self,
        stream: StreamId,
        kind: u8,
        after: Option<[u8; 16]>,
        at: u64,
        order: Order,
        limit: PageLimit,
    ) -> Result<Vec<HistoryRow>, ReadError> {
        let row = self.live(stream)?;
        history::page(
            self.tables,
            &row,
            history::Query {
                kind,
                after,
                at,
                order,
            },
            limit,
        )
    }

    fn row(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.tables.get(Table::Current, key)
    }

    fn rows(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        order: Order,
        limit: PageLimit,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        let mut range = KeyRange::prefix(prefix);
        match (after, order) {
            (Some(after), Order::Asc) => {
                let mut next = after.to_vec();
                next.push(0);
                range.from = range.from.max(next);
            }
            (Some(after), Order::Desc) => {
                let after = after.to_vec();
                range.to = Some(range.to.map_or(after.clone(), |to| to.min(after)));
            }
            (None, _) => {}
        }
        let mut page = Page::new(limit);
        let mut cursor = self.tables.cursor(Table::Current, range, order)?;
        while let Some((key, value)) = cursor.item()? {
            if !page.admits(key.len() + value.len()) {
                break;
            }
            page.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            cursor.step();
        }
        Ok(page.into_items())
    }
}
