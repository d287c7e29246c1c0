//! Steps of journals: the rows of those that ended, their values, and what memory knows of them.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use longhaul_storage::{ContentState, Order, PageLimit, ReadError, StreamId, View};

use super::SessionActor;
use crate::code::{Code, Rejection};
use crate::codec;
use crate::ids::EventId;
use crate::rows;
use crate::session::event::{EventType, NewEvent};
use crate::session::facts::{EndedStep, Facts, Needs};
use crate::session::journal::{self, StepKey, StepMark, StepRow};
use crate::session::payload::{Body, StepCompleted, StepFailed};
use crate::session::state::State;
use crate::session::step::{StepAnswer, StepResult, StepsReply};
use crate::session::stored::header_of;

/// One record.
const ONE: PageLimit = PageLimit {
    items_max: 1,
    bytes_max: 1 << 20,
};
/// Keys of ended steps kept in memory for one session: 256 KiB.
const KNOWN_MAX: usize = 16_384;

/// The ended steps of the live chain, where this actor has seen all of it: a step that is not
/// among them is new, and nothing has to be read to know that.
#[derive(Debug, Default)]
pub(super) struct KnownSteps {
    chain_seq: u64,
    ended: HashSet<StepKey>,
}

impl KnownSteps {
    /// Notes an event that was folded into `after`.
    pub(super) fn note(&mut self, after: &State, new: &NewEvent) {
        if matches!(new.event.body, Body::RunQueued(_)) {
            if after.journal.chain_seq == new.event.seq {
                self.chain_seq = new.event.seq;
                self.ended.clear();
            }
            return;
        }
        if let Some(key) = journal::key_of(&new.event) {
            if self.ended.len() < KNOWN_MAX {
                self.ended.insert(key);
            } else {
                *self = Self::default();
            }
        }
    }

    /// Nothing is known any more.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Whether this step has not ended.
    fn is_new(&self, state: &State, key: &StepKey) -> bool {
        let chain = state.journal.chain_seq;
        chain != 0 && chain == self.chain_seq && !self.ended.contains(key)
    }

    /// Whether memory has everything that is asked of steps.
    pub(super) fn has_all(&self, state: &State, needs: &Needs) -> bool {
        let journal = &state.journal;
        let known = |key| journal.open_step(key).is_some() || self.is_new(state, key);
        needs.steps.iter().all(known)
            && needs
                .step_ids
                .iter()
                .all(|id| journal.open_id(*id).is_some())
    }
}

/// Steps that ended in the batch in progress.
#[derive(Default)]
pub(super) struct EndedHere(HashMap<StepKey, StepRow>);

impl EndedHere {
    pub(super) fn note(&mut self, new: &NewEvent) {
        self.0.extend(journal::row_of(&new.event));
    }

    pub(super) fn apply(&self, state: &State, needs: &Needs, facts: &mut Facts) {
        for key in &needs.steps {
            if let Some(row) = self.0.get(key) {
                facts.steps.insert(*key, row.clone());
            }
        }
        // The common call ends a step that is open: nothing is looked for.
        let ended = |id: &&EventId| state.journal.open_id(**id).is_none();
        for id in needs.step_ids.iter().filter(ended) {
            if let Some((key, row)) = self.0.iter().find(|(_, row)| row.id == *id) {
                let ended = EndedStep {
                    key: *key,
                    row: row.clone(),
                    content: None,
                };
                facts.step_ids.insert(*id, ended);
            }
        }
    }
}

/// Looks up the steps that ended.
pub(super) fn load(
    view: &dyn View,
    stream: StreamId,
    last_seq: u64,
    needs: &Needs,
    facts: &mut Facts,
) -> Result<(), ReadError> {
    for key in &needs.steps {
        if let Some(row) = row(view, stream, last_seq, *key)? {
            facts.steps.insert(*key, row);
        }
    }
    for id in &needs.step_ids {
        if let Some(ended) = by_id(view, stream, last_seq, *id)? {
            facts.step_ids.insert(*id, ended);
        }
    }
    Ok(())
}

fn row(
    view: &dyn View,
    stream: StreamId,
    last_seq: u64,
    key: StepKey,
) -> Result<Option<StepRow>, ReadError> {
    let row = view.history_row(stream, rows::HISTORY_STEP, key, last_seq)?;
    let decoded = row.map(|row| {
        codec::decode(&row.value)
            .map_err(|e| damaged(stream, row.seq, format!("a step's row: {e}")))
    });
    decoded.transpose()
}

/// The step that this very event began, if it ended.
fn by_id(
    view: &dyn View,
    stream: StreamId,
    last_seq: u64,
    id: EventId,
) -> Result<Option<EndedStep>, ReadError> {
    let seq = id.seq();
    if seq == 0 || seq > last_seq {
        return Ok(None);
    }
    let records = view.records(stream, seq - 1, seq, Order::Asc, ONE)?;
    let Some(record) = records.first() else {
        return Ok(None);
    };
    let header = header_of(record).map_err(|e| damaged(stream, seq, e.to_string()))?;
    let mark = header.label.as_deref().and_then(StepMark::parse);
    let Some(mark) = mark.filter(|_| header.id == id && header.kind == EventType::StepStarted)
    else {
        return Ok(None);
    };
    let Some(row) = row(view, stream, last_seq, mark.key)?.filter(|row| row.id == id) else {
        return Ok(None);
    };
    let content = content(view, stream, row.done_seq)?;
    Ok(Some(EndedStep {
        key: mark.key,
        row,
        content,
    }))
}

fn content(view: &dyn View, stream: StreamId, seq: u64) -> Result<Option<Bytes>, ReadError> {
    let records = view.records(stream, seq.saturating_sub(1), seq, Order::Asc, ONE)?;
    let present = |r: &&longhaul_storage::Record| r.content_state == ContentState::Present;
    Ok(records.first().filter(present).map(|r| r.content.clone()))
}

/// The answers with their values. `memory`: contents that are there only.
pub(super) fn results(
    view: &dyn View,
    stream: StreamId,
    reply: &StepsReply,
    memory: &BTreeMap<u64, Bytes>,
) -> Result<Result<Vec<StepResult>, Rejection>, ReadError> {
    let mut out = Vec::with_capacity(reply.answers.len());
    for answer in &reply.answers {
        if let Some(plain) = answer.plain() {
            out.push(plain);
            continue;
        }
        let seq = answer.value_seq().unwrap_or_default();
        let found = match memory.get(&seq) {
            Some(content) => Some(content.clone()),
            None => content(view, stream, seq)?,
        };
        let Some(content) = found else {
            return Ok(Err(Code::JournalValueUnavailable.into()));
        };
        out.push(valued(answer, &content).map_err(|why| damaged(stream, seq, why))?);
    }
    Ok(Ok(out))
}

fn valued(answer: &StepAnswer, content: &Bytes) -> Result<StepResult, String> {
    match answer {
        StepAnswer::Completed { step, .. } => {
            let said: StepCompleted<'_> =
                serde_json::from_slice(content).map_err(|e| e.to_string())?;
            Ok(StepResult::Completed {
                step: *step,
                value: said.value(content)?,
                event_ids: said.event_ids,
            })
        }
        StepAnswer::Failed { step, failures, .. } => {
            let said: StepFailed<'_> =
                serde_json::from_slice(content).map_err(|e| e.to_string())?;
            let partial = said.partial.map(|p| content.slice_ref(p.get().as_bytes()));
            Ok(StepResult::Failed {
                step: *step,
                error: said.error,
                partial,
                failures: *failures,
            })
        }
        other => other.plain().ok_or_else(|| "no value".to_owned()),
    }
}

fn damaged(stream: StreamId, seq: u64, reason: String) -> ReadError {
    ReadError::Damaged {
        stream,
        seq,
        reason,
    }
}

impl SessionActor {
    /// Adds to what was looked up of ended steps the contents that only memory has: those of the
    /// batch in progress, and those that are never written.
    pub(super) fn fill_steps(&self, facts: &mut Facts, batch: &[NewEvent]) {
        for ended in facts.step_ids.values_mut() {
            let seq = ended.row.done_seq;
            if ended.content.is_none() {
                let new = batch.iter().find(|new| new.event.seq == seq);
                let kept = || self.contents.of(std::iter::once(seq)).remove(&seq);
                ended.content = new.map(|new| new.content.clone()).or_else(kept);
            }
        }
    }
}
