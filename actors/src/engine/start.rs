//! Threads: the system thread with its parts, the arbiters with their shards, and the end of
//! them all.

use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use actix::prelude::*;
use longhaul_storage::Log;
use tokio::sync::oneshot;

use super::Engine;
use super::config::EngineConfig;
use super::inner::{Guard, Inner, Parts};
use super::sweep::Sweeper;
use crate::checkpoint::SnapshotBytes;
use crate::checkpoint::supervisor::Supervisor;
use crate::code::{Code, Rejection};
use crate::dispatch::actor::{Dispatcher, EndPolls};
use crate::env::Door;
use crate::shard::Shard;
use crate::sync::lock;
use crate::timer::durable::Durable;

/// Ends the threads with the last handle.
pub(super) struct Life {
    inner: Weak<Inner>,
    system: System,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Drop for Life {
    fn drop(&mut self) {
        // Nobody waits: the threads end by themselves, and answer what is left.
        if let Some(inner) = self.inner.upgrade() {
            inner.drain();
        }
        self.system.stop();
    }
}

pub(super) fn start(
    log: Arc<dyn Log>,
    door: Door,
    config: EngineConfig,
    bytes: Arc<dyn SnapshotBytes>,
) -> Result<Engine, Rejection> {
    let inner = Arc::new(Inner::new(log, door, config, bytes));
    let (ready_tx, ready_rx) = std::sync::mpsc::sync_channel(1);
    let of_thread = Arc::clone(&inner);
    let thread = std::thread::Builder::new()
        .name("longhaul-system".to_owned())
        .spawn(move || run(&of_thread, &ready_tx))
        .map_err(|e| no_thread(&e))?;
    let system = match ready_rx.recv() {
        Ok(Ok(system)) => system,
        Ok(Err(e)) => return Err(no_thread(&e)),
        Err(_) => {
            return Err(Rejection::new(
                Code::Internal,
                "the system thread died at start",
            ));
        }
    };
    let thread = Arc::new(Mutex::new(Some(thread)));
    let life = Life {
        inner: Arc::downgrade(&inner),
        system,
        thread,
    };
    Ok(Engine {
        inner,
        life: Arc::new(life),
    })
}

fn no_thread(e: &std::io::Error) -> Rejection {
    Rejection::new(Code::Internal, format!("threads cannot be started: {e}"))
}

/// The system thread, from its start to its end.
fn run(inner: &Arc<Inner>, ready: &std::sync::mpsc::SyncSender<std::io::Result<System>>) {
    let runner = System::new();
    let mut arbiters = Vec::new();
    let made = runner.block_on(parts(inner, &mut arbiters));
    // The starter waits for this word.
    let failed = made.is_err();
    let _ = ready.send(made.map(|()| System::current()));
    if !failed && let Err(e) = runner.run() {
        tracing::error!(error = %e, "the system thread's loop failed");
    }
    for arbiter in arbiters {
        arbiter.stop();
        if arbiter.join().is_err() {
            tracing::error!("an arbiter's thread panicked");
        }
    }
    // Now nobody works on sessions: whatever still waits is answered.
    inner.end();
}

async fn parts(inner: &Arc<Inner>, arbiters: &mut Vec<Arbiter>) -> std::io::Result<()> {
    let mut shards = Vec::new();
    for _ in 0..inner.config.arbiters.max(1) {
        let arbiter = Arbiter::try_new()?;
        let of_shard = Arc::clone(inner);
        shards.push(Shard::start_in_arbiter(&arbiter.handle(), |_| {
            Shard::new(of_shard)
        }));
        arbiters.push(arbiter);
    }
    TimerActor::new(inner).start();
    let parts = Parts {
        shards,
        dispatcher: Dispatcher::new(Arc::clone(inner)).start(),
        durable: Durable::new(Arc::clone(inner)).start(),
        checkpoints: Supervisor::new(Arc::clone(inner)).start(),
        sweeper: Sweeper::new(Arc::clone(inner)).start(),
    };
    inner.install(parts);
    Ok(())
}

/// Runs the timer's one task, and falls with it.
struct TimerActor {
    inner: Arc<Inner>,
    _guard: Guard,
}

impl TimerActor {
    fn new(inner: &Arc<Inner>) -> Self {
        Self {
            inner: Arc::clone(inner),
            _guard: Guard::new(inner, "the timer"),
        }
    }
}

impl Actor for TimerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let timer = self.inner.timer.clone();
        let drive = async move { timer.drive().await };
        ctx.spawn(drive.into_actor(self).map(|(), _, ctx| ctx.stop()));
    }
}

impl Life {
    /// Ends everything in order, off the caller's executor.
    pub(super) async fn close(&self, inner: &Arc<Inner>) {
        if let Some(parts) = inner.parts() {
            // Claims on their way out are delivered or given back before the intake ends.
            let _ = parts.dispatcher.send(EndPolls).await;
        }
        inner.drain();
        let (done_tx, done) = oneshot::channel();
        let (inner, system) = (Arc::clone(inner), self.system.clone());
        let thread = Arc::clone(&self.thread);
        let closer = std::thread::Builder::new().name("longhaul-close".to_owned());
        let closing = closer.spawn(move || {
            // Held until the end: a second close waits for the first.
            let mut thread = lock(&thread);
            if let Some(thread) = thread.take() {
                let wait = Duration::from_secs(inner.config.drain_s_max);
                if !inner.drain.wait(wait) {
                    tracing::warn!(open = inner.drain.open(), "closing with open commands");
                }
                system.stop();
                if thread.join().is_err() {
                    tracing::error!("the system thread panicked");
                }
                inner.end();
                inner.reader.join();
            }
            drop(inner);
            let _ = done_tx.send(());
        });
        match closing {
            // An error means that the closer is gone, and then so is what it closed.
            Ok(_) => drop(done.await),
            Err(e) => {
                tracing::error!(error = %e, "no thread to close with; stopping without waiting");
                self.system.stop();
            }
        }
    }
}
