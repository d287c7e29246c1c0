//! Bodies: bounded, in time, JSON.

use std::future::{Ready, ready};
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::http::header;
use actix_web::{FromRequest, HttpRequest, web};
use bytes::{Bytes, BytesMut};
use futures_util::future::{Either, LocalBoxFuture};
use futures_util::{FutureExt, StreamExt};
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::session::input::{check_json, typed};
use serde::Deserialize;

use super::problem::Failure;
use super::state::Api;

/// A whole body, at most `http.body_bytes_max`, arrived within `http.request_s_max`.
pub(super) struct Body(pub(super) Bytes);

impl FromRequest for Body {
    type Error = Failure;
    type Future =
        Either<Ready<Result<Self, Failure>>, LocalBoxFuture<'static, Result<Self, Failure>>>;

    fn from_request(req: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let Some(api) = req.app_data::<web::Data<Api>>() else {
            return Either::Left(ready(Err(Code::Internal.into())));
        };
        let http = &api.runtime.config().http;
        let max = http.body_bytes_max;
        let length = req.headers().get(header::CONTENT_LENGTH);
        let length = length
            .and_then(|l| l.to_str().ok())
            .and_then(|l| l.parse::<u64>().ok());
        if length.is_some_and(|l| l > max as u64) {
            return Either::Left(ready(Err(too_large(max).into())));
        }
        let mut reading = Box::pin(read(payload.take(), max));
        // Nearly every body is there with its head: no timer for those.
        if let Some(done) = (&mut reading).now_or_never() {
            return Either::Left(ready(done.map(Self).map_err(Failure::from)));
        }
        let clock = &api.runtime.door().clock;
        let limit = Duration::from_secs(http.request_s_max);
        let late = clock.sleep_until(clock.mono().saturating_add(limit));
        Either::Right(Box::pin(async move {
            tokio::select! {
                done = reading => Ok(done.map(Self)?),
                () = late => Err(Code::RequestTimeout.into()),
            }
        }))
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
        typed(&self.0)
    }

    /// For routes without a body.
    pub(super) fn none(&self) -> Result<(), Rejection> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(Rejection::new(Code::BodyInvalid, "DELETE takes no body"))
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
