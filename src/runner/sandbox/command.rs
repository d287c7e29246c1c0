//! One running command: its output, bounded; its time, bounded; its end, complete.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::Duration;

use futures_util::future::{BoxFuture, FusedFuture, FutureExt, join};
use longhaul_actors::env::Door;
use rustix::process::Pid;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::unix::pipe;
use tokio::process::Command;

use super::spawn::Spawner;
use super::tree::{Sweep, Tree};
use super::{ExecOutput, Process, ProcessControl};

/// How long the pipes of an ended command may stay open (somebody who escaped holds them).
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// The limits of one command.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Its longest time.
    pub time: Duration,
    /// Bytes kept of each output.
    pub output_bytes_max: usize,
}

/// A command's pipes: our reading ends.
#[derive(Debug)]
pub struct Pipes {
    stdout: pipe::Receiver,
    stderr: Option<pipe::Receiver>,
}

impl Pipes {
    /// Connects `command` to new pipes; with `merge`, both outputs to the same one.
    ///
    /// # Errors
    /// Those of the system.
    pub fn connect(command: &mut Command, merge: bool) -> io::Result<Self> {
        let (stdout, writer) = io::pipe()?;
        let stderr = if merge {
            command.stderr(Stdio::from(OwnedFd::from(writer.try_clone()?)));
            None
        } else {
            let (stderr, writer) = io::pipe()?;
            command.stderr(Stdio::from(OwnedFd::from(writer)));
            Some(pipe::Receiver::from_owned_fd(stderr.into())?)
        };
        command
            .stdin(Stdio::null())
            .stdout(Stdio::from(OwnedFd::from(writer)));
        Ok(Self {
            stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
            stderr,
        })
    }
}

/// Waits for the command's end, or stops it when its time is over.
pub async fn collect(door: &Door, mut tree: Tree, pipes: Pipes, bounds: Bounds) -> ExecOutput {
    let clock = door.clock.clone();
    let Pipes { mut stdout, stderr } = pipes;
    let mut out = Kept::new(bounds.output_bytes_max);
    let mut err = Kept::new(bounds.output_bytes_max);
    let (timed_out, exit_code) = {
        let reading = join(pump(&mut stdout, &mut out), async {
            if let Some(mut stderr) = stderr {
                pump(&mut stderr, &mut err).await;
            }
        });
        let mut reading = reading.boxed().fuse();
        let over = clock.sleep_until(clock.mono() + bounds.time);
        let timed_out = {
            let ended = tree.ended().fuse();
            tokio::pin!(ended, over);
            loop {
                tokio::select! {
                    _ = &mut reading, if !reading.is_terminated() => {}
                    () = &mut ended => break false,
                    () = &mut over => break true,
                }
            }
        };
        let status = tree.finish().await;
        if !reading.is_terminated() {
            let patience = clock.sleep_until(clock.mono() + DRAIN_MAX);
            tokio::select! { _ = &mut reading => {} () = patience => {} }
        }
        (timed_out, status.filter(|_| !timed_out))
    };
    let dropped_bytes = out.dropped_bytes + err.dropped_bytes;
    ExecOutput {
        stdout: out.bytes,
        stderr: err.bytes,
        dropped_bytes,
        exit_code,
        timed_out,
    }
}

/// The first bytes of an output, and how many came after them.
#[derive(Debug)]
struct Kept {
    bytes: Vec<u8>,
    bytes_max: usize,
    dropped_bytes: u64,
}

impl Kept {
    fn new(bytes_max: usize) -> Self {
        Self {
            bytes: Vec::new(),
            bytes_max,
            dropped_bytes: 0,
        }
    }

    fn add(&mut self, chunk: &[u8]) {
        let room = self
            .bytes_max
            .saturating_sub(self.bytes.len())
            .min(chunk.len());
        let (kept, dropped) = chunk.split_at(room);
        self.bytes.extend_from_slice(kept);
        self.dropped_bytes += dropped.len() as u64;
    }
}

async fn pump(from: &mut (impl AsyncRead + Unpin), into: &mut Kept) {
    let mut chunk = vec![0; 16 << 10];
    // An error ends the output as its end does.
    while let Ok(n @ 1..) = from.read(&mut chunk).await {
        into.add(chunk.get(..n).unwrap_or_default());
    }
}

/// Starts a program with its three pipes in the hands of the caller.
///
/// # Errors
/// Those of the system.
pub async fn launch(
    spawner: &Spawner,
    mut command: Command,
    sweep: Sweep,
) -> io::Result<(Process, Option<Pid>)> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut tree = Tree::start(spawner, command, sweep).await?;
    let missing = || io::Error::other("a pipe is missing");
    let (stdin, stdout, stderr) = tree.take_pipes().ok_or_else(missing)?;
    let group = tree.group();
    let process = Process {
        stdin: Box::new(stdin),
        stdout: Box::new(stdout),
        stderr: Box::new(stderr),
        control: Box::new(Control { tree, status: None }),
    };
    Ok((process, group))
}

struct Control {
    tree: Tree,
    status: Option<Option<i32>>,
}

impl ProcessControl for Control {
    fn wait(&mut self) -> BoxFuture<'_, Option<i32>> {
        async {
            if let Some(status) = self.status {
                return status;
            }
            self.tree.ended().await;
            let status = self.tree.finish().await;
            self.status = Some(status);
            status
        }
        .boxed()
    }

    fn kill(&mut self) -> BoxFuture<'_, ()> {
        async {
            if self.status.is_none() {
                self.status = Some(self.tree.finish().await);
            }
        }
        .boxed()
    }
}
