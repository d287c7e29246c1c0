//! Requests from outside, checked for form before anything is decided: types, sizes, fields.

mod agent;
mod attempt;
mod json;
mod objects;
mod people;
mod step;

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

pub use attempt::parse_attempt;
use json::Key;
pub use json::{check_json, parse_strict, typed};
pub use step::check_steps;
pub(crate) use step::check_typed;

use super::command::{Ask, Input};
use super::event::{EventType, RESERVED_FAMILIES};
use crate::code::{Code, Rejection};
use crate::limits::{BATCH_BYTES_MAX, BATCH_EVENTS_MAX, EVENT_CONTENT_BYTES_MAX};

/// By which door events come in; each may write its own types only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// People and services: `user.*`.
    People,
    /// Runners, under a claim: `agent.*` and `usage.recorded`.
    Runner,
}

/// An event as sent.
#[derive(Debug)]
pub struct RawEvent<'a> {
    /// `family.name`.
    pub kind: Cow<'a, str>,
    /// A JSON object; absent = `{}`.
    pub content: Option<&'a RawValue>,
}

/// By hand, because a derived reader would also take an array for the fields in order.
impl<'de: 'a, 'a> Deserialize<'de> for RawEvent<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = RawEvent<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an event: an object with `type` and `content`")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawEvent<'de>, A::Error> {
                let (mut kind, mut content) = (None::<Key<'de>>, None);
                while let Some(Key(key)) = map.next_key::<Key<'de>>()? {
                    match &*key {
                        "type" => kind = Some(map.next_value()?),
                        "content" => content = Some(map.next_value::<&'de RawValue>()?),
                        other => return Err(A::Error::unknown_field(other, &["type", "content"])),
                    }
                }
                let Key(kind) = kind.ok_or_else(|| A::Error::missing_field("type"))?;
                Ok(RawEvent { kind, content })
            }
        }
        d.deserialize_map(Fields)
    }
}

/// Checks a batch of events. The JSON itself must have passed [`check_json`].
///
/// # Errors
/// `event.batch_empty`, `event.batch_too_large`, `event.type_unknown`, `event.type_reserved`,
/// `event.too_large`, `request.field_unknown`, `request.field_invalid`.
pub fn parse_events(origin: Origin, raw: &[RawEvent<'_>]) -> Result<Vec<Input>, Rejection> {
    if raw.is_empty() {
        return Err(Code::BatchEmpty.into());
    }
    if raw.len() > BATCH_EVENTS_MAX {
        let detail = format!("{} events; at most {BATCH_EVENTS_MAX} at once", raw.len());
        return Err(Rejection::new(Code::BatchTooLarge, detail));
    }
    let bytes: usize = raw
        .iter()
        .map(|e| e.content.map_or(0, |c| c.get().len()))
        .sum();
    let inputs = (0..).zip(raw).map(|(index, event)| {
        one(origin, event).map_err(|r| {
            if raw.len() > 1 {
                r.with("index", index)
            } else {
                r
            }
        })
    });
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    if bytes > BATCH_BYTES_MAX {
        let detail = format!("{bytes} content bytes; at most {BATCH_BYTES_MAX} at once");
        return Err(Rejection::new(Code::BatchTooLarge, detail));
    }
    Ok(inputs)
}

fn one(origin: Origin, raw: &RawEvent<'_>) -> Result<Input, Rejection> {
    let kind = event_type(origin, &raw.kind)?;
    let text = raw.content.map_or("{}", RawValue::get);
    if text.len() > EVENT_CONTENT_BYTES_MAX {
        let detail = format!("{} bytes; at most {EVENT_CONTENT_BYTES_MAX}", text.len());
        let r = Rejection::new(Code::EventTooLarge, detail);
        return Err(r.with("bytes_max", EVENT_CONTENT_BYTES_MAX));
    }
    if !text.starts_with('{') {
        return Err(Rejection::new(
            Code::FieldInvalid,
            "`content` must be an object",
        ));
    }
    let ask = match origin {
        Origin::People => people::ask(kind, text)?,
        Origin::Runner => agent::ask(kind, text)?,
    };
    Ok(Input {
        kind,
        content: Bytes::copy_from_slice(text.as_bytes()),
        ask,
    })
}

fn event_type(origin: Origin, text: &str) -> Result<EventType, Rejection> {
    let reserved =
        |detail: &str| Rejection::new(Code::EventTypeReserved, format!("`{text}` {detail}"));
    let family = text.split('.').next().unwrap_or_default();
    let Some(kind) = EventType::parse(text) else {
        if RESERVED_FAMILIES.contains(&family) || text == "user.define_outcome" {
            return Err(reserved("belongs to a family that is reserved"));
        }
        let shown: String = text.chars().take(80).collect();
        let detail = format!("there is no event type `{shown}`");
        return Err(Rejection::new(Code::EventTypeUnknown, detail));
    };
    let own = match origin {
        Origin::People => family == "user",
        Origin::Runner => family == "agent" || kind == EventType::UsageRecorded,
    };
    if own {
        Ok(kind)
    } else {
        Err(reserved("is not written by this door"))
    }
}

/// A plain event of a host or a test: the same checks as from outside.
///
/// # Errors
/// As [`parse_events`], and `request.body_invalid`.
pub fn parse_one(origin: Origin, kind: &str, content: &str) -> Result<Input, Rejection> {
    check_json(content.as_bytes())?;
    let raw = serde_json::from_str::<&RawValue>(content)
        .map_err(|e| Rejection::new(Code::BodyInvalid, e.to_string()))?;
    one(
        origin,
        &RawEvent {
            kind: kind.into(),
            content: Some(raw),
        },
    )
}

/// Only the ask of an event that is merely recorded.
const RECORD: Ask = Ask::Record;
