//! What the quickstart claims, checked against the log.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::refuted;
use crate::cli::client::Client;
use crate::cli::exit::CliError;

/// Kinds of agent events that must be there once for each step that writes them.
const KINDS: &[&str] = &["agent.message", "agent.tool_use", "agent.tool_result"];
/// Agent events of the script: two messages, four tool uses with a result each.
const EVENTS: usize = 10;

/// What the log holds.
#[derive(Debug, Default)]
pub(super) struct Proof {
    events: usize,
    gaps: usize,
    steps: HashMap<(String, u64), usize>,
    settled: Vec<String>,
    attempts: u64,
}

/// Reads the log.
pub(super) async fn check(client: &Client, session: &str) -> Result<Proof, CliError> {
    let mut proof = Proof::default();
    let (mut after, mut last) = (0, 0);
    loop {
        let page = client
            .get(&format!(
                "/v1/sessions/{session}/events?after={after}&limit=500"
            ))
            .await?;
        let events = page
            .get("events")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        for e in &events {
            proof.take(e, &mut last);
        }
        match page.get("next_after").and_then(Value::as_u64) {
            Some(next) if !events.is_empty() && next > after => after = next,
            _ => return Ok(proof),
        }
    }
}

impl Proof {
    fn take(&mut self, e: &Value, last: &mut u64) {
        let seq = e.get("seq").and_then(Value::as_u64).unwrap_or(0);
        self.events += 1;
        self.gaps += usize::from(seq != *last + 1);
        *last = seq;
        let kind = e.get("type").and_then(Value::as_str).unwrap_or("");
        let content = e.get("content").unwrap_or(&Value::Null);
        if KINDS.contains(&kind) {
            let step = content
                .get("step")
                .and_then(Value::as_u64)
                .unwrap_or(u64::MAX);
            *self.steps.entry((kind.to_owned(), step)).or_default() += 1;
        }
        if kind == "run.settled" {
            let outcome = content.get("outcome").and_then(Value::as_str).unwrap_or("");
            self.settled.push(outcome.to_owned());
            self.attempts = e.get("attempt").and_then(Value::as_u64).unwrap_or(0);
        }
    }

    fn doubled(&self) -> usize {
        self.steps.values().filter(|n| **n > 1).count()
    }

    fn missing(&self) -> usize {
        EVENTS.saturating_sub(self.steps.len())
    }

    pub(super) fn to_json(&self) -> Value {
        json!({ "events": self.events, "gaps": self.gaps, "doubled": self.doubled(),
            "missing": self.missing(), "outcomes": self.settled, "attempts": self.attempts })
    }

    pub(super) fn to_text(&self) -> String {
        let settled = self.settled.join(", ");
        format!(
            "The log, read back: {} events in order, {} gaps; every step there once ({} doubled, \
             {} missing);\nthe run settled once ({settled}) with attempt {}.\n",
            self.events,
            self.gaps,
            self.doubled(),
            self.missing(),
            self.attempts
        )
    }

    pub(super) fn verdict(&self) -> Result<(), CliError> {
        let whole = self.gaps == 0 && self.doubled() == 0 && self.missing() == 0;
        if whole && self.settled == ["succeeded"] && self.attempts == 2 {
            Ok(())
        } else {
            Err(refuted(format!(
                "the log is not as it should be: {}",
                self.to_json()
            )))
        }
    }
}
