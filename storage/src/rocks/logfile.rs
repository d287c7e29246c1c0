//! The engine's log files (write-ahead log and manifest), read without the engine: to tell
//! damage from a torn tail before the engine opens, and to name what damage hit.
//!
//! ```text
//! blocks of 32 KiB; in each, records that do not cross it:
//! masked CRC-32C of type and bytes u32 LE, length u16 LE, type u8, bytes
//! types: 1 full, 2 first, 3 middle, 4 last; others are the engine's notes to itself
//! ```

use std::io::Read;

use super::crc;

const BLOCK_LEN: usize = 32 * 1024;
const HEADER_LEN: usize = 7;

/// What a log file consists of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A whole record.
    Record(Vec<u8>),
    /// A record that does not verify; its bytes as far as they can be told.
    Damaged {
        /// Where in the file.
        offset: u64,
        /// What does not fit.
        reason: &'static str,
        /// What is there, with the damage in it.
        bytes: Vec<u8>,
    },
    /// The file ends within a record, as after a crash in the middle of a write.
    Torn {
        /// Where in the file.
        offset: u64,
    },
}

/// One stored piece of a record.
struct Piece<'a> {
    kind: u8,
    bytes: &'a [u8],
    intact: bool,
    /// Where the next one starts.
    end: usize,
}

/// Gives all parts of a log file, in order.
pub(crate) fn scan(mut file: impl Read, visit: &mut dyn FnMut(Part)) -> std::io::Result<()> {
    let mut record = Assembly::default();
    let mut offset = 0;
    loop {
        let mut block = Vec::with_capacity(BLOCK_LEN);
        (&mut file).take(BLOCK_LEN as u64).read_to_end(&mut block)?;
        let last = block.len() < BLOCK_LEN;
        scan_block(&block, offset, last, &mut record, visit);
        if last {
            break;
        }
        offset += BLOCK_LEN as u64;
    }
    if let Some(start) = record.start {
        match record.damage {
            Some(_) => record.finish(visit),
            None => visit(Part::Torn { offset: start }),
        }
    }
    Ok(())
}

fn scan_block(
    block: &[u8],
    offset: u64,
    last: bool,
    record: &mut Assembly,
    visit: &mut dyn FnMut(Part),
) {
    let mut at = 0;
    // What is left of a block is too short for a header: nothing.
    while at + HEADER_LEN <= block.len() {
        let here = offset + at as u64;
        match piece(block, at) {
            Some(piece) if piece.kind == 0 && piece.bytes.is_empty() => {
                // Room that was never written; unless there is something behind it after all.
                let Some(next) = resync(block, at + 1) else {
                    break;
                };
                record.damaged(here, "a record's header is zero", &[]);
                at = next;
            }
            Some(piece) if piece.intact => {
                record.add(here, &piece, visit);
                at = piece.end;
            }
            Some(piece) => {
                let next = following(block, &piece).or_else(|| resync(block, at + 1));
                let end = next.unwrap_or(block.len());
                let bytes = block.get(at + HEADER_LEN..end).unwrap_or_default();
                record.damaged(here, "the checksum of a record does not match", bytes);
                at = end;
            }
            None => {
                let next = resync(block, at + 1);
                if last && next.is_none() && !whole_with_bad_length(block, at) {
                    record.torn(here, visit);
                    break;
                }
                let end = next.unwrap_or(block.len());
                let bytes = block.get(at + HEADER_LEN..end).unwrap_or_default();
                record.damaged(here, "the length of a record leads out of its block", bytes);
                at = end;
            }
        }
    }
}

/// The piece at `at`; `None` = it does not fit into the block.
fn piece(block: &[u8], at: usize) -> Option<Piece<'_>> {
    let (header, rest) = block.get(at..)?.split_first_chunk::<HEADER_LEN>()?;
    let [c0, c1, c2, c3, l0, l1, kind] = *header;
    let len = usize::from(u16::from_le_bytes([l0, l1]));
    let bytes = rest.get(..len)?;
    let intact = crc::masked(&[&[kind], bytes]) == u32::from_le_bytes([c0, c1, c2, c3]);
    Some(Piece {
        kind,
        bytes,
        intact,
        end: at + HEADER_LEN + len,
    })
}

/// Where the piece after a damaged one starts, if its length can be believed.
fn following(block: &[u8], damaged: &Piece<'_>) -> Option<usize> {
    let end = damaged.end;
    let ends_block = block.len() - end < HEADER_LEN;
    let next_intact = || piece(block, end).is_some_and(|p| p.intact && p.kind != 0);
    (ends_block || next_intact()).then_some(end)
}

/// Where the next intact piece starts.
fn resync(block: &[u8], from: usize) -> Option<usize> {
    (from..block.len().saturating_sub(HEADER_LEN - 1)).find(|at| {
        let plausible = block
            .get(at + HEADER_LEN - 1)
            .is_some_and(|kind| *kind != 0);
        plausible && piece(block, *at).is_some_and(|p| p.intact)
    })
}

/// Whether the last piece is whole but for its length.
fn whole_with_bad_length(block: &[u8], at: usize) -> bool {
    let Some((header, bytes)) = block
        .get(at..)
        .and_then(<[u8]>::split_first_chunk::<HEADER_LEN>)
    else {
        return false;
    };
    let [c0, c1, c2, c3, _, _, kind] = *header;
    crc::masked(&[&[kind], bytes]) == u32::from_le_bytes([c0, c1, c2, c3])
}

/// A record being put together from its pieces.
#[derive(Default)]
struct Assembly {
    start: Option<u64>,
    bytes: Vec<u8>,
    damage: Option<(u64, &'static str)>,
}

impl Assembly {
    fn add(&mut self, at: u64, piece: &Piece<'_>, visit: &mut dyn FnMut(Part)) {
        const FULL: u8 = 1;
        const FIRST: u8 = 2;
        const MIDDLE: u8 = 3;
        const LAST: u8 = 4;
        match piece.kind {
            FULL | FIRST => {
                if self.start.is_some() {
                    self.damage.get_or_insert((at, "a record has no end"));
                    self.finish(visit);
                }
                self.start = Some(at);
                self.bytes.extend_from_slice(piece.bytes);
                if piece.kind == FULL {
                    self.finish(visit);
                }
            }
            MIDDLE | LAST => {
                if self.start.is_none() {
                    self.start = Some(at);
                    self.damage.get_or_insert((at, "a record has no beginning"));
                }
                self.bytes.extend_from_slice(piece.bytes);
                if piece.kind == LAST {
                    self.finish(visit);
                }
            }
            _ => {}
        }
    }

    /// A damaged piece: part of the record in progress, or one of its own. Its end is told by
    /// the next intact piece.
    fn damaged(&mut self, at: u64, reason: &'static str, bytes: &[u8]) {
        self.start.get_or_insert(at);
        self.damage.get_or_insert((at, reason));
        self.bytes.extend_from_slice(bytes);
    }

    fn torn(&mut self, at: u64, visit: &mut dyn FnMut(Part)) {
        match self.damage {
            Some(_) => self.finish(visit),
            None => visit(Part::Torn {
                offset: self.start.unwrap_or(at),
            }),
        }
        *self = Self::default();
    }

    fn finish(&mut self, visit: &mut dyn FnMut(Part)) {
        let done = std::mem::take(self);
        visit(match done.damage {
            None => Part::Record(done.bytes),
            Some((offset, reason)) => Part::Damaged {
                offset,
                reason,
                bytes: done.bytes,
            },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(file: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
        file.extend(crc::masked(&[&[kind], bytes]).to_le_bytes());
        file.extend((bytes.len() as u16).to_le_bytes());
        file.push(kind);
        file.extend(bytes);
    }

    fn parts(file: &[u8]) -> Vec<Part> {
        let mut parts = Vec::new();
        scan(file, &mut |part| parts.push(part)).unwrap();
        parts
    }

    /// Small records, one over three blocks, small ones again.
    fn sample() -> (Vec<u8>, Vec<Part>) {
        let mut file = Vec::new();
        let mut expected = Vec::new();
        for n in 0..20u8 {
            put(&mut file, 1, &[n; 50]);
            expected.push(Part::Record(vec![n; 50]));
        }
        let room = BLOCK_LEN - file.len() - HEADER_LEN;
        put(&mut file, 2, &vec![1; room]);
        put(&mut file, 3, &[2; BLOCK_LEN - HEADER_LEN]);
        put(&mut file, 4, &[3; 100]);
        let long = [vec![1; room], vec![2; BLOCK_LEN - HEADER_LEN], vec![3; 100]].concat();
        expected.push(Part::Record(long));
        for n in 20..40u8 {
            put(&mut file, 1, &[n; 60]);
            expected.push(Part::Record(vec![n; 60]));
        }
        (file, expected)
    }

    #[test]
    fn whole_files_are_whole() {
        let (file, expected) = sample();
        assert_eq!(parts(&file), expected);
        let mut with_room = file;
        with_room.extend([0; 5_000]);
        assert_eq!(parts(&with_room), expected);
        assert_eq!(parts(&[]), []);
    }

    #[test]
    fn a_cut_file_is_torn_and_not_damaged() {
        let (file, expected) = sample();
        for len in (0..file.len()).step_by(371) {
            let parts = parts(&file[..len]);
            let (records, rest) = parts.split_at(
                parts
                    .iter()
                    .take_while(|p| matches!(p, Part::Record(_)))
                    .count(),
            );
            assert_eq!(records, &expected[..records.len()], "cut at {len}");
            assert!(
                matches!(rest, [] | [Part::Torn { .. }]),
                "cut at {len}: {rest:?}"
            );
        }
    }

    #[test]
    fn a_flipped_bit_is_damage_and_never_a_torn_tail() {
        let (file, expected) = sample();
        for at in (0..file.len())
            .step_by(311)
            .chain(file.len() - 70..file.len())
        {
            for bit in [0, 7] {
                let mut flipped = file.clone();
                flipped[at] ^= 1 << bit;
                let parts = parts(&flipped);
                let damaged = parts
                    .iter()
                    .filter(|p| matches!(p, Part::Damaged { .. }))
                    .count();
                assert!(damaged >= 1, "flip at {at}");
                assert!(
                    !parts.iter().any(|p| matches!(p, Part::Torn { .. })),
                    "flip at {at}"
                );
                let intact = parts.iter().filter(|p| expected.contains(p)).count();
                assert!(
                    intact + 2 >= expected.len(),
                    "flip at {at} hides {intact} others"
                );
            }
        }
    }
}
