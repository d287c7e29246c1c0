//! The `agent` harness: makes an agent of its profile and runs it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use longhaul_actors::env::Door;
use serde::Deserialize;
use serde_json::json;

use super::{End, Failure, Harness};
use crate::agent::{self, AgentSpec, AgentTool, Approver, ExecHook, Limits, StopHook, SubAgent};
use crate::catalog::profile::{
    AgentProfile, CheckpointMode, CustomTool, ModelChoice, SubAgentProfile,
};
use crate::config::Config;
use crate::model::scripted::ScriptedModel;
use crate::model::{Model, ModelRoutes, NoRoutes, Routes, ToolSpec};
use crate::runner::attempt::Attempt;
use crate::tool::mcp::McpServers;
use crate::tool::{Tool, built_in};

/// The harness of kind `agent`.
#[derive(Debug, Clone)]
pub struct AgentHarness {
    routes: Arc<dyn ModelRoutes>,
    servers: Option<McpServers>,
    tools: BTreeMap<String, Arc<dyn Tool>>,
    approver: Option<Arc<dyn Approver>>,
    hooks: Vec<Arc<dyn StopHook>>,
}

impl Default for AgentHarness {
    /// Recorded models and built-in tools only.
    fn default() -> Self {
        Self::new(Arc::new(NoRoutes))
    }
}

impl AgentHarness {
    /// Finds models here.
    pub fn new(routes: Arc<dyn ModelRoutes>) -> Self {
        Self {
            routes,
            servers: None,
            tools: BTreeMap::new(),
            approver: None,
            hooks: Vec::new(),
        }
    }

    /// As the settings of a runner say: its routes to models, its MCP servers.
    ///
    /// # Errors
    /// What of them does not fit, for people.
    pub fn of(config: &Config, door: &Door) -> Result<Self, String> {
        let routes = Routes::open(&config.models, door.clone()).map_err(|e| e.to_string())?;
        let servers = McpServers::open(&config.mcp, door).map_err(|e| e.to_string())?;
        Ok(Self::new(Arc::new(routes)).servers(servers))
    }

    /// Has the tools of these servers.
    #[must_use]
    pub fn servers(mut self, servers: McpServers) -> Self {
        self.servers = Some(servers);
        self
    }

    /// Adds a tool that profiles may name; it goes before a built-in one of the same name.
    #[must_use]
    pub fn tool(mut self, tool: Arc<dyn Tool>) -> Self {
        self.tools.insert(tool.spec().name.clone(), tool);
        self
    }

    /// Asks here instead of parking runs until people answer.
    #[must_use]
    pub fn approver(mut self, approver: Arc<dyn Approver>) -> Self {
        self.approver = Some(approver);
        self
    }

    /// Adds a stop hook, asked after those of the profile.
    #[must_use]
    pub fn stop_hook(mut self, hook: Arc<dyn StopHook>) -> Self {
        self.hooks.push(hook);
        self
    }

    /// The agent of an attempt.
    async fn spec(&self, attempt: &Attempt) -> Result<AgentSpec, Failure> {
        let mut fields = attempt.claim().harness().clone();
        if let Some(fields) = fields.as_object_mut() {
            fields.remove("kind");
        }
        let profile = AgentProfile::deserialize(&fields)
            .map_err(|e| Failure::run("agent.profile_invalid", e.to_string()))?;
        let instructions = attempt.claim().deployment.pointer("/release/instructions");
        let instructions = instructions.and_then(|i| i.as_str()).unwrap_or_default();
        let model = self.model(attempt, &profile.model)?;
        let mut spec = AgentSpec::new(instructions, Arc::clone(&model));
        for choice in &profile.tools {
            spec = spec.tool_with(self.find(choice.name())?, choice.approval());
        }
        for server in &profile.mcp {
            for tool in self.server_tools(server.name()).await? {
                spec = spec.tool_with(tool, server.approval());
            }
        }
        let custom = profile.custom_tools.iter().map(custom_tool);
        spec.tools.extend(custom.map(AgentTool::Custom));
        let limits = limits(attempt, &profile);
        for sub in &profile.agents {
            spec = spec.agent(self.sub_agent(attempt, &model, &limits, sub)?);
        }
        let exec = profile.stop_hooks.iter().map(|hook| {
            let command = hook.exec.clone();
            Arc::new(ExecHook { command }) as Arc<dyn StopHook>
        });
        spec.stop_hooks = exec.chain(self.hooks.iter().cloned()).collect();
        spec.prices = profile.prices.unwrap_or_default();
        spec.approver.clone_from(&self.approver);
        spec.limits = limits;
        spec.checkpoint = profile.checkpoint.unwrap_or(CheckpointMode::Settle);
        spec.output_schema = profile.output_schema;
        Ok(spec)
    }

    fn model(&self, attempt: &Attempt, choice: &ModelChoice) -> Result<Arc<dyn Model>, Failure> {
        match choice {
            ModelChoice::Named(name) => self
                .routes
                .model(name)
                .map_err(|e| Failure::run(e.code(), e.to_string())),
            ModelChoice::Scripted(scripted) => Ok(Arc::new(ScriptedModel::new(
                scripted,
                attempt.door().clone(),
            ))),
        }
    }

    async fn server_tools(&self, name: &str) -> Result<Vec<Arc<dyn Tool>>, Failure> {
        let Some(servers) = &self.servers else {
            let text = format!("this runner has no MCP server {name:?}");
            return Err(Failure::run("mcp.not_configured", text));
        };
        let tools = servers.tools(&[name.to_owned()]).await;
        tools.map_err(|e| Failure::run(e.code(), e.to_string()))
    }

    fn find(&self, name: &str) -> Result<Arc<dyn Tool>, Failure> {
        let own = self.tools.get(name).cloned();
        own.or_else(|| built_in(name)).ok_or_else(|| {
            let text = format!("this runner has no tool {name:?}");
            Failure::run("agent.tool_unknown", text)
        })
    }

    fn sub_agent(
        &self,
        attempt: &Attempt,
        callers_model: &Arc<dyn Model>,
        callers_limits: &Limits,
        profile: &SubAgentProfile,
    ) -> Result<SubAgent, Failure> {
        let model = match &profile.model {
            Some(choice) => self.model(attempt, choice)?,
            None => Arc::clone(callers_model),
        };
        let mut spec = AgentSpec::new(&profile.instructions, Arc::clone(&model));
        for name in &profile.tools {
            spec = spec.tool(self.find(name)?);
        }
        spec.limits = Limits {
            turns_max: profile.turns_max.unwrap_or(Limits::default().turns_max),
            compact_at_tokens: None,
            ..callers_limits.clone()
        };
        for sub in &profile.agents {
            spec = spec.agent(self.sub_agent(attempt, &model, callers_limits, sub)?);
        }
        Ok(SubAgent::new(&profile.name, &profile.description, spec))
    }
}

fn custom_tool(tool: &CustomTool) -> ToolSpec {
    let any = || json!({"type": "object"});
    ToolSpec {
        name: tool.name.clone(),
        description: tool.description.clone(),
        input_schema: tool.input_schema.clone().unwrap_or_else(any),
    }
}

fn limits(attempt: &Attempt, profile: &AgentProfile) -> Limits {
    let usual = Limits::default();
    Limits {
        turns_max: profile.turns_max.unwrap_or(usual.turns_max),
        passes_max: profile.passes_max.unwrap_or(usual.passes_max),
        calls_parallel_max: usual.calls_parallel_max,
        tool_time_max: profile
            .tool_s_max
            .map_or(usual.tool_time_max, Duration::from_secs),
        output_bytes_max: attempt.config().output_bytes_max,
        output_tokens_max: profile.output_tokens_max,
        compact_at_tokens: profile.compact_at_tokens,
    }
}

impl Harness for AgentHarness {
    fn kind(&self) -> &str {
        "agent"
    }

    fn run<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<End, Failure>> {
        async move {
            let spec = self.spec(attempt).await?;
            agent::run(attempt, &spec).await
        }
        .boxed()
    }
}
