//! Sandboxes: where the tools of a harness act. A host adds its own by implementing
//! [`SandboxProvider`] and registering it.

pub mod bwrap;
pub mod command;
pub mod dir;
pub mod leftovers;
pub mod none;
pub mod paths;
pub mod spawn;
pub mod tree;

use std::fmt::{Debug, Display};
use std::io;
use std::time::Duration;

use futures_util::future::BoxFuture;
use longhaul_actors::code::Code;
use longhaul_actors::session::command::Kept;
use longhaul_actors::session::payload::{Began, SnapshotRef};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

/// Longest command, and longest variable with its name, bytes: the kernel takes 128 KiB with the
/// final NUL.
pub const ARGUMENT_BYTES_MAX: usize = 128 * 1_024 - 1;
/// Most variables together, bytes: half of what the kernel usually takes of everything.
pub const ENV_BYTES_MAX: usize = 1 << 20;

/// Why a sandbox could not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// The path is empty, absolute, leads out of the sandbox, or goes through something that is
    /// no folder.
    #[error("path {0:?} does not lead to a place inside the sandbox")]
    PathInvalid(String),
    /// There is no such file or folder.
    #[error("there is no {0:?} in the sandbox")]
    NotFound(String),
    /// The file is larger than the caller's limit.
    #[error("{path:?} is larger than {bytes_max} bytes")]
    TooLarge {
        /// The path asked for.
        path: String,
        /// The limit, bytes.
        bytes_max: usize,
    },
    /// This provider cannot do that at all.
    #[error("{0}")]
    Unsupported(String),
    /// The command, its folder or its environment is none that can be run.
    #[error("{0}")]
    ExecInvalid(String),
    /// The snapshot that it was to be made from is gone or does not verify, for good.
    #[error("the snapshot cannot be restored: {0}")]
    SnapshotUnusable(String),
    /// The snapshot that it was to be made from is there and cannot be read for now.
    #[error("the snapshot cannot be read now: {0}")]
    SnapshotUnreadable(String),
    /// Its files cannot be kept: one may not be read, or there are more than a snapshot holds.
    #[error("the files cannot be kept: {0}")]
    SnapshotRefused(String),
    /// Its folder was removed by somebody else.
    #[error("the sandbox is gone: its folder was removed")]
    Gone,
    /// There is no room on the disk. It works again when there is.
    #[error("no room on the disk: {0}")]
    Full(String),
    /// It failed.
    #[error("{0}")]
    Failed(String),
}

impl SandboxError {
    /// The stable code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::PathInvalid(_) => "sandbox.path_invalid",
            Self::NotFound(_) => "sandbox.not_found",
            Self::TooLarge { .. } => "sandbox.file_too_large",
            Self::Unsupported(_) => "sandbox.unsupported",
            Self::ExecInvalid(_) => "sandbox.exec_invalid",
            Self::SnapshotUnusable(_) => "sandbox.snapshot_unusable",
            Self::SnapshotUnreadable(_) => Code::SnapshotUnreadable.text(),
            Self::SnapshotRefused(_) => Code::SnapshotRefused.text(),
            Self::Gone => Code::SandboxGone.text(),
            Self::Full(_) => Code::StorageFull.text(),
            Self::Failed(_) => "sandbox.failed",
        }
    }

    /// A failed system call: `what` was tried. A full disk is told from any other failure.
    pub fn io(what: impl Display, error: &io::Error) -> Self {
        let text = format!("{what}: {error}");
        match is_full(error) {
            true => Self::Full(text),
            false => Self::Failed(text),
        }
    }
}

/// Whether the disk, or somebody's share of it, is full.
pub fn is_full(error: &io::Error) -> bool {
    let kind = error.kind();
    kind == io::ErrorKind::StorageFull || kind == io::ErrorKind::QuotaExceeded
}

/// For whom a sandbox is made, and from what.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRequest {
    /// The session.
    pub session_id: String,
    /// The run.
    pub run_id: String,
    /// The attempt.
    pub attempt: u32,
    /// The session's workspace, where it is known.
    pub workspace: Option<String>,
    /// The sandbox profile of the deployment revision.
    pub profile: Value,
    /// The resume plan: what the disk is to be restored from.
    pub resume: Value,
}

/// A shell command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exec {
    /// For `bash -c` (`sh -c` where there is no bash).
    pub command: String,
    /// Folder inside the sandbox; `None` = its root.
    pub cwd: Option<String>,
    /// Further environment variables.
    pub env: Vec<(String, String)>,
    /// Shorter than the provider's own limit; `None` = that.
    pub timeout: Option<Duration>,
    /// Whether standard error goes into `stdout`, in the order of writing.
    pub merge_stderr: bool,
}

impl Exec {
    /// Whether this could be run at all.
    ///
    /// # Errors
    /// [`SandboxError::ExecInvalid`]: a NUL, an empty or misplaced name of a variable, a command
    /// or a variable over [`ARGUMENT_BYTES_MAX`], or an environment over [`ENV_BYTES_MAX`].
    pub fn check(&self) -> Result<(), SandboxError> {
        let bad = |text: String| Err(SandboxError::ExecInvalid(text));
        let too_long = |what: &str, max: usize, bytes: usize| {
            SandboxError::ExecInvalid(format!("{what} has at most {max} bytes, not {bytes}"))
        };
        if self.command.contains('\0') {
            return bad("`command` cannot hold a NUL".to_owned());
        }
        if self.command.len() > ARGUMENT_BYTES_MAX {
            return Err(too_long(
                "`command`",
                ARGUMENT_BYTES_MAX,
                self.command.len(),
            ));
        }
        if self.cwd.as_ref().is_some_and(|cwd| cwd.contains('\0')) {
            return bad("`cwd` cannot hold a NUL".to_owned());
        }
        let mut total = 0_usize;
        for (key, value) in &self.env {
            if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
                return bad(format!("`env.{key}` is no variable"));
            }
            let bytes = key.len().saturating_add(value.len()).saturating_add(1);
            if bytes > ARGUMENT_BYTES_MAX {
                return Err(too_long(&format!("`env.{key}`"), ARGUMENT_BYTES_MAX, bytes));
            }
            total = total.saturating_add(bytes);
        }
        if total > ENV_BYTES_MAX {
            return Err(too_long("`env`", ENV_BYTES_MAX, total));
        }
        Ok(())
    }
}

/// What a command did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecOutput {
    /// Standard output, cut at the provider's limit.
    pub stdout: Vec<u8>,
    /// Standard error, cut likewise.
    pub stderr: Vec<u8>,
    /// Bytes of both that were dropped.
    pub dropped_bytes: u64,
    /// Exit status (128 + signal where a signal ended it); `None` = it was stopped.
    pub exit_code: Option<i32>,
    /// Whether it was stopped because its time was over.
    pub timed_out: bool,
}

/// A long-lived program in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Launch {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Further environment variables.
    pub env: Vec<(String, String)>,
}

/// A running program. Dropping it kills it.
pub struct Process {
    /// Its standard input.
    pub stdin: Box<dyn AsyncWrite + Send + Unpin>,
    /// Its standard output.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// Its standard error.
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    /// Its end.
    pub control: Box<dyn ProcessControl>,
}

impl Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").finish_non_exhaustive()
    }
}

/// Waits for, or ends, a program with everything it started.
pub trait ProcessControl: Send {
    /// Resolves when it has ended, with its exit status as in [`ExecOutput::exit_code`].
    fn wait(&mut self) -> BoxFuture<'_, Option<i32>>;
    /// Ends it. Resolves when it is gone.
    fn kill(&mut self) -> BoxFuture<'_, ()>;
}

/// The files of a sandbox, kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// As its provider knows it.
    pub reference: SnapshotRef,
    /// How the server's own store finds it; `None` = the bytes are the provider's.
    pub kept: Option<Kept>,
}

/// What sort of thing a name in a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    /// A file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// Anything else.
    Other,
}

/// One name in a folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The name's bytes: any but `/` and NUL.
    pub name: Vec<u8>,
    /// What it is (links are not followed).
    pub kind: EntryKind,
    /// Size in bytes, for files.
    pub bytes: u64,
}

/// For whom a sandbox stays when its process ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stay {
    /// The session.
    pub session_id: String,
    /// What it began as, where that was not the disk that the session had last.
    #[serde(default)]
    pub began: Option<Began>,
}

/// Makes sandboxes of one kind.
pub trait SandboxProvider: Send + Sync + Debug + 'static {
    /// The `provider` of the sandbox profiles that it serves.
    fn kind(&self) -> &str;

    /// Whether its sandboxes give snapshots.
    fn takes_snapshots(&self) -> bool {
        false
    }

    /// Makes a copy of a disk for a fork, to be taken by the attempt whose plan names it as
    /// `sandbox_ref`. Gives back that name.
    ///
    /// # Errors
    /// See [`SandboxError`]; there is no copy then.
    fn copy(
        &self,
        _workspace: Option<String>,
        _snapshot: SnapshotRef,
    ) -> BoxFuture<'_, Result<String, SandboxError>> {
        let why = "this provider makes no copies".to_owned();
        Box::pin(std::future::ready(Err(SandboxError::Unsupported(why))))
    }

    /// A copy is not needed: the fork was given up.
    fn drop_copy(&self, _name: String) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Makes a sandbox for one attempt.
    ///
    /// # Errors
    /// See [`SandboxError`]; the run then fails with its code.
    fn create(
        &self,
        request: SandboxRequest,
    ) -> BoxFuture<'_, Result<Box<dyn Sandbox>, SandboxError>>;
}

/// The sandbox of one attempt. Paths are relative to its root and cannot leave it.
pub trait Sandbox: Send + Sync + Debug {
    /// Runs a command and everything it starts; nothing of it is left when this resolves.
    /// Dropping the future ends the command.
    ///
    /// # Errors
    /// See [`SandboxError`]. A command that fails or times out is no error.
    fn exec(&self, exec: Exec) -> BoxFuture<'_, Result<ExecOutput, SandboxError>>;

    /// Starts a program that talks over its standard input and output.
    ///
    /// # Errors
    /// See [`SandboxError`].
    fn launch(&self, launch: Launch) -> BoxFuture<'_, Result<Process, SandboxError>>;

    /// Reads a whole file of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// See [`SandboxError`].
    fn read_file(
        &self,
        path: String,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<u8>, SandboxError>>;

    /// Writes a whole file, making the folders on the way.
    ///
    /// # Errors
    /// See [`SandboxError`].
    fn write_file(&self, path: String, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), SandboxError>>;

    /// Lists a folder (`.` = the root), sorted by name, at most `entries_max` names.
    ///
    /// # Errors
    /// See [`SandboxError`].
    fn list(
        &self,
        path: String,
        entries_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Entry>, SandboxError>>;

    /// Whether a command, a program or a write may have changed its files since it was made or
    /// last kept.
    fn is_dirty(&self) -> bool {
        true
    }

    /// Keeps its files as they are now. The bytes are durable when this resolves, and stay while
    /// the sandbox does; unchanged files give the same snapshot again, unless a `fresh` one is
    /// asked for.
    ///
    /// # Errors
    /// See [`SandboxError`]; nothing is kept then.
    fn snapshot(&self, _fresh: bool) -> BoxFuture<'_, Result<Snapshot, SandboxError>> {
        let why = "this sandbox gives no snapshots".to_owned();
        Box::pin(std::future::ready(Err(SandboxError::Unsupported(why))))
    }

    /// Ends what still runs in it.
    fn end_commands(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Whether its files were removed by somebody else, with the folder that they were in.
    fn is_gone(&self) -> bool {
        false
    }

    /// The snapshot that it was made from or last kept as.
    fn base(&self) -> Option<SnapshotRef> {
        None
    }

    /// Notes that it stays for this session after the process, or no longer does. A sandbox that
    /// cannot outlive its process does nothing.
    fn attach_to(&self, _stay: Option<&Stay>) {}

    /// Ends every process in it and, unless it stays for a session, removes it.
    fn rest(&self) -> BoxFuture<'_, ()> {
        self.release()
    }

    /// Ends every process in it and removes it. Idempotent; later calls of the others fail.
    fn release(&self) -> BoxFuture<'_, ()>;
}
