//! `/healthz`, `/readyz`, `/metrics`, `/openapi.json`.

use actix_web::{HttpResponse, web};
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::engine::Health;
use serde_json::json;

use super::context::Ctx;
use super::openapi::{ProblemSchema, document};
use super::problem::Answered;
use super::sessions::{json_bytes, json_value};
use super::state::Api;
use crate::telemetry;

/// The process answers.
#[utoipa::path(get, path = "/healthz", tag = "operations", responses((status = 200, description = "alive")))]
pub(super) async fn alive() -> HttpResponse {
    json_value(200, &json!({ "status": "alive" }))
}

/// The server takes work: 503 while a part is starting, stopped or dead.
#[utoipa::path(get, path = "/readyz", tag = "operations",
    responses((status = 200, description = "ready"), (status = "default", body = ProblemSchema)))]
pub(super) async fn ready(api: web::Data<Api>) -> Answered {
    if *api.runtime.stop_signal().borrow() {
        return Err(Rejection::new(Code::Stopped, "the server is stopping").into());
    }
    let health = api.runtime.engine().health();
    if !health.is_ready() {
        let detail = match health {
            Health::Degraded { reason } | Health::Failed { reason } => reason,
            Health::Ok | Health::Closed => "the engine is closed".to_owned(),
        };
        return Err(Rejection::new(Code::Stopped, detail).into());
    }
    Ok(json_value(200, &json!({ "status": "ready" })))
}

/// Prometheus text.
#[utoipa::path(get, path = "/metrics", tag = "operations",
    responses((status = 200, description = "metrics", content_type = "text/plain"), (status = "default", body = ProblemSchema)))]
pub(super) async fn metrics(ctx: Ctx) -> HttpResponse {
    // Gauges are set when somebody looks.
    ctx.runtime().engine().stats();
    let mut out = String::new();
    ctx.api.counters.render(&mut out);
    if let Some(recorder) = telemetry::metrics() {
        recorder.run_upkeep();
        out.push_str(&recorder.render());
    }
    HttpResponse::Ok()
        .content_type("text/plain; version=0.0.4")
        .body(out)
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "operations",
    responses((status = 200, description = "OpenAPI 3.1")))]
pub(super) async fn openapi() -> HttpResponse {
    match document().to_json() {
        Ok(text) => json_bytes(200, text),
        Err(_) => HttpResponse::InternalServerError().finish(),
    }
}
