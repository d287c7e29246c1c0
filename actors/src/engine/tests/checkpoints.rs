//! Snapshots and who holds them: kept while anybody does, gone when nobody does, whatever races
//! or dies in between.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use super::forks::{fork, fork_of};
use super::kit::{WS, check, eventually, request, run};
use super::snapshots::{Gate, Kept};
use crate::code::Code;
use crate::rows;
use crate::session::checkpoints::SnapshotState;
use crate::session::command::{Bearer, Command, Verb};
use crate::session::payload::{ResumePlan, Selector};

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
        let why = forking.await.expect("task").expect_err("too late");
        assert_eq!(why.code, Code::SnapshotDeleted, "{why}");
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
