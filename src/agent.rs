//! Agents: a model in a loop with tools, every step of it in the run's journal.
//!
//! ```text
//!        ┌────────────────────────────── messages that arrived meanwhile ◀── inputs
//!        ▼
//!  ask the model ──▶ tool calls? ── yes ──▶ ask people, where told to ──▶ run them ──┐
//!        ▲                 │ no                                                      │
//!        │                 ▼                                                         │
//!        ├── go on ◀── stop hooks ── fine ──▶ the run settles                        │
//!        └───────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The loop is driven by the log. What was said and done is read from it when an attempt starts,
//! so nothing is said or done again: a model's answer is written with its cost in one commit, a
//! tool's result with the end of its step in another.
#![doc = include_str!("../docs/agents.md")]

mod answer;
mod approvals;
mod compact;
mod drive;
pub(crate) mod handle;
mod hooks;
mod past;
mod redo;
mod sub;
mod talk;
mod tools;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use crate::catalog::profile::CheckpointMode;
use crate::model::{Model, Prices, ToolSpec};
use crate::runner::{Attempt, End, Failure, Sandbox};
use crate::tool::Tool;

pub use crate::catalog::profile::ApprovalMode;
pub use handle::{
    Agent, AgentError, AgentEvent, AgentHandle, AgentModel, Answer, CHECKPOINTS_LIMIT, Outcome,
    Resume, Server, Turn, Typed,
};
pub use hooks::ExecHook;

/// Calls of one answer that are made; the others are left out.
pub const CALLS_MAX: usize = 32;

/// An agent: who answers, what it can do, and how far it may go.
#[derive(Debug, Clone)]
pub struct AgentSpec {
    /// What it is told to be.
    pub instructions: String,
    /// Who answers.
    pub model: Arc<dyn Model>,
    /// What a call costs, where the model does not say so itself.
    pub prices: Prices,
    /// What it can do, in the order in which the model sees it.
    pub tools: Vec<AgentTool>,
    /// Asked, in order, whenever it has nothing left to do.
    pub stop_hooks: Vec<Arc<dyn StopHook>>,
    /// Asked instead of people; `None` = the run is parked until people answer.
    pub approver: Option<Arc<dyn Approver>>,
    /// How far it may go.
    pub limits: Limits,
    /// When checkpoints are taken.
    pub checkpoint: CheckpointMode,
    /// JSON Schema that answers must fit, where the model can be held to it.
    pub output_schema: Option<Value>,
}

impl AgentSpec {
    /// An agent without tools.
    pub fn new(instructions: impl Into<String>, model: Arc<dyn Model>) -> Self {
        Self {
            instructions: instructions.into(),
            model,
            prices: Prices::default(),
            tools: Vec::new(),
            stop_hooks: Vec::new(),
            approver: None,
            limits: Limits::default(),
            checkpoint: CheckpointMode::Settle,
            output_schema: None,
        }
    }

    /// Adds a tool that it may call as it likes.
    #[must_use]
    pub fn tool(self, tool: Arc<dyn Tool>) -> Self {
        self.tool_with(tool, ApprovalMode::Never)
    }

    /// Adds a tool.
    #[must_use]
    pub fn tool_with(mut self, tool: Arc<dyn Tool>, approval: ApprovalMode) -> Self {
        self.tools.push(AgentTool::Own { tool, approval });
        self
    }

    /// Adds an agent that it can call like a tool.
    #[must_use]
    pub fn agent(mut self, agent: SubAgent) -> Self {
        self.tools.push(AgentTool::Agent(Arc::new(agent)));
        self
    }

    /// The tool of this name.
    fn find(&self, name: &str) -> Option<&AgentTool> {
        self.tools.iter().find(|t| t.spec().name == name)
    }
}

/// One thing that an agent can do.
#[derive(Debug, Clone)]
pub enum AgentTool {
    /// Code of this process.
    Own {
        /// The tool.
        tool: Arc<dyn Tool>,
        /// Whether people are asked first.
        approval: ApprovalMode,
    },
    /// The caller answers, with `user.custom_tool_result`.
    Custom(ToolSpec),
    /// Another agent.
    Agent(Arc<SubAgent>),
}

impl AgentTool {
    /// How a model sees it.
    pub fn spec(&self) -> &ToolSpec {
        match self {
            Self::Own { tool, .. } => tool.spec(),
            Self::Custom(spec) => spec,
            Self::Agent(agent) => &agent.spec,
        }
    }

    fn revision(&self) -> &str {
        match self {
            Self::Own { tool, .. } => tool.revision(),
            Self::Custom(_) | Self::Agent(_) => "1",
        }
    }

    fn approval(&self) -> ApprovalMode {
        match self {
            Self::Own { approval, .. } => *approval,
            Self::Custom(_) | Self::Agent(_) => ApprovalMode::Never,
        }
    }
}

/// An agent that another one calls like a tool, with `{"prompt": …}`. It starts anew with each
/// call; its conversation is not in the session's log, its steps are in the journal, its usage is
/// the session's. It asks nobody, has no stop hooks and takes no checkpoints.
#[derive(Debug, Clone)]
pub struct SubAgent {
    spec: ToolSpec,
    agent: AgentSpec,
}

impl SubAgent {
    /// An agent under a name.
    pub fn new(name: impl Into<String>, description: impl Into<String>, agent: AgentSpec) -> Self {
        let input_schema = json!({
            "type": "object",
            "properties": {"prompt": {"type": "string"}},
            "required": ["prompt"],
        });
        Self {
            spec: ToolSpec {
                name: name.into(),
                description: description.into(),
                input_schema,
            },
            agent,
        }
    }
}

/// How far an agent may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Model calls of one invocation: a run and what goes on from it while it is parked. The run
    /// fails with `agent.turns_exhausted` after them.
    pub turns_max: u32,
    /// Passes of one invocation: how often stop hooks are asked. The run fails with
    /// `agent.passes_exhausted` when the last one is not content.
    pub passes_max: u32,
    /// Tool calls at the same time.
    pub calls_parallel_max: usize,
    /// Longest time of one tool call.
    pub tool_time_max: Duration,
    /// Bytes of a tool's output that the model is told.
    pub output_bytes_max: usize,
    /// Most tokens of one answer; `None` = the model's own limit.
    pub output_tokens_max: Option<u32>,
    /// When an answer's input had more tokens, the conversation is summed up before the next
    /// one; `None` = never.
    pub compact_at_tokens: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            turns_max: 100,
            passes_max: 5,
            calls_parallel_max: 8,
            tool_time_max: Duration::from_secs(300),
            output_bytes_max: 128 << 10,
            output_tokens_max: None,
            compact_at_tokens: None,
        }
    }
}

/// Answers approvals in the process itself, for agents that a program embeds.
pub trait Approver: Send + Sync + Debug + 'static {
    /// Whether a call may be made. An `Err` denies it, with that reason.
    ///
    /// May be asked again when the process died before the answer was on disk.
    fn approve<'a>(&'a self, ask: ApprovalAsk<'a>) -> BoxFuture<'a, Result<Approval, String>>;
}

/// What is to be approved.
#[derive(Debug, Clone, Copy)]
pub struct ApprovalAsk<'a> {
    /// The session.
    pub session_id: &'a str,
    /// The id of the `agent.tool_use`.
    pub tool_use_id: &'a str,
    /// The tool.
    pub tool: &'a str,
    /// Its arguments.
    pub input: &'a Value,
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Approval {
    /// The call is made.
    Granted {
        /// With these arguments instead.
        edited_input: Option<Value>,
    },
    /// It is not; the model is told why.
    Denied {
        /// Why.
        reason: String,
    },
}

/// Asked when an agent has nothing left to do.
pub trait StopHook: Send + Sync + Debug + 'static {
    /// `None` = it may stop. Otherwise it is told this, and begins another pass.
    ///
    /// May be asked again when the process died before its answer was on disk.
    ///
    /// # Errors
    /// Why it cannot tell; the run fails with `agent.hook_failed`.
    fn check<'a>(&'a self, said: StopInput<'a>) -> BoxFuture<'a, Result<Option<String>, String>>;
}

/// What a stop hook sees.
#[derive(Debug, Clone, Copy)]
pub struct StopInput<'a> {
    /// Where the agent's files are.
    pub sandbox: &'a dyn Sandbox,
    /// The pass that ends, from 1.
    pub pass: u32,
}

/// Runs an agent for one attempt, from [`Attempt::ready`] to its end.
///
/// # Errors
/// See [`Failure`]: the codes are in `docs/agents.md`.
pub async fn run(attempt: &Attempt, spec: &AgentSpec) -> Result<End, Failure> {
    drive::run(attempt, spec).await
}
