//! The claim protocol, from every door: the built-in runner, `process` harnesses, HTTP.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::dispatch::clones::CloneOffer;
use longhaul_actors::dispatch::{RunnerInfo, RunnerTarget, Workspaces};
use longhaul_actors::engine::{Answer, ClaimGrant, Offered};
use longhaul_actors::ids::{ClaimToken, RunnerId};
use longhaul_actors::session::command::{Bearer, SettleCheckpoint, Verb};
use longhaul_actors::session::decision::Granted;
use longhaul_actors::session::input::parse_attempt;
use longhaul_actors::time::rfc3339;
use serde_json::{Map, Value, json};
use tracing::Instrument;

use super::Runtime;
use crate::auth::Caller;
use crate::catalog::runners::RunnerRow;

/// The verbs of the protocol.
pub const VERBS: [&str; 10] = [
    "ready",
    "heartbeat",
    "events",
    "inputs",
    "checkpoint",
    "reject",
    "steps",
    "park",
    "settle",
    "release",
];

impl Runtime {
    /// One call under a claim: `POST /v1/claims/{token}/{verb}`. `wait_ms` is for `inputs` only.
    ///
    /// # Errors
    /// `request.id_invalid`, `request.route_unknown` for an unknown verb, those of the body, and
    /// those of the call.
    pub async fn claim_call(
        &self,
        by: Bearer,
        token: &str,
        verb: &str,
        wait_ms: u64,
        body: &[u8],
    ) -> Result<Answer, Rejection> {
        if !VERBS.contains(&verb) {
            return Err(Code::RouteUnknown.into());
        }
        let token =
            ClaimToken::parse(token).map_err(|e| Rejection::new(Code::IdInvalid, e.to_string()))?;
        let body = if body.is_empty() { b"{}" } else { body };
        let (n, verb) = parse_attempt(verb, body)?;
        let wait = self.wait(wait_ms);
        let span = tracing::debug_span!("claim_call", session = %token.session, verb = verb.text());
        if matches!(verb, Verb::Inputs) && !wait.is_zero() {
            let mut stop = self.stop_signal();
            let call = self
                .engine()
                .attempt(by, token, n, verb, wait)
                .instrument(span);
            return tokio::select! {
                answer = call => answer,
                _ = stop.wait_for(|stop| *stop) => Err(Code::Stopped.into()),
            };
        }
        self.engine()
            .attempt(by, token, n, verb, wait)
            .instrument(span)
            .await
    }

    /// `settle` or `checkpoint` of the runner in this process, with a snapshot in the server's own
    /// store (or why there is none).
    ///
    /// # Errors
    /// As [`Runtime::claim_call`].
    pub(crate) async fn claim_call_with(
        &self,
        token: &str,
        verb: &str,
        body: &[u8],
        snapshot: &SettleCheckpoint,
    ) -> Result<Answer, Rejection> {
        let token =
            ClaimToken::parse(token).map_err(|e| Rejection::new(Code::IdInvalid, e.to_string()))?;
        let (n, mut parsed) = parse_attempt(verb, body)?;
        match (&mut parsed, snapshot) {
            (Verb::Settle(settle), snapshot) => settle.checkpoint = Some(snapshot.clone()),
            (Verb::Checkpoint(new), SettleCheckpoint::Made(made)) => {
                new.snapshot = made.snapshot.clone();
                new.kept.clone_from(&made.kept);
            }
            _ => {}
        }
        let span = tracing::debug_span!("claim_call", session = %token.session, verb);
        self.engine()
            .attempt(Bearer::Trusted, token, n, parsed, Duration::ZERO)
            .instrument(span)
            .await
    }

    fn wait(&self, wait_ms: u64) -> Duration {
        Duration::from_millis(wait_ms.min(self.config().runners.wait_ms_max))
    }

    /// Long poll of an enrolled runner. Dropping the future gives back what was not delivered.
    ///
    /// # Errors
    /// `runner.not_found`, `runner.draining`, and those of the engine.
    pub async fn claims_for(
        &self,
        caller: &Caller,
        id: RunnerId,
        max: usize,
        wait_ms: u64,
    ) -> Result<Offered, Rejection> {
        let row = self.catalog().runner(caller, id).await?;
        if row.draining {
            return Err(Code::RunnerDraining.into());
        }
        let mut stop = self.stop_signal();
        let poll = async {
            match self.claims(id, max, self.wait(wait_ms)).await {
                // The engine knows the runners that called lately; the row is the truth.
                Err(r) if r.code == Code::RunnerNotFound => {
                    self.engine().enrol(info(id, &row)).await?;
                    self.claims(id, max, self.wait(wait_ms)).await
                }
                other => other,
            }
        };
        tokio::select! {
            claims = poll => claims,
            _ = stop.wait_for(|stop| *stop) => Ok(Offered::default()),
        }
    }

    /// Long poll of a runner that the engine knows.
    ///
    /// # Errors
    /// `runner.not_found`, and those of the engine.
    pub async fn claims(
        &self,
        runner: RunnerId,
        max: usize,
        wait: Duration,
    ) -> Result<Offered, Rejection> {
        self.engine().claim(runner, max, wait).await
    }

    /// The claim object on the wire.
    ///
    /// # Errors
    /// Those of reading the deployment.
    pub async fn claim_json(&self, grant: &ClaimGrant) -> Result<Value, Rejection> {
        let text = self.claim_text(grant).await?;
        serde_json::from_str(&text).map_err(|e| Rejection::new(Code::Internal, e.to_string()))
    }

    /// The same as text, every stored byte as it is.
    async fn claim_text(&self, grant: &ClaimGrant) -> Result<String, Rejection> {
        let granted = &grant.granted;
        let pin = &granted.pin;
        let revision = self
            .catalog()
            .revision(
                grant.workspace,
                pin.agent_deployment,
                Some(pin.agent_deployment_revision_number),
            )
            .await?;
        let retention = self.catalog().retention(grant.workspace).await?;
        let mut resume = json!(granted.resume);
        if let (Some(blob), Some(Value::Object(from))) = (&granted.blob, resume.get_mut("resume")) {
            from.insert("data_base64".to_owned(), STANDARD.encode(blob).into());
        }
        let head = json!({
            "claim_token": grant.token.to_string(),
            "session_id": grant.session,
            "workspace": grant.workspace,
            "zero_data_retention": retention.zero_data_retention,
            "run_id": granted.run,
            "attempt": granted.attempt,
            "continues": granted.continues,
            "lease_ms": grant.lease_ms,
            "beat_ms": self.config().runs.beat_s.saturating_mul(1_000),
            "startup_deadline": rfc3339(granted.startup_deadline_ms),
            "deadline": rfc3339(granted.deadline_ms),
            "resume": resume,
            "inputs_next_after": grant.inputs_next_after,
            "remembered_approvals": remembered(granted),
        });
        let mut out = head.to_string();
        out.pop();
        out.push_str(",\"deployment\":");
        out.push_str(&revision.json());
        out.push_str(",\"inputs\":[");
        for (i, input) in grant.inputs.iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            // Envelopes are JSON made here: always text.
            out.push_str(&String::from_utf8_lossy(input));
        }
        out.push_str("]}");
        Ok(out)
    }
}

/// The answer to a poll: `{claims, clones}`.
///
/// # Errors
/// Those of reading a deployment.
pub async fn claims_body(runtime: &Runtime, offered: &Offered) -> Result<Bytes, Rejection> {
    let mut out = String::from("{\"claims\":[");
    for (i, grant) in offered.claims.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        out.push_str(&runtime.claim_text(grant).await?);
    }
    let clones: Vec<Value> = offered.clones.iter().map(clone_json).collect();
    out.push_str("],\"clones\":");
    out.push_str(&Value::from(clones).to_string());
    out.push('}');
    Ok(out.into())
}

/// Decisions on tools, as a runner reads them.
fn remembered(granted: &Granted) -> Map<String, Value> {
    let text = |granted: bool| if granted { "granted" } else { "denied" };
    let each = granted.remembered.iter();
    each.map(|(tool, granted)| (tool.clone(), text(*granted).into()))
        .collect()
}

fn clone_json(clone: &CloneOffer) -> Value {
    json!({
        "clone_token": clone.token,
        "child_session_id": clone.child,
        "workspace": clone.workspace,
        "checkpoint_id": clone.checkpoint,
        "snapshot": clone.snapshot,
        "target": clone.target.to_string(),
        "deadline": rfc3339(clone.deadline_ms),
    })
}

/// What the engine needs to know of a runner.
pub(crate) fn info(id: RunnerId, row: &RunnerRow) -> RunnerInfo {
    RunnerInfo {
        id,
        targets: row
            .targets
            .iter()
            .filter_map(|t| RunnerTarget::parse(t).ok())
            .collect(),
        workspaces: row.serves.map_or(Workspaces::All, Workspaces::One),
        capacity: row.capacity,
        draining: row.draining,
    }
}
