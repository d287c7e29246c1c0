//! Operations on a journal as JSON, and their answers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use longhaul_actors::ids::EventId;
use longhaul_actors::session::payload::RunError;
use longhaul_actors::session::step::{OnDoubt, OnFailure, StepOp, StepValue, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::queue::{StepAnswer, StepState};

#[derive(Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Op<'a> {
    Begin {
        name: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        path: &'a str,
        occurrence: u32,
        input_digest: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        input: Option<&'a RawValue>,
        #[serde(skip_serializing_if = "Option::is_none")]
        idempotency_key: Option<&'a str>,
        effects: longhaul_actors::session::step::StepEffects,
        on_doubt: OnDoubt,
        on_failure: OnFailure,
    },
    Complete {
        step_id: EventId,
        #[serde(flatten)]
        value: Shown<'a>,
        #[serde(flatten)]
        extra: Extra<'a>,
    },
    Fail {
        step_id: EventId,
        error: &'a RunError,
        #[serde(skip_serializing_if = "Option::is_none")]
        partial: Option<&'a RawValue>,
        #[serde(flatten)]
        extra: Extra<'a>,
    },
    Resolve {
        step_id: EventId,
        r#as: &'static str,
        #[serde(flatten)]
        value: Shown<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a RunError>,
    },
}

#[derive(Serialize, Default)]
struct Shown<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
}

#[derive(Serialize)]
struct Extra<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<Event<'a>>,
}

#[derive(Serialize)]
struct Event<'a> {
    r#type: &'static str,
    content: &'a RawValue,
}

#[derive(Serialize)]
struct Ops<'a> {
    ops: Vec<Op<'a>>,
}

/// The body of a call.
///
/// # Errors
/// What is no JSON.
pub fn body(ops: &[StepOp]) -> Result<Vec<u8>, String> {
    let ops = ops.iter().map(op).collect::<Result<_, _>>();
    let ops = ops.map_err(|e| e.to_string())?;
    serde_json::to_vec(&Ops { ops }).map_err(|e| e.to_string())
}

fn raw(json: &[u8]) -> Result<&RawValue, serde_json::Error> {
    serde_json::from_slice(json)
}

fn op(op: &StepOp) -> Result<Op<'_>, serde_json::Error> {
    let extra = |usage, events| extra(usage, events);
    Ok(match op {
        StepOp::Begin(b) => Op::Begin {
            name: &b.place.name,
            path: &b.place.path,
            occurrence: b.place.occurrence,
            input_digest: &b.input_digest,
            input: b.input.as_deref().map(raw).transpose()?,
            idempotency_key: b.place.idempotency_key.as_deref(),
            effects: b.effects,
            on_doubt: b.on_doubt,
            on_failure: b.on_failure,
        },
        StepOp::Complete(c) => Op::Complete {
            step_id: c.step,
            value: shown(&c.value)?,
            extra: extra(&c.usage, &c.events)?,
        },
        StepOp::Fail(f) => Op::Fail {
            step_id: f.step,
            error: &f.error,
            partial: f.partial.as_deref().map(raw).transpose()?,
            extra: extra(&f.usage, &f.events)?,
        },
        StepOp::Resolve(r) => {
            let (verdict, value, error) = match &r.verdict {
                Verdict::Retry => ("retry", Shown::default(), None),
                Verdict::Completed(value) => ("completed", shown(value)?, None),
                Verdict::Failed(error) => ("failed", Shown::default(), Some(error)),
            };
            Op::Resolve {
                step_id: r.step,
                r#as: verdict,
                value,
                error,
            }
        }
    })
}

fn shown(value: &StepValue) -> Result<Shown<'_>, serde_json::Error> {
    Ok(match value {
        StepValue::Json(json) => Shown {
            value: Some(raw(json)?),
            ..Shown::default()
        },
        StepValue::Bytes {
            content_type,
            bytes,
        } => Shown {
            value: None,
            value_base64: Some(STANDARD.encode(bytes)),
            content_type: Some(content_type),
        },
    })
}

fn extra<'a>(
    usage: &'a Option<(longhaul_actors::session::payload::Usage, bytes::Bytes)>,
    events: &'a [longhaul_actors::session::command::Input],
) -> Result<Extra<'a>, serde_json::Error> {
    let events = events.iter().map(|e| {
        Ok(Event {
            r#type: e.kind.text(),
            content: raw(&e.content)?,
        })
    });
    Ok(Extra {
        usage: usage.as_ref().map(|(_, json)| raw(json)).transpose()?,
        events: events.collect::<Result<_, serde_json::Error>>()?,
    })
}

#[derive(Deserialize)]
struct Results<'a> {
    #[serde(borrow)]
    results: Vec<WireAnswer<'a>>,
}

/// A field that is there, `null` too.
fn present<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(d).map(Some)
}

#[derive(Deserialize)]
struct WireAnswer<'a> {
    state: String,
    step_id: EventId,
    #[serde(borrow, default, deserialize_with = "present")]
    value: Option<&'a RawValue>,
    #[serde(default)]
    value_base64: Option<String>,
    #[serde(default)]
    content_type: Option<String>,
    #[serde(default)]
    event_ids: Vec<EventId>,
    #[serde(default)]
    error: Option<RunError>,
    #[serde(default)]
    failures: u32,
    #[serde(default)]
    started_attempt: u32,
    #[serde(default)]
    started_run_id: String,
    #[serde(default)]
    budget_exceeded: bool,
}

/// Reads the answer to a call: one for each operation.
///
/// # Errors
/// What does not fit.
pub fn answers(body: &[u8]) -> Result<Vec<StepAnswer>, String> {
    let wire: Results<'_> = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    wire.results.into_iter().map(answer).collect()
}

fn answer(wire: WireAnswer<'_>) -> Result<StepAnswer, String> {
    let state = match wire.state.as_str() {
        "execute" => StepState::Execute,
        "in_progress" => StepState::InProgress,
        "in_doubt" => StepState::InDoubt {
            started_attempt: wire.started_attempt,
            started_run_id: wire.started_run_id,
        },
        "completed" => StepState::Completed(kept(
            wire.value,
            wire.value_base64.as_deref(),
            wire.content_type,
        )?),
        "failed" => StepState::Failed {
            error: wire.error,
            failures: wire.failures,
        },
        other => return Err(format!("there is no state {other:?}")),
    };
    Ok(StepAnswer {
        step_id: wire.step_id,
        state,
        event_ids: wire.event_ids,
        budget_exceeded: wire.budget_exceeded,
    })
}

/// A value as in `value`, or in `value_base64` and `content_type`.
///
/// # Errors
/// What does not fit.
pub(crate) fn kept(
    json: Option<&RawValue>,
    base64: Option<&str>,
    content_type: Option<String>,
) -> Result<Option<StepValue>, String> {
    Ok(match (json, base64) {
        (_, Some(text)) => Some(StepValue::Bytes {
            content_type: content_type.unwrap_or_default(),
            bytes: STANDARD.decode(text).map_err(|e| e.to_string())?.into(),
        }),
        (Some(json), None) => Some(StepValue::Json(json.get().to_owned().into())),
        (None, None) => None,
    })
}
