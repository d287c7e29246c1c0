//! The last words of an attempt: how it ended.

use std::time::Duration;

use longhaul_actors::session::command::SettleCheckpoint;
use serde_json::{Map, Value};

use super::calls::{CallError, Calls};
use super::harness::{End, Failure, Settlement};

/// Says how the work ended. Whether the run settled so, with what was kept.
pub(super) async fn say_end(calls: &Calls, end: End, kept: Option<SettleCheckpoint>) -> bool {
    match end {
        End::Settle(Settlement(body)) => settle(calls, body, kept).await,
        End::Release => {
            if let Err(error) = calls.last_call("release").await {
                tracing::info!(%error, "the attempt could not be given back");
            }
            false
        }
        End::Over => false,
    }
}

/// Says that the run failed before it had a sandbox.
pub(super) async fn say_failure(calls: &Calls, failure: Failure) {
    say_failure_with(calls, failure, None).await;
}

/// Says that the run failed. Whether it settled so, with what was kept.
pub(super) async fn say_failure_with(
    calls: &Calls,
    failure: Failure,
    kept: Option<SettleCheckpoint>,
) -> bool {
    match failure {
        Failure::Lost(reason) => {
            tracing::info!(reason, "the claim is lost");
            false
        }
        Failure::Parked => false,
        Failure::Run { code, message } => {
            // The message may quote the conversation: it is in the log of the session.
            tracing::info!(code, "the run failed");
            settle(calls, Settlement::failed(&code, &message).0, kept).await
        }
    }
}

async fn settle(calls: &Calls, body: Map<String, Value>, kept: Option<SettleCheckpoint>) -> bool {
    let settled = match &kept {
        Some(kept) => calls.call_with("settle", body, kept).await,
        None => calls.call("settle", Duration::ZERO, body).await,
    };
    match settled {
        Ok(_) => true,
        Err(CallError::Lost(reason)) => {
            tracing::info!(reason, "the claim was lost before it settled");
            false
        }
        Err(CallError::Refused(problem)) => {
            tracing::warn!(
                code = problem.code,
                detail = problem.detail,
                "the settlement was refused"
            );
            let text = format!("{}: {}", problem.code, problem.detail);
            let failed = Settlement::failed("harness.settlement_refused", &text).0;
            let _ = calls.call("settle", Duration::ZERO, failed).await;
            false
        }
    }
}
