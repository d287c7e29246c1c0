//! Bodies of the claim protocol: `POST /v1/claims/{token}/{verb}`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::agent::UsageContent;
use super::json::{check_json, typed};
use super::people::check_signal_name;
use super::{Origin, RawEvent, parse_events};
use crate::code::{Code, Rejection};
use crate::ids::CheckpointId;
use crate::session::blob::{BLOB_BYTES_MAX, describe};
use crate::session::checkpoints::DIR;
use crate::session::command::{NewCheckpoint, Park, ParkOn, Settle, Verb};
use crate::session::payload::{
    CheckpointKind, Compute, Outcome, ResumeFrom, Retention, RunError, SnapshotRef,
};

/// Most things one park waits for.
pub(super) const PARK_WAITS_MAX: usize = 64;
/// Longest error code and message of a run, bytes.
const ERROR_BYTES_MAX: usize = 16 << 10;

/// Longest name, cursor and provider's id of a checkpoint, bytes.
const TEXT_BYTES_MAX: usize = 1 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bare {
    #[serde(default)]
    n: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InputsBody {
    #[serde(default)]
    n: Option<u64>,
    #[serde(default)]
    signal: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Events<'a> {
    #[serde(default)]
    n: Option<u64>,
    #[serde(borrow)]
    events: Vec<RawEvent<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadyBody<'a> {
    #[serde(default)]
    n: Option<u64>,
    /// A handle of the runner's own for its sandbox; not kept by this version.
    #[serde(borrow, default, rename = "sandbox_ref")]
    _sandbox_ref: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ParkBody {
    #[serde(default)]
    n: Option<u64>,
    waiting_on: Vec<ParkOn>,
    #[serde(default)]
    compute: Option<Compute>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckpointBody {
    #[serde(default)]
    n: Option<u64>,
    #[serde(default)]
    kind: Option<CheckpointKind>,
    #[serde(default)]
    turn: Option<u64>,
    /// Why there is none; instead of a snapshot.
    #[serde(default)]
    failed: Option<String>,
    #[serde(default)]
    snapshot: Option<SnapshotBody>,
    #[serde(default)]
    resume: Option<ResumeBody>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    metadata: Map<String, Value>,
    #[serde(default)]
    cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum ResumeBody {
    RebuildFromLog {},
    Blob {
        data_base64: String,
        #[serde(default)]
        schema: Option<String>,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotBody {
    id: String,
    provider: String,
    retention: Retention,
    #[serde(default)]
    bytes: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RejectBody {
    #[serde(default)]
    n: Option<u64>,
    checkpoint_id: CheckpointId,
    reason: String,
    #[serde(default)]
    temporary: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleBody {
    #[serde(default)]
    n: Option<u64>,
    outcome: Outcome,
    #[serde(default)]
    error: Option<RunError>,
    #[serde(default)]
    usage: Option<UsageContent>,
    #[serde(default)]
    session_failed: bool,
}

/// Reads the body of one call; an empty body is `{}`.
///
/// # Errors
/// `request.body_invalid`, `request.field_unknown`, `request.field_invalid`, the codes of
/// [`parse_events`], `run.park_without_cause`; `request.route_unknown` for an unknown verb.
pub fn parse_attempt(verb: &str, body: &[u8]) -> Result<(Option<u64>, Verb), Rejection> {
    let body = if body.is_empty() { b"{}" } else { body };
    check_json(body)?;
    let (n, verb) = match verb {
        "ready" => {
            let b: ReadyBody<'_> = typed(body)?;
            (b.n, Verb::Ready)
        }
        "heartbeat" => (typed::<Bare>(body)?.n, Verb::Heartbeat),
        "inputs" => {
            let b: InputsBody = typed(body)?;
            let verb = match b.signal {
                None => Verb::Inputs,
                Some(name) => {
                    check_signal_name(&name)?;
                    Verb::Signal(name)
                }
            };
            (b.n, verb)
        }
        "steps" => super::step::parse(body)?,
        "release" => (typed::<Bare>(body)?.n, Verb::Release),
        "events" => {
            let b: Events<'_> = typed(body)?;
            (b.n, Verb::Events(parse_events(Origin::Runner, &b.events)?))
        }
        "park" => {
            let b: ParkBody = typed(body)?;
            b.waiting_on.iter().try_for_each(check_park)?;
            if b.waiting_on.is_empty() {
                return Err(Code::ParkWithoutCause.into());
            }
            if b.waiting_on.len() > PARK_WAITS_MAX {
                return Err(invalid(format!(
                    "a park waits for at most {PARK_WAITS_MAX} things"
                )));
            }
            let twice =
                |(i, w): (usize, &ParkOn)| b.waiting_on.iter().skip(i + 1).any(|o| same(w, o));
            if b.waiting_on.iter().enumerate().any(twice) {
                return Err(invalid("`waiting_on` names the same thing twice"));
            }
            let compute = b
                .compute
                .ok_or_else(|| invalid("missing field `compute`"))?;
            let digest = digest(body);
            let park = Park {
                waiting_on: b.waiting_on,
                compute,
                body: digest,
            };
            (b.n, Verb::Park(park))
        }
        "checkpoint" => {
            let b: CheckpointBody = typed(body)?;
            (b.n, checkpoint(b)?)
        }
        "reject" => {
            let b: RejectBody = typed(body)?;
            if b.reason.is_empty() || b.reason.len() > TEXT_BYTES_MAX {
                return Err(invalid(format!("`reason` has 1 to {TEXT_BYTES_MAX} bytes")));
            }
            let verb = Verb::RejectCheckpoint {
                checkpoint: b.checkpoint_id,
                reason: b.reason,
                temporary: b.temporary,
            };
            (b.n, verb)
        }
        "settle" => {
            let b: SettleBody = typed(body)?;
            (b.n, Verb::Settle(Box::new(settle(b, body)?)))
        }
        _ => {
            let detail = format!("a claim has no verb `{verb}`");
            return Err(Rejection::new(Code::RouteUnknown, detail));
        }
    };
    if n == Some(0) {
        return Err(invalid("`n` counts from 1"));
    }
    Ok((n, verb))
}

fn checkpoint(mut b: CheckpointBody) -> Result<Verb, Rejection> {
    let kind = b.kind.unwrap_or(CheckpointKind::Explicit);
    if !matches!(
        kind,
        CheckpointKind::Explicit | CheckpointKind::Turn | CheckpointKind::Pass
    ) {
        return Err(invalid("`kind` is `explicit`, `turn` or `pass`"));
    }
    match (b.failed.take(), b.snapshot.take()) {
        (None, Some(snapshot)) => {
            let new = checkpoint_made(b, kind, snapshot)?;
            Ok(Verb::Checkpoint(Box::new(new)))
        }
        (Some(reason), None) if !reason.is_empty() && reason.len() <= TEXT_BYTES_MAX => {
            Ok(Verb::CheckpointFailed { kind, reason })
        }
        (Some(_), None) => Err(invalid(format!("`failed` has 1 to {TEXT_BYTES_MAX} bytes"))),
        (None, None) => Err(invalid("missing field `snapshot`")),
        (Some(_), Some(_)) => Err(invalid("`failed` goes without `snapshot`")),
    }
}

fn checkpoint_made(
    b: CheckpointBody,
    kind: CheckpointKind,
    snapshot: SnapshotBody,
) -> Result<NewCheckpoint, Rejection> {
    let texts = [
        ("snapshot.id", Some(&snapshot.id)),
        ("snapshot.provider", Some(&snapshot.provider)),
        ("name", b.name.as_ref()),
        ("cursor", b.cursor.as_ref()),
    ];
    for (field, text) in texts {
        if text.is_some_and(|t| t.is_empty() || t.len() > TEXT_BYTES_MAX) {
            return Err(invalid(format!(
                "`{field}` has 1 to {TEXT_BYTES_MAX} bytes"
            )));
        }
    }
    if snapshot.provider == DIR && snapshot.retention == Retention::Platform {
        return Err(invalid("`dir` snapshots of a runner are `host_local`"));
    }
    let (resume, blob) = match b.resume {
        None | Some(ResumeBody::RebuildFromLog {}) => (ResumeFrom::RebuildFromLog, None),
        Some(ResumeBody::Blob {
            data_base64,
            schema,
        }) => {
            let bytes = blob(&data_base64)?;
            if schema
                .as_ref()
                .is_some_and(|s| s.is_empty() || s.len() > TEXT_BYTES_MAX)
            {
                let text = format!("`resume.schema` has 1 to {TEXT_BYTES_MAX} bytes");
                return Err(invalid(text));
            }
            (describe(&bytes, schema), Some(bytes))
        }
    };
    Ok(NewCheckpoint {
        kind,
        turn: b.turn,
        snapshot: SnapshotRef {
            id: snapshot.id,
            provider: snapshot.provider,
            retention: snapshot.retention,
            runner_id: None,
            bytes: snapshot.bytes,
        },
        kept: None,
        resume,
        blob,
        name: b.name,
        metadata_json: Value::Object(b.metadata).to_string(),
        cursor: b.cursor,
    })
}

fn blob(text: &str) -> Result<Bytes, Rejection> {
    // Four characters stand for three bytes; what is far too long is not read at all.
    let long = text.len() > BLOB_BYTES_MAX.div_ceil(3) * 4;
    let bytes = match long {
        true => Vec::new(),
        false => STANDARD
            .decode(text)
            .map_err(|e| invalid(format!("`resume.data_base64` is no base64: {e}")))?,
    };
    if long || bytes.len() > BLOB_BYTES_MAX {
        let r = Rejection::plain(Code::BlobTooLarge);
        return Err(r.with("bytes_max", BLOB_BYTES_MAX));
    }
    Ok(bytes.into())
}

fn settle(b: SettleBody, body: &[u8]) -> Result<Settle, Rejection> {
    if !matches!(b.outcome, Outcome::Succeeded | Outcome::Failed) {
        return Err(invalid("a runner settles with `succeeded` or `failed`"));
    }
    if let Some(e) = &b.error {
        if b.outcome == Outcome::Succeeded {
            return Err(invalid("`error` goes with `failed`"));
        }
        check_error(e)?;
    }
    Ok(Settle {
        outcome: b.outcome,
        error: b.error,
        usage: b.usage.map(Into::into).unwrap_or_default(),
        session_failed: b.session_failed,
        checkpoint: None,
        body: digest(body),
    })
}

/// An error has a code, and is short.
pub(super) fn check_error(e: &RunError) -> Result<(), Rejection> {
    if e.code.is_empty() || e.code.len() + e.message.len() > ERROR_BYTES_MAX {
        return Err(invalid(format!(
            "`error` has a code, and at most {ERROR_BYTES_MAX} bytes"
        )));
    }
    Ok(())
}

fn check_park(on: &ParkOn) -> Result<(), Rejection> {
    let items = [on.question_id, on.approval_id, on.tool_use_id]
        .iter()
        .flatten()
        .count();
    let named = items + usize::from(on.signal.is_some()) + usize::from(on.budget.is_some());
    if named != 1 {
        return Err(invalid(
            "each entry of `waiting_on` names exactly one thing",
        ));
    }
    if let Some(name) = &on.signal {
        check_signal_name(name)?;
    }
    if on.budget == Some(false) {
        return Err(invalid("`budget` can only be true"));
    }
    match on.timeout_ms {
        None => Ok(()),
        Some(0) => Err(invalid("`timeout_ms` must be at least 1")),
        Some(_) if on.signal.is_some() => Ok(()),
        Some(_) => Err(invalid("`timeout_ms` goes with `signal`")),
    }
}

fn same(a: &ParkOn, b: &ParkOn) -> bool {
    let item = |w: &ParkOn| w.question_id.or(w.approval_id).or(w.tool_use_id);
    item(a) == item(b) && a.signal == b.signal && a.budget == b.budget
}

fn digest(body: &[u8]) -> [u8; 16] {
    let mut out = [0; 16];
    blake3::Hasher::new()
        .update(body)
        .finalize_xof()
        .fill(&mut out);
    out
}

pub(super) fn invalid(detail: impl Into<String>) -> Rejection {
    Rejection::new(Code::FieldInvalid, detail)
}
