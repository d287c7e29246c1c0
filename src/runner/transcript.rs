//! The conversation as a model sees it, for a harness: from the log, back to the newest
//! compaction.

use std::collections::BTreeMap;

use longhaul_actors::transcript::Message;
use longhaul_actors::transcript::fold::{Fold, TYPES, compacted_through, summary};
use serde_json::Value;

use super::attempt::Attempt;
use super::harness::Failure;
use super::history::{seq_of, text_at};
use super::protocol::{Cursor, EventsQuery};

/// Events on one page of the log.
const PAGE_LIMIT: usize = 500;

impl Attempt {
    /// The whole conversation so far, this run's part included, as `GET
    /// /v1/sessions/{id}/transcript` shows it. Messages that no run has taken are not in it.
    ///
    /// # Errors
    /// See [`Failure`].
    pub async fn transcript(&self) -> Result<Vec<Message>, Failure> {
        let mut newest_first = Vec::new();
        let mut summed_up: Option<Value> = None;
        let mut cursor = Cursor::Before(None);
        'pages: loop {
            let page = self.page(self.query(cursor, PAGE_LIMIT)).await?;
            for event in page.events {
                let through = summed_up.as_ref().map_or(0, compacted_through);
                if event.get("seq").and_then(Value::as_u64) <= Some(through) {
                    break 'pages;
                }
                if text_at(&event, "type") != Some("agent.context_compacted") {
                    newest_first.push(event);
                } else if summed_up.is_none() && compacted_through(&event) > 0 {
                    summed_up = Some(event);
                }
            }
            match page.next {
                Some(next) => cursor = Cursor::Before(Some(next)),
                None => break,
            }
        }
        let events: Vec<Value> = newest_first.into_iter().rev().collect();
        let mut named = self.named(&events).await?;
        let through = summed_up.as_ref().map_or(0, compacted_through);
        let mut fold = Fold::after_summary(through);
        for event in &events {
            fold.push(event, &mut |id| named.remove(id));
        }
        let first = summed_up.as_ref().map(summary);
        Ok(first.into_iter().chain(fold.into_messages()).collect())
    }

    /// The events that others name: messages taken, and calls that ended without an answer.
    async fn named(&self, events: &[Value]) -> Result<BTreeMap<String, Value>, Failure> {
        // What is nowhere written is in the claim at least.
        let inputs = self.claim().inputs.iter();
        let known: BTreeMap<&str, &Value> = events
            .iter()
            .chain(inputs)
            .filter_map(|e| Some((text_at(e, "id")?, e)))
            .collect();
        let mut named = BTreeMap::new();
        for event in events {
            let content = event.get("content").unwrap_or(&Value::Null);
            let taken = content.get("event_ids").and_then(Value::as_array);
            let taken = taken.into_iter().flatten().filter_map(Value::as_str);
            for id in taken.chain(text_at(content, "item_id")) {
                let found = match known.get(id) {
                    Some(event) => Some((*event).clone()),
                    None => self.one(id).await?,
                };
                named.extend(found.map(|event| (id.to_owned(), event)));
            }
        }
        Ok(named)
    }

    async fn one(&self, id: &str) -> Result<Option<Value>, Failure> {
        let after = Cursor::After(seq_of(id).saturating_sub(1));
        let page = self.page(self.query(after, 1)).await?;
        let is = |event: &Value| text_at(event, "id") == Some(id);
        Ok(page.events.into_iter().find(is))
    }

    fn query(&self, cursor: Cursor, limit: usize) -> EventsQuery {
        EventsQuery {
            workspace: self.claim().workspace.clone(),
            session_id: self.claim().session_id.clone(),
            cursor,
            types: TYPES,
            limit,
        }
    }
}
