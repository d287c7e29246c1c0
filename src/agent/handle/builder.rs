//! What an agent is, in code.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::env::Door;
use longhaul_actors::session::payload::Budget;
use serde::Deserialize;
use serde_json::{Value, json};

use super::here::Here;
use super::place::Place;
use super::there::{Server, There};
use super::{AgentError, AgentHandle, Parts, deploy, hosted};
use crate::agent::{AgentSpec, AgentTool, Approver, Limits, StopHook, SubAgent};
use crate::catalog::profile::{ApprovalMode, CheckpointMode, SandboxProfile, ScriptedModelProfile};
use crate::config::{Config, ModelsConfig};
use crate::model::scripted::ScriptedModel;
use crate::model::{Model, ModelError, ModelRoutes, Prices, Routes, ToolSpec};
use crate::runtime::Runtime;
use crate::tool::{Tool, built_in};

/// Longest name of a tool.
const TOOL_NAME_LEN_MAX: usize = 64;

/// An agent to be: who answers, what it can do, and how far it may go. Everything but a name and
/// a model has a default.
///
/// It opens in a runtime of the program's ([`Agent::embed`]), in a folder ([`Agent::open`]) or on
/// a server ([`Agent::connect`]), and is the same there.
#[derive(Debug, Clone)]
pub struct Agent {
    name: String,
    instructions: String,
    model: AgentModel,
    prices: Prices,
    tools: Vec<Wanted>,
    stop_hooks: Vec<Arc<dyn StopHook>>,
    approver: Option<Arc<dyn Approver>>,
    limits: Limits,
    checkpoint: CheckpointMode,
    output_schema: Option<Value>,
    sandbox: SandboxProfile,
    budget: Option<Budget>,
}

/// Who answers.
#[derive(Debug, Clone)]
pub enum AgentModel {
    /// `<route>/<model>`, as the settings `models` say (docs/models.md).
    Named(String),
    /// One of the program's own.
    Own(Arc<dyn Model>),
    /// Recorded answers: an array as in docs/models.md.
    Scripted(Value),
}

impl From<&str> for AgentModel {
    fn from(name: &str) -> Self {
        Self::Named(name.to_owned())
    }
}

impl From<String> for AgentModel {
    fn from(name: String) -> Self {
        Self::Named(name)
    }
}

impl From<Arc<dyn Model>> for AgentModel {
    fn from(model: Arc<dyn Model>) -> Self {
        Self::Own(model)
    }
}

impl<M: Model> From<M> for AgentModel {
    fn from(model: M) -> Self {
        Self::Own(Arc::new(model))
    }
}

#[derive(Debug, Clone)]
enum Wanted {
    Tool(AgentTool),
    BuiltIn(String, ApprovalMode),
}

impl Agent {
    /// An agent without instructions and tools. The name is how its sessions find it again: an
    /// agent of the same name goes on with them.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            instructions: String::new(),
            model: AgentModel::Named(String::new()),
            prices: Prices::default(),
            tools: Vec::new(),
            stop_hooks: Vec::new(),
            approver: None,
            limits: Limits::default(),
            checkpoint: CheckpointMode::Settle,
            output_schema: None,
            sandbox: SandboxProfile::default(),
            budget: None,
        }
    }

    /// What it is told to be. Changed ones make a new revision, for new sessions.
    #[must_use]
    pub fn instructions(mut self, instructions: impl Into<String>) -> Self {
        self.instructions = instructions.into();
        self
    }

    /// Who answers: a name (`"anthropic/…"`, `"openai/…"`) or a [`Model`].
    #[must_use]
    pub fn model(mut self, model: impl Into<AgentModel>) -> Self {
        self.model = model.into();
        self
    }

    /// Recorded answers instead of a model, for tests and demonstrations: an array of
    /// `{text?, tool_calls?: [{name, input}], usage?, …}`, one for each model call of a session.
    #[must_use]
    pub fn scripted(self, answers: Value) -> Self {
        self.model(AgentModel::Scripted(answers))
    }

    /// What a call of the model costs, where it does not say so itself.
    #[must_use]
    pub fn prices(mut self, prices: Prices) -> Self {
        self.prices = prices;
        self
    }

    /// Adds a tool of the program's that it may call as it likes.
    #[must_use]
    pub fn tool(self, tool: impl Tool) -> Self {
        self.own(tool, ApprovalMode::Never)
    }

    /// Adds a tool of the program's; somebody is asked before every call.
    #[must_use]
    pub fn tool_with_approval(self, tool: impl Tool) -> Self {
        self.own(tool, ApprovalMode::Ask)
    }

    fn own(mut self, tool: impl Tool, approval: ApprovalMode) -> Self {
        let tool: Arc<dyn Tool> = Arc::new(tool);
        self.tools
            .push(Wanted::Tool(AgentTool::Own { tool, approval }));
        self
    }

    /// Adds one of the tools that come along: `bash`, `read_file`, … (docs/tools.md).
    #[must_use]
    pub fn built_in(mut self, name: impl Into<String>, approval: ApprovalMode) -> Self {
        self.tools.push(Wanted::BuiltIn(name.into(), approval));
        self
    }

    /// Adds a tool that the caller answers, with `user.custom_tool_result`.
    #[must_use]
    pub fn custom_tool(mut self, spec: ToolSpec) -> Self {
        self.tools.push(Wanted::Tool(AgentTool::Custom(spec)));
        self
    }

    /// Adds an agent that it can call like a tool.
    #[must_use]
    pub fn agent(mut self, agent: SubAgent) -> Self {
        let agent = AgentTool::Agent(Arc::new(agent));
        self.tools.push(Wanted::Tool(agent));
        self
    }

    /// Adds a hook that is asked whenever it has nothing left to do.
    #[must_use]
    pub fn stop_hook(mut self, hook: impl StopHook) -> Self {
        self.stop_hooks.push(Arc::new(hook));
        self
    }

    /// Asks here for approvals, instead of parking its runs until people answer.
    #[must_use]
    pub fn approver(mut self, approver: impl Approver) -> Self {
        self.approver = Some(Arc::new(approver));
        self
    }

    /// How far it may go.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// When checkpoints are taken: at the end of each run unless told otherwise.
    #[must_use]
    pub fn checkpoint(mut self, mode: CheckpointMode) -> Self {
        self.checkpoint = mode;
        self
    }

    /// JSON Schema that its answers must fit, where the model can be held to it; for
    /// [`AgentHandle::run_typed`].
    #[must_use]
    pub fn output_schema(mut self, schema: Value) -> Self {
        self.output_schema = Some(schema);
        self
    }

    /// Where its tools work; a folder of each session's own unless told otherwise. Only sandboxes
    /// that give snapshots have checkpoints.
    #[must_use]
    pub fn sandbox(mut self, sandbox: SandboxProfile) -> Self {
        self.sandbox = sandbox;
        self
    }

    /// What each new session may spend.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Opens it in a runtime of the program's, whose built-in runner does the work.
    ///
    /// # Errors
    /// See [`AgentError`].
    pub async fn embed(self, runtime: &Runtime) -> Result<AgentHandle, AgentError> {
        self.in_runtime(runtime.clone(), false).await
    }

    /// Opens it in a folder of its own, which keeps its sessions. One process at a time.
    ///
    /// # Errors
    /// See [`AgentError`].
    pub async fn open(self, folder: impl Into<PathBuf>) -> Result<AgentHandle, AgentError> {
        self.open_with(Config::in_folder(folder)).await
    }

    /// As [`Agent::open`], with settings.
    ///
    /// # Errors
    /// See [`AgentError`].
    pub async fn open_with(self, config: Config) -> Result<AgentHandle, AgentError> {
        let runtime = Runtime::open(config).await?;
        match self.in_runtime(runtime.clone(), true).await {
            Ok(handle) => Ok(handle),
            Err(error) => {
                runtime.close().await;
                Err(error)
            }
        }
    }

    async fn in_runtime(self, runtime: Runtime, owns: bool) -> Result<AgentHandle, AgentError> {
        let spec = self.spec(&runtime.config().models, runtime.door())?;
        let here = Here::new(runtime, owns, &self.name, spec)?;
        let place = Place::Here(Arc::new(here));
        self.finish(place).await
    }

    /// Opens it on a server: sessions live there, its model and tools work here. Needs a tokio
    /// context.
    ///
    /// # Errors
    /// See [`AgentError`].
    pub async fn connect(self, server: Server) -> Result<AgentHandle, AgentError> {
        let spec = self.spec(&server.models, &Door::system())?;
        let place = Place::There(Arc::new(There::new(server, &self.name, spec)?));
        self.finish(place).await
    }

    async fn finish(self, place: Place) -> Result<AgentHandle, AgentError> {
        let wanted = json!({
            "name": self.name,
            "release": {
                "instructions": self.instructions,
                "harness": hosted::profile(&self.name, self.checkpoint),
            },
            "sandbox": self.sandbox,
        });
        let deployed = deploy::deploy(&place, &self.name, &wanted).await?;
        place.serve(&deployed).await?;
        Ok(AgentHandle {
            parts: Arc::new(Parts {
                deployment: deployed.id,
                revision: deployed.revision,
                budget: self.budget,
                place,
            }),
            user: None,
        })
    }

    fn spec(&self, models: &ModelsConfig, door: &Door) -> Result<AgentSpec, AgentError> {
        let model = self.answering(models, door)?;
        let mut spec = AgentSpec::new(&self.instructions, model);
        let mut names = BTreeSet::new();
        for wanted in &self.tools {
            let tool = match wanted {
                Wanted::Tool(tool) => tool.clone(),
                Wanted::BuiltIn(name, approval) => AgentTool::Own {
                    tool: built_in(name)
                        .ok_or_else(|| invalid(format!("there is no built-in tool {name:?}")))?,
                    approval: *approval,
                },
            };
            let name = &tool.spec().name;
            let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
            if name.is_empty() || name.len() > TOOL_NAME_LEN_MAX || !name.bytes().all(fits) {
                let text = format!("{name:?} is no name of a tool: 1 to 64 of a-z A-Z 0-9 _ -");
                return Err(invalid(text));
            }
            if !names.insert(name.clone()) {
                return Err(invalid(format!("there are two tools {name:?}")));
            }
            spec.tools.push(tool);
        }
        spec.prices = self.prices;
        spec.stop_hooks.clone_from(&self.stop_hooks);
        spec.approver.clone_from(&self.approver);
        spec.limits = self.limits.clone();
        spec.checkpoint = self.checkpoint;
        spec.output_schema.clone_from(&self.output_schema);
        Ok(spec)
    }

    fn answering(&self, models: &ModelsConfig, door: &Door) -> Result<Arc<dyn Model>, AgentError> {
        match &self.model {
            AgentModel::Own(model) => Ok(Arc::clone(model)),
            AgentModel::Named(name) if name.is_empty() => {
                let text = format!("the agent {:?} has no model", self.name);
                Err(ModelError::NotConfigured(text).into())
            }
            AgentModel::Named(name) => Ok(Routes::open(models, door.clone())?.model(name)?),
            AgentModel::Scripted(answers) => {
                let profile = json!({"route": "scripted", "answers": answers});
                let profile = ScriptedModelProfile::deserialize(profile)
                    .map_err(|e| invalid(format!("the recorded answers: {e}")))?;
                Ok(Arc::new(ScriptedModel::new(&profile, door.clone())))
            }
        }
    }
}

fn invalid(why: String) -> AgentError {
    Rejection::new(Code::DeploymentInvalid, why).into()
}
