//! What the load drives: a runtime in this process, or a server over HTTP. Both are spoken to
//! with the same calls and the same JSON.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};

use super::http::{Connection, Endpoint, HttpAnswer};
use super::local::Local;
use crate::cli::exit::{CliError, Exit};

/// Longest wait of one poll for claims.
pub(crate) const CLAIM_WAIT: Duration = Duration::from_secs(2);
/// Events asked for on one page of the check.
pub(crate) const PAGE_EVENTS: usize = 1000;

/// What is driven.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// A runtime in this process.
    Here(Local),
    /// A server.
    There(Endpoint),
}

/// One caller's way to it. Over HTTP: one connection, made anew after it broke.
#[derive(Debug)]
pub(crate) enum Lane {
    /// Calls into the runtime.
    Here(Local),
    /// Calls over a connection.
    There {
        /// Where to connect.
        endpoint: Endpoint,
        /// The connection, once there is one.
        connection: Option<Connection>,
    },
}

impl Target {
    /// A way for one caller.
    pub(crate) fn lane(&self) -> Lane {
        match self {
            Self::Here(local) => Lane::Here(local.clone()),
            Self::There(endpoint) => Lane::There {
                endpoint: endpoint.clone(),
                connection: None,
            },
        }
    }

    /// For messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Here(_) => "the runtime in this process".into(),
            Self::There(endpoint) => endpoint.url(),
        }
    }
}

/// A call's parts, the same for both ways.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call<'a> {
    /// `POST /v1/deployments`
    Deployment,
    /// `POST /v1/sessions`
    Create,
    /// `POST /v1/runners`
    Enrol,
    /// `POST /v1/runners/{id}/claims`
    Claims {
        /// The runner.
        runner: &'a str,
        /// Most claims.
        max: usize,
    },
    /// `POST /v1/claims/{token}/{verb}`
    Verb {
        /// The claim.
        token: &'a str,
        /// The verb.
        verb: &'a str,
    },
    /// `POST /v1/sessions/{id}/events`
    Send {
        /// The session.
        session: &'a str,
    },
    /// `GET /v1/sessions/{id}/events`
    Page {
        /// The session.
        session: &'a str,
        /// The position before the page.
        after: u64,
    },
    /// `POST /v1/sessions/{id}/cancel`
    Cancel {
        /// The session.
        session: &'a str,
    },
}

impl Call<'_> {
    fn path(&self) -> String {
        match self {
            Self::Deployment => "/v1/deployments".into(),
            Self::Create => "/v1/sessions".into(),
            Self::Enrol => "/v1/runners".into(),
            Self::Claims { runner, max } => {
                format!(
                    "/v1/runners/{runner}/claims?max={max}&wait_ms={}",
                    CLAIM_WAIT.as_millis()
                )
            }
            Self::Verb { token, verb } => format!("/v1/claims/{token}/{verb}"),
            Self::Send { session } => format!("/v1/sessions/{session}/events"),
            Self::Page { session, after } => {
                format!("/v1/sessions/{session}/events?after={after}&limit={PAGE_EVENTS}")
            }
            Self::Cancel { session } => format!("/v1/sessions/{session}/cancel"),
        }
    }
}

impl Lane {
    /// One call. An error means that no answer came, so that the outcome is not known.
    pub(crate) async fn call(&mut self, call: Call<'_>, body: &[u8]) -> io::Result<HttpAnswer> {
        match self {
            Self::Here(local) => Ok(local.call(call, body).await),
            Self::There {
                endpoint,
                connection,
            } => {
                let open = match connection.take() {
                    Some(open) => open,
                    None => endpoint.connect().await?,
                };
                let open = connection.insert(open);
                let method = if matches!(call, Call::Page { .. }) {
                    "GET"
                } else {
                    "POST"
                };
                let patience = match call {
                    Call::Claims { .. } => CLAIM_WAIT,
                    _ => Duration::ZERO,
                };
                let answer = open.call(method, &call.path(), body, patience).await;
                if answer.is_err() {
                    *connection = None;
                }
                answer
            }
        }
    }

    /// One call that must succeed, with a JSON answer.
    pub(crate) async fn must(&mut self, call: Call<'_>, body: &Value) -> Result<Value, CliError> {
        let what = call.path();
        let answer = self.call(call, body.to_string().as_bytes()).await;
        let answer = answer.map_err(|e| CliError::unreachable(&what, e))?;
        let json: Value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
        if (200..300).contains(&answer.status) {
            return Ok(json);
        }
        let mut error = CliError::of_problem(answer.status, &json);
        error.detail = format!("{what}: {}", error.detail);
        Err(error)
    }
}

/// The deployment whose runs the load claims itself.
pub(crate) fn deployment() -> Value {
    json!({
        "name": "load",
        "release": { "instructions": "", "harness": { "kind": "external" } },
        "sandbox": { "provider": "none", "max_duration_seconds": 86_400 },
    })
}

/// A text field of an answer.
pub(crate) fn text(answer: &Value, key: &str) -> Result<String, CliError> {
    answer
        .get(key)
        .and_then(Value::as_str)
        .map(str::to_owned)
        .ok_or_else(|| {
            let detail = format!("the answer has no {key:?}: {answer}");
            CliError::new(
                Exit::Failed,
                "load.answer",
                detail,
                "Is the server of this version?",
            )
        })
}
