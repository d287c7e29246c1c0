//! How a run continues, for every sort of past: the first that applies wins.

use longhaul_actors::checkpoint::plan::plan;
use longhaul_actors::ids::{CheckpointId, RunnerId, SessionId};
use longhaul_actors::session::checkpoints::{Checkpoint, SnapshotState};
use longhaul_actors::session::payload::{RebuildReason, ResumePlan, Retention};
use longhaul_actors::session::state::{Forked, State};

use crate::kit::{Boxed, RUNNER};

/// One checkpoint of a past.
#[derive(Debug, Clone, Copy, Default)]
struct Past {
    expired: bool,
    deleted: bool,
    rejected: bool,
    /// Its time is over, and nobody has said so.
    over: bool,
    local: bool,
    /// Another runner took it.
    foreign: bool,
    /// Not of the server's own store.
    elsewhere: bool,
}

const GOOD: Past = Past {
    expired: false,
    deleted: false,
    rejected: false,
    over: false,
    local: false,
    foreign: false,
    elsewhere: false,
};

const NOW_MS: i64 = 5_000;

/// A session with these checkpoints, oldest first.
fn with(pasts: &[Past]) -> State {
    let mut b = Boxed::new();
    b.turn("s");
    let sample = b.state.checkpoints.head().expect("one").clone();
    let mut state = b.state;
    state.checkpoints.0.clear();
    state.last_seq = 100;
    for (n, past) in (1u8..).zip(pasts) {
        let mut c: Checkpoint = (*sample).clone();
        c.seq = u64::from(n);
        c.created.checkpoint_id = CheckpointId([n; 16]);
        c.created.through_sequence = u64::from(n) * 10;
        c.created.expires_at_ms = NOW_MS + i64::from(!past.over);
        c.rejected = past.rejected.then(|| "why".to_owned());
        if past.expired {
            c.snapshot_state = SnapshotState::Expired;
        }
        if past.deleted {
            c.snapshot_state = SnapshotState::Deleted;
        }
        let snapshot = &mut c.created.snapshot;
        if past.local {
            snapshot.retention = Retention::HostLocal;
        }
        if past.elsewhere {
            snapshot.provider = "cloud".into();
        }
        if past.foreign {
            snapshot.runner_id = Some(RunnerId([99; 16]));
        }
        state.checkpoints.0.insert(c.seq, c.into());
    }
    state
}

fn rebuild(state: &State) -> RebuildReason {
    match plan(state, RUNNER, NOW_MS) {
        ResumePlan::EventLogRebuild { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

/// The checkpoint chosen (its number), or why there is none.
fn outcome(state: &State) -> Result<u8, RebuildReason> {
    match plan(state, RUNNER, NOW_MS) {
        ResumePlan::Checkpoint {
            id,
            through_sequence,
            events_after,
            ..
        } => {
            let n = id.0[0];
            assert_eq!(through_sequence, u64::from(n) * 10);
            assert_eq!(events_after, 100 - through_sequence);
            Ok(n)
        }
        ResumePlan::EventLogRebuild { reason, .. } => Err(reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_newest_usable_checkpoint_or_the_reason_of_the_newest() {
    use RebuildReason::{
        CheckpointExpired as Expired, CheckpointRejected as Rejected, NoCheckpoint,
        SnapshotDeleted as Deleted, SnapshotUnreachable as Unreachable,
    };
    let expired = Past {
        expired: true,
        ..GOOD
    };
    let deleted = Past {
        deleted: true,
        ..GOOD
    };
    let rejected = Past {
        rejected: true,
        ..GOOD
    };
    let over = Past { over: true, ..GOOD };
    let local = Past {
        local: true,
        ..GOOD
    };
    let foreign = Past {
        foreign: true,
        ..GOOD
    };
    let foreign_local = Past {
        local: true,
        elsewhere: true,
        ..foreign
    };
    let foreign_platform = Past {
        elsewhere: true,
        ..foreign
    };
    // Expired, and rejected before that: its time is what is said.
    let both = Past {
        rejected: true,
        ..expired
    };
    let over_rejected = Past {
        rejected: true,
        ..over
    };
    let table: &[(&[Past], Result<u8, RebuildReason>)] = &[
        (&[], Err(NoCheckpoint)),
        (&[GOOD], Ok(1)),
        (&[GOOD, GOOD], Ok(2)),
        (&[GOOD, expired], Ok(1)),
        (&[GOOD, deleted], Ok(1)),
        (&[GOOD, rejected], Ok(1)),
        (&[GOOD, over, rejected, deleted], Ok(1)),
        (&[expired], Err(Expired)),
        (&[over], Err(Expired)),
        (&[deleted], Err(Deleted)),
        (&[rejected], Err(Rejected)),
        (&[both], Err(Expired)),
        (&[over_rejected], Err(Expired)),
        (&[rejected, expired], Err(Expired)),
        (&[expired, rejected], Err(Rejected)),
        (&[expired, deleted], Err(Deleted)),
        (&[local], Ok(1)),
        (&[foreign_local], Err(Unreachable)),
        (&[foreign_platform], Ok(1)),
        // The server's own store is reached by its own runner alone.
        (&[foreign], Err(Unreachable)),
        (&[expired, foreign_local], Err(Unreachable)),
        (&[foreign_local, rejected], Err(Rejected)),
        // Out of reach is not out of the question: an older one that is there is better than none.
        (&[GOOD, foreign_local], Ok(1)),
        (&[GOOD, deleted, foreign, foreign_local], Ok(1)),
        (&[GOOD, GOOD, foreign], Ok(2)),
    ];
    for (pasts, want) in table {
        assert_eq!(outcome(&with(pasts)), *want, "{pasts:?}");
    }
}

#[test]
fn a_past_without_a_start_is_fresh_and_a_fork_is_told_so_until_it_has_run() {
    let mut state = with(&[]);
    assert_eq!(rebuild(&state), RebuildReason::NoCheckpoint);
    let started = state.clone();
    state.ever_checkpointed = false;
    state.ever_started = false;
    assert_eq!(plan(&state, RUNNER, NOW_MS), ResumePlan::Fresh);
    // Checkpointed and never started is not fresh.
    state.ever_checkpointed = true;
    assert_eq!(rebuild(&state), RebuildReason::NoCheckpoint);

    let mut fork = started;
    fork.forked = Some(Forked {
        source: SessionId([1; 16]),
        root: SessionId([1; 16]),
        boundary_seq: 5,
        adopted: None,
    });
    fork.started_here = false;
    fork.ever_checkpointed = false;
    assert_eq!(rebuild(&fork), RebuildReason::Forked);
    fork.started_here = true;
    assert_eq!(rebuild(&fork), RebuildReason::NoCheckpoint);
    fork.started_here = false;
    fork.ever_checkpointed = true;
    assert_eq!(rebuild(&fork), RebuildReason::NoCheckpoint);
    // A fork of a session that never started is as fresh as its source.
    fork.ever_checkpointed = false;
    fork.ever_started = false;
    assert_eq!(plan(&fork, RUNNER, NOW_MS), ResumePlan::Fresh);
}

#[test]
fn plans_through_a_life() {
    let plan_of = |b: &mut Boxed| {
        if b.state.run.is_none() {
            b.message("m").expect("message");
        }
        let token = b.claim().expect("claim");
        let plan = b.plan();
        b.call(token, "ready", serde_json::json!({}))
            .expect("ready");
        b.settle(token, None).expect("settle");
        plan
    };
    let reason = |plan: ResumePlan| match plan {
        ResumePlan::EventLogRebuild { reason, .. } => Some(reason),
        _ => None,
    };
    let mut b = Boxed::new();
    assert_eq!(plan_of(&mut b), ResumePlan::Fresh);
    assert_eq!(reason(plan_of(&mut b)), Some(RebuildReason::NoCheckpoint));
    let id = b.turn("s");
    let ResumePlan::Checkpoint { id: got, .. } = plan_of(&mut b) else {
        panic!("no disk")
    };
    assert_eq!(got, id);
    let mut head = b.fork(b.state.last_seq);
    assert_eq!(reason(plan_of(&mut head)), Some(RebuildReason::Forked));
    assert_eq!(
        reason(plan_of(&mut head)),
        Some(RebuildReason::NoCheckpoint)
    );
    let mut disk = b.fork_disk(id);
    let ResumePlan::Checkpoint {
        id: got, snapshot, ..
    } = plan_of(&mut disk)
    else {
        panic!("no disk")
    };
    assert_ne!(got, id, "the child's own");
    assert_eq!(
        snapshot,
        b.state
            .checkpoints
            .find(id)
            .expect("listed")
            .created
            .snapshot
    );
    // Whoever cannot reach the server's own store rebuilds.
    disk.runner = RunnerId([99; 16]);
    assert_eq!(
        reason(plan_of(&mut disk)),
        Some(RebuildReason::SnapshotUnreachable)
    );
}

/// What the disk of the plan is instead of.
fn instead_of(state: &State) -> Option<(Option<u8>, RebuildReason)> {
    match plan(state, RUNNER, NOW_MS) {
        ResumePlan::Checkpoint { instead_of, .. } => {
            instead_of.map(|i| (i.id.map(|id| id.0[0]), i.reason))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_older_disk_says_what_it_is_instead_of() {
    let deleted = Past {
        deleted: true,
        ..GOOD
    };
    let rejected = Past {
        rejected: true,
        ..GOOD
    };
    let over = Past { over: true, ..GOOD };
    let foreign = Past {
        foreign: true,
        local: true,
        ..GOOD
    };
    let table = [
        (vec![GOOD, GOOD], None),
        (vec![deleted, GOOD], None),
        (
            vec![GOOD, deleted],
            Some((Some(2), RebuildReason::SnapshotDeleted)),
        ),
        (
            vec![GOOD, deleted, rejected],
            Some((Some(3), RebuildReason::CheckpointRejected)),
        ),
        (
            vec![GOOD, over],
            Some((Some(2), RebuildReason::CheckpointExpired)),
        ),
        (
            vec![GOOD, foreign],
            Some((Some(2), RebuildReason::SnapshotUnreachable)),
        ),
    ];
    for (pasts, wanted) in table {
        assert_eq!(instead_of(&with(&pasts)), wanted, "{pasts:?}");
    }
    // What came after the newest checkpoint has no id.
    let mut state = with(&[GOOD, GOOD]);
    state.unkept_seq = 1;
    assert_eq!(instead_of(&state), None, "kept since");
    state.unkept_seq = 3;
    let failed = Some((None, RebuildReason::SnapshotFailed));
    assert_eq!(instead_of(&state), failed);
    state.now.changed = true;
    let lost = Some((None, RebuildReason::SandboxLost));
    assert_eq!(instead_of(&state), lost);
}
