//! `/v1/sessions`.

use std::borrow::Cow;

use actix_web::HttpResponse;
use actix_web::http::header::{CONTENT_TYPE, HeaderValue};
use longhaul_actors::engine::{Answer, UsageQuery};
use longhaul_actors::ids::{DeploymentId, SessionId};
use longhaul_actors::session::input::{Origin, RawEvent, parse_events};
use longhaul_actors::session::payload::Budget;
use longhaul_actors::session::status::Status;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::body::Body;
use super::context::{Ctx, bad_id};
use super::openapi::{BudgetSchema, NewSessionSchema, ProblemSchema};
use super::params::{Params, bad};
use super::problem::Answered;
use crate::runtime::CreateSession;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Lines of one page of a list.
pub(super) const PAGE_LEN_MAX: usize = 1_000;
/// Without `limit`.
pub(super) const PAGE_LEN: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewSession<'a> {
    #[serde(borrow)]
    agent_deployment: Cow<'a, str>,
    #[serde(default)]
    agent_deployment_revision_number: Option<u32>,
    #[serde(default)]
    principal: Option<String>,
    #[serde(borrow, default)]
    events: Vec<RawEvent<'a>>,
    #[serde(default)]
    metadata: Map<String, Value>,
    #[serde(default)]
    budget: Option<Budget>,
}

/// What is left out stays as it is; `null` lifts the limit.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewBudget {
    #[serde(default, deserialize_with = "given")]
    cost_micros_max: Option<Option<u64>>,
    #[serde(default, deserialize_with = "given")]
    tokens_max: Option<Option<u64>>,
}

/// A field that is there, `null` too.
fn given<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::<u64>::deserialize(d).map(Some)
}

pub(super) fn answer(answer: Answer) -> HttpResponse {
    json_bytes(answer.status, answer.body)
}

pub(super) fn json_bytes(status: u16, body: impl Into<bytes::Bytes>) -> HttpResponse {
    let status = actix_web::http::StatusCode::from_u16(status);
    let status = status.unwrap_or(actix_web::http::StatusCode::INTERNAL_SERVER_ERROR);
    HttpResponse::build(status)
        .insert_header((CONTENT_TYPE, JSON))
        .body(body.into())
}

pub(super) fn json_value(status: u16, value: &Value) -> HttpResponse {
    json_bytes(status, value.to_string())
}

/// Starts a session.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", request_body = NewSessionSchema,
    params(("idempotency-key" = Option<String>, Header)),
    responses((status = 201, description = "the session"), (status = "default", body = ProblemSchema)))]
pub(super) async fn create(ctx: Ctx, body: Body) -> Answered {
    Params::of(&ctx.req)?.finish()?;
    let new: NewSession<'_> = body.fields()?;
    let deployment = DeploymentId::parse(&new.agent_deployment);
    let deployment = deployment.map_err(|e| bad_id("agent_deployment", &e))?;
    let events = match new.events.as_slice() {
        [] => Vec::new(),
        events => parse_events(Origin::People, events)?,
    };
    let create = CreateSession {
        deployment,
        revision: new.agent_deployment_revision_number,
        principal: new.principal,
        metadata: new.metadata,
        budget: new.budget,
        events,
    };
    let asked = ctx.asked(&body.0)?;
    Ok(answer(ctx.runtime().create_session(asked, create).await?))
}

/// Sessions, by age: those of the workspace, or of the caller where it sees no others.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions",
    params(("limit" = Option<usize>, Query), ("page" = Option<String>, Query), ("status" = Option<String>, Query)),
    responses((status = 200, description = "`{sessions, next_page}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn list(ctx: Ctx) -> Answered {
    let mut params = Params::of(&ctx.req)?;
    let limit = params.number("limit", 1, PAGE_LEN_MAX)?.unwrap_or(PAGE_LEN);
    let after = params.page::<SessionId>()?;
    let status = params.take("status").map(|text| {
        let known = Status::ALL.into_iter().find(|s| s.text() == text);
        known.ok_or_else(|| bad("`status` is a status of sessions"))
    });
    params.finish()?;
    let status = status.transpose()?;
    let page = ctx
        .runtime()
        .engine()
        .list(ctx.viewer(), after, limit, status)
        .await?;
    Ok(json_value(
        200,
        &json!({ "sessions": page.items, "next_page": page.next_after }),
    ))
}

/// One session: where it is, and why.
#[utoipa::path(get, path = "/v1/sessions/{id}", tag = "sessions", params(("id" = String, Path)),
    responses((status = 200, description = "the session"), (status = "default", body = ProblemSchema)))]
pub(super) async fn show(ctx: Ctx) -> Answered {
    let id: SessionId = ctx.path_id("id")?;
    Params::of(&ctx.req)?.finish()?;
    Ok(json_value(
        200,
        &ctx.runtime().engine().show(ctx.viewer(), id).await?,
    ))
}

/// Erases a session: its content is gone from the disk within `erasure.purge_s_max`.
#[utoipa::path(delete, path = "/v1/sessions/{id}", tag = "sessions",
    params(("id" = String, Path), ("idempotency-key" = Option<String>, Header)),
    responses((status = 200, description = "erased"), (status = "default", body = ProblemSchema)))]
pub(super) async fn erase(ctx: Ctx, body: Body) -> Answered {
    let id = ctx.path_id("id")?;
    Params::of(&ctx.req)?.finish()?;
    body.none()?;
    let asked = ctx.asked(b"")?;
    Ok(answer(ctx.runtime().erase(asked, id).await?))
}

/// Ends a session as done.
#[utoipa::path(post, path = "/v1/sessions/{id}/complete", tag = "sessions",
    params(("id" = String, Path), ("idempotency-key" = Option<String>, Header)),
    responses((status = 200, description = "completed"), (status = "default", body = ProblemSchema)))]
pub(super) async fn complete(ctx: Ctx, body: Body) -> Answered {
    let id = ctx.path_id("id")?;
    Params::of(&ctx.req)?.finish()?;
    body.no_fields()?;
    let asked = ctx.asked(&body.0)?;
    Ok(answer(ctx.runtime().complete(asked, id).await?))
}

/// Ends a session and whatever runs in it.
#[utoipa::path(post, path = "/v1/sessions/{id}/cancel", tag = "sessions",
    params(("id" = String, Path), ("idempotency-key" = Option<String>, Header)),
    responses((status = 200, description = "canceled"), (status = "default", body = ProblemSchema)))]
pub(super) async fn cancel(ctx: Ctx, body: Body) -> Answered {
    let id = ctx.path_id("id")?;
    Params::of(&ctx.req)?.finish()?;
    body.no_fields()?;
    let asked = ctx.asked(&body.0)?;
    Ok(answer(ctx.runtime().cancel(asked, id).await?))
}

/// Changes what a session may spend; a run that waits for that goes on.
#[utoipa::path(post, path = "/v1/sessions/{id}/budget", tag = "sessions", request_body = BudgetSchema,
    params(("id" = String, Path), ("idempotency-key" = Option<String>, Header)),
    responses((status = 200, description = "the session"), (status = "default", body = ProblemSchema)))]
pub(super) async fn budget(ctx: Ctx, body: Body) -> Answered {
    let id = ctx.path_id("id")?;
    Params::of(&ctx.req)?.finish()?;
    let new: NewBudget = body.fields()?;
    let asked = ctx.asked(&body.0)?;
    let changed = ctx
        .runtime()
        .set_budget(asked, id, new.cost_micros_max, new.tokens_max)
        .await?;
    Ok(answer(changed))
}

/// Runs of a session, oldest first.
#[utoipa::path(get, path = "/v1/sessions/{id}/runs", tag = "sessions",
    params(("id" = String, Path), ("limit" = Option<usize>, Query), ("page" = Option<String>, Query)),
    responses((status = 200, description = "`{runs, next_page}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn runs(ctx: Ctx) -> Answered {
    let id: SessionId = ctx.path_id("id")?;
    let mut params = Params::of(&ctx.req)?;
    let limit = params.number("limit", 1, PAGE_LEN_MAX)?.unwrap_or(PAGE_LEN);
    let after = params.page::<u64>()?;
    params.finish()?;
    let page = ctx
        .runtime()
        .engine()
        .runs(ctx.viewer(), id, after, limit)
        .await?;
    let next = page.next_after.map(|seq| seq.to_string());
    Ok(json_value(
        200,
        &json!({ "runs": page.items, "next_page": next }),
    ))
}

/// What a session spent: itself, by model and by run; what it inherited; all of its family.
#[utoipa::path(get, path = "/v1/sessions/{id}/usage", tag = "sessions",
    params(("id" = String, Path), ("limit" = Option<usize>, Query), ("page" = Option<String>, Query)),
    responses((status = 200, description = "`{session: {usage, by_model}, inherited, \
        runs: [{run_id, usage}], next_page, tree: {usage, sessions, truncated}}`"),
        (status = "default", body = ProblemSchema)))]
pub(super) async fn usage(ctx: Ctx) -> Answered {
    let id: SessionId = ctx.path_id("id")?;
    let mut params = Params::of(&ctx.req)?;
    let query = UsageQuery {
        limit: params.number("limit", 1, PAGE_LEN_MAX)?.unwrap_or(PAGE_LEN),
        after: params.page::<u64>()?,
    };
    params.finish()?;
    let usage = ctx.runtime().usage(ctx.viewer(), id, query).await?;
    Ok(json_value(200, &usage))
}
