//! Operations on a run's journal, on their way to the server.
//!
//! Everything that an attempt says of its steps goes through one queue, in order: what waits while
//! a call is under way goes out together with the next one, as one commit. So an operation whose
//! answer nobody waits for is still durable before whatever comes after it, and many steps at the
//! same time cost few calls.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use longhaul_actors::session::step::{OPS_MAX, StepOp, StepResult};
use tokio::sync::{Notify, oneshot};

use super::calls::{CallError, Calls};

/// Operations that may be queued without somebody who waits for the answer.
const UNWAITED_MAX: usize = 64;
/// Bytes of values that one call carries, unless a single operation has more.
const CALL_BYTES_MAX: usize = 1 << 20;

/// An answer, and whether the call was made more than once: then it may be that its own first try
/// is what the answer speaks of.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) result: StepResult,
    pub(crate) repeated: bool,
}

type Waiter = oneshot::Sender<Result<Answered, CallError>>;

#[derive(Debug)]
struct Entry {
    op: StepOp,
    waiter: Option<Waiter>,
    /// Whether it may have reached the server.
    sent: bool,
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Entry>,
    /// So many at the front are to be sent one by one: together they were refused.
    alone: usize,
    /// Why an operation that nobody waited for was not kept; nothing may be said after it.
    failed: Option<CallError>,
}

/// The queue of one claim.
#[derive(Debug, Default)]
pub(crate) struct StepQueue {
    queue: Mutex<Queue>,
    filled: Notify,
    emptied: Notify,
}

impl StepQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Every change is complete when the lock is let go.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an operation and waits for its answer.
    pub(crate) async fn ask(&self, op: StepOp) -> Result<Answered, CallError> {
        let (waiter, answer) = oneshot::channel();
        self.push(op, Some(waiter))?;
        match answer.await {
            Ok(answer) => answer,
            // The queue goes with the attempt.
            Err(_) => Err(CallError::Lost("over".to_owned())),
        }
    }

    /// Sends an operation without waiting for its answer. `Err` gives it back: there is no room.
    pub(crate) fn tell(&self, op: StepOp) -> Result<(), Told> {
        if self.lock().entries.len() >= UNWAITED_MAX {
            return Err(Told::NoRoom(op));
        }
        self.push(op, None).map_err(Told::Failed)
    }

    /// As [`StepQueue::tell`], in the destructor of something: there is room for each open step.
    pub(crate) fn tell_last(&self, op: StepOp) {
        // What failed before is told by the next call.
        let _ = self.push(op, None);
    }

    fn push(&self, op: StepOp, waiter: Option<Waiter>) -> Result<(), CallError> {
        let mut queue = self.lock();
        if let Some(error) = &queue.failed {
            return Err(error.clone());
        }
        queue.entries.push_back(Entry {
            op,
            waiter,
            sent: false,
        });
        drop(queue);
        self.filled.notify_one();
        Ok(())
    }

    /// Waits until everything queued is durable; what was refused of it, if anything.
    pub(crate) async fn flush(&self) -> Result<(), CallError> {
        loop {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            // From here on nothing is missed.
            emptied.as_mut().enable();
            {
                let queue = self.lock();
                if let Some(error) = &queue.failed {
                    return Err(error.clone());
                }
                if queue.entries.is_empty() {
                    return Ok(());
                }
            }
            emptied.await;
        }
    }

    /// Sends what is queued, for ever. May be dropped and begun again.
    pub(crate) async fn pump(&self, calls: &Calls) {
        loop {
            let filled = self.filled.notified();
            tokio::pin!(filled);
            filled.as_mut().enable();
            let Some((ops, tried)) = self.next() else {
                filled.await;
                continue;
            };
            let (answers, again) = calls.steps(&ops).await;
            self.deliver(ops.len(), answers, tried || again);
        }
    }

    /// What goes out next; it stays queued until it is answered. The flag: some of it was sent
    /// before.
    fn next(&self) -> Option<(Vec<StepOp>, bool)> {
        let mut queue = self.lock();
        let sent = queue.entries.iter().take_while(|e| e.sent).count();
        let max = match (queue.alone, sent) {
            (0, 0) => OPS_MAX,
            // The same ones as before: it is one commit.
            (0, sent) => sent,
            _ => 1,
        };
        let mut bytes = 0;
        let mut ops = Vec::new();
        for entry in queue.entries.iter_mut().take(max) {
            bytes += entry.op.content_bytes();
            if !ops.is_empty() && sent == 0 && bytes > CALL_BYTES_MAX {
                break;
            }
            entry.sent = true;
            ops.push(entry.op.clone());
        }
        (!ops.is_empty()).then_some((ops, sent > 0))
    }

    fn deliver(&self, sent: usize, answers: Result<Vec<StepResult>, CallError>, repeated: bool) {
        let mut queue = self.lock();
        match answers {
            Ok(answers) => {
                queue.alone = queue.alone.saturating_sub(sent);
                let entries: Vec<_> = queue.entries.drain(..sent).collect();
                drop(queue);
                for (entry, result) in entries.into_iter().zip(answers) {
                    if let Some(waiter) = entry.waiter {
                        // Its future may be gone: then the step is in doubt, as it should be.
                        let _ = waiter.send(Ok(Answered { result, repeated }));
                    }
                }
            }
            // All or none: nothing of it was kept.
            Err(CallError::Refused(_)) if sent > 1 => {
                queue.alone = sent;
                for entry in queue.entries.iter_mut().take(sent) {
                    entry.sent = repeated;
                }
            }
            Err(error @ CallError::Refused(_)) => {
                queue.alone = queue.alone.saturating_sub(1);
                let done = was_done(&error, repeated);
                match queue.entries.pop_front() {
                    Some(Entry {
                        waiter: Some(waiter),
                        ..
                    }) => drop(waiter.send(Err(error))),
                    Some(Entry { op, .. }) if !(done && matches!(op, StepOp::Fail(_))) => {
                        tracing::warn!(%error, "the end of a step was refused");
                        queue.fail(error);
                    }
                    _ => {}
                }
            }
            Err(error @ CallError::Lost(_)) => queue.fail(error),
        }
        self.emptied.notify_waiters();
    }
}

/// Why an operation was not queued.
#[derive(Debug)]
pub(crate) enum Told {
    NoRoom(StepOp),
    Failed(CallError),
}

impl Queue {
    fn fail(&mut self, error: CallError) {
        for entry in self.entries.drain(..) {
            if let Some(waiter) = entry.waiter {
                let _ = waiter.send(Err(error.clone()));
            }
        }
        self.alone = 0;
        self.failed.get_or_insert(error);
    }
}

/// Whether a refusal of a repeated call only says that its first try came through.
pub(crate) fn was_done(error: &CallError, repeated: bool) -> bool {
    repeated && matches!(error, CallError::Refused(p) if p.code == "step.not_open")
}
