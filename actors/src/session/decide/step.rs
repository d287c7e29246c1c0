//! The journal: which step runs, which has run, and which nobody knows of.
//!
//! The common call writes one event and makes no copy of the state.

use bytes::Bytes;

use super::attempt::{not_ready, usage_recorded, write_one};
use super::draft::{Draft, Emit, runner};
use crate::code::{Code, Rejection};
use crate::ids::EventId;
use crate::session::command::Input;
use crate::session::decision::Reply;
use crate::session::event::{EventType, RunRef};
use crate::session::facts::Facts;
use crate::session::journal::{OpenStep, StepKey, StepMark, StepRow};
use crate::session::payload::{
    Body, ResolvedAs, ResumePlan, RunError, StepCompleted, StepFailed, StepResolved, Usage,
    step as content,
};
use crate::session::state::{LiveRun, Phase, State};
use crate::session::step::{
    BeginStep, CompleteStep, FailStep, OPEN_STEPS_MAX, OnDoubt, OnFailure, ResolveStep, StepAnswer,
    StepEffects, StepOp, StepRecorded, StepValue, StepsReply, Verdict,
};

/// Decides operations on the journal, all or none.
pub(super) fn steps(
    draft: &mut Draft<'_>,
    facts: &Facts,
    run: &LiveRun,
    ops: &[StepOp],
    many: bool,
) -> Result<Reply, Rejection> {
    if run.phase != Phase::Running {
        return Err(not_ready(run, "steps"));
    }
    let mut call = Call {
        draft,
        facts,
        run,
        ended: Vec::new(),
    };
    let mut answers = Vec::with_capacity(ops.len());
    for (index, op) in (0..).zip(ops) {
        let answer = call.one(op).map_err(|r| match many {
            true => r.with("index", index),
            false => r,
        })?;
        answers.push(answer);
    }
    Ok(Reply::of_steps(StepsReply { many, answers }))
}

/// One call, as far as it has come.
struct Call<'a, 'b> {
    draft: &'a mut Draft<'b>,
    facts: &'a Facts,
    run: &'a LiveRun,
    /// Steps that ended by this call.
    ended: Vec<(StepKey, StepRow)>,
}

/// What a step's end comes with.
struct Extra<'a> {
    usage: Option<&'a (Usage, Bytes)>,
    events: &'a [Input],
}

impl Call<'_, '_> {
    fn one(&mut self, op: &StepOp) -> Result<StepAnswer, Rejection> {
        match op {
            StepOp::Begin(b) => self.begin(b),
            StepOp::Complete(c) => self.complete(c),
            StepOp::Fail(f) => self.fail(f),
            StepOp::Resolve(r) => self.resolve(r),
        }
    }

    fn run_ref(&self) -> RunRef {
        RunRef {
            id: self.run.id,
            attempt: self.run.attempt,
        }
    }

    fn by_runner(&self) -> Emit {
        Emit::by(runner(self.draft.base()), Some(self.run_ref()))
    }

    /// Whether it was begun, or taken up again, by this very attempt.
    fn is_mine(&self, open: &OpenStep) -> bool {
        open.run == self.run.id && open.attempt == self.run.attempt
    }

    fn begin(&mut self, b: &BeginStep) -> Result<StepAnswer, Rejection> {
        let journal = &self.draft.state().journal;
        let key = journal.key(&b.place);
        if let Some(open) = journal.open_step(&key).cloned() {
            same_input(b, open.id, &open.mark.digest)?;
            if self.is_mine(&open) {
                return Ok(StepAnswer::InProgress { step: open.id });
            }
            return match b.on_doubt {
                OnDoubt::Surface => Ok(StepAnswer::InDoubt {
                    step: open.id,
                    started_attempt: open.attempt,
                    started_run: open.run,
                }),
                OnDoubt::Retry => self.again(open.id, open.mark, "doubt"),
            };
        }
        let here = self.ended.iter().rev().find(|(k, _)| *k == key);
        let row = here.map(|(_, row)| row).or(self.facts.steps.get(&key));
        let Some(row) = row.cloned() else {
            return self.start(b, key);
        };
        same_input(b, row.id, &row.digest)?;
        let mark = StepMark {
            key,
            effects: row.effects,
            failures: row.failures,
            digest: row.digest.clone(),
        };
        if row.failed {
            return match b.on_failure {
                OnFailure::Retry => self.again(row.id, mark, "failed"),
                OnFailure::Surface => self.readable(&row).map(|()| StepAnswer::Failed {
                    step: row.id,
                    done_seq: row.done_seq,
                    failures: row.failures,
                }),
            };
        }
        if self.files_are_gone(&row) {
            return self.again(row.id, mark, "sandbox");
        }
        self.readable(&row)?;
        Ok(StepAnswer::Completed {
            step: row.id,
            done_seq: row.done_seq,
        })
    }

    fn start(&mut self, b: &BeginStep, key: StepKey) -> Result<StepAnswer, Rejection> {
        self.may_execute()?;
        let open = self.draft.state().journal.open.len();
        if open >= OPEN_STEPS_MAX {
            let detail = format!("{open} steps are open");
            return Err(Rejection::new(Code::StepsFull, detail).with("steps_max", OPEN_STEPS_MAX));
        }
        let mark = StepMark {
            key,
            effects: b.effects,
            failures: 0,
            digest: b.input_digest.clone(),
        };
        let mut emit = self.by_runner();
        emit.label = Some(mark.label());
        let content = content::started(b);
        let step = self.draft.emit_as(EventType::StepStarted, emit, content);
        Ok(StepAnswer::Execute { step })
    }

    /// A step that was begun before runs again, as this attempt's.
    fn again(
        &mut self,
        step: EventId,
        mark: StepMark,
        reason: &str,
    ) -> Result<StepAnswer, Rejection> {
        self.may_execute()?;
        let emit = Emit::system(Some(self.run_ref()));
        self.resolved(step, &mark, emit, ResolvedAs::Retry, Some(reason));
        Ok(StepAnswer::Execute { step })
    }

    fn resolved(
        &mut self,
        step: EventId,
        mark: &StepMark,
        mut emit: Emit,
        verdict: ResolvedAs,
        reason: Option<&str>,
    ) {
        emit.refers = Some(step);
        emit.label = Some(mark.label());
        let content = StepResolved {
            step_id: step,
            verdict,
            reason: reason.map(str::to_owned),
        };
        // A plain struct with string keys: serialising it has no failing case.
        let content = serde_json::to_vec(&content).unwrap_or_default();
        self.draft
            .emit_as(EventType::StepResolved, emit, content.into());
    }

    /// Nothing that costs begins once the budget is spent, or at the end of the log.
    fn may_execute(&mut self) -> Result<(), Rejection> {
        if self.draft.state().budget_exceeded() {
            return Err(Code::BudgetExceeded.into());
        }
        self.draft.room_for(1)
    }

    /// Whether what a completed step changed in the sandbox is not in this attempt's.
    fn files_are_gone(&self, row: &StepRow) -> bool {
        let here = row.run == self.run.id && row.attempt == self.run.attempt;
        row.effects == StepEffects::Sandbox
            && !here
            && row.done_seq > disk_through(self.draft.base(), self.run)
    }

    /// Whether the value can still be read.
    fn readable(&self, row: &StepRow) -> Result<(), Rejection> {
        let base = self.draft.base();
        let never_kept = base.keeps_nothing() && row.done_seq < base.now.contents_from;
        if never_kept || base.aging.has_expired(row.done_seq) {
            return Err(
                Rejection::plain(Code::JournalValueUnavailable).with("step_id", row.id.to_string())
            );
        }
        Ok(())
    }

    fn complete(&mut self, c: &CompleteStep) -> Result<StepAnswer, Rejection> {
        let Some(mark) = self.mine(c.step)? else {
            return self.completed_before(c.step, &c.value);
        };
        let extra = Extra {
            usage: c.usage.as_ref(),
            events: &c.events,
        };
        self.completed(c.step, mark, &c.value, &extra)
    }

    fn completed(
        &mut self,
        step: EventId,
        mark: StepMark,
        value: &StepValue,
        extra: &Extra<'_>,
    ) -> Result<StepAnswer, Rejection> {
        let (event_ids, budget_exceeded) = self.record(extra)?;
        let content = content::completed(step, value, &event_ids);
        let failures = mark.failures;
        self.end(EventType::StepCompleted, step, mark, content);
        Ok(StepAnswer::Recorded(StepRecorded {
            step,
            failed: false,
            failures,
            event_ids,
            budget_exceeded,
        }))
    }

    fn fail(&mut self, f: &FailStep) -> Result<StepAnswer, Rejection> {
        let Some(mark) = self.mine(f.step)? else {
            return self.failed_before(f.step, &f.error);
        };
        let extra = Extra {
            usage: f.usage.as_ref(),
            events: &f.events,
        };
        self.failed(f.step, mark, &f.error, f.partial.as_ref(), &extra)
    }

    fn failed(
        &mut self,
        step: EventId,
        mut mark: StepMark,
        error: &RunError,
        partial: Option<&Bytes>,
        extra: &Extra<'_>,
    ) -> Result<StepAnswer, Rejection> {
        let (event_ids, budget_exceeded) = self.record(extra)?;
        mark.failures = mark.failures.saturating_add(1);
        let failures = mark.failures;
        let content = content::failed(step, error, failures, partial, &event_ids);
        self.end(EventType::StepFailed, step, mark, content);
        Ok(StepAnswer::Recorded(StepRecorded {
            step,
            failed: true,
            failures,
            event_ids,
            budget_exceeded,
        }))
    }

    /// Writes what comes with a step's end; the ids of the events, and whether the budget is
    /// spent by it.
    fn record(&mut self, extra: &Extra<'_>) -> Result<(Vec<EventId>, bool), Rejection> {
        let usage = usize::from(extra.usage.is_some());
        self.draft.room_for(extra.events.len() + usage + 1)?;
        let spent = self.draft.state().usage;
        let mut ids = Vec::with_capacity(extra.events.len());
        for input in extra.events {
            ids.push(write_one(self.draft, input)?);
        }
        let Some((usage, content)) = extra.usage else {
            return Ok((ids, false));
        };
        let recorded = usage_recorded(*usage, content);
        let exceeded = self.draft.base().would_exceed(spent.plus(recorded.usage));
        let emit = self.by_runner();
        let input = Input {
            kind: EventType::UsageRecorded,
            content: content.clone(),
            ask: crate::session::command::Ask::Usage(*usage),
        };
        self.draft
            .emit_input(&input, emit, Body::UsageRecorded(recorded));
        Ok((ids, exceeded))
    }

    fn end(&mut self, kind: EventType, step: EventId, mark: StepMark, content: Bytes) {
        let mut emit = self.by_runner().refers(step);
        emit.label = Some(mark.label());
        self.draft.emit_as(kind, emit, content);
        let row = StepRow {
            id: step,
            digest: mark.digest,
            failed: kind == EventType::StepFailed,
            done_seq: self.draft.last_seq(),
            effects: mark.effects,
            run: self.run.id,
            attempt: self.run.attempt,
            failures: mark.failures,
        };
        self.ended.push((mark.key, row));
    }

    /// The mark of a step that this attempt has open; `None` = the step is not open.
    fn mine(&mut self, step: EventId) -> Result<Option<StepMark>, Rejection> {
        let Some(open) = self.draft.state().journal.open_id(step).cloned() else {
            return Ok(None);
        };
        match self.is_mine(&open) {
            true => Ok(Some(open.mark)),
            false => Err(not_open(step, "in_doubt")),
        }
    }

    /// The row of a step that ended.
    fn ended_step(&self, step: EventId) -> Result<&StepRow, Rejection> {
        let here = self.ended.iter().rev().map(|(_, row)| row);
        let known = self.facts.step_ids.get(&step).map(|e| &e.row);
        let row = here.chain(known).find(|row| row.id == step);
        // One of another chain is none of this one.
        row.filter(|_| step.seq() > self.draft.base().journal.chain_seq)
            .ok_or_else(|| {
                let detail = format!("{step} is no step of this journal");
                Rejection::new(Code::StepNotFound, detail)
            })
    }

    /// Said again, a result is answered again; another one is refused.
    fn completed_before(&self, step: EventId, value: &StepValue) -> Result<StepAnswer, Rejection> {
        let row = self.ended_step(step)?;
        if row.failed {
            return Err(not_open(step, "failed"));
        }
        let content = self
            .facts
            .step_ids
            .get(&step)
            .and_then(|e| e.content.as_ref());
        let said = content.and_then(|content| {
            let said: StepCompleted<'_> = serde_json::from_slice(content).ok()?;
            let same = said.value(content).ok()? == *value;
            same.then_some(said.event_ids)
        });
        match said {
            Some(event_ids) => Ok(StepAnswer::Recorded(StepRecorded {
                step,
                failed: false,
                failures: row.failures,
                event_ids,
                budget_exceeded: false,
            })),
            None => Err(not_open(step, "completed")),
        }
    }

    fn failed_before(&self, step: EventId, error: &RunError) -> Result<StepAnswer, Rejection> {
        let row = self.ended_step(step)?;
        if !row.failed {
            return Err(not_open(step, "completed"));
        }
        let content = self
            .facts
            .step_ids
            .get(&step)
            .and_then(|e| e.content.as_ref());
        let said: Option<StepFailed<'_>> = content.and_then(|c| serde_json::from_slice(c).ok());
        match said.filter(|s| s.error == *error) {
            Some(said) => Ok(StepAnswer::Recorded(StepRecorded {
                step,
                failed: true,
                failures: row.failures,
                event_ids: said.event_ids,
                budget_exceeded: false,
            })),
            None => Err(not_open(step, "failed")),
        }
    }

    fn resolve(&mut self, r: &ResolveStep) -> Result<StepAnswer, Rejection> {
        let step = r.step;
        let Some(open) = self.draft.state().journal.open_id(step).cloned() else {
            return self.resolve_ended(r);
        };
        if self.is_mine(&open) {
            return Err(not_open(step, "in_progress"));
        }
        if r.verdict == Verdict::Retry {
            self.may_execute()?;
        }
        self.draft.room_for(2)?;
        let emit = self.by_runner();
        self.resolved(step, &open.mark, emit, (&r.verdict).into(), None);
        let none = Extra {
            usage: None,
            events: &[],
        };
        match &r.verdict {
            Verdict::Retry => Ok(StepAnswer::Execute { step }),
            Verdict::Completed(value) => self.completed(step, open.mark, value, &none),
            Verdict::Failed(error) => self.failed(step, open.mark, error, None, &none),
        }
    }

    /// A failed step may be run again; what else is said of one that ended was said before.
    fn resolve_ended(&mut self, r: &ResolveStep) -> Result<StepAnswer, Rejection> {
        let step = r.step;
        match &r.verdict {
            Verdict::Completed(value) => return self.completed_before(step, value),
            Verdict::Failed(error) => return self.failed_before(step, error),
            Verdict::Retry => {}
        }
        let row = self.ended_step(step)?.clone();
        let known = self.facts.step_ids.get(&step).map(|e| e.key);
        let here = self.ended.iter().rev().find(|(_, e)| e.id == step);
        let key = here.map(|(key, _)| *key).or(known);
        let Some(key) = key.filter(|_| row.failed) else {
            return Err(not_open(step, "completed"));
        };
        self.may_execute()?;
        let mark = StepMark {
            key,
            effects: row.effects,
            failures: row.failures,
            digest: row.digest,
        };
        let emit = self.by_runner();
        self.resolved(step, &mark, emit, ResolvedAs::Retry, None);
        Ok(StepAnswer::Execute { step })
    }
}

/// Up to which position the attempt's disk has what was done.
fn disk_through(state: &State, run: &LiveRun) -> u64 {
    match run.claim.as_ref().map(|c| &c.resume) {
        Some(ResumePlan::Checkpoint {
            through_sequence, ..
        }) => *through_sequence,
        // An operation's sandbox came from the newest checkpoint or an older one, or began empty.
        Some(ResumePlan::Attached {
            older: Some(older), ..
        }) => older.through_sequence,
        Some(ResumePlan::Attached { rebuilt: None, .. }) => {
            let newest = state.checkpoints.newest_first().next();
            newest.map_or(0, |c| c.created.through_sequence)
        }
        Some(_) | None => 0,
    }
}

fn same_input(b: &BeginStep, step: EventId, digest: &str) -> Result<(), Rejection> {
    if b.input_digest == digest {
        return Ok(());
    }
    let place = &b.place;
    let detail = format!("step `{}` was begun with another input", place.name);
    Err(Rejection::new(Code::JournalDivergence, detail)
        .with("step_id", step.to_string())
        .with("name", place.name.as_str())
        .with("path", place.path.as_str())
        .with("occurrence", place.occurrence))
}

fn not_open(step: EventId, state: &str) -> Rejection {
    let detail = format!("{step} is {state}");
    Rejection::new(Code::StepNotOpen, detail)
        .with("step_id", step.to_string())
        .with("state", state)
}
