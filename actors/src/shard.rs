//! One per arbiter: starts session actors when there is a command for them, and lets idle ones
//! go. Passivation is a handshake: the session asks, the shard takes it out of the directory
//! (only if nothing is queued), then tells it to stop.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use actix::prelude::*;

use crate::code::{Code, Rejection};
use crate::engine::directory::Slot;
use crate::engine::inner::{Guard, Inner};
use crate::ids::SessionId;
use crate::reader::Class;
use crate::session::actor::{Recovered, Rest, SessionActor, Stop, recover};

/// The starter of one arbiter's sessions.
pub(crate) struct Shard {
    inner: Arc<Inner>,
    /// Sessions that were started here and have not left.
    live: HashMap<SessionId, Arc<Slot>>,
    recovering: usize,
    waiting: VecDeque<Arc<Slot>>,
    _guard: Guard,
}

impl Shard {
    /// Not started yet.
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        let guard = Guard::new(&inner, "a shard");
        let (live, waiting) = (HashMap::new(), VecDeque::new());
        Self {
            inner,
            live,
            recovering: 0,
            waiting,
            _guard: guard,
        }
    }

    fn next(&mut self, ctx: &mut Context<Self>) {
        while self.recovering < self.inner.config.recoveries_max {
            let Some(slot) = self.waiting.pop_front() else {
                return;
            };
            self.recovering += 1;
            let id = slot.id;
            let read = self
                .inner
                .read(Class::Session, move |view| recover(view, id));
            ctx.spawn(read.into_actor(self).map(move |read, this, ctx| {
                this.recovering -= 1;
                this.inner.starting.fetch_sub(1, Ordering::Relaxed);
                this.recovered(&slot, read);
                this.next(ctx);
            }));
        }
    }

    fn recovered(&mut self, slot: &Arc<Slot>, read: Result<Recovered, Rejection>) {
        match read {
            Ok(from) => {
                let addr = SessionActor::spawn(Arc::clone(&self.inner), Arc::clone(slot), from);
                if slot.settle(addr.clone()).is_some() {
                    self.live.insert(slot.id, Arc::clone(slot));
                } else {
                    addr.do_send(Stop);
                }
            }
            Err(why) => {
                let queued = slot.close();
                self.inner.directory.remove(slot);
                queued
                    .into_iter()
                    .for_each(|q| q.reply.send(Err(why.clone())));
            }
        }
    }
}

impl Actor for Shard {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(self.inner.config.mailbox_len_max);
    }
}

/// Start an actor for this session.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Start(pub(crate) Arc<Slot>);

impl Handler<Start> for Shard {
    type Result = ();
    fn handle(&mut self, Start(slot): Start, ctx: &mut Self::Context) {
        if self.waiting.len() >= self.inner.config.mailbox_len_max {
            let why = Rejection::new(Code::Busy, "too many sessions are starting");
            self.inner.unload(&slot, &why);
            return;
        }
        self.inner.starting.fetch_add(1, Ordering::Relaxed);
        self.waiting.push_back(slot);
        self.next(ctx);
    }
}

/// A session asks to leave memory.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Passivate {
    pub(crate) slot: Arc<Slot>,
    pub(crate) generation: u64,
}

impl Handler<Passivate> for Shard {
    type Result = ();
    fn handle(&mut self, ask: Passivate, _: &mut Self::Context) {
        if let Some(addr) = ask.slot.retire(ask.generation) {
            self.inner.directory.remove(&ask.slot);
            self.live.remove(&ask.slot.id);
            addr.do_send(Stop);
        }
    }
}

/// Ask sessions that did nothing for long to leave.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct SweepIdle;

impl Handler<SweepIdle> for Shard {
    type Result = ();
    fn handle(&mut self, _: SweepIdle, _: &mut Self::Context) {
        let idle_ms = self.inner.config.idle_passivate_s.saturating_mul(1_000);
        let before = self.inner.mono_ms().saturating_sub(idle_ms);
        // Those that left on their own account (erased, unreadable) are gone from the directory.
        self.live.retain(|_, slot| !slot.is_closed());
        for slot in self.live.values().filter(|s| s.used_ms() <= before) {
            if let Some(addr) = slot.addr() {
                addr.do_send(Rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_id_has_one_shard() {
        let id = SessionId([9; 16]);
        let spread = crate::engine::directory::spread;
        assert_eq!(spread(id) % 4, spread(id) % 4);
        let hit: std::collections::HashSet<usize> = (0..64u128)
            .map(|n| spread(SessionId((n << 40).to_be_bytes())) % 4)
            .collect();
        assert_eq!(hit.len(), 4, "ids spread over every arbiter");
    }
}
