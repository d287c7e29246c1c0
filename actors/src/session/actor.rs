//! The shell around one session: it alone writes the session's log.
//!
//! While no append is under way it takes everything queued, decides it, and appends it as one
//! write; answers wait for the sync. Nothing lives only in its mailbox: commands wait in the
//! [`Slot`], the mailbox carries a [`Wake`].

mod aged;
mod batch;
mod commit;
mod contents;
mod effects;
mod lookup;
mod recover;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use longhaul_storage::Digest;
use tokio::sync::oneshot;

pub(crate) use commit::refusal;
pub(crate) use recover::{Recovered, checkpoints, recover, state_at};

use contents::Contents;

use crate::code::Rejection;
use crate::engine::directory::{Queued, Slot};
use crate::engine::inner::Inner;
use crate::ids::{ClaimToken, TokenDigest};
use crate::reader::Class;
use crate::run::actor::RunActor;
use crate::session::projection::{LiveClaim, Projection};
use crate::session::state::State;
use crate::session::viewer::Viewer;
use crate::shard::Passivate;

/// Commands taken at once.
const TAKE_MAX: usize = 256;
/// Messages in the mailbox: words to look, and questions about the state.
const MAILBOX_LEN_MAX: usize = 1_024;

/// One session in memory.
pub(crate) struct SessionActor {
    inner: Arc<Inner>,
    slot: Arc<Slot>,
    generation: u64,
    /// What readers see.
    committed: State,
    /// `committed` with the batch in progress.
    working: State,
    last_hash: Digest,
    snapshot_seq: u64,
    /// Of `committed`.
    projection: Projection,
    /// Whether a batch is being looked up, decided, written or read again.
    busy: bool,
    /// When the batch in progress was taken or became durable: what it says of time.
    instant: Duration,
    /// Commands taken and not yet part of a write.
    batch: Vec<Queued>,
    /// Which of them is being decided.
    deciding: Option<usize>,
    /// How often the batch met another writer.
    tries: u8,
    /// The last call number of the live claim, where known.
    numbers: Option<(TokenDigest, u64)>,
    /// Ended steps of the live chain, where known.
    steps: steps::KnownSteps,
    watched: Option<Watched>,
    /// Contents that are never written, while a run may need them.
    contents: Contents,
    /// Whether a commit has shown that this session works.
    proven: bool,
    /// Whether it leaves on purpose.
    leaving: bool,
}

/// The run actor of the live claim, and what keeps it quiet.
struct Watched {
    claim: LiveClaim,
    addr: Addr<RunActor>,
    lease: crate::run::Renewal,
    seen: Arc<crate::dispatch::liveness::Seen>,
}

impl SessionActor {
    /// Starts an actor on this arbiter.
    pub(crate) fn spawn(inner: Arc<Inner>, slot: Arc<Slot>, from: Recovered) -> Addr<Self> {
        let generation = slot.next_generation();
        slot.worked(inner.mono_ms());
        let inner_now = inner.timer.now();
        let mut first = from.state;
        // What was not written is gone with whoever had it in memory.
        if first.keeps_nothing() {
            first.now.contents_from = first.last_seq + 1;
        }
        Self::create(move |ctx| {
            ctx.set_mailbox_capacity(MAILBOX_LEN_MAX);
            Self {
                inner,
                slot,
                generation,
                working: first.clone(),
                committed: first,
                last_hash: from.last_hash,
                snapshot_seq: from.snapshot_seq,
                projection: Projection::default(),
                busy: false,
                instant: inner_now,
                batch: Vec::new(),
                deciding: None,
                tries: 0,
                numbers: None,
                steps: steps::KnownSteps::default(),
                watched: None,
                contents: Contents::default(),
                proven: false,
                leaving: false,
            }
        })
    }

    /// What is said while this session decides and commits carries its id and its run's.
    fn span(&self) -> tracing::Span {
        let run = self
            .committed
            .run
            .as_ref()
            .map(|r| tracing::field::display(r.id));
        tracing::debug_span!("session", id = %self.slot.id, run)
    }

    /// Takes what is queued, if nothing is under way.
    fn pump(&mut self, ctx: &mut Context<Self>) {
        if self.busy || self.leaving {
            return;
        }
        let mut batch = std::mem::take(&mut self.batch);
        self.slot.take(TAKE_MAX, &mut batch);
        self.batch = batch;
        if self.batch.is_empty() {
            self.rest();
        } else {
            self.busy = true;
            self.tries = 0;
            self.instant = self.inner.timer.now();
            self.prepare(ctx);
        }
    }

    /// Nothing to do: a session that does not exist leaves at once.
    fn rest(&mut self) {
        if self.committed.about.is_none() {
            self.ask_to_leave();
        }
    }

    fn ask_to_leave(&self) {
        if let Some(shard) = self.inner.shard(self.slot.id) {
            // A full mailbox costs nothing: it is asked again at the next sweep.
            let _ = shard.try_send(Passivate {
                slot: Arc::clone(&self.slot),
                generation: self.generation,
            });
        }
    }

    /// Reads the session again after a write whose outcome was not the expected one, then goes
    /// on with the batch (if there still is one).
    fn reload(&mut self, ctx: &mut Context<Self>) {
        let id = self.slot.id;
        let read = self
            .inner
            .read(Class::Session, move |view| recover(view, id));
        ctx.spawn(read.into_actor(self).map(|read, this, ctx| match read {
            Ok(recovered) => this.reloaded(recovered, ctx),
            Err(why) => this.unreadable(why, ctx),
        }));
    }

    fn reloaded(&mut self, from: Recovered, ctx: &mut Context<Self>) {
        let now = self.committed.now;
        self.committed = from.state;
        self.committed.now = now;
        self.working.clone_from(&self.committed);
        self.last_hash = from.last_hash;
        self.snapshot_seq = from.snapshot_seq;
        self.numbers = None;
        self.steps.forget();
        if let Some(channel) = self.inner.feed.channel(self.slot.id) {
            channel.advance(self.committed.last_seq, effects::ended(&self.committed));
        }
        self.follow_projection(ctx);
        if self.batch.is_empty() {
            self.busy = false;
            self.pump(ctx);
        } else {
            self.prepare(ctx);
        }
    }

    /// The log does not give the session now: later, if it may then; never, if it is gone.
    fn unreadable(&mut self, why: Rejection, ctx: &mut Context<Self>) {
        let later = why.code.is_retryable() && self.inner.is_running();
        let mut refused = std::mem::take(&mut self.batch);
        self.slot.take(usize::MAX, &mut refused);
        refused
            .into_iter()
            .for_each(|q| q.reply.send(Err(why.clone())));
        if !later {
            self.leave(&why, ctx);
            return;
        }
        let wait = self.inner.timer.after(commit::RELOAD_WAIT).into_actor(self);
        ctx.spawn(wait.map(|(), this, ctx| this.reload(ctx)));
    }

    /// Out of memory at once; whatever waits is refused.
    fn leave(&mut self, why: &Rejection, ctx: &mut Context<Self>) {
        self.leaving = true;
        self.inner.unload(&self.slot, why);
        ctx.stop();
    }
}

impl Actor for SessionActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.follow_projection(ctx);
    }

    fn stopping(&mut self, _: &mut Self::Context) -> Running {
        if let Some(watched) = self.watched.take() {
            watched.addr.do_send(crate::run::actor::Unwatch);
            self.inner
                .claims_live
                .fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        }
        Running::Stop
    }
}

impl Drop for SessionActor {
    /// An actor that dies puts back what it had taken; only the command it died of is lost.
    fn drop(&mut self) {
        if self.leaving {
            return;
        }
        if !self.inner.is_running() {
            let why = self.inner.stopped();
            self.batch
                .drain(..)
                .for_each(|q| q.reply.send(Err(why.clone())));
            return;
        }
        let died_of = self.deciding;
        let back = std::mem::take(&mut self.batch).into_iter().enumerate();
        let back: Vec<Queued> = back
            .filter(|(i, _)| Some(*i) != died_of)
            .map(|(_, q)| q)
            .collect();
        self.slot.give_back(back.into_iter());
        tracing::error!(session = %self.slot.id, "a session actor died; starting another");
        if self
            .slot
            .died(self.generation, self.committed.claim().is_some())
        {
            self.inner.start(&self.slot);
        } else if self.slot.close_if_absent() {
            self.inner.directory.remove(&self.slot);
        }
    }
}

/// There is something to take.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Wake;

impl Handler<Wake> for SessionActor {
    type Result = ();
    fn handle(&mut self, _: Wake, ctx: &mut Self::Context) {
        self.pump(ctx);
    }
}

/// Leave, unless there is something to do.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Rest;

impl Handler<Rest> for SessionActor {
    type Result = ();
    fn handle(&mut self, _: Rest, _: &mut Self::Context) {
        // A live claim is watched from here; a follower's ring is filled from here.
        let now = &self.committed.now;
        let needed = self.watched.is_some()
            || self.inner.feed.channel(self.slot.id).is_some()
            || !self.contents.is_empty()
            || now.operation.is_some()
            || now.attached.is_some()
            || now
                .unread
                .is_some_and(|u| self.committed.run.as_ref().is_some_and(|r| r.id == u.run));
        if !self.busy && !needed {
            self.ask_to_leave();
        }
    }
}

/// The session is out of the directory: go.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Stop;

impl Handler<Stop> for SessionActor {
    type Result = ();
    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        self.leaving = true;
        ctx.stop();
    }
}

/// The committed state. `None` = not for this viewer.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Read {
    pub(crate) viewer: Viewer,
    pub(crate) reply: oneshot::Sender<Option<Box<State>>>,
}

impl Handler<Read> for SessionActor {
    type Result = ();
    fn handle(&mut self, ask: Read, _: &mut Self::Context) {
        let about = self.committed.about.as_ref();
        let here = about.is_some_and(|a| ask.viewer.sees(a.workspace, &a.principal));
        // Whoever asked may be gone.
        let _ = ask
            .reply
            .send(here.then(|| Box::new(self.committed.clone())));
    }
}

/// Whether a call of `inputs` under this claim has anything to bring now. Renews the lease: an
/// open poll is a sign of life.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Peek {
    pub(crate) token: ClaimToken,
    pub(crate) reply: oneshot::Sender<bool>,
}

impl Handler<Peek> for SessionActor {
    type Result = ();
    fn handle(&mut self, ask: Peek, _: &mut Self::Context) {
        let token = ask.token.digest();
        let live = self.committed.claim().is_some_and(|c| c.token == token);
        if live {
            self.renew(token, self.inner.timer.now());
        }
        let run = self.committed.run.as_ref();
        let waits = run.is_some_and(|r| r.phase == crate::session::state::Phase::Waiting);
        let some = run.is_some_and(|r| !r.answers.is_empty()) || self.committed.untaken_count() > 0;
        let _ = ask.reply.send(!live || (some && !waits));
    }
}

/// A run actor died.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct RunDied(pub(crate) TokenDigest);

impl Handler<RunDied> for SessionActor {
    type Result = ();
    fn handle(&mut self, RunDied(token): RunDied, ctx: &mut Self::Context) {
        if self
            .watched
            .as_ref()
            .is_some_and(|w| w.claim.token == token)
        {
            tracing::error!(session = %self.slot.id, "a run actor died; starting another");
            self.rewatch(ctx);
        }
    }
}

/// Dies, as a defect would make it.
#[cfg(any(test, feature = "failpoints"))]
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Crash;

#[cfg(any(test, feature = "failpoints"))]
impl Handler<Crash> for SessionActor {
    type Result = ();
    #[expect(clippy::panic, reason = "that is what it is for")]
    fn handle(&mut self, _: Crash, _: &mut Self::Context) {
        panic!("asked to");
    }
}

/// The run actor dies, as a defect would make it.
#[cfg(test)]
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CrashRun;

#[cfg(test)]
impl Handler<CrashRun> for SessionActor {
    type Result = ();
    fn handle(&mut self, _: CrashRun, _: &mut Self::Context) {
        if let Some(watched) = &self.watched {
            watched.addr.do_send(crate::run::actor::Crash);
        }
    }
}
