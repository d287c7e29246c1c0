//! The runtime: one log, one engine, one catalog and, unless told otherwise, one runner.

mod claims;
mod control;
mod forks;
mod prune;
mod resume;
mod sessions;

use std::sync::{Arc, Mutex, PoisonError};

use longhaul_actors::engine::Engine;
use longhaul_actors::env::Door;
use longhaul_actors::ids::SessionId;
use longhaul_actors::session::payload::WorkspaceRef;
use longhaul_storage::{Log, MemoryLog, RocksLog};
use tokio::sync::watch;

use crate::auth::{Caller, Gate, Tokens};
use crate::catalog::Catalog;
use crate::catalog::deployments::NewDeployment;
use crate::catalog::profile::Kinds;
use crate::catalog::store::off_thread;
use crate::config::{Config, StorageEngine};
use crate::error::{Error, OpenError};
use crate::handle::{Deployment, NewSession, SessionHandle};
use crate::runner::{self, Extensions};
use crate::snapshots::{Snapshots, SnapshotsHandle};
use crate::telemetry;

pub(crate) use claims::info;
pub use claims::{VERBS, claims_body};
pub(crate) use control::Control;
pub use control::{FILE_BYTES_MAX, Named, OPERATION_S_MAX, Used};
pub use forks::{Diff, DiffQuery, DiffSide, ForkSession};
pub use longhaul_actors::engine::{PrunePlace, PruneQuery, Pruned, UsageQuery};
pub use resume::{NUDGE, ResumeSession};
pub use sessions::{Asked, CreateSession, Submission, receipt_key};

/// A running system, as a handle: cheap to clone, usable from any thread and any executor.
///
/// [`Runtime::close`] stops it in order. When the last handle is dropped without that, it stops
/// by itself in the background; dropping never blocks.
#[derive(Clone)]
pub struct Runtime {
    parts: Arc<Parts>,
    /// `None` in the handles that the runtime's own parts hold, so that they keep nothing alive.
    _owner: Option<Arc<Owner>>,
}

struct Parts {
    config: Config,
    door: Door,
    log: Arc<dyn Log>,
    engine: Engine,
    catalog: Catalog,
    gate: Gate,
    snapshots: Arc<Snapshots>,
    /// Holds the snapshots of a log in memory.
    _temporary: Option<tempfile::TempDir>,
    stopping: watch::Sender<bool>,
    runner: Mutex<Option<runner::builtin::BuiltIn>>,
}

/// Tells the parts to stop when the last owner is gone.
struct Owner(watch::Sender<bool>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

/// What a host adds when it opens a runtime.
#[derive(Default)]
pub struct Builder {
    config: Config,
    extensions: Extensions,
    door: Option<Door>,
    log: Option<Arc<dyn Log>>,
}

impl Builder {
    /// Harnesses and sandbox providers of the host's own.
    #[must_use]
    pub fn extensions(mut self, extensions: Extensions) -> Self {
        self.extensions = extensions;
        self
    }

    /// Another source of time and ids (for tests).
    #[must_use]
    pub fn door(mut self, door: Door) -> Self {
        self.door = Some(door);
        self
    }

    /// Another log than the configured one (for tests).
    #[must_use]
    pub fn log(mut self, log: Arc<dyn Log>) -> Self {
        self.log = Some(log);
        self
    }

    /// Opens it.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing is left running.
    pub async fn open(self) -> Result<Runtime, OpenError> {
        let Self {
            config,
            extensions,
            door,
            log,
        } = self;
        config.check()?;
        // Metrics made before there is a recorder would count for nobody.
        let _ = telemetry::metrics();
        let gate = match &config.auth.tokens_file {
            Some(path) => Gate::Tokens(Arc::new(Tokens::open(path)?)),
            None => Gate::Open,
        };
        let log = match log {
            Some(log) => log,
            None => open_log(&config).await?,
        };
        let door = door.unwrap_or_else(Door::system);
        let (snapshots, temporary) = match open_snapshots(&config, &log, &door).await {
            Ok(both) => both,
            Err(reason) => {
                off_thread(move || log.close()).await;
                return Err(OpenError::Snapshots(reason));
            }
        };
        let bytes = Arc::new(SnapshotsHandle(Arc::clone(&snapshots)));
        let started = Engine::start_with(Arc::clone(&log), door.clone(), config.engine(), bytes);
        let engine = match started {
            Ok(engine) => engine,
            Err(refused) => {
                off_thread(move || log.close()).await;
                return Err(refused.into());
            }
        };
        let kinds = Kinds {
            harnesses: extensions.harness_kinds(),
            providers: extensions.provider_kinds(),
        };
        let reads_max = config.engine.blocking_threads_max;
        let catalog = Catalog::new(Arc::clone(&log), door.clone(), kinds, reads_max);
        let stopping = watch::Sender::new(false);
        let owner = Arc::new(Owner(stopping.clone()));
        let runner = Mutex::new(None);
        let parts = Parts {
            config,
            door,
            log,
            engine,
            catalog,
            gate,
            snapshots,
            _temporary: temporary,
            stopping,
            runner,
        };
        let runtime = Runtime {
            parts: Arc::new(parts),
            _owner: Some(owner),
        };
        if runtime.config().runner.enabled
            && let Err(reason) = runtime.start_runner(extensions).await
        {
            runtime.close().await;
            return Err(reason);
        }
        Ok(runtime)
    }
}

async fn open_log(config: &Config) -> Result<Arc<dyn Log>, OpenError> {
    let storage = config.storage.clone();
    if storage.engine == StorageEngine::Memory {
        return Ok(MemoryLog::new());
    }
    let opened = off_thread(move || RocksLog::open(&storage.data_dir, storage.options())).await;
    let log: Arc<RocksLog> = opened.ok_or(OpenError::Died)??;
    Ok(log)
}

/// Snapshots of a log in memory are in a temporary folder.
async fn open_snapshots(
    config: &Config,
    log: &Arc<dyn Log>,
    door: &Door,
) -> Result<(Arc<Snapshots>, Option<tempfile::TempDir>), String> {
    let temporary = match config.storage.engine {
        StorageEngine::Memory => {
            let made = tempfile::Builder::new()
                .prefix("longhaul-snapshots-")
                .tempdir();
            Some(made.map_err(|e| e.to_string())?)
        }
        StorageEngine::Rocksdb => None,
    };
    let folder = temporary
        .as_ref()
        .map_or_else(|| config.snapshot_dir(), |t| t.path().to_owned());
    let (log, door) = (Arc::clone(log), door.clone());
    let opened = off_thread(move || Snapshots::open(&folder, log, door)).await;
    let snapshots = opened.ok_or("the opening thread died")??;
    Ok((Arc::new(snapshots), temporary))
}

impl Runtime {
    /// Opens a runtime. Needs no particular executor.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing is left running.
    pub async fn open(config: Config) -> Result<Self, OpenError> {
        Self::builder(config).open().await
    }

    /// Opens a runtime with parts of the host's own.
    pub fn builder(config: Config) -> Builder {
        Builder {
            config,
            ..Builder::default()
        }
    }

    /// Stops in order: no new work, the runner gives its claims back, commands in progress are
    /// answered, everything is on disk, the data folder is free again.
    pub async fn close(self) {
        self.stop();
        let runner = self
            .parts
            .runner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(runner) = runner {
            runner.stop().await;
        }
        self.parts.engine.close().await;
        let log = Arc::clone(&self.parts.log);
        off_thread(move || log.close()).await;
    }

    /// Tells open streams and polls to end; new ones end at once. [`Runtime::close`] follows.
    pub fn stop(&self) {
        self.parts.stopping.send_replace(true);
    }

    /// Resolves when the runtime is being stopped.
    pub async fn stopping(&self) {
        let mut stopping = self.parts.stopping.subscribe();
        // The sender lives in `parts`, so this ends with the flag.
        let _ = stopping.wait_for(|stop| *stop).await;
    }

    /// The store of `dir` sandboxes' snapshots.
    pub(crate) fn snapshots(&self) -> &Arc<Snapshots> {
        &self.parts.snapshots
    }

    pub(crate) fn stop_signal(&self) -> watch::Receiver<bool> {
        self.parts.stopping.subscribe()
    }

    /// What operations need of the built-in runner, if there is one.
    pub(crate) fn control(&self) -> Option<Control> {
        let runner = self
            .parts
            .runner
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        runner.as_ref().map(|r| r.control().clone())
    }

    /// Has the built-in runner ask for the runs of its agents too.
    pub(crate) async fn serve_agents(&self, control: &Control) -> Result<(), Error> {
        let capacity = self.config().runner.capacity;
        let info = control.agents.info(control.runner, capacity);
        self.engine().enrol(info).await
    }

    /// A handle of the runtime's own, which keeps nothing alive.
    pub(crate) fn inner_handle(&self) -> Self {
        Self {
            parts: Arc::clone(&self.parts),
            _owner: None,
        }
    }

    async fn start_runner(&self, extensions: Extensions) -> Result<(), OpenError> {
        let inner = self.inner_handle();
        let config = self.config().clone();
        let started = runner::builtin::start(inner, &config, extensions).await;
        let runner = started.map_err(OpenError::Runner)?;
        *self
            .parts
            .runner
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(runner);
        Ok(())
    }

    /// The settings it runs with.
    pub fn config(&self) -> &Config {
        &self.parts.config
    }

    /// Its clocks and ids.
    pub fn door(&self) -> &Door {
        &self.parts.door
    }

    /// The actors.
    pub fn engine(&self) -> &Engine {
        &self.parts.engine
    }

    /// Deployments, workspaces, runners.
    pub fn catalog(&self) -> &Catalog {
        &self.parts.catalog
    }

    /// How HTTP requests are let in.
    pub fn gate(&self) -> &Gate {
        &self.parts.gate
    }

    /// Makes a deployment with its first revision, in the default workspace.
    ///
    /// # Errors
    /// `deployment.invalid`, and those of a write.
    pub async fn deploy(&self, new: &NewDeployment) -> Result<Deployment, Error> {
        let stored = self
            .catalog()
            .create_deployment(WorkspaceRef::DEFAULT, "dev", new, None)
            .await?;
        crate::handle::read_answer(&stored.body)
    }

    /// Starts a session in the default workspace, as `dev`.
    ///
    /// # Errors
    /// `deployment.not_found`, and those of a write.
    pub async fn start(&self, new: NewSession) -> Result<SessionHandle, Error> {
        self.start_as(Arc::new(Caller::dev(WorkspaceRef::DEFAULT)), new)
            .await
    }

    /// Starts a session for a caller of the host's choice.
    ///
    /// # Errors
    /// As [`Runtime::start`].
    pub async fn start_as(
        &self,
        caller: Arc<Caller>,
        new: NewSession,
    ) -> Result<SessionHandle, Error> {
        SessionHandle::start(self.clone(), caller, new).await
    }

    /// A session of the default workspace, as `dev`. Whether it exists shows with the first call.
    pub fn session(&self, id: SessionId) -> SessionHandle {
        self.session_as(Arc::new(Caller::dev(WorkspaceRef::DEFAULT)), id)
    }

    /// A session, for a caller of the host's choice.
    pub fn session_as(&self, caller: Arc<Caller>, id: SessionId) -> SessionHandle {
        SessionHandle::new(self.clone(), caller, id)
    }

    /// A new id of a request, for `caused_by`.
    pub fn new_request_id(&self) -> Arc<str> {
        let door = self.door();
        let id = u128::from_be_bytes(door.ids.uuid(door.clock.wall_ms()));
        format!("req_{id:032x}").into()
    }
}
