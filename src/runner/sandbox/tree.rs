//! A process with everything it starts, and the certain end of both.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use longhaul_actors::env::Door;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, waitid};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::runtime::Handle;

use super::leftovers::kill_marked;
use super::spawn::Spawner;

/// Ends whatever carries a mark. Dropped while armed, it does so in the background.
///
/// bubblewrap ties its inner process to the outer one only as its last step before the command:
/// killed before that, it can leave a command behind that neither its group nor its namespace
/// ends.
#[derive(Debug)]
pub struct Sweep {
    door: Door,
    mark: String,
    /// Whether an end of its own accord leaves something behind as well.
    always: bool,
    armed: bool,
}

impl Sweep {
    /// For a command that is marked so. `always`: no namespace ends what it started.
    pub fn new(door: &Door, mark: &str, always: bool) -> Self {
        Self {
            door: door.clone(),
            mark: mark.to_owned(),
            always,
            armed: true,
        }
    }

    async fn finish(&mut self, by_itself: bool) {
        if self.always || !by_itself {
            kill_marked(&self.door, &self.mark).await;
        }
        self.armed = false;
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        if self.armed
            && let Ok(runtime) = Handle::try_current()
        {
            let (door, mark) = (self.door.clone(), std::mem::take(&mut self.mark));
            runtime.spawn(async move { kill_marked(&door, &mark).await });
        }
    }
}

/// A process and its group. Dropping it ends them.
#[derive(Debug)]
pub struct Tree {
    child: Child,
    group: Option<Pid>,
    handle: Arc<OwnedFd>,
    /// Last, so that it drops after the process is killed.
    sweep: Sweep,
}

/// The caller's ends of a program's pipes.
pub type ChildPipes = (ChildStdin, ChildStdout, ChildStderr);

impl Tree {
    /// Starts `command`, which must make its own process group and carry the mark of `sweep`.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn start(spawner: &Spawner, command: Command, sweep: Sweep) -> io::Result<Self> {
        let child = spawner.spawn(command).await?;
        let pid = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the process has no id"))?;
        let handle = Arc::new(rustix::process::pidfd_open(pid, PidfdFlags::empty())?);
        Ok(Self {
            child,
            group: Some(pid),
            handle,
            sweep,
        })
    }

    /// The group's id, while it lives.
    pub fn group(&self) -> Option<Pid> {
        self.group
    }

    /// The pipes, once.
    pub fn take_pipes(&mut self) -> Option<ChildPipes> {
        let child = &mut self.child;
        Some((
            child.stdin.take()?,
            child.stdout.take()?,
            child.stderr.take()?,
        ))
    }

    /// Resolves when the first process has ended; it is not yet reaped, so its number is safe.
    pub async fn ended(&self) {
        let handle = Arc::clone(&self.handle);
        // Dropped before the end, the waiting thread goes when the process does, which is soon.
        let wait = tokio::task::spawn_blocking(move || {
            let until = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while let Err(Errno::INTR) = waitid(WaitId::PidFd(handle.as_fd()), until) {}
        });
        // The closure cannot panic; a runtime that shuts down ends this too.
        let _ = wait.await;
    }

    /// Ends all of it and reaps the first process; its exit status.
    pub async fn finish(&mut self) -> Option<i32> {
        use std::os::unix::process::ExitStatusExt;
        let now = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let by_itself = matches!(waitid(WaitId::PidFd(self.handle.as_fd()), now), Ok(Some(_)));
        self.kill_group();
        let status = self.child.wait().await;
        self.sweep.finish(by_itself).await;
        let status = status.ok()?;
        status.code().or_else(|| status.signal().map(|s| 128 + s))
    }

    fn kill_group(&mut self) {
        // Once only: after the first process is reaped, the number may belong to others.
        if let Some(group) = self.group.take() {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.kill_group();
    }
}
