//! Committed events to followers. A session that is followed keeps a bounded ring of its newest
//! events; whoever is further behind reads the log at its own speed.

pub mod channel;
pub mod follower;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use channel::Channel;

use crate::code::{Code, Rejection};
use crate::ids::SessionId;
use crate::sync::lock;

/// The channels of all sessions that are followed.
pub(crate) struct Feed {
    channels: Mutex<HashMap<SessionId, Arc<Channel>>>,
    /// Number of channels: without any, a commit pays one load.
    open: AtomicUsize,
    followers: Arc<AtomicUsize>,
    closed: AtomicBool,
    events_max: usize,
    bytes_max: usize,
    followers_max: usize,
}

/// One of the allowed followers.
pub(crate) struct Permit(Arc<AtomicUsize>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Feed {
    /// Rings of at most `events_max` events and `bytes_max` content bytes each.
    pub(crate) fn new(events_max: usize, bytes_max: usize, followers_max: usize) -> Self {
        Self {
            channels: Mutex::default(),
            open: AtomicUsize::new(0),
            followers: Arc::default(),
            closed: AtomicBool::new(false),
            events_max,
            bytes_max,
            followers_max,
        }
    }

    /// The channel of a session, if anybody follows it.
    pub(crate) fn channel(&self, id: SessionId) -> Option<Arc<Channel>> {
        if self.open.load(Ordering::Acquire) == 0 {
            return None;
        }
        lock(&self.channels).get(&id).cloned()
    }

    /// Takes one of the allowed places.
    ///
    /// # Errors
    /// `stream.limit`; `runtime.stopped` once closed.
    pub(crate) fn permit(&self) -> Result<Permit, Rejection> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Code::Stopped.into());
        }
        let before = self.followers.fetch_add(1, Ordering::AcqRel);
        let permit = Permit(Arc::clone(&self.followers));
        if before >= self.followers_max {
            return Err(Code::StreamsFull.into());
        }
        Ok(permit)
    }

    /// The channel of a session for one more user of it; see [`Feed::leave`].
    pub(crate) fn join(&self, id: SessionId) -> Arc<Channel> {
        let mut channels = lock(&self.channels);
        let channel = channels.entry(id).or_insert_with(|| {
            self.open.fetch_add(1, Ordering::AcqRel);
            Arc::new(Channel::new(self.events_max, self.bytes_max))
        });
        channel.users.fetch_add(1, Ordering::AcqRel);
        Arc::clone(channel)
    }

    /// One user less; the last one takes the ring along.
    pub(crate) fn leave(&self, id: SessionId, channel: &Arc<Channel>) {
        let mut channels = lock(&self.channels);
        // Counted under the lock, so that nobody joins a channel that goes.
        if channel.users.fetch_sub(1, Ordering::AcqRel) == 1
            && channels.get(&id).is_some_and(|c| Arc::ptr_eq(c, channel))
        {
            channels.remove(&id);
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Open followers.
    pub(crate) fn followers(&self) -> usize {
        self.followers.load(Ordering::Acquire)
    }

    /// Ends every follower.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for channel in lock(&self.channels).values() {
            channel.close();
        }
    }

    /// Whether followers are being ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}
