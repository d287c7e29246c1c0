//! What every part of a running engine shares.

use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use actix::Addr;
use actix::prelude::SendError;
use longhaul_storage::{Log, ReadError, View};
use tokio::sync::oneshot;

use super::clones::OpenClones;
use super::config::EngineConfig;
use super::directory::{Directory, Pushed, Queued, ReplyTo, Slot, spread};
use super::drain::Drain;
use super::metrics::Metrics;
use super::outcome::Outcome;
use crate::checkpoint::SnapshotBytes;
use crate::checkpoint::supervisor::Supervisor;
use crate::code::{Code, Rejection};
use crate::dispatch::actor::Dispatcher;
use crate::dispatch::liveness::Liveness;
use crate::dispatch::matcher::PollId;
use crate::engine::sweep::Sweeper;
use crate::env::Door;
use crate::feed::Feed;
use crate::ids::SessionId;
use crate::reader::{Class, Reader};
use crate::session::command::Command;
use crate::shard::{Shard, Start};
use crate::timer::Timer;
use crate::timer::durable::Durable;

/// The answer to a command, once it is durable.
pub(crate) type Answering = oneshot::Receiver<Result<Outcome, Rejection>>;

/// How often a command looks up a session that leaves memory in that very moment.
const LOOKUPS_MAX: usize = 8;

/// What every part shares.
pub(crate) struct Inner {
    pub(crate) log: Arc<dyn Log>,
    pub(crate) door: Door,
    pub(crate) config: EngineConfig,
    pub(crate) reader: Reader,
    pub(crate) timer: Timer,
    pub(crate) feed: Feed,
    pub(crate) directory: Directory,
    pub(crate) drain: Arc<Drain>,
    pub(crate) metrics: Metrics,
    pub(crate) liveness: Liveness,
    /// Copies of disks for forks in progress.
    pub(crate) clones: OpenClones,
    /// Where snapshots' bytes are.
    pub(crate) bytes: Arc<dyn SnapshotBytes>,
    /// Live claims watched here.
    pub(crate) claims_live: AtomicUsize,
    /// What the dispatcher last said about its queue.
    pub(crate) queue: QueueStats,
    /// Sessions being read from the log.
    pub(crate) starting: AtomicUsize,
    polls: AtomicU64,
    parts: OnceLock<Parts>,
    phase: AtomicU8,
    failed: OnceLock<String>,
}

/// The addresses of the parts.
pub(crate) struct Parts {
    pub(crate) shards: Vec<Addr<Shard>>,
    pub(crate) dispatcher: Addr<Dispatcher>,
    pub(crate) durable: Addr<Durable>,
    pub(crate) sweeper: Addr<Sweeper>,
    pub(crate) checkpoints: Addr<Supervisor>,
}

/// The dispatcher's queue, as last seen.
#[derive(Debug)]
pub(crate) struct QueueStats {
    /// Runs that wait.
    pub(crate) depth: AtomicUsize,
    /// Since when the oldest waits, wall milliseconds; `i64::MAX` = none does.
    pub(crate) oldest_ms: AtomicI64,
    /// Enrolled runners.
    pub(crate) runners: AtomicUsize,
}

impl Default for QueueStats {
    fn default() -> Self {
        Self {
            depth: AtomicUsize::new(0),
            oldest_ms: AtomicI64::new(i64::MAX),
            runners: AtomicUsize::new(0),
        }
    }
}

/// Who sends a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intake {
    /// A caller.
    External,
    /// A part of the engine; still heard while it closes.
    Internal,
}

const RUNNING: u8 = 0;
const DRAINING: u8 = 1;
const ENDED: u8 = 2;

impl Inner {
    pub(crate) fn new(
        log: Arc<dyn Log>,
        door: Door,
        config: EngineConfig,
        bytes: Arc<dyn SnapshotBytes>,
    ) -> Self {
        let threads = config.blocking_threads_max;
        Self {
            reader: Reader::new(Arc::clone(&log), threads, config.blocking_queue_len_max),
            timer: Timer::new(Arc::clone(&door.clock)),
            feed: Feed::new(
                config.feed_events_max,
                config.feed_bytes_max,
                config.followers_max,
            ),
            liveness: Liveness::new(Arc::clone(&door.clock), config.runner_live_s),
            log,
            door,
            config,
            clones: OpenClones::default(),
            bytes,
            directory: Directory::new(),
            drain: Arc::default(),
            metrics: Metrics::new(),
            claims_live: AtomicUsize::new(0),
            queue: QueueStats::default(),
            starting: AtomicUsize::new(0),
            polls: AtomicU64::new(0),
            parts: OnceLock::new(),
            phase: AtomicU8::new(RUNNING),
            failed: OnceLock::new(),
        }
    }

    /// Sets the parts, once.
    pub(crate) fn install(&self, parts: Parts) {
        // Only the starting thread calls this.
        let _ = self.parts.set(parts);
    }

    /// The parts; absent only while starting.
    pub(crate) fn parts(&self) -> Option<&Parts> {
        self.parts.get()
    }

    /// The shard of a session.
    pub(crate) fn shard(&self, id: SessionId) -> Option<&Addr<Shard>> {
        let shards = &self.parts()?.shards;
        shards.get(spread(id) % shards.len().max(1))
    }

    /// Sessions being read from the log.
    pub(crate) fn starting(&self) -> usize {
        self.starting.load(Ordering::Relaxed)
    }

    /// Names a new poll.
    pub(crate) fn next_poll(&self) -> PollId {
        PollId(self.polls.fetch_add(1, Ordering::Relaxed))
    }

    /// Why a message could not be sent to a part.
    pub(crate) fn unsent<T>(&self, error: &SendError<T>) -> Rejection {
        match error {
            SendError::Full(_) => Rejection::new(Code::Busy, "a queue inside the server is full"),
            SendError::Closed(_) => self.stopped(),
        }
    }

    /// Monotonic milliseconds.
    pub(crate) fn mono_ms(&self) -> u64 {
        u64::try_from(self.door.clock.mono().as_millis()).unwrap_or(u64::MAX)
    }

    /// Queues a command with its session; starts the session if it is not in memory.
    ///
    /// # Errors
    /// `runtime.stopped`, or `runtime.busy` if a queue is full.
    pub(crate) fn post(
        &self,
        id: SessionId,
        command: Command,
        intake: Intake,
    ) -> Result<Answering, Rejection> {
        match self.phase.load(Ordering::Acquire) {
            RUNNING => {}
            DRAINING if intake == Intake::Internal => {}
            _ => return Err(self.stopped()),
        }
        let (reply, answering) = ReplyTo::new(self.drain.enter());
        let mut queued = Queued::new(command, reply);
        for _ in 0..LOOKUPS_MAX {
            let slot = self.directory.slot(id).ok_or_else(|| self.stopped())?;
            match slot.push(queued, &self.config) {
                Pushed::Waits | Pushed::Full => return Ok(answering),
                Pushed::Start => {
                    self.start(&slot);
                    return Ok(answering);
                }
                Pushed::Closed(back) => {
                    self.directory.remove(&slot);
                    queued = back;
                }
            }
        }
        Err(Rejection::new(Code::Busy, "the session is leaving memory"))
    }

    /// Asks for an actor; if nobody can be asked, whatever waits is refused.
    pub(crate) fn start(&self, slot: &Arc<Slot>) {
        let sent = self
            .shard(slot.id)
            .map(|shard| shard.try_send(Start(Arc::clone(slot))));
        let why = match sent {
            Some(Ok(())) => return,
            Some(Err(SendError::Full(_))) => {
                Rejection::new(Code::Busy, "too many sessions are starting")
            }
            Some(Err(SendError::Closed(_))) | None => self.stopped(),
        };
        self.unload(slot, &why);
    }

    /// Takes a session out of memory; whatever waits in it is refused.
    pub(crate) fn unload(&self, slot: &Arc<Slot>, why: &Rejection) {
        slot.close()
            .into_iter()
            .for_each(|q| q.reply.send(Err(why.clone())));
        self.directory.remove(slot);
    }

    /// Brings a session into memory so that it watches its claim.
    pub(crate) fn wake(&self, id: SessionId) {
        if let Some(slot) = self.directory.slot(id).filter(|slot| slot.want()) {
            self.start(&slot);
        }
    }

    /// Reads off the thread.
    pub(crate) fn read<T, F>(
        self: &Arc<Self>,
        class: Class,
        work: F,
    ) -> impl Future<Output = Result<T, Rejection>> + Send + use<T, F> + 'static
    where
        T: Send + 'static,
        F: FnOnce(&dyn View) -> Result<T, ReadError> + Send + 'static,
    {
        let inner = Arc::clone(self);
        let started = self
            .reader
            .start(class, |log| longhaul_storage::read(log, work));
        async move {
            let read = started?.await.map_err(|_| crate::reader::lost())?;
            read.map_err(|e| inner.refuse(&e))
        }
    }

    /// What the log said, as an answer.
    pub(crate) fn refuse(&self, error: &ReadError) -> Rejection {
        match error {
            ReadError::Closed if !self.is_running() || self.log_ended() => self.stopped(),
            other => crate::reader::refuse(other),
        }
    }

    /// Whether the log is out of order or closed for good; noted as the end of the engine.
    pub(crate) fn log_ended(&self) -> bool {
        match self.log.health() {
            longhaul_storage::Health::Failed(cause) => {
                self.fail(format!("the log failed: {cause}"));
                true
            }
            longhaul_storage::Health::Closed => true,
            _ => false,
        }
    }

    /// Whether commands are taken.
    pub(crate) fn is_running(&self) -> bool {
        self.phase.load(Ordering::Acquire) == RUNNING
    }

    /// `runtime.stopped`, with the reason if it was not meant to.
    pub(crate) fn stopped(&self) -> Rejection {
        match self.failed.get() {
            Some(why) => Rejection::new(Code::Stopped, format!("out of order: {why}")),
            None => Code::Stopped.into(),
        }
    }

    /// Why the engine is out of order, if it is.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// A part died, or the log failed: nothing is taken any more, and all that waits is answered.
    pub(crate) fn fail(&self, why: String) {
        if self.phase.swap(ENDED, Ordering::AcqRel) == RUNNING
            && self.failed.set(why.clone()).is_ok()
        {
            tracing::error!(why, "the engine is out of order; restart the process");
        }
        self.end();
    }

    /// Takes no more commands of callers.
    pub(crate) fn drain(&self) {
        let swap =
            self.phase
                .compare_exchange(RUNNING, DRAINING, Ordering::AcqRel, Ordering::Acquire);
        // Failing means that it has ended already.
        let _ = swap;
        self.feed.close();
    }

    /// Takes nothing at all; answers all that waits.
    pub(crate) fn end(&self) {
        self.phase.store(ENDED, Ordering::Release);
        self.directory.close(&self.stopped());
        self.feed.close();
        self.timer.close();
        self.reader.stop();
    }
}

/// Held by an actor that the engine cannot do without: its death ends the engine.
pub(crate) struct Guard {
    inner: Arc<Inner>,
    name: &'static str,
}

impl Guard {
    /// Watches the part called `name`.
    pub(crate) fn new(inner: &Arc<Inner>, name: &'static str) -> Self {
        Self {
            inner: Arc::clone(inner),
            name,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.inner.is_running() {
            self.inner.fail(format!("{} died", self.name));
        }
    }
}
