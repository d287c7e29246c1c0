//! Snapshots and who holds them: kept while anybody does, gone when nobody does, whatever races
//! or dies in between.

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

use super::forks::{fork, fork_of};
use super::kit::{
    Boxed, BoxedLog, RUNNER, WS, check, config, eventually, now, request, run, runner,
};
use crate::checkpoint::bytes::Deleting;
use crate::checkpoint::{BytesGone, SnapshotBytes};
use crate::code::Code;
use crate::engine::{Engine, EngineConfig};
use crate::env::ManualWorld;
use crate::ids::{CheckpointId, ClaimToken, SessionId};
use crate::rows;
use crate::session::checkpoints::SnapshotState;
use crate::session::command::{Bearer, Command, NewCheckpoint, Settle, SettleCheckpoint, Verb};
use crate::session::decision::SnapshotRow;
use crate::session::payload::{
    Outcome, ResumeFrom, ResumePlan, Retention, Selector, SnapshotRef, Usage,
};

/// Bytes in memory.
#[derive(Debug, Default)]
struct Disk {
    there: Mutex<BTreeSet<String>>,
    deletions: AtomicUsize,
    /// Deletes nothing for now.
    stuck: AtomicBool,
    dead: Arc<AtomicUsize>,
}

impl Disk {
    fn has(&self, id: &str) -> bool {
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
struct Gate {
    log: Arc<BoxedLog>,
    collector: Mutex<Option<Vec<Held>>>,
    forks: Mutex<Option<Vec<Held>>>,
    /// Steps of the collector before it is as good as dead.
    left: Arc<AtomicUsize>,
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
    fn held(gate: &Mutex<Option<Vec<Held>>>) -> usize {
        gate.lock().unwrap().as_ref().map_or(0, Vec::len)
    }

    fn hold(gate: &Mutex<Option<Vec<Held>>>) {
        *gate.lock().unwrap() = Some(Vec::new());
    }

    fn release(&self, gate: &Mutex<Option<Vec<Held>>>) {
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
struct Kept {
    b: Boxed,
    gate: Arc<Gate>,
    disk: Arc<Disk>,
}

fn short() -> EngineConfig {
    let mut config = config();
    config.limits.checkpoint_ttl_s = 1_000;
    config.limits.checkpoints_per_session_max = 2;
    config
}

impl Kept {
    fn new() -> Self {
        let world = ManualWorld::new(1_700_000_000_000);
        Self::on(world, BoxedLog::new(), BTreeSet::new(), usize::MAX)
    }

    /// The collector takes `left` steps and no more.
    fn on(world: ManualWorld, log: Arc<BoxedLog>, there: BTreeSet<String>, left: usize) -> Self {
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
    async fn restart(self, left: usize) -> Self {
        self.b.engine.close().await;
        let there = self.disk.there.lock().unwrap().clone();
        Self::on(self.b.world, self.b.log, there, left)
    }

    async fn session(&self) -> SessionId {
        self.b.engine.enrol(runner(1_000)).await.expect("enrol");
        self.b.create(&[]).await
    }

    async fn claimed(&self, id: SessionId) -> ClaimToken {
        self.b.say(id, "go").await.expect("say");
        let grant = self.b.claim().await;
        assert_eq!(grant.session, id);
        let token = grant.token;
        grant.confirm.delivered();
        self.b.call(token, "ready", json!({})).await.expect("ready");
        token
    }

    async fn attempt(&self, token: ClaimToken, verb: Verb) {
        let by = Bearer::Trusted;
        let answer = self
            .b
            .engine
            .attempt(by, token, None, verb, Duration::ZERO)
            .await;
        answer.expect("accepted");
    }

    fn take(&self, snapshot: &str) -> NewCheckpoint {
        self.disk.there.lock().unwrap().insert(snapshot.to_owned());
        NewCheckpoint {
            snapshot: SnapshotRef {
                id: snapshot.to_owned(),
                provider: "dir".to_owned(),
                retention: Retention::Platform,
                runner_id: Some(RUNNER),
                bytes: 1,
            },
            kept: Some(crate::session::command::Kept {
                manifest: vec![7],
                packs: vec![[8; 16]],
            }),
            resume: ResumeFrom::RebuildFromLog,
            blob: None,
            name: None,
            metadata_json: "{}".to_owned(),
            cursor: None,
        }
    }

    /// A turn that ends with a checkpoint.
    async fn turn(&self, id: SessionId, snapshot: &str) -> CheckpointId {
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

    async fn erase(&self, id: SessionId) {
        let erased = self.b.ask(id, Command::Erase(request())).await;
        erased.expect("erase");
    }

    /// Keys of one table.
    fn table(&self, tag: u8) -> Vec<Bytes> {
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
    async fn at_rest(&self) {
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

#[test]
fn a_session_with_checkpoints_is_the_same_after_a_restart() {
    run(async {
        let k = Kept::new();
        let id = k.session().await;
        let first = k.turn(id, "a").await;
        let pin = crate::session::command::PinCheckpoint {
            request: request(),
            checkpoint: first,
            pinned: true,
        };
        k.b.ask(id, Command::Pin(Box::new(pin))).await.expect("pin");
        for n in 0..4 {
            k.turn(id, &n.to_string()).await;
        }
        let before = k.b.engine.state(WS, id).await.expect("state");
        assert_eq!(before.checkpoints.0.len(), 3, "two and the pinned one");
        check(&k.b, id);
        k.at_rest().await;
        assert_eq!(k.disk.deletions.load(Ordering::SeqCst), 2);
        let listed = k.b.engine.checkpoints(WS, id).await.expect("list");
        let k = k.restart(usize::MAX).await;
        assert_eq!(k.b.engine.state(WS, id).await.expect("state"), before);
        let again = k.b.engine.checkpoints(WS, id).await.expect("list");
        assert_eq!(again, listed);
        k.at_rest().await;
        k.b.engine.close().await;
    });
}

#[test]
fn a_checkpoint_fork_holds_the_snapshot_and_its_last_holder_takes_it_along() {
    run(async {
        let k = Kept::new();
        let source = k.session().await;
        let id = k.turn(source, "a").await;
        k.turn(source, "b").await;
        let child = fork(&k.b, source, Selector::CheckpointId(id)).await;
        let grandchild = {
            let own = k.b.engine.state(WS, child).await.expect("state");
            let own = own.checkpoints.head().expect("one").created.checkpoint_id;
            fork(&k.b, child, Selector::CheckpointId(own)).await
        };
        check(&k.b, child);
        check(&k.b, grandchild);
        k.at_rest().await;
        assert_eq!(k.table(rows::SNAPSHOT_HOLDER).len(), 4);
        k.erase(source).await;
        k.at_rest().await;
        assert!(
            k.disk.has("a") && !k.disk.has("b"),
            "the source's own is gone"
        );
        k.erase(child).await;
        k.at_rest().await;
        assert!(k.disk.has("a"));
        // What is held is used.
        k.b.say(grandchild, "go").await.expect("say");
        let grant = k.b.claim().await;
        let ResumePlan::Checkpoint { snapshot, .. } = &grant.granted.resume else {
            panic!("{:?}", grant.granted.resume)
        };
        assert_eq!(snapshot.id, "a");
        grant.confirm.delivered();
        k.erase(grandchild).await;
        k.at_rest().await;
        assert!(!k.disk.has("a"));
        assert_eq!(k.disk.deletions.load(Ordering::SeqCst), 2);
        for tag in [
            rows::CHECKPOINT,
            rows::CHECKPOINT_ID,
            rows::SNAPSHOT,
            rows::TIMER,
        ] {
            assert!(k.table(tag).is_empty(), "table {tag}");
        }
        k.b.engine.close().await;
    });
}

#[test]
fn time_lets_go_of_bytes_and_says_so() {
    run(async {
        let k = Kept::new();
        let source = k.session().await;
        let id = k.turn(source, "a").await;
        let child = fork(&k.b, source, Selector::CheckpointId(id)).await;
        k.b.world.advance_ms(1_000_000);
        eventually(|| !k.disk.has("a")).await;
        k.at_rest().await;
        for session in [source, child] {
            let state = k.b.engine.state(WS, session).await.expect("state");
            let c = state.checkpoints.head().expect("still listed");
            assert_eq!(c.snapshot_state, SnapshotState::Expired);
            check(&k.b, session);
        }
        let why =
            k.b.engine
                .fork(fork_of(source, Selector::CheckpointId(id)))
                .await;
        assert_eq!(why.unwrap_err().code, Code::CheckpointExpired);
        // The conversation is still there to fork.
        fork(&k.b, source, Selector::Head).await;
        k.b.engine.close().await;
    });
}

#[test]
fn bytes_that_cannot_go_now_go_later() {
    run(async {
        let k = Kept::new();
        let id = k.session().await;
        k.turn(id, "a").await;
        k.disk.stuck.store(true, Ordering::SeqCst);
        k.erase(id).await;
        let other = k.b.create(&[]).await;
        // It stays on the list, and open to new references, until the bytes can go.
        let waits = || k.table(rows::COLLECT).len() == 1 && k.table(rows::DOOMED).is_empty();
        eventually(waits).await;
        k.disk.stuck.store(false, Ordering::SeqCst);
        // The next look, whoever asks for it.
        k.b.world.advance_ms(60_000);
        k.at_rest().await;
        assert!(!k.disk.has("a"));
        k.turn(other, "a").await;
        k.at_rest().await;
        assert!(k.disk.has("a"), "the same name again is a new snapshot");
        k.b.engine.close().await;
    });
}

#[test]
fn a_checkpoint_and_the_erasing_of_its_session_in_one_batch_leave_nothing() {
    run(async {
        let k = Kept::new();
        let id = k.session().await;
        let token = k.claimed(id).await;
        // Both wait behind a write that is held back, and so share the next one.
        k.b.log.hold();
        let engine = k.b.engine.clone();
        let first = super::kit::submit("user.message", json!({"text": "x"}));
        let first = tokio::spawn(async move { engine.command(id, first).await });
        eventually(|| k.b.log.held() == 1).await;
        let (engine, new) = (k.b.engine.clone(), Box::new(k.take("a")));
        let second = tokio::spawn(async move {
            let by = Bearer::Trusted;
            let verb = Verb::Checkpoint(new);
            engine.attempt(by, token, None, verb, Duration::ZERO).await
        });
        eventually(|| k.b.engine.stats().commands_open == 2).await;
        let engine = k.b.engine.clone();
        let third =
            tokio::spawn(async move { engine.command(id, Command::Erase(request())).await });
        eventually(|| k.b.engine.stats().commands_open == 3).await;
        k.b.log.release();
        first.await.expect("task").expect("said");
        second.await.expect("task").expect("checkpoint");
        third.await.expect("task").expect("erased");
        // Nobody was told of a reference that was never there: the next look finds it.
        k.b.world.advance_ms(60_000);
        k.at_rest().await;
        assert!(!k.disk.has("a"));
        k.b.engine.close().await;
    });
}

/// Forks a checkpoint while the source lets go of it: the fork's commit comes first or last.
async fn fork_against_collector(fork_first: bool) {
    let k = Kept::new();
    let source = k.session().await;
    let id = k.turn(source, "a").await;
    Gate::hold(&k.gate.forks);
    let engine = k.b.engine.clone();
    let ask = fork_of(source, Selector::CheckpointId(id));
    let forking = tokio::spawn(async move { engine.fork(ask).await });
    eventually(|| Gate::held(&k.gate.forks) == 1).await;
    // Two newer ones push the forked one out of the source.
    Gate::hold(&k.gate.collector);
    k.turn(source, "b").await;
    k.turn(source, "c").await;
    eventually(|| Gate::held(&k.gate.collector) == 1).await;
    if fork_first {
        k.gate.release(&k.gate.forks);
        let child = forking.await.expect("task").expect("in time");
        k.gate.release(&k.gate.collector);
        k.at_rest().await;
        assert!(k.disk.has("a"));
        check(&k.b, super::forks::id_of(&child.body));
    } else {
        k.gate.release(&k.gate.collector);
        eventually(|| !k.disk.has("a")).await;
        k.gate.release(&k.gate.forks);
        forking.await.expect("task").expect_err("too late");
        k.at_rest().await;
        let list = k.b.engine.list(WS, None, 10, None).await.expect("list");
        assert_eq!(list.items.len(), 1, "no child without its disk");
    }
    k.b.engine.close().await;
}

#[test]
fn a_fork_before_the_doom_keeps_the_bytes() {
    run(fork_against_collector(true));
}

#[test]
fn a_fork_after_the_doom_is_refused() {
    run(fork_against_collector(false));
}

#[test]
fn a_holder_that_goes_while_it_is_counted_is_not_forgotten() {
    run(async {
        let k = Kept::new();
        let source = k.session().await;
        let id = k.turn(source, "a").await;
        let child = fork(&k.b, source, Selector::CheckpointId(id)).await;
        Gate::hold(&k.gate.collector);
        k.erase(source).await;
        // The collector has seen the child's reference, and is about to look away.
        eventually(|| Gate::held(&k.gate.collector) == 1).await;
        k.erase(child).await;
        k.gate.release(&k.gate.collector);
        eventually(|| !k.disk.has("a")).await;
        k.at_rest().await;
        k.b.engine.close().await;
    });
}

#[test]
fn a_death_between_any_two_steps_of_a_collection_loses_nothing() {
    run(async {
        // Doom, bytes, rows: after each of them, and before the first.
        for steps in 0..=3 {
            let k = Kept::new();
            let id = k.session().await;
            k.turn(id, "a").await;
            let k = k.restart(steps).await;
            k.erase(id).await;
            eventually(|| k.gate.left.load(Ordering::SeqCst) == 0).await;
            let gone = k.table(rows::SNAPSHOT).is_empty();
            assert!(steps == 3 || !gone, "{steps}");
            let k = k.restart(usize::MAX).await;
            k.at_rest().await;
            assert!(!k.disk.has("a"), "{steps}");
            let other = k.session().await;
            k.turn(other, "a").await;
            k.at_rest().await;
            assert!(k.disk.has("a"), "{steps}");
            k.b.engine.close().await;
        }
    });
}
