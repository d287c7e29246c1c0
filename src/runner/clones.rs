//! Copies of disks for forks, made where the bytes are.

use std::sync::Arc;

use longhaul_actors::session::payload::SnapshotRef;
use serde::Deserialize;
use serde_json::Value;

use super::attempt::Shared;
use super::sandbox::SandboxError;

/// What is asked.
#[derive(Deserialize)]
struct Offer {
    clone_token: String,
    #[serde(default)]
    workspace: Option<String>,
    snapshot: SnapshotRef,
}

/// Whether this is an offer to copy a disk, and no claim.
pub(super) fn is_offer(json: &Value) -> bool {
    json.get("clone_token").is_some()
}

/// Makes the copy and answers. A copy that nobody waits for any more is removed.
pub(super) async fn copy(shared: Arc<Shared>, json: Value) {
    let offer = match Offer::deserialize(&json) {
        Ok(offer) => offer,
        Err(error) => return tracing::error!(%error, "an offer of a copy cannot be read"),
    };
    let provider = shared.registry.provider(&offer.snapshot.provider);
    let made = match &provider {
        Some(provider) => provider.copy(offer.workspace, offer.snapshot).await,
        None => Err(SandboxError::Unsupported(
            "this runner has no such provider".to_owned(),
        )),
    };
    let token = &offer.clone_token;
    let said = match &made {
        Ok(name) => shared.api.answer_clone(token, Ok(name)).await,
        Err(why) => {
            tracing::warn!(%why, "a fork's disk was not copied");
            // Reasons are for people.
            let why: String = why.to_string().chars().take(1_000).collect();
            shared.api.answer_clone(token, Err(&why)).await
        }
    };
    if let (Err(error), Ok(name), Some(provider)) = (said, made, provider) {
        tracing::info!(%error, "a copy of a disk was not adopted");
        provider.drop_copy(name).await;
    }
}
