//! The row of a stream: which segments it is made of. Its head is not here but in its last
//! frame, so that a plain append does not touch this row.
//!
//! ```text
//! version      u8         1
//! flags        u8         bit 0: erased
//! base hash    32 bytes   chain value at the last shared position (zero: none shared)
//! segments     u32 BE, then for each: segment 16 bytes, last position it serves u64 BE
//! prefixes     u32 BE, then for each: length u32 BE, bytes (rows removed with an erased stream,
//!              so that a purge knows which ranges must physically go)
//! ```

use crate::log::{Digest, SegmentId, SegmentRef, StreamId};

const VERSION: u8 = 1;
const ERASED: u8 = 1;

/// Most segments of one stream: the depth of forks of forks.
pub(crate) const SEGMENTS_MAX: usize = 4_096;
/// Most row prefixes removed with one erased stream.
pub(crate) const PREFIXES_MAX: usize = 1_024;
/// Most bytes of such a prefix.
pub(crate) const PREFIX_BYTES_MAX: usize = 4_096;

/// A stream's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StreamRow {
    pub(crate) erased: bool,
    /// Chain value at [`Self::base_seq`].
    pub(crate) base_hash: Digest,
    /// Oldest first; the last is the stream's own, and open.
    pub(crate) segments: Vec<SegmentRef>,
    /// Prefixes of `current` rows that went with the stream.
    pub(crate) prefixes: Vec<Vec<u8>>,
}

/// The segment that a stream writes to.
pub(crate) fn own_segment(stream: StreamId) -> SegmentId {
    SegmentId(stream.0)
}

impl StreamRow {
    /// The row of a stream that shares nothing.
    pub(crate) fn new(stream: StreamId) -> Self {
        Self::with_shared(stream, Vec::new(), crate::log::CHAIN_START)
    }

    /// The row of a stream that starts with `shared` segments, `base_hash` being the chain value
    /// at their end.
    pub(crate) fn with_shared(
        stream: StreamId,
        mut segments: Vec<SegmentRef>,
        base_hash: Digest,
    ) -> Self {
        segments.push(SegmentRef {
            id: own_segment(stream),
            through: u64::MAX,
        });
        Self {
            erased: false,
            base_hash,
            segments,
            prefixes: Vec::new(),
        }
    }

    /// The last shared position; 0 = none.
    pub(crate) fn base_seq(&self) -> u64 {
        self.shared().last().map_or(0, |s| s.through)
    }

    /// The segments of other streams.
    pub(crate) fn shared(&self) -> &[SegmentRef] {
        self.segments.split_last().map_or(&[], |(_, shared)| shared)
    }

    /// The segments that serve `1..=at`, cut there.
    pub(crate) fn cut(&self, at: u64) -> Vec<SegmentRef> {
        let mut cut = Vec::new();
        for segment in &self.segments {
            cut.push(SegmentRef {
                id: segment.id,
                through: segment.through.min(at),
            });
            if segment.through >= at {
                break;
            }
        }
        cut
    }

    /// The row's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, if self.erased { ERASED } else { 0 }];
        out.extend(self.base_hash);
        out.extend((self.segments.len() as u32).to_be_bytes());
        for segment in &self.segments {
            out.extend(segment.id.0);
            out.extend(segment.through.to_be_bytes());
        }
        out.extend((self.prefixes.len() as u32).to_be_bytes());
        for prefix in &self.prefixes {
            out.extend((prefix.len() as u32).to_be_bytes());
            out.extend(prefix);
        }
        out
    }

    /// The row of `stream`; the error says what does not fit.
    pub(crate) fn decode(stream: StreamId, bytes: &[u8]) -> Result<Self, &'static str> {
        const SHORT: &str = "the stream's row is cut short";
        let (&[version, flags], rest) = bytes.split_first_chunk::<2>().ok_or(SHORT)?;
        if version != VERSION {
            return Err("the stream's row has an unknown version");
        }
        if flags > ERASED {
            return Err("the stream's row has unknown flags");
        }
        let (base_hash, rest) = rest.split_first_chunk::<32>().ok_or(SHORT)?;
        let (count, mut rest) = take_len(rest, SEGMENTS_MAX).ok_or(SHORT)?;
        let mut segments = Vec::with_capacity(count);
        for _ in 0..count {
            let (id, tail) = rest.split_first_chunk::<16>().ok_or(SHORT)?;
            let (through, tail) = tail.split_first_chunk::<8>().ok_or(SHORT)?;
            segments.push(SegmentRef {
                id: SegmentId(*id),
                through: u64::from_be_bytes(*through),
            });
            rest = tail;
        }
        let (count, mut rest) = take_len(rest, PREFIXES_MAX).ok_or(SHORT)?;
        let mut prefixes = Vec::with_capacity(count);
        for _ in 0..count {
            let (len, tail) = take_len(rest, PREFIX_BYTES_MAX).ok_or(SHORT)?;
            let (prefix, tail) = tail.split_at_checked(len).ok_or(SHORT)?;
            prefixes.push(prefix.to_vec());
            rest = tail;
        }
        let row = Self {
            erased: flags == ERASED,
            base_hash: *base_hash,
            segments,
            prefixes,
        };
        row.check(stream, rest)?;
        Ok(row)
    }

    fn check(&self, stream: StreamId, rest: &[u8]) -> Result<(), &'static str> {
        if !rest.is_empty() {
            return Err("the stream's row has bytes after its end");
        }
        let own = SegmentRef {
            id: own_segment(stream),
            through: u64::MAX,
        };
        if self.segments.last() != Some(&own) {
            return Err("the stream's row does not end with its own segment");
        }
        if !self.segments.is_sorted_by(|a, b| a.through < b.through) {
            return Err("the stream's segments are out of order");
        }
        Ok(())
    }
}

fn take_len(bytes: &[u8], max: usize) -> Option<(usize, &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let len = u32::from_be_bytes(*len) as usize;
    (len <= max).then_some((len, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: StreamId = StreamId([5; 16]);

    fn sample() -> StreamRow {
        let shared = vec![
            SegmentRef {
                id: SegmentId([1; 16]),
                through: 10,
            },
            SegmentRef {
                id: SegmentId([2; 16]),
                through: 25,
            },
        ];
        let mut row = StreamRow::with_shared(ID, shared, [9; 32]);
        row.erased = true;
        row.prefixes = vec![b"sess/5".to_vec(), vec![0xff]];
        row
    }

    #[test]
    fn the_row_is_the_golden_bytes() {
        for (name, row) in [
            ("stream-1-new", StreamRow::new(ID)),
            ("stream-1-erased", sample()),
        ] {
            let path = format!("{}/tests/golden/{name}.bin", env!("CARGO_MANIFEST_DIR"));
            let stored = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
            assert_eq!(
                row.encode(),
                stored,
                "{name}: stored rows must stay readable for ever"
            );
            assert_eq!(StreamRow::decode(ID, &stored), Ok(row));
        }
    }

    #[test]
    fn a_cut_serves_exactly_the_positions_asked_for() {
        let row = sample();
        let at = |at| row.cut(at).iter().map(|s| s.through).collect::<Vec<_>>();
        assert_eq!(at(7), [7]);
        assert_eq!(at(10), [10]);
        assert_eq!(at(11), [10, 11]);
        assert_eq!(at(25), [10, 25]);
        assert_eq!(at(40), [10, 25, 40]);
        assert_eq!(row.base_seq(), 25);
    }

    proptest! {
        #[test]
        fn damaged_rows_are_errors(at in any::<prop::sample::Index>(), by in 1u8.., cut in any::<bool>()) {
            let mut bytes = sample().encode();
            let at = at.index(bytes.len());
            if cut {
                bytes.truncate(at);
                prop_assert!(StreamRow::decode(ID, &bytes).is_err());
            } else {
                bytes[at] ^= by;
                prop_assert!(StreamRow::decode(ID, &bytes) != Ok(sample()));
            }
        }
    }
}
