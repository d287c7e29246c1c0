//! The claim protocol, as the host and the HTTP routes see it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::Engine;
use super::inner::{Inner, Intake};
use super::outcome::{Answer, Inputs, Outcome};
use crate::code::{Code, Rejection};
use crate::dispatch::RunnerInfo;
use crate::dispatch::actor::{CancelPoll, Enrol, Leave, Poll};
use crate::dispatch::clones::CloneOffer;
use crate::dispatch::matcher::PollId;
use crate::ids::{ClaimToken, RunnerId, SessionId};
use crate::session::actor::Peek;
use crate::session::command::{AttemptCall, Bearer, Command, Verb};
use crate::session::decision::Granted;
use crate::session::input::check_typed;
use crate::session::payload::WorkspaceRef;
use crate::session::step::{StepOp, StepResult};

/// Fault points of the claim path, in the order they are passed.
pub const CLAIM_POINTS: &[&str] = &[
    "claim::before_commit",
    "claim::after_commit",
    "claim::before_reply",
    "claim::before_delivery",
    "claim::after_delivery",
];

/// A claim that was granted. Dropped before [`DeliveryGuard::delivered`] is called, it is given
/// back without an attempt.
#[derive(Debug)]
pub struct ClaimGrant {
    /// The right to the attempt: shown to the runner, kept nowhere else.
    pub token: ClaimToken,
    /// Whose run.
    pub session: SessionId,
    /// Its tenant.
    pub workspace: WorkspaceRef,
    /// Run, attempt, deadlines, plan and agent.
    pub granted: Granted,
    /// Envelopes of everything the run ever took, in the order of the log, cut to one page.
    pub inputs: Vec<Bytes>,
    /// Position of the last of them, if there are more: the rest is in the session's log.
    pub inputs_next_after: Option<u64>,
    /// How long the claim lasts without a call, milliseconds.
    pub lease_ms: u64,
    /// Gives the claim back unless it is told that the runner has it.
    pub confirm: DeliveryGuard,
}

/// Gives a claim back that did not reach its runner.
pub struct DeliveryGuard {
    open: Option<(Arc<Inner>, ClaimToken)>,
}

impl std::fmt::Debug for DeliveryGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeliveryGuard")
            .field("open", &self.open.is_some())
            .finish()
    }
}

impl DeliveryGuard {
    /// The claim was handed to its runner (to the socket, or to code in this process).
    pub fn delivered(mut self) {
        longhaul_storage::fault::point("claim::after_delivery");
        self.open = None;
    }
}

impl Drop for DeliveryGuard {
    fn drop(&mut self) {
        let Some((inner, token)) = self.open.take() else {
            return;
        };
        let call = AttemptCall {
            by: Bearer::Trusted,
            token: token.digest(),
            n: None,
            verb: Verb::Undeliver,
        };
        // Unheard, the start-up deadline takes the claim back.
        drop(inner.post(token.session, Command::Attempt(call), Intake::Internal));
    }
}

impl ClaimGrant {
    /// The grant in a session's answer.
    pub(crate) fn new(
        inner: &Arc<Inner>,
        workspace: WorkspaceRef,
        token: ClaimToken,
        outcome: Outcome,
    ) -> Option<Self> {
        let granted = *outcome.granted?;
        let Inputs { events, next_after } = outcome.inputs.unwrap_or_default();
        Some(Self {
            token,
            session: token.session,
            workspace,
            granted,
            inputs: events,
            inputs_next_after: next_after,
            lease_ms: inner.config.limits.lease_s.saturating_mul(1_000),
            confirm: DeliveryGuard {
                open: Some((Arc::clone(inner), token)),
            },
        })
    }
}

/// What one poll brought.
#[derive(Debug, Default)]
pub struct Offered {
    /// Runs to drive.
    pub claims: Vec<ClaimGrant>,
    /// Disks to copy for forks.
    pub clones: Vec<CloneOffer>,
}

/// Takes a poll out of the dispatcher when its caller goes away.
struct PollGuard<'a> {
    inner: &'a Inner,
    runner: RunnerId,
    poll: PollId,
    over: bool,
}

impl Drop for PollGuard<'_> {
    fn drop(&mut self) {
        if !self.over
            && let Some(parts) = self.inner.parts()
        {
            // One for each poll, so bounded by those; it must not be lost.
            parts.dispatcher.do_send(CancelPoll(self.runner, self.poll));
        }
    }
}

impl Engine {
    /// Waits up to `wait` for at most `max` runs (at least one) that `runner` can drive, or as many
    /// disks that it is to copy; empty
    /// when the time is over. Dropping the future gives back what was granted meanwhile.
    ///
    /// # Errors
    /// `runner.not_found`, `runner.draining`, `runtime.busy`, `runtime.stopped`.
    pub async fn claim(
        &self,
        runner: RunnerId,
        max: usize,
        wait: Duration,
    ) -> Result<Offered, Rejection> {
        let inner = &self.inner;
        if !inner.is_running() {
            return Err(inner.stopped());
        }
        let parts = inner.parts().ok_or_else(|| inner.stopped())?;
        let poll = inner.next_poll();
        let (reply, claims) = oneshot::channel();
        let until = inner.timer.now().saturating_add(wait);
        let ask = Poll {
            id: poll,
            runner,
            max,
            until,
            reply,
        };
        parts
            .dispatcher
            .try_send(ask)
            .map_err(|e| inner.unsent(&e))?;
        let mut guard = PollGuard {
            inner,
            runner,
            poll,
            over: false,
        };
        let claims = claims.await;
        guard.over = true;
        claims.unwrap_or_else(|_| Err(inner.stopped()))
    }

    /// One call under a claim. `wait`: how long `inputs` may wait for something to bring.
    ///
    /// # Errors
    /// What the session decides (`claim.*`, `runtime.claim_lost`, …), and what
    /// [`Engine::command`] may answer.
    pub async fn attempt(
        &self,
        by: Bearer,
        token: ClaimToken,
        n: Option<u64>,
        verb: Verb,
        wait: Duration,
    ) -> Result<Answer, Rejection> {
        if !wait.is_zero() && matches!(verb, Verb::Inputs) {
            self.wait_for_inputs(token, wait).await;
        }
        let call = AttemptCall {
            by,
            token: token.digest(),
            n,
            verb,
        };
        self.command(token.session, Command::Attempt(call)).await
    }

    /// Operations on the journal under a claim, without a detour over JSON. One result for each.
    ///
    /// # Errors
    /// `step.*`, `journal.*`, and as [`Engine::attempt`].
    pub async fn steps(
        &self,
        by: Bearer,
        token: ClaimToken,
        ops: Vec<StepOp>,
    ) -> Result<Vec<StepResult>, Rejection> {
        check_typed(&ops)?;
        let call = AttemptCall {
            by,
            token: token.digest(),
            n: None,
            verb: Verb::Steps { ops, many: true },
        };
        let command = Command::Attempt(call);
        let answer = self.inner.post(token.session, command, Intake::External)?;
        let outcome = answer.await.map_err(|_| super::lost())??;
        Ok(outcome
            .steps
            .map(|(_, results)| results)
            .unwrap_or_default())
    }

    /// Waits until a call of `inputs` would bring something, or the time is over. The session is
    /// asked again after each of its commits, and often enough to keep the lease.
    async fn wait_for_inputs(&self, token: ClaimToken, wait: Duration) {
        let inner = &self.inner;
        let until = inner.timer.now().saturating_add(wait);
        let beat = Duration::from_secs(inner.config.limits.beat_s.max(1));
        let watch = super::reads::Watching::new(inner, token.session);
        let mut head = watch.head();
        loop {
            head.mark_unchanged();
            if self.peek(token).await || inner.timer.now() >= until || !inner.is_running() {
                return;
            }
            let beat = inner
                .timer
                .until(until.min(inner.timer.now().saturating_add(beat)));
            let changed = head.changed();
            futures_util::pin_mut!(beat, changed);
            futures_util::future::select(beat, changed).await;
        }
    }

    /// Whether `inputs` would bring something; a session that is not in memory is asked itself.
    async fn peek(&self, token: ClaimToken) -> bool {
        let addr = self
            .inner
            .directory
            .find(token.session)
            .and_then(|slot| slot.addr());
        let Some(addr) = addr else { return true };
        let (reply, some) = oneshot::channel();
        if addr.try_send(Peek { token, reply }).is_err() {
            return true;
        }
        some.await.unwrap_or(true)
    }

    /// Adds a runner, or changes one.
    ///
    /// # Errors
    /// `runtime.busy` if there are too many, `runtime.stopped`.
    pub async fn enrol(&self, runner: RunnerInfo) -> Result<(), Rejection> {
        let parts = self.inner.parts().ok_or_else(|| self.inner.stopped())?;
        let enrolled = parts.dispatcher.send(Enrol(runner)).await;
        enrolled.unwrap_or_else(|_| Err(self.inner.stopped()))
    }

    /// The runner gets no more claims; those it holds go on.
    ///
    /// # Errors
    /// `runtime.stopped`.
    pub async fn drain(&self, runner: RunnerId) -> Result<(), Rejection> {
        self.leave(runner, false).await
    }

    /// The runner is unknown from now on; claims it holds end with their lease.
    ///
    /// # Errors
    /// `runtime.stopped`.
    pub async fn forget(&self, runner: RunnerId) -> Result<(), Rejection> {
        self.leave(runner, true).await
    }

    async fn leave(&self, runner: RunnerId, gone: bool) -> Result<(), Rejection> {
        let parts = self.inner.parts().ok_or_else(|| self.inner.stopped())?;
        let left = parts.dispatcher.send(Leave { runner, gone }).await;
        left.map_err(|_| Code::Stopped.into())
    }
}
