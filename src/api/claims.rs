//! The claim protocol: `/v1/runners/{id}/claims` and `/v1/claims/{token}/…`.

use actix_web::body::BoxBody;
use actix_web::http::Method;
use actix_web::web::Payload;
use actix_web::{FromRequest, HttpRequest, HttpResponse};
use longhaul_actors::code::Rejection;

use super::body::Body;
use super::context::Ctx;
use super::guarded::Guarded;
use super::openapi::ProblemSchema;
use super::params::Params;
use super::problem::Answered;
use super::routes::{method_unknown, route_unknown};
use super::sessions::answer;
use crate::runtime::{VERBS, claims_body};

/// Where the calls under a claim are.
pub(super) const PREFIX: &str = "/v1/claims";
/// Claims in one answer.
const CLAIMS_MAX: usize = 100;

/// Long poll for claims. A connection that closes before the answer is written gives them back.
#[utoipa::path(post, path = "/v1/runners/{id}/claims", tag = "claims",
    params(("id" = String, Path), ("wait_ms" = Option<u64>, Query), ("max" = Option<usize>, Query)),
    responses((status = 200, description = "`{claims, clones}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn poll(ctx: Ctx, body: Body) -> Answered {
    let id = ctx.path_id("id")?;
    let mut params = Params::of(&ctx.req)?;
    let wait_ms = params.number("wait_ms", 0, u64::MAX)?.unwrap_or(0);
    let max = params.number("max", 1, CLAIMS_MAX)?.unwrap_or(1);
    params.finish()?;
    body.no_fields()?;
    ctx.no_idempotency_key("a poll is not a write")?;
    let runtime = ctx.runtime();
    let grants = runtime.claims_for(&ctx.caller, id, max, wait_ms).await?;
    let text = claims_body(runtime, &grants).await?;
    let guards = grants.claims.into_iter().map(|g| g.confirm).collect();
    let body = BoxBody::new(Guarded::new(text, guards));
    Ok(HttpResponse::Ok()
        .content_type("application/json")
        .body(body))
}

macro_rules! documented {
    ($($name:ident $path:literal $body:literal $what:literal;)+) => {
        $(
            #[doc = $what]
            #[utoipa::path(post, path = $path, tag = "claims",
                params(("token" = String, Path)),
                request_body(content = serde_json::Value, description = $body),
                responses((status = 200, description = $what), (status = "default", body = ProblemSchema)))]
            #[expect(dead_code, reason = "documents one verb of `route`")]
            pub(super) fn $name() {}
        )+
    };
}

documented! {
    ready "/v1/claims/{token}/ready" "`{n?}`" "The harness is ready.";
    heartbeat "/v1/claims/{token}/heartbeat" "`{n?}`" "Still here.";
    agent_events "/v1/claims/{token}/events" "`{n?, events: [{type, content}]}`" "Writes events of the agent (202).";
    inputs "/v1/claims/{token}/inputs" "`{n?, signal?}`; query `wait_ms`" "Takes input that has arrived meanwhile, or the oldest signal of a name.";
    steps "/v1/claims/{token}/steps" "`{n?, op, …}`, or `{n?, ops: [{op, …}]}`: `op` is `begin`, `complete`, `fail` or `resolve`; see docs/http.md" "What became of each step of the run's journal.";
    checkpoint "/v1/claims/{token}/checkpoint" "`{n?, snapshot: {id, provider, retention, bytes?}, resume?, name?, metadata?, cursor?}`" "Keeps a way back (201).";
    reject "/v1/claims/{token}/reject" "`{n?, checkpoint_id, reason, temporary?}`" "The checkpoint of the resume plan does not verify: it is never used again. With `temporary`, it cannot be read for now, and the run's next attempt gets an older one.";
    park "/v1/claims/{token}/park" "`{n?, waiting_on, compute}`" "Waits for something outside the run.";
    settle "/v1/claims/{token}/settle" "`{n?, outcome, error?, usage?}`" "The run is over.";
    release "/v1/claims/{token}/release" "`{n?}`" "Gives the attempt back, gracefully.";
}

/// Finds the claim and the verb in the path, then makes the call.
pub(super) async fn route(req: HttpRequest, payload: Payload) -> Answered {
    let path = req.path().strip_prefix(PREFIX).unwrap_or_default();
    let known = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    let Some((token, verb)) = known.filter(|(_, verb)| VERBS.contains(verb)) else {
        return route_unknown().await;
    };
    if req.method() != Method::POST {
        return Ok(method_unknown(req.clone()).await);
    }
    let ctx = Ctx::extract(&req).await?;
    let body = Body::from_request(&req, &mut payload.into_inner()).await?;
    ctx.no_idempotency_key("number the calls of a claim with `n` in the body")?;
    let wait_ms = wait_ms(&req, verb)?;
    Ok(answer(
        ctx.runtime()
            .claim_call(ctx.caller.bearer(), token, verb, wait_ms, &body.0)
            .await?,
    ))
}

/// How long `inputs` may wait; no other verb takes a parameter.
fn wait_ms(req: &HttpRequest, verb: &str) -> Result<u64, Rejection> {
    if req.query_string().is_empty() {
        return Ok(0);
    }
    let mut params = Params::of(req)?;
    let wait_ms = match verb {
        "inputs" => params.number("wait_ms", 0, u64::MAX)?,
        _ => None,
    };
    params.finish()?;
    Ok(wait_ms.unwrap_or(0))
}
