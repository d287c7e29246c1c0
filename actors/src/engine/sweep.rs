//! Looks through rows for work: at start-up, and again and again, so that a lost hint costs time
//! only. Every step is a bounded page, and acts on what the session says then.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;
use longhaul_storage::{
    AppendError, Condition, Order, PageLimit, ReadError, RowChange, StreamId, Write,
};

use super::inner::{Guard, Inner};
use crate::code::Rejection;
use crate::codec;
use crate::dispatch::actor::{Held, Offer};
use crate::ids::SessionId;
use crate::reader::Class;
use crate::rows;
use crate::session::facts::{Created, Receipt};
use crate::session::projection::LiveRow;
use crate::session::state::Phase;
use crate::shard::SweepIdle;
use crate::timer::durable::ScanTimers;

/// Fault points of start-up and of the work behind, in the order they are passed.
pub const START_POINTS: &[&str] = &[
    "start::before_scan",
    "start::after_page",
    "start::after_scan",
    "purge::before",
    "purge::after",
    "receipts::before_delete",
];

/// The tables of answers to Idempotency-Keys.
const RECEIPTS: [u8; 3] = [rows::RECEIPT, rows::CREATED, rows::SESSION_RECEIPT];

/// How long a scan rests when too many sessions are starting.
const REST: Duration = Duration::from_millis(1);

/// Runs the looks.
pub(crate) struct Sweeper {
    inner: Arc<Inner>,
    purging: bool,
    purge_again: bool,
    receipts_after: [Option<Bytes>; RECEIPTS.len()],
    _guard: Guard,
}

impl Sweeper {
    /// Not started yet.
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        let guard = Guard::new(&inner, "the sweeper");
        Self {
            inner,
            purging: false,
            purge_again: false,
            receipts_after: Default::default(),
            _guard: guard,
        }
    }

    fn tick(&mut self, ctx: &mut Context<Self>) {
        let wait = Duration::from_secs(self.inner.config.sweep_s.max(1));
        let wait = self.inner.timer.after(wait).into_actor(self);
        ctx.spawn(wait.map(|(), this, ctx| {
            if !this.inner.is_running() {
                return;
            }
            this.inner.stats();
            if let Some(parts) = this.inner.parts() {
                // Full mailboxes are asked again at the next turn.
                parts
                    .shards
                    .iter()
                    .for_each(|s| drop(s.try_send(SweepIdle)));
                drop(parts.durable.try_send(ScanTimers));
            }
            this.purge(ctx);
            let inner = Arc::clone(&this.inner);
            let after = std::mem::take(&mut this.receipts_after);
            let work = async move {
                // Expected failures (a full disk, a busy pool) end this turn; the next one goes on.
                if let Err(why) = live_runs(&inner).await {
                    tracing::debug!(%why, "a look at live runs ended early");
                }
                let mut next = <[Option<Bytes>; RECEIPTS.len()]>::default();
                for ((tag, after), next) in RECEIPTS.into_iter().zip(after).zip(&mut next) {
                    *next = old_receipts(&inner, tag, after)
                        .await
                        .unwrap_or_else(|why| {
                            tracing::debug!(%why, "a look at old receipts ended early");
                            None
                        });
                }
                next
            };
            ctx.spawn(work.into_actor(this).map(|after, this, ctx| {
                this.receipts_after = after;
                this.tick(ctx);
            }));
        }));
    }

    /// Purges erased sessions, one after the other.
    fn purge(&mut self, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.purging, true) {
            self.purge_again = true;
            return;
        }
        let inner = Arc::clone(&self.inner);
        let work = async move { purge_all(&inner).await };
        ctx.spawn(work.into_actor(self).map(|done, this, ctx| {
            this.purging = false;
            if let Err(why) = done {
                tracing::warn!(%why, "purging erased sessions; it is tried again");
            }
            if std::mem::take(&mut this.purge_again) && this.inner.is_running() {
                this.purge(ctx);
            }
        }));
    }
}

impl Actor for Sweeper {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let inner = Arc::clone(&self.inner);
        let scan = async move { live_runs(&inner).await };
        ctx.spawn(scan.into_actor(self).map(|scanned, _, _| {
            longhaul_storage::fault::point("start::after_scan");
            match scanned {
                Ok(found) => tracing::info!(found, "live runs found"),
                Err(why) => tracing::error!(%why, "looking for live runs; it is tried again"),
            }
        }));
        self.purge(ctx);
        self.tick(ctx);
    }
}

/// A session was erased.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct PurgeSoon;

impl Handler<PurgeSoon> for Sweeper {
    type Result = ();
    fn handle(&mut self, _: PurgeSoon, ctx: &mut Self::Context) {
        self.purge(ctx);
    }
}

async fn page(
    inner: &Arc<Inner>,
    tag: u8,
    after: Option<Bytes>,
) -> Result<Vec<(Bytes, Bytes)>, Rejection> {
    let items_max = inner.config.sweep_rows_max.max(1);
    let read = inner.read(Class::Page, move |view| {
        let limit = PageLimit {
            items_max,
            bytes_max: 4 << 20,
        };
        view.rows(&rows::table(tag), after.as_deref(), Order::Asc, limit)
    });
    read.await
}

/// Offers queued runs that the dispatcher does not know, and wakes sessions whose claim nobody
/// watches. Rows may be out of date by now: the session decides.
async fn live_runs(inner: &Arc<Inner>) -> Result<usize, Rejection> {
    longhaul_storage::fault::point("start::before_scan");
    let (mut after, mut found) = (None, 0);
    loop {
        let rows = page(inner, rows::LIVE, after.take()).await?;
        let full = rows.len() >= inner.config.sweep_rows_max.max(1);
        after = rows.last().map(|(key, _)| key.clone());
        for (_, value) in rows {
            match codec::decode::<LiveRow>(&value) {
                Ok(row) => look_at(inner, row).await,
                Err(e) => tracing::error!(error = %e, "a live run's row does not decode"),
            }
            found += 1;
        }
        longhaul_storage::fault::point("start::after_page");
        if !full || !inner.is_running() {
            return Ok(found);
        }
    }
}

async fn look_at(inner: &Arc<Inner>, row: LiveRow) {
    let Some(parts) = inner.parts() else { return };
    if row.phase == Phase::Queued {
        // Awaits room in the mailbox: a long queue does not crowd out callers.
        let _ = parts
            .dispatcher
            .send(Offer {
                row,
                if_absent: true,
            })
            .await;
    } else if let Some(claim) = row.claim {
        let session = row.session;
        if inner
            .directory
            .find(session)
            .is_some_and(|slot| slot.addr().is_some())
        {
            return;
        }
        let held = Held {
            session,
            token: claim.token,
            runner: claim.runner,
        };
        let _ = parts.dispatcher.send(held).await;
        // Far below what may start at once: a caller's session does not wait behind all of these.
        while inner.starting() >= (inner.config.recoveries_max / 4).max(1) && inner.is_running() {
            inner.timer.after(REST).await;
        }
        inner.wake(session);
    }
}

/// Removes the bytes of erased sessions and of expired contents, then the word that they are there.
async fn purge_all(inner: &Arc<Inner>) -> Result<(), Rejection> {
    let mut after = None;
    loop {
        let rows = page(inner, rows::PURGE, after.take()).await?;
        after = rows.last().map(|(key, _)| key.clone());
        if rows.is_empty() {
            return Ok(());
        }
        for (key, value) in rows {
            let Some(id) = key.last_chunk::<16>().map(|id| SessionId(*id)) else {
                continue;
            };
            longhaul_storage::fault::point("purge::before");
            let purged = inner
                .reader
                .start(Class::Page, move |log| log.purge(StreamId(id.0)))?;
            match purged.await.map_err(|_| crate::reader::lost())? {
                Ok(()) | Err(ReadError::NotFound) => {}
                Err(e) => return Err(inner.refuse(&e)),
            }
            longhaul_storage::fault::point("purge::after");
            let done = Write {
                conditions: vec![(key.clone(), Condition::Unchanged(value))],
                rows: vec![RowChange::Delete(key)],
                ..Write::default()
            };
            match inner.log.append(done).await {
                Ok(_) => tracing::info!(session = %id, "purged"),
                // More was let go meanwhile: that is another purge.
                Err(AppendError::Condition { .. }) => {}
                Err(e) => return Err(crate::session::actor::refusal(inner, &e)),
            }
        }
    }
}

/// Deletes answers that are older than they are kept; one page, gives back where to go on.
async fn old_receipts(
    inner: &Arc<Inner>,
    tag: u8,
    after: Option<Bytes>,
) -> Result<Option<Bytes>, Rejection> {
    let found = page(inner, tag, after).await?;
    let full = found.len() >= inner.config.sweep_rows_max.max(1);
    let next = found.last().map(|(key, _)| key.clone()).filter(|_| full);
    let keep_ms =
        i64::try_from(inner.config.receipt_ttl_s.saturating_mul(1_000)).unwrap_or(i64::MAX);
    let before = inner.door.clock.wall_ms().saturating_sub(keep_ms);
    let mut write = Write::default();
    for (key, value) in found {
        let at_ms = if tag == rows::CREATED {
            codec::decode::<Created>(&value).map(|c| c.at_ms)
        } else {
            codec::decode::<Receipt>(&value).map(|r| r.at_ms)
        };
        if at_ms.is_ok_and(|at_ms| at_ms < before) {
            // An expired key may be used anew meanwhile: then its new answer stays.
            write
                .conditions
                .push((key.clone(), Condition::Unchanged(value)));
            write.rows.push(RowChange::Delete(key));
        }
    }
    if !write.rows.is_empty() {
        longhaul_storage::fault::point("receipts::before_delete");
        append(inner, write).await?;
    }
    Ok(next)
}

async fn append(inner: &Arc<Inner>, write: Write) -> Result<(), Rejection> {
    let done = inner.log.append(write).await;
    done.map(drop)
        .map_err(|e| crate::session::actor::refusal(inner, &e))
}
