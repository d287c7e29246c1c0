//! Rows that derive from a session's history: runs, messages, inputs taken, items.

use bincode::{Decode, Encode};
use bytes::Bytes;
use longhaul_storage::HistoryRow;
use serde_json::{Value, json};

use super::event::{EventType, NewEvent};
use super::facts::ItemFact;
use super::journal;
use super::payload::{Body, Outcome, RunError, Trigger, Usage};
use super::state::{Answer, State};
use crate::ids::{EventId, RunId};
use crate::{codec, rows, time};

/// A run in a list.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct RunRow {
    /// The run.
    pub id: RunId,
    /// `queued` `claimed` `running` `waiting` `reconciling` `settled`.
    pub state: String,
    /// Its last attempt; 0 before the first claim.
    pub attempt: u32,
    /// What started it.
    pub trigger: Trigger,
    /// The run it goes on from.
    pub continues: Option<RunId>,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// Why, if badly.
    pub error: Option<RunError>,
    /// What it cost so far.
    pub usage: Usage,
    /// Milliseconds.
    pub queued_at_ms: i64,
    /// Milliseconds.
    pub settled_at_ms: Option<i64>,
}

impl RunRow {
    /// The run as listed.
    pub fn json(&self) -> Value {
        json!({
            "id": self.id,
            "state": self.state,
            "attempt": self.attempt,
            "trigger": self.trigger,
            "continues": self.continues,
            "outcome": self.outcome,
            "error": self.error,
            "usage": self.usage,
            "cost": self.usage.cost_micros,
            "queued_at": time::rfc3339(self.queued_at_ms),
            "settled_at": self.settled_at_ms.map(time::rfc3339),
        })
    }
}

/// The rows that an event makes; `after` is the state with the event folded in.
pub fn history_rows(after: &State, new: &NewEvent) -> Vec<HistoryRow> {
    let (seq, header) = (new.event.seq, &new.event.header);
    let row = |kind, key, value| HistoryRow {
        kind,
        key,
        seq,
        value,
    };
    match &new.event.body {
        Body::Opaque => match header.kind {
            EventType::UserMessage => {
                let id = Bytes::copy_from_slice(&header.id.0);
                vec![row(rows::HISTORY_INPUT, rows::at(seq), id)]
            }
            EventType::AgentQuestion
            | EventType::AgentActionApprovalRequested
            | EventType::AgentCustomToolUse => {
                let open = ItemFact {
                    state: None,
                    answer: None,
                };
                vec![row(rows::HISTORY_ITEM, rows::at(seq), codec::encode(&open))]
            }
            EventType::StepCompleted | EventType::StepFailed => journal::row_of(&new.event)
                .map(|(key, step)| row(rows::HISTORY_STEP, key, codec::encode(&step)))
                .into_iter()
                .collect(),
            _ => Vec::new(),
        },
        Body::RunInputsTaken(b) => {
            let Some(run) = &after.run else {
                return Vec::new();
            };
            let taken = |id: &EventId| {
                let value = Bytes::copy_from_slice(&id.0);
                row(
                    rows::HISTORY_TAKEN,
                    rows::taken(run.queued_seq, id.seq()),
                    value,
                )
            };
            b.event_ids.iter().map(taken).collect()
        }
        Body::ItemClosed(b) if b.signal.is_none() => {
            let answer = b.answer_id.map(|id| Answer { seq: id.seq(), id });
            let fact = ItemFact {
                state: Some(b.state),
                answer,
            };
            vec![row(
                rows::HISTORY_ITEM,
                rows::at(b.item_id.seq()),
                codec::encode(&fact),
            )]
        }
        Body::RunQueued(_)
        | Body::RunClaimed(_)
        | Body::RunStarted(_)
        | Body::RunRequeued(_)
        | Body::RunParked(_) => live_row(after)
            .map(|(k, r)| row(rows::HISTORY_RUN, k, r))
            .into_iter()
            .collect(),
        // Held compute goes on without a run event of its own.
        Body::SessionStatus(_) => live_row(after)
            .map(|(k, r)| row(rows::HISTORY_RUN, k, r))
            .into_iter()
            .collect(),
        Body::RunSettled(_) => settled_row(after)
            .map(|(k, r)| row(rows::HISTORY_RUN, k, r))
            .into_iter()
            .collect(),
        _ => Vec::new(),
    }
}

fn live_row(after: &State) -> Option<([u8; 16], Bytes)> {
    let run = after.run.as_ref()?;
    let row = RunRow {
        id: run.id,
        state: run.phase.text().to_owned(),
        attempt: run.attempt,
        trigger: run.trigger,
        continues: run.continues,
        outcome: None,
        error: None,
        usage: run.usage,
        queued_at_ms: run.queued_at_ms,
        settled_at_ms: None,
    };
    Some((rows::at(run.queued_seq), codec::encode(&row)))
}

fn settled_row(after: &State) -> Option<([u8; 16], Bytes)> {
    let run = after.last_run.as_ref()?;
    let row = RunRow {
        id: run.id,
        state: "settled".to_owned(),
        attempt: run.attempt,
        trigger: run.trigger,
        continues: run.continues,
        outcome: Some(run.outcome),
        error: run.error.clone(),
        usage: run.usage,
        queued_at_ms: run.queued_at_ms,
        settled_at_ms: Some(run.settled_at_ms),
    };
    Some((rows::at(run.queued_seq), codec::encode(&row)))
}
