//! Bodies: bounded, in time, JSON.

use actix_web::dev::Payload;
use actix_web::http::header;
use actix_web::{FromRequest, HttpRequest, web};
use bytes::{Bytes, BytesMut};
use futures_util::future::LocalBoxFuture;
use futures_util::{FutureExt, StreamExt};
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::session::input::check_json;
use serde::Deserialize;
use std::time::Duration;

use super::problem::Failure;
use super::state::Api;

/// A whole body, at most `http.body_bytes_max`, arrived within `http.request_s_max`.
pub(super) struct Body(pub(super) Bytes);

impl FromRequest for Body {
    type Error = Failure;
    type Future = LocalBoxFuture<'static, Result<Self, Failure>>;

    fn from_request(req: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let api = req.app_data::<web::Data<Api>>().cloned();
        let length = req.headers().get(header::CONTENT_LENGTH);
        let length = length
            .and_then(|l| l.to_str().ok())
            .and_then(|l| l.parse::<u64>().ok());
        let payload = payload.take();
        Box::pin(async move {
            let api = api.ok_or(Code::Internal)?;
            let max = api.runtime.config().http.body_bytes_max;
            if length.is_some_and(|l| l > max as u64) {
                return Err(too_large(max).into());
            }
            let mut reading = Box::pin(read(payload, max));
            // Nearly every body is there with its head: no timer for those.
            if let Some(done) = (&mut reading).now_or_never() {
                return Ok(done.map(Self)?);
            }
            let limit = Duration::from_secs(api.runtime.config().http.request_s_max);
            let clock = &api.runtime.door().clock;
            let late = clock.sleep_until(clock.mono().saturating_add(limit));
            tokio::select! {
                done = reading => Ok(done.map(Self)?),
                () = late => Err(Code::RequestTimeout.into()),
            }
        })
    }
}

fn too_large(max: usize) -> Rejection {
    let detail = format!("the body has more than {max} bytes");
    Rejection::new(Code::BodyTooLarge, detail).with("bytes_max", max)
}

async fn read(mut payload: Payload, max: usize) -> Result<Bytes, Rejection> {
    let cut = |e: &dyn std::fmt::Display| Rejection::new(Code::BodyInvalid, e.to_string());
    let Some(first) = payload.next().await else {
        return Ok(Bytes::new());
    };
    let first = first.map_err(|e| cut(&e))?;
    let Some(second) = payload.next().await else {
        return if first.len() > max {
            Err(too_large(max))
        } else {
            Ok(first)
        };
    };
    let mut whole = BytesMut::from(&*first);
    let mut next = Some(second);
    while let Some(chunk) = next {
        whole.extend_from_slice(&chunk.map_err(|e| cut(&e))?);
        if whole.len() > max {
            return Err(too_large(max));
        }
        next = payload.next().await;
    }
    Ok(whole.freeze())
}

impl Body {
    /// Reads the fields, telling what is not JSON from what has unknown or bad fields.
    pub(super) fn fields<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Rejection> {
        check_json(&self.0)?;
        serde_json::from_slice(&self.0).map_err(|e| field_error(&e))
    }

    /// For routes without fields: nothing, or an empty object.
    pub(super) fn no_fields(&self) -> Result<(), Rejection> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}
        if self.0.is_empty() {
            return Ok(());
        }
        self.fields::<Nothing>().map(|_| ())
    }
}

fn field_error(e: &serde_json::Error) -> Rejection {
    let text = e.to_string();
    let unknown = text.contains("unknown field");
    Rejection::new(
        if unknown {
            Code::FieldUnknown
        } else {
            Code::FieldInvalid
        },
        text,
    )
}
