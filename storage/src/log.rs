//! The log: what an engine must offer. `conformance` holds every engine to it.

mod error;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::oneshot;

pub use error::{AppendError, OpenError, ReadError};

/// Names one stream (16 bytes, chosen by the caller, never reused).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub [u8; 16]);

/// Names one segment of a stream. The first segment of a stream has the stream's own bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub [u8; 16]);

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// A BLAKE3 digest: of a record's chain up to and with it, or of stored content bytes.
pub type Digest = [u8; 32];

/// The chain value before the first record of a stream.
pub const CHAIN_START: Digest = [0; 32];

/// Whether a record's content bytes are there. A position never disappears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentState {
    /// The content bytes are stored.
    Present,
    /// Removed on request.
    Erased,
    /// Removed by retention.
    Expired,
    /// Never stored (zero data retention).
    Omitted,
}

/// One record to append. Its position is implied by its place in the write.
#[derive(Debug, Clone)]
pub struct NewRecord {
    /// Opaque header; part of the chain.
    pub header: Bytes,
    /// Content bytes; the chain holds their digest only, so that erasing keeps the chain whole.
    pub content: Bytes,
    /// State of the content (`Present` or `Omitted` in a new record).
    pub content_state: ContentState,
    /// Content-key id; 0 = not encrypted.
    pub key_id: u32,
}

/// One record as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Position in the stream, from 1, without gaps.
    pub seq: u64,
    /// Opaque header.
    pub header: Bytes,
    /// Content; empty unless `content_state` is `Present`.
    pub content: Bytes,
    /// State of the content.
    pub content_state: ContentState,
    /// Content-key id.
    pub key_id: u32,
    /// Chain value up to and with this record.
    pub hash: Digest,
}

/// What the writer must find at the end of the stream for the write to be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// The stream must not exist, and never have existed.
    New,
    /// The stream must not exist; it starts as a reference to `from`'s records `1..=at`.
    Fork {
        /// The source stream.
        from: StreamId,
        /// Last shared position, inclusive.
        at: u64,
    },
    /// The last position must be `seq` and the chain value there `hash`.
    Last {
        /// Expected last position.
        seq: u64,
        /// Expected chain value.
        hash: Digest,
    },
}

/// The part of a write that goes to a stream.
#[derive(Debug, Clone)]
pub struct StreamWrite {
    /// The stream.
    pub id: StreamId,
    /// The fence.
    pub expect: Expect,
    /// Records, in order; may be empty (rows only, still fenced).
    pub records: Vec<NewRecord>,
    /// History rows of this stream, written into its own (newest) segment.
    pub history: Vec<HistoryRow>,
    /// A cached fold of the stream after the last record of this write.
    pub state: Option<Bytes>,
    /// Marks the stream erased: every later write answers [`AppendError::Erased`], every read
    /// of its records finds none. The bytes go with [`Log::purge`].
    pub erase: bool,
    /// Ranges of positions (inclusive, ascending, [`EXPIRE_MAX`](crate::plan::EXPIRE_MAX)
    /// positions at most) whose contents expire with this write: records whose content is
    /// `Present` become `Expired`, the chain stays. All must be before this write, and none
    /// shared with another living stream ([`View::shared_through`]): else
    /// [`AppendError::Conflict`]. The bytes go with [`Log::purge`].
    pub expire: Vec<(u64, u64)>,
}

/// A row that derives from a stream's history: one per change, the newest at or before a
/// position is the one in force, so that a fork inherits them without copying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryRow {
    /// What sort of row (tags belong to the caller and are never reused).
    pub kind: u8,
    /// Natural key: sorts by bytes.
    pub key: [u8; 16],
    /// The position that made this version.
    pub seq: u64,
    /// Value.
    pub value: Bytes,
}

/// A condition on a `current` row, checked inside the commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// No such row.
    Absent,
    /// There is such a row.
    Present,
    /// The row is there with exactly these bytes.
    Unchanged(Bytes),
}

/// A change of a `current` row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowChange {
    /// Writes the row.
    Put(Bytes, Bytes),
    /// Removes the row, if there.
    Delete(Bytes),
    /// Removes every row whose key starts with these bytes (not empty).
    DeletePrefix(Bytes),
}

/// One write: all of it durable, or none.
#[derive(Debug, Clone, Default)]
pub struct Write {
    /// The stream part; `None` = rows only.
    pub stream: Option<StreamWrite>,
    /// Conditions on rows, all of which must hold.
    pub conditions: Vec<(Bytes, Condition)>,
    /// Changes of rows, applied in order.
    pub rows: Vec<RowChange>,
}

/// The end of the stream after a durable write (all zero for a write of rows only).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Last position.
    pub last_seq: u64,
    /// Chain value there.
    pub last_hash: Digest,
}

/// The answer of an append, once it is durable.
#[derive(Debug)]
#[must_use = "an append is acknowledged only when this resolves"]
pub struct Pending(oneshot::Receiver<Result<Appended, AppendError>>);

impl Pending {
    /// A pending answer and the sender that settles it.
    pub fn new() -> (oneshot::Sender<Result<Appended, AppendError>>, Self) {
        let (tx, rx) = oneshot::channel();
        (tx, Self(rx))
    }

    /// An answer that is already there.
    pub fn ready(result: Result<Appended, AppendError>) -> Self {
        let (tx, pending) = Self::new();
        // The receiver is in `pending`, so the send cannot fail.
        let _ = tx.send(result);
        pending
    }

    /// The answer, if it is there already; else the pending answer again. Never waits.
    pub fn try_now(mut self) -> Result<Result<Appended, AppendError>, Self> {
        match self.0.try_recv() {
            Ok(answer) => Ok(answer),
            Err(oneshot::error::TryRecvError::Closed) => Ok(Err(lost())),
            Err(oneshot::error::TryRecvError::Empty) => Err(self),
        }
    }

    /// Waits on a thread that runs no async code.
    pub fn wait(self) -> Result<Appended, AppendError> {
        self.0.blocking_recv().unwrap_or_else(|_| Err(lost()))
    }
}

impl Future for Pending {
    type Output = Result<Appended, AppendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|r| r.unwrap_or_else(|_| Err(lost())))
    }
}

fn lost() -> AppendError {
    AppendError::Unknown {
        cause: "the writer went away without an answer".into(),
    }
}

/// The end of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamHead {
    /// Last position.
    pub last_seq: u64,
    /// Chain value there.
    pub last_hash: Digest,
    /// Its segments, oldest first: each serves positions up to and with `through`
    /// (the last one is open: `u64::MAX`).
    pub segments: Vec<SegmentRef>,
}

/// A piece of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentRef {
    /// The segment.
    pub id: SegmentId,
    /// The last position it serves for this stream, inclusive.
    pub through: u64,
}

/// Bounds of one read. A page always has its first item, whatever its size.
#[derive(Debug, Clone, Copy)]
pub struct PageLimit {
    /// Most items.
    pub items_max: usize,
    /// Most bytes (headers and contents, keys and values).
    pub bytes_max: usize,
}

/// Reading direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Ascending positions.
    Asc,
    /// Descending positions.
    Desc,
}

/// One snapshot of the committed log. Every method may touch the disk.
pub trait View {
    /// The end of a stream: `Ok(None)` = never existed, `Err(Erased)` = erased.
    fn head(&self, stream: StreamId) -> Result<Option<StreamHead>, ReadError>;

    /// Records `after < seq <= through` (Asc: from the low end, Desc: from the high end),
    /// verified against the chain where the neighbour is part of the page.
    fn records(
        &self,
        stream: StreamId,
        after: u64,
        through: u64,
        order: Order,
        limit: PageLimit,
    ) -> Result<Vec<Record>, ReadError>;

    /// The last position that another living stream is made of too; 0 = none. What is shared
    /// is always a beginning of the stream.
    fn shared_through(&self, stream: StreamId) -> Result<u64, ReadError>;

    /// The newest cached fold at or before `at_most`: its position and bytes.
    fn state(&self, stream: StreamId, at_most: u64) -> Result<Option<(u64, Bytes)>, ReadError>;

    /// The history row in force at `at` for one natural key.
    fn history_row(
        &self,
        stream: StreamId,
        kind: u8,
        key: [u8; 16],
        at: u64,
    ) -> Result<Option<HistoryRow>, ReadError>;

    /// The history rows in force at `at`, one per natural key in `after < key` (None = from the
    /// least; in Desc order `key < after`), ordered by natural key.
    fn history(
        &self,
        stream: StreamId,
        kind: u8,
        after: Option<[u8; 16]>,
        at: u64,
        order: Order,
        limit: PageLimit,
    ) -> Result<Vec<HistoryRow>, ReadError>;

    /// One `current` row.
    fn row(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError>;

    /// `current` rows that start with `prefix`, in key order. Asc: keys `> after`; Desc: keys
    /// `< after`; `after: None` starts at the respective end of the prefix.
    fn rows(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        order: Order,
        limit: PageLimit,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError>;
}

/// Whether the log takes writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Reads and writes.
    Ok,
    /// Reads only: the disk is full; writes return when there is room.
    Full,
    /// Being reopened and read again after an unknown outcome.
    Recovering,
    /// Out of order for good: the process must be restarted.
    Failed(String),
    /// Closed.
    Closed,
}

/// An ordered, durable log of many streams.
pub trait Log: Send + Sync + 'static {
    /// Queues one write; the answer resolves when it is durable (`fdatasync`) or refused.
    /// Never blocks on the disk.
    fn append(&self, write: Write) -> Pending;

    /// Runs `f` on one snapshot. Blocking: not for an async thread. `f` should be
    /// short: a log that has to be reopened waits for its views, so one that in turn waits for an
    /// append can wait for ever.
    fn view(&self, f: &mut dyn FnMut(&dyn View)) -> Result<(), ReadError>;

    /// Physically removes what only this erased stream held, or the contents of a living one
    /// that have expired (blocking; idempotent; safe to repeat after a crash).
    fn purge(&self, stream: StreamId) -> Result<(), ReadError>;

    /// Whether the log takes writes.
    fn health(&self) -> Health;

    /// Stops intake, finishes queued writes, waits for readers, lets go of the engine's lock.
    /// Blocking and idempotent; not from within a view.
    fn close(&self);
}

/// Runs `f` on one snapshot of `log` and gives its value back. Blocking.
pub fn read<T>(
    log: &dyn Log,
    f: impl FnOnce(&dyn View) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    let mut f = Some(f);
    let mut out = None;
    log.view(&mut |view| {
        if let Some(f) = f.take() {
            out = Some(f(view));
        }
    })?;
    out.unwrap_or(Err(ReadError::Closed))
}
