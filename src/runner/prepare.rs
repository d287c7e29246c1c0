//! What an attempt needs before it begins: its harness and its sandbox.

use std::sync::Arc;

use serde_json::Value;

use super::attempt::Shared;
use super::harness::{Failure, Harness};
use super::protocol::Claim;
use super::sandbox::{Sandbox, SandboxError, SandboxRequest};

/// What an attempt works with.
pub(super) struct Prepared {
    pub(super) harness: Arc<dyn Harness>,
    pub(super) sandbox: Arc<dyn Sandbox>,
    /// Whether it gives snapshots.
    pub(super) snapshots: bool,
    /// Whether checkpoints are taken.
    pub(super) keeps: bool,
    /// Whether the turn ends with one.
    pub(super) keeps_at_the_end: bool,
}

/// Why an attempt has nothing to work with.
pub(super) enum Unprepared {
    Failure(Failure),
    /// The snapshot is gone or does not verify.
    Unusable(String),
    /// The snapshot cannot be read for now.
    Unreadable(String),
}

impl From<Failure> for Unprepared {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Finds the harness and makes the sandbox.
pub(super) async fn prepare(shared: &Shared, claim: &Claim) -> Result<Prepared, Unprepared> {
    let kind = claim
        .harness()
        .get("kind")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let harness = shared.registry.harness(kind).ok_or_else(|| {
        Failure::run(
            "harness.unknown",
            format!("this runner drives no harness {kind:?}"),
        )
    })?;
    let kind = claim
        .sandbox()
        .get("provider")
        .and_then(Value::as_str)
        .unwrap_or("none");
    let provider = shared.registry.provider(kind).ok_or_else(|| {
        Failure::run(
            "sandbox.unsupported",
            format!("this runner has no sandbox provider {kind:?}"),
        )
    })?;
    let request = SandboxRequest {
        session_id: claim.session_id.clone(),
        run_id: claim.run_id.clone(),
        attempt: claim.attempt,
        workspace: claim.workspace.clone(),
        profile: claim.sandbox().clone(),
        resume: claim.resume.clone(),
    };
    // Bounded by the start-up deadline: the server gives the run to somebody else after it.
    let made = match shared.registry.attached().filter(|_| claim.is_attached()) {
        Some(pool) => pool
            .take(&claim.session_id)
            .map(|d| d.sandbox)
            .filter(|sandbox| !sandbox.is_gone())
            .ok_or_else(|| {
                SandboxError::SnapshotUnusable("the attached sandbox is gone".to_owned())
            }),
        None => provider.create(request).await.map(Arc::from),
    };
    let sandbox: Arc<dyn Sandbox> = match made {
        Ok(sandbox) => sandbox,
        Err(SandboxError::SnapshotUnusable(why)) => {
            return Err(Unprepared::Unusable(why));
        }
        Err(SandboxError::SnapshotUnreadable(why)) => {
            return Err(Unprepared::Unreadable(why));
        }
        Err(e) => return Err(Failure::from(e).into()),
    };
    let mode = claim.harness().get("checkpoint").and_then(Value::as_str);
    let wanted = mode.is_none_or(|mode| mode != "off") && !claim.keeps_nothing;
    // The other modes have taken theirs by then.
    let settle = mode.is_none_or(|mode| mode == "settle");
    let snapshots = provider.takes_snapshots() && !claim.keeps_nothing;
    Ok(Prepared {
        harness,
        sandbox,
        snapshots,
        keeps: wanted && snapshots,
        keeps_at_the_end: wanted && snapshots && settle,
    })
}
