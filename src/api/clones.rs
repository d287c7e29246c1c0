//! `/v1/clones/{token}/…`: a runner answers for the copy of a disk that a fork waits for.

use serde::Deserialize;
use serde_json::json;

use super::body::Body;
use super::context::Ctx;
use super::openapi::ProblemSchema;
use super::params::Params;
use super::problem::Answered;
use super::sessions::json_value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Adopt {
    sandbox_ref: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fail {
    reason: String,
}

/// The copy is made; answered when the fork is there.
#[utoipa::path(post, path = "/v1/clones/{token}/adopt", tag = "claims",
    params(("token" = String, Path)),
    request_body(content = serde_json::Value, description = "`{sandbox_ref}`"),
    responses((status = 200, description = "`{}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn adopt(ctx: Ctx, body: Body) -> Answered {
    Params::of(&ctx.req)?.finish()?;
    ctx.no_idempotency_key("a clone is answered once")?;
    let token = ctx.path_id("token")?;
    let adopt: Adopt = body.fields()?;
    let engine = ctx.runtime().engine();
    engine
        .adopt_clone(ctx.caller.bearer(), token, adopt.sandbox_ref)
        .await?;
    Ok(json_value(200, &json!({})))
}

/// The copy cannot be made: the fork fails.
#[utoipa::path(post, path = "/v1/clones/{token}/fail", tag = "claims",
    params(("token" = String, Path)),
    request_body(content = serde_json::Value, description = "`{reason}`"),
    responses((status = 200, description = "`{}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn fail(ctx: Ctx, body: Body) -> Answered {
    Params::of(&ctx.req)?.finish()?;
    ctx.no_idempotency_key("a clone is answered once")?;
    let token = ctx.path_id("token")?;
    let fail: Fail = body.fields()?;
    let engine = ctx.runtime().engine();
    engine
        .fail_clone(ctx.caller.bearer(), token, fail.reason)
        .await?;
    Ok(json_value(200, &json!({})))
}
