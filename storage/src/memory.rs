//! The engine in memory: for tests and simulations. Every append is settled when it returns.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::check::{Checker, Fence, Refusal};
use crate::log::{
    AppendError, Appended, Health, Log, Order, Pending, ReadError, StreamId, View, Write,
};
use crate::plan;
use crate::reader::Reader;
use crate::table::{Cursor, Item, KeyRange, Sink, Table, Tables};
use crate::unshared;

/// Streams whose ends are remembered.
const ENDS_MAX: usize = 1_024;

/// A log in memory, gone with the value.
#[derive(Debug)]
pub struct MemoryLog {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` = closed. Shared with the views in progress, which keep what they began with.
    data: Option<Arc<Data>>,
    checker: Checker,
}

#[derive(Debug, Clone, Default)]
struct Data([BTreeMap<Vec<u8>, Bytes>; Table::ALL.len()]);

impl MemoryLog {
    /// An empty log.
    pub fn new() -> Arc<Self> {
        let state = State {
            data: Some(Arc::default()),
            checker: Checker::new(ENDS_MAX),
        };
        Arc::new(Self {
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere cannot leave it half-changed: changes are made on a value of its own.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn data(&self) -> Result<Arc<Data>, ReadError> {
        self.state().data.clone().ok_or(ReadError::Closed)
    }
}

impl State {
    fn append(&mut self, write: &Write) -> Result<Appended, AppendError> {
        let Some(data) = &mut self.data else {
            return Err(AppendError::Closed);
        };
        plan::validate(write)?;
        let fence = write.stream.as_ref().map(Fence::of);
        let taken = self
            .checker
            .check(data.as_ref(), fence.as_ref(), &write.conditions)
            .map_err(|refusal| match refusal {
                Refusal::Error(error) => error,
                // Every write is a batch of its own here, so there is none to commit first.
                Refusal::CommitFirst => AppendError::Malformed("a batch of one waits for itself"),
            })?;
        let mut changes = Changes::default();
        let end = plan::lay_taken(write, taken, &mut changes)?;
        let data = Arc::make_mut(data);
        for change in changes.0 {
            change.apply(data);
        }
        self.checker.take(fence.as_ref(), end, &write.rows);
        self.checker.committed();
        Ok(end)
    }
}

impl Log for MemoryLog {
    fn append(&self, write: Write) -> Pending {
        Pending::ready(self.state().append(&write))
    }

    fn view(&self, f: &mut dyn FnMut(&dyn View)) -> Result<(), ReadError> {
        let data = self.data()?;
        f(&Reader::new(data.as_ref()));
        Ok(())
    }

    fn purge(&self, stream: StreamId) -> Result<(), ReadError> {
        let mut state = self.state();
        let data = state.data.as_mut().ok_or(ReadError::Closed)?;
        loop {
            let mut changes = Changes::default();
            let removal = unshared::remove(data.as_ref(), stream, &mut changes)?;
            let data = Arc::make_mut(data);
            for change in changes.0 {
                change.apply(data);
            }
            if removal.is_none_or(|r| r.complete) {
                return Ok(());
            }
        }
    }

    fn health(&self) -> Health {
        match self.state().data {
            Some(_) => Health::Ok,
            None => Health::Closed,
        }
    }

    fn close(&self) {
        self.state().data = None;
    }
}

#[derive(Debug)]
enum Change {
    Put(Table, Vec<u8>, Bytes),
    Delete(Table, Vec<u8>),
    DeleteRange(Table, Vec<u8>, Vec<u8>),
}

impl Change {
    fn apply(self, data: &mut Data) {
        match self {
            Self::Put(table, key, value) => {
                data.table_mut(table).insert(key, value);
            }
            Self::Delete(table, key) => {
                data.table_mut(table).remove(&key);
            }
            Self::DeleteRange(table, from, to) => {
                data.table_mut(table)
                    .retain(|key, _| *key < from || *key >= to);
            }
        }
    }
}

#[derive(Debug, Default)]
struct Changes(Vec<Change>);

impl Sink for Changes {
    fn put(&mut self, table: Table, key: &[u8], value: &[&[u8]]) {
        self.0
            .push(Change::Put(table, key.to_vec(), value.concat().into()));
    }

    fn delete(&mut self, table: Table, key: &[u8]) {
        self.0.push(Change::Delete(table, key.to_vec()));
    }

    fn delete_range(&mut self, table: Table, from: &[u8], to: &[u8]) {
        self.0
            .push(Change::DeleteRange(table, from.to_vec(), to.to_vec()));
    }
}

impl Data {
    #[expect(
        clippy::indexing_slicing,
        reason = "one map for each table, by its index"
    )]
    fn table(&self, table: Table) -> &BTreeMap<Vec<u8>, Bytes> {
        &self.0[table.index()]
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "one map for each table, by its index"
    )]
    fn table_mut(&mut self, table: Table) -> &mut BTreeMap<Vec<u8>, Bytes> {
        &mut self.0[table.index()]
    }
}

impl Tables for Data {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        Ok(self.table(table).get(key).cloned())
    }

    fn cursor(
        &self,
        table: Table,
        range: KeyRange,
        order: Order,
    ) -> Result<Box<dyn Cursor + '_>, ReadError> {
        let mut cursor = MapCursor {
            map: self.table(table),
            range,
            order,
            here: None,
        };
        let (from, to) = cursor.bounds();
        cursor.go(from, to);
        Ok(Box::new(cursor))
    }
}

struct MapCursor<'a> {
    map: &'a BTreeMap<Vec<u8>, Bytes>,
    range: KeyRange,
    order: Order,
    here: Option<(&'a Vec<u8>, &'a Bytes)>,
}

impl MapCursor<'_> {
    fn bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let to = self
            .range
            .to
            .clone()
            .map_or(Bound::Unbounded, Bound::Excluded);
        (Bound::Included(self.range.from.clone()), to)
    }

    fn go(&mut self, from: Bound<Vec<u8>>, to: Bound<Vec<u8>>) {
        self.here = None;
        if is_empty(&from, &to) {
            return;
        }
        let mut items = self.map.range((from, to));
        self.here = match self.order {
            Order::Asc => items.next(),
            Order::Desc => items.next_back(),
        };
    }
}

/// A map refuses such ranges with a panic.
fn is_empty(from: &Bound<Vec<u8>>, to: &Bound<Vec<u8>>) -> bool {
    match (from, to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to))
        | (Bound::Excluded(from), Bound::Included(to)) => from >= to,
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
    }
}

impl Cursor for MapCursor<'_> {
    fn item(&self) -> Result<Option<Item<'_>>, ReadError> {
        Ok(self.here.map(|(k, v)| (k.as_slice(), v.as_ref())))
    }

    fn step(&mut self) {
        let Some((here, _)) = self.here else { return };
        let (from, to) = self.bounds();
        let here = Bound::Excluded(here.clone());
        match self.order {
            Order::Asc => self.go(here, to),
            Order::Desc => self.go(from, here),
        }
    }

    fn seek(&mut self, key: &[u8]) {
        let (from, to) = self.bounds();
        match self.order {
            Order::Asc if self.range.from.as_slice() < key => {
                self.go(Bound::Included(key.to_vec()), to);
            }
            Order::Desc if self.range.to.as_ref().is_none_or(|to| key < to.as_slice()) => {
                self.go(from, Bound::Included(key.to_vec()));
            }
            _ => self.go(from, to),
        }
    }
}

#[cfg(test)]
impl MemoryLog {
    /// Versions of history rows that are stored.
    pub(crate) fn history_len(&self) -> usize {
        self.data().unwrap().table(Table::History).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{self, Engine};

    struct Memory;

    impl Engine for Memory {
        fn open(&self) -> Arc<dyn Log> {
            MemoryLog::new()
        }

        fn reopen(&self, _: Arc<dyn Log>) -> Option<Arc<dyn Log>> {
            None
        }
    }

    #[test]
    fn keeps_every_clause() {
        conformance::run(&Memory);
    }
}
