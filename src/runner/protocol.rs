//! The claim protocol as a runner sees it, without saying how the server is reached.

use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use longhaul_actors::code::Code;
use longhaul_actors::session::command::SettleCheckpoint;
use longhaul_actors::session::step::{StepOp, StepResult};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::steps;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ApiError {
    /// The server was not reached, or its answer never came: nothing is known of the effect.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// The server answered with a problem.
    #[error("{}: {}", .0.code, .0.detail)]
    Refused(Box<Problem>),
}

/// The error of the server, as in `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct Problem {
    /// HTTP status.
    #[serde(default)]
    pub status: u16,
    /// `area.reason`.
    #[serde(default)]
    pub code: String,
    /// For people.
    #[serde(default)]
    pub detail: String,
    /// Whether the very same call may succeed later.
    #[serde(default)]
    pub retryable: bool,
    /// Everything else (`reason`, `expected`, …).
    #[serde(flatten)]
    pub extras: Map<String, Value>,
}

impl Problem {
    /// The problem as JSON.
    pub fn to_json(&self) -> Value {
        let mut out = self.extras.clone();
        out.insert("status".to_owned(), self.status.into());
        out.insert("code".to_owned(), self.code.clone().into());
        out.insert("detail".to_owned(), self.detail.clone().into());
        out.insert("retryable".to_owned(), self.retryable.into());
        Value::Object(out)
    }
}

impl ApiError {
    /// Why the claim is gone, if this error says that it is.
    pub fn claim_lost(&self) -> Option<String> {
        let Self::Refused(p) = self else { return None };
        match p.code.as_str() {
            "runtime.claim_lost" => {
                let reason = p.extras.get("reason").and_then(Value::as_str);
                Some(reason.unwrap_or("unknown").to_owned())
            }
            "claim.not_found" | "session.not_found" | "session.erased" => Some(p.code.clone()),
            _ => None,
        }
    }

    /// Whether the call should be made again: the server is away, busy, stopped, or does not
    /// know whether its write is durable.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Refused(p) => p.retryable || p.status >= 500,
        }
    }
}

/// An answer to a call.
#[derive(Debug, Clone, PartialEq)]
pub struct CallAnswer {
    /// HTTP status, 2xx.
    pub status: u16,
    /// Its body.
    pub body: Value,
}

/// Which part of a session's log to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventsQuery {
    /// The claim under which it is read.
    pub workspace: Option<String>,
    /// The session.
    pub session_id: String,
    /// Where to start, exclusive.
    pub cursor: Cursor,
    /// Only these types; empty = all.
    pub types: &'static [&'static str],
    /// Most events on the page.
    pub limit: usize,
}

/// Where a page of events starts, and which way it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cursor {
    /// Ascending, after this position.
    After(u64),
    /// Descending, before this position; `None` = from the end.
    Before(Option<u64>),
}

/// A page of events.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EventsPage {
    /// Envelopes, in the order asked for.
    pub events: Vec<Value>,
    /// Where the next page starts; `None` = this was the last one.
    pub next: Option<u64>,
}

/// A page of events as text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TextPage {
    /// Envelopes, JSON, in the order asked for.
    pub events: Vec<Bytes>,
    /// Where the next page starts; `None` = this was the last one.
    pub next: Option<u64>,
}

/// The server, as seen by one enrolled runner.
pub trait ClaimApi: Send + Sync + Debug + 'static {
    /// Enrols the runner (again, if the server has forgotten it). Idempotent.
    ///
    /// # Errors
    /// See [`ApiError`].
    fn enrol(&self) -> BoxFuture<'_, Result<(), ApiError>>;

    /// Asks for at most `max` claims, and as many offers to copy a disk for a fork (they carry a
    /// `clone_token`), and waits at most `wait` for the first. Dropping the
    /// future gives back what was not delivered.
    ///
    /// # Errors
    /// See [`ApiError`]; `runner.not_found` asks for [`ClaimApi::enrol`].
    fn claims(&self, max: usize, wait: Duration) -> BoxFuture<'_, Result<Vec<Value>, ApiError>>;

    /// One call under a claim: `POST /v1/claims/{token}/{verb}`.
    ///
    /// # Errors
    /// See [`ApiError`].
    fn call<'a>(
        &'a self,
        token: &'a str,
        verb: &'a str,
        wait: Duration,
        body: &'a Value,
    ) -> BoxFuture<'a, Result<CallAnswer, ApiError>>;

    /// Operations on the run's journal, all or none: one result for each. In the server's process
    /// they take no detour over JSON.
    ///
    /// # Errors
    /// See [`ApiError`]; `step.*`, `journal.*`, `run.budget_exceeded`.
    fn steps<'a>(
        &'a self,
        token: &'a str,
        ops: Vec<StepOp>,
    ) -> BoxFuture<'a, Result<Vec<StepResult>, ApiError>> {
        async move {
            let unsaid = |why| steps::refused(Code::BodyInvalid, why);
            let body = steps::body(&ops).map_err(unsaid)?;
            let body = serde_json::from_slice(&body).map_err(|e| unsaid(e.to_string()))?;
            let answer = self.call(token, "steps", Duration::ZERO, &body).await?;
            let results = steps::results(answer.body.to_string().as_bytes());
            results.map_err(|why| steps::refused(Code::Internal, why))
        }
        .boxed()
    }

    /// As [`ClaimApi::call`], with a snapshot in the server's own store, or why there is none.
    /// Only a runner in the server's process has such; others make the plain call.
    ///
    /// # Errors
    /// See [`ApiError`].
    fn call_with<'a>(
        &'a self,
        token: &'a str,
        verb: &'a str,
        body: &'a Value,
        _snapshot: &'a SettleCheckpoint,
    ) -> BoxFuture<'a, Result<CallAnswer, ApiError>> {
        self.call(token, verb, Duration::ZERO, body)
    }

    /// Whether snapshots of this runner's sandboxes go to the server's own store.
    fn keeps_snapshots(&self) -> bool {
        false
    }

    /// Says that the checkpoint of the resume plan does not verify, for good, or (`temporary`)
    /// that it cannot be read for now.
    ///
    /// # Errors
    /// See [`ApiError`].
    fn reject_checkpoint<'a>(
        &'a self,
        _token: &'a str,
        _checkpoint_id: &'a str,
        _reason: &'a str,
        _temporary: bool,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Answers an offer to copy a disk: the copy's name, or why there is none.
    ///
    /// # Errors
    /// See [`ApiError`]; nobody waits for the copy then.
    fn answer_clone<'a>(
        &'a self,
        _token: &'a str,
        _copy: Result<&'a str, &'a str>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        let why = "there is nobody to answer".to_owned();
        Box::pin(std::future::ready(Err(ApiError::Unreachable(why))))
    }

    /// Reads the log of a session that this runner works on.
    ///
    /// # Errors
    /// See [`ApiError`].
    fn events(&self, query: EventsQuery) -> BoxFuture<'_, Result<EventsPage, ApiError>>;

    /// As [`ClaimApi::events`], for a reader that takes less than all of each.
    ///
    /// # Errors
    /// See [`ApiError`].
    fn events_text(&self, query: EventsQuery) -> BoxFuture<'_, Result<TextPage, ApiError>> {
        async move {
            let page = self.events(query).await?;
            let text = page.events.iter().map(|e| Bytes::from(e.to_string()));
            Ok(TextPage {
                events: text.collect(),
                next: page.next,
            })
        }
        .boxed()
    }

    /// Says that this runner wants no further claims.
    ///
    /// # Errors
    /// See [`ApiError`].
    fn drain(&self) -> BoxFuture<'_, Result<(), ApiError>>;
}

/// A claim as the server hands it out.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// The secret that every call under it carries.
    pub token: String,
    /// The session.
    pub session_id: String,
    /// The run.
    pub run_id: String,
    /// The attempt's number, from 1.
    pub attempt: u32,
    /// The run it goes on from.
    pub continues: Option<String>,
    /// The session's workspace, where the server says it.
    pub workspace: Option<String>,
    /// Whether nothing of the conversation may be written anywhere: no snapshot, no log line.
    pub keeps_nothing: bool,
    /// How long the claim lasts without a call.
    pub lease: Duration,
    /// How often to call, at least.
    pub beat: Duration,
    /// The inputs, in log order.
    pub inputs: Vec<Value>,
    /// Whether there are more inputs than fit into the claim.
    pub inputs_cut: bool,
    /// The resume plan.
    pub resume: Value,
    /// The pinned deployment revision: `release`, `sandbox`, …
    pub deployment: Value,
    /// The claim as received, without its token.
    pub json: Value,
}

#[derive(Deserialize)]
struct WireClaim {
    claim_token: String,
    session_id: String,
    run_id: String,
    attempt: u32,
    #[serde(default)]
    continues: Option<String>,
    #[serde(default)]
    workspace: Option<String>,
    #[serde(default)]
    zero_data_retention: bool,
    lease_ms: u64,
    #[serde(default)]
    beat_ms: Option<u64>,
    #[serde(default)]
    inputs: Vec<Value>,
    #[serde(default)]
    inputs_next_after: Option<u64>,
    #[serde(default)]
    resume: Value,
    deployment: Value,
}

impl Claim {
    /// Reads a claim object.
    ///
    /// # Errors
    /// What does not fit.
    pub fn parse(json: Value) -> Result<Self, String> {
        let wire = WireClaim::deserialize(&json).map_err(|e| e.to_string())?;
        let lease = Duration::from_millis(wire.lease_ms.max(1));
        let third = lease / 3;
        let beat = wire
            .beat_ms
            .map_or(third, |ms| Duration::from_millis(ms.max(1)).min(third));
        let mut json = json;
        if let Some(fields) = json.as_object_mut() {
            fields.remove("claim_token");
        }
        Ok(Self {
            token: wire.claim_token,
            session_id: wire.session_id,
            run_id: wire.run_id,
            attempt: wire.attempt,
            continues: wire.continues,
            workspace: wire.workspace,
            keeps_nothing: wire.zero_data_retention,
            lease,
            beat,
            inputs: wire.inputs,
            inputs_cut: wire.inputs_next_after.is_some(),
            resume: wire.resume,
            deployment: wire.deployment,
            json,
        })
    }

    /// The harness's own description.
    pub fn harness(&self) -> &Value {
        self.deployment
            .pointer("/release/harness")
            .unwrap_or(&Value::Null)
    }

    /// The sandbox's description.
    pub fn sandbox(&self) -> &Value {
        self.deployment.get("sandbox").unwrap_or(&Value::Null)
    }

    /// Whether it takes over the sandbox of a runtime operation.
    pub fn is_attached(&self) -> bool {
        self.resume.get("kind").and_then(Value::as_str) == Some("attached")
    }

    /// Whether nothing of this run was ever tried before.
    pub fn is_first(&self) -> bool {
        self.attempt == 1 && self.continues.is_none()
    }
}

/// The text of a `user.message`; `None` for other events.
pub fn message_text(envelope: &Value) -> Option<String> {
    if envelope.get("type").and_then(Value::as_str) != Some("user.message") {
        return None;
    }
    let content = envelope.get("content")?;
    if let Some(text) = content.get("text").and_then(Value::as_str) {
        return Some(text.to_owned());
    }
    let blocks = content.get("blocks")?.as_array()?;
    let texts = blocks
        .iter()
        .filter_map(|b| b.get("text").and_then(Value::as_str));
    Some(texts.collect::<Vec<_>>().join("\n"))
}
