//! Compares every stored row that follows from a session's log with a fold of that log.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bytes::Bytes;
use longhaul_actors::ids::SessionId;
use longhaul_actors::rows;
use longhaul_actors::session::event::NewEvent;
use longhaul_actors::session::evolve::evolve;
use longhaul_actors::session::history::history_rows;
use longhaul_actors::session::projection::{Projection, SessionRow};
use longhaul_actors::session::state::State;
use longhaul_actors::session::stored::event_of;
use longhaul_storage::{
    HistoryRow, Log, Options, Order, PageLimit, ReadError, RocksLog, StreamId, View, read,
};

const ALL: PageLimit = PageLimit {
    items_max: 100_000,
    bytes_max: 1 << 30,
};
/// Kinds of history rows.
const HISTORY: &[u8] = &[
    rows::HISTORY_RUN,
    rows::HISTORY_INPUT,
    rows::HISTORY_TAKEN,
    rows::HISTORY_ITEM,
    rows::HISTORY_STEP,
];
/// Tables whose every row follows from a session's state.
const DERIVED: &[u8] = &[
    rows::SESSION,
    rows::LIVE,
    rows::TIMER,
    rows::CHECKPOINT,
    rows::CHECKPOINT_ID,
    rows::SNAPSHOT_HOLDER,
    rows::MEMBER,
];

/// Opens the folder, which no server has open, and compares.
pub(super) fn compare(data: &Path, what: &str) {
    let log = RocksLog::open(data, Options::default()).unwrap();
    read(&*log, |view| {
        let mut wanted = BTreeMap::new();
        let sessions = stored(view, rows::SESSION)?;
        assert!(!sessions.is_empty(), "{what}: no session is left");
        for value in sessions.values() {
            let row: SessionRow = longhaul_actors::codec::decode(value).unwrap();
            wanted.extend(session(view, row.id, what)?);
        }
        let mut found = BTreeMap::new();
        for table in DERIVED {
            found.extend(stored(view, *table)?);
        }
        let keys = |m: &BTreeMap<Bytes, Bytes>| m.keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(keys(&found), keys(&wanted), "{what}: keys of derived rows");
        assert_eq!(found, wanted, "{what}: derived rows");
        Ok(())
    })
    .unwrap();
    log.close();
}

fn stored(view: &dyn View, table: u8) -> Result<BTreeMap<Bytes, Bytes>, ReadError> {
    Ok(view
        .rows(&rows::table(table), None, Order::Asc, ALL)?
        .into_iter()
        .collect())
}

/// Folds one log, compares its history rows and cached state, and gives its derived rows.
fn session(view: &dyn View, id: SessionId, what: &str) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
    let stream = StreamId(id.0);
    let head = view.head(stream)?.unwrap();
    let mut state = State::new(id);
    let mut history: BTreeMap<(u8, [u8; 16]), HistoryRow> = BTreeMap::new();
    let mut states = BTreeMap::new();
    while state.last_seq < head.last_seq {
        let page = view.records(stream, state.last_seq, head.last_seq, Order::Asc, ALL)?;
        assert!(!page.is_empty(), "{what}: {id} ends before its head");
        for record in page {
            assert_eq!(record.seq, state.last_seq + 1, "{what}: {id}");
            let event = event_of(&record).unwrap();
            evolve(&mut state, &event);
            assert_eq!(state.last_seq, record.seq, "{what}: {id} does not move on");
            let new = NewEvent {
                event,
                content: record.content.clone(),
            };
            for row in history_rows(&state, &new) {
                history.insert((row.kind, row.key), row);
            }
            states.insert(record.seq, state.clone());
        }
    }
    for kind in HISTORY {
        let found = view.history(stream, *kind, None, head.last_seq, Order::Asc, ALL)?;
        let wanted: Vec<HistoryRow> = history
            .range((*kind, [0; 16])..=(*kind, [0xff; 16]))
            .map(|(_, r)| r.clone())
            .collect();
        assert_eq!(found, wanted, "{what}: {id}, history rows of kind {kind}");
    }
    if let Some((at, bytes)) = view.state(stream, head.last_seq)? {
        let mut cached: State = longhaul_actors::codec::decode(&bytes).unwrap();
        // Checkpoints are rows of their own, not part of a stored state.
        if let Some(folded) = states.get(&at) {
            cached.checkpoints = folded.checkpoints.clone();
        }
        assert_eq!(
            Some(&cached),
            states.get(&at),
            "{what}: {id}, cached state at {at}"
        );
    }
    Ok(Projection::of(&state).rows())
}
