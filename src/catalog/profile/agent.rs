//! `agent`: a model in a loop with tools.

use std::collections::BTreeSet;

use longhaul_actors::code::Rejection;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{CheckpointMode, INSTRUCTIONS_BYTES_MAX, invalid};
use crate::model::Prices;

/// Most model calls that one invocation may be given.
const TURNS_MAX: u32 = 10_000;
/// Most passes that one invocation may be given.
const PASSES_MAX: u32 = 1_000;
/// Most tools, sub-agents and hooks, each.
const LIST_MAX: usize = 128;
/// Most recorded answers of a scripted model.
const ANSWERS_MAX: usize = 10_000;
/// Longest time of one tool call, seconds.
const TOOL_S_MAX: u64 = 24 * 3_600;
/// How deep sub-agents may have sub-agents.
const DEPTH_MAX: usize = 4;
/// The only route whose answers stand in the deployment itself.
const SCRIPTED: &str = "scripted";

/// `agent`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentProfile {
    /// Who answers.
    pub model: ModelChoice,
    /// What a call costs, where the model does not say so itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub prices: Option<Prices>,
    /// Tools of the runner's own, by name.
    #[serde(default)]
    pub tools: Vec<ToolChoice>,
    /// Servers of the runner's whose tools it has, by name (docs/tools.md).
    #[serde(default)]
    pub mcp: Vec<ToolChoice>,
    /// Tools that the caller answers, with `user.custom_tool_result`.
    #[serde(default)]
    pub custom_tools: Vec<CustomTool>,
    /// Agents that this one can call like a tool.
    #[serde(default)]
    pub agents: Vec<SubAgentProfile>,
    /// Asked, in order, whenever the agent has nothing left to do.
    #[serde(default)]
    pub stop_hooks: Vec<StopHookProfile>,
    /// Model calls of one invocation (1 to 10,000; absent = 100); the run fails after them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns_max: Option<u32>,
    /// Passes of one invocation (1 to 1,000; absent = 5): stop hooks send it back no further.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passes_max: Option<u32>,
    /// When an answer's input had more tokens, the conversation is summed up first; absent = never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compact_at_tokens: Option<u64>,
    /// JSON Schema that answers must fit, where the model can be held to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub output_schema: Option<Value>,
    /// Most tokens of one answer; absent = the model's own limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens_max: Option<u32>,
    /// Longest time of one tool call, seconds (1 to one day; absent = 300).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_s_max: Option<u64>,
    /// When checkpoints are taken; `settle` where the sandbox can give snapshots, else `off`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointMode>,
}

/// Who answers: a name, or recorded answers.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged, try_from = "Value")]
pub enum ModelChoice {
    /// `<route>/<model>`, as the runner is configured.
    Named(String),
    /// Recorded answers, for tests and demonstrations.
    Scripted(ScriptedModelProfile),
}

/// By hand, so that a bad field is named.
impl TryFrom<Value> for ModelChoice {
    type Error = serde_json::Error;

    fn try_from(value: Value) -> Result<Self, serde_json::Error> {
        match value {
            Value::String(name) => Ok(Self::Named(name)),
            other => ScriptedModelProfile::deserialize(other).map(Self::Scripted),
        }
    }
}

/// A model that plays back answers: the session's first call gets the first, and so on.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptedModelProfile {
    /// `scripted`.
    pub route: String,
    /// In order.
    pub answers: Vec<ScriptedAnswer>,
    /// Wait before each answer, milliseconds (at most one hour).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub delay_ms: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A recorded answer.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScriptedAnswer {
    /// Its words; `{{input}}` is the last thing that a person said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The calls it makes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ScriptedCall>,
    /// Why it stopped: `end`, `tool_use`, `length` or `refusal`; absent = as its calls say.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub stop: Option<crate::model::StopReason>,
    /// What it cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub usage: Option<super::UsageStep>,
    /// The model cannot be reached instead, with this message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A recorded call of a tool.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptedCall {
    /// The tool.
    pub name: String,
    /// Its arguments, any JSON.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub input: Value,
    /// What is wrong with the arguments' JSON, if anything; `input` is then their text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub malformed: Option<String>,
}

/// A tool by name, and whether people are asked first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged, try_from = "Value")]
pub enum ToolChoice {
    /// Nobody is asked.
    Name(String),
    /// Said in full.
    Full(ToolSettings),
}

/// A tool, said in full.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolSettings {
    /// Its name.
    pub name: String,
    /// Whether people are asked first.
    #[serde(default)]
    pub approval: ApprovalMode,
}

/// By hand, so that a bad field is named.
impl TryFrom<Value> for ToolChoice {
    type Error = serde_json::Error;

    fn try_from(value: Value) -> Result<Self, serde_json::Error> {
        match value {
            Value::String(name) => Ok(Self::Name(name)),
            other => ToolSettings::deserialize(other).map(Self::Full),
        }
    }
}

impl ToolChoice {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Name(name) => name,
            Self::Full(full) => &full.name,
        }
    }

    /// Whether people are asked first.
    pub fn approval(&self) -> ApprovalMode {
        match self {
            Self::Name(_) => ApprovalMode::Never,
            Self::Full(full) => full.approval,
        }
    }
}

/// Whether people are asked before a tool is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalMode {
    /// No.
    #[default]
    Never,
    /// Before every call, unless an answer was to be remembered.
    Ask,
}

/// A tool that the caller answers.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CustomTool {
    /// Its name.
    pub name: String,
    /// What it does, for the model.
    #[serde(default)]
    pub description: String,
    /// JSON Schema of its arguments; absent = any object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub input_schema: Option<Value>,
}

/// An agent that another one calls like a tool, with `{prompt}`. Its own conversation is not
/// written to the session's log; its steps are in the journal.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubAgentProfile {
    /// Its name as a tool.
    pub name: String,
    /// What it does, for the model that calls it.
    #[serde(default)]
    pub description: String,
    /// What it is told to be.
    #[serde(default)]
    pub instructions: String,
    /// Who answers; absent = as the agent that calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelChoice>,
    /// Its tools; nobody is asked before they are called.
    #[serde(default)]
    pub tools: Vec<String>,
    /// Agents that it can call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub agents: Vec<SubAgentProfile>,
    /// Model calls of one call of it (absent = 100).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns_max: Option<u32>,
}

/// `{exec: command}`: a shell command of the sandbox. Where its exit status is not 0, what it
/// wrote goes to the agent, which begins another pass.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopHookProfile {
    /// The command.
    pub exec: String,
}

impl AgentProfile {
    /// Whether it can run at all.
    pub(super) fn check(&self) -> Result<(), Rejection> {
        self.model.check("model")?;
        between("turns_max", self.turns_max, 1, TURNS_MAX)?;
        between("passes_max", self.passes_max, 1, PASSES_MAX)?;
        between("output_tokens_max", self.output_tokens_max, 1, u32::MAX)?;
        between("tool_s_max", self.tool_s_max, 1, TOOL_S_MAX)?;
        between("compact_at_tokens", self.compact_at_tokens, 1, u64::MAX)?;
        if self.output_schema.as_ref().is_some_and(|s| !s.is_object()) {
            return Err(field("output_schema", "is a JSON Schema: an object"));
        }
        for (i, tool) in self.custom_tools.iter().enumerate() {
            if tool.input_schema.as_ref().is_some_and(|s| !s.is_object()) {
                let name = format!("custom_tools[{i}].input_schema");
                return Err(field(&name, "is a JSON Schema: an object"));
            }
        }
        let hooks = &self.stop_hooks;
        if hooks.len() > LIST_MAX {
            return Err(field(
                "stop_hooks",
                &format!("has at most {LIST_MAX} hooks"),
            ));
        }
        if let Some(i) = hooks.iter().position(|h| h.exec.trim().is_empty()) {
            return Err(field(&format!("stop_hooks[{i}].exec"), "is empty"));
        }
        check_names("mcp", self.mcp.iter().map(ToolChoice::name))?;
        let own = self.tools.iter().map(ToolChoice::name);
        let custom = self.custom_tools.iter().map(|t| t.name.as_str());
        let agents = self.agents.iter().map(|a| a.name.as_str());
        check_names("tools", own.chain(custom).chain(agents))?;
        self.agents
            .iter()
            .enumerate()
            .try_for_each(|(i, a)| a.check(&format!("agents[{i}]"), DEPTH_MAX))
    }
}

impl SubAgentProfile {
    fn check(&self, at: &str, depth: usize) -> Result<(), Rejection> {
        if depth == 0 {
            return Err(field(at, &format!("is deeper than {DEPTH_MAX}")));
        }
        if self.instructions.len() > INSTRUCTIONS_BYTES_MAX {
            let text = format!("has more than {INSTRUCTIONS_BYTES_MAX} bytes");
            return Err(field(&format!("{at}.instructions"), &text));
        }
        if let Some(model) = &self.model {
            model.check(&format!("{at}.model"))?;
        }
        between(&format!("{at}.turns_max"), self.turns_max, 1, TURNS_MAX)?;
        let tools = self.tools.iter().map(String::as_str);
        let agents = self.agents.iter().map(|a| a.name.as_str());
        check_names(&format!("{at}.tools"), tools.chain(agents))?;
        self.agents
            .iter()
            .enumerate()
            .try_for_each(|(i, a)| a.check(&format!("{at}.agents[{i}]"), depth - 1))
    }
}

impl ModelChoice {
    fn check(&self, at: &str) -> Result<(), Rejection> {
        match self {
            Self::Named(name) => {
                let parts = name.split_once('/');
                let fits =
                    parts.is_some_and(|(route, model)| !route.is_empty() && !model.is_empty());
                if !fits || name.len() > 256 || name.chars().any(char::is_control) {
                    return Err(field(at, "is `<route>/<model>`, at most 256 bytes"));
                }
                Ok(())
            }
            Self::Scripted(scripted) => {
                if scripted.route != SCRIPTED {
                    return Err(field(
                        &format!("{at}.route"),
                        "is `scripted`, or a name is given",
                    ));
                }
                if scripted.answers.is_empty() || scripted.answers.len() > ANSWERS_MAX {
                    let text = format!("has 1 to {ANSWERS_MAX} answers");
                    return Err(field(&format!("{at}.answers"), &text));
                }
                if scripted.delay_ms > 3_600_000 {
                    return Err(field(&format!("{at}.delay_ms"), "is at most 3600000"));
                }
                Ok(())
            }
        }
    }
}

fn check_names<'a>(at: &str, names: impl Iterator<Item = &'a str>) -> Result<(), Rejection> {
    let mut seen = BTreeSet::new();
    for name in names {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
            let text = format!("{name:?}: names have 1 to 64 of a-z A-Z 0-9 _ -");
            return Err(field(at, &text));
        }
        if !seen.insert(name) {
            return Err(field(at, &format!("{name:?} is there twice")));
        }
    }
    if seen.len() > LIST_MAX {
        return Err(field(at, &format!("are at most {LIST_MAX}")));
    }
    Ok(())
}

fn between<N: PartialOrd + std::fmt::Display>(
    at: &str,
    value: Option<N>,
    min: N,
    max: N,
) -> Result<(), Rejection> {
    match value {
        Some(n) if n < min || n > max => Err(field(at, &format!("is {min} to {max}"))),
        _ => Ok(()),
    }
}

fn field(name: &str, what: &str) -> Rejection {
    invalid(format!("release.harness.{name} {what}"))
}
