//! The runner inside the server: every harness kind but `external`, every workspace.
//!
//! It has threads of its own, so that a host may use any executor, and so that a busy harness
//! slows no session down. Its id is kept in the data folder.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use longhaul_actors::ids::RunnerId;
use tokio::sync::oneshot;

use super::attached::Attached;
use super::harness::agent::AgentHarness;
use super::inprocess::InProcess;
use super::protocol::ClaimApi;
use super::sandbox::SandboxProvider;
use super::sandbox::dir::DirProvider;
use super::worker::{Registry, Worker};
use crate::agent::handle::hosted::{HostAgents, HostHarness};
use crate::config::{Config, StorageEngine};
use crate::runtime::{Control, Runtime};

/// Threads that drive attempts.
const THREADS: usize = 2;
/// How long the threads may take to end after the last attempt has.
const SHUTDOWN_MAX: Duration = Duration::from_secs(2);

/// The runner of this process. Dropped, it stops in the background.
#[derive(Debug)]
pub struct BuiltIn {
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
    thread: JoinHandle<()>,
    /// Whether commands of `dir` sandboxes are isolated.
    isolated: bool,
    control: Control,
}

/// Starts the runner.
///
/// # Errors
/// Why it cannot start, for people: sandboxes cannot be made, isolation is required and does not
/// work, the log refuses.
pub async fn start(
    runtime: Runtime,
    config: &Config,
    extensions: Registry,
) -> Result<BuiltIn, String> {
    let id = runtime
        .catalog()
        .built_in_runner()
        .await
        .map_err(|e| e.to_string())?;
    let (stop, stopped) = oneshot::channel();
    let (started, is_started) = oneshot::channel();
    let (ended, is_ended) = oneshot::channel();
    let config = config.clone();
    let run = move || {
        let threads = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("longhaul-runner")
            .enable_all()
            .build();
        match threads {
            Ok(threads) => {
                threads.block_on(work(runtime, id, config, extensions, started, stopped));
                threads.shutdown_timeout(SHUTDOWN_MAX);
            }
            Err(error) => drop(started.send(Err(error.to_string()))),
        }
        // Nobody may be waiting.
        let _ = ended.send(());
    };
    let thread = std::thread::Builder::new()
        .name("longhaul-runner".to_owned())
        .spawn(run);
    let thread = thread.map_err(|e| e.to_string())?;
    let (isolated, control) = is_started
        .await
        .map_err(|_| "its thread ended".to_owned())??;
    Ok(BuiltIn {
        stop,
        ended: is_ended,
        thread,
        isolated,
        control,
    })
}

async fn work(
    runtime: Runtime,
    id: RunnerId,
    config: Config,
    extensions: Registry,
    started: oneshot::Sender<Result<(bool, Control), String>>,
    stopped: oneshot::Receiver<()>,
) {
    let door = runtime.door().clone();
    let own = Arc::new(HostAgents::default());
    let capacity = config.runner.capacity;
    let api = Arc::new(InProcess::new(
        runtime.clone(),
        id,
        capacity,
        Arc::clone(&own),
    ));
    let (folder, _temporary) = match sandbox_folder(&config) {
        Ok(folder) => folder,
        Err(error) => return drop(started.send(Err(error.to_string()))),
    };
    let opened = DirProvider::open(folder, config.runner.clone(), door.clone()).await;
    let provider = match opened {
        Ok(provider) => provider
            .with_snapshots(Arc::clone(runtime.snapshots()) as Arc<dyn crate::snapshots::Vault>),
        Err(error) => return drop(started.send(Err(error.to_string()))),
    };
    if let Err(error) = api.enrol().await {
        return drop(started.send(Err(error.to_string())));
    }
    let agents = match AgentHarness::of(&config, &door) {
        Ok(agents) => agents,
        Err(error) => return drop(started.send(Err(error))),
    };
    let isolated = provider.is_isolated();
    let provider = Arc::new(provider);
    let attached = Arc::new(Attached::default());
    let control = Control {
        provider: Arc::clone(&provider) as Arc<dyn SandboxProvider>,
        attached: Arc::clone(&attached),
        runner: id,
        agents: Arc::clone(&own),
        threads: tokio::runtime::Handle::current(),
        door: door.clone(),
    };
    runtime.attach_left(&control, &provider).await;
    let mut registry = Registry::built_in();
    registry.add_harness(Arc::new(agents));
    registry.add_harness(Arc::new(HostHarness(own)));
    registry.add_provider(provider);
    registry.take_attached_from(Arc::clone(&attached));
    registry.add_all(extensions);
    let worker = Worker::start(api, registry, config.runner, door);
    let resting = tokio::spawn(runtime.clone().rest_attached(control.clone()));
    if started.send(Ok((isolated, control))).is_ok() {
        // A dropped handle stops it as a word does; so does the end of the last runtime handle.
        tokio::select! {
            _ = stopped => {}
            () = runtime.stopping() => {}
        }
    }
    resting.abort();
    worker.stop().await;
    for disk in attached.drain() {
        disk.sandbox.rest().await;
    }
}

/// Where sandboxes are made. A log in memory has no folder to be beside of: its sandboxes are in
/// a temporary one, removed at the end.
fn sandbox_folder(config: &Config) -> std::io::Result<(PathBuf, Option<tempfile::TempDir>)> {
    if config.storage.engine == StorageEngine::Memory && config.runner.sandbox_dir.is_none() {
        let folder = tempfile::Builder::new()
            .prefix("longhaul-sandboxes-")
            .tempdir()?;
        return Ok((folder.path().to_owned(), Some(folder)));
    }
    Ok((config.sandbox_dir(), None))
}

impl BuiltIn {
    /// Whether commands of `dir` sandboxes are isolated from the host.
    pub fn is_isolated(&self) -> bool {
        self.isolated
    }

    /// What operations on sandboxes need of it.
    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    /// Gives every attempt back and ends. Blocks no thread of the caller's.
    pub async fn stop(self) {
        drop(self.stop);
        // An error is a thread that died, which has ended as well.
        let _ = self.ended.await;
        // It has said its last word: this waits for the thread's exit alone.
        if self.thread.join().is_err() {
            tracing::error!("the runner's thread panicked");
        }
    }
}
