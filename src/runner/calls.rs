//! Calls under one claim: numbered, in order, repeated until their answer is known.
//!
//! A numbered call that is repeated gets its first answer, so a lost answer never doubles a
//! write. As soon as any answer says that the claim is gone, [`Calls::lost`] resolves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longhaul_actors::env::Door;
use longhaul_actors::session::command::SettleCheckpoint;
use longhaul_actors::session::step::{StepOp, StepResult};
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, watch};

use super::protocol::{ApiError, CallAnswer, Claim, ClaimApi, Problem};
use super::queue::StepQueue;

/// First pause before a call is repeated.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// Longest pause.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Why a call did not do what was asked.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CallError {
    /// The claim is gone: stop at once. Carries the server's reason.
    #[error("the claim is lost ({0})")]
    Lost(String),
    /// The server refused this call; the claim goes on.
    #[error("{}: {}", .0.code, .0.detail)]
    Refused(Box<Problem>),
}

/// The calls of one claim.
#[derive(Debug)]
pub struct Calls {
    api: Arc<dyn ClaimApi>,
    door: Door,
    token: String,
    lease: Duration,
    beat: Duration,
    /// The last number used and answered. Held while a call is under way: one at a time.
    last_n: Mutex<u64>,
    /// When the server last accepted a call, monotonic milliseconds.
    accepted_ms: AtomicU64,
    lost: watch::Sender<Option<String>>,
    /// What is said of the run's steps; every numbered call waits behind it.
    queue: StepQueue,
}

impl Calls {
    /// The calls of `claim`, which was handed out just now.
    pub fn new(api: Arc<dyn ClaimApi>, door: Door, claim: &Claim) -> Self {
        let accepted_ms = AtomicU64::new(mono_ms(&door));
        Self {
            api,
            door,
            token: claim.token.clone(),
            lease: claim.lease,
            beat: claim.beat,
            last_n: Mutex::new(0),
            accepted_ms,
            lost: watch::Sender::new(None),
            queue: StepQueue::default(),
        }
    }

    /// What is said of the run's steps.
    pub(crate) fn queue(&self) -> &StepQueue {
        &self.queue
    }

    /// How often to call at least.
    pub fn beat(&self) -> Duration {
        self.beat
    }

    /// Resolves when the claim is gone, with the reason.
    pub async fn lost(&self) -> String {
        let mut lost = self.lost.subscribe();
        let reason = lost
            .wait_for(Option::is_some)
            .await
            .map(|reason| reason.clone());
        // The sender lives in `self`, so there is always a reason.
        reason.ok().flatten().unwrap_or_default()
    }

    /// Makes a numbered call; repeats it until its answer is known or a whole lease has passed.
    /// An `n` in `body` is replaced.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call(
        &self,
        verb: &str,
        wait: Duration,
        body: Map<String, Value>,
    ) -> Result<CallAnswer, CallError> {
        self.numbered(verb, wait, body, None).await
    }

    /// A numbered call that brings a snapshot in the server's own store, or why there is none.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call_with(
        &self,
        verb: &str,
        body: Map<String, Value>,
        snapshot: &SettleCheckpoint,
    ) -> Result<CallAnswer, CallError> {
        self.numbered(verb, Duration::ZERO, body, Some(snapshot))
            .await
    }

    /// Says that the checkpoint of the resume plan does not verify.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn reject_checkpoint(&self, id: &str, reason: &str) -> Result<(), ApiError> {
        let rejected = self.api.reject_checkpoint(&self.token, id, reason, false);
        rejected.await
    }

    /// Says that the checkpoint of the resume plan cannot be read for now: the run's next attempt
    /// gets an older one.
    ///
    /// # Errors
    /// See [`ApiError`]; `runtime.snapshot_unreadable` where none is older.
    pub async fn pass_over_checkpoint(&self, id: &str, reason: &str) -> Result<(), ApiError> {
        let passed = self.api.reject_checkpoint(&self.token, id, reason, true);
        passed.await
    }

    async fn numbered(
        &self,
        verb: &str,
        wait: Duration,
        mut body: Map<String, Value>,
        snapshot: Option<&SettleCheckpoint>,
    ) -> Result<CallAnswer, CallError> {
        let flushed = self.queue.flush().await;
        // A run settles in any case: as failed, where a result of its steps was refused.
        if verb != "settle" {
            flushed?;
        }
        let mut last_n = self.last_n.lock().await;
        let n = *last_n + 1;
        body.insert("n".to_owned(), n.into());
        let body = Value::Object(body);
        let (answer, _) = self.repeat(verb, wait, &body, snapshot).await?;
        *last_n = n;
        Ok(answer)
    }

    /// A call without a number, so that the server keeps no answer of it, behind all that was said
    /// of steps; repeated until its answer is known or a whole lease has passed. The flag: it was
    /// made more than once, and what an earlier try did was told to nobody.
    pub(crate) async fn unnumbered(
        &self,
        verb: &str,
        body: &Value,
    ) -> Result<(CallAnswer, bool), CallError> {
        self.queue.flush().await?;
        let _one_at_a_time = self.last_n.lock().await;
        self.repeat(verb, Duration::ZERO, body, None).await
    }

    /// Operations on the journal, all or none, without a number: repeated until the answer is known
    /// or a whole lease has passed. The flag: it was made more than once.
    ///
    /// Beside a numbered call, which may be waiting for something.
    pub(crate) async fn steps(&self, ops: &[StepOp]) -> (Result<Vec<StepResult>, CallError>, bool) {
        let mut pause = RETRY_MIN;
        let mut again = false;
        loop {
            if let Some(reason) = self.lost.borrow().clone() {
                return (Err(CallError::Lost(reason)), again);
            }
            let answer = self.api.steps(&self.token, ops.to_vec()).await;
            match self.heard("steps", answer) {
                Ok(Some(answers)) => return (Ok(answers), again),
                Ok(None) => again = true,
                Err(error) => return (Err(error), again),
            }
            if self.idle() > self.lease {
                self.say_lost("unreachable");
            }
            self.pause(&mut pause).await;
        }
    }

    /// A last call, without a number (one before it may have been cut off half-way): made a few
    /// times at most, whether or not the claim is known to be gone.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn last_call(&self, verb: &str) -> Result<CallAnswer, CallError> {
        let body = json!({});
        let mut pause = RETRY_MIN;
        for _ in 0..4 {
            match self.once(verb, Duration::ZERO, &body, None).await? {
                Some(answer) => return Ok(answer),
                None => self.pause(&mut pause).await,
            }
        }
        Err(CallError::Lost("unreachable".to_owned()))
    }

    /// Renews the lease at every beat, for ever. A call under way renews it by itself.
    pub async fn keep_alive(&self) {
        loop {
            self.door
                .clock
                .sleep_until(self.door.clock.mono() + self.beat)
                .await;
            if self.last_n.try_lock().is_err() && self.idle() < self.beat * 2 {
                continue;
            }
            // An unreachable server is asked again at the next beat, or by the next call.
            let _ = self
                .once("heartbeat", Duration::ZERO, &json!({}), None)
                .await;
            if self.idle() > self.lease {
                self.say_lost("unreachable");
            }
        }
    }

    async fn repeat(
        &self,
        verb: &str,
        wait: Duration,
        body: &Value,
        snapshot: Option<&SettleCheckpoint>,
    ) -> Result<(CallAnswer, bool), CallError> {
        let mut pause = RETRY_MIN;
        let mut again = false;
        loop {
            if let Some(reason) = self.lost.borrow().clone() {
                return Err(CallError::Lost(reason));
            }
            if let Some(answer) = self.once(verb, wait, body, snapshot).await? {
                return Ok((answer, again));
            }
            again = true;
            if self.idle() > self.lease {
                self.say_lost("unreachable");
            }
            self.pause(&mut pause).await;
        }
    }

    /// One try; `None` = try again later.
    async fn once(
        &self,
        verb: &str,
        wait: Duration,
        body: &Value,
        snapshot: Option<&SettleCheckpoint>,
    ) -> Result<Option<CallAnswer>, CallError> {
        let call = match snapshot {
            Some(snapshot) => self.api.call_with(&self.token, verb, body, snapshot),
            None => self.api.call(&self.token, verb, wait, body),
        };
        self.heard(verb, call.await)
    }

    /// What an answer means; `None` = try again later.
    fn heard<T>(&self, verb: &str, answer: Result<T, ApiError>) -> Result<Option<T>, CallError> {
        match answer {
            Ok(answer) => {
                self.accepted_ms
                    .store(mono_ms(&self.door), Ordering::Relaxed);
                Ok(Some(answer))
            }
            Err(error) => {
                if let Some(reason) = error.claim_lost() {
                    self.say_lost(&reason);
                    return Err(CallError::Lost(reason));
                }
                if error.is_transient() {
                    tracing::debug!(verb, %error, "a call is to be repeated");
                    return Ok(None);
                }
                match error {
                    ApiError::Refused(problem) => Err(CallError::Refused(problem)),
                    ApiError::Unreachable(_) => Ok(None),
                }
            }
        }
    }

    async fn pause(&self, pause: &mut Duration) {
        let until = self.door.clock.mono() + *pause;
        *pause = (*pause * 2).min(RETRY_MAX);
        self.door.clock.sleep_until(until).await;
    }

    /// Time since the server last accepted a call.
    fn idle(&self) -> Duration {
        let since = mono_ms(&self.door).saturating_sub(self.accepted_ms.load(Ordering::Relaxed));
        Duration::from_millis(since)
    }

    fn say_lost(&self, reason: &str) {
        // A heartbeat that arrives after this runner's own last word is no loss.
        if matches!(reason, "settled" | "parked") {
            return;
        }
        self.lost.send_if_modified(|lost| {
            let first = lost.is_none();
            if first {
                *lost = Some(reason.to_owned());
            }
            first
        });
    }
}

fn mono_ms(door: &Door) -> u64 {
    u64::try_from(door.clock.mono().as_millis()).unwrap_or(u64::MAX)
}
