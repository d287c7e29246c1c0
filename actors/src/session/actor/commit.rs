//! A write under way, and what follows from its outcome.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;
use longhaul_storage::{AppendError, Appended, PageLimit, Pending, StreamId};

use super::SessionActor;
use super::batch::{keeps, lets_go};
use super::lookup::envelopes;
use super::steps::results;
use crate::code::{Code, Rejection};
use crate::engine::directory::Queued;
use crate::engine::inner::Inner;
use crate::engine::outcome::{Inputs, Outcome};
use crate::ids::SessionId;
use crate::limits::{PAGE_BYTES_MAX, PAGE_EVENTS_MAX};
use crate::reader::Class;
use crate::session::command::Command;
use crate::session::decision::{Granted, Reply};
use crate::session::event::NewEvent;
use crate::session::evolve::evolve;
use crate::session::operation::Begun;
use crate::session::projection::Projection;
use crate::session::state::State;
use crate::session::step::{StepAnswer, StepsReply};

/// How often a batch that met another writer is decided anew.
const TRIES_MAX: u8 = 3;
/// Between two attempts to read a session while the log is being reopened.
pub(super) const RELOAD_WAIT: Duration = Duration::from_millis(50);

/// The outcome of one decision.
pub(super) struct Verdict {
    /// Whether nothing unsynced stands before it: it need not wait for the write.
    pub(super) early: bool,
    pub(super) result: Result<Decided, Rejection>,
}

/// An accepted command's answer.
pub(super) struct Decided {
    pub(super) reply: Reply,
    pub(super) granted: Option<Box<Granted>>,
    pub(super) begun: Option<Box<Begun>>,
    pub(super) again_ms: Option<i64>,
    pub(super) refused: Option<Rejection>,
}

impl Verdict {
    pub(super) fn granted(&self) -> bool {
        self.result.as_ref().is_ok_and(|d| d.granted.is_some())
    }
}

/// A write under way.
pub(super) struct Flight {
    pub(super) waiting: Vec<(Queued, Verdict)>,
    pub(super) events: Vec<NewEvent>,
    pub(super) projection: Option<Projection>,
    pub(super) snapshot: bool,
    pub(super) erased: bool,
    /// Whether contents went.
    pub(super) expired: bool,
    pub(super) claims: bool,
    /// The state after the first write of a fork.
    pub(super) forked: Option<Box<State>>,
    pub(super) started: Duration,
}

/// Waits for a write on behalf of its session. Should the session's actor die meanwhile, the
/// write's answers are still given.
pub(super) struct FlightFuture {
    open: Option<(Pending, Flight)>,
    inner: Arc<Inner>,
    session: SessionId,
}

impl FlightFuture {
    pub(super) fn new(
        pending: Pending,
        flight: Flight,
        inner: &Arc<Inner>,
        session: SessionId,
    ) -> Self {
        Self {
            open: Some((pending, flight)),
            inner: Arc::clone(inner),
            session,
        }
    }
}

impl ActorFuture<SessionActor> for FlightFuture {
    type Output = ();

    fn poll(
        mut self: Pin<&mut Self>,
        actor: &mut SessionActor,
        ctx: &mut Context<SessionActor>,
        task: &mut TaskContext<'_>,
    ) -> Poll<()> {
        let Some((pending, _)) = &mut self.open else {
            return Poll::Ready(());
        };
        let Poll::Ready(result) = Pin::new(pending).poll(task) else {
            return Poll::Pending;
        };
        if let Some((_, flight)) = self.open.take() {
            actor.landed(result, flight, ctx);
        }
        Poll::Ready(())
    }
}

impl Drop for FlightFuture {
    fn drop(&mut self) {
        let Some((pending, flight)) = self.open.take() else {
            return;
        };
        let (inner, session) = (Arc::clone(&self.inner), self.session);
        let finish = async move {
            let result = pending.await;
            for (queued, verdict) in flight.waiting {
                match &result {
                    Ok(_) => answer(&inner, session, queued, verdict, BTreeMap::new()),
                    Err(e) => queued.reply.send(Err(refusal(&inner, e))),
                }
            }
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(finish));
        }
    }
}

impl SessionActor {
    /// The write has an outcome.
    fn landed(
        &mut self,
        result: Result<Appended, AppendError>,
        flight: Flight,
        ctx: &mut Context<Self>,
    ) {
        let _span = self.span().entered();
        match result {
            Ok(appended) => self.committed(appended, flight, ctx),
            Err(AppendError::Conflict { .. } | AppendError::Condition { .. })
                if self.tries < TRIES_MAX =>
            {
                self.tries += 1;
                self.batch = flight
                    .waiting
                    .into_iter()
                    .map(|(queued, _)| queued)
                    .collect();
                self.reload(ctx);
            }
            Err(error) => self.failed(&error, flight, ctx),
        }
    }

    fn committed(&mut self, appended: Appended, flight: Flight, ctx: &mut Context<Self>) {
        if flight.forked.is_some() {
            longhaul_storage::fault::point("fork::after_commit");
        } else if keeps(&flight.events) {
            longhaul_storage::fault::point("checkpoint::after_commit");
        } else if lets_go(&flight.events) {
            longhaul_storage::fault::point("expiry::after_commit");
        }
        match flight.forked {
            Some(state) => self.committed = *state,
            None => {
                for new in &flight.events {
                    evolve(&mut self.committed, &new.event);
                }
            }
        }
        self.last_hash = appended.last_hash;
        if flight.snapshot {
            self.snapshot_seq = self.committed.last_seq;
        }
        if !self.proven {
            self.proven = true;
            self.slot.recovered();
        }
        self.instant = self.inner.timer.now();
        self.inner
            .metrics
            .appended(self.instant.saturating_sub(flight.started));
        if flight.claims {
            longhaul_storage::fault::point("claim::after_commit");
            // Told before the answer goes out, so that nobody hears of its end first.
            self.follow_projection(ctx);
            longhaul_storage::fault::point("claim::before_reply");
        }
        self.contents.settle(&self.committed);
        if let Some(first) = self.contents.first() {
            // Bounded memory may have let the oldest go.
            let from = self.committed.now.contents_from.max(first);
            self.committed.now.contents_from = from;
            self.working.now.contents_from = from;
        }
        let moved = flight.projection.is_some();
        for (queued, verdict) in flight.waiting {
            self.answer(queued, verdict);
        }
        self.count(&flight.events);
        self.publish(flight.events, flight.erased);
        if flight.erased {
            self.erased(ctx);
            return;
        }
        if flight.expired {
            self.purge_soon();
        }
        if moved {
            self.follow_projection(ctx);
        }
        self.busy = false;
        self.pump(ctx);
    }

    fn failed(&mut self, error: &AppendError, flight: Flight, ctx: &mut Context<Self>) {
        let why = refusal(&self.inner, error);
        for (queued, _) in flight.waiting {
            self.inner.metrics.refused(&why);
            queued.reply.send(Err(why.clone()));
        }
        match error {
            // Nothing was written, so the log is where it was.
            AppendError::Busy
            | AppendError::Full { .. }
            | AppendError::Closed
            | AppendError::Unreadable(_)
            | AppendError::Malformed(_) => {
                self.working.clone_from(&self.committed);
                self.numbers = None;
                self.busy = false;
                self.pump(ctx);
            }
            AppendError::Erased => self.leave(&Code::SessionErased.into(), ctx),
            AppendError::Conflict { .. }
            | AppendError::Condition { .. }
            | AppendError::Unknown { .. } => self.reload(ctx),
        }
    }

    /// Answers one command; an accepted call of the live claim renews its lease.
    pub(super) fn answer(&self, queued: Queued, verdict: Verdict) {
        if verdict.result.is_ok()
            && let Command::Attempt(call) = &queued.command
        {
            self.renew(call.token, self.instant);
        }
        let reply = verdict.result.as_ref().ok().map(|d| &d.reply);
        let contents = match reply {
            Some(reply) if !self.contents.is_empty() => {
                let inputs = reply.inputs.iter().flatten().map(|a| a.seq);
                let steps = reply.steps.iter().flat_map(|s| &s.answers);
                self.contents
                    .of(inputs.chain(steps.filter_map(StepAnswer::value_seq)))
            }
            _ => BTreeMap::new(),
        };
        answer(&self.inner, self.slot.id, queued, verdict, contents);
    }
}

/// Gives an answer; one that carries inputs reads them first, off this thread.
/// `contents`: those of the inputs that are in memory only.
fn answer(
    inner: &Arc<Inner>,
    session: SessionId,
    queued: Queued,
    verdict: Verdict,
    contents: BTreeMap<u64, Bytes>,
) {
    let decided = match verdict.result {
        Ok(decided) => decided,
        Err(refusal) => {
            inner.metrics.refused(&refusal);
            queued.reply.send(Err(refusal));
            return;
        }
    };
    inner.metrics.accepted();
    let Decided {
        reply,
        granted,
        begun,
        again_ms,
        refused,
    } = decided;
    if let Some(refusal) = refused {
        queued.reply.send(Err(refusal));
        return;
    }
    let Reply {
        status,
        body,
        inputs,
        steps,
    } = reply;
    if let Some(steps) = steps {
        return answer_steps(inner, session, queued, steps, contents);
    }
    let outcome = move |inputs| Outcome {
        status,
        body: Bytes::from(body),
        granted,
        begun,
        again_ms,
        inputs,
        steps: None,
    };
    let answers = match inputs {
        None => return queued.reply.send(Ok(outcome(None))),
        Some(none) if none.is_empty() => {
            return queued.reply.send(Ok(outcome(Some(Inputs::default()))));
        }
        Some(some) => some,
    };
    let read = inner.read(Class::Session, move |view| {
        let limit = PageLimit {
            items_max: PAGE_EVENTS_MAX,
            bytes_max: PAGE_BYTES_MAX,
        };
        envelopes(view, StreamId(session.0), &answers, limit, &contents)
    });
    // Not bound to an actor: the answer is given whoever dies meanwhile.
    tokio::spawn(async move {
        let inputs = read
            .await
            .map(|(events, next_after)| Inputs { events, next_after });
        queued
            .reply
            .send(inputs.map(|inputs| outcome(Some(inputs))));
    });
}

/// Gives the answer to operations on the journal; one that carries values reads them first.
fn answer_steps(
    inner: &Arc<Inner>,
    session: SessionId,
    queued: Queued,
    reply: StepsReply,
    contents: BTreeMap<u64, Bytes>,
) {
    let outcome = |many, results| Outcome {
        status: 200,
        body: Bytes::new(),
        granted: None,
        begun: None,
        again_ms: None,
        inputs: None,
        steps: Some((many, results)),
    };
    let plain: Option<Vec<_>> = reply.answers.iter().map(StepAnswer::plain).collect();
    if let Some(results) = plain {
        return queued.reply.send(Ok(outcome(reply.many, results)));
    }
    let many = reply.many;
    let read = inner.read(Class::Session, move |view| {
        results(view, StreamId(session.0), &reply, &contents)
    });
    // Not bound to an actor: the answer is given whoever dies meanwhile.
    tokio::spawn(async move {
        let results = read.await.and_then(|results| results);
        queued.reply.send(results.map(|r| outcome(many, r)));
    });
}

/// What a failed append means to those who wait for it.
pub(crate) fn refusal(inner: &Inner, error: &AppendError) -> Rejection {
    match error {
        AppendError::Busy => Rejection::new(Code::Busy, "the log's write queue is full"),
        AppendError::Full { .. } => Code::StorageFull.into(),
        AppendError::Erased => Code::SessionErased.into(),
        AppendError::Closed if inner.log_ended() || !inner.is_running() => inner.stopped(),
        AppendError::Closed => Code::StorageUnavailable.into(),
        AppendError::Unknown { cause } => {
            tracing::error!(cause, "the outcome of an append is not known");
            Code::OutcomeUnknown.into()
        }
        AppendError::Conflict { .. } | AppendError::Condition { .. } => {
            Rejection::new(Code::Busy, "others kept writing to the same place")
        }
        AppendError::Unreadable(cause) => {
            tracing::error!(%cause, "an append could not be checked");
            Code::StorageUnavailable.into()
        }
        AppendError::Malformed(what) => {
            tracing::error!(what, "a malformed write");
            Rejection::new(Code::Internal, "the server made a malformed write")
        }
    }
}
