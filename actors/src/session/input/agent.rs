//! Contents of `agent.*` events and `usage.recorded`, as runners write them.
//!
//! A harness owns its contents; only what the log itself relies on is checked.

use serde::Deserialize;

use super::RECORD;
use super::json::typed;
use crate::code::{Code, Rejection};
use crate::ids::EventId;
use crate::session::command::Ask;
use crate::session::event::EventType;
use crate::session::payload::Usage;

#[derive(Deserialize)]
struct ToolResult {
    tool_use_id: EventId,
}

#[derive(Deserialize)]
struct Compacted {
    #[serde(rename = "summary")]
    _summary: String,
    through_seq: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UsageContent {
    #[serde(default)]
    input_tokens: u64,
    #[serde(default)]
    output_tokens: u64,
    #[serde(default)]
    cache_read_tokens: u64,
    #[serde(default)]
    cache_write_tokens: u64,
    #[serde(default)]
    cost_micros: u64,
    #[serde(default, rename = "model")]
    _model: Option<String>,
    #[serde(default, rename = "step")]
    _step: Option<u64>,
}

impl From<UsageContent> for Usage {
    fn from(u: UsageContent) -> Self {
        Self {
            input_tokens: u.input_tokens,
            output_tokens: u.output_tokens,
            cache_read_tokens: u.cache_read_tokens,
            cache_write_tokens: u.cache_write_tokens,
            cost_micros: u.cost_micros,
        }
    }
}

/// What an event of a runner asks for.
pub(super) fn ask(kind: EventType, content: &str) -> Result<Ask, Rejection> {
    match kind {
        EventType::AgentToolUse
        | EventType::AgentQuestion
        | EventType::AgentActionApprovalRequested
        | EventType::AgentCustomToolUse => Ok(Ask::Open),
        EventType::AgentToolResult => {
            let result: ToolResult = typed(content.as_bytes()).map_err(|_| {
                Rejection::new(
                    Code::ToolUseUnknown,
                    "`tool_use_id` must name an agent.tool_use",
                )
            })?;
            Ok(Ask::ToolResult {
                tool_use: result.tool_use_id,
            })
        }
        EventType::UsageRecorded => {
            typed::<UsageContent>(content.as_bytes()).map(|u| Ask::Usage(u.into()))
        }
        EventType::AgentContextCompacted => {
            let compacted: Compacted = typed(content.as_bytes())?;
            Ok(Ask::Compact {
                through_seq: compacted.through_seq,
            })
        }
        _ => Ok(RECORD),
    }
}
