//! The provider `dir`: one folder per attempt on this machine, commands isolated from the rest
//! of it where bubblewrap works.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use longhaul_actors::env::Door;
use rustix::fs::FlockOperation;
use tokio::sync::{OnceCell, Semaphore};

use super::bwrap::{Isolation, View, find_bwrap, find_shell, wrap};
use super::command::{Bounds, Pipes, Tree, collect, launch};
use super::leftovers::{clear, kill_marked, note_group, remove};
use super::paths::Root;
use super::spawn::Spawner;
use super::{
    Entry, Exec, ExecOutput, Launch, Process, Sandbox, SandboxError, SandboxProvider,
    SandboxRequest,
};
use crate::runner::settings::{IsolationMode, RunnerConfig};

/// Name of the file that notes an attempt's process groups.
pub const GROUPS: &str = "groups";
/// Longest time of the probe.
const PROBE_S_MAX: Duration = Duration::from_secs(10);

/// Why the provider cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// The folder for sandboxes cannot be used.
    #[error("the folder for sandboxes, {folder}, cannot be used: {source}")]
    Folder {
        /// The folder.
        folder: String,
        /// Why.
        source: std::io::Error,
    },
    /// Another runner of this machine uses it.
    #[error("the folder for sandboxes, {0}, is in use by another process")]
    InUse(String),
    /// Isolation is required and does not work here.
    #[error("runner.isolation is `required`, but bubblewrap does not work here: {0}")]
    Isolation(String),
}

/// Makes sandboxes of kind `dir`.
#[derive(Debug)]
pub struct DirProvider {
    tools: Arc<Tools>,
}

/// What all sandboxes of a provider share.
#[derive(Debug)]
struct Tools {
    root: PathBuf,
    config: RunnerConfig,
    door: Door,
    spawner: Spawner,
    isolation: Isolation,
    shell: PathBuf,
    turns: Semaphore,
    /// Keeps other processes away from `root`.
    _lock: std::fs::File,
}

impl DirProvider {
    /// Takes the folder `root`, ends and removes what earlier attempts left in it, and finds
    /// out whether commands can be isolated.
    ///
    /// # Errors
    /// See [`DirError`].
    pub async fn open(root: PathBuf, config: RunnerConfig, door: Door) -> Result<Self, DirError> {
        let about = |source| DirError::Folder {
            folder: root.display().to_string(),
            source,
        };
        let (lock, leftovers) = take_folder(&root).map_err(about)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| DirError::InUse(root.display().to_string()))?;
        let root = root.canonicalize().map_err(about)?;
        if !leftovers.is_empty() {
            tracing::info!(
                attempts = leftovers.len(),
                "removing sandboxes of an earlier process"
            );
        }
        clear(&door, &root, leftovers).await;
        let spawner = Spawner::start().map_err(about)?;
        let mut tools = Tools {
            root: root.clone(),
            turns: Semaphore::new(config.commands_max.min(Semaphore::MAX_PERMITS)),
            config,
            door,
            spawner,
            isolation: Isolation::Open,
            shell: find_shell(),
            _lock: lock,
        };
        tools.choose_isolation().await?;
        Ok(Self {
            tools: Arc::new(tools),
        })
    }

    /// Whether commands are isolated.
    pub fn is_isolated(&self) -> bool {
        self.tools.isolation != Isolation::Open
    }
}

fn take_folder(root: &Path) -> std::io::Result<(std::fs::File, Vec<String>)> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(root)?;
    let mut options = std::fs::OpenOptions::new();
    let lock = options
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(root.join("lock"))?;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        // Only what this provider makes: 32 hexadecimal digits.
        let name = entry.file_name().into_string().unwrap_or_default();
        let ours = name.len() == 32 && name.bytes().all(|b| b.is_ascii_hexdigit());
        if ours && entry.file_type()?.is_dir() {
            names.push(name);
        }
    }
    Ok((lock, names))
}

impl Tools {
    async fn choose_isolation(&mut self) -> Result<(), DirError> {
        if self.config.isolation == IsolationMode::None {
            tracing::warn!(
                "runner.isolation is `none`: commands of agents run with this user's rights and see this whole machine"
            );
            return Ok(());
        }
        let why_not = match find_bwrap() {
            None => "there is no `bwrap` on the PATH; install the package `bubblewrap`".to_owned(),
            Some(program) => {
                self.isolation = Isolation::Bwrap(program);
                match self.probe().await {
                    Ok(()) => {
                        tracing::info!("commands of agents are isolated by bubblewrap");
                        return Ok(());
                    }
                    Err(why) => why,
                }
            }
        };
        self.isolation = Isolation::Open;
        if self.config.isolation == IsolationMode::Required {
            return Err(DirError::Isolation(why_not));
        }
        tracing::warn!(
            reason = %why_not,
            "NO ISOLATION: commands of agents run with this user's rights and see this whole machine; set runner.isolation=required to refuse that"
        );
        Ok(())
    }

    /// Runs a command exactly as those of agents will run.
    async fn probe(&self) -> Result<(), String> {
        let place = Place::new(self);
        place.make().map_err(|e| e.to_string())?;
        let script = "echo ok > probe && test -w /tmp && test ! -w /usr && cat probe";
        let exec = Exec {
            command: script.to_owned(),
            timeout: Some(PROBE_S_MAX),
            ..Exec::default()
        };
        let output = self
            .run(&self.config, &place, format!("{}.0;", place.name), &exec)
            .await;
        remove(&self.door, place.folder).await;
        let output = output.map_err(|e| e.to_string())?;
        if output.exit_code == Some(0) && output.stdout == b"ok\n" {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let text = text.trim();
        Err(match output.exit_code {
            None => "the probe did not end in time".to_owned(),
            Some(code) if text.is_empty() => format!("the probe ended with status {code}"),
            Some(_) => text.to_owned(),
        })
    }

    async fn run(
        &self,
        config: &RunnerConfig,
        place: &Place,
        mark: String,
        exec: &Exec,
    ) -> Result<ExecOutput, SandboxError> {
        let failed =
            |e: std::io::Error| SandboxError::Failed(format!("a command cannot start: {e}"));
        let _turn = self
            .turns
            .acquire()
            .await
            .map_err(|e| SandboxError::Failed(e.to_string()))?;
        let cwd = exec.cwd.as_deref().unwrap_or(".");
        let (work, tmp) = (place.work(), place.tmp());
        let view = View {
            work: &work,
            tmp: &tmp,
            cwd,
            mark: &mark,
            network: false,
            env: &exec.env,
        };
        let argv = self.shell_argv(&exec.command);
        let mut command = wrap(&self.isolation, &view, config, &argv);
        let pipes = Pipes::connect(&mut command, exec.merge_stderr).map_err(failed)?;
        let after = self.sweep_after(&mark);
        let tree = Tree::start(&self.spawner, &self.door, command, after)
            .await
            .map_err(failed)?;
        self.note(place, tree.group());
        let most = Duration::from_secs(config.command_s_max);
        let bounds = Bounds {
            time: exec.timeout.unwrap_or(most).min(most),
            output_bytes_max: config.output_bytes_max,
        };
        Ok(collect(tree, pipes, bounds).await)
    }

    fn shell_argv(&self, command: &str) -> Vec<std::ffi::OsString> {
        let mut argv = vec![self.shell.clone().into_os_string()];
        if self.shell.ends_with("bash") {
            argv.extend(["--noprofile", "--norc"].map(Into::into));
        }
        argv.extend(["-c", command].map(Into::into));
        argv
    }

    /// The mark to sweep for after a command, where no namespace ends everything with it.
    fn sweep_after(&self, mark: &str) -> Option<String> {
        (self.isolation == Isolation::Open).then(|| mark.to_owned())
    }

    fn note(&self, place: &Place, group: Option<rustix::process::Pid>) {
        // With isolation the kernel ends a command together with this process.
        let (Isolation::Open, Some(group)) = (&self.isolation, group) else {
            return;
        };
        if let Err(error) = note_group(&place.folder.join(GROUPS), group) {
            tracing::warn!(%error, "a process group could not be noted");
        }
    }
}

/// The folders of one attempt.
#[derive(Debug)]
struct Place {
    name: String,
    folder: PathBuf,
}

impl Place {
    fn new(tools: &Tools) -> Self {
        let name = format!("{:032x}", u128::from_be_bytes(tools.door.ids.secret()));
        Self {
            folder: tools.root.join(&name),
            name,
        }
    }

    fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    fn tmp(&self) -> PathBuf {
        self.folder.join("tmp")
    }

    fn make(&self) -> std::io::Result<()> {
        use std::os::unix::fs::DirBuilderExt;
        let mut builder = std::fs::DirBuilder::new();
        builder.mode(0o700);
        builder.create(&self.folder)?;
        builder.create(self.work())?;
        builder.create(self.tmp())
    }
}

impl SandboxProvider for DirProvider {
    fn kind(&self) -> &str {
        "dir"
    }

    fn create(
        &self,
        request: SandboxRequest,
    ) -> BoxFuture<'_, Result<Box<dyn Sandbox>, SandboxError>> {
        let tools = Arc::clone(&self.tools);
        async move {
            let kind = request
                .resume
                .get("kind")
                .and_then(serde_json::Value::as_str);
            if !matches!(kind, None | Some("fresh" | "event_log_rebuild")) {
                let text = format!(
                    "a `dir` sandbox cannot be made from the plan {}",
                    request.resume
                );
                return Err(SandboxError::Unsupported(text));
            }
            let isolation = request
                .profile
                .get("isolation")
                .and_then(serde_json::Value::as_str);
            if isolation == Some("required") && tools.isolation == Isolation::Open {
                let text =
                    "the sandbox profile requires isolation, which does not work on this runner";
                return Err(SandboxError::Unsupported(text.to_owned()));
            }
            let config = tools.config.within(&request.profile);
            let place = Place::new(&tools);
            let sandbox = DirSandbox {
                tools,
                config,
                place,
                root: OnceCell::new(),
                commands: AtomicU64::new(0),
                released: AtomicBool::new(false),
            };
            Ok(Box::new(sandbox) as Box<dyn Sandbox>)
        }
        .boxed()
    }
}

/// One attempt's sandbox. Its folders are made when something first needs them.
#[derive(Debug)]
struct DirSandbox {
    tools: Arc<Tools>,
    /// The runner's settings under the profile's limits.
    config: RunnerConfig,
    place: Place,
    root: OnceCell<Arc<Root>>,
    commands: AtomicU64,
    released: AtomicBool,
}

impl DirSandbox {
    async fn root(&self) -> Result<Arc<Root>, SandboxError> {
        if self.released.load(Ordering::SeqCst) {
            return Err(SandboxError::Failed("the sandbox was released".to_owned()));
        }
        let make = || async {
            let text = |e: std::io::Error| {
                SandboxError::Failed(format!("cannot make {}: {e}", self.place.folder.display()))
            };
            self.place.make().map_err(text)?;
            Root::open(&self.place.work()).map(Arc::new)
        };
        self.root.get_or_try_init(make).await.cloned()
    }

    /// Runs blocking work on the files of the sandbox.
    async fn with_root<T, F>(&self, work: F) -> Result<T, SandboxError>
    where
        T: Send + 'static,
        F: FnOnce(&Root) -> Result<T, SandboxError> + Send + 'static,
    {
        let root = self.root().await?;
        let done = tokio::task::spawn_blocking(move || work(&root)).await;
        done.map_err(|e| SandboxError::Failed(e.to_string()))?
    }

    fn next_mark(&self) -> String {
        let k = self.commands.fetch_add(1, Ordering::SeqCst);
        format!("{}.{k};", self.place.name)
    }
}

impl Sandbox for DirSandbox {
    fn exec(&self, exec: Exec) -> BoxFuture<'_, Result<ExecOutput, SandboxError>> {
        async move {
            if exec.command.contains('\0') {
                return Err(SandboxError::Unsupported(
                    "a command cannot hold a NUL".to_owned(),
                ));
            }
            let cwd = exec.cwd.clone().unwrap_or_else(|| ".".to_owned());
            self.with_root(move |root| root.folder(&cwd)).await?;
            self.tools
                .run(&self.config, &self.place, self.next_mark(), &exec)
                .await
        }
        .boxed()
    }

    fn launch(&self, program: Launch) -> BoxFuture<'_, Result<Process, SandboxError>> {
        async move {
            if program.argv.is_empty() || program.argv.iter().any(|a| a.contains('\0')) {
                return Err(SandboxError::Unsupported(
                    "there is no program to start".to_owned(),
                ));
            }
            self.root().await?;
            let tools = &self.tools;
            let (work, tmp, mark) = (self.place.work(), self.place.tmp(), self.next_mark());
            let network = self.config.process_network;
            let view = View {
                work: &work,
                tmp: &tmp,
                cwd: ".",
                mark: &mark,
                network,
                env: &program.env,
            };
            let command = wrap(&tools.isolation, &view, &self.config, &program.argv);
            let after = tools.sweep_after(&mark);
            let started = launch(&tools.spawner, &tools.door, command, after).await;
            let (process, group) = started
                .map_err(|e| SandboxError::Failed(format!("a program cannot start: {e}")))?;
            tools.note(&self.place, group);
            Ok(process)
        }
        .boxed()
    }

    fn read_file(
        &self,
        path: String,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<u8>, SandboxError>> {
        self.with_root(move |root| root.read(&path, bytes_max))
            .boxed()
    }

    fn write_file(&self, path: String, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), SandboxError>> {
        self.with_root(move |root| root.write(&path, &bytes))
            .boxed()
    }

    fn list(
        &self,
        path: String,
        entries_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Entry>, SandboxError>> {
        self.with_root(move |root| root.list(&path, entries_max))
            .boxed()
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        async move {
            let first = !self.released.swap(true, Ordering::SeqCst);
            if !first || self.root.get().is_none() {
                return;
            }
            if self.commands.load(Ordering::SeqCst) > 0 {
                kill_marked(&self.tools.door, &format!("{}.", self.place.name)).await;
            }
            remove(&self.tools.door, self.place.folder.clone()).await;
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
