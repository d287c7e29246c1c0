//! `/v1/workspaces`.

use longhaul_actors::ids::WorkspaceId;
use serde_json::json;

use super::body::Body;
use super::context::Ctx;
use super::deployments::stored;
use super::openapi::ProblemSchema;
use super::params::Params;
use super::problem::Answered;
use super::sessions::{PAGE_LEN, PAGE_LEN_MAX, json_value};
use crate::auth::Scope;
use crate::catalog::workspaces::NewWorkspace;

/// Makes a workspace.
#[utoipa::path(post, path = "/v1/workspaces", tag = "workspaces", request_body = NewWorkspace,
    params(("idempotency-key" = Option<String>, Header)),
    responses((status = 201, description = "the workspace"), (status = "default", body = ProblemSchema)))]
pub(super) async fn create(ctx: Ctx, body: Body) -> Answered {
    Params::of(&ctx.req)?.finish()?;
    let asked = ctx.asked(&body.0)?;
    let new: NewWorkspace = body.fields()?;
    let catalog = ctx.runtime().catalog();
    Ok(stored(
        catalog
            .create_workspace(&ctx.caller.id, &new, asked.receipt)
            .await?,
    ))
}

/// Workspaces: with the scope `admin` all of them, else the caller's own.
#[utoipa::path(get, path = "/v1/workspaces", tag = "workspaces",
    params(("limit" = Option<usize>, Query), ("page" = Option<String>, Query)),
    responses((status = 200, description = "`{workspaces, next_page}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn list(ctx: Ctx) -> Answered {
    let mut params = Params::of(&ctx.req)?;
    let limit = params.number("limit", 1, PAGE_LEN_MAX)?.unwrap_or(PAGE_LEN);
    let after = params.page::<WorkspaceId>()?;
    params.finish()?;
    let catalog = ctx.runtime().catalog();
    if !ctx.caller.may(Scope::Admin) {
        let own = catalog.workspace(ctx.workspace()).await?;
        return Ok(json_value(
            200,
            &json!({ "workspaces": [own], "next_page": null }),
        ));
    }
    let page = catalog.list_workspaces(after, limit).await?;
    Ok(json_value(
        200,
        &json!({ "workspaces": page.items, "next_page": page.next }),
    ))
}
