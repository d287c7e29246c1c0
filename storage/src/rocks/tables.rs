//! The tables of a RocksDB database.

use bytes::Bytes;
use rocksdb::{ColumnFamily, DB, DBRawIterator, ReadOptions, Snapshot};

use crate::log::{Order, ReadError};
use crate::table::{Cursor, Item, KeyRange, Table, Tables};

/// The tables as they are, or as a snapshot has them.
pub(crate) struct DbTables<'a> {
    db: &'a DB,
    snapshot: Option<Snapshot<'a>>,
    checksums: bool,
}

impl<'a> DbTables<'a> {
    /// The tables as they are at every single read: for the writer, which alone changes them.
    pub(crate) fn live(db: &'a DB) -> Self {
        Self {
            db,
            snapshot: None,
            checksums: true,
        }
    }

    /// The tables as they are now.
    pub(crate) fn snapshot(db: &'a DB) -> Self {
        Self {
            db,
            snapshot: Some(db.snapshot()),
            checksums: true,
        }
    }

    /// The tables, read without the engine's checksums: for verification.
    pub(crate) fn unchecked(db: &'a DB) -> Self {
        Self {
            db,
            snapshot: None,
            checksums: false,
        }
    }

    fn options(&self) -> ReadOptions {
        let mut options = ReadOptions::default();
        if let Some(snapshot) = &self.snapshot {
            options.set_snapshot(snapshot);
        }
        // What was read unchecked must not be served to anyone later.
        options.fill_cache(self.checksums);
        options.set_verify_checksums(self.checksums);
        options
    }

    fn family(&self, table: Table) -> Result<&'a ColumnFamily, ReadError> {
        family(self.db, table)
    }
}

/// The column family of a table.
pub(crate) fn family(db: &DB, table: Table) -> Result<&ColumnFamily, ReadError> {
    let missing = || ReadError::Engine(format!("the column family {} is missing", table.name()));
    db.cf_handle(table.name()).ok_or_else(missing)
}

pub(crate) fn engine_error(error: rocksdb::Error) -> ReadError {
    ReadError::Engine(error.into_string())
}

impl Tables for DbTables<'_> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        let value = self
            .db
            .get_pinned_cf_opt(self.family(table)?, key, &self.options());
        Ok(value
            .map_err(engine_error)?
            .map(|v| Bytes::copy_from_slice(&v)))
    }

    fn cursor(
        &self,
        table: Table,
        range: KeyRange,
        order: Order,
    ) -> Result<Box<dyn Cursor + '_>, ReadError> {
        let mut options = self.options();
        options.set_iterate_lower_bound(range.from);
        if let Some(to) = range.to {
            options.set_iterate_upper_bound(to);
        }
        let mut items = self.db.raw_iterator_cf_opt(self.family(table)?, options);
        match order {
            Order::Asc => items.seek_to_first(),
            Order::Desc => items.seek_to_last(),
        }
        Ok(Box::new(DbCursor { items, order }))
    }
}

struct DbCursor<'a> {
    items: DBRawIterator<'a>,
    order: Order,
}

impl Cursor for DbCursor<'_> {
    fn item(&self) -> Result<Option<Item<'_>>, ReadError> {
        match self.items.item() {
            Some(item) => Ok(Some(item)),
            None => self.items.status().map(|()| None).map_err(engine_error),
        }
    }

    fn step(&mut self) {
        if !self.items.valid() {
            return;
        }
        match self.order {
            Order::Asc => self.items.next(),
            Order::Desc => self.items.prev(),
        }
    }

    fn seek(&mut self, key: &[u8]) {
        match self.order {
            Order::Asc => self.items.seek(key),
            Order::Desc => self.items.seek_for_prev(key),
        }
    }
}
