//! How old a session's contents are, and which of them have expired.

use bincode::{Decode, Encode};

use super::event::Event;
use super::payload::{Body, DeletedWhat, ErasedReason};
use super::state::State;

/// Ranges of unreadable positions that are told apart.
pub const MISSING_MAX: usize = 64;

/// What retention needs to know of a session's contents: those of people's and agents' events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct Aging {
    /// When something last happened, milliseconds. What only tidies up does not count.
    pub active_at_ms: i64,
    /// Position of the last content (0 = none yet).
    pub last_seq: u64,
    /// Contents from behind `kept_seq` up to here have expired.
    pub through_seq: u64,
    /// Contents up to here are left as they are: they may be shared with living sessions.
    pub kept_seq: u64,
    /// The event since which the next look is due.
    pub since_seq: u64,
    /// When that was, milliseconds.
    pub since_ms: i64,
}

impl Aging {
    /// Whether there are contents that may have to go one day.
    pub fn waits(&self) -> bool {
        self.last_seq > self.through_seq || self.kept_seq > 0
    }

    /// Whether the content of the event at `seq`, by people or agents, has expired.
    pub fn has_expired(&self, seq: u64) -> bool {
        self.kept_seq < seq && seq <= self.through_seq
    }
}

/// Folds what an event means to the age of contents.
pub(super) fn age(state: &mut State, event: &Event) {
    let at_ms = event.header.created_at_ms;
    let aging = &mut state.aging;
    let waited = aging.waits();
    match &event.body {
        // The conversation is whole without them.
        Body::ContentErased(b) if b.reason == ErasedReason::Pruned => return,
        Body::ContentErased(b) => {
            aging.through_seq = aging.through_seq.max(b.through_seq);
            aging.kept_seq = b.kept_seq;
            for range in &b.ranges {
                miss(&mut state.missing, *range);
            }
            return;
        }
        Body::CheckpointExpired(_) => return,
        Body::CheckpointDeleted(b) if b.what == DeletedWhat::Checkpoint => return,
        Body::Opaque => aging.last_seq = event.seq,
        Body::SessionForked(b) => {
            aging.through_seq = b.boundary_seq;
            aging.kept_seq = b.boundary_seq;
        }
        _ => {}
    }
    aging.active_at_ms = at_ms;
    // Once a turn at most: the row of a timer is not written at every append.
    let turned = matches!(event.body, Body::RunSettled(_) | Body::SessionForked(_));
    if aging.waits() && (turned || !waited) {
        aging.since_seq = event.seq;
        aging.since_ms = at_ms;
    }
}

/// Notes positions whose contents cannot be read, by range.
pub(super) fn miss(missing: &mut Vec<(u64, u64)>, (from, to): (u64, u64)) {
    let at = missing.partition_point(|(_, last)| last.saturating_add(1) < from);
    let touching = missing.iter().skip(at);
    let count = touching
        .take_while(|(first, _)| *first <= to.saturating_add(1))
        .count();
    let merged = missing
        .iter()
        .skip(at)
        .take(count)
        .fold((from, to), |(a, b), (first, last)| {
            (a.min(*first), b.max(*last))
        });
    missing.splice(at..at + count, [merged]);
    while missing.len() > MISSING_MAX {
        // The last one swallows what is between.
        if let Some((_, end)) = missing.pop()
            && let Some((_, last)) = missing.last_mut()
        {
            *last = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_ordered_and_bounded() {
        let mut missing = Vec::new();
        for range in [(5, 6), (1, 1), (9, 9), (7, 7), (2, 3)] {
            miss(&mut missing, range);
        }
        assert_eq!(missing, [(1, 3), (5, 7), (9, 9)]);
        miss(&mut missing, (4, 8));
        assert_eq!(missing, [(1, 9)]);
        miss(&mut missing, (2, 5));
        assert_eq!(missing, [(1, 9)]);
        for n in 0..100 {
            miss(&mut missing, (20 + 2 * n, 20 + 2 * n));
        }
        assert_eq!(missing.len(), MISSING_MAX);
        assert_eq!(missing.last().map(|r| r.1), Some(218));
        assert!(missing.is_sorted_by(|a, b| a.1 + 1 < b.0));
        miss(&mut missing, (11, 11));
        assert_eq!(missing.len(), MISSING_MAX);
        assert_eq!(missing.last().map(|r| r.1), Some(218));
    }
}
