//! A session read from the log: the newest cached fold and the events after it.

use bytes::Bytes;
use longhaul_storage::{Digest, Order, PageLimit, ReadError, StreamId, View};

use crate::codec;
use crate::ids::SessionId;
use crate::rows;
use crate::session::checkpoints::{Checkpoint, Checkpoints};
use crate::session::evolve::evolve;
use crate::session::state::State;
use crate::session::stored::event_of;

/// Events folded at once: contents are dropped page by page.
const PAGE: PageLimit = PageLimit {
    items_max: 256,
    bytes_max: 4 << 20,
};

/// A session as committed.
pub(crate) struct Recovered {
    /// The fold of its log.
    pub(crate) state: State,
    /// The chain value at its end.
    pub(crate) last_hash: Digest,
    /// Position of the fold it started from.
    pub(crate) snapshot_seq: u64,
}

/// Reads a session. One that never existed is the state before the first event.
///
/// # Errors
/// [`ReadError::Erased`]; damage; what the engine says.
pub(crate) fn recover(view: &dyn View, session: SessionId) -> Result<Recovered, ReadError> {
    let stream = StreamId(session.0);
    let Some(head) = view.head(stream)? else {
        let state = State::new(session);
        return Ok(Recovered {
            state,
            last_hash: longhaul_storage::CHAIN_START,
            snapshot_seq: 0,
        });
    };
    let mut state = snapshot(view, session, head.last_seq)?;
    let snapshot_seq = state.last_seq;
    fold_to(view, session, &mut state, head.last_seq)?;
    // The rows are those of this very view, so they stand where the fold stands.
    state.checkpoints = checkpoints(view, session, head.last_seq)?;
    state.now.changed = view.row(&rows::changed(session))?.is_some();
    Ok(Recovered {
        state,
        last_hash: head.last_hash,
        snapshot_seq,
    })
}

/// The state of a session at a position, its own end apart: no checkpoints, which a fork does
/// not inherit.
///
/// # Errors
/// As [`recover`].
pub(crate) fn state_at(view: &dyn View, session: SessionId, seq: u64) -> Result<State, ReadError> {
    let mut state = snapshot(view, session, seq)?;
    fold_to(view, session, &mut state, seq)?;
    Ok(state)
}

/// The session's listed checkpoints.
pub(crate) fn checkpoints(
    view: &dyn View,
    session: SessionId,
    last_seq: u64,
) -> Result<Checkpoints, ReadError> {
    let mut out = Checkpoints::default();
    let prefix = rows::checkpoints(session);
    let mut after: Option<Bytes> = None;
    loop {
        let page = view.rows(&prefix, after.as_deref(), Order::Asc, PAGE)?;
        let full = page.len() == PAGE.items_max;
        for (key, value) in page {
            let row: Checkpoint = codec::decode(&value).map_err(|e| ReadError::Damaged {
                stream: StreamId(session.0),
                seq: last_seq,
                reason: format!("a checkpoint's row: {e}"),
            })?;
            out.0.insert(row.seq, row.into());
            after = Some(key);
        }
        if !full {
            return Ok(out);
        }
    }
}

/// Folds the events up to and with `seq` into `state`.
fn fold_to(
    view: &dyn View,
    session: SessionId,
    state: &mut State,
    seq: u64,
) -> Result<(), ReadError> {
    let stream = StreamId(session.0);
    while state.last_seq < seq {
        let after = state.last_seq;
        let page = view.records(stream, after, seq, Order::Asc, PAGE)?;
        let damaged = |seq, reason: String| ReadError::Damaged {
            stream,
            seq,
            reason,
        };
        if page.is_empty() {
            return Err(damaged(after + 1, "no record".to_owned()));
        }
        for record in &page {
            if record.seq != state.last_seq + 1 {
                return Err(damaged(
                    state.last_seq + 1,
                    format!("found {} there", record.seq),
                ));
            }
            let event = event_of(record).map_err(|e| damaged(record.seq, e.to_string()))?;
            evolve(state, &event);
        }
    }
    Ok(())
}

/// The newest usable cached fold. It is a cache: one that does not decode costs time only.
fn snapshot(view: &dyn View, session: SessionId, last_seq: u64) -> Result<State, ReadError> {
    let found = view.state(StreamId(session.0), last_seq)?;
    let state = found.and_then(|(seq, bytes)| match codec::decode::<State>(&bytes) {
        // One of the shared history was folded under the name of an ancestor.
        Ok(state) if state.last_seq == seq => Some(State {
            id: session,
            ..state
        }),
        Ok(_) => None,
        Err(e) => {
            tracing::warn!(%session, seq, error = %e, "a cached state is unusable");
            None
        }
    });
    Ok(state.unwrap_or_else(|| State::new(session)))
}
