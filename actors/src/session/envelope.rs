//! The JSON envelope of an event, as every reader sees it.

use bytes::Bytes;
use longhaul_storage::{ContentState, Record};
use serde::Serialize;
use serde_json::value::RawValue;

use super::event::{Author, Cause, Header, NewEvent};
use super::stored::{self, RecordError};
use crate::ids::{EventId, RunId};
use crate::time;

/// What an envelope has beside its content, bytes, more or less.
const FRAME_BYTES: usize = 448;

#[derive(Serialize)]
struct Envelope<'a> {
    seq: u64,
    id: EventId,
    #[serde(rename = "type")]
    kind: &'static str,
    version: u16,
    created_at: String,
    authored_by: AuthoredBy<'a>,
    caused_by: Option<CausedBy<'a>>,
    run_id: Option<RunId>,
    attempt: Option<u32>,
    content: Option<&'a RawValue>,
    content_state: &'static str,
    boundary: bool,
}

#[derive(Serialize)]
struct AuthoredBy<'a> {
    kind: &'static str,
    id: &'a str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum CausedBy<'a> {
    Event(EventId),
    Request { request: &'a str },
}

/// The wire form of a content state.
pub const fn content_state_text(state: ContentState) -> &'static str {
    match state {
        ContentState::Present => "present",
        ContentState::Erased => "erased",
        ContentState::Expired => "expired",
        ContentState::Omitted => "omitted",
    }
}

/// The envelope of a stored record.
pub fn envelope(record: &Record) -> Result<Bytes, RecordError> {
    let header = stored::header_of(record)?;
    Ok(envelope_of(record, &header))
}

/// The envelope of a stored record whose header was read already.
pub(crate) fn envelope_of(record: &Record, header: &Header) -> Bytes {
    render(record.seq, header, record.content_state, &record.content)
}

/// The envelope of a stored record whose content may be in memory only.
pub fn envelope_with(record: &Record, content: Option<&Bytes>) -> Result<Bytes, RecordError> {
    match content {
        None => envelope(record),
        Some(content) => {
            let header = stored::header_of(record)?;
            Ok(render(record.seq, &header, ContentState::Present, content))
        }
    }
}

/// The envelope of an event that was just committed.
pub fn envelope_of_new(new: &NewEvent) -> Bytes {
    render(
        new.event.seq,
        &new.event.header,
        ContentState::Present,
        &new.content,
    )
}

fn render(seq: u64, header: &Header, state: ContentState, content: &[u8]) -> Bytes {
    let content = (state == ContentState::Present)
        .then(|| serde_json::from_slice::<&RawValue>(content).ok())
        .flatten();
    let Author { kind, id } = &header.author;
    let envelope = Envelope {
        seq,
        id: header.id,
        kind: header.kind.text(),
        version: header.version,
        created_at: time::rfc3339(header.created_at_ms),
        authored_by: AuthoredBy {
            kind: kind.text(),
            id,
        },
        caused_by: match &header.cause {
            Cause::None => None,
            Cause::Event(id) => Some(CausedBy::Event(*id)),
            Cause::Request(id) => Some(CausedBy::Request { request: id }),
        },
        run_id: header.run.map(|r| r.id),
        attempt: header.run.map(|r| r.attempt).filter(|a| *a > 0),
        content,
        content_state: content_state_text(state),
        boundary: header.boundary,
    };
    let mut out = Vec::with_capacity(content.map_or(0, |c| c.get().len()) + FRAME_BYTES);
    // Plain structs with string keys: serialising them has no failing case.
    let _ = serde_json::to_writer(&mut out, &envelope);
    out.into()
}
