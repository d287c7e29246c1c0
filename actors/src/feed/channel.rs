//! The newest committed events of one session, for everybody who follows it.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use tokio::sync::watch;

use crate::session::envelope::envelope_of_new;
use crate::session::event::{EventType, NewEvent};
use crate::session::status::Status;
use crate::sync::lock;

/// A committed event, serialised once for all followers, by the first that wants it.
pub(crate) struct FeedEvent {
    new: NewEvent,
    json: OnceLock<Bytes>,
}

impl FeedEvent {
    pub(crate) fn seq(&self) -> u64 {
        self.new.event.seq
    }

    pub(crate) fn kind(&self) -> EventType {
        self.new.event.header.kind
    }

    pub(crate) fn boundary(&self) -> bool {
        self.new.event.header.boundary
    }

    /// The envelope.
    pub(crate) fn json(&self) -> Bytes {
        self.json.get_or_init(|| envelope_of_new(&self.new)).clone()
    }
}

/// The committed end of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// Last position.
    pub(crate) seq: u64,
    /// Its terminal status, once it has one.
    pub(crate) ended: Option<Status>,
    /// Whether it is erased.
    pub(crate) erased: bool,
    /// Whether followers must go (the server stops).
    pub(crate) closed: bool,
}

/// A session's ring and head.
pub(crate) struct Channel {
    ring: Mutex<Ring>,
    head: watch::Sender<Head>,
    pub(super) users: AtomicUsize,
    events_max: usize,
    bytes_max: usize,
}

#[derive(Default)]
struct Ring {
    events: VecDeque<Arc<FeedEvent>>,
    bytes: usize,
}

impl Channel {
    pub(super) fn new(events_max: usize, bytes_max: usize) -> Self {
        Self {
            ring: Mutex::default(),
            head: watch::Sender::new(Head::default()),
            users: AtomicUsize::new(0),
            events_max,
            bytes_max,
        }
    }

    /// Takes committed events, in order, and tells the followers.
    pub(crate) fn publish(&self, events: Vec<NewEvent>, ended: Option<Status>) {
        let Some(last) = events.last().map(|e| e.event.seq) else {
            return;
        };
        {
            let mut ring = lock(&self.ring);
            for new in events {
                ring.push(new);
            }
            ring.trim(self.events_max, self.bytes_max);
        }
        self.advance(last, ended);
    }

    /// The log is known to reach `seq`, whether or not its events passed here.
    pub(crate) fn advance(&self, seq: u64, ended: Option<Status>) {
        self.head.send_if_modified(|head| {
            let moved = seq > head.seq || (ended.is_some() && head.ended.is_none());
            head.seq = head.seq.max(seq);
            head.ended = head.ended.or(ended);
            moved
        });
    }

    /// The session is erased.
    pub(crate) fn erase(&self) {
        *lock(&self.ring) = Ring::default();
        self.head.send_modify(|head| head.erased = true);
    }

    /// Followers must go.
    pub(crate) fn close(&self) {
        self.head.send_modify(|head| head.closed = true);
    }

    /// Watches the head.
    pub(crate) fn watch(&self) -> watch::Receiver<Head> {
        self.head.subscribe()
    }

    /// Events after `after`, if the very next one is in the ring; at most `max`.
    pub(crate) fn take(&self, after: u64, max: usize, into: &mut VecDeque<Arc<FeedEvent>>) -> bool {
        let ring = lock(&self.ring);
        let Some(first) = ring.events.front().map(|e| e.seq()) else {
            return false;
        };
        let Some(skip) = (after + 1).checked_sub(first) else {
            return false;
        };
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        if skip >= ring.events.len() {
            return false;
        }
        into.extend(ring.events.iter().skip(skip).take(max).cloned());
        true
    }
}

impl Ring {
    fn push(&mut self, new: NewEvent) {
        let follows = self
            .events
            .back()
            .is_none_or(|e| e.seq() + 1 == new.event.seq);
        if !follows {
            // The session was read from the log again: what lies between is served from there.
            *self = Self::default();
        }
        self.bytes += new.content.len();
        self.events.push_back(Arc::new(FeedEvent {
            new,
            json: OnceLock::new(),
        }));
    }

    fn trim(&mut self, events_max: usize, bytes_max: usize) {
        while self.events.len() > events_max || self.bytes > bytes_max {
            let Some(event) = self.events.pop_front() else {
                return;
            };
            self.bytes -= event.new.content.len();
        }
    }
}
