//! Reads that may touch the disk, off every async thread: a bounded pool of threads behind two
//! bounded queues. What a session waits for goes before what a page or a follower asks.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use longhaul_storage::{Log, ReadError, View};
use tokio::sync::oneshot;

use crate::code::{Code, Rejection};
use crate::sync::lock;

/// Who waits for a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A session: its recovery, or facts of a decision.
    Session,
    /// A page, a follower or a sweep.
    Page,
}

type Job = Box<dyn FnOnce(&dyn Log) + Send>;

/// A bounded pool of threads that read.
pub struct Reader {
    shared: Arc<Shared>,
}

struct Shared {
    log: Arc<dyn Log>,
    queues: Mutex<Queues>,
    ready: Condvar,
    threads_max: usize,
    queue_len_max: usize,
}

#[derive(Default)]
struct Queues {
    session: VecDeque<Job>,
    page: VecDeque<Job>,
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    closed: bool,
}

impl Reader {
    /// A pool over `log` of at most `threads_max` threads (started when needed), with at most
    /// `queue_len_max` reads waiting in each class.
    pub fn new(log: Arc<dyn Log>, threads_max: usize, queue_len_max: usize) -> Self {
        let shared = Shared {
            log,
            queues: Mutex::default(),
            ready: Condvar::new(),
            threads_max: threads_max.max(1),
            queue_len_max,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Queues blocking work on the log.
    ///
    /// # Errors
    /// `runtime.busy` if the queue is full, `runtime.stopped` once closed.
    pub fn start<T: Send + 'static>(
        &self,
        class: Class,
        work: impl FnOnce(&dyn Log) -> T + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, Rejection> {
        let (tx, rx) = oneshot::channel();
        let job: Job = Box::new(move |log| {
            // A caller that went away needs no answer, nor the work.
            if !tx.is_closed() {
                let _ = tx.send(work(log));
            }
        });
        let mut queues = lock(&self.shared.queues);
        if queues.closed {
            return Err(Code::Stopped.into());
        }
        let queue = match class {
            Class::Session => &mut queues.session,
            Class::Page => &mut queues.page,
        };
        if queue.len() >= self.shared.queue_len_max {
            return Err(Rejection::new(
                Code::Busy,
                "too many reads wait for the disk",
            ));
        }
        queue.push_back(job);
        if queues.idle == 0 && queues.threads.len() < self.shared.threads_max {
            self.spawn(&mut queues)?;
        } else {
            self.shared.ready.notify_one();
        }
        Ok(rx)
    }

    /// Reads from one snapshot.
    ///
    /// # Errors
    /// As [`Reader::start`]; what the log says, as a rejection; `runtime.internal` if the read
    /// panicked.
    pub async fn read<T: Send + 'static>(
        &self,
        class: Class,
        work: impl FnOnce(&dyn View) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, Rejection> {
        let done = self.start(class, |log| longhaul_storage::read(log, work))?;
        done.await.map_err(|_| lost())?.map_err(|e| refuse(&e))
    }

    fn spawn(&self, queues: &mut Queues) -> Result<(), Rejection> {
        let shared = Arc::clone(&self.shared);
        let name = format!("longhaul-read-{}", queues.threads.len());
        match std::thread::Builder::new()
            .name(name)
            .spawn(move || work(&shared))
        {
            Ok(thread) => queues.threads.push(thread),
            // Those that run already will come to it.
            Err(_) if !queues.threads.is_empty() => {}
            Err(e) => return Err(Rejection::new(Code::Internal, format!("no thread: {e}"))),
        }
        Ok(())
    }

    /// Refuses new reads, drops those that wait, and lets the threads end.
    pub fn stop(&self) {
        let dropped = {
            let mut queues = lock(&self.shared.queues);
            queues.closed = true;
            (
                std::mem::take(&mut queues.session),
                std::mem::take(&mut queues.page),
            )
        };
        // Outside the lock: dropping a job wakes whoever waits for it.
        drop(dropped);
        self.shared.ready.notify_all();
    }

    /// Stops and waits for the threads (blocking).
    pub fn join(&self) {
        self.stop();
        let threads = std::mem::take(&mut lock(&self.shared.queues).threads);
        for thread in threads {
            // A reader thread catches its jobs' panics; there is nothing to learn from it.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared) {
    let mut queues = lock(&shared.queues);
    loop {
        let job = queues
            .session
            .pop_front()
            .or_else(|| queues.page.pop_front());
        if let Some(job) = job {
            drop(queues);
            if catch_unwind(AssertUnwindSafe(|| job(&*shared.log))).is_err() {
                tracing::error!("a read panicked");
            }
            queues = lock(&shared.queues);
        } else if queues.closed {
            return;
        } else {
            queues.idle += 1;
            queues = shared
                .ready
                .wait(queues)
                .unwrap_or_else(PoisonError::into_inner);
            queues.idle -= 1;
        }
    }
}

/// The answer for a part that went away in the middle.
pub(crate) fn lost() -> Rejection {
    Rejection::new(
        Code::Internal,
        "a part of the server failed while answering",
    )
}

/// What the log said, as an answer.
pub(crate) fn refuse(error: &ReadError) -> Rejection {
    match error {
        ReadError::Damaged { seq, reason, .. } => Rejection::new(
            Code::SessionDamaged,
            format!("damaged at seq {seq}: {reason}"),
        )
        .with("seq", *seq),
        ReadError::Erased => Code::SessionErased.into(),
        ReadError::NotFound => Code::SessionNotFound.into(),
        ReadError::Closed => Code::StorageUnavailable.into(),
        ReadError::Engine(cause) => {
            tracing::error!(cause, "the storage engine failed a read");
            Rejection::new(Code::Internal, "the storage engine failed a read")
        }
    }
}
