//! What all `dir` sandboxes of a runner share, and how a command is run in one of them.

use std::path::PathBuf;
use std::time::Duration;

use longhaul_actors::env::Door;
use tokio::sync::Semaphore;

use super::{DirError, GROUPS};
use crate::runner::sandbox::bwrap::{Isolation, View, find_bwrap, find_shell, wrap};
use crate::runner::sandbox::command::{Bounds, Pipes, collect};
use crate::runner::sandbox::leftovers::{note_group, remove};
use crate::runner::sandbox::spawn::Spawner;
use crate::runner::sandbox::tree::{Sweep, Tree};
use crate::runner::sandbox::{Exec, ExecOutput, SandboxError};
use crate::runner::settings::{IsolationMode, RunnerConfig};

/// Longest time of the probe.
const PROBE_S_MAX: Duration = Duration::from_secs(10);

/// What all sandboxes of a provider share.
#[derive(Debug)]
pub(super) struct Tools {
    pub(super) root: PathBuf,
    pub(super) config: RunnerConfig,
    pub(super) door: Door,
    pub(super) spawner: Spawner,
    pub(super) isolation: Isolation,
    shell: PathBuf,
    turns: Semaphore,
    /// Keeps other processes away from `root`.
    _lock: std::fs::File,
}

impl Tools {
    /// Finds out whether commands can be isolated.
    pub(super) async fn open(
        root: PathBuf,
        config: RunnerConfig,
        door: Door,
        lock: std::fs::File,
    ) -> Result<Self, DirError> {
        let about = |source| DirError::Folder {
            folder: root.display().to_string(),
            source,
        };
        let spawner = Spawner::start().map_err(about)?;
        let turns = Semaphore::new(config.commands_max.min(Semaphore::MAX_PERMITS));
        let (isolation, shell) = (Isolation::Open, find_shell());
        let mut tools = Self {
            root,
            config,
            door,
            spawner,
            isolation,
            shell,
            turns,
            _lock: lock,
        };
        tools.choose_isolation().await?;
        Ok(tools)
    }

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

    pub(super) async fn run(
        &self,
        config: &RunnerConfig,
        place: &Place,
        mark: String,
        exec: &Exec,
    ) -> Result<ExecOutput, SandboxError> {
        let failed = |e: std::io::Error| match e.kind() {
            // Within the limits, and still more than this machine takes.
            std::io::ErrorKind::ArgumentListTooLong => {
                SandboxError::ExecInvalid(format!("`command` and `env`: {e}"))
            }
            _ => SandboxError::io("a command cannot start", &e),
        };
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
        let sweep = self.sweep(&mark);
        let tree = Tree::start(&self.spawner, command, sweep)
            .await
            .map_err(failed)?;
        self.note(place, tree.group());
        let most = Duration::from_secs(config.command_s_max);
        let bounds = Bounds {
            time: exec.timeout.unwrap_or(most).min(most),
            output_bytes_max: config.output_bytes_max,
        };
        Ok(collect(&self.door, tree, pipes, bounds).await)
    }

    fn shell_argv(&self, command: &str) -> Vec<std::ffi::OsString> {
        let mut argv = vec![self.shell.clone().into_os_string()];
        if self.shell.ends_with("bash") {
            argv.extend(["--noprofile", "--norc"].map(Into::into));
        }
        argv.extend(["-c", command].map(Into::into));
        argv
    }

    /// What ends the command for certain: without a namespace, always; with one, after a kill.
    pub(super) fn sweep(&self, mark: &str) -> Sweep {
        Sweep::new(&self.door, mark, self.isolation == Isolation::Open)
    }

    pub(super) fn note(&self, place: &Place, group: Option<rustix::process::Pid>) {
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
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) name: String,
    pub(super) folder: PathBuf,
}

impl Place {
    pub(super) fn new(tools: &Tools) -> Self {
        let name = format!("{:032x}", u128::from_be_bytes(tools.door.ids.secret()));
        Self::named(tools, &name)
    }

    pub(super) fn named(tools: &Tools, name: &str) -> Self {
        Self {
            folder: tools.root.join(name),
            name: name.to_owned(),
        }
    }

    pub(super) fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    pub(super) fn tmp(&self) -> PathBuf {
        self.folder.join("tmp")
    }

    /// Makes the folders, the working folder empty.
    pub(super) fn make(&self) -> std::io::Result<()> {
        self.make_around()?;
        private().create(self.work())
    }

    /// Makes the folders but for the working folder.
    pub(super) fn make_around(&self) -> std::io::Result<()> {
        private().create(&self.folder)?;
        private().create(self.tmp())
    }
}

fn private() -> std::fs::DirBuilder {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = std::fs::DirBuilder::new();
    builder.mode(0o700);
    builder
}
