//! Agents that this program brings along, as its runner finds them.
//!
//! Their deployments are of the kind `external` and say nothing but the agent's name: what it is
//! made of is code. So a run of theirs waits for a process that has the agent, and instructions
//! still come from the deployment revision that the session has pinned.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use futures_util::future::{BoxFuture, FutureExt};
use longhaul_actors::dispatch::{RunnerInfo, RunnerTarget, Workspaces};
use longhaul_actors::ids::RunnerId;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::agent::{self, AgentSpec};
use crate::catalog::profile::CheckpointMode;
use crate::runner::harness::EXTERNAL;
use crate::runner::{Attempt, End, Failure, Harness};

/// The agents of this process, by name.
#[derive(Debug, Default)]
pub(crate) struct HostAgents(RwLock<BTreeMap<String, Hosted>>);

#[derive(Debug, Clone)]
struct Hosted {
    spec: Arc<AgentSpec>,
    targets: Vec<RunnerTarget>,
}

impl HostAgents {
    /// Adds one, in the place of an earlier one of this name.
    pub(crate) fn add(&self, name: &str, spec: Arc<AgentSpec>, targets: Vec<RunnerTarget>) {
        let mut agents = self.0.write().unwrap_or_else(PoisonError::into_inner);
        agents.insert(name.to_owned(), Hosted { spec, targets });
    }

    /// Removes it, unless another one has taken its place.
    pub(crate) fn remove(&self, name: &str, spec: &Arc<AgentSpec>) {
        let mut agents = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if agents.get(name).is_some_and(|a| Arc::ptr_eq(&a.spec, spec)) {
            agents.remove(name);
        }
    }

    /// How the built-in runner introduces itself.
    pub(crate) fn info(&self, id: RunnerId, capacity: u32) -> RunnerInfo {
        let agents = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let own = agents.values().flat_map(|a| a.targets.iter().copied());
        RunnerInfo {
            id,
            targets: std::iter::once(RunnerTarget::AnyInternal)
                .chain(own)
                .collect(),
            workspaces: Workspaces::All,
            capacity,
            draining: false,
        }
    }

    fn find(&self, name: &str) -> Option<Arc<AgentSpec>> {
        let agents = self.0.read().unwrap_or_else(PoisonError::into_inner);
        agents.get(name).map(|a| Arc::clone(&a.spec))
    }
}

/// What the deployment of an agent of this name says of its harness.
pub(super) fn profile(name: &str, checkpoint: CheckpointMode) -> Value {
    json!({"kind": EXTERNAL, "config": {"agent": name}, "checkpoint": checkpoint})
}

/// Whether a deployment revision is of an agent of this name.
pub(super) fn is_of(revision: &Value, name: &str) -> bool {
    let harness = revision.pointer("/release/harness");
    let named = harness.and_then(|h| h.pointer("/config/agent"));
    harness.and_then(|h| h.get("kind")) == Some(&json!(EXTERNAL)) && named == Some(&json!(name))
}

/// Runs the agents of this process.
#[derive(Debug)]
pub(crate) struct HostHarness(pub(crate) Arc<HostAgents>);

impl HostHarness {
    /// `None` = the agent was closed since the run was claimed.
    fn spec(&self, attempt: &Attempt) -> Result<Option<AgentSpec>, Failure> {
        let claim = attempt.claim();
        let name = claim.harness().pointer("/config/agent");
        let name = name.and_then(Value::as_str).unwrap_or_default();
        let Some(hosted) = self.0.find(name) else {
            return Ok(None);
        };
        let mut spec = (*hosted).clone();
        let told = claim.deployment.pointer("/release/instructions");
        told.and_then(Value::as_str)
            .unwrap_or_default()
            .clone_into(&mut spec.instructions);
        if let Some(mode) = claim.harness().get("checkpoint") {
            spec.checkpoint = CheckpointMode::deserialize(mode)
                .map_err(|e| Failure::run("agent.profile_invalid", e.to_string()))?;
        }
        Ok(Some(spec))
    }
}

impl Harness for HostHarness {
    fn kind(&self) -> &str {
        EXTERNAL
    }

    fn run<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<End, Failure>> {
        async move {
            match self.spec(attempt)? {
                Some(spec) => agent::run(attempt, &spec).await,
                // It waits until an agent of the name is open.
                None => Ok(End::Release),
            }
        }
        .boxed()
    }
}
