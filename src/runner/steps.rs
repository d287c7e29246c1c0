//! Operations on a run's journal on the wire: `POST /v1/claims/{token}/steps`, as a runner
//! elsewhere makes the call.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use longhaul_actors::code::Code;
use longhaul_actors::ids::{EventId, RunId};
use longhaul_actors::session::command::Input;
use longhaul_actors::session::payload::{RunError, Usage};
use longhaul_actors::session::step::{
    BeginStep, OnDoubt, OnFailure, StepEffects, StepOp, StepRecorded, StepResult, StepValue,
    Verdict,
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::protocol::{ApiError, Problem};

/// The body of a call.
///
/// # Errors
/// A value that is not JSON.
pub(super) fn body(ops: &[StepOp]) -> Result<Vec<u8>, String> {
    let bytes: usize = ops.iter().map(StepOp::content_bytes).sum();
    let said = Body {
        ops: ops.iter().map(Op::of).collect::<Result<_, _>>()?,
    };
    let mut out = Vec::with_capacity(bytes + ops.len() * 256 + 16);
    serde_json::to_writer(&mut out, &said).map_err(|e| e.to_string())?;
    Ok(out)
}

/// What cannot be said, or read.
pub(super) fn refused(code: Code, why: String) -> ApiError {
    let info = code.info();
    ApiError::Refused(Box::new(Problem {
        status: info.status,
        code: info.code.to_owned(),
        detail: why,
        ..Problem::default()
    }))
}

#[derive(Serialize)]
struct Body<'a> {
    ops: Vec<Op<'a>>,
}

/// One operation; which fields it has, `op` says. Values go out as the bytes that they are.
#[derive(Serialize, Default)]
struct Op<'a> {
    op: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    occurrence: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_digest: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effects: Option<StepEffects>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_doubt: Option<OnDoubt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_failure: Option<OnFailure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_id: Option<EventId>,
    #[serde(rename = "as", skip_serializing_if = "Option::is_none")]
    verdict: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RunError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<Event<'a>>,
}

#[derive(Serialize)]
struct Event<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    content: &'a RawValue,
}

impl<'a> Op<'a> {
    fn of(op: &'a StepOp) -> Result<Self, String> {
        match op {
            StepOp::Begin(b) => Self::begin(b),
            StepOp::Complete(c) => {
                let out = Self::ending("complete", c.step);
                out.value(&c.value)?.extra(c.usage.as_ref(), &c.events)
            }
            StepOp::Fail(f) => {
                let mut out = Self::ending("fail", f.step);
                out.error = Some(&f.error);
                out.partial = f.partial.as_ref().map(|p| raw(p)).transpose()?;
                out.extra(f.usage.as_ref(), &f.events)
            }
            StepOp::Resolve(r) => {
                let mut out = Self::ending("resolve", r.step);
                out.verdict = Some(match &r.verdict {
                    Verdict::Retry => "retry",
                    Verdict::Completed(_) => "completed",
                    Verdict::Failed(_) => "failed",
                });
                match &r.verdict {
                    Verdict::Retry => {}
                    Verdict::Completed(value) => out = out.value(value)?,
                    Verdict::Failed(error) => out.error = Some(error),
                }
                Ok(out)
            }
        }
    }

    fn begin(b: &'a BeginStep) -> Result<Self, String> {
        Ok(Self {
            op: "begin",
            name: Some(&b.place.name),
            path: Some(&*b.place.path).filter(|path| !path.is_empty()),
            occurrence: Some(b.place.occurrence),
            input_digest: Some(&b.input_digest),
            input: b.input.as_ref().map(|input| raw(input)).transpose()?,
            idempotency_key: b.place.idempotency_key.as_deref(),
            effects: Some(b.effects),
            on_doubt: Some(b.on_doubt),
            on_failure: Some(b.on_failure),
            ..Self::default()
        })
    }

    fn ending(op: &'static str, step: EventId) -> Self {
        Self {
            op,
            step_id: Some(step),
            ..Self::default()
        }
    }

    fn value(mut self, value: &'a StepValue) -> Result<Self, String> {
        match value {
            StepValue::Json(json) => self.value = Some(raw(json)?),
            StepValue::Bytes {
                content_type,
                bytes,
            } => {
                self.value_base64 = Some(STANDARD.encode(bytes));
                self.content_type = Some(content_type);
            }
        }
        Ok(self)
    }

    fn extra(
        mut self,
        usage: Option<&'a (Usage, Bytes)>,
        events: &'a [Input],
    ) -> Result<Self, String> {
        self.usage = usage.map(|(_, content)| raw(content)).transpose()?;
        let events = events.iter().map(|e| {
            Ok(Event {
                kind: e.kind.text(),
                content: raw(&e.content)?,
            })
        });
        self.events = events.collect::<Result<_, String>>()?;
        Ok(self)
    }
}

fn raw(json: &[u8]) -> Result<&RawValue, String> {
    serde_json::from_slice(json).map_err(|e| format!("a value is not JSON: {e}"))
}

#[derive(Deserialize)]
struct Results<'a> {
    #[serde(borrow)]
    results: Vec<Answer<'a>>,
}

/// One answer; which fields it has, its state says.
#[derive(Deserialize)]
struct Answer<'a> {
    state: &'a str,
    step_id: EventId,
    #[serde(borrow, default, deserialize_with = "present")]
    value: Option<&'a RawValue>,
    #[serde(default)]
    value_base64: Option<String>,
    #[serde(default)]
    content_type: Option<String>,
    #[serde(default)]
    event_ids: Option<Vec<EventId>>,
    #[serde(default)]
    budget_exceeded: bool,
    #[serde(default)]
    error: Option<RunError>,
    #[serde(borrow, default, deserialize_with = "present")]
    partial: Option<&'a RawValue>,
    #[serde(default)]
    failures: u32,
    #[serde(default)]
    started_attempt: Option<u32>,
    #[serde(default)]
    started_run_id: Option<RunId>,
}

/// A field that is there, `null` too.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(d: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(d).map(Some)
}

/// The answers of a call.
///
/// # Errors
/// What does not fit.
pub(super) fn results(body: &[u8]) -> Result<Vec<StepResult>, String> {
    let answers: Results<'_> = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    answers.results.into_iter().map(result).collect()
}

fn result(a: Answer<'_>) -> Result<StepResult, String> {
    let step = a.step_id;
    let recorded = |failed, a: Answer<'_>| {
        StepResult::Recorded(StepRecorded {
            step,
            failed,
            failures: a.failures,
            event_ids: a.event_ids.unwrap_or_default(),
            budget_exceeded: a.budget_exceeded,
        })
    };
    match a.state {
        "execute" => Ok(StepResult::Execute { step }),
        "in_progress" => Ok(StepResult::InProgress { step }),
        "in_doubt" => match (a.started_attempt, a.started_run_id) {
            (Some(started_attempt), Some(started_run)) => Ok(StepResult::InDoubt {
                step,
                started_attempt,
                started_run,
            }),
            _ => Err("a step in doubt without its attempt".to_owned()),
        },
        "completed" => match (a.value, a.value_base64) {
            (Some(json), None) => Ok(StepResult::Completed {
                step,
                value: StepValue::Json(kept(json)),
                event_ids: a.event_ids.unwrap_or_default(),
            }),
            (None, Some(text)) => {
                let bytes = STANDARD.decode(text).map_err(|e| e.to_string())?;
                Ok(StepResult::Completed {
                    step,
                    value: StepValue::Bytes {
                        content_type: a.content_type.unwrap_or_default(),
                        bytes: bytes.into(),
                    },
                    event_ids: a.event_ids.unwrap_or_default(),
                })
            }
            (value, _) => Ok(recorded(
                false,
                Answer {
                    value,
                    value_base64: None,
                    ..a
                },
            )),
        },
        "failed" => match a.error.clone() {
            Some(error) => Ok(StepResult::Failed {
                step,
                error,
                partial: a.partial.map(kept),
                failures: a.failures,
            }),
            None => Ok(recorded(true, a)),
        },
        other => Err(format!("a step is `{other}`")),
    }
}

/// A value without the rest of its answer.
fn kept(value: &RawValue) -> Bytes {
    Bytes::copy_from_slice(value.get().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use longhaul_actors::session::input::{Origin, parse_attempt, parse_one};
    use longhaul_actors::session::step::{CompleteStep, FailStep, ResolveStep, StepPlace};
    use serde_json::json;

    fn ops() -> Vec<StepOp> {
        let step = EventId([7; 16]);
        let error = RunError {
            code: "a.b".into(),
            message: "c".into(),
        };
        let event = parse_one(Origin::Runner, "agent.message", r#"{"text":"x"}"#).unwrap();
        let usage = Usage {
            cost_micros: 3,
            ..Usage::default()
        };
        let bytes = StepValue::Bytes {
            content_type: "image/png".into(),
            bytes: Bytes::from_static(&[0, 255]),
        };
        let place = |key: Option<&str>| StepPlace {
            path: "a/b".into(),
            name: "s".into(),
            occurrence: 2,
            idempotency_key: key.map(str::to_owned),
        };
        let begin = |key, on_doubt| BeginStep {
            place: place(key),
            input_digest: "d".into(),
            input: Some(Bytes::from_static(b"null")),
            effects: StepEffects::Sandbox,
            on_doubt,
            on_failure: OnFailure::Retry,
        };
        let complete = |value| CompleteStep {
            step,
            value,
            usage: Some((usage, Bytes::from_static(br#"{"cost_micros":3}"#))),
            events: vec![event.clone()],
        };
        let resolve = |verdict| StepOp::Resolve(Arc::new(ResolveStep { step, verdict }));
        vec![
            StepOp::Begin(Arc::new(begin(None, OnDoubt::Retry))),
            StepOp::Begin(Arc::new(begin(Some("k"), OnDoubt::Surface))),
            StepOp::Complete(Arc::new(complete(StepValue::Json("null".into())))),
            StepOp::Complete(Arc::new(complete(bytes.clone()))),
            StepOp::Fail(Arc::new(FailStep {
                step,
                error: error.clone(),
                partial: Some("[1]".into()),
                usage: None,
                events: Vec::new(),
            })),
            resolve(Verdict::Retry),
            resolve(Verdict::Completed(bytes)),
            resolve(Verdict::Failed(error)),
        ]
    }

    #[test]
    fn the_server_reads_what_is_said() {
        let said = body(&ops()).unwrap();
        let (n, verb) = parse_attempt("steps", &said).unwrap();
        assert_eq!(n, None);
        let longhaul_actors::session::command::Verb::Steps { ops: read, many } = verb else {
            panic!("{verb:?}");
        };
        assert!(many);
        assert_eq!(format!("{read:?}"), format!("{:?}", ops()));
    }

    #[test]
    fn answers_are_read_by_their_state() {
        let step = EventId([7; 16]);
        let run = RunId([6; 16]);
        let answers = json!({ "results": [
            { "state": "execute", "step_id": step },
            { "state": "completed", "step_id": step, "value": null },
            { "state": "completed", "step_id": step, "value_base64": "AP8=", "content_type": "a/b", "event_ids": [step] },
            { "state": "completed", "step_id": step, "event_ids": [], "budget_exceeded": true },
            { "state": "failed", "step_id": step, "failures": 2, "error": { "code": "a.b", "message": "c" }, "partial": [] },
            { "state": "failed", "step_id": step, "failures": 1, "event_ids": [] },
            { "state": "in_progress", "step_id": step },
            { "state": "in_doubt", "step_id": step, "started_attempt": 1, "started_run_id": run },
        ]});
        let read = results(answers.to_string().as_bytes()).unwrap();
        assert_eq!(read[0], StepResult::Execute { step });
        let null = StepValue::Json("null".into());
        assert!(matches!(&read[1], StepResult::Completed { value, .. } if *value == null));
        assert!(
            matches!(&read[2], StepResult::Completed { event_ids, .. } if event_ids.len() == 1)
        );
        assert!(matches!(&read[3], StepResult::Recorded(r) if !r.failed && r.budget_exceeded));
        assert!(matches!(
            &read[4],
            StepResult::Failed {
                failures: 2,
                partial: Some(_),
                ..
            }
        ));
        assert!(matches!(&read[5], StepResult::Recorded(r) if r.failed && r.failures == 1));
        assert_eq!(read[6], StepResult::InProgress { step });
        assert!(matches!(read[7], StepResult::InDoubt { started_run, .. } if started_run == run));
        let odd = json!({ "results": [{ "state": "lost", "step_id": step }] });
        assert!(results(odd.to_string().as_bytes()).is_err());
    }
}
