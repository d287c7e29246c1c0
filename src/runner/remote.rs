//! `longhaul runner`: the same runner, for a server elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longhaul_actors::env::Door;
use serde_json::Value;

use super::harness::EXTERNAL;
use super::http::{HttpApi, Introduction};
use super::protocol::ApiError;
use super::sandbox::dir::{DirError, DirProvider};
use super::settings::RunnerConfig;
use super::worker::{Registry, Worker};
use crate::snapshots::local::LocalSnapshots;

/// How often new deployments are looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// How often snapshots whose time is over are removed.
const SWEEP: Duration = Duration::from_secs(24 * 60 * 60);
/// Most targets of one enrolment (that of the server).
const TARGETS_MAX: usize = 1_000;

/// What `longhaul runner` is told.
#[derive(Debug, Clone)]
pub struct RemoteConfig {
    /// `http://host:port` of the server.
    pub server: String,
    /// A token with the scopes `read` and `run`, where the server has tokens.
    pub token: Option<String>,
    /// The workspace whose deployments are served, where it has none; absent = `default`.
    pub workspace: Option<String>,
    /// For people.
    pub name: String,
    /// Deployments to serve, with all their revisions; empty = all of the workspace.
    pub deployments: Vec<String>,
    /// Where sandboxes are made.
    pub data_dir: PathBuf,
    /// Everything else.
    pub runner: RunnerConfig,
}

/// Why a runner does not start.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// A setting is wrong.
    #[error("{0}")]
    Config(String),
    /// The sandboxes cannot be made.
    #[error(transparent)]
    Sandbox(#[from] DirError),
    /// The server refuses this runner.
    #[error("the server refuses this runner: {0}")]
    Refused(ApiError),
}

/// Works for the server until `stop` resolves; then gives every attempt back. An unreachable
/// server is tried again for ever, with growing pauses.
///
/// # Errors
/// See [`RemoteError`]; nothing is left running.
pub async fn run(
    config: RemoteConfig,
    mut registry: Registry,
    door: Door,
    stop: impl Future<Output = ()>,
) -> Result<(), RemoteError> {
    config
        .runner
        .check()
        .map_err(|(key, reason)| RemoteError::Config(format!("{key} {reason}")))?;
    let introduction = Introduction {
        name: config.name.clone(),
        host_id: host_id(),
        capacity: config.runner.capacity,
        snapshot_clone: true,
    };
    let api = HttpApi::new(
        &config.server,
        config.token.clone(),
        config.workspace.clone(),
        introduction,
    );
    let api = api.map_err(RemoteError::Config)?;
    let sandboxes = config.data_dir.join("sandboxes");
    // It takes the lock that keeps another runner away from the whole folder.
    let provider = DirProvider::open(sandboxes, config.runner.clone(), door.clone()).await?;
    let api = Arc::new(api.remembered_in(config.data_dir.join("runner.json")));
    let snapshots = open_snapshots(&config, &door).await?;
    registry.add_provider(Arc::new(provider.with_snapshots(snapshots.clone())));
    let sweeping = AbortOnDrop(tokio::spawn(sweep(snapshots, door.clone())));
    let mut catalog = Catalog {
        kinds: registry.clone(),
        deployments: config.deployments,
        known: BTreeMap::new(),
    };

    tokio::pin!(stop);
    let targets = tokio::select! {
        () = &mut stop => return Ok(()),
        targets = enrol(&api, &mut catalog, &door) => targets?,
    };
    tracing::info!(server = %config.server, targets = targets.len(), "the runner is enrolled");
    let worker = Worker::start(api.clone(), registry, config.runner, door.clone());
    tokio::select! {
        () = &mut stop => {}
        () = follow_deployments(&api, &mut catalog, &door, targets) => {}
    }
    drop(sweeping);
    worker.stop().await;
    Ok(())
}

/// Ends a task with its owner.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn open_snapshots(
    config: &RemoteConfig,
    door: &Door,
) -> Result<Arc<LocalSnapshots>, RemoteError> {
    let (folder, door) = (config.data_dir.join("snapshots"), door.clone());
    let opened = tokio::task::spawn_blocking(move || LocalSnapshots::open(&folder, door)).await;
    let opened = opened.map_err(|e| RemoteError::Config(e.to_string()))?;
    let opened = opened.map_err(|e| RemoteError::Config(format!("snapshots: {e}")))?;
    Ok(Arc::new(opened))
}

/// Removes snapshots whose time is over, now and every day.
async fn sweep(snapshots: Arc<LocalSnapshots>, door: Door) {
    loop {
        let store = Arc::clone(&snapshots);
        match tokio::task::spawn_blocking(move || store.sweep()).await {
            Ok(Ok(0)) => {}
            Ok(Ok(removed)) => tracing::info!(removed, "removed snapshots whose time was over"),
            Ok(Err(why)) => tracing::warn!(%why, "old snapshots stay for now"),
            Err(error) => tracing::warn!(%error, "old snapshots stay for now"),
        }
        door.clock.sleep_until(door.clock.mono() + SWEEP).await;
    }
}

/// Finds what to serve, and enrols for it. Waits for a first deployment.
async fn enrol(
    api: &HttpApi,
    catalog: &mut Catalog,
    door: &Door,
) -> Result<BTreeSet<String>, RemoteError> {
    let mut pause = RETRY_MIN;
    loop {
        let tried = async {
            let targets = catalog.targets(api).await?;
            if targets.is_empty() {
                return Ok(None);
            }
            api.enrol_with(targets.iter().cloned().collect()).await?;
            Ok(Some(targets))
        };
        match tried.await {
            Ok(Some(targets)) => return Ok(targets),
            Ok(None) => tracing::info!("there is no deployment to serve yet"),
            Err(e @ ApiError::Refused(_)) if !e.is_transient() => {
                return Err(RemoteError::Refused(e));
            }
            Err(error) => tracing::warn!(%error, "cannot enrol; trying again"),
        }
        door.clock.sleep_until(door.clock.mono() + pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

/// Enrols anew whenever there are other targets.
async fn follow_deployments(
    api: &HttpApi,
    catalog: &mut Catalog,
    door: &Door,
    mut served: BTreeSet<String>,
) {
    loop {
        door.clock.sleep_until(door.clock.mono() + LOOK_AGAIN).await;
        let looked = async {
            let targets = catalog.targets(api).await?;
            if targets != served && !targets.is_empty() {
                api.enrol_with(targets.iter().cloned().collect()).await?;
                served = targets;
            }
            Ok::<_, ApiError>(())
        };
        if let Err(error) = looked.await {
            tracing::debug!(%error, "the deployments could not be read");
        }
    }
}

/// The deployment revisions that this runner can serve.
struct Catalog {
    kinds: Registry,
    /// The wanted ones; empty = all.
    deployments: Vec<String>,
    /// Revisions never change: each is read once. Its target, if it can be served here.
    known: BTreeMap<(String, u64), Option<String>>,
}

impl Catalog {
    async fn targets(&mut self, api: &HttpApi) -> Result<BTreeSet<String>, ApiError> {
        let deployments = if self.deployments.is_empty() {
            list(api, &["v1", "deployments"], "deployments").await?
        } else {
            self.deployments
                .iter()
                .map(|id| serde_json::json!({"id": id}))
                .collect()
        };
        let mut targets = BTreeSet::new();
        for id in deployments.iter().filter_map(|d| d.get("id")?.as_str()) {
            let path = ["v1", "deployments", id, "revisions"];
            for revision in list(api, &path, "revisions").await? {
                let Some(number) = revision.get("revision").and_then(Value::as_u64) else {
                    continue;
                };
                if let Some(target) = self.target(api, id, number).await? {
                    targets.insert(target);
                }
                if targets.len() == TARGETS_MAX {
                    tracing::warn!(
                        "there are more deployments than one runner can serve; name some"
                    );
                    return Ok(targets);
                }
            }
        }
        Ok(targets)
    }

    async fn target(
        &mut self,
        api: &HttpApi,
        id: &str,
        number: u64,
    ) -> Result<Option<String>, ApiError> {
        let key = (id.to_owned(), number);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let path = ["v1", "deployments", id, "revisions", &number.to_string()];
        let revision = api.get(&path, &[]).await?;
        let text = |pointer: &str| revision.pointer(pointer).and_then(Value::as_str);
        let kind = text("/release/harness/kind").unwrap_or(EXTERNAL);
        let provider = text("/sandbox/provider").unwrap_or_default();
        let ours = self.kinds.harness(kind).is_some() && self.kinds.provider(provider).is_some();
        let target = match (text("/harness_revision"), text("/sandbox_profile_revision")) {
            (Some(harness), Some(sandbox)) if ours => Some(format!("{harness}/{sandbox}")),
            _ => None,
        };
        self.known.insert(key, target.clone());
        Ok(target)
    }
}

/// All lines of a paged list, up to the most that could be served.
async fn list(api: &HttpApi, path: &[&str], items: &str) -> Result<Vec<Value>, ApiError> {
    let mut all = Vec::new();
    let mut query = Vec::new();
    while all.len() <= TARGETS_MAX {
        let mut page = api.get(path, &query).await?;
        if let Some(Value::Array(lines)) = page.get_mut(items).map(Value::take) {
            all.extend(lines);
        }
        match page.get("next_page").and_then(Value::as_str) {
            Some(next) => query = vec![("page", next.to_owned())],
            None => break,
        }
    }
    Ok(all)
}

/// A name of this machine: its host name.
fn host_id() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() {
        "unknown".to_owned()
    } else {
        name.to_owned()
    }
}
