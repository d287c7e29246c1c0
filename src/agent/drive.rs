//! The loop: what an agent does next, until it is over.

use std::collections::BTreeMap;

use longhaul_actors::session::payload::CheckpointKind;
use serde_json::{Value, json};

use super::past::{MODEL, Next, Past, call_index_and_tokens};
use super::talk::Talk;
use super::{AgentSpec, answer, redo};
use crate::catalog::profile::CheckpointMode;
use crate::journal::{Begun, Journal, JournalError, Step};
use crate::runner::{Attempt, Compute, End, Failure, Parked, Settlement};

/// Why the loop does not simply go on.
#[derive(Debug)]
pub(super) enum Halt {
    /// The budget is spent.
    Budget,
    /// The attempt is over.
    Failure(Failure),
}

impl<F: Into<Failure>> From<F> for Halt {
    fn from(failure: F) -> Self {
        Self::Failure(failure.into())
    }
}

impl Halt {
    /// From an error of the journal.
    pub(super) fn of(error: JournalError) -> Self {
        match error {
            JournalError::BudgetExceeded => Self::Budget,
            other => Self::Failure(other.into()),
        }
    }
}

/// An agent at work on one attempt.
pub(super) struct Driver<'a> {
    pub(super) attempt: &'a Attempt,
    pub(super) spec: &'a AgentSpec,
    pub(super) journal: Journal,
    pub(super) past: Past,
    /// Read when it is first needed, and again after a summary.
    pub(super) talk: Option<Talk>,
    /// Model calls of the session so far.
    pub(super) call_index: u64,
    /// What every answer depends on beside the conversation.
    pub(super) digest: String,
    /// Decisions that hold for every call of a tool.
    pub(super) remembered: BTreeMap<String, bool>,
    /// Whether what an earlier attempt left was looked at.
    is_prepared: bool,
    /// A checkpoint is due.
    due: Option<CheckpointKind>,
}

/// Runs an agent for one attempt.
pub(super) async fn run(attempt: &Attempt, spec: &AgentSpec) -> Result<End, Failure> {
    attempt.ready().await?;
    let past = Past::read(attempt).await?;
    let mut driver = Driver::new(attempt, spec, past);
    loop {
        match driver.advance().await {
            Ok(None) => {}
            Ok(Some(end)) => return Ok(end),
            Err(Halt::Failure(failure)) => return Err(failure),
            Err(Halt::Budget) => {
                let budget = vec![json!({"budget": true})];
                if attempt.park(budget, Compute::Released).await? == Parked::Waiting {
                    return Ok(End::Over);
                }
            }
        }
    }
}

impl<'a> Driver<'a> {
    fn new(attempt: &'a Attempt, spec: &'a AgentSpec, past: Past) -> Self {
        let decisions = attempt.claim().json.get("remembered_approvals");
        let decisions = decisions.and_then(Value::as_object).into_iter().flatten();
        let remembered = decisions
            .map(|(tool, decision)| (tool.clone(), decision == "granted"))
            .collect();
        Self {
            attempt,
            spec,
            journal: Journal::open(attempt),
            past,
            talk: None,
            call_index: 0,
            digest: answer::digest(spec),
            remembered,
            is_prepared: false,
            due: None,
        }
    }

    /// The next thing; `Some` = it was the last.
    async fn advance(&mut self) -> Result<Option<End>, Halt> {
        if !self.is_prepared {
            self.prepare().await?;
            self.is_prepared = true;
        }
        if !self.past.open.is_empty() {
            return self.calls().await;
        }
        if self.past.next == Next::Model && self.is_too_long() {
            self.compact().await?;
        }
        if let Some(kind) = self.due.take() {
            self.attempt.checkpoint_due(kind, self.call_index).await?;
        }
        match self.past.next {
            Next::Model => {
                self.ask().await?;
                self.due = match (self.spec.checkpoint, self.past.next) {
                    (CheckpointMode::Turn, _) => Some(CheckpointKind::Turn),
                    (CheckpointMode::Pass, Next::Hook(_)) => Some(CheckpointKind::Pass),
                    _ => None,
                };
                Ok(None)
            }
            Next::Hook(index) => match self.spec.stop_hooks.get(index) {
                Some(hook) => self.hook(index, &**hook).await.map(|()| None),
                None => Ok(Some(End::Settle(Settlement::succeeded()))),
            },
            Next::Refused => {
                let text = "the model will not answer this";
                Err(Failure::run("agent.refused", text).into())
            }
        }
    }

    /// Looks at what an earlier attempt left: its last answer must be from this very model with
    /// these very tools, and what it did to files that are gone is done again.
    async fn prepare(&mut self) -> Result<(), Halt> {
        let (index, tokens) = call_index_and_tokens(self.attempt).await?;
        self.call_index = index;
        if self.past.models == 0 {
            self.past.input_tokens = tokens;
        }
        if let Some(last) = self.past.models.checked_sub(1) {
            let step = Step::named(MODEL).at(last);
            match self.journal.begin(step, &self.digest).await {
                Ok(Begun::Completed { .. }) => {}
                Ok(_) => return Err(unexpected(MODEL)),
                Err(error) => return Err(Halt::of(error)),
            }
        }
        redo::sandbox_steps(self.attempt, self.spec, &self.journal, &self.past).await
    }

    /// The conversation; from the log the first time.
    pub(super) async fn talk(&mut self) -> Result<&mut Talk, Failure> {
        let talk = match self.talk.take() {
            Some(talk) => talk,
            None => Talk::of(self.attempt.transcript().await?),
        };
        Ok(self.talk.insert(talk))
    }
}

/// The journal says of a step what the log does not.
pub(super) fn unexpected(name: &str) -> Halt {
    let text = format!("step {name:?} is not where the log says that the run is");
    Failure::run("journal.divergence", text).into()
}
