//! What the log says of each step.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::runner::history::text_at;

/// The steps of a script as far as the run chain has come.
#[derive(Debug, Default)]
pub struct Past {
    steps: BTreeMap<usize, Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    opened: Option<Opened>,
    complete: bool,
    /// Position of the last that it left.
    last_seq: u64,
}

/// A tool use or item that a step opened.
#[derive(Debug, Clone, PartialEq)]
pub struct Opened {
    /// Its id.
    pub id: String,
    /// The input of a tool use.
    pub input: Value,
}

impl Past {
    /// Reads the events of a chain, in log order.
    pub fn of(events: &[Value]) -> Self {
        let mut past = Self::default();
        let mut closed = BTreeSet::new();
        for event in events {
            let kind = text_at(event, "type").unwrap_or_default();
            if kind == "item.closed" {
                closed.extend(event.pointer("/content/item_id").and_then(Value::as_str));
            }
            // A checkpoint carries its step among the pairs that are the caller's to choose.
            let step = match kind {
                "checkpoint.created" => event.pointer("/content/metadata/step"),
                _ => event.pointer("/content/step"),
            };
            let step = step.and_then(Value::as_u64);
            if let Some(step) = step.and_then(|s| usize::try_from(s).ok()) {
                past.see(step, kind, event);
            }
        }
        for seen in past.steps.values_mut() {
            let item = seen
                .opened
                .as_ref()
                .is_some_and(|o| closed.contains(o.id.as_str()));
            seen.complete |= item;
        }
        past
    }

    fn see(&mut self, step: usize, kind: &str, event: &Value) {
        let seen = self.steps.entry(step).or_default();
        seen.last_seq = event.get("seq").and_then(Value::as_u64).unwrap_or(u64::MAX);
        match kind {
            "agent.message" | "usage.recorded" | "checkpoint.created" => seen.complete = true,
            "agent.tool_result" => {
                let result_of = event
                    .pointer("/content/tool_use_id")
                    .and_then(Value::as_str);
                let ours = seen
                    .opened
                    .as_ref()
                    .is_some_and(|o| Some(o.id.as_str()) == result_of);
                seen.complete |= ours;
            }
            "agent.tool_use"
            | "agent.custom_tool_use"
            | "agent.question"
            | "agent.action_approval_requested"
                if seen.opened.is_none() =>
            {
                let id = text_at(event, "id").unwrap_or_default().to_owned();
                let input = event.pointer("/content/input").cloned().unwrap_or_default();
                seen.opened = Some(Opened { id, input });
            }
            _ => {}
        }
    }

    /// Whether the step has done all it does.
    pub fn is_complete(&self, step: usize) -> bool {
        self.steps.get(&step).is_some_and(|s| s.complete)
    }

    /// Whether all that the step did stands at or before a position of the log.
    pub fn is_within(&self, step: usize, through_seq: u64) -> bool {
        let seen = self.steps.get(&step);
        seen.is_some_and(|s| s.complete && s.last_seq <= through_seq)
    }

    /// Whether any later step has left a trace.
    pub fn is_behind(&self, step: usize) -> bool {
        self.steps
            .last_key_value()
            .is_some_and(|(last, _)| *last > step)
    }

    /// What the step opened first.
    pub fn opened(&self, step: usize) -> Option<&Opened> {
        self.steps.get(&step).and_then(|s| s.opened.as_ref())
    }
}
