//! What follows a commit: followers are told, and hints go out to look at rows that are there.

use std::sync::atomic::Ordering;
use std::time::Duration;

use actix::prelude::*;

use super::{SessionActor, Watched};
use crate::checkpoint::supervisor::Collect;
use crate::code::Code;
use crate::dispatch::actor::{Freed, Held, Offer, Withdraw};
use crate::engine::sweep::PurgeSoon;
use crate::ids::TokenDigest;
use crate::run::Renewal;
use crate::run::actor::{RunActor, Unwatch, Update};
use crate::session::event::NewEvent;
use crate::session::payload::Body;
use crate::session::projection::{Effect, LiveClaim, Projection};
use crate::session::state::State;
use crate::session::status::Status;
use crate::timer::durable::{ClearTimer, SetTimer};

/// The status a session ended with.
pub(super) fn ended(state: &State) -> Option<Status> {
    (state.about.is_some() && state.status.is_terminal()).then_some(state.status)
}

impl SessionActor {
    /// Brings everything outside in line with the committed state.
    pub(super) fn follow_projection(&mut self, ctx: &mut Context<Self>) {
        let after = Projection::of(&self.committed);
        let effects = self.projection.effects(&after);
        self.projection = after;
        for effect in effects {
            self.perform(effect, ctx);
        }
    }

    /// A session has one run and few timers, and one batch under way: what it sends here is
    /// bounded by that, so none of it is dropped for a full mailbox.
    fn perform(&mut self, effect: Effect, ctx: &mut Context<Self>) {
        let Some(parts) = self.inner.parts() else {
            return;
        };
        let session = self.slot.id;
        match effect {
            Effect::Offer(row) => parts.dispatcher.do_send(Offer {
                row,
                if_absent: false,
            }),
            Effect::Withdraw(session) => parts.dispatcher.do_send(Withdraw(session)),
            Effect::Watch(claim) => {
                let held = Held {
                    session,
                    token: claim.token,
                    runner: claim.runner,
                };
                parts.dispatcher.do_send(held);
                self.watch(claim, ctx);
            }
            Effect::Unwatch(claim) => {
                parts.dispatcher.do_send(Freed {
                    session,
                    token: claim.token,
                });
                self.unwatch(claim.token);
            }
            // The row is found by the next sweep, should the word get lost.
            Effect::Collect => drop(parts.checkpoints.try_send(Collect)),
            Effect::SetTimer(row) => parts.durable.do_send(SetTimer(row)),
            Effect::ClearTimer(row) => parts.durable.do_send(ClearTimer(row)),
        }
    }

    /// Watches a claim; one already watched has moved on and gets a fresh lease.
    fn watch(&mut self, claim: LiveClaim, ctx: &mut Context<Self>) {
        if let Some(watched) = self
            .watched
            .as_mut()
            .filter(|w| w.claim.token == claim.token)
        {
            watched.claim = claim;
            watched.lease.renew(self.instant);
            watched.addr.do_send(Update(claim));
            return;
        }
        if let Some(old) = self.watched.take() {
            old.addr.do_send(Unwatch);
        } else {
            self.inner.claims_live.fetch_add(1, Ordering::Relaxed);
        }
        let lease = Renewal::new(self.instant);
        let seen = self.inner.liveness.of(claim.runner);
        let run = RunActor::new(&self.inner, &self.slot, claim, lease.clone(), ctx.address());
        self.watched = Some(Watched {
            claim,
            addr: run.start(),
            lease,
            seen,
        });
    }

    /// Replaces a run actor that died.
    pub(super) fn rewatch(&mut self, ctx: &mut Context<Self>) {
        let Some(old) = self.watched.as_mut() else {
            return;
        };
        let (claim, lease) = (old.claim, old.lease.clone());
        old.addr = RunActor::new(&self.inner, &self.slot, claim, lease, ctx.address()).start();
    }

    fn unwatch(&mut self, token: TokenDigest) {
        if self.watched.as_ref().is_none_or(|w| w.claim.token != token) {
            return;
        }
        if let Some(watched) = self.watched.take() {
            watched.addr.do_send(Unwatch);
            self.inner.claims_live.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A sign of life of whoever holds the live claim.
    pub(super) fn renew(&self, token: TokenDigest, now: Duration) {
        if let Some(watched) = self.watched.as_ref().filter(|w| w.claim.token == token) {
            watched.lease.renew(now);
            watched.seen.now(now);
        }
    }

    /// Tells followers, if there are any.
    pub(super) fn publish(&self, events: Vec<NewEvent>, erased: bool) {
        self.slot.worked(self.inner.mono_ms());
        let Some(channel) = self.inner.feed.channel(self.slot.id) else {
            return;
        };
        if erased {
            channel.erase();
        } else {
            channel.publish(events, ended(&self.committed));
        }
    }

    /// Counts what is worth counting. Most events are not.
    pub(super) fn count(&self, events: &[NewEvent]) {
        for new in events {
            match &new.event.body {
                Body::RunClaimed(_) => self.inner.metrics.claims.increment(1),
                Body::RunSettled(b) => self.inner.metrics.settled(b.outcome),
                Body::RunRequeued(b) => self.inner.metrics.requeued(b.reason),
                _ => {}
            }
        }
    }

    /// Bytes are to be removed. Should the word get lost, its row is found by the next sweep.
    pub(super) fn purge_soon(&self) {
        if let Some(parts) = self.inner.parts() {
            let _ = parts.sweeper.try_send(PurgeSoon);
        }
    }

    /// The session is gone for good: hints, and out of memory.
    pub(super) fn erased(&mut self, ctx: &mut Context<Self>) {
        let effects = self.projection.effects(&Projection::default());
        self.projection = Projection::default();
        for effect in effects {
            self.perform(effect, ctx);
        }
        self.purge_soon();
        self.leave(&Code::SessionErased.into(), ctx);
    }
}
