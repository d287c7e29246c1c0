//! Who calls, checked against what the route needs; and what handlers read of a request.

use std::future::{Ready, ready};
use std::str::FromStr;
use std::sync::Arc;

use actix_web::dev::Payload;
use actix_web::http::Method;
use actix_web::http::header::{self, HeaderName};
use actix_web::{FromRequest, HttpMessage, HttpRequest, web};
use futures_util::future::{Either, LocalBoxFuture};
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::ids::IdError;
use longhaul_actors::session::payload::WorkspaceRef;
use longhaul_actors::session::viewer::Viewer;

use super::gate::RequestId;
use super::problem::Failure;
use super::routes::Access;
use super::state::Api;
use crate::auth::{Caller, Gate, Scope};
use crate::runtime::{Asked, Runtime, receipt_key};

const WORKSPACE: HeaderName = HeaderName::from_static("longhaul-workspace");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Bytes of an Idempotency-Key.
const KEY_BYTES_MAX: usize = 255;

/// One request of a known caller that has the scope of the route.
pub(super) struct Ctx {
    pub(super) api: web::Data<Api>,
    pub(super) caller: Arc<Caller>,
    pub(super) req: HttpRequest,
    request_id: Option<Arc<str>>,
}

impl FromRequest for Ctx {
    type Error = Failure;
    type Future =
        Either<Ready<Result<Self, Failure>>, LocalBoxFuture<'static, Result<Self, Failure>>>;

    fn from_request(req: &HttpRequest, _: &mut Payload) -> Self::Future {
        let Some(api) = req.app_data::<web::Data<Api>>().cloned() else {
            return Either::Left(ready(Err(Code::Internal.into())));
        };
        let req = req.clone();
        // The common case of a server without tokens has nothing to wait for.
        if api.open && !req.headers().contains_key(WORKSPACE) {
            let caller = Arc::clone(&api.dev);
            return Either::Left(ready(Self::checked(api, caller, req)));
        }
        Either::Right(Box::pin(async move {
            let caller = find_caller(&api, &req).await?;
            Self::checked(api, caller, req)
        }))
    }
}

async fn find_caller(api: &Api, req: &HttpRequest) -> Result<Arc<Caller>, Rejection> {
    let wanted = single(req, &WORKSPACE)?.map(workspace).transpose()?;
    let Gate::Tokens(tokens) = api.runtime.gate() else {
        let workspace = wanted.unwrap_or(WorkspaceRef::DEFAULT);
        api.runtime.catalog().need_workspace(workspace).await?;
        return Ok(Arc::new(Caller::dev(workspace)));
    };
    let text = single(req, &header::AUTHORIZATION)?.ok_or(Code::TokenMissing)?;
    let (scheme, token) = text.split_once(' ').ok_or(Code::TokenInvalid)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(Code::TokenInvalid.into());
    }
    let now_ms = api.runtime.door().clock.wall_ms();
    let caller = match tokens.find(token.trim(), now_ms) {
        Some(caller) => caller,
        None => {
            let known = api.runtime.catalog().runner_by_token(token.trim()).await?;
            known.ok_or(Code::TokenInvalid)?
        }
    };
    // Another workspace than the token's looks absent.
    if wanted.is_some_and(|w| w != caller.workspace) {
        return Err(Code::WorkspaceNotFound.into());
    }
    Ok(Arc::new(caller))
}

/// The workspace that a header names.
fn workspace(text: &str) -> Result<WorkspaceRef, Rejection> {
    let named = WorkspaceRef::parse(text);
    let named = named.map_err(|e| bad_id("the header longhaul-workspace", &e))?;
    if named == WorkspaceRef::DEFAULT && text != named.to_string() {
        // `default` has no other name: the id it is stored under is shown nowhere.
        return Err(Code::WorkspaceNotFound.into());
    }
    Ok(named)
}

/// The one value of a header; twice is a bad header.
fn single<'a>(req: &'a HttpRequest, name: &HeaderName) -> Result<Option<&'a str>, Rejection> {
    let mut values = req.headers().get_all(name);
    let Some(first) = values.next() else {
        return Ok(None);
    };
    let bad = |why: &str| Rejection::new(Code::HeaderInvalid, format!("the header {name} {why}"));
    if values.next().is_some() {
        return Err(bad("is there twice"));
    }
    first
        .to_str()
        .map(Some)
        .map_err(|_| bad("has bytes that are not visible ASCII"))
}

pub(super) fn bad_id(what: &str, e: &IdError) -> Rejection {
    Rejection::new(Code::IdInvalid, format!("{what}: {e}"))
}

impl Ctx {
    fn checked(
        api: web::Data<Api>,
        caller: Arc<Caller>,
        req: HttpRequest,
    ) -> Result<Self, Failure> {
        if let Some(scope) = needed(&req) {
            caller.need(scope)?;
        }
        let request_id = req
            .extensions()
            .get::<RequestId>()
            .map(|r| Arc::clone(&r.0));
        Ok(Self {
            api,
            caller,
            req,
            request_id,
        })
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.api.runtime
    }

    /// The workspace, for what belongs to it as a whole. Sessions are for the [`Self::viewer`].
    pub(super) fn workspace(&self) -> WorkspaceRef {
        self.caller.workspace
    }

    /// Which sessions there are for the caller.
    pub(super) fn viewer(&self) -> Viewer {
        self.caller.viewer()
    }

    /// An id in the path.
    pub(super) fn path_id<T: FromStr<Err = IdError>>(&self, name: &str) -> Result<T, Rejection> {
        let text = self.req.match_info().get(name).unwrap_or_default();
        text.parse().map_err(|e| bad_id(name, &e))
    }

    /// The request for the engine, with its receipt where the caller wants one.
    pub(super) fn asked(&self, body: &[u8]) -> Result<Asked, Rejection> {
        Ok(Asked {
            caller: Arc::clone(&self.caller),
            request_id: match &self.request_id {
                Some(id) => Arc::clone(id),
                None => self.runtime().new_request_id(),
            },
            receipt: self.receipt(body)?,
        })
    }

    fn receipt(
        &self,
        body: &[u8],
    ) -> Result<Option<longhaul_actors::session::command::ReceiptKey>, Rejection> {
        let Some(key) = self.idempotency_key()? else {
            return Ok(None);
        };
        let method_path = format!("{} {}", self.req.method(), self.req.path());
        Ok(Some(receipt_key(&self.caller, &method_path, key, body)))
    }

    fn idempotency_key(&self) -> Result<Option<&str>, Rejection> {
        let Some(key) = single(&self.req, &IDEMPOTENCY_KEY)? else {
            return Ok(None);
        };
        let visible = key.bytes().all(|b| b.is_ascii_graphic());
        if key.is_empty() || key.len() > KEY_BYTES_MAX || !visible {
            let detail = format!("idempotency-key has 1 to {KEY_BYTES_MAX} visible characters");
            return Err(Rejection::new(Code::HeaderInvalid, detail));
        }
        Ok(Some(key))
    }

    /// Refuses the header where it could not be kept: a caller that relies on it must know.
    pub(super) fn no_idempotency_key(&self, instead: &str) -> Result<(), Rejection> {
        if !self.req.headers().contains_key(IDEMPOTENCY_KEY) {
            return Ok(());
        }
        let detail = format!("idempotency-key is not taken here: {instead}");
        Err(Rejection::new(Code::HeaderInvalid, detail))
    }

    /// `If-Match`: the last position that the caller has seen.
    pub(super) fn expected_seq(&self) -> Result<Option<u64>, Rejection> {
        let Some(text) = single(&self.req, &header::IF_MATCH)? else {
            return Ok(None);
        };
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let seq = text.parse().ok().filter(|_| digits);
        seq.map(Some).ok_or_else(|| {
            Rejection::new(Code::HeaderInvalid, "if-match is a position: digits only")
        })
    }

    pub(super) fn header(&self, name: &HeaderName) -> Result<Option<&str>, Rejection> {
        single(&self.req, name)
    }
}

/// The scope that the route needs for this method.
fn needed(req: &HttpRequest) -> Option<Scope> {
    let access = req.app_data::<Access>()?;
    let method: &Method = req.method();
    access
        .0
        .iter()
        .find(|(m, _)| method.as_str() == *m)
        .and_then(|(_, scope)| *scope)
}
