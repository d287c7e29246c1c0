//! `/v1/prune`.

use std::borrow::Cow;

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::engine::{PrunePlace, PruneQuery, Pruned};
use longhaul_actors::ids::SessionId;
use longhaul_actors::time::parse_rfc3339;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::Body;
use super::context::{Ctx, bad_id};
use super::openapi::{ProblemSchema, PruneSchema};
use super::params::Params;
use super::problem::Answered;
use super::sessions::json_value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Prune<'a> {
    #[serde(borrow, default)]
    before: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    session_id: Option<Cow<'a, str>>,
    #[serde(default)]
    dry_run: bool,
    #[serde(borrow, default)]
    page: Option<Cow<'a, str>>,
}

impl Prune<'_> {
    fn query(&self) -> Result<PruneQuery, Rejection> {
        let before = self.before.as_deref().map(|text| {
            let ms = parse_rfc3339(text);
            ms.ok_or_else(|| {
                Rejection::new(Code::FieldInvalid, "`before` is a time, as RFC 3339 has it")
            })
        });
        let session = self.session_id.as_deref().map(SessionId::parse).transpose();
        let page = self.page.as_deref().map(str::parse::<PrunePlace>);
        Ok(PruneQuery {
            before_ms: before.transpose()?,
            session: session.map_err(|e| bad_id("session_id", &e))?,
            dry_run: self.dry_run,
            page: page.transpose().map_err(|e| bad_id("page", &e))?,
        })
    }
}

/// Lets journals of what is over go, and checkpoints: what is older than `before`, of this
/// session, or both. A call does a bounded part; `next` goes on as `page`.
#[utoipa::path(post, path = "/v1/prune", tag = "sessions", request_body = PruneSchema,
    responses((status = 200, description = "`{dry_run, sessions, journal_values, journal_bytes, checkpoints, next}`"),
        (status = "default", body = ProblemSchema)))]
pub(super) async fn prune(ctx: Ctx, body: Body) -> Answered {
    Params::of(&ctx.req)?.finish()?;
    ctx.no_idempotency_key("pruning what is gone changes nothing")?;
    let query = body.fields::<Prune<'_>>()?.query()?;
    let dry_run = query.dry_run;
    let asked = ctx.asked(&body.0)?;
    let pruned = ctx.runtime().prune_as(asked, query).await?;
    Ok(json_value(200, &shown(&pruned, dry_run)))
}

fn shown(pruned: &Pruned, dry_run: bool) -> Value {
    json!({
        "dry_run": dry_run,
        "sessions": pruned.sessions,
        "journal_values": pruned.journal_values,
        "journal_bytes": pruned.journal_bytes,
        "checkpoints": pruned.checkpoints,
        "next": pruned.next.map(|place| place.to_string()),
    })
}
