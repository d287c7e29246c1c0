//! Checkpoints of an attempt: at the end of its turn, and whenever its harness asks.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use longhaul_actors::session::command::{NewCheckpoint, SettleCheckpoint};
use longhaul_actors::session::payload::CheckpointKind;
use serde_json::{Map, Value, json};

use super::attached::{Attached, Disk};
use super::attempt::Attempt;
use super::calls::CallError;
use super::harness::Failure;
use super::protocol::CallAnswer;
use super::sandbox::{SandboxError, Snapshot, Stay};

/// Characters of a reason that the log is told.
const FAILED_CHARS_MAX: usize = 250;

/// Why there is no checkpoint.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotKept {
    #[error("this sandbox gives no snapshots")]
    Unsupported,
    #[error(transparent)]
    Sandbox(SandboxError),
    #[error(transparent)]
    Call(CallError),
}

impl NotKept {
    /// The stable code, where it is this runner's own.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Unsupported => "sandbox.unsupported",
            Self::Sandbox(why) => why.code(),
            Self::Call(_) => "sandbox.failed",
        }
    }
}

impl From<NotKept> for Failure {
    fn from(why: NotKept) -> Self {
        match why {
            NotKept::Call(error) => error.into(),
            other => Self::run(other.code(), other.to_string()),
        }
    }
}

impl Attempt {
    /// Keeps the sandbox's files as they are now, and with them `blob`, at most 1 MiB of the
    /// harness's own that [`Attempt::resume_blob`] gives back to an attempt that goes on from
    /// here. It stands at the last event that the run wrote or took. Gives back the checkpoint's
    /// id.
    ///
    /// # Errors
    /// [`Failure::Lost`] if the claim is gone; any other is no reason to stop: nothing is kept
    /// (`sandbox.unsupported` where the sandbox gives no snapshots).
    pub async fn checkpoint(
        &self,
        name: Option<&str>,
        blob: Option<&[u8]>,
    ) -> Result<String, Failure> {
        let mut about = Map::new();
        if let Some(name) = name {
            about.insert("name".to_owned(), name.into());
        }
        if let Some(blob) = blob {
            let text = STANDARD.encode(blob);
            about.insert(
                "resume".to_owned(),
                json!({"kind": "blob", "data_base64": text}),
            );
        }
        self.checkpoint_with(about).await
    }

    /// A checkpoint that the agent's loop owes: its files as they are now, after `turn` turns.
    /// One that cannot be taken is an event of the log and a warning; the run goes on. Where the
    /// sandbox gives no snapshots there is nothing to take.
    ///
    /// # Errors
    /// [`Failure::Lost`] only.
    pub(crate) async fn checkpoint_due(
        &self,
        kind: CheckpointKind,
        turn: u64,
    ) -> Result<(), Failure> {
        let about = Map::from_iter([
            ("kind".to_owned(), json!(kind)),
            ("turn".to_owned(), turn.into()),
        ]);
        let reason = match self.checkpoint_call(about).await {
            Ok(_) | Err(NotKept::Unsupported) => return Ok(()),
            Err(NotKept::Call(CallError::Lost(reason))) => return Err(Failure::Lost(reason)),
            Err(NotKept::Call(CallError::Refused(problem))) => {
                // The server knows by itself.
                tracing::warn!(code = problem.code, "no checkpoint of this turn");
                return Ok(());
            }
            Err(NotKept::Sandbox(why)) => why.to_string(),
        };
        tracing::warn!(reason, "no checkpoint of this turn");
        let reason: String = reason.chars().take(FAILED_CHARS_MAX).collect();
        let about = Map::from_iter([
            ("kind".to_owned(), json!(kind)),
            ("failed".to_owned(), reason.into()),
        ]);
        match self.call("checkpoint", Duration::ZERO, about).await {
            Err(CallError::Lost(reason)) => Err(Failure::Lost(reason)),
            Err(error) => {
                tracing::warn!(%error, "the log does not say that there is no checkpoint");
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// As [`Attempt::checkpoint`], with the fields of the call but its snapshot.
    pub(super) async fn checkpoint_with(
        &self,
        about: Map<String, Value>,
    ) -> Result<String, Failure> {
        let answer = self.checkpoint_call(about).await?;
        let id = answer.body.get("checkpoint_id").and_then(Value::as_str);
        Ok(id.unwrap_or_default().to_owned())
    }

    /// The call itself.
    pub(super) async fn checkpoint_call(
        &self,
        mut about: Map<String, Value>,
    ) -> Result<CallAnswer, NotKept> {
        if !self.snapshots {
            return Err(NotKept::Unsupported);
        }
        let taken = snapshot(self).await.map_err(NotKept::Sandbox)?;
        let shown = match self.api.keeps_snapshots() {
            // Replaced by the snapshot that comes with the call.
            true => json!({"id": "-", "provider": "-", "retention": "platform"}),
            false => wire(&taken),
        };
        about.insert("snapshot".to_owned(), shown);
        let made = made(taken);
        let answer = self.calls.call_with("checkpoint", about, &made).await;
        answer.map_err(NotKept::Call)
    }

    /// What the harness kept with the checkpoint that this attempt goes on from.
    pub fn resume_blob(&self) -> Option<Vec<u8>> {
        let text = self.claim.resume.pointer("/resume/data_base64")?.as_str()?;
        STANDARD.decode(text).ok()
    }
}

async fn snapshot(attempt: &Attempt) -> Result<Snapshot, SandboxError> {
    let clock = &attempt.door.clock;
    let until = clock.mono() + Duration::from_secs(attempt.config.snapshot_s_max);
    tokio::select! {
        taken = attempt.sandbox.snapshot(false) => taken,
        () = clock.sleep_until(until) => Err(SandboxError::Failed("it took too long".to_owned())),
    }
}

/// What the server is told of a snapshot that is not in its own store.
fn wire(snapshot: &Snapshot) -> Value {
    let reference = &snapshot.reference;
    json!({
        "id": reference.id,
        "provider": reference.provider,
        "retention": reference.retention,
        "bytes": reference.bytes,
    })
}

fn made(snapshot: Snapshot) -> SettleCheckpoint {
    let new = NewCheckpoint::of(snapshot.reference, snapshot.kept);
    SettleCheckpoint::Made(Box::new(new))
}

/// Keeps the files of the turn that ends. A failure is part of the log, not of the turn. `None` =
/// there is nothing to say with the settlement.
pub(super) async fn at_the_end(attempt: &Attempt, may_stay: bool) -> Option<SettleCheckpoint> {
    if attempt.api.keeps_snapshots() {
        return Some(match snapshot(attempt).await {
            Ok(snapshot) => made(snapshot),
            Err(why) => {
                let gone = matches!(why, SandboxError::Gone | SandboxError::Unsupported(_));
                let stays = may_stay && !gone && attempt.sandbox.is_dirty();
                tracing::warn!(%why, sandbox_stays = stays, "no checkpoint of this turn");
                SettleCheckpoint::Failed {
                    reason: why.to_string(),
                    stays,
                }
            }
        });
    }
    // The server knows of it by a checkpoint of its own, before the run settles.
    if let Err(error) = attempt.checkpoint_with(Map::new()).await {
        tracing::warn!(%error, "no checkpoint of this turn");
    }
    None
}

/// Whether the sandbox stays because nothing else has its files.
pub(super) fn stays(kept: Option<&SettleCheckpoint>) -> bool {
    matches!(kept, Some(SettleCheckpoint::Failed { stays: true, .. }))
}

/// Lets go of the sandbox, unless it stays: then whoever comes after the settlement finds it.
pub(super) async fn leave_or_release(
    attempt: &Attempt,
    kept: Option<&SettleCheckpoint>,
    pool: Option<&Arc<Attached>>,
) {
    let Some(pool) = pool.filter(|_| stays(kept)) else {
        return attempt.sandbox.release().await;
    };
    // Nothing that the turn started runs on.
    attempt.sandbox.end_commands().await;
    let disk = Disk {
        sandbox: Arc::clone(&attempt.sandbox),
        began: None,
    };
    let now = attempt.door.clock.mono();
    pool.leave(&attempt.claim.session_id, disk, now);
}

/// The sandbox stayed. It is noted for a restart once the session knows of it; where it does not,
/// it goes.
pub(super) async fn after_settling(attempt: &Attempt, pool: &Attached, settled: bool) {
    let session_id = &attempt.claim.session_id;
    if settled {
        let stay = Stay {
            session_id: session_id.clone(),
            began: None,
        };
        // Unless somebody has taken it over meanwhile.
        pool.note(session_id, &stay);
    } else if let Some(disk) = pool.take(session_id) {
        disk.sandbox.release().await;
    }
}

/// What operations did to the attached sandbox is kept before the turn changes it again, so that
/// a later attempt starts from there.
pub(super) async fn attached(attempt: &Attempt) {
    let about = Map::from_iter([("name".to_owned(), json!("attached"))]);
    if let Err(error) = attempt.checkpoint_with(about).await {
        tracing::warn!(%error, "the attached sandbox was not kept");
    }
}
