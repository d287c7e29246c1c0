//! Operations on the journal, as they come: `POST /v1/claims/{token}/steps`, or from a harness in
//! this process.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::agent::UsageContent;
use super::attempt::{check_error, invalid};
use super::json::{check_json, typed};
use super::{Origin, RawEvent, parse_events};
use crate::code::{Code, Rejection};
use crate::ids::EventId;
use crate::limits::{BATCH_BYTES_MAX, BATCH_EVENTS_MAX, EVENT_CONTENT_BYTES_MAX};
use crate::session::command::{Ask, Input, Verb};
use crate::session::event::EventType;
use crate::session::payload::step::present;
use crate::session::payload::{RunError, Usage};
use crate::session::step::{
    BeginStep, CompleteStep, DIGEST_BYTES_MAX, FailStep, KEY_BYTES_MAX, NAME_BYTES_MAX, OPS_MAX,
    OnDoubt, OnFailure, PATH_BYTES_MAX, ResolveStep, StepEffects, StepOp, StepPlace, StepValue,
    Verdict,
};

/// Longest content type of a value, bytes.
const CONTENT_TYPE_BYTES_MAX: usize = 256;
/// What an event needs beside the value that it holds, bytes.
const FRAME_BYTES: usize = 32 << 10;

/// One operation, or a list of them. Every field of every operation is here; which go with which
/// is checked by hand, so that values stay bytes.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Raw<'a> {
    n: Option<u64>,
    #[serde(borrow)]
    ops: Option<Vec<Raw<'a>>>,
    op: Option<String>,
    name: Option<String>,
    path: Option<String>,
    occurrence: Option<u32>,
    input_digest: Option<String>,
    #[serde(borrow, deserialize_with = "present")]
    input: Option<&'a RawValue>,
    idempotency_key: Option<String>,
    effects: Option<StepEffects>,
    on_doubt: Option<OnDoubt>,
    on_failure: Option<OnFailure>,
    step_id: Option<EventId>,
    #[serde(borrow, deserialize_with = "present")]
    value: Option<&'a RawValue>,
    value_base64: Option<String>,
    content_type: Option<String>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    events: Option<Vec<RawEvent<'a>>>,
    error: Option<RunError>,
    #[serde(borrow, deserialize_with = "present")]
    partial: Option<&'a RawValue>,
    #[serde(rename = "as")]
    verdict: Option<As>,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "snake_case")]
enum As {
    Retry,
    Completed,
    Failed,
}

/// Reads a checked body of `steps`.
pub(super) fn parse(body: &[u8]) -> Result<(Option<u64>, Verb), Rejection> {
    let mut raw: Raw<'_> = typed(body)?;
    let n = raw.n.take();
    let Some(list) = raw.ops.take() else {
        let ops = vec![one(raw)?];
        check_steps(&ops)?;
        return Ok((n, Verb::Steps { ops, many: false }));
    };
    raw.only("ops", &[])?;
    if list.is_empty() || list.len() > OPS_MAX {
        return Err(invalid(format!("`ops` has 1 to {OPS_MAX} operations")));
    }
    let ops = (0..).zip(list).map(|(index, raw)| {
        if raw.n.is_some() || raw.ops.is_some() {
            let detail = "`n` and `ops` do not go into an operation";
            return Err(Rejection::new(Code::FieldUnknown, detail).with("index", index));
        }
        one(raw).map_err(|r| r.with("index", index))
    });
    let ops = ops.collect::<Result<Vec<_>, _>>()?;
    check_steps(&ops)?;
    Ok((n, Verb::Steps { ops, many: true }))
}

fn one(raw: Raw<'_>) -> Result<StepOp, Rejection> {
    match raw.op.as_deref() {
        Some("begin") => begin(raw).map(|b| StepOp::Begin(Arc::new(b))),
        Some("complete") => complete(raw).map(|c| StepOp::Complete(Arc::new(c))),
        Some("fail") => fail(raw).map(|f| StepOp::Fail(Arc::new(f))),
        Some("resolve") => resolve(raw).map(|r| StepOp::Resolve(Arc::new(r))),
        Some(_) => Err(invalid("`op` is `begin`, `complete`, `fail` or `resolve`")),
        None => Err(missing("op")),
    }
}

fn begin(mut raw: Raw<'_>) -> Result<BeginStep, Rejection> {
    let place = StepPlace {
        path: raw.path.take().unwrap_or_default(),
        name: raw.name.take().ok_or_else(|| missing("name"))?,
        occurrence: raw.occurrence.take().unwrap_or(0),
        idempotency_key: raw.idempotency_key.take(),
    };
    let with_key = place.idempotency_key.is_some();
    let on_doubt = match raw.on_doubt.take() {
        Some(on_doubt) => on_doubt,
        None if with_key => OnDoubt::Retry,
        None => OnDoubt::Surface,
    };
    let begin = BeginStep {
        place,
        input_digest: raw
            .input_digest
            .take()
            .ok_or_else(|| missing("input_digest"))?,
        input: raw.input.take().map(bytes),
        effects: raw.effects.take().unwrap_or_default(),
        on_doubt,
        on_failure: raw.on_failure.take().unwrap_or_default(),
    };
    raw.only("begin", &["op"])?;
    Ok(begin)
}

fn complete(mut raw: Raw<'_>) -> Result<CompleteStep, Rejection> {
    let complete = CompleteStep {
        step: raw.step_id.take().ok_or_else(|| missing("step_id"))?,
        value: raw.value()?,
        usage: raw.usage()?,
        events: raw.events()?,
    };
    raw.only("complete", &["op"])?;
    Ok(complete)
}

fn fail(mut raw: Raw<'_>) -> Result<FailStep, Rejection> {
    let fail = FailStep {
        step: raw.step_id.take().ok_or_else(|| missing("step_id"))?,
        error: raw.error.take().ok_or_else(|| missing("error"))?,
        partial: raw.partial.take().map(bytes),
        usage: raw.usage()?,
        events: raw.events()?,
    };
    raw.only("fail", &["op"])?;
    Ok(fail)
}

fn resolve(mut raw: Raw<'_>) -> Result<ResolveStep, Rejection> {
    let step = raw.step_id.take().ok_or_else(|| missing("step_id"))?;
    let verdict = match raw.verdict.take().ok_or_else(|| missing("as"))? {
        As::Retry => Verdict::Retry,
        As::Completed => Verdict::Completed(raw.value()?),
        As::Failed => Verdict::Failed(raw.error.take().ok_or_else(|| missing("error"))?),
    };
    raw.only("resolve", &["op"])?;
    Ok(ResolveStep { step, verdict })
}

impl Raw<'_> {
    fn value(&mut self) -> Result<StepValue, Rejection> {
        let text = self.value_base64.take();
        match (self.value.take(), text, self.content_type.take()) {
            (Some(json), None, None) => Ok(StepValue::Json(bytes(json))),
            (None, Some(text), Some(content_type)) => {
                let decoded = STANDARD
                    .decode(text)
                    .map_err(|e| invalid(format!("`value_base64` is no base64: {e}")))?;
                Ok(StepValue::Bytes {
                    content_type,
                    bytes: decoded.into(),
                })
            }
            _ => Err(invalid(
                "a result has either `value`, or `value_base64` and `content_type`",
            )),
        }
    }

    fn usage(&mut self) -> Result<Option<(Usage, Bytes)>, Rejection> {
        let Some(raw) = self.usage.take() else {
            return Ok(None);
        };
        let usage: UsageContent = typed(raw.get().as_bytes())?;
        Ok(Some((usage.into(), bytes(raw))))
    }

    fn events(&mut self) -> Result<Vec<Input>, Rejection> {
        match self.events.take() {
            Some(events) if !events.is_empty() => parse_events(Origin::Runner, &events),
            _ => Ok(Vec::new()),
        }
    }

    /// What is left belongs to another operation.
    fn only(&self, what: &str, but: &[&str]) -> Result<(), Rejection> {
        let left = [
            ("op", self.op.is_some()),
            ("name", self.name.is_some()),
            ("path", self.path.is_some()),
            ("occurrence", self.occurrence.is_some()),
            ("input_digest", self.input_digest.is_some()),
            ("input", self.input.is_some()),
            ("idempotency_key", self.idempotency_key.is_some()),
            ("effects", self.effects.is_some()),
            ("on_doubt", self.on_doubt.is_some()),
            ("on_failure", self.on_failure.is_some()),
            ("step_id", self.step_id.is_some()),
            ("value", self.value.is_some()),
            ("value_base64", self.value_base64.is_some()),
            ("content_type", self.content_type.is_some()),
            ("usage", self.usage.is_some()),
            ("events", self.events.is_some()),
            ("error", self.error.is_some()),
            ("partial", self.partial.is_some()),
            ("as", self.verdict.is_some()),
        ];
        match left.iter().find(|(field, is)| *is && !but.contains(field)) {
            None => Ok(()),
            Some((field, _)) => {
                let detail = format!("`{field}` does not go with `{what}`");
                Err(Rejection::new(Code::FieldUnknown, detail))
            }
        }
    }
}

/// Checks the limits of operations, whichever door they came by.
///
/// # Errors
/// `request.field_invalid`, `request.body_invalid`, `event.too_large`, `event.batch_too_large`.
pub fn check_steps(ops: &[StepOp]) -> Result<(), Rejection> {
    if ops.is_empty() || ops.len() > OPS_MAX {
        return Err(invalid(format!("a call has 1 to {OPS_MAX} operations")));
    }
    let bytes: usize = ops.iter().map(StepOp::content_bytes).sum();
    if bytes > BATCH_BYTES_MAX {
        let detail = format!("{bytes} content bytes; at most {BATCH_BYTES_MAX} at once");
        return Err(Rejection::new(Code::BatchTooLarge, detail));
    }
    ops.iter().try_for_each(check)
}

/// Operations of a harness in this process: their JSON has passed no door yet.
///
/// # Errors
/// As [`check_steps`].
pub(crate) fn check_typed(ops: &[StepOp]) -> Result<(), Rejection> {
    let json = |value: &StepValue| match value {
        StepValue::Json(json) => check_json(json),
        StepValue::Bytes { .. } => Ok(()),
    };
    let usage = |usage: &Option<(Usage, Bytes)>| match usage {
        Some((_, content)) => {
            check_json(content)?;
            typed::<UsageContent>(content).map(drop)
        }
        None => Ok(()),
    };
    for op in ops {
        match op {
            StepOp::Begin(b) => b.input.as_ref().map_or(Ok(()), |i| check_json(i))?,
            StepOp::Complete(c) => {
                json(&c.value)?;
                usage(&c.usage)?;
            }
            StepOp::Fail(f) => {
                f.partial.as_ref().map_or(Ok(()), |p| check_json(p))?;
                usage(&f.usage)?;
            }
            StepOp::Resolve(r) => match &r.verdict {
                Verdict::Completed(value) => json(value)?,
                Verdict::Retry | Verdict::Failed(_) => {}
            },
        }
    }
    check_steps(ops)
}

fn check(op: &StepOp) -> Result<(), Rejection> {
    match op {
        StepOp::Begin(b) => {
            let place = &b.place;
            text("name", &place.name, NAME_BYTES_MAX)?;
            text("input_digest", &b.input_digest, DIGEST_BYTES_MAX)?;
            if let Some(key) = &place.idempotency_key {
                text("idempotency_key", key, KEY_BYTES_MAX)?;
            }
            if place.path.len() > PATH_BYTES_MAX {
                return Err(invalid(format!(
                    "`path` has at most {PATH_BYTES_MAX} bytes"
                )));
            }
            fits(b.input.as_ref().map_or(0, Bytes::len))
        }
        StepOp::Complete(c) => {
            value(&c.value)?;
            extra(&c.events)
        }
        StepOp::Fail(f) => {
            check_error(&f.error)?;
            fits(f.partial.as_ref().map_or(0, Bytes::len))?;
            extra(&f.events)
        }
        StepOp::Resolve(r) => match &r.verdict {
            Verdict::Retry => Ok(()),
            Verdict::Completed(v) => value(v),
            Verdict::Failed(error) => check_error(error),
        },
    }
}

fn text(field: &str, text: &str, max: usize) -> Result<(), Rejection> {
    if text.is_empty() || text.len() > max {
        return Err(invalid(format!("`{field}` has 1 to {max} bytes")));
    }
    Ok(())
}

fn value(value: &StepValue) -> Result<(), Rejection> {
    if let StepValue::Bytes { content_type, .. } = value {
        text("content_type", content_type, CONTENT_TYPE_BYTES_MAX)?;
    }
    fits(value.len())
}

fn fits(bytes: usize) -> Result<(), Rejection> {
    let max = EVENT_CONTENT_BYTES_MAX - FRAME_BYTES;
    if bytes <= max {
        return Ok(());
    }
    let detail = format!("{bytes} bytes; at most {max} of a step");
    Err(Rejection::new(Code::EventTooLarge, detail).with("bytes_max", max))
}

fn extra(events: &[Input]) -> Result<(), Rejection> {
    if events.len() > BATCH_EVENTS_MAX {
        let detail = format!("{} events; at most {BATCH_EVENTS_MAX}", events.len());
        return Err(Rejection::new(Code::BatchTooLarge, detail));
    }
    let foreign = |e: &&Input| e.kind == EventType::UsageRecorded || matches!(e.ask, Ask::Usage(_));
    match events.iter().find(foreign) {
        None => Ok(()),
        Some(_) => Err(invalid("what a step cost goes into `usage`")),
    }
}

fn bytes(raw: &RawValue) -> Bytes {
    Bytes::copy_from_slice(raw.get().as_bytes())
}

fn missing(field: &str) -> Rejection {
    Rejection::new(Code::FieldInvalid, format!("missing field `{field}`"))
}
