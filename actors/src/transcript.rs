//! The conversation as a model sees it: a projection of the log.
//!
//! A message of a person stands where a run took it (`run.inputs_taken`), not where it was
//! accepted: so a model's input only ever grows at its end, whatever arrives meanwhile.

pub mod fold;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A person, or the runtime for one (a nudge, a stop hook, the summary of a compaction).
    User,
    /// The agent.
    Assistant,
    /// Results of the tools that the agent called.
    Tool,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What, in order; never empty.
    pub content: Vec<Block>,
    /// Position of the first event that it comes from; 0 for a message that is in no log.
    #[serde(default)]
    pub seq: u64,
    /// Position of the last event that it comes from.
    #[serde(default)]
    pub through_seq: u64,
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// What stands for everything before it.
    Summary {
        /// The summary.
        text: String,
        /// The last position that it stands for.
        through_seq: u64,
    },
    /// A call of a tool, by the agent.
    ToolUse {
        /// Its id: that of the event (or of the model, where there is no event).
        id: String,
        /// The tool.
        name: String,
        /// Its arguments.
        input: Value,
    },
    /// What a tool answered. Every call has exactly one, a cancelled call too.
    ToolResult {
        /// The call.
        tool_use_id: String,
        /// Text, or any JSON.
        output: Value,
        /// Whether the call failed (or was denied, or cancelled).
        #[serde(default)]
        is_error: bool,
    },
    /// A part whose content is gone (erased, expired or never kept).
    Unreadable {
        /// The type of its event.
        event_type: String,
        /// Why: the content's state.
        content_state: String,
    },
}

impl Message {
    /// A message of one text, in no log yet.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            role,
            content: vec![Block::Text { text }],
            seq: 0,
            through_seq: 0,
        }
    }
}
