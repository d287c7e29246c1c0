//! A conversation as providers take it: turns of a person and of the agent in strict alternation,
//! every tool result right behind its call. Both wires are written from this.

use std::collections::{HashMap, HashSet, VecDeque};

use longhaul_actors::transcript::{Block, Message, Role};
use serde_json::{Value, json};

/// Longest id or tool name on the wire, bytes.
const NAME_BYTES_MAX: usize = 64;
/// What stands for a call's result that is not in the conversation.
const NO_RESULT: &str = "There is no result: it is gone, or was never recorded.";
/// What stands before an agent that speaks first.
const OPENING: &str = "The conversation starts with the agent's own words.";

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaker {
    /// A person, and the tools.
    User,
    /// The agent.
    Agent,
}

/// One turn; never empty.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Turn {
    /// Whose.
    pub(super) speaker: Speaker,
    /// In a person's turn, first: the results of the calls of the turn before, in their order.
    pub(super) results: Vec<ResultPart>,
    /// What is said; nothing blank.
    pub(super) texts: Vec<String>,
    /// In the agent's turn, last: its calls.
    pub(super) calls: Vec<CallPart>,
}

impl Turn {
    const fn of(speaker: Speaker) -> Self {
        Self {
            speaker,
            results: Vec::new(),
            texts: Vec::new(),
            calls: Vec::new(),
        }
    }

    const fn is_empty(&self) -> bool {
        self.results.is_empty() && self.texts.is_empty() && self.calls.is_empty()
    }
}

/// A call.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CallPart {
    /// Unique in the conversation.
    pub(super) id: String,
    /// The tool.
    pub(super) name: String,
    /// Always an object.
    pub(super) input: Value,
}

/// What a call gave.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ResultPart {
    /// The call's id.
    pub(super) id: String,
    /// Never empty.
    pub(super) text: String,
    /// Whether the call failed.
    pub(super) is_error: bool,
}

/// The turns of a conversation. The first is a person's, and no two neighbours are alike.
pub(super) fn turns(messages: &[Message]) -> Vec<Turn> {
    let mut builder = Builder::new(messages);
    for message in messages {
        for block in &message.content {
            builder.block(message.role, block);
        }
    }
    builder.end()
}

struct Builder<'a> {
    done: Vec<Turn>,
    current: Turn,
    /// Results not given to a call yet, by the call's id, in order.
    results: HashMap<&'a str, VecDeque<(&'a Value, bool)>>,
    /// How many results of an id belong to calls; those after are of no call.
    calls_of: HashMap<&'a str, usize>,
    seen_results: HashMap<&'a str, usize>,
    ids: HashSet<String>,
    /// Calls of the last turn: their ids here and on the wire.
    open: Vec<(String, String)>,
}

impl<'a> Builder<'a> {
    fn new(messages: &'a [Message]) -> Self {
        let mut results: HashMap<&str, VecDeque<(&Value, bool)>> = HashMap::new();
        let mut calls_of: HashMap<&str, usize> = HashMap::new();
        for block in messages.iter().flat_map(|m| &m.content) {
            match block {
                Block::ToolUse { id, .. } => *calls_of.entry(id).or_default() += 1,
                Block::ToolResult {
                    tool_use_id,
                    output,
                    is_error,
                } => {
                    let of = results.entry(tool_use_id).or_default();
                    of.push_back((output, *is_error));
                }
                _ => {}
            }
        }
        Self {
            done: Vec::new(),
            current: Turn::of(Speaker::User),
            results,
            calls_of,
            seen_results: HashMap::new(),
            ids: HashSet::new(),
            open: Vec::new(),
        }
    }

    fn block(&mut self, role: Role, block: &'a Block) {
        match block {
            Block::Text { text } => self.text(role, text.clone()),
            Block::Summary { text, .. } => {
                let text = format!("Summary of the conversation until here:\n{text}");
                self.text(role, text);
            }
            Block::Unreadable {
                event_type,
                content_state,
            } => self.text(
                role,
                format!("[{event_type}: its content is {content_state}]"),
            ),
            Block::ToolUse { id, name, input } => {
                let wire = self.unique(&plain(id));
                self.open.push((id.clone(), wire.clone()));
                let call = CallPart {
                    id: wire,
                    name: plain(name),
                    input: arguments(input),
                };
                self.turn(Speaker::Agent).calls.push(call);
            }
            Block::ToolResult {
                tool_use_id,
                output,
                ..
            } => {
                let seen = self.seen_results.entry(tool_use_id).or_default();
                *seen += 1;
                let of_calls = self.calls_of.get(tool_use_id.as_str()).copied();
                if *seen > of_calls.unwrap_or(0) {
                    let text = format!("Result of a call that is gone: {}", shown(output));
                    self.text(Role::User, text);
                } else if !self.open.is_empty() {
                    self.turn(Speaker::User);
                }
            }
        }
    }

    fn text(&mut self, role: Role, text: String) {
        // Providers refuse blank text.
        if text.trim().is_empty() {
            return;
        }
        let speaker = match role {
            Role::Assistant => Speaker::Agent,
            Role::User | Role::Tool => Speaker::User,
        };
        self.turn(speaker).texts.push(text);
    }

    /// The turn to add to; a person's begins with the results of the agent's calls.
    fn turn(&mut self, speaker: Speaker) -> &mut Turn {
        if self.current.speaker != speaker {
            if self.done.is_empty() && self.current.is_empty() {
                self.current.texts.push(OPENING.to_owned());
            }
            let mut next = Turn::of(speaker);
            if speaker == Speaker::User {
                next.results = self.take_results();
            }
            let done = std::mem::replace(&mut self.current, next);
            self.done.push(done);
        }
        &mut self.current
    }

    fn take_results(&mut self) -> Vec<ResultPart> {
        let open = std::mem::take(&mut self.open);
        let given = |(id, wire): (String, String)| {
            let of = self.results.get_mut(id.as_str());
            let (text, is_error) = of
                .and_then(VecDeque::pop_front)
                .map_or((NO_RESULT.to_owned(), true), |(output, is_error)| {
                    (shown(output), is_error)
                });
            ResultPart {
                id: wire,
                text,
                is_error,
            }
        };
        open.into_iter().map(given).collect()
    }

    /// Calls at the very end have their results, too.
    fn end(mut self) -> Vec<Turn> {
        if !self.open.is_empty() {
            self.turn(Speaker::User);
        }
        if !self.current.is_empty() {
            self.done.push(self.current);
        }
        self.done
    }

    fn unique(&mut self, id: &str) -> String {
        let mut unique = id.to_owned();
        let mut n = 1_u32;
        while !self.ids.insert(unique.clone()) {
            n += 1;
            let tail = format!("-{n}");
            let kept = id.len().min(NAME_BYTES_MAX - tail.len());
            unique = format!("{}{tail}", id.get(..kept).unwrap_or_default());
        }
        unique
    }
}

/// Only what both providers allow in ids and names.
fn plain(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let plain: String = name
        .chars()
        .map(|c| if fits(c) { c } else { '_' })
        .take(NAME_BYTES_MAX)
        .collect();
    if plain.is_empty() {
        "unknown".to_owned()
    } else {
        plain
    }
}

/// Arguments are an object for every provider; what a model wrote instead is shown to it.
fn arguments(input: &Value) -> Value {
    match input {
        Value::Object(_) => input.clone(),
        other => json!({"unreadable_arguments": other}),
    }
}

fn shown(output: &Value) -> String {
    let text = match output {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.trim().is_empty() {
        "(no output)".to_owned()
    } else {
        text
    }
}
