//! `/v1/sessions/{id}/transcript`.

use longhaul_actors::engine::{TranscriptPage, TranscriptQuery};
use longhaul_actors::limits::PAGE_EVENTS_MAX;
use serde_json::{Value, json};

use super::context::Ctx;
use super::openapi::ProblemSchema;
use super::params::{Params, bad};
use super::problem::Answered;
use super::sessions::{PAGE_LEN, json_value};

/// The conversation as a model sees it: what people said where a run took it, the agent's words
/// and calls, each call's one result. A summary stands for what a compaction took out, unless
/// `compacted=false` asks for all of it.
#[utoipa::path(get, path = "/v1/sessions/{id}/transcript", tag = "sessions",
    params(("id" = String, Path), ("after" = Option<u64>, Query), ("limit" = Option<usize>, Query),
        ("compacted" = Option<bool>, Query)),
    responses((status = 200, description = "`{messages: [{role, content, seq, through_seq}], next_after, \
        last_seq, compacted: {seq, through_seq} | null}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn page(ctx: Ctx) -> Answered {
    let id = ctx.path_id("id")?;
    let mut params = Params::of(&ctx.req)?;
    let compacted = match params.take("compacted").as_deref() {
        None | Some("true") => true,
        Some("false") => false,
        Some(_) => return Err(bad("`compacted` is true or false").into()),
    };
    let query = TranscriptQuery {
        after: params.cursor("after")?.unwrap_or(0),
        limit: params
            .number("limit", 1, PAGE_EVENTS_MAX)?
            .unwrap_or(PAGE_LEN),
        compacted,
    };
    params.finish()?;
    let engine = ctx.runtime().engine();
    let page = engine.transcript(ctx.viewer(), id, query).await?;
    Ok(json_value(200, &shown(&page)))
}

fn shown(page: &TranscriptPage) -> Value {
    let compacted = page.compacted;
    json!({
        "messages": page.messages,
        "next_after": page.next_after,
        "last_seq": page.last_seq,
        "compacted": compacted.map(|c| json!({"seq": c.seq, "through_seq": c.through_seq})),
    })
}
