//! Contents that are never written (zero data retention): in memory from their commit until the
//! run that took them settles.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::session::state::State;

/// Most bytes kept for one session; what is older goes first, and cannot be read then.
const BYTES_MAX: usize = 64 << 20;

/// The contents of one session, by position.
#[derive(Debug, Clone, Default)]
pub(super) struct Contents {
    by_seq: BTreeMap<u64, Bytes>,
    bytes: usize,
}

impl Contents {
    pub(super) fn insert(&mut self, seq: u64, content: Bytes) {
        self.bytes += content.len();
        self.by_seq.insert(seq, content);
        while self.bytes > BYTES_MAX {
            let Some((_, oldest)) = self.by_seq.pop_first() else {
                break;
            };
            self.bytes = self.bytes.saturating_sub(oldest.len());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_seq.is_empty()
    }

    /// The first position that is there, if any is.
    pub(super) fn first(&self) -> Option<u64> {
        self.by_seq.first_key_value().map(|(seq, _)| *seq)
    }

    /// The contents of these positions.
    pub(super) fn of(&self, seqs: impl Iterator<Item = u64>) -> BTreeMap<u64, Bytes> {
        seqs.filter_map(|seq| Some((seq, self.by_seq.get(&seq)?.clone())))
            .collect()
    }

    /// Between turns only what no run has taken is kept.
    pub(super) fn settle(&mut self, state: &State) {
        if self.by_seq.is_empty() || state.run.is_some() {
            return;
        }
        let from = state.untaken.map_or(u64::MAX, |u| u.first_seq);
        self.by_seq = self.by_seq.split_off(&from);
        self.bytes = self.by_seq.values().map(Bytes::len).sum();
    }
}
