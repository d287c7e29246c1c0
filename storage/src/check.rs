//! Whether a write may be taken: its fence and its conditions, against the tables and against
//! what the batch in progress has already taken. The same for every engine.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;

use bytes::Bytes;

use crate::keys;
use crate::log::{
    AppendError, Appended, Condition, Expect, ReadError, RowChange, SegmentRef, StreamId,
    StreamWrite,
};
use crate::reader;
use crate::stream_row::StreamRow;
use crate::table::{Table, Tables};
use crate::unshared::{self, Overwrite};

/// What the end of a stream is to a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Absent,
    Live(Appended),
    Erased,
}

/// What must be laid beyond what the write itself says, found out while checking it.
#[derive(Debug)]
pub(crate) enum Taken {
    /// Nothing.
    Plain,
    /// A fork's shared segments, and the end of the last.
    Fork {
        shared: Vec<SegmentRef>,
        base: Appended,
    },
    /// The row of the stream to erase.
    Erase(StreamRow),
    /// Frames that lose their contents.
    Expire(Vec<Overwrite>),
}

/// Why a write was not taken.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// For good.
    Error(AppendError),
    /// The batch in progress must be committed first: this write reads the stored rows of a
    /// stream that the batch changes.
    CommitFirst,
}

impl From<AppendError> for Refusal {
    fn from(error: AppendError) -> Self {
        Self::Error(error)
    }
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Self {
        Self::Error(match error {
            ReadError::Closed => AppendError::Closed,
            other => AppendError::Unreadable(other),
        })
    }
}

/// The fence of a write, apart from its bytes.
#[derive(Debug, Clone)]
pub(crate) struct Fence {
    pub(crate) stream: StreamId,
    pub(crate) expect: Expect,
    pub(crate) erase: bool,
    pub(crate) expire: Vec<(u64, u64)>,
}

impl Fence {
    /// The fence of a write.
    pub(crate) fn of(write: &StreamWrite) -> Self {
        Self {
            stream: write.id,
            expect: write.expect.clone(),
            erase: write.erase,
            expire: write.expire.clone(),
        }
    }
}

/// Ends of streams known without reading, bounded: two generations, of which the older is
/// dropped whole.
#[derive(Debug)]
struct Ends {
    young: HashMap<StreamId, End>,
    old: HashMap<StreamId, End>,
    generation_len_max: usize,
}

impl Ends {
    fn get(&mut self, stream: StreamId) -> Option<End> {
        if let Some(end) = self.young.get(&stream) {
            return Some(*end);
        }
        let end = self.old.remove(&stream)?;
        self.put(stream, end);
        Some(end)
    }

    fn put(&mut self, stream: StreamId, end: End) {
        if self.young.len() >= self.generation_len_max {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(stream, end);
    }
}

/// Checks the writes of one batch after another.
#[derive(Debug)]
pub(crate) struct Checker {
    ends: Ends,
    /// Streams that the batch in progress changes.
    touched: HashSet<StreamId>,
    rows: Overlay,
}

impl Checker {
    /// A checker that remembers the ends of at most `ends_max` streams.
    pub(crate) fn new(ends_max: usize) -> Self {
        Self {
            ends: Ends {
                young: HashMap::new(),
                old: HashMap::new(),
                generation_len_max: (ends_max / 2).max(1),
            },
            touched: HashSet::new(),
            rows: Overlay::default(),
        }
    }

    /// The batch is committed: from here on its effects are read from the tables.
    pub(crate) fn committed(&mut self) {
        self.touched.clear();
        self.rows.clear();
    }

    /// The batch failed or its outcome is open: nothing that was remembered holds.
    pub(crate) fn forget(&mut self) {
        self.committed();
        self.ends.young.clear();
        self.ends.old.clear();
    }

    /// Whether two writes of the batch change one row, so that their order matters.
    pub(crate) fn ordered(&self) -> bool {
        self.rows.ordered
    }

    /// Checks a write against the tables and the batch in progress.
    pub(crate) fn check(
        &mut self,
        tables: &dyn Tables,
        fence: Option<&Fence>,
        conditions: &[(Bytes, Condition)],
    ) -> Result<Taken, Refusal> {
        let taken = match fence {
            Some(fence) => self.check_fence(tables, fence)?,
            None => Taken::Plain,
        };
        for (index, (key, condition)) in conditions.iter().enumerate() {
            if !self.holds(tables, key, condition)? {
                return Err(AppendError::Condition { index }.into());
            }
        }
        Ok(taken)
    }

    /// The write is part of the batch: later ones see it.
    pub(crate) fn take(&mut self, fence: Option<&Fence>, end: Appended, rows: &[RowChange]) {
        if let Some(fence) = fence {
            let after = if fence.erase {
                End::Erased
            } else {
                End::Live(end)
            };
            self.ends.put(fence.stream, after);
            self.touched.insert(fence.stream);
        }
        self.rows.add(rows);
    }

    fn check_fence(&mut self, tables: &dyn Tables, fence: &Fence) -> Result<Taken, Refusal> {
        let end = self.end(tables, fence.stream)?;
        match (&fence.expect, end) {
            (_, End::Erased) => Err(AppendError::Erased.into()),
            (Expect::New, End::Absent) => Ok(Taken::Plain),
            (Expect::Fork { from, at }, End::Absent) => self.check_fork(tables, *from, *at),
            (Expect::Last { seq, hash }, End::Live(last))
                if (last.last_seq, last.last_hash) == (*seq, *hash) =>
            {
                if !fence.expire.is_empty() {
                    return self.check_expiry(tables, fence, last.last_seq);
                }
                if !fence.erase {
                    return Ok(Taken::Plain);
                }
                if self.touched.contains(&fence.stream) {
                    return Err(Refusal::CommitFirst);
                }
                let row = reader::stream_row(tables, fence.stream)?;
                Ok(row.map_or(Taken::Plain, Taken::Erase))
            }
            (Expect::Last { .. }, End::Absent) => Err(AppendError::Conflict { actual: 0 }.into()),
            (_, End::Live(last)) => Err(AppendError::Conflict {
                actual: last.last_seq,
            }
            .into()),
        }
    }

    /// Contents may go that no other living stream shares.
    fn check_expiry(
        &self,
        tables: &dyn Tables,
        fence: &Fence,
        last_seq: u64,
    ) -> Result<Taken, Refusal> {
        // Any fork in the batch may share them, and is not in the tables yet.
        if !self.touched.is_empty() {
            return Err(Refusal::CommitFirst);
        }
        let Some(row) = reader::stream_row(tables, fence.stream)? else {
            return Err(AppendError::Conflict { actual: 0 }.into());
        };
        let shared = unshared::held_by_others(tables, fence.stream, &row)?;
        if fence
            .expire
            .first()
            .is_some_and(|(from, _)| *from <= shared)
        {
            return Err(AppendError::Conflict { actual: last_seq }.into());
        }
        let frames = unshared::expired_frames(tables, fence.stream, &row, &fence.expire)?;
        Ok(Taken::Expire(frames))
    }

    fn check_fork(
        &mut self,
        tables: &dyn Tables,
        from: StreamId,
        at: u64,
    ) -> Result<Taken, Refusal> {
        let last = match self.end(tables, from)? {
            End::Erased => return Err(AppendError::Erased.into()),
            End::Absent => return Err(AppendError::Conflict { actual: 0 }.into()),
            End::Live(last) if at > last.last_seq => {
                return Err(AppendError::Conflict {
                    actual: last.last_seq,
                }
                .into());
            }
            End::Live(last) => last,
        };
        if self.touched.contains(&from) {
            return Err(Refusal::CommitFirst);
        }
        let Some(row) = reader::stream_row(tables, from)? else {
            return Err(AppendError::Conflict { actual: 0 }.into());
        };
        let shared = row.cut(at);
        if shared.len() >= crate::stream_row::SEGMENTS_MAX {
            return Err(AppendError::Malformed("forks of forks are too deep").into());
        }
        let last_hash = if at == last.last_seq {
            last.last_hash
        } else {
            reader::hash_at(tables, from, &row, at)?
        };
        Ok(Taken::Fork {
            shared,
            base: Appended {
                last_seq: at,
                last_hash,
            },
        })
    }

    fn end(&mut self, tables: &dyn Tables, stream: StreamId) -> Result<End, ReadError> {
        if let Some(end) = self.ends.get(stream) {
            return Ok(end);
        }
        let end = match reader::stream_row(tables, stream)? {
            None => End::Absent,
            Some(row) if row.erased => End::Erased,
            Some(row) => End::Live(reader::stream_end(tables, stream, &row)?),
        };
        // The absent are not kept: names of streams that never come would push out the live.
        if end != End::Absent {
            self.ends.put(stream, end);
        }
        Ok(end)
    }

    fn holds(
        &self,
        tables: &dyn Tables,
        key: &Bytes,
        condition: &Condition,
    ) -> Result<bool, ReadError> {
        let row = match self.rows.get(key) {
            Some(row) => row,
            None => tables.get(Table::Current, key)?,
        };
        Ok(match condition {
            Condition::Absent => row.is_none(),
            Condition::Present => row.is_some(),
            Condition::Unchanged(value) => row.as_ref() == Some(value),
        })
    }
}

/// The rows that the batch in progress changes.
#[derive(Debug, Default)]
struct Overlay {
    rows: BTreeMap<Bytes, Option<Bytes>>,
    prefixes: Vec<Bytes>,
    ordered: bool,
}

impl Overlay {
    fn clear(&mut self) {
        self.rows.clear();
        self.prefixes.clear();
        self.ordered = false;
    }

    /// `None` = the batch does not touch the row; `Some(None)` = it removes it.
    fn get(&self, key: &Bytes) -> Option<Option<Bytes>> {
        if let Some(row) = self.rows.get(key) {
            return Some(row.clone());
        }
        self.prefixes
            .iter()
            .any(|p| key.starts_with(p))
            .then_some(None)
    }

    fn add(&mut self, changes: &[RowChange]) {
        for change in changes {
            match change {
                RowChange::Put(key, value) => self.set(key, Some(value.clone())),
                RowChange::Delete(key) => self.set(key, None),
                RowChange::DeletePrefix(prefix) => self.remove_prefix(prefix),
            }
        }
    }

    fn set(&mut self, key: &Bytes, value: Option<Bytes>) {
        self.ordered |= self.prefixes.iter().any(|p| key.starts_with(p));
        self.ordered |= self.rows.insert(key.clone(), value).is_some();
    }

    fn remove_prefix(&mut self, prefix: &Bytes) {
        let from = Bound::Included(prefix.clone());
        let to = keys::prefix_end(prefix).map_or(Bound::Unbounded, |e| Bound::Excluded(e.into()));
        for (_, value) in self.rows.range_mut((from, to)) {
            *value = None;
            self.ordered = true;
        }
        self.prefixes.push(prefix.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::CHAIN_START;

    fn put(key: &'static str, value: &'static str) -> RowChange {
        RowChange::Put(key.into(), value.into())
    }

    #[test]
    fn the_overlay_is_the_last_change() {
        let mut rows = Overlay::default();
        let get = |rows: &Overlay, key: &'static str| rows.get(&key.into());
        rows.add(&[put("a/1", "x"), put("b/1", "y")]);
        assert!(!rows.ordered, "different rows may be written in any order");
        assert_eq!(get(&rows, "a/1"), Some(Some("x".into())));
        assert_eq!(get(&rows, "a/2"), None);
        rows.add(&[RowChange::DeletePrefix("a/".into())]);
        assert!(rows.ordered);
        assert_eq!(get(&rows, "a/1"), Some(None));
        assert_eq!(
            get(&rows, "a/2"),
            Some(None),
            "a stored row under the prefix is gone too"
        );
        assert_eq!(get(&rows, "b/1"), Some(Some("y".into())));
        rows.add(&[put("a/2", "z")]);
        assert_eq!(get(&rows, "a/2"), Some(Some("z".into())));
        rows.clear();
        assert_eq!(get(&rows, "a/2"), None);
        assert!(!rows.ordered);
    }

    #[test]
    fn the_ends_remembered_are_bounded() {
        let mut ends = Checker::new(8).ends;
        let id = |n: u32| {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&n.to_be_bytes());
            StreamId(id)
        };
        for n in 0..100 {
            ends.put(
                id(n),
                End::Live(Appended {
                    last_seq: n.into(),
                    last_hash: CHAIN_START,
                }),
            );
            assert!(ends.young.len() + ends.old.len() <= 8);
            assert!(ends.get(id(n)).is_some());
        }
        assert_eq!(ends.get(id(0)), None);
    }
}
