//! The frame: how one record is laid out in the `log` table.
//!
//! ```text
//! format version  u8          1
//! content state   u8          1 present, 2 erased, 3 expired, 4 omitted (not in the chain)
//! key id          u32 BE      0 = not encrypted
//! header length   u32 BE
//! header          bytes
//! content digest  32 bytes    BLAKE3 of the content as first stored
//! chain value     32 bytes    BLAKE3(previous chain value, version, key id, header, digest)
//! content         bytes       to the end; empty unless present
//! ```
//!
//! The chain holds the digest and not the bytes, nor their state: erasing content keeps it whole.
//! A record's position is not in its frame: it is its key, and its place in the chain.

use bytes::Bytes;

use crate::log::{ContentState, Digest, NewRecord, Record};

/// Version of the frame layout.
pub const VERSION: u8 = 1;
/// Most bytes of a header.
pub const HEADER_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a content.
pub const CONTENT_BYTES_MAX: usize = 64 << 20;

const PREFIX_LEN: usize = 10;
const DIGESTS_LEN: usize = 64;

/// Why bytes are not a frame, or not the frame that belongs here.
#[derive(Debug, Clone, Copy, thiserror::Error, PartialEq, Eq)]
pub enum FrameError {
    /// Shorter than its own parts say.
    #[error("the frame is cut short")]
    Short,
    /// Another layout.
    #[error("frame version {0} is not known")]
    Version(u8),
    /// Not a content state.
    #[error("content state {0} is not known")]
    State(u8),
    /// A header or content beyond its limit.
    #[error("the frame is longer than allowed")]
    TooLong,
    /// Content where the state says that there is none.
    #[error("content bytes in a frame whose content is gone")]
    Unexpected,
    /// The content is not what was stored.
    #[error("the content does not match its digest")]
    Content,
    /// The record does not follow the one before it.
    #[error("the chain is broken: the record does not follow the one before it")]
    Chain,
}

/// A frame, as laid out in bytes; borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// State of the content.
    pub content_state: ContentState,
    /// Content-key id.
    pub key_id: u32,
    /// Opaque header.
    pub header: &'a [u8],
    /// Digest of the content as first stored.
    pub content_digest: Digest,
    /// Chain value up to and with this record.
    pub hash: Digest,
    /// Content.
    pub content: &'a [u8],
}

/// The parts of a frame around header and content, ready to write.
pub(crate) struct Encoded {
    prefix: [u8; PREFIX_LEN],
    digests: [u8; DIGESTS_LEN],
    /// Chain value up to and with the record.
    pub(crate) hash: Digest,
}

impl Encoded {
    /// Frames `record` after the record whose chain value is `previous`.
    pub(crate) fn new(record: &NewRecord, previous: &Digest) -> Result<Self, FrameError> {
        if record.header.len() > HEADER_BYTES_MAX || record.content.len() > CONTENT_BYTES_MAX {
            return Err(FrameError::TooLong);
        }
        if record.content_state != ContentState::Present && !record.content.is_empty() {
            return Err(FrameError::Unexpected);
        }
        let header_len = u32::try_from(record.header.len()).map_err(|_| FrameError::TooLong)?;
        let mut prefix = [0; PREFIX_LEN];
        let (tags, rest) = prefix.split_at_mut(2);
        tags.copy_from_slice(&[VERSION, state_tag(record.content_state)]);
        let (key_id, len) = rest.split_at_mut(4);
        key_id.copy_from_slice(&record.key_id.to_be_bytes());
        len.copy_from_slice(&header_len.to_be_bytes());

        let digest = *blake3::hash(&record.content).as_bytes();
        let hash = chain(previous, record.key_id, &record.header, &digest);
        let mut digests = [0; DIGESTS_LEN];
        let (first, second) = digests.split_at_mut(32);
        first.copy_from_slice(&digest);
        second.copy_from_slice(&hash);
        Ok(Self {
            prefix,
            digests,
            hash,
        })
    }

    /// The frame's bytes, in order, without copying header and content together.
    pub(crate) fn parts<'a>(&'a self, record: &'a NewRecord) -> [&'a [u8]; 4] {
        [&self.prefix, &record.header, &self.digests, &record.content]
    }
}

/// The frame of `record` after the record whose chain value is `previous`, and its chain value.
///
/// # Errors
/// A header or content beyond its limit; content in a record that says it has none.
pub fn encode(record: &NewRecord, previous: &Digest) -> Result<(Vec<u8>, Digest), FrameError> {
    let encoded = Encoded::new(record, previous)?;
    Ok((encoded.parts(record).concat(), encoded.hash))
}

/// Takes a frame apart. Checks its shape and limits only; see [`Frame::verify`].
///
/// # Errors
/// Anything that is not the shape of a frame; never panics, whatever the bytes.
pub fn decode(bytes: &[u8]) -> Result<Frame<'_>, FrameError> {
    let (prefix, rest) = bytes
        .split_first_chunk::<PREFIX_LEN>()
        .ok_or(FrameError::Short)?;
    let [version, state, k0, k1, k2, k3, h0, h1, h2, h3] = *prefix;
    if version != VERSION {
        return Err(FrameError::Version(version));
    }
    let content_state = state_of(state).ok_or(FrameError::State(state))?;
    let header_len = u32::from_be_bytes([h0, h1, h2, h3]) as usize;
    if header_len > HEADER_BYTES_MAX {
        return Err(FrameError::TooLong);
    }
    let (header, rest) = rest.split_at_checked(header_len).ok_or(FrameError::Short)?;
    let (content_digest, rest) = rest.split_first_chunk::<32>().ok_or(FrameError::Short)?;
    let (hash, content) = rest.split_first_chunk::<32>().ok_or(FrameError::Short)?;
    if content.len() > CONTENT_BYTES_MAX {
        return Err(FrameError::TooLong);
    }
    if content_state != ContentState::Present && !content.is_empty() {
        return Err(FrameError::Unexpected);
    }
    Ok(Frame {
        content_state,
        key_id: u32::from_be_bytes([k0, k1, k2, k3]),
        header,
        content_digest: *content_digest,
        hash: *hash,
        content,
    })
}

impl Frame<'_> {
    /// Checks the content against its digest, where there is content.
    ///
    /// # Errors
    /// The content is not what was stored.
    pub fn verify_content(&self) -> Result<(), FrameError> {
        let intact = self.content_state != ContentState::Present
            || blake3::hash(self.content).as_bytes() == &self.content_digest;
        intact.then_some(()).ok_or(FrameError::Content)
    }

    /// Checks the content, and that this record follows the one with chain value `previous`.
    ///
    /// # Errors
    /// The content is not what was stored, or the chain is broken.
    pub fn verify(&self, previous: &Digest) -> Result<(), FrameError> {
        let expected = chain(previous, self.key_id, self.header, &self.content_digest);
        if expected != self.hash {
            return Err(FrameError::Chain);
        }
        self.verify_content()
    }
}

/// A whole record, sharing one buffer, from the bytes of its frame, and its content's digest.
/// The content is checked; the chain is not, see [`follows`].
pub(crate) fn record(seq: u64, bytes: &[u8]) -> Result<(Record, Digest), FrameError> {
    let frame = decode(bytes)?;
    frame.verify_content()?;
    let buffer = Bytes::copy_from_slice(bytes);
    let content_at = bytes.len().saturating_sub(frame.content.len());
    let record = Record {
        seq,
        header: buffer.slice(PREFIX_LEN..PREFIX_LEN + frame.header.len()),
        content: buffer.slice(content_at..),
        content_state: frame.content_state,
        key_id: frame.key_id,
        hash: frame.hash,
    };
    Ok((record, frame.content_digest))
}

/// Whether `record`, whose content has `digest`, follows the record with chain value `previous`.
pub(crate) fn follows(record: &Record, digest: &Digest, previous: &Digest) -> bool {
    chained(record, digest, previous) == record.hash
}

/// The chain value that `record` has if it follows the record with chain value `previous`.
pub(crate) fn chained(record: &Record, digest: &Digest, previous: &Digest) -> Digest {
    chain(previous, record.key_id, &record.header, digest)
}

/// The frame without its content, which is from now on `state`. The chain stays whole.
///
/// # Errors
/// The bytes are no frame, or `state` is `Present`.
pub fn strip(bytes: &[u8], state: ContentState) -> Result<Vec<u8>, FrameError> {
    let frame = decode(bytes)?;
    if state == ContentState::Present {
        return Err(FrameError::Unexpected);
    }
    let keep = bytes.len().saturating_sub(frame.content.len());
    let mut out = bytes.get(..keep).ok_or(FrameError::Short)?.to_vec();
    if let Some(tag) = out.get_mut(1) {
        *tag = state_tag(state);
    }
    Ok(out)
}

fn chain(previous: &Digest, key_id: u32, header: &[u8], content_digest: &Digest) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(previous);
    hasher.update(&[VERSION]);
    hasher.update(&key_id.to_be_bytes());
    hasher.update(header);
    hasher.update(content_digest);
    *hasher.finalize().as_bytes()
}

fn state_tag(state: ContentState) -> u8 {
    match state {
        ContentState::Present => 1,
        ContentState::Erased => 2,
        ContentState::Expired => 3,
        ContentState::Omitted => 4,
    }
}

fn state_of(tag: u8) -> Option<ContentState> {
    match tag {
        1 => Some(ContentState::Present),
        2 => Some(ContentState::Erased),
        3 => Some(ContentState::Expired),
        4 => Some(ContentState::Omitted),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
