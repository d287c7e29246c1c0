//! `/v1/sessions/{id}/events`.

use actix_web::HttpResponse;
use bytes::Bytes;
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::engine::{EventPage, EventQuery};
use longhaul_actors::ids::SessionId;
use longhaul_actors::limits::PAGE_EVENTS_MAX;
use longhaul_actors::session::input::{Origin, RawEvent, parse_events};
use longhaul_storage::Order;
use serde::Deserialize;

use super::body::Body;
use super::context::Ctx;
use super::openapi::{EventsSchema, ProblemSchema};
use super::params::{Params, bad};
use super::problem::Answered;
use super::sessions::{PAGE_LEN, answer, json_bytes};
use crate::runtime::Submission;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Events<'a> {
    #[serde(borrow)]
    events: Vec<RawEvent<'a>>,
}

/// Appends events of people: all or none. Accepted means durable, not finished.
#[utoipa::path(post, path = "/v1/sessions/{id}/events", tag = "events", request_body = EventsSchema,
    params(("id" = String, Path), ("if-match" = Option<u64>, Header, description = "the last `seq` seen"),
        ("idempotency-key" = Option<String>, Header)),
    responses((status = 202, description = "`{events: [{id, seq, type}]}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn submit(ctx: Ctx, body: Body) -> Answered {
    let id = ctx.path_id("id")?;
    Params::of(&ctx.req)?.finish()?;
    let expected_seq = ctx.expected_seq()?;
    let asked = ctx.asked(&body.0)?;
    let events: Events<'_> = body.fields()?;
    let events = parse_events(Origin::People, &events.events)?;
    let submission = Submission {
        expected_seq,
        events,
    };
    Ok(answer(ctx.runtime().submit(asked, id, submission).await?))
}

/// Events, a page at a time; a filtered page moves on even when nothing on it matches.
#[utoipa::path(get, path = "/v1/sessions/{id}/events", tag = "events",
    params(("id" = String, Path), ("after" = Option<u64>, Query), ("limit" = Option<usize>, Query),
        ("types" = Option<String>, Query), ("order" = Option<String>, Query), ("before" = Option<u64>, Query)),
    responses((status = 200, description = "`{events, next_after | next_before, last_seq, first_available_seq}`"),
        (status = "default", body = ProblemSchema)))]
pub(super) async fn list(ctx: Ctx) -> Answered {
    let id: SessionId = ctx.path_id("id")?;
    let query = query(Params::of(&ctx.req)?)?;
    let order = query.order;
    let page = ctx
        .runtime()
        .engine()
        .events(ctx.viewer(), id, query)
        .await?;
    Ok(shown(&page, order))
}

fn query(mut params: Params) -> Result<EventQuery, Rejection> {
    let order = match params.take("order").as_deref() {
        None | Some("asc") => Order::Asc,
        Some("desc") => Order::Desc,
        Some(_) => return Err(bad("`order` is asc or desc")),
    };
    let (after, before) = (params.cursor("after")?, params.cursor("before")?);
    let limit = params
        .number("limit", 1, PAGE_EVENTS_MAX)?
        .unwrap_or(PAGE_LEN);
    let types = params.types()?;
    params.finish()?;
    match (order, after, before) {
        (Order::Asc, _, Some(_)) => Err(bad("`before` goes with order=desc")),
        (Order::Desc, Some(_), _) => Err(bad("`after` goes with order=asc")),
        (_, _, Some(0)) => Err(Rejection::new(
            Code::CursorInvalid,
            "`before` is at least 1",
        )),
        (order, after, before) => Ok(EventQuery {
            after,
            before,
            order,
            limit,
            types,
        }),
    }
}

/// Envelopes are spliced as bytes: `"events":[…]`.
pub(super) fn splice(out: &mut Vec<u8>, events: &[Bytes]) {
    out.reserve(events.iter().map(|e| e.len() + 1).sum::<usize>() + 128);
    out.extend_from_slice(b"\"events\":[");
    for (i, event) in events.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        out.extend_from_slice(event);
    }
    out.push(b']');
}

fn shown(page: &EventPage, order: Order) -> HttpResponse {
    let mut out = vec![b'{'];
    splice(&mut out, &page.events);
    let next = page
        .next_after
        .map_or_else(|| "null".to_owned(), |seq| seq.to_string());
    let name = if order == Order::Asc {
        "next_after"
    } else {
        "next_before"
    };
    out.extend_from_slice(
        format!(
            ",\"{name}\":{next},\"last_seq\":{},\"first_available_seq\":{}}}",
            page.last_seq, page.first_available_seq
        )
        .as_bytes(),
    );
    json_bytes(200, out)
}
