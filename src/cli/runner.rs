//! `longhaul runner`.

use std::sync::Arc;

use longhaul_actors::env::Door;
use serde_json::json;

use super::args::RunnerArgs;
use super::exit::{CliError, Exit};
use super::output::Output;
use super::serve::stop_signal;
use crate::config::Config;
use crate::runner::harness::agent::AgentHarness;
use crate::runner::remote::{self, RemoteConfig, RemoteError};
use crate::runner::{Registry, RunnerConfig};
use crate::telemetry;

/// Works for the server until it is told to stop.
pub(crate) async fn run(args: RunnerArgs, out: Output) -> Result<(), CliError> {
    telemetry::init_logs(out.is_json());
    let runner = RunnerConfig {
        capacity: args.capacity,
        ..RunnerConfig::default()
    };
    let config = RemoteConfig {
        server: args.at.server.clone(),
        token: args.at.token,
        workspace: args.at.workspace,
        name: args.name,
        deployments: args.deployments,
        data_dir: args.data,
        runner,
    };
    let stop = stop_signal()?;
    let shown = format!("working for {}", args.at.server);
    // Nobody may be reading; the runner works all the same.
    let _ = out.result(shown, &json!({ "server": args.at.server }));
    let mut registry = Registry::built_in();
    let agents = AgentHarness::of(&Config::default(), &Door::system()).map_err(CliError::usage)?;
    registry.add_harness(Arc::new(agents));
    Ok(remote::run(config, registry, Door::system(), stop).await?)
}

impl From<RemoteError> for CliError {
    fn from(e: RemoteError) -> Self {
        match e {
            RemoteError::Config(detail) => Self::usage(detail),
            RemoteError::Sandbox(e) => Self::new(
                Exit::Failed,
                "runner.sandbox",
                e.to_string(),
                "Check --data, and whether bubblewrap works here.",
            ),
            RemoteError::Refused(e) => Self::new(
                Exit::NotAllowed,
                "runner.refused",
                e.to_string(),
                "Check the token, its scopes and the workspace.",
            ),
        }
    }
}
