//! Errors on the wire: `application/problem+json`, one form for our own and the framework's.

use std::fmt;

use actix_web::body::BoxBody;
use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderValue};
use actix_web::{HttpResponse, ResponseError};
use longhaul_actors::code::{Code, Kind, Rejection};
use serde_json::{Map, Value};

/// Seconds that a caller should wait before the same request.
const RETRY_AFTER_FULL: HeaderValue = HeaderValue::from_static("1");
const RETRY_AFTER_STOPPED: HeaderValue = HeaderValue::from_static("2");

/// A refusal on its way out. The middleware writes its body, where the request's id is known.
#[derive(Debug)]
pub(super) struct Failure(pub(super) Rejection);

impl<T: Into<Rejection>> From<T> for Failure {
    fn from(r: T) -> Self {
        Self(r.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ResponseError for Failure {
    fn status_code(&self) -> StatusCode {
        status(self.0.code)
    }

    fn error_response(&self) -> HttpResponse<BoxBody> {
        HttpResponse::new(self.status_code())
    }
}

pub(super) type Answered = Result<HttpResponse, Failure>;

/// Codes without a status belong to runs; asked for over HTTP they would be a fault of ours.
fn status(code: Code) -> StatusCode {
    StatusCode::from_u16(code.info().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// The answer for a refusal.
pub(super) fn response(rejection: &Rejection, request_id: &str) -> HttpResponse {
    let info = rejection.code.info();
    let status = status(rejection.code);
    let mut fields: Map<String, Value> = rejection.extras.clone();
    fields.insert("status".to_owned(), status.as_u16().into());
    fields.insert("code".to_owned(), info.code.into());
    fields.insert("title".to_owned(), info.title.into());
    fields.insert("detail".to_owned(), rejection.detail.as_str().into());
    fields.insert("retryable".to_owned(), rejection.code.is_retryable().into());
    fields.insert("request_id".to_owned(), request_id.into());
    let body = Value::Object(fields).to_string();
    let mut response = HttpResponse::build(status);
    response.content_type("application/problem+json");
    match info.kind {
        Kind::Full => {
            response.insert_header((header::RETRY_AFTER, RETRY_AFTER_FULL));
        }
        Kind::Stopped => {
            response.insert_header((header::RETRY_AFTER, RETRY_AFTER_STOPPED));
        }
        Kind::Refused | Kind::Fault => {}
    }
    if status == StatusCode::UNAUTHORIZED {
        response.insert_header((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
    }
    response.body(body)
}

/// What an error of the framework's means here.
pub(super) fn of_framework(error: &actix_web::Error) -> Rejection {
    if let Some(failure) = error.as_error::<Failure>() {
        return failure.0.clone();
    }
    let detail = error.to_string();
    let code = match error.as_response_error().status_code() {
        StatusCode::NOT_FOUND => Code::RouteUnknown,
        StatusCode::METHOD_NOT_ALLOWED => Code::MethodUnknown,
        StatusCode::REQUEST_TIMEOUT => Code::RequestTimeout,
        StatusCode::PAYLOAD_TOO_LARGE => Code::BodyTooLarge,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Code::ContentType,
        status if status.is_client_error() => Code::BodyInvalid,
        _ => Code::Internal,
    };
    Rejection::new(code, detail)
}
