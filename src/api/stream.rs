//! `/v1/sessions/{id}/events/stream`: server-sent events.

use std::sync::Arc;
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::http::header::{CACHE_CONTROL, HeaderName};
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::env::{Clock, Sleep};
use longhaul_actors::feed::follower::{Follow, Follower};
use longhaul_actors::ids::SessionId;
use longhaul_actors::session::event::EventType;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::context::Ctx;
use super::openapi::ProblemSchema;
use super::params::{Params, bad, parse_cursor};
use super::problem::Answered;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// Bytes gathered before they are handed on.
const CHUNK_BYTES: usize = 64 << 10;
const RECONNECT: Bytes = Bytes::from_static(b"event: reconnect\ndata: {}\n\n");
const BEAT: Bytes = Bytes::from_static(b":\n\n");

/// Follows a session: history, then live, without a gap.
#[utoipa::path(get, path = "/v1/sessions/{id}/events/stream", tag = "events",
    params(("id" = String, Path), ("after" = Option<u64>, Query), ("types" = Option<String>, Query),
        ("until" = Option<String>, Query, description = "`boundary`: ends after the next one"),
        ("last-event-id" = Option<u64>, Header, description = "wins over `after`")),
    responses((status = 200, description = "events as they are committed", content_type = "text/event-stream"),
        (status = "default", body = ProblemSchema)))]
pub(super) async fn follow(ctx: Ctx) -> Answered {
    let id: SessionId = ctx.path_id("id")?;
    let mut params = Params::of(&ctx.req)?;
    let after = params.cursor("after")?;
    let types = params.types()?;
    let until_boundary = match params.take("until").as_deref() {
        None => false,
        Some("boundary") => true,
        Some(_) => return Err(bad("`until` is boundary").into()),
    };
    params.finish()?;
    // A browser that reconnects repeats the address and adds where it was.
    let last = ctx.header(&LAST_EVENT_ID)?;
    let last = last
        .map(|text| parse_cursor("last-event-id", text))
        .transpose()?;
    let after = last.or(after).unwrap_or(0);

    let permit = Arc::clone(&ctx.api.streams).try_acquire_owned();
    let permit = permit.map_err(|_| Rejection::plain(Code::StreamsFull))?;
    // The boundary may be of a type that the filter drops: then it is dropped here.
    let (wanted, filter) = if until_boundary {
        (None, types)
    } else {
        (types, None)
    };
    let runtime = ctx.runtime();
    let follower = runtime
        .engine()
        .follow(ctx.viewer(), id, after, wanted)
        .await?;
    let (clock, http) = (Arc::clone(&runtime.door().clock), &runtime.config().http);
    let age = clock
        .mono()
        .saturating_add(Duration::from_secs(http.stream_age_s_max));
    let events = Events {
        follower,
        filter,
        until_boundary,
        age: clock.sleep_until(age),
        beat: Duration::from_secs(http.heartbeat_s),
        clock,
        stop: runtime.stop_signal(),
        state: State::Opening,
        _permit: permit,
    };
    let chunks = stream::unfold(events, |mut events| async move {
        let chunk = events.next().await?;
        Some((Ok::<_, std::convert::Infallible>(chunk), events))
    });
    Ok(HttpResponse::Ok()
        .content_type("text/event-stream")
        .insert_header((CACHE_CONTROL, "no-store"))
        .insert_header((BUFFERING, "no"))
        .streaming(chunks))
}

#[derive(PartialEq)]
enum State {
    Opening,
    Open,
    Over,
}

struct Events {
    follower: Follower,
    filter: Option<Vec<EventType>>,
    until_boundary: bool,
    age: Sleep,
    beat: Duration,
    clock: Arc<dyn Clock>,
    stop: watch::Receiver<bool>,
    state: State,
    _permit: OwnedSemaphorePermit,
}

impl Events {
    /// The next bytes; `None` = the stream is over.
    async fn next(&mut self) -> Option<Bytes> {
        match self.state {
            State::Over => return None,
            State::Opening => {
                // Something to read at once, so that proxies and clients see an open stream.
                self.state = State::Open;
                return Some(BEAT);
            }
            State::Open => {}
        }
        let beat = self
            .clock
            .sleep_until(self.clock.mono().saturating_add(self.beat));
        tokio::pin!(beat);
        loop {
            let next = tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => None,
                () = &mut self.age => None,
                next = self.follower.next() => Some(next),
                () = &mut beat => return Some(BEAT),
            };
            let Some(next) = next else {
                self.state = State::Over;
                return Some(RECONNECT);
            };
            let mut out = BytesMut::new();
            self.take(next, &mut out);
            while self.state == State::Open && out.len() < CHUNK_BYTES {
                // Whatever else is at hand goes into the same chunk.
                let Some(more) = self.follower.at_hand() else {
                    break;
                };
                self.take(Ok(more), &mut out);
            }
            if !out.is_empty() {
                return Some(out.freeze());
            }
            if self.state == State::Over {
                return None;
            }
        }
    }

    fn take(&mut self, next: Result<Follow, Rejection>, out: &mut BytesMut) {
        let next = match next {
            Ok(next) => next,
            Err(refused) => {
                self.state = State::Over;
                return failed(&refused, out);
            }
        };
        match next {
            Follow::Event {
                seq,
                kind,
                boundary,
                json,
            } => {
                if self
                    .filter
                    .as_ref()
                    .is_none_or(|types| types.contains(&kind))
                {
                    frame(out, seq, kind.text(), &json);
                }
                if boundary && self.until_boundary {
                    self.state = State::Over;
                }
            }
            Follow::Ended(status) => {
                let data = format!("event: end\ndata: {{\"status\":\"{}\"}}\n\n", status.text());
                out.extend_from_slice(data.as_bytes());
                self.state = State::Over;
            }
            Follow::Erased => {
                out.extend_from_slice(b"event: erased\ndata: {}\n\n");
                self.state = State::Over;
            }
            Follow::Closed => {
                out.extend_from_slice(&RECONNECT);
                self.state = State::Over;
            }
        }
    }
}

/// The log could not be read on: what may pass is worth a new connection, the rest is told.
fn failed(refused: &Rejection, out: &mut BytesMut) {
    if refused.code.is_retryable() {
        return out.extend_from_slice(&RECONNECT);
    }
    tracing::error!(error = %refused, "a stream ended");
    let data = json!({ "code": refused.code.text(), "detail": refused.detail });
    out.extend_from_slice(format!("event: error\ndata: {data}\n\n").as_bytes());
}

/// One event. Content keeps the bytes it was sent with, line breaks between its tokens included:
/// each line becomes a `data:` line, and the reader joins them again.
fn frame(out: &mut BytesMut, seq: u64, kind: &str, json: &[u8]) {
    out.reserve(json.len() + 64);
    out.extend_from_slice(format!("id: {seq}\nevent: {kind}\ndata: ").as_bytes());
    for (i, line) in json.split(|b| matches!(b, b'\n' | b'\r')).enumerate() {
        if i > 0 {
            out.extend_from_slice(b"\ndata: ");
        }
        out.extend_from_slice(line);
    }
    out.extend_from_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_breaks_stay_inside_the_frame() {
        let mut out = BytesMut::new();
        frame(&mut out, 7, "user.message", b"{\"a\":\r\n1}");
        let text = String::from_utf8(out.to_vec()).expect("text");
        assert_eq!(
            text,
            "id: 7\nevent: user.message\ndata: {\"a\":\ndata: \ndata: 1}\n\n"
        );
    }
}
