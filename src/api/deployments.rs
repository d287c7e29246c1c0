//! `/v1/deployments`.

use actix_web::HttpResponse;
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::ids::DeploymentId;
use serde::Deserialize;
use serde_json::json;

use super::body::Body;
use super::context::Ctx;
use super::openapi::ProblemSchema;
use super::params::Params;
use super::problem::Answered;
use super::sessions::{PAGE_LEN, PAGE_LEN_MAX, json_bytes, json_value};
use crate::catalog::deployments::{NewDeployment, NewRevision};
use crate::catalog::store::Stored;

pub(super) fn stored(stored: Stored) -> HttpResponse {
    json_bytes(stored.status, stored.body)
}

/// A body that describes nothing is a bad deployment; an unknown field keeps its own code.
fn described<'a, T: Deserialize<'a>>(body: &'a Body) -> Result<T, Rejection> {
    body.fields().map_err(|r| match r.code {
        Code::FieldInvalid => Rejection::new(Code::DeploymentInvalid, r.detail),
        _ => r,
    })
}

/// Makes a deployment with revision 1.
#[utoipa::path(post, path = "/v1/deployments", tag = "deployments", request_body = NewDeployment,
    params(("idempotency-key" = Option<String>, Header)),
    responses((status = 201, description = "`{id, revision, harness_revision, sandbox_profile_revision}`"),
        (status = "default", body = ProblemSchema)))]
pub(super) async fn create(ctx: Ctx, body: Body) -> Answered {
    Params::of(&ctx.req)?.finish()?;
    let asked = ctx.asked(&body.0)?;
    let new: NewDeployment = described(&body)?;
    let catalog = ctx.runtime().catalog();
    let made = catalog.create_deployment(ctx.workspace(), &ctx.caller.id, &new, asked.receipt);
    Ok(stored(made.await?))
}

/// Deployments of the workspace, each with its newest revision.
#[utoipa::path(get, path = "/v1/deployments", tag = "deployments",
    params(("limit" = Option<usize>, Query), ("page" = Option<String>, Query)),
    responses((status = 200, description = "`{deployments, next_page}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn list(ctx: Ctx) -> Answered {
    let mut params = Params::of(&ctx.req)?;
    let limit = params.number("limit", 1, PAGE_LEN_MAX)?.unwrap_or(PAGE_LEN);
    let after = params.page::<DeploymentId>()?;
    params.finish()?;
    let page = ctx
        .runtime()
        .catalog()
        .list_deployments(ctx.workspace(), after, limit)
        .await?;
    Ok(json_value(
        200,
        &json!({ "deployments": page.items, "next_page": page.next }),
    ))
}

/// The newest revision.
#[utoipa::path(get, path = "/v1/deployments/{id}", tag = "deployments", params(("id" = String, Path)),
    responses((status = 200, description = "the revision"), (status = "default", body = ProblemSchema)))]
pub(super) async fn newest(ctx: Ctx) -> Answered {
    let id = ctx.path_id("id")?;
    Params::of(&ctx.req)?.finish()?;
    let revision = ctx
        .runtime()
        .catalog()
        .revision(ctx.workspace(), id, None)
        .await?;
    Ok(json_bytes(200, revision.json()))
}

/// Adds a revision; the ones before stay as they are.
#[utoipa::path(post, path = "/v1/deployments/{id}/revisions", tag = "deployments", request_body = NewRevision,
    params(("id" = String, Path), ("idempotency-key" = Option<String>, Header)),
    responses((status = 201, description = "`{id, revision, harness_revision, sandbox_profile_revision}`"),
        (status = "default", body = ProblemSchema)))]
pub(super) async fn create_revision(ctx: Ctx, body: Body) -> Answered {
    let id = ctx.path_id("id")?;
    Params::of(&ctx.req)?.finish()?;
    let asked = ctx.asked(&body.0)?;
    let new: NewRevision = described(&body)?;
    let catalog = ctx.runtime().catalog();
    let made = catalog.create_revision(ctx.workspace(), &ctx.caller.id, id, &new, asked.receipt);
    Ok(stored(made.await?))
}

/// Revisions of a deployment, by number.
#[utoipa::path(get, path = "/v1/deployments/{id}/revisions", tag = "deployments",
    params(("id" = String, Path), ("limit" = Option<usize>, Query), ("page" = Option<String>, Query)),
    responses((status = 200, description = "`{revisions, next_page}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn list_revisions(ctx: Ctx) -> Answered {
    let id = ctx.path_id("id")?;
    let mut params = Params::of(&ctx.req)?;
    let limit = params.number("limit", 1, PAGE_LEN_MAX)?.unwrap_or(PAGE_LEN);
    let after = params.page::<u32>()?;
    params.finish()?;
    let catalog = ctx.runtime().catalog();
    let page = catalog
        .list_revisions(ctx.workspace(), id, after, limit)
        .await?;
    let next = page.next.map(|n| n.to_string());
    Ok(json_value(
        200,
        &json!({ "revisions": page.items, "next_page": next }),
    ))
}

/// One revision.
#[utoipa::path(get, path = "/v1/deployments/{id}/revisions/{revision}", tag = "deployments",
    params(("id" = String, Path), ("revision" = u32, Path)),
    responses((status = 200, description = "the revision"), (status = "default", body = ProblemSchema)))]
pub(super) async fn revision(ctx: Ctx) -> Answered {
    let id = ctx.path_id("id")?;
    Params::of(&ctx.req)?.finish()?;
    let number = ctx.req.match_info().get("revision").unwrap_or_default();
    let digits = number.bytes().all(|b| b.is_ascii_digit());
    let number = number
        .parse()
        .ok()
        .filter(|n| digits && *n > 0)
        .ok_or_else(|| Rejection::new(Code::IdInvalid, "a revision is a number from 1"))?;
    let revision = ctx
        .runtime()
        .catalog()
        .revision(ctx.workspace(), id, Some(number))
        .await?;
    Ok(json_bytes(200, revision.json()))
}
