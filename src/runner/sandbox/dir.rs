//! The provider `dir`: one folder per attempt on this machine, commands isolated from the rest
//! of it where bubblewrap works.

mod copies;
mod keep;
mod tools;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::future::{BoxFuture, FutureExt};
use longhaul_actors::env::Door;
use longhaul_actors::session::payload::SnapshotRef;
use rustix::fs::FlockOperation;
use tokio::sync::{Mutex, OnceCell};

use super::bwrap::{Isolation, View, wrap};
use super::command::launch;
use super::leftovers::{clear, end_processes, kill_marked, remove};
use super::paths::Root;
use super::{
    Entry, Exec, ExecOutput, Launch, Process, Sandbox, SandboxError, SandboxProvider,
    SandboxRequest, Snapshot, Stay,
};
use crate::runner::settings::RunnerConfig;
use crate::snapshots::{Base, Vault};
use copies::Copies;
use keep::{Plan, Restored};
use tools::{Place, Tools};

/// Name of the file that notes an attempt's process groups.
pub const GROUPS: &str = "groups";
/// Name of the file that notes the session that a sandbox stays for.
const ATTACHED: &str = "attached";

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
    snapshots: Option<Arc<dyn Vault>>,
    copies: Copies,
    /// Sandboxes of an earlier process that stay for a session, with their names.
    left: Vec<(Stay, String)>,
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
        let mut left = Vec::new();
        let leftovers: Vec<String> = leftovers
            .into_iter()
            .filter(|name| match stays_for(&root.join(name)) {
                Some(stay) => {
                    left.push((stay, name.clone()));
                    false
                }
                None => true,
            })
            .collect();
        for (_, name) in &left {
            end_processes(&door, &root, name).await;
        }
        if !leftovers.is_empty() {
            tracing::info!(
                attempts = leftovers.len(),
                "removing sandboxes of an earlier process"
            );
        }
        clear(&door, &root, leftovers).await;
        let tools = Tools::open(root, config, door, lock).await?;
        Ok(Self {
            tools: Arc::new(tools),
            snapshots: None,
            copies: Copies::default(),
            left,
        })
    }

    /// Sandboxes of an earlier process that stay: for whom, and their names.
    pub fn left(&self) -> Vec<(Stay, String)> {
        self.left.clone()
    }

    /// Goes on with a sandbox of an earlier process. Its files count as changed.
    pub fn adopt(
        &self,
        name: &str,
        session_id: &str,
        profile: &serde_json::Value,
    ) -> Box<dyn Sandbox> {
        let place = Place::named(&self.tools, name);
        let restored = Restored { place, base: None };
        Box::new(DirSandbox {
            dirty: AtomicBool::new(true),
            // What an earlier process ran in it may have left something.
            commands: AtomicU64::new(1),
            made: true,
            ..self.sandbox(restored, session_id, profile)
        })
    }

    /// Removes a sandbox of an earlier process.
    pub async fn discard(&self, name: &str) {
        remove(&self.tools.door, Place::named(&self.tools, name).folder).await;
    }

    fn sandbox(
        &self,
        restored: Restored,
        session_id: &str,
        profile: &serde_json::Value,
    ) -> DirSandbox {
        DirSandbox {
            tools: Arc::clone(&self.tools),
            config: self.tools.config.within(profile),
            made: restored.base.is_some(),
            place: restored.place,
            snapshots: self.snapshots.clone(),
            session_id: session_id.to_owned(),
            base: Mutex::new(restored.base),
            root: OnceCell::new(),
            commands: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
            released: AtomicBool::new(false),
            attached: AtomicBool::new(false),
        }
    }

    /// Keeps snapshots in this store from now on.
    #[must_use]
    pub fn with_snapshots(mut self, snapshots: Arc<dyn Vault>) -> Self {
        self.snapshots = Some(snapshots);
        self
    }

    /// Whether commands are isolated.
    pub fn is_isolated(&self) -> bool {
        self.tools.isolation != Isolation::Open
    }
}

/// For whom a sandbox stays.
fn stays_for(place: &Path) -> Option<Stay> {
    let note = std::fs::read(place.join(ATTACHED)).ok()?;
    let stay = serde_json::from_slice(&note).ok()?;
    place.join("work").is_dir().then_some(stay)
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

impl SandboxProvider for DirProvider {
    fn kind(&self) -> &str {
        "dir"
    }

    fn takes_snapshots(&self) -> bool {
        self.snapshots.is_some()
    }

    fn copy(
        &self,
        workspace: Option<String>,
        snapshot: SnapshotRef,
    ) -> BoxFuture<'_, Result<String, SandboxError>> {
        async move {
            let plan = Plan::snapshot(workspace.as_deref(), snapshot)?;
            let copy = Restored::of(&self.tools, self.snapshots.clone(), plan).await?;
            let (name, old) = self.copies.put(copy);
            if let Some(old) = old {
                remove(&self.tools.door, old.place.folder).await;
            }
            Ok(name)
        }
        .boxed()
    }

    fn drop_copy(&self, name: String) -> BoxFuture<'_, ()> {
        async move {
            if let Some(copy) = self.copies.take(Some(&name)) {
                remove(&self.tools.door, copy.place.folder).await;
            }
        }
        .boxed()
    }

    fn create(
        &self,
        request: SandboxRequest,
    ) -> BoxFuture<'_, Result<Box<dyn Sandbox>, SandboxError>> {
        async move {
            let tools = &self.tools;
            let isolation = request
                .profile
                .get("isolation")
                .and_then(serde_json::Value::as_str);
            if isolation == Some("required") && tools.isolation == Isolation::Open {
                let text =
                    "the sandbox profile requires isolation, which does not work on this runner";
                return Err(SandboxError::Unsupported(text.to_owned()));
            }
            let plan = Plan::read(&request)?;
            let restored = match self.copies.take(plan.copy()) {
                Some(copy) => copy,
                None => Restored::of(tools, self.snapshots.clone(), plan).await?,
            };
            let made = restored.base.is_some();
            let sandbox = self.sandbox(restored, &request.session_id, &request.profile);
            if made {
                sandbox.root().await?;
            }
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
    snapshots: Option<Arc<dyn Vault>>,
    /// The session it is for.
    session_id: String,
    /// The snapshot that the folder was made from or last taken as. Locked while one is taken.
    base: Mutex<Option<Base>>,
    root: OnceCell<Arc<Root>>,
    /// Whether its folder was there from the beginning.
    made: bool,
    commands: AtomicU64,
    /// Whether a command, a program or a write may have changed the files.
    dirty: AtomicBool,
    released: AtomicBool,
    /// Whether the note that it stays is written.
    attached: AtomicBool,
}

impl DirSandbox {
    async fn end_all(&self) {
        if self.commands.load(Ordering::SeqCst) > 0 {
            kill_marked(&self.tools.door, &format!("{}.", self.place.name)).await;
        }
    }

    async fn root(&self) -> Result<Arc<Root>, SandboxError> {
        if self.released.load(Ordering::SeqCst) {
            return Err(SandboxError::Failed("the sandbox was released".to_owned()));
        }
        let make = || async {
            let text = |e: std::io::Error| {
                SandboxError::io(format!("cannot make {}", self.place.folder.display()), &e)
            };
            // Made already where it was restored.
            if !self.place.folder.exists() {
                if self.made {
                    return Err(SandboxError::Gone);
                }
                self.place.make().map_err(text)?;
            }
            Root::open(&self.place.work()).map(Arc::new)
        };
        let root = self.root.get_or_try_init(make).await.cloned()?;
        match root.is_at(&self.place.work()) {
            true => Ok(root),
            false => Err(SandboxError::Gone),
        }
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
            exec.check()?;
            let cwd = exec.cwd.clone().unwrap_or_else(|| ".".to_owned());
            self.with_root(move |root| root.folder(&cwd)).await?;
            self.dirty.store(true, Ordering::SeqCst);
            let mark = self.next_mark();
            let ran = self.tools.run(&self.config, &self.place, mark, &exec);
            match ran.await? {
                // What cannot be entered fails like a command.
                output if output.exit_code != Some(0) && self.is_gone() => Err(SandboxError::Gone),
                output => Ok(output),
            }
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
            self.dirty.store(true, Ordering::SeqCst);
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
            let started = launch(&tools.spawner, command, tools.sweep(&mark)).await;
            let (process, group) =
                started.map_err(|e| SandboxError::io("a program cannot start", &e))?;
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
        async move {
            self.with_root(move |root| root.write(&path, &bytes))
                .await?;
            self.dirty.store(true, Ordering::SeqCst);
            Ok(())
        }
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

    fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::SeqCst)
    }

    fn snapshot(&self, fresh: bool) -> BoxFuture<'_, Result<Snapshot, SandboxError>> {
        self.keep(fresh).boxed()
    }

    fn end_commands(&self) -> BoxFuture<'_, ()> {
        self.end_all().boxed()
    }

    fn is_gone(&self) -> bool {
        let work = self.place.work();
        match self.root.get() {
            Some(root) => !root.is_at(&work),
            None => self.made && !work.is_dir(),
        }
    }

    fn base(&self) -> Option<SnapshotRef> {
        // Locked, it is being kept as another one.
        let base = self.base.try_lock().ok()?;
        base.as_ref().map(|b| b.reference.clone())
    }

    fn attach_to(&self, stay: Option<&Stay>) {
        let note = self.place.folder.join(ATTACHED);
        let Some(stay) = stay else {
            self.attached.store(false, Ordering::SeqCst);
            // It need not be there.
            return drop(std::fs::remove_file(note));
        };
        // Without a folder, there is nothing to stay.
        if self.attached.load(Ordering::SeqCst) || !self.place.folder.exists() {
            return;
        }
        let written = serde_json::to_vec(stay).map_err(std::io::Error::other);
        match written.and_then(|text| std::fs::write(note, text)) {
            Ok(()) => self.attached.store(true, Ordering::SeqCst),
            Err(error) => tracing::warn!(%error, "a sandbox will not outlive this process"),
        }
    }

    fn rest(&self) -> BoxFuture<'_, ()> {
        async move {
            if self.attached.load(Ordering::SeqCst) {
                self.end_all().await;
            } else {
                self.release().await;
            }
        }
        .boxed()
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        async move {
            let first = !self.released.swap(true, Ordering::SeqCst);
            let made = self.root.get().is_some() || self.attached.load(Ordering::SeqCst);
            if !first || !made {
                return;
            }
            self.end_all().await;
            remove(&self.tools.door, self.place.folder.clone()).await;
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
