//! The journal of a run chain: which steps are open, how one is named, and the row that is kept
//! of each that ended.
//!
//! What folding needs of a step is in its events' headers (their label), never in their content:
//! inputs and results are contents like any other, and may be erased.

use std::collections::BTreeMap;

use bincode::{Decode, Encode};
use serde_json::{Value, json};

use super::event::{Event, EventType};
use super::state::State;
use super::step::{StepEffects, StepPlace};
use crate::ids::{EventId, RunId};

/// What names a step in its session for good: a digest of its chain and place.
pub type StepKey = [u8; 16];

/// The open steps of a chain of runs: a run and the runs that go on from it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct Journal {
    /// Position of the `run.queued` that began the chain (0 = none yet).
    pub chain_seq: u64,
    /// Steps begun and not ended, by the position of their `step.started`.
    pub open: BTreeMap<u64, OpenStep>,
}

/// A step that was begun and did not end.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct OpenStep {
    /// Its id: that of its `step.started`.
    pub id: EventId,
    /// What names it.
    pub mark: StepMark,
    /// The run whose attempt it belongs to.
    pub run: RunId,
    /// That attempt.
    pub attempt: u32,
}

/// What every event of a step carries in its header.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct StepMark {
    /// Which step.
    pub key: StepKey,
    /// What it changes.
    pub effects: StepEffects,
    /// How often it failed so far.
    pub failures: u32,
    /// Digest of its input.
    pub digest: String,
}

/// What is kept of a step that ended, by its key. Its value is in the event.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct StepRow {
    /// Its id.
    pub id: EventId,
    /// Digest of its input.
    pub digest: String,
    /// Whether it failed, at last.
    pub failed: bool,
    /// Position of the event that ended it.
    pub done_seq: u64,
    /// What it changes.
    pub effects: StepEffects,
    /// The run that ended it.
    pub run: RunId,
    /// That run's attempt.
    pub attempt: u32,
    /// How often it failed so far.
    pub failures: u32,
}

impl Journal {
    /// What names a step of this chain. Keys and names never collide.
    pub fn key(&self, place: &StepPlace) -> StepKey {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.chain_seq.to_be_bytes());
        let mut part = |bytes: &[u8]| {
            // With its length, so that no two places read the same.
            hasher.update(&(bytes.len() as u64).to_be_bytes());
            hasher.update(bytes);
        };
        match &place.idempotency_key {
            Some(key) => {
                part(b"key");
                part(key.as_bytes());
            }
            None => {
                part(b"place");
                part(place.path.as_bytes());
                part(place.name.as_bytes());
                part(&place.occurrence.to_be_bytes());
            }
        }
        let mut key = [0; 16];
        hasher.finalize_xof().fill(&mut key);
        key
    }

    /// The open step of this key.
    pub fn open_step(&self, key: &StepKey) -> Option<&OpenStep> {
        self.open.values().find(|o| o.mark.key == *key)
    }

    /// The open step with this id.
    pub fn open_id(&self, id: EventId) -> Option<&OpenStep> {
        self.open.get(&id.seq()).filter(|o| o.id == id)
    }
}

impl StepMark {
    /// As a header's label.
    pub fn label(&self) -> String {
        let effects = match self.effects {
            StepEffects::External => 'e',
            StepEffects::Sandbox => 's',
        };
        let key = u128::from_be_bytes(self.key);
        format!("{key:032x} {effects} {} {}", self.failures, self.digest)
    }

    /// What a label says.
    pub fn parse(label: &str) -> Option<Self> {
        let mut parts = label.splitn(4, ' ');
        let key = u128::from_str_radix(parts.next()?, 16).ok()?.to_be_bytes();
        let effects = match parts.next()? {
            "e" => StepEffects::External,
            "s" => StepEffects::Sandbox,
            _ => return None,
        };
        Some(Self {
            key,
            effects,
            failures: parts.next()?.parse().ok()?,
            digest: parts.next()?.to_owned(),
        })
    }
}

/// The key of the step that this event ended.
pub fn key_of(event: &Event) -> Option<StepKey> {
    match event.header.kind {
        EventType::StepCompleted | EventType::StepFailed => {
            let label = event.header.label.as_deref()?;
            let key = u128::from_str_radix(label.get(..32)?, 16).ok()?;
            Some(key.to_be_bytes())
        }
        _ => None,
    }
}

/// The key and the row of the step that this event ended.
pub fn row_of(event: &Event) -> Option<(StepKey, StepRow)> {
    let header = &event.header;
    let failed = match header.kind {
        EventType::StepCompleted => false,
        EventType::StepFailed => true,
        _ => return None,
    };
    let mark = StepMark::parse(header.label.as_deref()?)?;
    let run = header.run?;
    let row = StepRow {
        id: header.refers?,
        digest: mark.digest,
        failed,
        done_seq: event.seq,
        effects: mark.effects,
        run: run.id,
        attempt: run.attempt,
        failures: mark.failures,
    };
    Some((mark.key, row))
}

/// Folds an event of a step.
pub(super) fn fold(state: &mut State, event: &Event) {
    let header = &event.header;
    let id = match header.kind {
        EventType::StepStarted => header.id,
        // Whatever was decided of it: from here on it is this attempt's.
        EventType::StepResolved => match header.refers {
            Some(id) => id,
            None => return,
        },
        _ => {
            if let Some(id) = header.refers {
                state.journal.open.remove(&id.seq());
            }
            return;
        }
    };
    let mark = header.label.as_deref().and_then(StepMark::parse);
    if let (Some(mark), Some(run)) = (mark, header.run) {
        let open = OpenStep {
            id,
            mark,
            run: run.id,
            attempt: run.attempt,
        };
        state.journal.open.insert(id.seq(), open);
    }
}

/// The open steps as shown.
pub(super) fn shown(state: &State) -> Vec<Value> {
    let steps = state.journal.open.values();
    steps
        .map(|o| json!({"id": o.id, "run_id": o.run, "attempt": o.attempt}))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str, name: &str, occurrence: u32, key: Option<&str>) -> StepPlace {
        StepPlace {
            path: path.to_owned(),
            name: name.to_owned(),
            occurrence,
            idempotency_key: key.map(str::to_owned),
        }
    }

    #[test]
    fn places_and_keys_never_collide() {
        let (one, two) = (
            Journal::default(),
            Journal {
                chain_seq: 7,
                ..Journal::default()
            },
        );
        let mut keys = std::collections::BTreeSet::new();
        for journal in [&one, &two] {
            for p in [
                place("", "ab", 0, None),
                place("a", "b", 0, None),
                place("ab", "", 0, None),
                place("", "ab", 1, None),
                place("", "x", 0, Some("ab")),
                place("", "x", 0, Some("place")),
            ] {
                assert!(keys.insert(journal.key(&p)), "{p:?}");
            }
        }
        let named = |name| place("", name, 0, Some("k"));
        assert_eq!(one.key(&named("a")), one.key(&named("b")));
    }

    #[test]
    fn a_mark_reads_as_it_was_written() {
        let mark = StepMark {
            key: [7; 16],
            effects: StepEffects::Sandbox,
            failures: 3,
            digest: "sha256 with spaces".to_owned(),
        };
        assert_eq!(StepMark::parse(&mark.label()), Some(mark));
        for bad in ["", "x", "00 e 1", "00 q 1 d", "zz e 1 d"] {
            assert_eq!(StepMark::parse(bad), None, "{bad}");
        }
    }
}
