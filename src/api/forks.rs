//! `/v1/sessions/{id}/fork`, `diff`, `tree`, `checkpoints`.

use std::borrow::Cow;

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::ids::{CheckpointId, EventId, SessionId};
use longhaul_actors::limits::PAGE_EVENTS_MAX;
use longhaul_actors::session::payload::Selector;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::body::Body;
use super::context::{Ctx, bad_id};
use super::events::splice;
use super::openapi::{ForkSchema, PinSchema, ProblemSchema};
use super::params::{Params, bad};
use super::problem::Answered;
use super::sessions::{PAGE_LEN, PAGE_LEN_MAX, answer, json_bytes, json_value};
use crate::runtime::{Diff, DiffQuery, DiffSide, ForkSession};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewFork<'a> {
    #[serde(borrow)]
    from: From<'a>,
    #[serde(default)]
    principal: Option<String>,
    #[serde(default)]
    metadata: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct From<'a> {
    #[serde(default)]
    head: Option<bool>,
    #[serde(borrow, default)]
    event_id: Option<Cow<'a, str>>,
    #[serde(default)]
    seq: Option<u64>,
    #[serde(borrow, default)]
    checkpoint_id: Option<Cow<'a, str>>,
}

impl From<'_> {
    /// The one place that is named.
    fn selector(&self) -> Result<Selector, Rejection> {
        let invalid = |detail: &str| Rejection::new(Code::FieldInvalid, detail);
        match (self.head, &self.event_id, self.seq, &self.checkpoint_id) {
            (Some(true), None, None, None) => Ok(Selector::Head),
            (Some(false), None, None, None) => Err(invalid("from.head is true or absent")),
            (None, Some(id), None, None) => EventId::parse(id)
                .map(Selector::EventId)
                .map_err(|e| bad_id("from.event_id", &e)),
            (None, None, Some(0), None) => Err(invalid("from.seq is at least 1")),
            (None, None, Some(seq), None) => Ok(Selector::Seq(seq)),
            (None, None, None, Some(id)) => CheckpointId::parse(id)
                .map(Selector::CheckpointId)
                .map_err(|e| bad_id("from.checkpoint_id", &e)),
            _ => Err(invalid(
                "from has exactly one of head, event_id, seq, checkpoint_id",
            )),
        }
    }
}

/// Forks a session: a new one with the same past up to and with the selected place.
#[utoipa::path(post, path = "/v1/sessions/{id}/fork", tag = "sessions", request_body = ForkSchema,
    params(("id" = String, Path), ("idempotency-key" = Option<String>, Header)),
    responses((status = 201, description = "the child"), (status = "default", body = ProblemSchema)))]
pub(super) async fn fork(ctx: Ctx, body: Body) -> Answered {
    let id = ctx.path_id("id")?;
    Params::of(&ctx.req)?.finish()?;
    let new: NewFork<'_> = body.fields()?;
    let fork = ForkSession {
        from: new.from.selector()?,
        principal: new.principal,
        metadata: new.metadata,
    };
    let asked = ctx.asked(&body.0)?;
    Ok(answer(ctx.runtime().fork(asked, id, fork).await?))
}

/// What two sessions share, and what each has of its own.
#[utoipa::path(get, path = "/v1/sessions/{id}/diff", tag = "sessions",
    params(("id" = String, Path), ("against" = String, Query), ("limit" = Option<usize>, Query),
        ("left_after" = Option<u64>, Query), ("right_after" = Option<u64>, Query)),
    responses((status = 200, description = "`{common: {through_seq, through_event_id}, left, right}`, \
        each side `{session_id, status, usage, events, next_after}`"),
        (status = "default", body = ProblemSchema)))]
pub(super) async fn diff(ctx: Ctx) -> Answered {
    let left: SessionId = ctx.path_id("id")?;
    let mut params = Params::of(&ctx.req)?;
    let against = params.take("against");
    let query = DiffQuery {
        limit: params
            .number("limit", 1, PAGE_EVENTS_MAX)?
            .unwrap_or(PAGE_LEN),
        left_after: params.cursor("left_after")?,
        right_after: params.cursor("right_after")?,
    };
    params.finish()?;
    let against = against.ok_or_else(|| bad("`against` names the other session"))?;
    let right = SessionId::parse(&against).map_err(|e| bad_id("against", &e))?;
    let runtime = ctx.runtime();
    let diff = runtime.diff(ctx.viewer(), left, right, query).await?;
    Ok(json_bytes(200, shown(&diff)))
}

fn shown(diff: &Diff) -> Vec<u8> {
    let common = json!({
        "through_seq": diff.common.through_seq,
        "through_event_id": diff.common.through_event_id,
    });
    let mut out = format!("{{\"common\":{common}").into_bytes();
    side(&mut out, "left", &diff.left);
    side(&mut out, "right", &diff.right);
    out.push(b'}');
    out
}

fn side(out: &mut Vec<u8>, name: &str, side: &DiffSide) {
    let (id, status, usage) = (side.session, &side.status, &side.usage);
    let head =
        format!(",\"{name}\":{{\"session_id\":\"{id}\",\"status\":{status},\"usage\":{usage},");
    out.extend_from_slice(head.as_bytes());
    splice(out, &side.page.events);
    let next = json!(side.page.next_after);
    out.extend_from_slice(format!(",\"next_after\":{next}}}").as_bytes());
}

/// Everything forked from the same first session.
#[utoipa::path(get, path = "/v1/sessions/{id}/tree", tag = "sessions", params(("id" = String, Path)),
    responses((status = 200, description = "`{session_id, root, sessions, truncated}`"),
        (status = "default", body = ProblemSchema)))]
pub(super) async fn tree(ctx: Ctx) -> Answered {
    let id = ctx.path_id("id")?;
    Params::of(&ctx.req)?.finish()?;
    let tree = ctx.runtime().tree(ctx.viewer(), id).await?;
    Ok(json_value(200, &tree))
}

/// Checkpoints of a session, newest first.
#[utoipa::path(get, path = "/v1/sessions/{id}/checkpoints", tag = "checkpoints",
    params(("id" = String, Path), ("limit" = Option<usize>, Query), ("page" = Option<String>, Query)),
    responses((status = 200, description = "`{checkpoints, next_page}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn checkpoints(ctx: Ctx) -> Answered {
    let id = ctx.path_id("id")?;
    let mut params = Params::of(&ctx.req)?;
    let limit = params.number("limit", 1, PAGE_LEN_MAX)?.unwrap_or(PAGE_LEN);
    let after = params.page::<CheckpointId>()?;
    params.finish()?;
    let mut all = ctx.runtime().checkpoints(ctx.viewer(), id).await?;
    if let Some(after) = after {
        let after = after.to_string();
        let named = |c: &Value| c.get("id").and_then(Value::as_str) == Some(after.as_str());
        let Some(at) = all.iter().position(named) else {
            let detail = "the checkpoint that `page` goes on from is no longer listed; start again";
            return Err(Rejection::new(Code::CursorInvalid, detail).into());
        };
        all.drain(..=at);
    }
    let more = all.len() > limit;
    all.truncate(limit);
    let last = all.last().filter(|_| more);
    let next = last.and_then(|c| c.get("id").cloned());
    Ok(json_value(
        200,
        &json!({ "checkpoints": all, "next_page": next }),
    ))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pin {
    pinned: bool,
}

/// Exempts a checkpoint from the count, or no longer. Its end stays where it is.
#[utoipa::path(post, path = "/v1/sessions/{id}/checkpoints/{checkpoint}/pin", tag = "checkpoints",
    request_body = PinSchema,
    params(("id" = String, Path), ("checkpoint" = String, Path), ("idempotency-key" = Option<String>, Header)),
    responses((status = 200, description = "the checkpoint"), (status = "default", body = ProblemSchema)))]
pub(super) async fn pin(ctx: Ctx, body: Body) -> Answered {
    let (id, checkpoint) = (ctx.path_id("id")?, ctx.path_id("checkpoint")?);
    Params::of(&ctx.req)?.finish()?;
    let asked = ctx.asked(&body.0)?;
    let Pin { pinned } = body.fields()?;
    let runtime = ctx.runtime();
    Ok(answer(runtime.pin(asked, id, checkpoint, pinned).await?))
}
