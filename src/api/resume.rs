//! `/v1/sessions/{id}/resume`.

use std::borrow::Cow;

use longhaul_actors::code::Rejection;
use longhaul_actors::ids::CheckpointId;
use serde::Deserialize;

use super::body::Body;
use super::context::{Ctx, bad_id};
use super::openapi::{ProblemSchema, ResumeSchema};
use super::params::Params;
use super::problem::Answered;
use super::sessions::answer;
use crate::runtime::ResumeSession;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resume<'a> {
    #[serde(default)]
    prompt: Option<String>,
    #[serde(borrow, default)]
    from: Option<Cow<'a, str>>,
    #[serde(default)]
    user: Option<String>,
}

/// Goes on with a conversation: in place from the newest checkpoint, or from wherever it is; in a
/// fork from an older one. A run that failed is continued: its completed steps are not made again.
#[utoipa::path(post, path = "/v1/sessions/{id}/resume", tag = "sessions", request_body = ResumeSchema,
    params(("id" = String, Path), ("idempotency-key" = Option<String>, Header)),
    responses((status = 202, description = "`{session_id, forked, events}`"),
        (status = "default", body = ProblemSchema)))]
pub(super) async fn resume(ctx: Ctx, body: Body) -> Answered {
    let id = ctx.path_id("id")?;
    Params::of(&ctx.req)?.finish()?;
    let asked = ctx.asked(&body.0)?;
    let Resume { prompt, from, user } = body.fields()?;
    let resume = ResumeSession {
        prompt,
        from: selected(from.as_deref())?,
        user,
    };
    Ok(answer(ctx.runtime().resume(asked, id, resume).await?))
}

fn selected(from: Option<&str>) -> Result<Option<CheckpointId>, Rejection> {
    match from {
        None | Some("latest") => Ok(None),
        Some(id) => CheckpointId::parse(id)
            .map(Some)
            .map_err(|e| bad_id("from", &e)),
    }
}
