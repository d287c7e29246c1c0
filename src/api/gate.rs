//! What every request passes on its way in, and every answer on its way out.

use std::any::Any;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::http::{Method, Uri};
use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};
use longhaul_actors::code::{Code, Kind, Rejection};

use super::problem;
use super::state::Api;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The id of a request.
#[derive(Clone)]
pub(super) struct RequestId(pub(super) Arc<str>);

/// How a request goes on.
pub(super) enum Next<F> {
    Serve(F),
    Refuse(ServiceRequest, Rejection),
}

/// Gives the request its id, and refuses what no route would take.
pub(super) fn admit(req: &ServiceRequest) -> (Arc<str>, Result<(), Rejection>) {
    let Some(api) = req.app_data::<web::Data<Api>>() else {
        return (Arc::from(""), Err(Code::Internal.into()));
    };
    let id = api.runtime.new_request_id();
    // Calls under a claim write no cause, and are too many to carry what they do not need.
    if !req.path().starts_with(super::claims::PREFIX) {
        req.extensions_mut().insert(RequestId(Arc::clone(&id)));
    }
    (id, check(api, req))
}

fn check(api: &Api, req: &ServiceRequest) -> Result<(), Rejection> {
    if api.open {
        check_loopback(req.request())?;
    }
    let with_body = matches!(*req.method(), Method::POST | Method::PUT | Method::PATCH);
    if with_body && !is_json(req.headers().get(header::CONTENT_TYPE)) {
        return Err(Code::ContentType.into());
    }
    Ok(())
}

fn is_json(value: Option<&HeaderValue>) -> bool {
    let text = value.and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = text.split(';').next().unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

/// A server without tokens serves this machine only, and no web page: a page elsewhere has
/// another origin, and a name that was made to lead here has another host.
fn check_loopback(req: &HttpRequest) -> Result<(), Rejection> {
    let refused =
        |what: &str| Rejection::new(Code::OriginRefused, format!("{what} is not loopback"));
    let headers = req.headers();
    let host = headers.get(header::HOST).and_then(|h| h.to_str().ok());
    // With a full URI in the request line, that one counts.
    let host = req.uri().authority().map(|a| a.as_str()).or(host);
    if !host.is_some_and(is_loopback) {
        return Err(refused("the Host header"));
    }
    for origin in headers.get_all(header::ORIGIN) {
        let origin = origin.to_str().ok().and_then(|o| o.parse::<Uri>().ok());
        let host = origin
            .as_ref()
            .and_then(|o| o.authority())
            .map(|a| a.as_str());
        if !host.is_some_and(is_loopback) {
            return Err(refused("the Origin header"));
        }
    }
    Ok(())
}

/// Whether `host[:port]` names this machine by its loopback interface.
fn is_loopback(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, port)) if port.is_empty() || port.starts_with(':') => host,
            _ => return false,
        },
        None => authority.split(':').next().unwrap_or_default(),
    };
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Adds the request's id to the answer and gives every error its one form.
pub(super) async fn answer<F, B>(
    id: Arc<str>,
    next: Next<F>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error>
where
    F: Future<Output = Result<ServiceResponse<B>, actix_web::Error>>,
    B: MessageBody + 'static,
{
    let (req, mut response) = match next {
        Next::Refuse(req, rejection) => {
            let req = req.into_parts().0;
            let response = refuse(&req, &id, &rejection);
            (req, response)
        }
        Next::Serve(call) => {
            let (req, response) = call.await?.map_into_boxed_body().into_parts();
            let response = match response.error().map(problem::of_framework) {
                Some(rejection) => carry(&req, &id, &rejection, &response),
                None => response,
            };
            (req, response)
        }
    };
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    if let Some(api) = req.app_data::<web::Data<Api>>() {
        api.counters.answered(response.status().as_u16());
    }
    Ok(ServiceResponse::new(req, response))
}

/// The problem, with the headers that the route itself had set (`allow`).
fn carry(req: &HttpRequest, id: &str, rejection: &Rejection, from: &HttpResponse) -> HttpResponse {
    let mut response = refuse(req, id, rejection);
    if let Some(allow) = from.headers().get(header::ALLOW) {
        response.headers_mut().insert(header::ALLOW, allow.clone());
    }
    response
}

fn refuse(req: &HttpRequest, id: &str, rejection: &Rejection) -> HttpResponse {
    if let Some(api) = req.app_data::<web::Data<Api>>() {
        api.counters.refused(rejection.code);
    }
    // Refusals are expected: counted, not logged. Only faults are news.
    if rejection.code.info().kind == Kind::Fault {
        // The route, not the path: that may hold a claim's token.
        let route = req.match_pattern().unwrap_or_default();
        let method = req.method();
        tracing::error!(request_id = id, %method, route, error = %rejection, "request failed");
    }
    problem::response(rejection, id)
}

/// A peer that takes no bytes for so long is cut off by the system: its stream is never polled
/// again, so no timer of ours could end it.
pub(super) fn cut_off_stalled(connection: &dyn Any, after: Duration) {
    if let Some(tcp) = connection.downcast_ref::<actix_web::rt::net::TcpStream>()
        && let Err(error) = socket2::SockRef::from(tcp).set_tcp_user_timeout(Some(after))
    {
        tracing::debug!(%error, "no time-out for stalled writes on this connection");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_names() {
        for yes in [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1",
            "127.9.9.9:1",
            "[::1]",
            "[::1]:80",
        ] {
            assert!(is_loopback(yes), "{yes}");
        }
        for no in [
            "",
            "example.com",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "10.0.0.1",
            "[::1",
            "[::1]x",
            "[fe80::1]",
            "0.0.0.0",
            "::1",
        ] {
            assert!(!is_loopback(no), "{no}");
        }
    }

    #[test]
    fn json_content_types() {
        let is = |text: &'static str| is_json(Some(&HeaderValue::from_static(text)));
        assert!(is("application/json") && is("Application/JSON; charset=utf-8"));
        assert!(!is("text/plain") && !is("application/jsonx") && !is_json(None));
    }
}
