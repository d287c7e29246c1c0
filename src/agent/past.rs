//! What a run chain has done so far, as its log says it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::runner::history::{chain_of, seq_of, text_at};
use crate::runner::protocol::{Cursor, EventsQuery};
use crate::runner::{Attempt, Failure};

/// Types that are read.
const TYPES: &[&str] = &[
    "run.queued",
    "run.settled",
    "run.inputs_taken",
    "agent.tool_use",
    "agent.tool_result",
    "agent.custom_tool_use",
    "agent.action_approval_requested",
    "item.closed",
    "step.started",
    "step.completed",
];
/// What is read of the values of steps.
const VALUE_KEYS: [&str; 4] = ["calls", "stop", "input_tokens", "go_on"];
/// Pages that are looked through for the session's last model call.
const CALL_INDEX_PAGES_MAX: usize = 20;

/// Names of steps.
pub(super) const MODEL: &str = "model";
/// A stop hook's.
pub(super) const HOOK: &str = "stop_hook";
/// A summary's.
pub(super) const COMPACT: &str = "compact";
/// A tool call's, before the id of its `agent.tool_use`.
pub(super) const TOOL: &str = "tool:";

/// A run chain, as far as it has come.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// Model calls, and so the occurrence of the next one.
    pub(super) models: u32,
    /// Summaries likewise.
    pub(super) compacts: u32,
    /// Stop hooks likewise.
    pub(super) hooks: u32,
    /// Model calls of this invocation.
    pub(super) turns: u32,
    /// Passes of this invocation that are over.
    pub(super) passes: u32,
    /// Tokens of the last answer's input, unless summed up since.
    pub(super) input_tokens: u64,
    /// What comes next, once no call is open.
    pub(super) next: Next,
    /// Calls without a result, in order.
    pub(super) open: Vec<Use>,
    /// Approvals asked for, by the id of their call.
    pub(super) asked: BTreeMap<String, Asked>,
    /// Calls of the sandbox that were completed, in the order in which they first were.
    pub(super) sandbox: Vec<SandboxStep>,
}

/// What an agent does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Next {
    /// Asks its model.
    #[default]
    Model,
    /// Its pass is over: asks this stop hook.
    Hook(usize),
    /// The model refused.
    Refused,
}

/// A call that a model wants made.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Use {
    /// The id of its event.
    pub(super) id: String,
    /// The tool.
    pub(super) name: String,
    /// Its arguments.
    pub(super) input: Value,
    /// What was wrong with them.
    pub(super) malformed: Option<String>,
    /// Whether the caller answers it.
    pub(super) custom: bool,
}

/// An approval that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    /// The id of its event.
    pub(super) id: String,
    /// How it ended, and the event that ended it.
    pub(super) closed: Option<(String, Option<String>)>,
}

/// A completed step of the sandbox.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SandboxStep {
    pub(super) path: String,
    pub(super) name: String,
    pub(super) occurrence: u32,
    /// What was done, where the step says it.
    pub(super) input: Option<Value>,
    /// The call that asked for it, in the log.
    pub(super) tool_use: Option<(String, Value)>,
    /// Where it was last completed.
    pub(super) done_seq: u64,
}

/// A step that was begun.
#[derive(Debug)]
struct Started {
    path: String,
    name: String,
    occurrence: u32,
    is_sandbox: bool,
    input: Option<Value>,
}

impl Past {
    /// Reads the chain of an attempt. That of a first one is empty.
    pub(super) async fn read(attempt: &Attempt) -> Result<Self, Failure> {
        if attempt.claim().is_first() {
            return Ok(Self::default());
        }
        Self::of_run(attempt).await
    }

    /// As [`Past::read`], with what this very attempt did.
    pub(super) async fn of_run(attempt: &Attempt) -> Result<Self, Failure> {
        let events = chain_of(attempt, TYPES, trimmed).await?;
        Ok(Self::of(&events))
    }

    /// From the events of a chain, in log order.
    pub(super) fn of(events: &[Value]) -> Self {
        let mut reader = Reader::default();
        for event in events {
            reader.see(event);
        }
        let closed = reader.closed;
        let mut past = reader.past;
        past.open.retain(|u| !closed.contains_key(&u.id));
        for asked in past.asked.values_mut() {
            asked.closed = closed.get(&asked.id).cloned();
        }
        past.sandbox = reader.sandbox;
        past
    }
}

#[derive(Default)]
struct Reader {
    past: Past,
    started: BTreeMap<String, Started>,
    /// Every call, by id.
    uses: BTreeMap<String, (String, Value)>,
    /// How items ended, by id.
    closed: BTreeMap<String, (String, Option<String>)>,
    sandbox: Vec<SandboxStep>,
    /// Steps that were completed, and where those of the sandbox are in the list.
    done: BTreeMap<String, Option<usize>>,
}

impl Reader {
    fn see(&mut self, event: &Value) {
        let content = event.get("content").unwrap_or(&Value::Null);
        let id = text_at(event, "id").unwrap_or_default();
        match text_at(event, "type").unwrap_or_default() {
            "run.inputs_taken" => self.past.next = Next::Model,
            // One that was parked goes on; what follows any other end is another invocation.
            "run.settled" if text_at(content, "outcome") != Some("continued") => {
                self.past.turns = 0;
                self.past.passes = 0;
            }
            "agent.tool_use" => self.called(id, content, false),
            "agent.custom_tool_use" => self.called(id, content, true),
            "agent.tool_result" => {
                let of = text_at(content, "tool_use_id").unwrap_or_default();
                self.past.open.retain(|u| u.id != of);
            }
            "agent.action_approval_requested" => {
                if let Some(of) = text_at(content, "tool_use_id") {
                    let asked = Asked {
                        id: id.to_owned(),
                        closed: None,
                    };
                    self.past.asked.insert(of.to_owned(), asked);
                }
            }
            "item.closed" => {
                let item = text_at(content, "item_id").unwrap_or_default();
                let state = text_at(content, "state").unwrap_or_default();
                let answer = text_at(content, "answer_id").map(str::to_owned);
                self.closed
                    .insert(item.to_owned(), (state.to_owned(), answer));
            }
            "step.started" => self.begun(id, content),
            "step.completed" => self.completed(seq_of(id), content),
            _ => {}
        }
    }

    fn called(&mut self, id: &str, content: &Value, custom: bool) {
        let name = text_at(content, "name").unwrap_or_default().to_owned();
        let input = content.get("input").cloned().unwrap_or_default();
        if !custom {
            self.uses
                .insert(id.to_owned(), (name.clone(), input.clone()));
        }
        self.past.open.push(Use {
            id: id.to_owned(),
            name,
            input,
            malformed: text_at(content, "malformed").map(str::to_owned),
            custom,
        });
    }

    fn begun(&mut self, id: &str, content: &Value) {
        let occurrence = content.get("occurrence").and_then(Value::as_u64);
        let started = Started {
            path: text_at(content, "path").unwrap_or_default().to_owned(),
            name: text_at(content, "name").unwrap_or_default().to_owned(),
            occurrence: occurrence.and_then(|n| n.try_into().ok()).unwrap_or(0),
            is_sandbox: text_at(content, "effects") == Some("sandbox"),
            input: content.get("input").cloned(),
        };
        self.started.insert(id.to_owned(), started);
    }

    fn completed(&mut self, seq: u64, content: &Value) {
        let step = text_at(content, "step_id").unwrap_or_default();
        let Some(started) = self.started.get(step) else {
            return;
        };
        if let Some(before) = self.done.get(step) {
            // It was made again, because its files were gone.
            if let Some(again) = before.and_then(|at| self.sandbox.get_mut(at)) {
                again.done_seq = seq;
            }
            return;
        }
        let at = started.is_sandbox.then_some(self.sandbox.len());
        self.done.insert(step.to_owned(), at);
        if started.is_sandbox {
            let use_id = started.name.strip_prefix(TOOL);
            self.sandbox.push(SandboxStep {
                path: started.path.clone(),
                name: started.name.clone(),
                occurrence: started.occurrence,
                input: started.input.clone(),
                tool_use: use_id.and_then(|id| self.uses.get(id).cloned()),
                done_seq: seq,
            });
        }
        if !started.path.is_empty() {
            return;
        }
        let value = content.get("value").unwrap_or(&Value::Null);
        let past = &mut self.past;
        match started.name.as_str() {
            MODEL => {
                past.models += 1;
                past.turns += 1;
                let tokens = value.get("input_tokens").and_then(Value::as_u64);
                past.input_tokens = tokens.unwrap_or(0);
                past.next = after_answer(value);
                past.passes += u32::from(past.next != Next::Model);
            }
            COMPACT => {
                past.compacts += 1;
                past.input_tokens = 0;
            }
            HOOK => {
                past.hooks += 1;
                past.next = match (past.next, value.get("go_on")) {
                    (Next::Hook(n), Some(Value::Bool(false))) => Next::Hook(n + 1),
                    _ => Next::Model,
                };
            }
            _ => {}
        }
    }
}

/// What follows an answer, from the value of its step.
pub(super) fn after_answer(value: &Value) -> Next {
    let calls = value.get("calls").and_then(Value::as_u64).unwrap_or(0);
    match text_at(value, "stop") {
        Some("refusal") => Next::Refused,
        _ if calls > 0 => Next::Model,
        _ => Next::Hook(0),
    }
}

/// The event without what is not read of it.
fn trimmed(mut event: Value) -> Value {
    let kind = text_at(&event, "type").unwrap_or_default().to_owned();
    let Some(content) = event.get_mut("content").and_then(Value::as_object_mut) else {
        return event;
    };
    match kind.as_str() {
        "agent.tool_result" => content.retain(|key, _| key == "tool_use_id"),
        "step.completed" => {
            if let Some(value) = content.get_mut("value").and_then(Value::as_object_mut) {
                value.retain(|key, _| VALUE_KEYS.contains(&key.as_str()));
            }
        }
        _ => {}
    }
    event
}

/// How many model calls of this session came before, and how much the last one read (nothing,
/// where it summed up).
pub(super) async fn call_index_and_tokens(attempt: &Attempt) -> Result<(u64, u64), Failure> {
    let mut cursor = Cursor::Before(None);
    // Calls whose step has lost its content (expired, or pruned) are told by what they cost, which
    // stands right before.
    let (mut unread, mut lost) = (0, 0_u64);
    for _ in 0..CALL_INDEX_PAGES_MAX {
        let claim = attempt.claim();
        let query = EventsQuery {
            workspace: claim.workspace.clone(),
            session_id: claim.session_id.clone(),
            cursor,
            types: &["step.completed", "usage.recorded"],
            limit: 100,
        };
        let page = attempt.page(query).await?;
        for event in &page.events {
            let seq = event.get("seq").and_then(Value::as_u64).unwrap_or(0);
            if text_at(event, "type") == Some("usage.recorded") {
                lost = lost.saturating_add(u64::from(seq.saturating_add(1) == unread));
                continue;
            }
            let content = event.get("content").filter(|c| !c.is_null());
            unread = if content.is_none() { seq } else { 0 };
            let value = content.and_then(|c| c.get("value"));
            if let Some(value) = value
                && let Some(index) = value.get("call_index").and_then(Value::as_u64)
            {
                let tokens = value.get("input_tokens").and_then(Value::as_u64);
                let index = index.saturating_add(1).saturating_add(lost);
                return Ok((index, tokens.unwrap_or(0)));
            }
        }
        match page.next {
            Some(next) => cursor = Cursor::Before(Some(next)),
            None => break,
        }
    }
    Ok((lost, 0))
}
