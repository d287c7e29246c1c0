//! Looks after snapshots: counts who holds them, and lets their bytes go with the last holder.
//!
//! Plans do not come from here: they are a pure function of the past ([`super::plan`]), decided
//! in the commit of the claim. Everything this actor knows is in rows; it may die at any moment.
//!
//! A snapshot goes in steps, each of which may be the last before a crash: it is doomed (a row,
//! so that nobody makes a new reference), its holders are counted again, its bytes go, its rows
//! go. Whoever made a reference before the doom was written is seen by the second count.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;
use longhaul_storage::{AppendError, Condition, Order, PageLimit, RowChange, Write};

use super::bytes::BytesGone;
use crate::code::Rejection;
use crate::codec;
use crate::engine::clones::CLONE_SEQ;
use crate::engine::inner::{Guard, Inner};
use crate::reader::Class;
use crate::rows;
use crate::session::actor::refusal;
use crate::session::checkpoints::SnapshotKey;
use crate::session::decision::SnapshotRow;

/// Fault points of checkpoints and forks, in the order they are passed.
pub const CHECKPOINT_POINTS: &[&str] = &[
    "checkpoint::before_commit",
    "checkpoint::after_commit",
    "fork::before_commit",
    "fork::after_commit",
];

/// Fault points of the end of a checkpoint's time, in the order they are passed.
pub const EXPIRY_POINTS: &[&str] = &["expiry::before_commit", "expiry::after_commit"];

/// Fault points of collection, in the order they are passed.
pub const COLLECT_POINTS: &[&str] = &[
    "collect::before_doom",
    "collect::after_doom",
    "collect::before_bytes",
    "collect::after_bytes",
    "collect::after_rows",
];

/// Rows looked at in one step.
const PAGE: PageLimit = PageLimit {
    items_max: 100,
    bytes_max: 1 << 20,
};

/// One that was slow to go is no reason to wait longer than this for the next.
const REST_MAX: Duration = Duration::from_secs(1);

/// Looks after checkpoints.
pub(crate) struct Supervisor {
    inner: Arc<Inner>,
    collecting: bool,
    again: bool,
    _guard: Guard,
}

impl Supervisor {
    /// Not started yet.
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        let guard = Guard::new(&inner, "the checkpoint supervisor");
        Self {
            inner,
            collecting: false,
            again: false,
            _guard: guard,
        }
    }

    /// Looks at everything that lost a reference, one after the other.
    fn collect(&mut self, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.collecting, true) {
            self.again = true;
            return;
        }
        let inner = Arc::clone(&self.inner);
        let work = async move { collect_all(&inner).await };
        ctx.spawn(work.into_actor(self).map(|done, this, ctx| {
            this.collecting = false;
            if let Err(why) = done {
                tracing::warn!(%why, "collecting snapshots; it is tried again");
            }
            if std::mem::take(&mut this.again) && this.inner.is_running() {
                this.collect(ctx);
            }
        }));
    }

    fn tick(&mut self, ctx: &mut Context<Self>) {
        let wait = Duration::from_secs(self.inner.config.sweep_s.max(1));
        let wait = self.inner.timer.after(wait).into_actor(self);
        ctx.spawn(wait.map(|(), this, ctx| {
            if this.inner.is_running() {
                this.collect(ctx);
                this.tick(ctx);
            }
        }));
    }
}

impl Actor for Supervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(self.inner.config.mailbox_len_max);
        let inner = Arc::clone(&self.inner);
        let work = async move { drop_dead_clones(&inner).await };
        ctx.spawn(work.into_actor(self).map(|done, this, ctx| {
            if let Err(why) = done {
                tracing::warn!(%why, "references of copies that died with their process stay");
            }
            this.collect(ctx);
        }));
        self.tick(ctx);
    }
}

/// A snapshot lost a reference.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Collect;

impl Handler<Collect> for Supervisor {
    type Result = ();
    fn handle(&mut self, _: Collect, ctx: &mut Self::Context) {
        self.collect(ctx);
    }
}

/// Removes the references of copies that were in progress when an earlier process died.
async fn drop_dead_clones(inner: &Arc<Inner>) -> Result<(), Rejection> {
    let mut after: Option<Bytes> = None;
    loop {
        let from = after.take();
        let read = inner.read(Class::Page, move |view| {
            let table = rows::table(rows::SNAPSHOT_HOLDER);
            view.rows(&table, from.as_deref(), Order::Asc, PAGE)
        });
        let page = read.await?;
        after = page.last().map(|(key, _)| key.clone());
        if page.is_empty() || !inner.is_running() {
            return Ok(());
        }
        for (holder, _) in page {
            let Some((snapshot, child, seq)) = rows::snapshot_holder_parts(&holder) else {
                continue;
            };
            if seq == CLONE_SEQ && !inner.clones.is_open(child) {
                let gone = RowChange::Delete(holder);
                let look = RowChange::Put(rows::collect(snapshot), Bytes::new());
                write(inner, vec![gone, look]).await?;
            }
        }
    }
}

async fn collect_all(inner: &Arc<Inner>) -> Result<(), Rejection> {
    let mut after: Option<Bytes> = None;
    loop {
        let from = after.take();
        let read = inner.read(Class::Page, move |view| {
            view.rows(
                &rows::table(rows::COLLECT),
                from.as_deref(),
                Order::Asc,
                PAGE,
            )
        });
        let page = read.await?;
        after = page.last().map(|(key, _)| key.clone());
        if page.is_empty() || !inner.is_running() {
            return Ok(());
        }
        for (key, _) in page {
            if let Some(id) = key.last_chunk::<16>() {
                let started = inner.timer.now();
                let done = collect_one(inner, SnapshotKey(*id)).await;
                // Many may have lost their references at once: others come in between.
                let took = inner.timer.now().saturating_sub(started);
                inner.timer.after(took.min(REST_MAX)).await;
                // One that cannot be collected does not stand in the way of the others.
                if let Err(why) = done {
                    tracing::warn!(%why, "collecting a snapshot; it is tried again");
                }
            }
        }
    }
}

async fn collect_one(inner: &Arc<Inner>, key: SnapshotKey) -> Result<(), Rejection> {
    use RowChange::{Delete, Put};
    let gone = || vec![Delete(rows::doomed(key)), Delete(rows::collect(key))];
    if let Some(holder) = holder(inner, key).await? {
        return keep(inner, gone(), holder).await;
    }
    longhaul_storage::fault::point("collect::before_doom");
    write(inner, vec![Put(rows::doomed(key), Bytes::new())]).await?;
    longhaul_storage::fault::point("collect::after_doom");
    if let Some(holder) = holder(inner, key).await? {
        return keep(inner, gone(), holder).await;
    }
    let mut rows = gone();
    rows.push(Delete(rows::snapshot(key)));
    let read = inner.read(Class::Page, move |view| view.row(&rows::snapshot(key)));
    if let Some(bytes) = read.await? {
        let row: SnapshotRow = codec::decode(&bytes).map_err(|e| {
            Rejection::new(
                crate::code::Code::Internal,
                format!("a snapshot's row does not decode: {e}"),
            )
        })?;
        longhaul_storage::fault::point("collect::before_bytes");
        match inner.bytes.delete(key, &row).await {
            BytesGone::Gone => {}
            BytesGone::Later(why) => {
                // Looked at again; until then it may be referred to as before.
                tracing::debug!(id = row.snapshot.id, why, "a snapshot's bytes stay for now");
                return write(inner, vec![Delete(rows::doomed(key))]).await;
            }
        }
        longhaul_storage::fault::point("collect::after_bytes");
        let packs = row.kept.into_iter().flat_map(|k| k.packs);
        rows.extend(packs.map(|p| Delete(rows::pack_holder(p, key))));
    }
    write(inner, rows).await?;
    longhaul_storage::fault::point("collect::after_rows");
    Ok(())
}

/// The key of one reference to the snapshot, if there is any.
async fn holder(inner: &Arc<Inner>, key: SnapshotKey) -> Result<Option<Bytes>, Rejection> {
    let one = PageLimit {
        items_max: 1,
        ..PAGE
    };
    let read = inner.read(Class::Page, move |view| {
        view.rows(&rows::snapshot_holders(key), None, Order::Asc, one)
    });
    Ok(read.await?.into_iter().next().map(|(key, _)| key))
}

/// Takes a snapshot off the list while this holder is there. Should it have gone meanwhile, the
/// snapshot stays on the list, for its commit put it there: it is looked at again.
async fn keep(inner: &Arc<Inner>, rows: Vec<RowChange>, holder: Bytes) -> Result<(), Rejection> {
    let write = Write {
        rows,
        conditions: vec![(holder, Condition::Present)],
        ..Write::default()
    };
    match inner.log.append(write).await {
        Ok(_) | Err(AppendError::Condition { .. }) => Ok(()),
        Err(e) => Err(refusal(inner, &e)),
    }
}

async fn write(inner: &Arc<Inner>, rows: Vec<RowChange>) -> Result<(), Rejection> {
    let write = Write {
        rows,
        ..Write::default()
    };
    let done = inner.log.append(write).await;
    done.map(drop).map_err(|e| refusal(inner, &e))
}
