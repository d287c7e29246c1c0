//! An engine whose snapshots' bytes are in memory, and whose collector can be held or killed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use longhaul_storage::{
    AppendError, Appended, Expect, Health, Log, Order, PageLimit, Pending, ReadError, RowChange,
    StreamId, View, Write,
};
use serde_json::json;
use tokio::sync::oneshot;

use super::kit::{Boxed, BoxedLog, RUNNER, WS, config, eventually, now, request, runner};
use crate::checkpoint::bytes::Deleting;
use crate::checkpoint::{BytesGone, SnapshotBytes};
use crate::engine::{Engine, EngineConfig};
use crate::env::ManualWorld;
use crate::ids::{CheckpointId, ClaimToken, SessionId};
use crate::rows;
use crate::session::command::{Bearer, Command, NewCheckpoint, Settle, SettleCheckpoint, Verb};
use crate::session::decision::SnapshotRow;
use crate::session::payload::{Outcome, Retention, SnapshotRef, Usage};

/// Bytes in memory.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) there: Mutex<BTreeSet<String>>,
    pub(super) deletions: AtomicUsize,
    /// Deletes nothing for now.
    pub(super) stuck: AtomicBool,
    dead: Arc<AtomicUsize>,
}

impl Disk {
    pub(super) fn has(&self, id: &str) -> bool {
        self.there.lock().unwrap().contains(id)
    }
}

impl SnapshotBytes for Disk {
    fn delete(&self, _: crate::session::checkpoints::SnapshotKey, row: &SnapshotRow) -> Deleting {
        let stuck = self.stuck.load(Ordering::SeqCst) || step(&self.dead);
        let gone = if stuck {
            BytesGone::Later("a test".to_owned())
        } else {
            if self.there.lock().unwrap().remove(&row.snapshot.id) {
                self.deletions.fetch_add(1, Ordering::SeqCst);
            }
            BytesGone::Gone
        };
        Box::pin(std::future::ready(gone))
    }
}

/// Takes one of the steps that are left; `true` = there was none: the process is as good as dead.
fn step(left: &AtomicUsize) -> bool {
    let less = |n: usize| n.checked_sub(1);
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
        .is_err()
}

type Held = (Write, oneshot::Sender<Result<Appended, AppendError>>);

/// Holds back writes of the collector, or those that begin forks.
pub(super) struct Gate {
    log: Arc<BoxedLog>,
    pub(super) collector: Mutex<Option<Vec<Held>>>,
    pub(super) forks: Mutex<Option<Vec<Held>>>,
    /// Steps of the collector before it is as good as dead.
    pub(super) left: Arc<AtomicUsize>,
}

fn is_collectors(write: &Write) -> bool {
    let touches = |change: &RowChange| {
        let (RowChange::Put(key, _) | RowChange::Delete(key) | RowChange::DeletePrefix(key)) =
            change;
        matches!(key[0], rows::DOOMED | rows::COLLECT)
    };
    write.stream.is_none() && write.rows.iter().any(touches)
}

impl Gate {
    pub(super) fn held(gate: &Mutex<Option<Vec<Held>>>) -> usize {
        gate.lock().unwrap().as_ref().map_or(0, Vec::len)
    }

    pub(super) fn hold(gate: &Mutex<Option<Vec<Held>>>) {
        *gate.lock().unwrap() = Some(Vec::new());
    }

    pub(super) fn release(&self, gate: &Mutex<Option<Vec<Held>>>) {
        for (write, tx) in gate.lock().unwrap().take().unwrap_or_default() {
            let _ = tx.send(now(self.log.append(write)));
        }
    }
}

impl Log for Gate {
    fn append(&self, write: Write) -> Pending {
        let collectors = is_collectors(&write);
        let forks = write
            .stream
            .as_ref()
            .is_some_and(|s| matches!(s.expect, Expect::Fork { .. }));
        for (is, gate) in [(collectors, &self.collector), (forks, &self.forks)] {
            if let Some(held) = gate.lock().unwrap().as_mut().filter(|_| is) {
                let (tx, pending) = Pending::new();
                held.push((write, tx));
                return pending;
            }
        }
        if collectors && step(&self.left) {
            return Pending::ready(Err(AppendError::Busy));
        }
        self.log.append(write)
    }

    fn view(&self, f: &mut dyn FnMut(&dyn View)) -> Result<(), ReadError> {
        self.log.view(f)
    }

    fn purge(&self, stream: StreamId) -> Result<(), ReadError> {
        self.log.purge(stream)
    }

    fn health(&self) -> Health {
        self.log.health()
    }

    fn close(&self) {
        self.log.close();
    }
}

/// An engine whose snapshots' bytes are in memory.
pub(super) struct Kept {
    pub(super) b: Boxed,
    pub(super) gate: Arc<Gate>,
    pub(super) disk: Arc<Disk>,
}

fn short() -> EngineConfig {
    let mut config = config();
    config.limits.checkpoint_ttl_s = 1_000;
    config.limits.checkpoints_per_session_max = 2;
    config
}

impl Kept {
    pub(super) fn new() -> Self {
        let world = ManualWorld::new(1_700_000_000_000);
        Self::on(world, BoxedLog::new(), BTreeSet::new(), usize::MAX)
    }

    /// The collector takes `left` steps and no more.
    pub(super) fn on(
        world: ManualWorld,
        log: Arc<BoxedLog>,
        there: BTreeSet<String>,
        left: usize,
    ) -> Self {
        let left = Arc::new(AtomicUsize::new(left));
        let gate = Arc::new(Gate {
            log: Arc::clone(&log),
            collector: Mutex::default(),
            forks: Mutex::default(),
            left: Arc::clone(&left),
        });
        let disk = Arc::new(Disk {
            there: Mutex::new(there),
            dead: left,
            ..Disk::default()
        });
        let bytes: Arc<dyn SnapshotBytes> = disk.clone();
        let engine = Engine::start_with(gate.clone(), world.door(), short(), bytes).expect("start");
        Self {
            b: Boxed { world, log, engine },
            gate,
            disk,
        }
    }

    /// Another life on the same log and disk.
    pub(super) async fn restart(self, left: usize) -> Self {
        self.b.engine.close().await;
        let there = self.disk.there.lock().unwrap().clone();
        Self::on(self.b.world, self.b.log, there, left)
    }

    pub(super) async fn session(&self) -> SessionId {
        self.b.engine.enrol(runner(1_000)).await.expect("enrol");
        self.b.create(&[]).await
    }

    pub(super) async fn claimed(&self, id: SessionId) -> ClaimToken {
        self.b.say(id, "go").await.expect("say");
        let grant = self.b.claim().await;
        assert_eq!(grant.session, id);
        let token = grant.token;
        grant.confirm.delivered();
        self.b.call(token, "ready", json!({})).await.expect("ready");
        token
    }

    pub(super) async fn attempt(&self, token: ClaimToken, verb: Verb) {
        let by = Bearer::Trusted;
        let answer = self
            .b
            .engine
            .attempt(by, token, None, verb, Duration::ZERO)
            .await;
        answer.expect("accepted");
    }

    pub(super) fn take(&self, snapshot: &str) -> NewCheckpoint {
        self.disk.there.lock().unwrap().insert(snapshot.to_owned());
        let reference = SnapshotRef {
            id: snapshot.to_owned(),
            provider: "dir".to_owned(),
            retention: Retention::Platform,
            runner_id: Some(RUNNER),
            bytes: 1,
        };
        let kept = crate::session::command::Kept {
            manifest: vec![7],
            packs: vec![[8; 16]],
        };
        NewCheckpoint::of(reference, Some(kept))
    }

    /// A turn that ends with a checkpoint.
    pub(super) async fn turn(&self, id: SessionId, snapshot: &str) -> CheckpointId {
        let token = self.claimed(id).await;
        let checkpoint = SettleCheckpoint::Made(Box::new(self.take(snapshot)));
        let settle = Settle {
            outcome: Outcome::Succeeded,
            error: None,
            usage: Usage::default(),
            session_failed: false,
            checkpoint: Some(checkpoint),
            body: [1; 16],
        };
        self.attempt(token, Verb::Settle(Box::new(settle))).await;
        let state = self.b.engine.state(WS, id).await.expect("state");
        state.checkpoints.head().expect("one").created.checkpoint_id
    }

    pub(super) async fn erase(&self, id: SessionId) {
        let erased = self.b.ask(id, Command::Erase(request())).await;
        erased.expect("erase");
    }

    /// Keys of one table.
    pub(super) fn table(&self, tag: u8) -> Vec<Bytes> {
        let all = PageLimit {
            items_max: 10_000,
            bytes_max: 1 << 24,
        };
        longhaul_storage::read(&*self.b.log.inner, |v| {
            let rows = v.rows(&rows::table(tag), None, Order::Asc, all)?;
            Ok(rows.into_iter().map(|(key, _)| key).collect())
        })
        .expect("readable")
    }

    /// Nothing is left to collect, nothing is doomed, and every reference has its snapshot.
    pub(super) async fn at_rest(&self) {
        eventually(|| self.table(rows::COLLECT).is_empty() && self.table(rows::DOOMED).is_empty())
            .await;
        let snapshots = self.table(rows::SNAPSHOT);
        let holders = self.table(rows::SNAPSHOT_HOLDER);
        for holder in &holders {
            let of = |snapshot: &Bytes| snapshot[1..17] == holder[1..17];
            assert!(snapshots.iter().any(of), "a reference to nothing");
        }
        for snapshot in &snapshots {
            let by = |holder: &Bytes| snapshot[1..17] == holder[1..17];
            assert!(holders.iter().any(by), "a snapshot of nobody");
        }
        assert_eq!(snapshots.len(), self.disk.there.lock().unwrap().len());
    }
}
