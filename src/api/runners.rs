//! `/v1/runners`.

use actix_web::HttpResponse;

use super::body::Body;
use super::context::Ctx;
use super::deployments::stored;
use super::openapi::ProblemSchema;
use super::params::Params;
use super::problem::Answered;
use crate::catalog::runners::NewRunner;
use crate::runtime::info;
use longhaul_actors::ids::RunnerId;

/// Enrols a runner. With tokens on, the first answer also holds its own `token`, never shown again.
#[utoipa::path(post, path = "/v1/runners", tag = "runners", request_body = NewRunner,
    params(("idempotency-key" = Option<String>, Header)),
    responses((status = 201, description = "the runner"), (status = "default", body = ProblemSchema)))]
pub(super) async fn enrol(ctx: Ctx, body: Body) -> Answered {
    Params::of(&ctx.req)?.finish()?;
    let asked = ctx.asked(&body.0)?;
    let new: NewRunner = body.fields()?;
    let catalog = ctx.runtime().catalog();
    let enrolled = catalog
        .enrol_runner(&ctx.caller, &new, ctx.api.open, asked.receipt)
        .await?;
    if let Some(id) = new.id.as_deref().and_then(|id| RunnerId::parse(id).ok()) {
        // It may be known under its earlier targets.
        let row = catalog.runner(&ctx.caller, id).await?;
        ctx.runtime().engine().enrol(info(id, &row)).await?;
    }
    Ok(stored(enrolled))
}

/// Forgets a runner. Its live claims end by their leases.
#[utoipa::path(delete, path = "/v1/runners/{id}", tag = "runners",
    params(("id" = String, Path), ("idempotency-key" = Option<String>, Header)),
    responses((status = 204, description = "forgotten"), (status = "default", body = ProblemSchema)))]
pub(super) async fn remove(ctx: Ctx, body: Body) -> Answered {
    let id = ctx.path_id("id")?;
    Params::of(&ctx.req)?.finish()?;
    body.none()?;
    let asked = ctx.asked(b"")?;
    let catalog = ctx.runtime().catalog();
    catalog
        .remove_runner(&ctx.caller, id, asked.receipt)
        .await?;
    ctx.runtime().engine().forget(id).await?;
    Ok(HttpResponse::NoContent().finish())
}

/// Gives a runner no claims any more; it finishes those it has.
#[utoipa::path(post, path = "/v1/runners/{id}/drain", tag = "runners",
    params(("id" = String, Path), ("idempotency-key" = Option<String>, Header)),
    responses((status = 200, description = "the runner"), (status = "default", body = ProblemSchema)))]
pub(super) async fn drain(ctx: Ctx, body: Body) -> Answered {
    let id = ctx.path_id("id")?;
    Params::of(&ctx.req)?.finish()?;
    body.no_fields()?;
    let asked = ctx.asked(&body.0)?;
    let drained = ctx
        .runtime()
        .catalog()
        .drain_runner(&ctx.caller, id, asked.receipt)
        .await?;
    ctx.runtime().engine().drain(id).await?;
    Ok(stored(drained))
}
