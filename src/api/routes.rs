//! Every route, with the scope it needs: one table for the router, the documents and the tests.

use actix_web::http::header::{self, HeaderValue};
use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use longhaul_actors::code::Code;

use super::problem::{Answered, Failure};
use super::{
    claims, clones, deployments, events, forks, operations, prune, resume, runners, runtimes,
    sessions, stream, transcript, workspaces,
};
use crate::auth::Scope;

/// One route.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// The method, upper case.
    pub method: &'static str,
    /// The path, with `{parameters}`.
    pub path: &'static str,
    /// What a token needs; `None` = no token at all.
    pub scope: Option<Scope>,
}

/// What each method of a resource needs.
pub(super) struct Access(pub(super) &'static [(&'static str, Option<Scope>)]);

macro_rules! routes {
    (
        claims { $($claim:literal)+ }
        $($path:literal { $($method:ident $name:literal $scope:expr => $handler:path;)+ })+
    ) => {
        /// Every route.
        pub const ROUTES: &[Route] = &[
            $(Route { method: "POST", path: $claim, scope: RUN },)+
            $($(Route { method: $name, path: $path, scope: $scope },)+)+
        ];

        pub(super) fn register(config: &mut ServiceConfig) {
            // The busiest routes by far: found by their prefix, split by hand, no pattern tried.
            config.service(
                web::scope(claims::PREFIX)
                    .app_data(Access(&[("POST", RUN)]))
                    .default_service(web::to(claims::route)),
            );
            $(config.service(
                web::resource($path)
                    .app_data(Access(&[$(($name, $scope),)+]))
                    $(.route(web::$method().to($handler)))+
                    .default_service(web::to(method_unknown)),
            );)+
            config.default_service(web::to(route_unknown));
        }
    };
}

const READ: Option<Scope> = Some(Scope::Read);
const WRITE: Option<Scope> = Some(Scope::Write);
const RUN: Option<Scope> = Some(Scope::Run);
const ADMIN: Option<Scope> = Some(Scope::Admin);

// The router tries them in this order: the busiest come first.
routes! {
    claims {
        "/v1/claims/{token}/ready"
        "/v1/claims/{token}/heartbeat"
        "/v1/claims/{token}/events"
        "/v1/claims/{token}/inputs"
        "/v1/claims/{token}/checkpoint"
        "/v1/claims/{token}/reject"
        "/v1/claims/{token}/steps"
        "/v1/claims/{token}/park"
        "/v1/claims/{token}/settle"
        "/v1/claims/{token}/release"
    }
    "/v1/sessions/{id}/events" {
        post "POST" WRITE => events::submit;
        get "GET" READ => events::list;
    }
    "/v1/runners/{id}/claims" { post "POST" RUN => claims::poll; }
    "/v1/sessions" {
        post "POST" WRITE => sessions::create;
        get "GET" READ => sessions::list;
    }
    "/v1/sessions/{id}" {
        get "GET" READ => sessions::show;
        delete "DELETE" WRITE => sessions::erase;
    }
    "/v1/sessions/{id}/events/stream" { get "GET" READ => stream::follow; }
    "/v1/sessions/{id}/runs" { get "GET" READ => sessions::runs; }
    "/v1/sessions/{id}/usage" { get "GET" READ => sessions::usage; }
    "/v1/sessions/{id}/complete" { post "POST" WRITE => sessions::complete; }
    "/v1/sessions/{id}/cancel" { post "POST" WRITE => sessions::cancel; }
    "/v1/sessions/{id}/budget" { post "POST" WRITE => sessions::budget; }
    "/v1/sessions/{id}/resume" { post "POST" WRITE => resume::resume; }
    "/v1/sessions/{id}/fork" { post "POST" WRITE => forks::fork; }
    "/v1/sessions/{id}/diff" { get "GET" READ => forks::diff; }
    "/v1/sessions/{id}/tree" { get "GET" READ => forks::tree; }
    "/v1/sessions/{id}/transcript" { get "GET" READ => transcript::page; }
    "/v1/sessions/{id}/checkpoints" { get "GET" READ => forks::checkpoints; }
    "/v1/sessions/{id}/checkpoints/{checkpoint}/pin" { post "POST" WRITE => forks::pin; }
    "/v1/prune" { post "POST" WRITE => prune::prune; }
    "/v1/deployments" {
        post "POST" WRITE => deployments::create;
        get "GET" READ => deployments::list;
    }
    "/v1/deployments/{id}" { get "GET" READ => deployments::newest; }
    "/v1/deployments/{id}/revisions" {
        post "POST" WRITE => deployments::create_revision;
        get "GET" READ => deployments::list_revisions;
    }
    "/v1/deployments/{id}/revisions/{revision}" { get "GET" READ => deployments::revision; }
    "/v1/workspaces" {
        post "POST" ADMIN => workspaces::create;
        get "GET" READ => workspaces::list;
    }
    "/v1/runners" { post "POST" RUN => runners::enrol; }
    "/v1/runners/{id}" { delete "DELETE" RUN => runners::remove; }
    "/v1/runners/{id}/drain" { post "POST" RUN => runners::drain; }
    "/v1/clones/{token}/adopt" { post "POST" RUN => clones::adopt; }
    "/v1/clones/{token}/fail" { post "POST" RUN => clones::fail; }
    "/api/v1/runtimes/exec" { post "POST" WRITE => runtimes::exec; }
    "/api/v1/runtimes/read-file" { post "POST" WRITE => runtimes::read_file; }
    "/api/v1/runtimes/write-file" { post "POST" WRITE => runtimes::write_file; }
    "/api/v1/runtimes/checkpoint" { post "POST" WRITE => runtimes::checkpoint; }
    "/api/v1/runtimes/checkpoint/delete-snapshot" { post "POST" WRITE => runtimes::delete_snapshot; }
    "/api/v1/runtimes/checkout" { post "POST" WRITE => runtimes::checkout; }
    "/api/v1/runtimes/pause" { post "POST" WRITE => runtimes::pause; }
    "/api/v1/runtimes/resume" { post "POST" WRITE => runtimes::resume; }
    "/api/v1/runtimes/close" { post "POST" WRITE => runtimes::close; }
    "/healthz" { get "GET" None => operations::alive; }
    "/readyz" { get "GET" None => operations::ready; }
    "/metrics" { get "GET" ADMIN => operations::metrics; }
    "/openapi.json" { get "GET" None => operations::openapi; }
}

pub(super) async fn route_unknown() -> Answered {
    Err(Failure(Code::RouteUnknown.into()))
}

/// The problem is the error; the methods that exist are in `allow`.
pub(super) async fn method_unknown(req: HttpRequest) -> HttpResponse {
    let failure = Failure(Code::MethodUnknown.into());
    let mut response = HttpResponse::from_error(failure);
    let methods = req.app_data::<Access>().map_or(&[][..], |a| a.0);
    let methods: Vec<&str> = methods.iter().map(|(m, _)| *m).collect();
    if let Ok(allow) = HeaderValue::from_str(&methods.join(", ")) {
        response.headers_mut().insert(header::ALLOW, allow);
    }
    response
}
