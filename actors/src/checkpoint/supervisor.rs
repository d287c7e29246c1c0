//! The place of checkpoints: it will take them, keep them within their limits and delete them.
//!
//! Plans do not come from here: they are a pure function of the past ([`super::plan`]), decided
//! in the commit of the claim. This actor does what needs time and disks. So far no sandbox makes
//! snapshots, so what reaches it is the word that a turn came to rest, and it keeps count.

use std::sync::Arc;

use actix::prelude::*;

use crate::engine::inner::{Guard, Inner};
use crate::ids::SessionId;

/// Looks after checkpoints.
pub(crate) struct Supervisor {
    inner: Arc<Inner>,
    rested: u64,
    _guard: Guard,
}

impl Supervisor {
    /// Not started yet.
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        let guard = Guard::new(&inner, "the checkpoint supervisor");
        Self {
            inner,
            rested: 0,
            _guard: guard,
        }
    }
}

impl Actor for Supervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(self.inner.config.mailbox_len_max);
    }
}

/// A turn settled or parked: the place where a checkpoint is taken.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Rested {
    pub(crate) session: SessionId,
    pub(crate) boundary_seq: u64,
}

impl Handler<Rested> for Supervisor {
    type Result = ();
    fn handle(&mut self, rested: Rested, _: &mut Self::Context) {
        self.rested += 1;
        let Rested {
            session,
            boundary_seq,
        } = rested;
        tracing::debug!(%session, boundary_seq, count = self.rested, "a turn came to rest");
    }
}
