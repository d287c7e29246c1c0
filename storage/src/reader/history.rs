//! History rows in force at a position: one per natural key, the newest at or before it, over
//! all segments of a stream.

use bytes::Bytes;

use crate::keys;
use crate::log::{HistoryRow, Order, PageLimit, ReadError, SegmentRef};
use crate::stream_row::StreamRow;
use crate::table::{Cursor, KeyRange, Table, Tables};

use super::bad_key;
use super::page::Page;

/// What to list.
#[derive(Clone, Copy)]
pub(super) struct Query {
    pub(super) kind: u8,
    pub(super) after: Option<[u8; 16]>,
    pub(super) at: u64,
    pub(super) order: Order,
}

/// A segment, and a cursor over its natural keys.
struct Source<'a> {
    segment: SegmentRef,
    cursor: Box<dyn Cursor + 'a>,
}

impl Source<'_> {
    /// The natural key here.
    fn natural(&self) -> Result<Option<[u8; 16]>, ReadError> {
        match self.cursor.item()? {
            None => Ok(None),
            Some((key, _)) => {
                let (_, _, natural, _) = keys::parse_history(key).ok_or_else(bad_key)?;
                Ok(Some(natural))
            }
        }
    }

    /// Goes past all versions of `natural`, which is here or behind.
    fn pass(&mut self, query: &Query, natural: [u8; 16]) {
        let edge = match query.order {
            Order::Asc => u64::MAX,
            Order::Desc => 0,
        };
        self.cursor
            .seek(&keys::history(self.segment.id, query.kind, natural, edge));
        // The edge itself may hold a row.
        if let Ok(Some(here)) = self.natural()
            && here == natural
        {
            self.cursor.step();
        }
    }
}

/// One page.
pub(super) fn page(
    tables: &dyn Tables,
    row: &StreamRow,
    query: Query,
    limit: PageLimit,
) -> Result<Vec<HistoryRow>, ReadError> {
    let mut sources = Vec::new();
    let mut served = 0;
    for segment in &row.segments {
        if served < query.at
            && let Some(range) = natural_range(*segment, &query)
        {
            let cursor = tables.cursor(Table::History, range, query.order)?;
            sources.push(Source {
                segment: *segment,
                cursor,
            });
        }
        served = segment.through;
    }
    let mut page = Page::new(limit);
    while let Some(natural) = next_natural(&sources, query.order)? {
        if let Some(found) = in_force(tables, &sources, &query, natural)? {
            if !page.admits(natural.len() + found.value.len()) {
                break;
            }
            page.push(found);
        }
        for source in &mut sources {
            if source.natural()? == Some(natural) {
                source.pass(&query, natural);
            }
        }
    }
    Ok(page.into_items())
}

/// The rows of one segment whose natural keys are asked for; `None` = there can be none.
fn natural_range(segment: SegmentRef, query: &Query) -> Option<KeyRange> {
    let kind = query.kind;
    let least = keys::history(segment.id, kind, [0; 16], 0);
    let greatest = keys::history(segment.id, kind, [u8::MAX; 16], u64::MAX);
    match (query.after, query.order) {
        (None, _) => Some(KeyRange::inclusive(&least, &greatest)),
        (Some(after), Order::Asc) => {
            let from = keys::history(segment.id, kind, keys::natural_after(after)?, 0);
            Some(KeyRange::inclusive(&from, &greatest))
        }
        (Some(after), Order::Desc) => Some(KeyRange {
            from: least.to_vec(),
            to: Some(keys::history(segment.id, kind, after, 0).to_vec()),
        }),
    }
}

fn next_natural(sources: &[Source<'_>], order: Order) -> Result<Option<[u8; 16]>, ReadError> {
    let mut next = None;
    for source in sources {
        let Some(natural) = source.natural()? else {
            continue;
        };
        next = Some(match (next, order) {
            (None, _) => natural,
            (Some(n), Order::Asc) => natural.min(n),
            (Some(n), Order::Desc) => natural.max(n),
        });
    }
    Ok(next)
}

/// The version in force: from the newest segment that has one at or before the position.
fn in_force(
    tables: &dyn Tables,
    sources: &[Source<'_>],
    query: &Query,
    natural: [u8; 16],
) -> Result<Option<HistoryRow>, ReadError> {
    for source in sources.iter().rev() {
        if source.natural()? != Some(natural) {
            continue;
        }
        let id = source.segment.id;
        let last = source.segment.through.min(query.at);
        let range = KeyRange::inclusive(
            &keys::history(id, query.kind, natural, 0),
            &keys::history(id, query.kind, natural, last),
        );
        let found: Option<(Bytes, Bytes)> = tables.first(Table::History, range, Order::Desc)?;
        if let Some((key, value)) = found {
            let (_, kind, key, seq) = keys::parse_history(&key).ok_or_else(bad_key)?;
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
