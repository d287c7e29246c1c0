//! Carries matches out: mints the token, asks the session, hands the claims to the poll.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::oneshot;

use super::RunnerInfo;
use super::clones::{CloneOffer, Clones};
use super::liveness::OpenPoll;
use super::matcher::{Claimed, Match, Matcher, PollId};
use crate::code::{Code, Kind, Rejection};
use crate::engine::claims::{ClaimGrant, Offered};
use crate::engine::inner::{Guard, Inner, Intake};
use crate::engine::outcome::Outcome;
use crate::ids::{ClaimToken, CloneToken, RunnerId, SessionId, TokenDigest};
use crate::session::command::{ClaimRun, Command};
use crate::session::projection::LiveRow;

/// How long a run rests whose session could not be asked.
const RETRY: Duration = Duration::from_secs(1);

/// How often a run that is kept for a live runner is looked at again.
const KEEP_ON: Duration = Duration::from_secs(5);

/// The grants of one poll, or why there are none.
pub(crate) type Claims = Result<Offered, Rejection>;

/// Matches runs with runners.
pub(crate) struct Dispatcher {
    inner: Arc<Inner>,
    matcher: Matcher,
    clones: Clones,
    polls: HashMap<PollId, Waiting>,
    armed: Option<Duration>,
    _guard: Guard,
}

struct Waiting {
    runner: RunnerId,
    max: usize,
    reply: oneshot::Sender<Claims>,
    /// Sessions asked that have not answered.
    asked: usize,
    got: Vec<ClaimGrant>,
    over: bool,
    _open: OpenPoll,
}

impl Dispatcher {
    /// Not started yet.
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        let guard = Guard::new(&inner, "the dispatcher");
        let matcher = Matcher::new(inner.config.claims_paused, inner.config.runners_max);
        Self {
            inner,
            matcher,
            clones: Clones::default(),
            polls: HashMap::new(),
            armed: None,
            _guard: guard,
        }
    }

    /// After any change: asks the sessions that were matched, and waits for the next back-off.
    fn turn(&mut self, matches: Vec<Match>, ctx: &mut Context<Self>) {
        for m in matches {
            self.ask(m, ctx);
        }
        let queue = &self.inner.queue;
        queue.depth.store(self.matcher.depth(), Ordering::Relaxed);
        queue
            .runners
            .store(self.matcher.runners(), Ordering::Relaxed);
        queue.oldest_ms.store(
            self.matcher.oldest_ms().unwrap_or(i64::MAX),
            Ordering::Relaxed,
        );
        let Some(next) = self.matcher.next_ripe() else {
            return;
        };
        if self.armed.is_some_and(|at| at <= next) {
            return;
        }
        self.armed = Some(next);
        let wait = self.inner.timer.until(next).into_actor(self);
        ctx.spawn(wait.map(move |(), this, ctx| {
            if this.armed == Some(next) {
                this.armed = None;
            }
            if this.inner.is_running() {
                let now = this.inner.timer.now();
                let mut ripe = this.matcher.mature(now);
                let liveness = &this.inner.liveness;
                let live = |r| liveness.is_live(r);
                ripe.extend(this.matcher.release(now, KEEP_ON, live));
                this.turn(ripe, ctx);
            }
        }));
    }

    fn ask(&mut self, m: Match, ctx: &mut Context<Self>) {
        if let Some(waiting) = self.polls.get_mut(&m.poll) {
            waiting.asked += 1;
        }
        let session = m.row.session;
        let token = ClaimToken {
            session,
            secret: self.inner.door.ids.secret(),
        };
        let claim = ClaimRun {
            run: m.row.run,
            runner: m.runner,
            token: token.digest(),
        };
        let asked = self
            .inner
            .post(session, Command::Claim(claim), Intake::Internal);
        let answer = async move {
            match asked {
                Ok(answer) => answer.await.unwrap_or_else(|_| Err(crate::reader::lost())),
                Err(refusal) => Err(refusal),
            }
        };
        ctx.spawn(answer.into_actor(self).map(move |answer, this, ctx| {
            this.answered(&m, token, answer, ctx);
        }));
    }

    fn answered(
        &mut self,
        m: &Match,
        token: ClaimToken,
        answer: Result<Outcome, Rejection>,
        ctx: &mut Context<Self>,
    ) {
        let (claimed, grant) = match answer {
            Ok(outcome) => {
                let grant = ClaimGrant::new(&self.inner, m.row.workspace, token, outcome);
                (Claimed::Yes, grant)
            }
            Err(why) if why.code.info().kind == Kind::Refused => (Claimed::Stale, None),
            Err(_) => (
                Claimed::Later(self.inner.timer.now().saturating_add(RETRY)),
                None,
            ),
        };
        let mut matches = self.matcher.settle(m, claimed);
        // Without a poll the grant is dropped here, which gives the claim back.
        if let Some(waiting) = self.polls.get_mut(&m.poll) {
            waiting.asked = waiting.asked.saturating_sub(1);
            waiting.got.extend(grant);
            if waiting.asked == 0 {
                matches.extend(self.finish(m.poll));
            }
        }
        self.turn(matches, ctx);
    }

    /// All sessions asked for this poll have answered: it gets its claims, or waits on.
    fn finish(&mut self, poll: PollId) -> Vec<Match> {
        let Some(waiting) = self.polls.remove(&poll) else {
            return Vec::new();
        };
        if !waiting.got.is_empty() || waiting.over {
            longhaul_storage::fault::point("claim::before_delivery");
            // Nobody there any more: the grants are dropped and so given back.
            let offered = Offered {
                claims: waiting.got,
                clones: Vec::new(),
            };
            drop(waiting.reply.send(Ok(offered)));
            return Vec::new();
        }
        match self.matcher.poll(poll, waiting.runner, waiting.max) {
            Ok(matches) => {
                self.polls.insert(poll, waiting);
                matches
            }
            Err(why) => {
                drop(waiting.reply.send(Err(why)));
                Vec::new()
            }
        }
    }

    /// The disks that this runner is to copy, if there are any.
    fn clones_for(&mut self, runner: RunnerId, max: usize) -> Option<Offered> {
        let info = self.matcher.info(runner)?;
        let clones = self.clones.take_for(info, max.max(1));
        for clone in &clones {
            self.inner.clones.given(clone.token, runner);
        }
        (!clones.is_empty()).then(|| Offered {
            claims: Vec::new(),
            clones,
        })
    }

    fn end_polls(&mut self, polls: Vec<PollId>, why: Code) {
        for poll in polls {
            if let Some(waiting) = self.polls.remove(&poll) {
                drop(waiting.reply.send(Err(why.into())));
            }
        }
    }
}

impl Actor for Dispatcher {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(self.inner.config.mailbox_len_max);
    }
}

/// A run is queued.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Offer {
    pub(crate) row: LiveRow,
    pub(crate) if_absent: bool,
}

impl Handler<Offer> for Dispatcher {
    type Result = ();
    fn handle(&mut self, offer: Offer, ctx: &mut Self::Context) {
        let now = self.inner.timer.now();
        let wall_ms = self.inner.door.clock.wall_ms();
        // Turned into monotonic time here, once, and never longer than the longest back-off.
        let longest = self.inner.config.limits.backoff_ms_max;
        let left = offer.row.not_before_ms.saturating_sub(wall_ms);
        let left = u64::try_from(left).unwrap_or(0).min(longest);
        let ready_at = now.saturating_add(Duration::from_millis(left));
        let wait_ms = self.inner.config.host_wait_s.saturating_mul(1_000);
        let waited = wall_ms.saturating_sub(offer.row.queued_at_ms);
        let waited = u64::try_from(waited).unwrap_or(0);
        let kept = Duration::from_millis(wait_ms.saturating_sub(waited));
        let kept_until = now.saturating_add(kept);
        let matches = self
            .matcher
            .offer(offer.row, ready_at, kept_until, now, offer.if_absent);
        self.turn(matches, ctx);
    }
}

/// The session's run is no longer queued.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Withdraw(pub(crate) SessionId);

impl Handler<Withdraw> for Dispatcher {
    type Result = ();
    fn handle(&mut self, Withdraw(session): Withdraw, ctx: &mut Self::Context) {
        self.matcher.withdraw(session);
        self.turn(Vec::new(), ctx);
    }
}

/// A claim is held.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Held {
    pub(crate) session: SessionId,
    pub(crate) token: TokenDigest,
    pub(crate) runner: RunnerId,
}

impl Handler<Held> for Dispatcher {
    type Result = ();
    fn handle(&mut self, held: Held, _: &mut Self::Context) {
        self.matcher.held(held.session, held.token, held.runner);
    }
}

/// A claim is over.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Freed {
    pub(crate) session: SessionId,
    pub(crate) token: TokenDigest,
}

impl Handler<Freed> for Dispatcher {
    type Result = ();
    fn handle(&mut self, freed: Freed, ctx: &mut Self::Context) {
        let matches = self.matcher.freed(freed.session, freed.token);
        self.turn(matches, ctx);
    }
}

/// A runner waits for claims.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Poll {
    pub(crate) id: PollId,
    pub(crate) runner: RunnerId,
    pub(crate) max: usize,
    /// Until when, monotonic.
    pub(crate) until: Duration,
    pub(crate) reply: oneshot::Sender<Claims>,
}

impl Handler<Poll> for Dispatcher {
    type Result = ();
    fn handle(&mut self, poll: Poll, ctx: &mut Self::Context) {
        let Poll {
            id,
            runner,
            max,
            until,
            reply,
        } = poll;
        let seen = self.inner.liveness.of(runner);
        seen.now(self.inner.timer.now());
        if self.polls.len() >= self.inner.config.polls_max {
            let why = Rejection::new(Code::Busy, "too many polls wait for claims");
            return drop(reply.send(Err(why)));
        }
        if let Some(clones) = self.clones_for(runner, max) {
            return drop(reply.send(Ok(clones)));
        }
        let matches = match self.matcher.poll(id, runner, max) {
            Ok(matches) => matches,
            Err(why) => {
                if why.code == Code::RunnerNotFound {
                    self.inner.liveness.forget(runner);
                }
                return drop(reply.send(Err(why)));
            }
        };
        let open = seen.poll();
        let got = Vec::new();
        let waiting = Waiting {
            runner,
            max,
            reply,
            asked: 0,
            got,
            over: false,
            _open: open,
        };
        self.polls.insert(id, waiting);
        self.turn(matches, ctx);
        let wait = self.inner.timer.until(until).into_actor(self);
        ctx.spawn(wait.map(move |(), this, _| {
            let Some(waiting) = this.polls.get_mut(&id) else {
                return;
            };
            waiting.over = true;
            if waiting.asked == 0 {
                this.matcher.cancel(runner, id);
                this.finish(id);
            }
        }));
    }
}

/// Whoever polled is gone.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CancelPoll(pub(crate) RunnerId, pub(crate) PollId);

impl Handler<CancelPoll> for Dispatcher {
    type Result = ();
    fn handle(&mut self, CancelPoll(runner, poll): CancelPoll, _: &mut Self::Context) {
        self.matcher.cancel(runner, poll);
        // With it go claims that were granted and not yet delivered.
        self.polls.remove(&poll);
    }
}

/// A runner is there, or has changed.
#[derive(Message)]
#[rtype(result = "Result<(), Rejection>")]
pub(crate) struct Enrol(pub(crate) RunnerInfo);

impl Handler<Enrol> for Dispatcher {
    type Result = Result<(), Rejection>;
    fn handle(&mut self, Enrol(info): Enrol, ctx: &mut Self::Context) -> Self::Result {
        let matches = self.matcher.enrol(info)?;
        self.turn(matches, ctx);
        Ok(())
    }
}

/// A runner gets no more claims (`gone`: and is unknown from now on).
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Leave {
    pub(crate) runner: RunnerId,
    pub(crate) gone: bool,
}

impl Handler<Leave> for Dispatcher {
    type Result = ();
    fn handle(&mut self, leave: Leave, ctx: &mut Self::Context) {
        if leave.gone {
            let polls = self.matcher.forget(leave.runner);
            self.end_polls(polls, Code::RunnerNotFound);
            self.inner.liveness.forget(leave.runner);
        } else {
            let polls = self.matcher.drain(leave.runner);
            self.end_polls(polls, Code::RunnerDraining);
        }
        self.turn(Vec::new(), ctx);
    }
}

/// A disk is to be copied for a fork.
#[derive(Message)]
#[rtype(result = "Result<(), Rejection>")]
pub(crate) struct OfferClone(pub(crate) CloneOffer);

impl Handler<OfferClone> for Dispatcher {
    type Result = Result<(), Rejection>;
    fn handle(&mut self, OfferClone(offer): OfferClone, _: &mut Self::Context) -> Self::Result {
        let liveness = &self.inner.liveness;
        let eligible = |r: &RunnerInfo| offer.is_for(r) && liveness.is_live(r.id);
        if !self.matcher.infos().any(eligible) {
            return Err(Code::NoEligibleRunner.into());
        }
        self.clones.add(offer)?;
        // Whoever waits already is told at once.
        let mut waiting: Vec<(PollId, RunnerId, usize)> = self
            .polls
            .iter()
            .filter(|(_, w)| w.asked == 0 && !w.over)
            .map(|(p, w)| (*p, w.runner, w.max))
            .collect();
        waiting.sort_unstable_by_key(|(p, ..)| *p);
        for (poll, runner, max) in waiting {
            if let Some(offered) = self.clones_for(runner, max) {
                self.matcher.cancel(runner, poll);
                if let Some(waiting) = self.polls.remove(&poll) {
                    drop(waiting.reply.send(Ok(offered)));
                }
                break;
            }
        }
        Ok(())
    }
}

/// Nobody waits for the copy any more.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct WithdrawClone(pub(crate) CloneToken);

impl Handler<WithdrawClone> for Dispatcher {
    type Result = ();
    fn handle(&mut self, WithdrawClone(token): WithdrawClone, _: &mut Self::Context) {
        self.clones.withdraw(token);
    }
}

/// Why a queued run is not being claimed.
#[derive(Message)]
#[rtype(result = "Option<&'static str>")]
pub(crate) struct BlockedBy(pub(crate) SessionId);

impl Handler<BlockedBy> for Dispatcher {
    type Result = Option<&'static str>;
    fn handle(&mut self, BlockedBy(session): BlockedBy, _: &mut Self::Context) -> Self::Result {
        let liveness = &self.inner.liveness;
        self.matcher
            .blocked_by(session, self.inner.timer.now(), |r| liveness.is_live(r))
    }
}

/// No more claims: every poll that waits gets its (empty) answer.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct EndPolls;

impl Handler<EndPolls> for Dispatcher {
    type Result = ();
    fn handle(&mut self, _: EndPolls, _: &mut Self::Context) {
        let waiting: Vec<(PollId, RunnerId)> = self
            .polls
            .iter()
            .filter(|(_, w)| w.asked == 0)
            .map(|(p, w)| (*p, w.runner))
            .collect();
        for (poll, runner) in waiting {
            self.matcher.cancel(runner, poll);
            if let Some(waiting) = self.polls.remove(&poll) {
                drop(waiting.reply.send(Ok(Offered::default())));
            }
        }
    }
}
