//! Starts processes from one thread that lives as long as its sandboxes.
//!
//! bubblewrap's `--die-with-parent` watches the *thread* that started it. Threads of an async
//! runtime come and go with load, and would take running commands with them.

use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};

use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Spawns waiting for the thread; each takes well under a millisecond.
const QUEUE_LEN_MAX: usize = 1_024;

/// The thread that starts processes. It ends, and what it started with it, when this is dropped.
#[derive(Debug)]
pub struct Spawner {
    jobs: SyncSender<Job>,
}

struct Job {
    command: Command,
    runtime: Handle,
    started: oneshot::Sender<io::Result<Child>>,
}

impl Spawner {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no further thread.
    pub fn start() -> io::Result<Self> {
        let (jobs, queue) = sync_channel::<Job>(QUEUE_LEN_MAX);
        std::thread::Builder::new()
            .name("longhaul-spawn".to_owned())
            .spawn(move || {
                for Job {
                    mut command,
                    runtime,
                    started,
                } in queue
                {
                    if started.is_closed() {
                        continue;
                    }
                    let _context = runtime.enter();
                    let child = command.spawn();
                    // Closes our ends of the command's pipes before anyone waits for their end.
                    drop(command);
                    // Nobody waits any more: the child is killed as it drops.
                    let _ = started.send(child);
                }
            })?;
        Ok(Self { jobs })
    }

    /// Starts a process.
    ///
    /// # Errors
    /// Those of the system, or a full queue.
    pub async fn spawn(&self, command: Command) -> io::Result<Child> {
        let (started, child) = oneshot::channel();
        let job = Job {
            command,
            runtime: Handle::current(),
            started,
        };
        self.jobs
            .try_send(job)
            .map_err(|_| io::Error::other("too many processes are starting"))?;
        child
            .await
            .map_err(|_| io::Error::other("the spawning thread has ended"))?
    }
}
