//! What a run chain has done so far, read from the log.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::attempt::Attempt;
use super::harness::Failure;
use super::protocol::{Cursor, EventsQuery, message_text};

/// Events on one page of the log.
const PAGE_LIMIT: usize = 500;

const CHAIN_TYPES: &[&str] = &[
    "run.queued",
    "run.inputs_taken",
    "agent.message",
    "agent.tool_use",
    "agent.tool_result",
    "agent.custom_tool_use",
    "agent.question",
    "agent.action_approval_requested",
    "usage.recorded",
    "checkpoint.created",
    "item.closed",
];

/// A run chain: the run of a claim and those that it continues.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chain {
    /// What its runs wrote, and `item.closed`, in log order.
    pub events: Vec<Value>,
    /// The texts of the messages that its runs took, in log order.
    pub texts: Vec<String>,
}

impl Chain {
    /// Of a first attempt: its inputs are all there is. Otherwise read from the log.
    ///
    /// # Errors
    /// See [`Failure`].
    pub async fn read(attempt: &Attempt) -> Result<Self, Failure> {
        let claim = attempt.claim();
        let mut messages = BTreeMap::new();
        for input in &claim.inputs {
            if let (Some(id), Some(text)) = (text_at(input, "id"), message_text(input)) {
                messages.insert((seq_of(id), id.to_owned()), text);
            }
        }
        if claim.is_first() && !claim.inputs_cut {
            return Ok(Self {
                events: Vec::new(),
                texts: messages.into_values().collect(),
            });
        }
        let events = chain_events(attempt).await?;
        let mut missing = taken_by(&events);
        missing.retain(|key| !messages.contains_key(key));
        fetch_messages(attempt, missing, &mut messages).await?;
        Ok(Self {
            events,
            texts: messages.into_values().collect(),
        })
    }
}

async fn chain_events(attempt: &Attempt) -> Result<Vec<Value>, Failure> {
    chain_of(attempt, CHAIN_TYPES, |event| event).await
}

/// Walks back from the end to the `run.queued` of the chain's first run (a type that must be
/// among `types`), and gives back its events in log order, each as `keep` makes it.
pub(crate) async fn chain_of(
    attempt: &Attempt,
    types: &'static [&'static str],
    keep: fn(Value) -> Value,
) -> Result<Vec<Value>, Failure> {
    let claim = attempt.claim();
    let mut runs: BTreeSet<String> = BTreeSet::from([claim.run_id.clone()]);
    runs.extend(claim.continues.clone());
    let mut cursor = Cursor::Before(None);
    let mut found = Vec::new();
    'pages: loop {
        let page = attempt.page(query(attempt, cursor, types)).await?;
        for event in page.events {
            let kind = text_at(&event, "type").unwrap_or_default();
            let ours = text_at(&event, "run_id").is_some_and(|run| runs.contains(run));
            if kind == "item.closed" || (ours && kind != "run.queued") {
                found.push(keep(event));
                continue;
            }
            if !ours {
                continue;
            }
            match event.pointer("/content/continues").and_then(Value::as_str) {
                Some(earlier) => drop(runs.insert(earlier.to_owned())),
                // Nothing of this chain stands before it.
                None => break 'pages,
            }
        }
        match page.next {
            Some(next) => cursor = Cursor::Before(Some(next)),
            None => break,
        }
    }
    found.reverse();
    Ok(found)
}

fn taken_by(events: &[Value]) -> BTreeSet<(u64, String)> {
    let taken = events
        .iter()
        .filter(|e| text_at(e, "type") == Some("run.inputs_taken"));
    let ids = taken
        .filter_map(|e| e.pointer("/content/event_ids")?.as_array())
        .flatten();
    ids.filter_map(Value::as_str)
        .map(|id| (seq_of(id), id.to_owned()))
        .collect()
}

async fn fetch_messages(
    attempt: &Attempt,
    missing: BTreeSet<(u64, String)>,
    messages: &mut BTreeMap<(u64, String), String>,
) -> Result<(), Failure> {
    let (Some((first, _)), Some((last, _))) = (missing.first(), missing.last()) else {
        return Ok(());
    };
    let mut cursor = first.saturating_sub(1);
    while cursor < *last {
        let page = attempt
            .page(query(attempt, Cursor::After(cursor), &["user.message"]))
            .await?;
        for event in page.events {
            let key = text_at(&event, "id").map(|id| (seq_of(id), id.to_owned()));
            if let Some(key) = key.filter(|k| missing.contains(k))
                && let Some(text) = message_text(&event)
            {
                messages.insert(key, text);
            }
        }
        match page.next {
            Some(next) => cursor = next,
            None => break,
        }
    }
    Ok(())
}

/// One event of the session, if it is there.
pub(crate) async fn event_by_id(attempt: &Attempt, id: &str) -> Result<Option<Value>, Failure> {
    let after = Cursor::After(seq_of(id).saturating_sub(1));
    let query = EventsQuery {
        limit: 1,
        ..query(attempt, after, &[])
    };
    let page = attempt.page(query).await?;
    let is = |event: &Value| text_at(event, "id") == Some(id);
    Ok(page.events.into_iter().find(is))
}

fn query(attempt: &Attempt, cursor: Cursor, types: &'static [&'static str]) -> EventsQuery {
    EventsQuery {
        workspace: attempt.claim().workspace.clone(),
        session_id: attempt.claim().session_id.clone(),
        cursor,
        types,
        limit: PAGE_LIMIT,
    }
}

/// The string under `key`.
pub fn text_at<'a>(event: &'a Value, key: &str) -> Option<&'a str> {
    event.get(key).and_then(Value::as_str)
}

/// The position that an event id carries in its low 40 bits.
pub(crate) fn seq_of(id: &str) -> u64 {
    let digits = id.len().checked_sub(10).and_then(|at| id.get(at..));
    digits
        .and_then(|hex| u64::from_str_radix(hex, 16).ok())
        .unwrap_or(0)
}
