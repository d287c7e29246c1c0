//! Chunks: how a file's bytes are cut, and how an object's bytes are stored.

use std::path::Path;

use fastcdc::v2020::FastCDC;
use zstd::bulk::Compressor;

use super::CHUNK_BYTES_MAX;
use super::error::{SnapshotError, failed};
use super::pack::Codec;

/// Files up to this size are one chunk.
pub(super) const WHOLE_BYTES_MAX: u64 = 512 << 10;
/// Bigger ones are cut by content within segments of this size, which bounds the memory of a
/// thread and lets several work on one file.
pub(super) const SEGMENT_BYTES: u64 = 16 << 20;
const CUT_BYTES_MIN: usize = 64 << 10;
const CUT_BYTES_AVERAGE: usize = 256 << 10;
/// What is shorter is not worth a frame.
const COMPRESS_BYTES_MIN: usize = 64;
/// Of a longer object this much is tried first.
const SAMPLE_BYTES: usize = 4 << 10;

/// First snapshots write everything: a fast level. Later ones write little: a better one.
pub(super) const LEVEL_FIRST: i32 = -5;
pub(super) const LEVEL_LATER: i32 = 1;

/// Lengths of the chunks of one range of a file; their sum is the range's. Found one at a time: what
/// was looked through is then still at hand for its digest.
pub(super) fn cut(data: &[u8], file_bytes: u64) -> impl Iterator<Item = usize> {
    let whole = file_bytes <= WHOLE_BYTES_MAX;
    let one = (whole && !data.is_empty()).then_some(data.len());
    let cdc =
        (!whole).then(|| FastCDC::new(data, CUT_BYTES_MIN, CUT_BYTES_AVERAGE, CHUNK_BYTES_MAX));
    let more = cdc.into_iter().flatten().map(|chunk| chunk.length);
    one.into_iter().chain(more)
}

/// The encoder of one thread.
pub(super) struct Encoder {
    zstd: Compressor<'static>,
    out: Vec<u8>,
}

impl Encoder {
    pub(super) fn new(level: i32) -> Result<Self, SnapshotError> {
        Ok(Self {
            zstd: Compressor::new(level).map_err(failed("start", Path::new("zstd")))?,
            out: Vec::new(),
        })
    }

    fn compressed(&mut self, raw: &[u8]) -> Option<usize> {
        self.out.clear();
        self.out.reserve(zstd::zstd_safe::compress_bound(raw.len()));
        self.zstd.compress_to_buffer(raw, &mut self.out).ok()
    }

    /// The bytes to store: compressed where that saves an eighth.
    pub(super) fn encode<'a>(&'a mut self, raw: &'a [u8]) -> (Codec, &'a [u8]) {
        let worth = |len: usize, of: usize| len < of - of / 8;
        if raw.len() < COMPRESS_BYTES_MIN {
            return (Codec::Plain, raw);
        }
        let middle = raw.len() / 2;
        if raw.len() > 4 * SAMPLE_BYTES
            && let Some(sample) = raw.get(middle..middle + SAMPLE_BYTES)
            && !self
                .compressed(sample)
                .is_some_and(|len| worth(len, SAMPLE_BYTES))
        {
            return (Codec::Plain, raw);
        }
        match self.compressed(raw) {
            Some(len) if worth(len, raw.len()) => (Codec::Zstd, &self.out),
            _ => (Codec::Plain, raw),
        }
    }
}
