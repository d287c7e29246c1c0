//! Keys of every table: hand-laid, fixed width, big-endian, so that byte order is the order of
//! positions at every size. `current` keys are the caller's own bytes.

use crate::log::{SegmentId, StreamId};

/// Length of a `log` or `state` key.
pub(crate) const POSITION_LEN: usize = 24;
/// Length of a `history` key.
pub(crate) const HISTORY_LEN: usize = 41;
/// Length of a `refs` key.
pub(crate) const REF_LEN: usize = 32;

/// `log` and `state`: segment, position.
pub(crate) fn position(segment: SegmentId, seq: u64) -> [u8; POSITION_LEN] {
    let mut key = [0; POSITION_LEN];
    let (head, tail) = key.split_at_mut(16);
    head.copy_from_slice(&segment.0);
    tail.copy_from_slice(&seq.to_be_bytes());
    key
}

/// The segment and position of a `log` or `state` key.
pub(crate) fn parse_position(key: &[u8]) -> Option<(SegmentId, u64)> {
    if key.len() != POSITION_LEN {
        return None;
    }
    let (segment, seq) = key.split_first_chunk::<16>()?;
    Some((
        SegmentId(*segment),
        u64::from_be_bytes(seq.try_into().ok()?),
    ))
}

/// `history`: segment, kind, natural key, position.
pub(crate) fn history(
    segment: SegmentId,
    kind: u8,
    natural: [u8; 16],
    seq: u64,
) -> [u8; HISTORY_LEN] {
    let mut key = [0; HISTORY_LEN];
    let (head, rest) = key.split_at_mut(16);
    head.copy_from_slice(&segment.0);
    let (tag, rest) = rest.split_at_mut(1);
    tag.copy_from_slice(&[kind]);
    let (middle, tail) = rest.split_at_mut(16);
    middle.copy_from_slice(&natural);
    tail.copy_from_slice(&seq.to_be_bytes());
    key
}

/// The segment, kind, natural key and position of a `history` key.
pub(crate) fn parse_history(key: &[u8]) -> Option<(SegmentId, u8, [u8; 16], u64)> {
    if key.len() != HISTORY_LEN {
        return None;
    }
    let (segment, rest) = key.split_first_chunk::<16>()?;
    let (kind, rest) = rest.split_first()?;
    let (natural, seq) = rest.split_first_chunk::<16>()?;
    let seq = u64::from_be_bytes(seq.try_into().ok()?);
    Some((SegmentId(*segment), *kind, *natural, seq))
}

/// `refs`: a segment, and a stream other than its owner that is made of it.
pub(crate) fn reference(segment: SegmentId, stream: StreamId) -> [u8; REF_LEN] {
    let mut key = [0; REF_LEN];
    let (head, tail) = key.split_at_mut(16);
    head.copy_from_slice(&segment.0);
    tail.copy_from_slice(&stream.0);
    key
}

/// The least key that starts with no `prefix` and sorts after all that do; `None` = there is
/// none (the prefix is empty or all 0xff).
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let keep = prefix.iter().rposition(|b| *b != u8::MAX)?;
    let mut end = prefix.get(..=keep)?.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    Some(end)
}

/// The next natural key; `None` after the greatest.
pub(crate) fn natural_after(natural: [u8; 16]) -> Option<[u8; 16]> {
    u128::from_be_bytes(natural)
        .checked_add(1)
        .map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: SegmentId = SegmentId([7; 16]);

    #[test]
    fn positions_sort_as_numbers_where_their_width_changes() {
        for edge in [9_999, 99_999, (1 << 31) - 2, (1 << 32) - 2, u64::MAX - 4] {
            let keys: Vec<_> = (0..5).map(|i| position(S, edge + i)).collect();
            assert!(keys.is_sorted_by(|a, b| a < b), "at {edge}");
            let rows: Vec<_> = (0..5).map(|i| history(S, 1, [2; 16], edge + i)).collect();
            assert!(rows.is_sorted_by(|a, b| a < b), "at {edge}");
            assert_eq!(parse_position(&keys[4]), Some((S, edge + 4)));
        }
    }

    #[test]
    fn a_prefix_ends_after_all_its_keys() {
        assert_eq!(prefix_end(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(prefix_end(&[1, 255, 255]), Some(vec![2]));
        assert_eq!(prefix_end(&[255, 255]), None);
        assert_eq!(prefix_end(b""), None);
    }

    proptest! {
        #[test]
        fn keys_order_and_come_back(
            a in any::<([u8; 16], u8, [u8; 16], u64)>(),
            b in any::<([u8; 16], u8, [u8; 16], u64)>(),
        ) {
            let key = |t: ([u8; 16], u8, [u8; 16], u64)| history(SegmentId(t.0), t.1, t.2, t.3);
            prop_assert_eq!(key(a).cmp(&key(b)), a.cmp(&b));
            prop_assert_eq!(parse_history(&key(a)), Some((SegmentId(a.0), a.1, a.2, a.3)));
            let p = position(SegmentId(a.0), a.3);
            prop_assert_eq!(parse_position(&p), Some((SegmentId(a.0), a.3)));
            prop_assert_eq!(p.cmp(&position(SegmentId(b.0), b.3)), (a.0, a.3).cmp(&(b.0, b.3)));
        }

        #[test]
        fn no_key_of_a_prefix_reaches_its_end(
            prefix in prop::collection::vec(any::<u8>(), 1..6),
            tail in prop::collection::vec(any::<u8>(), 0..6),
        ) {
            if let Some(end) = prefix_end(&prefix) {
                let mut key = prefix.clone();
                key.extend(tail);
                prop_assert!(key < end && prefix < end);
            }
        }
    }
}
