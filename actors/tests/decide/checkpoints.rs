//! Checkpoints on the log: where they stand, how long they are kept, what is said of them.

use longhaul_actors::checkpoint::plan::plan;
use longhaul_actors::code::Code;
use longhaul_actors::ids::CheckpointId;
use longhaul_actors::session::checkpoints::SnapshotState;
use longhaul_actors::session::command::{Expiry, SettleCheckpoint, Verb};
use longhaul_actors::session::event::EventType as T;
use longhaul_actors::session::payload::{
    Body, CheckpointKind, DeletedWhat, InsteadOf, RebuildReason, ResumePlan,
};
use longhaul_actors::session::projection::Due;
use serde_json::json;

use crate::kit::{Boxed, body};
use crate::lineage::{new_checkpoint, taken};

/// The newest checkpoint stands at the event of the last settlement.
fn stands_at_the_settlement(b: &Boxed) {
    let created = &b.state.checkpoints.head().expect("one").created;
    let settled = b
        .log
        .iter()
        .rev()
        .find(|e| e.event.header.kind == T::RunSettled)
        .expect("settled");
    assert_eq!(created.kind, CheckpointKind::Settle);
    assert_eq!(created.through_sequence, settled.event.seq);
    assert_eq!(created.through_event_id, settled.event.header.id);
    assert_eq!(created.run_id, settled.event.header.run.map(|r| r.id));
    let then = b.at(settled.event.seq);
    assert_eq!(created.turn, then.turns);
    assert_eq!(
        created.cumulative_usage,
        then.inherited_usage.plus(then.usage)
    );
}

#[test]
fn the_checkpoint_of_a_turns_end_stands_at_its_settlement() {
    let (mut b, token) = Boxed::running();
    b.limits.checkpoints_per_session_max = 1;
    let from = b.state.last_seq;
    b.settle(token, Some(taken("a"))).expect("settle");
    let plain = [T::CheckpointCreated, T::SessionStatus, T::RunSettled];
    assert_eq!(b.types_after(from), plain);
    stands_at_the_settlement(&b);

    // With everything in one commit: open items, one to prune, input that is left.
    b.message("again").expect("message");
    let token = b.claim().expect("claim");
    b.call(token, "ready", json!({})).expect("ready");
    b.open(token, "agent.question");
    b.open(token, "agent.tool_use");
    b.message("left").expect("message");
    let from = b.state.last_seq;
    let first = b.newest();
    b.settle(token, Some(taken("b"))).expect("settle");
    assert_eq!(
        b.types_after(from),
        [
            T::ItemClosed,
            T::ItemClosed,
            T::CheckpointCreated,
            T::CheckpointDeleted,
            T::SessionStatus,
            T::RunSettled,
            T::RunQueued
        ]
    );
    stands_at_the_settlement(&b);
    assert_eq!(b.listed().len(), 1);
    let parent = b.state.checkpoints.head().expect("one");
    assert_eq!(parent.created.parent_checkpoint_id, Some(first));
}

#[test]
fn a_turn_may_end_with_a_checkpoint_in_every_phase_of_its_claim() {
    // Claimed, running, held, and claimed again after a release (the status does not change).
    for phase in ["claimed", "running", "waiting", "again"] {
        let mut b = Boxed::new();
        b.message("hi").expect("message");
        let mut token = b.claim().expect("claim");
        if phase != "claimed" {
            b.call(token, "ready", json!({})).expect("ready");
        }
        if phase == "waiting" {
            let question = b.open(token, "agent.question");
            let on = json!([{"question_id": question}]);
            b.call(token, "park", json!({"waiting_on": on, "compute": "held"}))
                .expect("park");
        }
        if phase == "again" {
            b.call(token, "release", json!({})).expect("release");
            b.message("left").expect("message");
            token = b.claim().expect("claim");
        }
        b.settle(token, Some(taken("s"))).expect("settle");
        stands_at_the_settlement(&b);
        assert!(b.state.items.is_empty(), "{phase}");
        // A retry of what settled it changes nothing.
        let before = b.state.clone();
        b.settle(token, Some(taken("s"))).expect("the first answer");
        assert_eq!(b.state, before);
    }
}

#[test]
fn a_snapshot_that_was_not_taken_is_said_and_the_turn_ends_as_it_would() {
    let (mut b, token) = Boxed::running();
    let from = b.state.last_seq;
    let failed = SettleCheckpoint::Failed {
        reason: "the disk is full".into(),
        stays: false,
    };
    b.settle(token, Some(failed)).expect("settle");
    let types = [T::CheckpointFailed, T::SessionStatus, T::RunSettled];
    assert_eq!(b.types_after(from), types);
    assert!(b.listed().is_empty());
}

#[test]
fn after_a_turn_that_was_not_kept_the_next_one_is_told_that_its_disk_is_older() {
    let mut b = Boxed::new();
    b.message("hi").expect("message");
    let kept = b.turn("s");
    b.message("more").expect("message");
    let token = b.claim().expect("claim");
    b.call(token, "ready", json!({})).expect("ready");
    let failed = SettleCheckpoint::Failed {
        reason: "the disk is full".into(),
        stays: false,
    };
    b.settle(token, Some(failed)).expect("settle");
    let plan = |b: &Boxed| match plan(&b.state, b.runner, b.door.clock.wall_ms()) {
        ResumePlan::Checkpoint { id, instead_of, .. } => (id, instead_of),
        other => panic!("{other:?}"),
    };
    let not_kept = InsteadOf {
        id: None,
        reason: RebuildReason::SnapshotFailed,
    };
    assert_eq!(plan(&b), (kept, Some(not_kept)));
    b.message("again").expect("message");
    let newer = b.turn("t");
    assert_eq!(plan(&b), (newer, None));
}

#[test]
fn a_disk_that_was_not_kept_stays_with_its_runner() {
    let (mut b, token) = Boxed::running();
    let runner = b.state.run.as_ref().unwrap().claim.as_ref().unwrap().runner;
    let failed = SettleCheckpoint::Failed {
        reason: "the disk is full".into(),
        stays: true,
    };
    b.settle(token, Some(failed)).expect("settle");
    let attached = b.state.now.attached.expect("attached");
    assert_eq!((attached.runner, attached.dirty), (runner, true));
    assert_eq!(attached.began, None);
}

#[test]
fn a_runners_own_checkpoint_stands_at_what_its_run_wrote_or_took_last() {
    let (mut b, token) = Boxed::running();
    let wrote = b.open(token, "agent.tool_use");
    let explicit = |b: &mut Boxed, snapshot: &str| {
        let verb = Verb::Checkpoint(Box::new(new_checkpoint(snapshot)));
        b.attempt(token, None, verb).expect("checkpoint")
    };
    // Neither a message it has not taken nor a signal is its own.
    b.message("more").expect("message");
    b.submit(&[("user.signal", json!({"name": "s"}))])
        .expect("signal");
    let reply = explicit(&mut b, "a");
    assert_eq!(reply.status, 201);
    assert_eq!(body(&reply)["through_sequence"], wrote.seq());
    let created = b.state.checkpoints.head().expect("one").created.clone();
    assert_eq!(created.through_event_id, wrote);
    assert_eq!(created.kind, CheckpointKind::Explicit);
    assert_eq!(created.turn, 0);
    // Taken: then it is.
    b.call(token, "inputs", json!({})).expect("inputs");
    let took = b.state.last_seq;
    explicit(&mut b, "b");
    let created = b.state.checkpoints.head().expect("one").created.clone();
    assert_eq!(created.through_sequence, took);
    assert_eq!(b.listed().len(), 2);
    // The same bytes again are no new bytes, and no reason to refuse.
    explicit(&mut b, "b");
    assert_eq!(b.listed().len(), 3);
}

#[test]
fn a_runner_says_what_its_checkpoint_is_for_or_that_there_is_none() {
    let (mut b, token) = Boxed::running();
    let snapshot = json!({"id": "x", "provider": "mine", "retention": "platform"});
    let body = json!({"snapshot": snapshot, "kind": "turn", "turn": 7});
    b.call(token, "checkpoint", body).expect("checkpoint");
    let created = b.state.checkpoints.head().expect("one").created.clone();
    assert_eq!((created.kind, created.turn), (CheckpointKind::Turn, 7));
    let from = b.state.last_seq;
    let failed = json!({"kind": "pass", "failed": "the disk is full"});
    b.call(token, "checkpoint", failed).expect("said");
    assert_eq!(b.types_after(from), [T::CheckpointFailed]);
    for bad in [
        json!({"kind": "turn"}),
        json!({"kind": "settle", "snapshot": snapshot}),
        json!({"kind": "turn", "failed": ""}),
        json!({"failed": "why", "snapshot": snapshot}),
    ] {
        b.refused(Code::FieldInvalid, |b| {
            b.call(token, "checkpoint", bad.clone())
        });
    }
}

#[test]
fn an_answer_that_was_not_taken_is_behind_a_runners_checkpoint() {
    let (mut b, token) = Boxed::running();
    let question = b.open(token, "agent.question");
    let on = json!([{"question_id": question}]);
    b.call(token, "park", json!({"waiting_on": on, "compute": "held"}))
        .expect("park");
    let parked = b.state.last_seq;
    let content = json!({"question_id": question, "dismissed": true});
    b.submit(&[("user.question_answer", content)])
        .expect("answer");
    let verb = Verb::Checkpoint(Box::new(new_checkpoint("s")));
    b.attempt(token, None, verb).expect("checkpoint");
    let through = b
        .state
        .checkpoints
        .head()
        .expect("one")
        .created
        .through_sequence;
    assert!(through <= parked, "{through} is after {parked}");
}

#[test]
fn a_checkpoint_needs_an_attempt_that_is_ready() {
    let mut b = Boxed::new();
    b.message("hi").expect("message");
    let token = b.claim().expect("claim");
    let verb = || Verb::Checkpoint(Box::new(new_checkpoint("s")));
    b.refused(Code::ClaimNotReady, |b| b.attempt(token, None, verb()));
    b.call(token, "ready", json!({})).expect("ready");
    b.limits.session_events_max = b.state.last_seq;
    b.refused(Code::EventLimit, |b| b.attempt(token, None, verb()));
}

#[test]
fn the_oldest_go_when_there_are_too_many_but_never_the_pinned() {
    let mut b = Boxed::new();
    b.limits.checkpoints_per_session_max = 2;
    let first = b.turn("1");
    b.pin(first, true).expect("pin");
    let rest: Vec<CheckpointId> = (2..6).map(|n| b.turn(&n.to_string())).collect();
    assert_eq!(b.listed(), [first, rest[2], rest[3]]);
    let gone = b.last(|e| match e {
        Body::CheckpointDeleted(d) => Some(d.clone()),
        _ => None,
    });
    let gone = gone.expect("deleted");
    assert_eq!(
        (gone.checkpoint_id, gone.what),
        (rest[1], DeletedWhat::Checkpoint)
    );
    b.refused(Code::CheckpointNotFound, |b| b.pin(rest[1], true));
    // Counted again, it goes with the next one and not before.
    let reply = b.pin(first, false).expect("unpin");
    assert_eq!(body(&reply)["id"], json!(first));
    assert_eq!(body(&reply)["pinned"], false);
    assert_eq!(b.listed().len(), 3);
    let last = b.turn("6");
    stands_at_the_settlement(&b);
    assert_eq!(b.listed(), [rest[3], last]);
    // A lower count later is met by the next one too.
    b.limits.checkpoints_per_session_max = 1;
    let only = b.turn("7");
    stands_at_the_settlement(&b);
    assert_eq!(b.listed(), [only]);
    // Zero is no bound.
    b.limits.checkpoints_per_session_max = 0;
    for n in 0..30 {
        b.turn(&format!("u{n}"));
    }
    stands_at_the_settlement(&b);
    assert_eq!(b.listed().len(), 31);
}

#[test]
fn pins_are_limited_and_idempotent() {
    let mut b = Boxed::new();
    b.limits.checkpoints_pinned_max = 2;
    let ids: Vec<CheckpointId> = (0..3).map(|n| b.turn(&n.to_string())).collect();
    b.pin(ids[0], true).expect("pin");
    b.pin(ids[1], true).expect("pin");
    let refusal = b.refused(Code::CheckpointsPinned, |b| b.pin(ids[2], true));
    assert_eq!(refusal.extras["pinned_max"], 2);
    let before = b.state.last_seq;
    b.pin(ids[0], true).expect("it is");
    b.pin(ids[2], false).expect("it is not");
    assert_eq!(b.state.last_seq, before);
    b.limits.session_events_max = before;
    b.refused(Code::EventLimit, |b| b.pin(ids[0], false));
    b.refused(Code::CheckpointNotFound, |b| {
        b.pin(CheckpointId([77; 16]), true)
    });
}

/// Thirty days, milliseconds.
const MONTH_MS: u64 = 30 * 24 * 3_600 * 1_000;

#[test]
fn a_workspace_only_shortens_how_long_a_checkpoint_lives() {
    for (ttl_s, lives_ms) in [
        (None, MONTH_MS),
        (Some(10), 10_000),
        (Some(MONTH_MS), MONTH_MS),
    ] {
        let mut b = Boxed::empty();
        b.ttl_s = ttl_s;
        b.create(json!({})).expect("create");
        b.turn("s");
        let c = b.state.checkpoints.head().expect("one");
        let lives = c.created.expires_at_ms - c.created_at_ms;
        assert_eq!(lives, i64::try_from(lives_ms).expect("fits"), "{ttl_s:?}");
    }
}

#[test]
fn a_checkpoint_is_over_at_the_very_instant_and_whoever_sees_it_first_says_so() {
    for (early_ms, over) in [(1, false), (0, true)] {
        let mut b = Boxed::new();
        let id = b.turn("s");
        b.pin(id, true).expect("pins do not prolong");
        b.world.advance_ms(MONTH_MS - early_ms);
        b.message("later").expect("message");
        let from = b.state.last_seq;
        b.claim().expect("claim");
        let said = b.types_after(from).first() == Some(&T::CheckpointExpired);
        assert_eq!(said, over);
        match b.plan() {
            ResumePlan::Checkpoint { id: got, .. } => assert!(!over && got == id),
            ResumePlan::EventLogRebuild { reason, .. } => {
                assert!(over);
                assert_eq!(reason, RebuildReason::CheckpointExpired);
            }
            other => panic!("{other:?}"),
        }
        // It stays listed.
        let c = b.state.checkpoints.find(id).expect("listed");
        assert_eq!(c.snapshot_state == SnapshotState::Expired, over);
    }
}

#[test]
fn the_timer_of_the_next_checkpoint_to_go_ends_it_once() {
    let mut b = Boxed::new();
    b.turn("a");
    b.world.advance_ms(1_000);
    b.turn("b");
    let timers = b.timers();
    assert_eq!(timers.len(), 1, "the next one is enough");
    assert_eq!(timers[0].due, Due::Checkpoint);
    // A wall clock that went back delays nothing.
    b.world.jump_wall_ms(-5_000);
    let from = b.state.last_seq;
    b.expire(timers[0].expiry());
    assert_eq!(b.types_after(from), [T::CheckpointExpired]);
    b.expire(timers[0].expiry());
    b.expire(Expiry::Checkpoint { seq: 1 });
    assert_eq!(
        b.state.last_seq,
        from + 1,
        "late and foreign ones say nothing"
    );
    let next = b.timers();
    assert_eq!(next.len(), 1);
    assert_ne!(next[0].seq, timers[0].seq);
    b.expire(next[0].expiry());
    assert!(b.timers().is_empty());
    // A session that ended has its timers too.
    let mut b = Boxed::new();
    b.turn("a");
    b.cancel().expect("cancel");
    let timers = b.timers();
    b.expire(timers[0].expiry());
    let c = b.state.checkpoints.head().expect("listed");
    assert_eq!(c.snapshot_state, SnapshotState::Expired);
}

#[test]
fn a_checkpoint_that_cannot_be_read_now_is_passed_over_by_this_run_alone() {
    let mut b = Boxed::new();
    let unread = |checkpoint| Verb::RejectCheckpoint {
        checkpoint,
        reason: "EIO".into(),
        temporary: true,
    };
    let resumed = |b: &Boxed| match &b.state.claim().expect("claim").resume {
        ResumePlan::Checkpoint { id, .. } => *id,
        other => panic!("{other:?}"),
    };
    let old = b.turn("s1");
    b.message("again").expect("message");
    let token = b.claim().expect("claim");
    let refused = b.attempt(token, None, unread(old)).expect_err("none older");
    assert_eq!(refused.code, Code::SnapshotUnreadable);
    assert!(refused.detail.contains(&old.to_string()), "{refused:?}");
    b.settle(token, None).expect("settle");

    let new = b.turn("s2");
    b.message("again").expect("message");
    let token = b.claim().expect("claim");
    assert_eq!(resumed(&b), new);
    let from = b.state.last_seq;
    b.attempt(token, None, unread(new)).expect("passed over");
    assert_eq!(b.types_after(from), [], "nothing is said against it");
    b.call(token, "release", json!({})).expect("release");
    let token = b.claim().expect("claim");
    assert_eq!(resumed(&b), old, "by the attempts of this run");
    b.settle(token, None).expect("settle");
    b.message("again").expect("message");
    b.claim().expect("claim");
    assert_eq!(resumed(&b), new, "the next run tries it anew");
}

#[test]
fn a_checkpoint_is_rejected_once() {
    let mut b = Boxed::new();
    let id = b.turn("s");
    b.message("again").expect("message");
    let token = b.claim().expect("claim");
    let reject = |reason: &str| Verb::RejectCheckpoint {
        checkpoint: id,
        reason: reason.into(),
        temporary: false,
    };
    let from = b.state.last_seq;
    b.attempt(token, None, reject("its digest differs"))
        .expect("reject");
    b.attempt(token, None, reject("again")).expect("reject");
    let unknown = Verb::RejectCheckpoint {
        checkpoint: CheckpointId([77; 16]),
        reason: "what".into(),
        temporary: false,
    };
    b.attempt(token, None, unknown).expect("reject");
    assert_eq!(b.types_after(from), [T::CheckpointRejected]);
    let c = b.state.checkpoints.find(id).expect("listed");
    assert_eq!(c.rejected.as_deref(), Some("its digest differs"));
    b.call(token, "release", json!({})).expect("release");
    b.claim().expect("claim");
    let rebuild = ResumePlan::EventLogRebuild {
        reason: RebuildReason::CheckpointRejected,
        missing: Vec::new(),
    };
    assert_eq!(b.plan(), rebuild);
}
