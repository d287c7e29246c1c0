//! Everything queued, decided: facts looked up, one decision after the other on the working
//! state, and one write out of all of them.

use actix::prelude::*;
use longhaul_storage::{
    Condition, Expect, HistoryRow, NewRecord, RowChange, StreamId, StreamWrite, Write,
};

use super::SessionActor;
use super::commit::{Decided, Flight, FlightFuture, Verdict};
use super::lookup::{self, Overlay};
use crate::checkpoint::plan;
use crate::codec;
use crate::reader::Class;
use crate::rows;
use crate::session::command::{AttemptCall, Command};
use crate::session::decide::{base_of, decide};
use crate::session::decision::{Decision, RowOp};
use crate::session::event::{EventType, NewEvent};
use crate::session::evolve::evolve;
use crate::session::facts::{Facts, Needs, needs};
use crate::session::history::history_rows;
use crate::session::payload::Body;
use crate::session::projection::Projection;
use crate::session::stored::new_record;

/// Content bytes of one append, plus the command that crosses it.
const BATCH_BYTES: usize = 8 << 20;
/// Events between two cached folds, so that a cold start folds at most as many.
const SNAPSHOT_EVENTS: u64 = 1_024;

/// What a batch has come to so far.
#[derive(Default)]
struct Drafted {
    records: Vec<NewRecord>,
    history: Vec<HistoryRow>,
    rows: Vec<RowChange>,
    conditions: Vec<(bytes::Bytes, Condition)>,
    events: Vec<NewEvent>,
    bytes: usize,
    verdicts: Vec<Verdict>,
    /// Made when there is something to note: the common call of a runner has nothing.
    overlay: Option<Box<Overlay>>,
    /// Whether rows that follow from the state may have changed.
    moved: bool,
    /// Whether a cached fold is due whatever the count.
    settled: bool,
    erase: bool,
    expire: Vec<(u64, u64)>,
    /// The fence of a fork: this write begins one.
    fork: Option<Expect>,
}

impl Drafted {
    fn writes(&self) -> bool {
        !self.events.is_empty() || !self.rows.is_empty() || self.erase
    }
}

impl SessionActor {
    /// Looks up facts for the batch, off this thread and only if any are needed.
    pub(super) fn prepare(&mut self, ctx: &mut Context<Self>) {
        let mut all: Vec<Needs> = Vec::new();
        for (index, queued) in self.batch.iter().enumerate() {
            let needed = self.needs(&queued.command);
            if !needed.is_empty() {
                all.resize(index, Needs::default());
                all.push(needed);
            }
        }
        if all.iter().all(|n| self.is_known(n)) {
            // The common call of a runner: nothing to read.
            self.decide_all(&all, Vec::new(), ctx);
            return;
        }
        let (id, last_seq) = (self.slot.id, self.committed.last_seq);
        let asked = all.clone();
        let read = self.inner.read(Class::Session, move |view| {
            asked
                .iter()
                .map(|n| lookup::load(view, id, last_seq, n))
                .collect::<Result<Vec<_>, _>>()
        });
        ctx.spawn(
            read.into_actor(self)
                .map(move |facts, this, ctx| match facts {
                    Ok(facts) => this.decide_all(&all, facts, ctx),
                    Err(why) => {
                        this.batch
                            .drain(..)
                            .for_each(|q| q.reply.send(Err(why.clone())));
                        this.busy = false;
                        this.pump(ctx);
                    }
                }),
        );
    }

    fn needs(&self, command: &Command) -> Needs {
        let mut needed = needs(&self.working, command);
        if let Command::Claim(claim) = command {
            let now_ms = self.inner.door.clock.wall_ms();
            needed.blobs = plan::with_blobs(&self.working, claim.runner, now_ms);
        }
        // Whatever waits in memory need not be read.
        if needed
            .inputs_from
            .is_some_and(|from| from > self.committed.last_seq)
        {
            needed.inputs_from = Some(u64::MAX);
        }
        needed
    }

    /// Whether memory has everything that is asked for.
    fn is_known(&self, needs: &Needs) -> bool {
        if !self.steps.has_all(&self.working, needs) {
            return false;
        }
        let rest = Needs {
            calls: None,
            inputs_from: None,
            steps: Vec::new(),
            step_ids: Vec::new(),
            ..needs.clone()
        };
        let calls = needs.calls.is_none_or(|(token, n)| {
            self.numbers
                .is_some_and(|(known, last)| known == token && n > last)
        });
        calls && rest.is_empty() && needs.inputs_from.is_none_or(|from| from == u64::MAX)
    }

    /// Decides the batch and writes what comes out.
    fn decide_all(&mut self, needs: &[Needs], facts: Vec<Facts>, ctx: &mut Context<Self>) {
        let _span = self.span().entered();
        let mut drafted = Drafted::default();
        let mut facts = facts.into_iter();
        let none = Needs::default();
        for index in 0..self.batch.len() {
            let full = drafted.bytes >= BATCH_BYTES
                || drafted.events.len() >= self.inner.config.batch_events_max;
            // One at a time lets contents go: what the next one found may be among them.
            if drafted.erase || drafted.fork.is_some() || !drafted.expire.is_empty() || full {
                break;
            }
            let needed = needs.get(index).unwrap_or(&none);
            let known = facts.next().unwrap_or_else(|| self.remembered(needed));
            self.deciding = Some(index);
            self.decide_one(index, needed, known, &mut drafted);
        }
        self.deciding = None;
        let decided = drafted.verdicts.len();
        if decided < self.batch.len() {
            let rest = self.batch.split_off(decided);
            self.slot.give_back(rest.into_iter());
        }
        if drafted.writes() {
            self.write(drafted, ctx);
        } else {
            if drafted.fork.is_some() {
                // Refused, or answered before: there is no such session.
                self.working.clone_from(&self.committed);
            }
            let commands = std::mem::take(&mut self.batch);
            for (queued, verdict) in commands.into_iter().zip(drafted.verdicts) {
                self.answer(queued, verdict);
            }
            self.busy = false;
            self.pump(ctx);
        }
    }

    fn remembered(&self, needs: &Needs) -> Facts {
        let mut facts = Facts::default();
        if let (Some((token, _)), Some((known, last))) = (needs.calls, self.numbers)
            && token == known
        {
            facts.last_n = last;
        }
        facts
    }

    fn decide_one(&mut self, index: usize, needs: &Needs, mut facts: Facts, d: &mut Drafted) {
        let Some(queued) = self.batch.get(index) else {
            return;
        };
        if let Some(overlay) = &d.overlay {
            overlay.apply(&self.working, needs, &mut facts);
            if let Command::Attempt(AttemptCall { token, .. }) = &queued.command
                && let Some(ended) = overlay.ended(*token)
            {
                facts.ended_claim = Some(ended.clone());
            }
        }
        if !facts.step_ids.is_empty() {
            self.fill_steps(&mut facts, &d.events);
        }
        if let Command::Fork(fork) = &queued.command
            && self.working.about.is_none()
        {
            let base = base_of(fork, self.slot.id);
            d.fork = Some(Expect::Fork {
                from: StreamId(fork.source.id.0),
                at: base.last_seq,
            });
            self.working = base;
            // Contents of the shared past must not have expired meanwhile.
            let as_read = match &fork.expired {
                Some(row) => Condition::Unchanged(row.clone()),
                None => Condition::Absent,
            };
            d.conditions.push((rows::expired(fork.source.id), as_read));
        }
        let env = self.inner.door.env(&self.inner.config.limits);
        let alone = !d.writes();
        let verdict = match decide(&self.working, &facts, &queued.command, &env) {
            Ok(decision) => {
                let key = match &queued.command {
                    Command::Create(c) => c.request.receipt,
                    Command::Fork(f) => f.request.receipt,
                    _ => None,
                };
                if let Some(key) = key
                    && !decision.rows.is_empty()
                {
                    // Two creations with one key meet at the commit: different sessions.
                    let unchanged = match &facts.created {
                        Some(earlier) => Condition::Unchanged(codec::encode(&earlier.made)),
                        None => Condition::Absent,
                    };
                    d.conditions.push((rows::created(key.scope), unchanged));
                }
                if let Some((token, _)) = needs.calls
                    && self.numbers.is_none_or(|(known, _)| known != token)
                {
                    self.numbers = Some((token, facts.last_n));
                }
                let decided = self.fold(decision, d);
                Verdict {
                    early: alone && !d.writes(),
                    result: Ok(decided),
                }
            }
            Err(refusal) => Verdict {
                early: !d.writes(),
                result: Err(refusal),
            },
        };
        if d.fork.is_some() && alone && !d.writes() {
            // Refused, or answered from memory: there is no fork here.
            d.fork = None;
            self.working.clone_from(&self.committed);
        }
        d.verdicts.push(verdict);
    }

    /// Folds one decision into the working state and the write.
    fn fold(&mut self, decision: Decision, d: &mut Drafted) -> Decided {
        for new in decision.events {
            let waited = self.working.aging.waits();
            evolve(&mut self.working, &new.event);
            d.moved |= waited != self.working.aging.waits();
            self.steps.note(&self.working, &new);
            let made = history_rows(&self.working, &new);
            if !made.is_empty() {
                d.overlay.get_or_insert_default().note_history(&new, &made);
                d.history.extend(made);
            }
            d.moved |= moves(&new);
            d.settled |= matches!(
                new.event.body,
                Body::RunSettled(_) | Body::SessionCreated(_) | Body::SessionForked(_)
            );
            d.bytes += new.content.len();
            let omit = new.event.body == Body::Opaque && self.working.keeps_nothing();
            if omit {
                self.contents.insert(new.event.seq, new.content.clone());
            }
            d.records.push(new_record(&new, omit));
            d.events.push(new);
        }
        if !decision.rows.is_empty() {
            d.overlay.get_or_insert_default().note_rows(&decision.rows);
            lookup::row_changes(self.slot.id, &decision.rows, &mut d.rows);
            lookup::row_conditions(&decision.rows, &mut d.conditions);
            for op in &decision.rows {
                match op {
                    RowOp::Call(token, n, _) => self.numbers = Some((*token, *n)),
                    // Nothing of it is written: it is true at once.
                    RowOp::Operation(operation) => {
                        self.working.now.operation = *operation;
                        self.committed.now.operation = *operation;
                    }
                    RowOp::Attached(attached) => {
                        self.working.now.attached = *attached;
                        self.committed.now.attached = *attached;
                    }
                    RowOp::Unread(unread) => {
                        self.working.now.unread = Some(*unread);
                        self.committed.now.unread = Some(*unread);
                    }
                    _ => {}
                }
            }
        }
        if decision.granted.is_some() {
            // A new token: its calls count from one.
            self.numbers = self.working.claim().map(|c| (c.token, 0));
        }
        d.erase |= decision.erase;
        if !decision.expire.is_empty() {
            d.expire.extend(decision.expire);
            self.expired_rows(&mut d.rows);
        }
        Decided {
            reply: decision.reply,
            granted: decision.granted.map(Box::new),
            begun: decision.begun,
            again_ms: decision.again_ms,
            refused: decision.refused,
        }
    }

    /// One write of everything the batch decided.
    fn write(&mut self, mut d: Drafted, ctx: &mut Context<Self>) {
        let id = self.slot.id;
        let mut projection = None;
        if d.erase {
            // It all goes.
            d.expire.clear();
            self.erase_rows(&mut d.rows);
            projection = Some(Projection::default());
        } else if d.moved {
            let after = Projection::of(&self.working);
            d.rows.extend(self.projection.changes(&after));
            projection = Some(after);
        }
        let since = self.working.last_seq.saturating_sub(self.snapshot_seq);
        let snapshot = !d.erase && (d.settled || since >= SNAPSHOT_EVENTS);
        let forked = d.fork.is_some();
        let expired = !d.expire.is_empty();
        let expect = match d.fork.take() {
            Some(fork) => fork,
            None if self.committed.last_seq == 0 => Expect::New,
            None => Expect::Last {
                seq: self.committed.last_seq,
                hash: self.last_hash,
            },
        };
        let write = Write {
            stream: Some(StreamWrite {
                id: StreamId(id.0),
                expect,
                records: d.records,
                history: d.history,
                state: snapshot.then(|| codec::encode(&self.working)),
                erase: d.erase,
                expire: d.expire,
            }),
            conditions: d.conditions,
            rows: d.rows,
        };
        let claims = d.verdicts.iter().any(|v| v.granted());
        if claims {
            longhaul_storage::fault::point("claim::before_commit");
        }
        if forked {
            longhaul_storage::fault::point("fork::before_commit");
        } else if keeps(&d.events) {
            longhaul_storage::fault::point("checkpoint::before_commit");
        } else if lets_go(&d.events) {
            longhaul_storage::fault::point("expiry::before_commit");
        }
        let started = self.inner.timer.now();
        let pending = self.inner.log.append(write);
        let commands = std::mem::take(&mut self.batch);
        let mut waiting = Vec::with_capacity(commands.len());
        for (queued, verdict) in commands.into_iter().zip(d.verdicts) {
            if verdict.early {
                self.answer(queued, verdict);
            } else {
                waiting.push((queued, verdict));
            }
        }
        let flight = Flight {
            waiting,
            events: d.events,
            projection,
            snapshot,
            erased: d.erase,
            expired,
            claims,
            forked: forked.then(|| Box::new(self.working.clone())),
            started,
        };
        ctx.spawn(FlightFuture::new(pending, flight, &self.inner, id));
    }

    /// What is missing by now, and the word that bytes remain.
    fn expired_rows(&self, out: &mut Vec<RowChange>) {
        let id = self.slot.id;
        if !self.working.missing.is_empty() {
            let missing = codec::encode(&self.working.missing);
            out.push(RowChange::Put(rows::expired(id), missing));
        }
        // Each such word is another one: a purge that is under way does not take this one away.
        let step = (self.inner.door.clock.wall_ms(), self.working.last_seq);
        out.push(RowChange::Put(rows::purge(id), codec::encode(&step)));
    }

    /// Everything that is keyed by this session goes, but for the word that bytes remain.
    fn erase_rows(&self, out: &mut Vec<RowChange>) {
        let id = self.slot.id;
        // Both what is there and what this very batch was about to add: a snapshot that nobody
        // refers to any more must be looked at.
        for before in [&self.projection, &Projection::of(&self.working)] {
            out.extend(before.changes(&Projection::default()));
        }
        if let Some(about) = &self.committed.about {
            out.push(RowChange::Delete(rows::session(about.workspace, id)));
        }
        out.extend(
            rows::of_session(id)
                .into_iter()
                .map(RowChange::DeletePrefix),
        );
        let at_ms = self.inner.door.clock.wall_ms();
        out.push(RowChange::Put(rows::purge(id), codec::encode(&at_ms)));
    }
}

/// Whether a checkpoint is made.
pub(super) fn keeps(events: &[NewEvent]) -> bool {
    events
        .iter()
        .any(|new| matches!(new.event.body, Body::CheckpointCreated(_)))
}

/// Whether a checkpoint's time is over.
pub(super) fn lets_go(events: &[NewEvent]) -> bool {
    events
        .iter()
        .any(|new| matches!(new.event.body, Body::CheckpointExpired(_)))
}

/// Whether rows that follow from the state may change with this event. What agents write, steps,
/// and messages on their own, move none.
fn moves(new: &NewEvent) -> bool {
    match &new.event.body {
        Body::Opaque => {
            let kind = new.event.header.kind;
            let tag = kind.tag();
            kind != EventType::UserMessage
                && !(300..400).contains(&tag)
                && !(500..510).contains(&tag)
        }
        Body::UsageRecorded(_) | Body::SessionLimitWarning(_) | Body::RunInputsTaken(_) => false,
        _ => true,
    }
}
