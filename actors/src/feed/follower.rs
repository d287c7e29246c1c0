//! One reader of one session, from a position on, without an end of its own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longhaul_storage::{Order, PageLimit, ReadError, StreamId};
use tokio::sync::watch;

use super::Permit;
use super::channel::{Channel, FeedEvent, Head};
use crate::code::{Code, Rejection};
use crate::engine::inner::Inner;
use crate::ids::SessionId;
use crate::reader::Class;
use crate::session::envelope::envelope;
use crate::session::event::EventType;
use crate::session::status::Status;
use crate::session::stored::header_of;

/// Events taken from the ring at once.
const TAKE_MAX: usize = 64;
/// Events and bytes read from the log at once.
const PAGE: PageLimit = PageLimit {
    items_max: 256,
    bytes_max: 1 << 20,
};
/// How long to wait before a read that found a full queue is tried again.
const BUSY_WAIT: Duration = Duration::from_millis(50);

/// What a follower sees next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Follow {
    /// A committed event.
    Event {
        /// Its position.
        seq: u64,
        /// Its type.
        kind: EventType,
        /// Whether a turn settled or parked with it.
        boundary: bool,
        /// Its envelope, shared by all followers.
        json: Bytes,
    },
    /// The session has ended and everything of it was seen.
    Ended(Status),
    /// The session was erased.
    Erased,
    /// The server stops.
    Closed,
}

/// Follows one session. Events come gap-free, in order, after their commit.
pub struct Follower {
    inner: Arc<Inner>,
    session: SessionId,
    channel: Arc<Channel>,
    head: watch::Receiver<Head>,
    /// The last position looked at.
    cursor: u64,
    /// The last position of the page that `history` came from.
    read_through: u64,
    types: Option<Vec<EventType>>,
    live: VecDeque<Arc<FeedEvent>>,
    history: VecDeque<Follow>,
    _permit: Permit,
}

impl Follower {
    pub(crate) fn new(
        inner: Arc<Inner>,
        session: SessionId,
        channel: Arc<Channel>,
        after: u64,
        types: Option<Vec<EventType>>,
        permit: Permit,
    ) -> Self {
        let head = channel.watch();
        let (live, history) = (VecDeque::new(), VecDeque::new());
        Self {
            inner,
            session,
            channel,
            head,
            cursor: after,
            read_through: 0,
            types,
            live,
            history,
            _permit: permit,
        }
    }

    /// The position up to which everything was seen (filtered events count).
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// The next thing. Safe to drop and call again: nothing is lost.
    ///
    /// # Errors
    /// `session.damaged`, `runtime.internal`, `storage.unavailable`.
    pub async fn next(&mut self) -> Result<Follow, Rejection> {
        loop {
            if let Some(event) = self.buffered() {
                return Ok(event);
            }
            let head = *self.head.borrow_and_update();
            if head.erased {
                return Ok(Follow::Erased);
            }
            if head.closed {
                return Ok(Follow::Closed);
            }
            if self.cursor < head.seq {
                if !self.channel.take(self.cursor, TAKE_MAX, &mut self.live) {
                    self.read_log(head.seq).await?;
                }
            } else if let Some(status) = head.ended {
                return Ok(Follow::Ended(status));
            } else if self.head.changed().await.is_err() {
                return Ok(Follow::Closed);
            }
        }
    }

    /// The next event, if one is at hand: nothing is read or waited for.
    pub fn at_hand(&mut self) -> Option<Follow> {
        self.buffered()
    }

    fn buffered(&mut self) -> Option<Follow> {
        while let Some(event) = self.live.pop_front() {
            self.cursor = event.seq();
            if wanted(self.types.as_deref(), event.kind()) {
                return Some(Follow::Event {
                    seq: event.seq(),
                    kind: event.kind(),
                    boundary: event.boundary(),
                    json: event.json(),
                });
            }
        }
        let next = self.history.pop_front();
        match &next {
            Some(Follow::Event { seq, .. }) => self.cursor = *seq,
            Some(_) => {}
            // The rest of the page was not wanted.
            None => self.cursor = self.cursor.max(self.read_through),
        }
        next
    }

    /// One page from the log, at this follower's own speed.
    async fn read_log(&mut self, through: u64) -> Result<(), Rejection> {
        let (session, after, types) = (self.session, self.cursor, self.types.clone());
        let page = self.inner.read(Class::Page, move |view| {
            let stream = StreamId(session.0);
            let records = view.records(stream, after, through, Order::Asc, PAGE)?;
            let last = records.last().map_or(after, |r| r.seq);
            let mut out = VecDeque::new();
            for record in &records {
                let damaged = |e: &dyn std::fmt::Display| ReadError::Damaged {
                    stream,
                    seq: record.seq,
                    reason: e.to_string(),
                };
                let header = header_of(record).map_err(|e| damaged(&e))?;
                if wanted(types.as_deref(), header.kind) {
                    out.push_back(Follow::Event {
                        seq: record.seq,
                        kind: header.kind,
                        boundary: header.boundary,
                        json: envelope(record).map_err(|e| damaged(&e))?,
                    });
                }
            }
            Ok((out, last))
        });
        match page.await {
            Ok((_, last)) if last == after => Err(Rejection::new(
                Code::Internal,
                format!("nothing to read after {after}"),
            )),
            Ok((events, last)) => {
                self.history = events;
                self.read_through = last;
                Ok(())
            }
            Err(e) if e.code == Code::Busy => {
                self.inner.timer.after(BUSY_WAIT).await;
                Ok(())
            }
            Err(e) if e.code == Code::SessionErased => {
                self.history.push_back(Follow::Erased);
                Ok(())
            }
            Err(e) if e.code == Code::Stopped => {
                self.history.push_back(Follow::Closed);
                Ok(())
            }
            Err(e) => Err(e),
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.inner.feed.leave(self.session, &self.channel);
    }
}

fn wanted(types: Option<&[EventType]>, kind: EventType) -> bool {
    types.is_none_or(|types| types.contains(&kind))
}
