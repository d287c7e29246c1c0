//! Contents of `step.*`: values go in and out as bytes, never as parsed trees.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::RunError;
use crate::ids::EventId;
use crate::session::step::{BeginStep, StepEffects, StepValue, Verdict};

/// `step.started`; the step's id is the event's.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct StepStarted<'a> {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    pub name: String,
    pub occurrence: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    pub input_digest: String,
    pub effects: StepEffects,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub input: Option<&'a RawValue>,
}

/// `step.completed`.
#[derive(Debug, Clone, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct StepCompleted<'a> {
    pub step_id: EventId,
    /// JSON, or absent with `value_base64`.
    #[serde(borrow, default, deserialize_with = "present")]
    pub value: Option<&'a RawValue>,
    #[serde(default)]
    pub value_base64: Option<String>,
    #[serde(default)]
    pub content_type: Option<String>,
    /// The events written with it.
    #[serde(default)]
    pub event_ids: Vec<EventId>,
}

/// `step.failed`.
#[derive(Debug, Clone, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct StepFailed<'a> {
    pub step_id: EventId,
    pub error: RunError,
    /// How often it failed so far, this time included.
    pub failures: u32,
    /// What came before it failed.
    #[serde(borrow, default, deserialize_with = "present")]
    pub partial: Option<&'a RawValue>,
    /// The events written with it.
    #[serde(default)]
    pub event_ids: Vec<EventId>,
}

/// `step.resolved`: the step belongs to the attempt that wrote this; `completed` and `failed` are
/// followed by the event that says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepResolved {
    /// Which step.
    pub step_id: EventId,
    /// What becomes of it.
    #[serde(rename = "as")]
    pub verdict: ResolvedAs,
    /// Why, where the runtime itself resolved it: `doubt`, `failed`, `sandbox`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What becomes of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResolvedAs {
    /// It runs again.
    Retry,
    /// It had its result.
    Completed,
    /// It had none.
    Failed,
}

impl From<&Verdict> for ResolvedAs {
    fn from(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Retry => Self::Retry,
            Verdict::Completed(_) => Self::Completed,
            Verdict::Failed(_) => Self::Failed,
        }
    }
}

/// A field that is there, `null` too.
pub(crate) fn present<'de: 'a, 'a, D: serde::Deserializer<'de>>(
    d: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(d).map(Some)
}

/// The content of `step.started`.
pub(crate) fn started(begin: &BeginStep) -> Bytes {
    let content = StepStarted {
        path: begin.place.path.clone(),
        name: begin.place.name.clone(),
        occurrence: begin.place.occurrence,
        idempotency_key: begin.place.idempotency_key.clone(),
        input_digest: begin.input_digest.clone(),
        effects: begin.effects,
        input: None,
    };
    let mut out = Vec::with_capacity(160 + begin.input.as_ref().map_or(0, Bytes::len));
    // A plain struct with string keys: serialising it has no failing case.
    let _ = serde_json::to_writer(&mut out, &content);
    if let Some(input) = &begin.input {
        out.pop();
        out.extend_from_slice(b",\"input\":");
        out.extend_from_slice(input);
        out.push(b'}');
    }
    out.into()
}

/// The content of `step.completed`.
pub(crate) fn completed(step: EventId, value: &StepValue, event_ids: &[EventId]) -> Bytes {
    let size = match value {
        StepValue::Json(json) => json.len(),
        StepValue::Bytes { bytes, .. } => bytes.len().div_ceil(3) * 4,
    };
    let mut out = Vec::with_capacity(size + 96 + event_ids.len() * 40);
    out.extend_from_slice(format!("{{\"step_id\":\"{step}\"").as_bytes());
    write_value(&mut out, value);
    write_event_ids(&mut out, event_ids);
    out.push(b'}');
    out.into()
}

/// The content of `step.failed`.
pub(crate) fn failed(
    step: EventId,
    error: &RunError,
    failures: u32,
    partial: Option<&Bytes>,
    event_ids: &[EventId],
) -> Bytes {
    let error = serde_json::to_string(error).unwrap_or_default();
    let head = format!("{{\"step_id\":\"{step}\",\"error\":{error},\"failures\":{failures}");
    let mut out = head.into_bytes();
    if let Some(partial) = partial {
        out.extend_from_slice(b",\"partial\":");
        out.extend_from_slice(partial);
    }
    write_event_ids(&mut out, event_ids);
    out.push(b'}');
    out.into()
}

/// `,"value":…`, or `,"value_base64":…,"content_type":…`.
pub(crate) fn write_value(out: &mut Vec<u8>, value: &StepValue) {
    match value {
        StepValue::Json(json) => {
            out.extend_from_slice(b",\"value\":");
            out.extend_from_slice(json);
        }
        StepValue::Bytes {
            content_type,
            bytes,
        } => {
            let kind = serde_json::to_string(content_type).unwrap_or_default();
            let text = format!(",\"content_type\":{kind},\"value_base64\":\"");
            out.extend_from_slice(text.as_bytes());
            out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
            out.push(b'"');
        }
    }
}

/// `,"event_ids":[…]`.
pub(crate) fn write_event_ids(out: &mut Vec<u8>, ids: &[EventId]) {
    out.extend_from_slice(b",\"event_ids\":[");
    for (index, id) in ids.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        out.extend_from_slice(format!("{comma}\"{id}\"").as_bytes());
    }
    out.push(b']');
}

impl StepCompleted<'_> {
    /// What the step gave; `content` is what this was read from.
    ///
    /// # Errors
    /// What does not fit.
    pub fn value(&self, content: &Bytes) -> Result<StepValue, String> {
        match (self.value, &self.value_base64) {
            (Some(json), None) => Ok(StepValue::Json(content.slice_ref(json.get().as_bytes()))),
            (None, Some(text)) => {
                let bytes = STANDARD.decode(text).map_err(|e| e.to_string())?;
                Ok(StepValue::Bytes {
                    content_type: self.content_type.clone().unwrap_or_default(),
                    bytes: bytes.into(),
                })
            }
            _ => Err("neither a JSON value nor bytes".to_owned()),
        }
    }
}
