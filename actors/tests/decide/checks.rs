//! What must hold of every decision and of every state.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use longhaul_actors::session::checkpoints::{Checkpoints, SnapshotKey};
use longhaul_actors::session::decision::{Decision, RowOp};
use longhaul_actors::session::event::EventType;
use longhaul_actors::session::evolve::evolve;
use longhaul_actors::session::journal::StepKey;
use longhaul_actors::session::payload::{Body, WorkspaceRef};
use longhaul_actors::session::projection::Projection;
use longhaul_actors::session::state::{Now, State};
use longhaul_actors::session::status::{Status, allowed};
use longhaul_actors::session::step::OPEN_STEPS_MAX;
use longhaul_actors::{codec, rows};
use longhaul_storage::RowChange;

use crate::kit::Boxed;

impl Boxed {
    /// What must hold of every decision.
    pub(crate) fn check(&self, decision: &Decision) {
        let mut status = self.state.status;
        // A fork's past may be cut anywhere, so its first change is bound by no table.
        let mut cut = matches!(self.first(decision), Some(EventType::SessionForked));
        for (i, new) in decision.events.iter().enumerate() {
            let seq = self.state.last_seq + 1 + i as u64;
            assert_eq!(new.event.seq, seq, "positions have no gap");
            assert_eq!(
                new.event.header.id.seq(),
                seq,
                "an id leads to its position"
            );
            let again = Body::from_json(new.event.header.kind, 1, &new.content);
            if new.event.body != Body::Opaque {
                assert_eq!(
                    again.as_ref(),
                    Ok(&new.event.body),
                    "content reads as it was decided"
                );
            }
            if let Body::SessionStatus(s) = &new.event.body {
                assert_eq!(s.from, status);
                assert_ne!(s.from, s.to);
                let free = std::mem::take(&mut cut);
                assert!(free || allowed(s.from, s.to), "{:?} to {:?}", s.from, s.to);
                status = s.to;
            }
        }
    }

    /// Applies the changes of rows, which must come to what follows from the state; a new
    /// reference comes with its snapshot, and one that goes is looked at.
    pub(crate) fn apply(&mut self, before: &Projection, decision: &Decision) {
        let after = Projection::of(&self.state);
        let held: Vec<Bytes> = decision
            .rows
            .iter()
            .filter_map(|op| match op {
                RowOp::PutSnapshot(key, _) | RowOp::HoldSnapshot(key) => Some(*key),
                _ => None,
            })
            .map(rows::snapshot_holders)
            .collect();
        let changes = before.changes(&after);
        let looked_at = |holder: &[u8]| {
            let key = holder[1..17].try_into().expect("a key");
            let row = rows::collect(SnapshotKey(key));
            changes
                .iter()
                .any(|c| matches!(c, RowChange::Put(key, _) if *key == row))
        };
        for change in &changes {
            match change {
                RowChange::Put(key, _) if key[0] == rows::COLLECT => {}
                RowChange::Put(key, value) => {
                    if key[0] == rows::SNAPSHOT_HOLDER {
                        assert!(held.iter().any(|h| key.starts_with(h)), "a bare reference");
                    }
                    self.rows.insert(key.clone(), value.clone());
                }
                RowChange::Delete(key) => {
                    if key[0] == rows::SNAPSHOT_HOLDER {
                        let snapshot = SnapshotKey(key[1..17].try_into().expect("a key"));
                        let others = self.state.checkpoints.newest_first();
                        let held = others
                            .filter(|c| c.holds_bytes())
                            .any(|c| c.snapshot_key(WorkspaceRef::DEFAULT) == snapshot);
                        assert!(looked_at(key) != held, "bytes are forgotten, or looked at");
                    }
                    assert!(self.rows.remove(key).is_some(), "deletes what is not there");
                }
                RowChange::DeletePrefix(_) => panic!("only erasing deletes by prefix"),
            }
        }
        let expected: BTreeMap<Bytes, Bytes> = after.rows().into_iter().collect();
        assert_eq!(self.rows, expected, "rows follow from the state");
        let holders = |tag| self.rows.keys().filter(|k| k[0] == tag).count();
        let live = self.state.checkpoints.newest_first();
        assert_eq!(
            holders(rows::SNAPSHOT_HOLDER),
            live.filter(|c| c.holds_bytes()).count()
        );
    }

    /// What must hold of every state.
    pub(crate) fn check_state(&self) {
        let s = &self.state;
        let mut again = State::new(s.id);
        self.log.iter().for_each(|e| evolve(&mut again, &e.event));
        again.now = s.now;
        assert_eq!(&again, s, "a fold of the log gives the state");
        let bytes = codec::encode(s);
        let mut stored = s.clone();
        // Rows of their own, and what is nowhere written.
        (stored.checkpoints, stored.now) = (Checkpoints::default(), Now::default());
        assert_eq!(
            codec::decode::<State>(&bytes),
            Ok(stored),
            "a state survives its codec"
        );
        let open = &s.journal.open;
        assert!(open.len() <= OPEN_STEPS_MAX);
        assert!(open.keys().all(|seq| *seq > s.journal.chain_seq));
        let keys: BTreeSet<StepKey> = open.values().map(|o| o.mark.key).collect();
        assert_eq!(keys.len(), open.len(), "a step is open once");
        if s.run.is_none() {
            assert!(s.items.is_empty(), "a settled run leaves no open item");
        }
        let parked = matches!(s.status, Status::Waiting | Status::Paused);
        let waits = s
            .run
            .as_ref()
            .is_some_and(|r| r.waits.iter().any(|w| !w.done));
        assert_eq!(
            parked, waits,
            "{:?} parks exactly while something is waited for",
            s.status
        );
        assert!(!Projection::of(s).rows().is_empty() || s.about.is_none());
    }
}
