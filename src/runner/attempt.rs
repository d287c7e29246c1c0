//! One attempt: what a harness works with, and the way from claim to settlement.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use longhaul_actors::code::Code;
use longhaul_actors::env::Door;
use serde_json::{Map, Value, json};
use tokio::sync::{OnceCell, watch};
use tracing::Instrument;

use super::calls::{CallError, Calls};
use super::harness::{End, Failure, Harness};
use super::keep;
use super::prepare::{Prepared, Unprepared, prepare};
use super::protocol::{ApiError, CallAnswer, Claim, ClaimApi, EventsPage, EventsQuery, TextPage};
use super::sandbox::Sandbox;
use super::saying::{say_end, say_failure, say_failure_with};
use super::settings::RunnerConfig;
use super::worker::Registry;
use crate::journal::Core;

/// Pause before a page of the log is asked for again.
const READ_RETRY: Duration = Duration::from_millis(250);

/// What a park led to.
#[derive(Debug, Clone, PartialEq)]
pub enum Parked {
    /// It waits. With compute held, poll [`Attempt::inputs`]; released, the attempt is over.
    Waiting,
    /// Everything was in already: nothing was parked, these are the answers.
    Ready(Vec<Value>),
}

/// Whether a parked run keeps its sandbox and its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compute {
    /// Yes, for `runs.waiting_hold_s_max` at most.
    Held,
    /// No: a continuation run goes on.
    Released,
}

/// One attempt, as its harness sees it.
#[derive(Debug)]
pub struct Attempt {
    pub(super) claim: Claim,
    pub(super) calls: Arc<Calls>,
    pub(super) sandbox: Arc<dyn Sandbox>,
    pub(super) api: Arc<dyn ClaimApi>,
    pub(super) door: Door,
    pub(super) config: Arc<RunnerConfig>,
    /// Whether its sandbox gives snapshots.
    pub(super) snapshots: bool,
    ready: OnceCell<()>,
    journal: OnceLock<Arc<Core>>,
}

impl Attempt {
    /// The claim: inputs, resume plan, deployment revision.
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Where tools act.
    pub fn sandbox(&self) -> &dyn Sandbox {
        &*self.sandbox
    }

    /// Clocks; the only ones a harness should use.
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// The runner's settings.
    pub fn config(&self) -> &RunnerConfig {
        &self.config
    }

    /// What all its journals share.
    pub(crate) fn journal(&self) -> &Arc<Core> {
        let make = || {
            let (calls, api) = (Arc::clone(&self.calls), Arc::clone(&self.api));
            Arc::new(Core::new(&self.claim, calls, api, self.door.clone()))
        };
        self.journal.get_or_init(make)
    }

    /// Says that the harness is ready. Only the first call does.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn ready(&self) -> Result<(), CallError> {
        let say = || async {
            self.call("ready", Duration::ZERO, Map::new())
                .await
                .map(drop)
        };
        self.ready.get_or_try_init(say).await?;
        Ok(())
    }

    /// Appends events (type and content), all or none, once; gives back their ids.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn events(&self, events: Vec<(&str, Value)>) -> Result<Vec<String>, CallError> {
        let list: Vec<_> = events
            .into_iter()
            .map(|(kind, content)| json!({"type": kind, "content": content}))
            .collect();
        let body = Map::from_iter([("events".to_owned(), Value::Array(list))]);
        let answer = self.call("events", Duration::ZERO, body).await?;
        let written = answer.body.get("events").and_then(Value::as_array);
        let ids = written
            .into_iter()
            .flatten()
            .filter_map(|e| e.get("id")?.as_str());
        Ok(ids.map(str::to_owned).collect())
    }

    /// Appends one event; gives back its id.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn event(&self, kind: &str, content: Value) -> Result<String, CallError> {
        self.events(vec![(kind, content)])
            .await
            .map(|ids| ids.into_iter().next().unwrap_or_default())
    }

    /// Takes what arrived meanwhile; waits at most `wait` for the first.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn inputs(&self, wait: Duration) -> Result<Vec<Value>, CallError> {
        let answer = self.call("inputs", wait, Map::new()).await?;
        Ok(inputs_of(&answer.body))
    }

    /// What arrived meanwhile, without waiting and, where it is nothing, without a write. The flag:
    /// the answer to an earlier try was lost, and what that one took stands in the log alone.
    ///
    /// # Errors
    /// See [`CallError`].
    pub(crate) async fn inputs_now(&self) -> Result<(Vec<Value>, bool), CallError> {
        // What is never written is in no log: there the answer must be kept for a second try.
        if self.claim.keeps_nothing {
            return Ok((self.inputs(Duration::ZERO).await?, false));
        }
        let (answer, again) = self.calls.unnumbered("inputs", &json!({})).await?;
        Ok((inputs_of(&answer.body), again))
    }

    /// Waits for things outside: `{"question_id": …}`, `{"approval_id": …}`,
    /// `{"tool_use_id": …}`, `{"signal": …, "timeout_ms"?: …}`, `{"budget": true}`.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn park(
        &self,
        waiting_on: Vec<Value>,
        compute: Compute,
    ) -> Result<Parked, CallError> {
        let compute = match compute {
            Compute::Held => "held",
            Compute::Released => "released",
        };
        let body = Map::from_iter([
            ("waiting_on".to_owned(), Value::Array(waiting_on)),
            ("compute".to_owned(), json!(compute)),
        ]);
        let answer = self.call("park", Duration::ZERO, body).await?;
        let ready = answer.body.get("state").and_then(Value::as_str) == Some("ready");
        Ok(if ready {
            Parked::Ready(inputs_of(&answer.body))
        } else {
            Parked::Waiting
        })
    }

    /// Any call of the claim protocol.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call(
        &self,
        verb: &str,
        wait: Duration,
        body: Map<String, Value>,
    ) -> Result<CallAnswer, CallError> {
        self.calls.call(verb, wait, body).await
    }

    /// The longest that one call may wait without the lease being in danger.
    pub fn wait_max(&self) -> Duration {
        self.calls.beat().min(Duration::from_secs(5))
    }

    /// A page of this session's log. Asks again while the server cannot be reached.
    ///
    /// # Errors
    /// See [`Failure`].
    pub async fn page(&self, query: EventsQuery) -> Result<EventsPage, Failure> {
        read_page(&*self.api, &self.door, query)
            .await
            .map_err(|e| match e {
                CallError::Lost(reason) => Failure::Lost(reason),
                CallError::Refused(_) => Failure::run("harness.log_unreadable", e.to_string()),
            })
    }
}

/// A page of a log. Asks again while the server cannot be reached.
pub(crate) async fn read_page(
    api: &dyn ClaimApi,
    door: &Door,
    query: EventsQuery,
) -> Result<EventsPage, CallError> {
    until_read(door, || api.events(query.clone())).await
}

/// As [`read_page`], as text.
pub(crate) async fn read_text_page(
    api: &dyn ClaimApi,
    door: &Door,
    query: EventsQuery,
) -> Result<TextPage, CallError> {
    until_read(door, || api.events_text(query.clone())).await
}

async fn until_read<'a, T>(
    door: &Door,
    read: impl Fn() -> BoxFuture<'a, Result<T, ApiError>>,
) -> Result<T, CallError> {
    loop {
        match read().await {
            Ok(page) => return Ok(page),
            Err(e) if e.is_transient() => {
                // Bounded by the claim: when it is lost, this future is dropped.
                let again = door.clock.mono() + READ_RETRY;
                door.clock.sleep_until(again).await;
            }
            Err(ApiError::Refused(problem)) => return Err(CallError::Refused(problem)),
            Err(ApiError::Unreachable(why)) => return Err(CallError::Lost(why)),
        }
    }
}

fn inputs_of(body: &Value) -> Vec<Value> {
    body.get("inputs")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default()
}

/// What all attempts of a worker share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) api: Arc<dyn ClaimApi>,
    pub(super) registry: Registry,
    pub(super) config: Arc<RunnerConfig>,
    pub(super) door: Door,
}

/// Works on a claim until it is settled, given back or lost.
pub(super) async fn drive(shared: Arc<Shared>, claim: Claim, stop: watch::Receiver<bool>) {
    let span = tracing::info_span!(
        "attempt",
        session = %claim.session_id, run = %claim.run_id, attempt = claim.attempt
    );
    drive_in_span(shared, claim, stop).instrument(span).await;
}

async fn drive_in_span(shared: Arc<Shared>, claim: Claim, stop: watch::Receiver<bool>) {
    let calls = Arc::new(Calls::new(
        Arc::clone(&shared.api),
        shared.door.clone(),
        &claim,
    ));
    let prepared = match prepare(&shared, &claim).await {
        Ok(prepared) => prepared,
        Err(Unprepared::Failure(failure)) => return say_failure(&calls, failure).await,
        Err(Unprepared::Unusable(reason)) => return reject(&calls, &claim, &reason).await,
        Err(Unprepared::Unreadable(reason)) => return pass_over(&calls, &claim, &reason).await,
    };
    let Prepared {
        harness,
        sandbox,
        snapshots,
        keeps,
        keeps_at_the_end,
    } = prepared;
    let attempt = Attempt {
        claim,
        calls,
        sandbox,
        api: Arc::clone(&shared.api),
        door: shared.door.clone(),
        config: Arc::clone(&shared.config),
        snapshots,
        ready: OnceCell::new(),
        journal: OnceLock::new(),
    };
    if attempt.claim.is_attached() {
        if keeps && attempt.sandbox.is_dirty() {
            keep::attached(&attempt).await;
        }
        // From here on it is this attempt's alone.
        attempt.sandbox.attach_to(None);
    }
    let end = work(&*harness, &attempt, stop).await;
    let end = kept_first(&attempt.calls, end).await;
    let settles = matches!(end, Ok(End::Settle(_)) | Err(Failure::Run { .. }));
    // The claim is kept alive while the files are kept and the sandbox goes; the run settles only
    // after it is gone.
    let pool = shared.registry.attached();
    let last = async {
        let kept = match settles && keeps_at_the_end {
            true => keep::at_the_end(&attempt, pool.is_some()).await,
            false => None,
        };
        keep::leave_or_release(&attempt, kept.as_ref(), pool).await;
        kept
    };
    let kept = tokio::select! {
        kept = last => kept,
        () = attempt.calls.keep_alive() => None,
    };
    let stays = keep::stays(kept.as_ref());
    let settled = match end {
        Ok(end) => say_end(&attempt.calls, end, kept).await,
        Err(failure) => say_failure_with(&attempt.calls, failure, kept).await,
    };
    if let Some(pool) = pool.filter(|_| stays) {
        keep::after_settling(&attempt, pool, settled).await;
    }
}

/// The disk of the plan is not to be had: said once, then the run starts anew without it.
async fn reject(calls: &Calls, claim: &Claim, reason: &str) {
    let id = claim.resume.get("id").and_then(Value::as_str);
    tracing::warn!(checkpoint = id, reason, "the checkpoint does not verify");
    if let Some(id) = id
        && let Err(error) = calls.reject_checkpoint(id, reason).await
    {
        tracing::warn!(%error, "the checkpoint could not be rejected");
    }
    say_end(calls, End::Release, None).await;
}

/// The disk of the plan is there and cannot be read for now: nothing is said against it. The next
/// attempt starts from an older one; where there is none, the run fails and may be tried again.
async fn pass_over(calls: &Calls, claim: &Claim, reason: &str) {
    let id = claim.resume.get("id").and_then(Value::as_str);
    let id = id.unwrap_or_default();
    tracing::warn!(checkpoint = id, reason, "the checkpoint cannot be read now");
    match calls.pass_over_checkpoint(id, reason).await {
        Ok(()) => {
            say_end(calls, End::Release, None).await;
        }
        Err(ApiError::Refused(p)) if p.code == Code::SnapshotUnreadable.text() => {
            say_failure(calls, Failure::run(&p.code, p.detail)).await;
        }
        Err(error) => {
            tracing::warn!(%error, "no older checkpoint could be asked for");
            let text = format!("{id}: {reason}");
            let failure = Failure::run(Code::SnapshotUnreadable.text(), text);
            say_failure(calls, failure).await;
        }
    }
}

async fn work(
    harness: &dyn Harness,
    attempt: &Attempt,
    mut stop: watch::Receiver<bool>,
) -> Result<End, Failure> {
    let run = AssertUnwindSafe(harness.run(attempt)).catch_unwind();
    tokio::select! {
        // In this order: what the harness has just finished is not thrown away.
        biased;
        end = run => end.unwrap_or_else(|_| {
            Err(Failure::run("harness.panicked", "the harness panicked; see the runner's log"))
        }),
        reason = attempt.calls.lost() => Err(Failure::Lost(reason)),
        _ = stop.wait_for(|stop| *stop) => Ok(End::Release),
        () = attempt.calls.keep_alive() => Err(Failure::Lost("unreachable".to_owned())),
        () = attempt.calls.queue().pump(&attempt.calls) => Err(Failure::Lost("unreachable".to_owned())),
    }
}

/// What was said of its steps is durable before the attempt ends; a run whose steps could not be
/// kept has not succeeded.
async fn kept_first(calls: &Calls, end: Result<End, Failure>) -> Result<End, Failure> {
    if matches!(end, Err(Failure::Lost(_))) {
        return end;
    }
    let flushed = tokio::select! {
        flushed = calls.queue().flush() => flushed,
        () = calls.keep_alive() => Ok(()),
        () = calls.queue().pump(calls) => Ok(()),
    };
    match (flushed, end) {
        (Err(CallError::Refused(problem)), Ok(End::Settle(_))) => Err(Failure::run(
            &problem.code,
            format!("a step's result was refused: {}", problem.detail),
        )),
        (Err(CallError::Lost(reason)), Ok(End::Settle(_)) | Err(Failure::Run { .. })) => {
            Err(Failure::Lost(reason))
        }
        (_, end) => end,
    }
}
