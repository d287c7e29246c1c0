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
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::protocol::{ApiError, Problem};

/// The body of a call.
///
/// # Errors
/// A value that is not JSON.
pub(super) fn body(ops: &[StepOp]) -> Result<Value, String> {
    let ops: Vec<Value> = ops.iter().map(op).collect::<Result<_, _>>()?;
    Ok(json!({ "ops": ops }))
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

fn op(op: &StepOp) -> Result<Value, String> {
    let mut out = Map::new();
    match op {
        StepOp::Begin(b) => begin(b, &mut out)?,
        StepOp::Complete(c) => {
            out.insert("op".into(), "complete".into());
            out.insert("step_id".into(), json!(c.step));
            value(&c.value, &mut out)?;
            extra(c.usage.as_ref(), &c.events, &mut out)?;
        }
        StepOp::Fail(f) => {
            out.insert("op".into(), "fail".into());
            out.insert("step_id".into(), json!(f.step));
            out.insert("error".into(), json!(f.error));
            if let Some(partial) = &f.partial {
                out.insert("partial".into(), parsed(partial)?);
            }
            extra(f.usage.as_ref(), &f.events, &mut out)?;
        }
        StepOp::Resolve(r) => {
            out.insert("op".into(), "resolve".into());
            out.insert("step_id".into(), json!(r.step));
            let verdict = match &r.verdict {
                Verdict::Retry => "retry",
                Verdict::Completed(v) => {
                    value(v, &mut out)?;
                    "completed"
                }
                Verdict::Failed(error) => {
                    out.insert("error".into(), json!(error));
                    "failed"
                }
            };
            out.insert("as".into(), verdict.into());
        }
    }
    Ok(Value::Object(out))
}

fn begin(b: &BeginStep, out: &mut Map<String, Value>) -> Result<(), String> {
    out.insert("op".into(), "begin".into());
    out.insert("name".into(), b.place.name.clone().into());
    if !b.place.path.is_empty() {
        out.insert("path".into(), b.place.path.clone().into());
    }
    out.insert("occurrence".into(), b.place.occurrence.into());
    out.insert("input_digest".into(), b.input_digest.clone().into());
    if let Some(input) = &b.input {
        out.insert("input".into(), parsed(input)?);
    }
    if let Some(key) = &b.place.idempotency_key {
        out.insert("idempotency_key".into(), key.clone().into());
    }
    let effects = match b.effects {
        StepEffects::External => "external",
        StepEffects::Sandbox => "sandbox",
    };
    let on_doubt = match b.on_doubt {
        OnDoubt::Retry => "retry",
        OnDoubt::Surface => "surface",
    };
    let on_failure = match b.on_failure {
        OnFailure::Retry => "retry",
        OnFailure::Surface => "surface",
    };
    out.insert("effects".into(), effects.into());
    out.insert("on_doubt".into(), on_doubt.into());
    out.insert("on_failure".into(), on_failure.into());
    Ok(())
}

fn value(value: &StepValue, out: &mut Map<String, Value>) -> Result<(), String> {
    match value {
        StepValue::Json(json) => {
            out.insert("value".into(), parsed(json)?);
        }
        StepValue::Bytes {
            content_type,
            bytes,
        } => {
            out.insert("value_base64".into(), STANDARD.encode(bytes).into());
            out.insert("content_type".into(), content_type.clone().into());
        }
    }
    Ok(())
}

fn extra(
    usage: Option<&(Usage, Bytes)>,
    events: &[Input],
    out: &mut Map<String, Value>,
) -> Result<(), String> {
    if let Some((_, content)) = usage {
        out.insert("usage".into(), parsed(content)?);
    }
    if !events.is_empty() {
        let events = events.iter().map(|e| {
            let content = parsed(&e.content)?;
            Ok(json!({"type": e.kind.text(), "content": content}))
        });
        let events = events.collect::<Result<Vec<_>, String>>()?;
        out.insert("events".into(), events.into());
    }
    Ok(())
}

fn parsed(json: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(json).map_err(|e| format!("a value is not JSON: {e}"))
}

#[derive(Deserialize)]
struct Results {
    results: Vec<Answer>,
}

/// One answer; which fields it has, its state says.
#[derive(Deserialize)]
struct Answer {
    state: String,
    step_id: EventId,
    #[serde(default, deserialize_with = "given")]
    value: Option<Value>,
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
    #[serde(default, deserialize_with = "given")]
    partial: Option<Value>,
    #[serde(default)]
    failures: u32,
    #[serde(default)]
    started_attempt: Option<u32>,
    #[serde(default)]
    started_run_id: Option<RunId>,
}

/// A field that is there, `null` too.
fn given<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(d).map(Some)
}

/// The answers of a call.
///
/// # Errors
/// What does not fit.
pub(super) fn results(body: &Value) -> Result<Vec<StepResult>, String> {
    let answers = Results::deserialize(body).map_err(|e| e.to_string())?;
    answers.results.into_iter().map(result).collect()
}

fn result(a: Answer) -> Result<StepResult, String> {
    let step = a.step_id;
    let recorded = |failed, a: Answer| {
        StepResult::Recorded(StepRecorded {
            step,
            failed,
            failures: a.failures,
            event_ids: a.event_ids.unwrap_or_default(),
            budget_exceeded: a.budget_exceeded,
        })
    };
    match a.state.as_str() {
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
                value: StepValue::Json(json.to_string().into()),
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
                partial: a.partial.map(|p| p.to_string().into()),
                failures: a.failures,
            }),
            None => Ok(recorded(true, a)),
        },
        other => Err(format!("a step is `{other}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_actors::session::input::{Origin, parse_attempt, parse_one};
    use longhaul_actors::session::step::{CompleteStep, FailStep, ResolveStep, StepPlace};

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
        let resolve = |verdict| StepOp::Resolve(Box::new(ResolveStep { step, verdict }));
        vec![
            StepOp::Begin(Box::new(begin(None, OnDoubt::Retry))),
            StepOp::Begin(Box::new(begin(Some("k"), OnDoubt::Surface))),
            StepOp::Complete(Box::new(complete(StepValue::Json("null".into())))),
            StepOp::Complete(Box::new(complete(bytes.clone()))),
            StepOp::Fail(Box::new(FailStep {
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
        let said = body(&ops()).unwrap().to_string();
        let (n, verb) = parse_attempt("steps", said.as_bytes()).unwrap();
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
        let read = results(&answers).unwrap();
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
        assert!(results(&odd).is_err());
    }
}
