//! A session read from the log: the newest cached fold and the events after it.

use longhaul_storage::{Digest, Order, PageLimit, ReadError, StreamId, View};

use crate::codec;
use crate::ids::SessionId;
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
    while state.last_seq < head.last_seq {
        let after = state.last_seq;
        let page = view.records(stream, after, head.last_seq, Order::Asc, PAGE)?;
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
            evolve(&mut state, &event);
        }
    }
    Ok(Recovered {
        state,
        last_hash: head.last_hash,
        snapshot_seq,
    })
}

/// The newest usable cached fold. It is a cache: one that does not decode costs time only.
fn snapshot(view: &dyn View, session: SessionId, last_seq: u64) -> Result<State, ReadError> {
    let found = view.state(StreamId(session.0), last_seq)?;
    let state = found.and_then(|(seq, bytes)| match codec::decode::<State>(&bytes) {
        Ok(state) if state.last_seq == seq && state.id == session => Some(state),
        Ok(_) => None,
        Err(e) => {
            tracing::warn!(%session, seq, error = %e, "a cached state is unusable");
            None
        }
    });
    Ok(state.unwrap_or_else(|| State::new(session)))
}
