//! The commands' HTTP client.

use std::time::Duration;

use longhaul_actors::env::Door;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::Value;

use super::args::ServerArgs;
use super::exit::{CliError, Exit};

/// How long one call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Tries of one call that never reached the server or was turned away for a moment.
const TRIES_MAX: u32 = 3;
/// First wait between tries.
const BACKOFF_MS: u64 = 200;

/// A server as a client sees it.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: String,
    token: Option<String>,
    workspace: Option<String>,
    door: Door,
}

impl Client {
    /// A client for the server that the arguments name.
    pub(crate) fn new(at: &ServerArgs) -> Result<Self, CliError> {
        let base = at.server.trim_end_matches('/').to_owned();
        if !base.starts_with("http://") && !base.starts_with("https://") {
            let detail = format!("--server {base:?} is not an http:// or https:// URL");
            return Err(CliError::usage(detail));
        }
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .user_agent(concat!("longhaul/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|e| {
                CliError::new(
                    Exit::Failed,
                    "cli.client",
                    cause(&e),
                    "Check the TLS set-up.",
                )
            })?;
        let (token, workspace) = (at.token.clone(), at.workspace.clone());
        Ok(Self {
            http,
            base,
            token,
            workspace,
            door: Door::system(),
        })
    }

    /// The server's address.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// A request with everything that every request carries.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(workspace) = &self.workspace {
            request = request.header("longhaul-workspace", workspace);
        }
        request
    }

    /// `GET path`.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, CliError> {
        self.call(Method::GET, path, None, false).await
    }

    /// `POST path`, with an Idempotency-Key: a repeated try is the same request.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.call(Method::POST, path, Some(body), true).await
    }

    /// `POST path`, where doing it again changes nothing.
    pub(crate) async fn post_again(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.call(Method::POST, path, Some(body), false).await
    }

    /// `DELETE path`.
    pub(crate) async fn delete(&self, path: &str) -> Result<Value, CliError> {
        self.call(Method::DELETE, path, None, false).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        once: bool,
    ) -> Result<Value, CliError> {
        let wall = self.door.clock.wall_ms();
        let key = uuid::Uuid::from_bytes(self.door.ids.uuid(wall))
            .simple()
            .to_string();
        let mut tried = 1;
        loop {
            let mut request = self.request(method.clone(), path).timeout(CALL_TIMEOUT);
            if let Some(body) = body {
                request = request.json(body);
            }
            if once {
                request = request.header("idempotency-key", &key);
            }
            let error = match request.send().await {
                Ok(response) => match answer(response).await {
                    Ok(value) => return Ok(value),
                    Err(e) => e,
                },
                Err(e) => CliError::unreachable(&self.base, cause(&e)),
            };
            let again = matches!(error.exit, Exit::Unreachable | Exit::TryLater);
            if !again || tried >= TRIES_MAX {
                return Err(error);
            }
            let wait = Duration::from_millis(BACKOFF_MS << tried);
            self.door
                .clock
                .sleep_until(self.door.clock.mono() + wait)
                .await;
            tried += 1;
        }
    }
}

/// The JSON of an answer, or its problem.
pub(crate) async fn answer(response: Response) -> Result<Value, CliError> {
    let status = response.status();
    let url = response.url().to_string();
    let bytes = response
        .bytes()
        .await
        .map_err(|e| CliError::unreachable(&url, cause(&e)))?;
    let json = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    if status.is_success() {
        Ok(json)
    } else {
        Err(CliError::of_problem(status.as_u16(), &json))
    }
}

/// The innermost cause: the outer layers only repeat the URL.
pub(crate) fn cause(e: &reqwest::Error) -> String {
    let mut inner: &dyn std::error::Error = e;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
