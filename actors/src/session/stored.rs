//! Events as stored: a header behind a version byte, and the content's JSON beside it.

use bincode::{Decode, Encode};
use bytes::Bytes;
use longhaul_storage::{ContentState, NewRecord, Record};

use super::event::{Author, Cause, Event, EventType, Header, NewEvent, RunRef};
use super::payload::{Body, BodyError};
use crate::codec::{self, DecodeError};
use crate::ids::EventId;

/// The stored header. Never the in-memory one: types are tags here, so that an enum may grow.
#[derive(Debug, Encode, Decode)]
struct StoredHeader {
    tag: u16,
    version: u16,
    id: EventId,
    created_at_ms: i64,
    author: Author,
    cause: Cause,
    run: Option<RunRef>,
    boundary: bool,
    refers: Option<EventId>,
    label: Option<String>,
}

/// Why a record is not an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The header does not decode.
    #[error("header: {0}")]
    Header(#[from] DecodeError),
    /// The header names a type that this version does not know.
    #[error("event type tag {0} is not known to this version")]
    Tag(u16),
    /// The id does not lead to this position.
    #[error("event id {id} does not belong to position {seq}")]
    Id {
        /// The id.
        id: EventId,
        /// The position.
        seq: u64,
    },
    /// The content of a runtime event does not read.
    #[error(transparent)]
    Body(#[from] BodyError),
}

/// What goes to storage.
///
/// `omit`: its content is not to be written.
pub fn new_record(new: &NewEvent, omit: bool) -> NewRecord {
    let h = &new.event.header;
    let header = codec::encode(&StoredHeader {
        tag: h.kind.tag(),
        version: h.version,
        id: h.id,
        created_at_ms: h.created_at_ms,
        author: h.author.clone(),
        cause: h.cause.clone(),
        run: h.run,
        boundary: h.boundary,
        refers: h.refers,
        label: h.label.clone(),
    });
    NewRecord {
        header,
        content: match omit {
            true => Bytes::new(),
            false => new.content.clone(),
        },
        content_state: match omit {
            true => ContentState::Omitted,
            false => ContentState::Present,
        },
        key_id: 0,
    }
}

/// The header of a stored record.
pub fn header_of(record: &Record) -> Result<Header, RecordError> {
    let s: StoredHeader = codec::decode(&record.header)?;
    if s.id.seq() != record.seq {
        return Err(RecordError::Id {
            id: s.id,
            seq: record.seq,
        });
    }
    Ok(Header {
        kind: EventType::from_tag(s.tag).ok_or(RecordError::Tag(s.tag))?,
        version: s.version,
        id: s.id,
        created_at_ms: s.created_at_ms,
        author: s.author,
        cause: s.cause,
        run: s.run,
        boundary: s.boundary,
        refers: s.refers,
        label: s.label,
    })
}

/// The event of a stored record, for folding.
pub fn event_of(record: &Record) -> Result<Event, RecordError> {
    let header = header_of(record)?;
    let body = Body::from_json(header.kind, header.version, &record.content)?;
    Ok(Event {
        seq: record.seq,
        header,
        body,
    })
}
