//! The running system: sessions, runs and their followers on one log.
//!
//! It runs on actix `System` threads of its own, so that a host of any executor can hold it:
//! every method here works wherever it is awaited.

pub mod claims;
pub(crate) mod clones;
pub mod config;
pub(crate) mod directory;
pub(crate) mod drain;
pub mod family;
pub mod forks;
pub mod health;
pub(crate) mod inner;
pub(crate) mod metrics;
pub mod operations;
pub mod outcome;
pub mod prune;
pub mod reads;
mod start;
pub mod sweep;
#[cfg(test)]
mod tests;
pub mod transcript;
pub mod usage;

use std::sync::Arc;

use longhaul_storage::Log;

pub use claims::{CLAIM_POINTS, ClaimGrant, DeliveryGuard, Offered};
pub use config::EngineConfig;
pub use family::{FAMILY_MEMBERS_MAX, Family, FamilyMember};
pub use forks::{Common, ForkRequest, no_checkpoint};
pub use health::{Health, Stats};
pub use outcome::Answer;
pub use prune::{PrunePlace, PruneQuery, Pruned};
pub use reads::{EventPage, EventQuery, ListPage};
pub use sweep::START_POINTS;
pub use transcript::{TranscriptPage, TranscriptQuery};
pub use usage::UsageQuery;

use crate::checkpoint::{
    CHECKPOINT_POINTS, COLLECT_POINTS, EXPIRY_POINTS, Elsewhere, SnapshotBytes,
};
use crate::code::{Code, Rejection};
use crate::env::Door;
use crate::ids::SessionId;
use crate::session::command::Command;
use crate::session::decide::erased_reply;
use inner::{Inner, Intake};
use start::Life;

/// The fault points of starting, claiming and erasing, for tests that stop the process at each.
pub fn fault_points() -> Vec<&'static str> {
    START_POINTS.iter().chain(CLAIM_POINTS).copied().collect()
}

/// The fault points of checkpoints, forks, expiry and collection, likewise.
pub fn checkpoint_fault_points() -> Vec<&'static str> {
    let points = [CHECKPOINT_POINTS, EXPIRY_POINTS, COLLECT_POINTS];
    points.concat()
}

/// A running engine. Cheap to clone; all clones are the same engine.
///
/// Dropping the last clone stops it without waiting; [`Engine::close`] stops it in order.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
    life: Arc<Life>,
}

impl Engine {
    /// Starts the engine on `log`. Commands are taken at once; a scan of the log's rows finds
    /// what was going on before. Install a metrics recorder first, if there is to be one.
    ///
    /// # Errors
    /// `runtime.internal` if the threads cannot be made.
    pub fn start(log: Arc<dyn Log>, door: Door, config: EngineConfig) -> Result<Self, Rejection> {
        Self::start_with(log, door, config, Arc::new(Elsewhere))
    }

    /// As [`Engine::start`], with snapshots whose bytes are kept here.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start_with(
        log: Arc<dyn Log>,
        door: Door,
        config: EngineConfig,
        bytes: Arc<dyn SnapshotBytes>,
    ) -> Result<Self, Rejection> {
        start::start(log, door, config, bytes)
    }

    /// An id for a new session.
    pub fn new_session_id(&self) -> SessionId {
        let door = &self.inner.door;
        SessionId(door.ids.uuid(door.clock.wall_ms()))
    }

    /// The clocks and ids it runs on.
    pub fn door(&self) -> &Door {
        &self.inner.door
    }

    /// The log it runs on.
    pub fn log(&self) -> &Arc<dyn Log> {
        &self.inner.log
    }

    /// Its settings.
    pub fn config(&self) -> &EngineConfig {
        &self.inner.config
    }

    /// Sends one command and waits for its durable answer. Dropping the future withdraws
    /// nothing: a command that was taken is decided.
    ///
    /// # Errors
    /// What the session decides; `runtime.busy` if a queue is full; `runtime.stopped`;
    /// `storage.*`; `runtime.internal` if the session's actor died of it.
    pub async fn command(&self, session: SessionId, command: Command) -> Result<Answer, Rejection> {
        let erase = matches!(command, Command::Erase(_));
        let answer = self.inner.post(session, command, Intake::External)?;
        match answer.await.map_err(|_| crate::reader::lost())? {
            Ok(outcome) => Ok(outcome.answer()),
            // Erasing what is erased is done already, whoever of several was first.
            Err(why) if erase && why.code == Code::SessionErased => {
                let reply = erased_reply(session);
                Ok(Answer {
                    status: reply.status,
                    body: reply.body.into(),
                })
            }
            Err(why) => Err(why),
        }
    }

    /// Stops: no more claims and commands, followers end, commands in progress are answered, the
    /// threads are joined. The log is left open, for its owner to close. Idempotent.
    pub async fn close(&self) {
        self.life.close(&self.inner).await;
    }

    /// Makes a session's actor die as a defect would. For tests.
    #[cfg(any(test, feature = "failpoints"))]
    pub fn crash_session(&self, session: SessionId) {
        let addr = self
            .inner
            .directory
            .find(session)
            .and_then(|slot| slot.addr());
        if let Some(addr) = addr {
            addr.do_send(crate::session::actor::Crash);
        }
    }
}

/// The answer of a part that died while answering.
pub(crate) fn lost() -> Rejection {
    crate::reader::lost()
}
