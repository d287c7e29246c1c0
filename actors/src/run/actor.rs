//! Watches one claim: it keeps time, and says when one has come. It decides nothing.

use std::sync::Arc;
use std::time::Duration;

use actix::WeakAddr;
use actix::prelude::*;

use super::{Renewal, Times};
use crate::engine::directory::Slot;
use crate::engine::inner::{Inner, Intake};
use crate::session::actor::{RunDied, SessionActor};
use crate::session::command::{Command, Expiry};
use crate::session::projection::LiveClaim;

/// How long until a session that could not be told is told again.
const RETRY: Duration = Duration::from_secs(1);

/// The timekeeper of one live claim.
pub(crate) struct RunActor {
    inner: Arc<Inner>,
    slot: Arc<Slot>,
    times: Times,
    claim: LiveClaim,
    renewal: Renewal,
    session: WeakAddr<SessionActor>,
    /// Counts waits, so that only the newest one acts.
    turn: u64,
    over: bool,
}

impl RunActor {
    /// Watches `claim` from now on.
    pub(crate) fn new(
        inner: &Arc<Inner>,
        slot: &Arc<Slot>,
        claim: LiveClaim,
        renewal: Renewal,
        session: Addr<SessionActor>,
    ) -> Self {
        let clock = &inner.door.clock;
        Self {
            times: Times::new(claim, &inner.config.limits, clock.wall_ms(), clock.mono()),
            inner: Arc::clone(inner),
            slot: Arc::clone(slot),
            claim,
            renewal,
            session: session.downgrade(),
            turn: 0,
            over: false,
        }
    }

    /// Waits for what comes next. A renewal meanwhile is seen at its end.
    fn arm(&mut self, ctx: &mut Context<Self>) {
        let (at, _) = self.times.next(self.renewal.at());
        self.wait(at, ctx);
    }

    fn wait(&mut self, at: Duration, ctx: &mut Context<Self>) {
        self.turn += 1;
        let turn = self.turn;
        let wait = self.inner.timer.until(at).into_actor(self);
        ctx.spawn(wait.map(move |(), this, ctx| {
            if this.turn == turn && !this.over && this.inner.is_running() {
                this.look(ctx);
            }
        }));
    }

    fn look(&mut self, ctx: &mut Context<Self>) {
        let (at, expiry) = self.times.next(self.renewal.at());
        if at > self.inner.timer.now() {
            self.wait(at, ctx);
        } else {
            self.tell(expiry, ctx);
        }
    }

    /// Tells the session until it is heard; what was true then is for the session to judge.
    fn tell(&mut self, expiry: Expiry, ctx: &mut Context<Self>) {
        let told = self
            .inner
            .post(self.slot.id, Command::Expire(expiry), Intake::Internal);
        let told = async move {
            if let Ok(answer) = told {
                // Whatever it says: if the claim is still live afterwards, it is told again.
                let _ = answer.await;
            }
        };
        ctx.spawn(told.into_actor(self).map(|(), this, ctx| {
            if !this.over && this.inner.is_running() {
                let at = this.inner.timer.now().saturating_add(RETRY);
                this.wait(at, ctx);
            }
        }));
    }
}

impl Actor for RunActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.arm(ctx);
    }
}

impl Drop for RunActor {
    fn drop(&mut self) {
        if !self.over
            && self.inner.is_running()
            && let Some(session) = self.session.upgrade()
        {
            session.do_send(RunDied(self.claim.token));
        }
    }
}

/// The claim has moved on.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Update(pub(crate) LiveClaim);

impl Handler<Update> for RunActor {
    type Result = ();
    fn handle(&mut self, Update(claim): Update, ctx: &mut Self::Context) {
        self.times.update(claim);
        self.arm(ctx);
    }
}

/// The claim is over.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Unwatch;

impl Handler<Unwatch> for RunActor {
    type Result = ();
    fn handle(&mut self, _: Unwatch, ctx: &mut Self::Context) {
        self.over = true;
        ctx.stop();
    }
}

/// Dies, as a defect would make it.
#[cfg(test)]
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Crash;

#[cfg(test)]
impl Handler<Crash> for RunActor {
    type Result = ();
    fn handle(&mut self, _: Crash, _: &mut Self::Context) {
        panic!("asked to");
    }
}
