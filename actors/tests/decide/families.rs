//! Random families: turns, checkpoints, pins, expiries and forks in whatever order, against a
//! model that knows nothing of events. The kit checks after each decision that the fold of the
//! log is the state, that the rows kept by changes are those that follow from it, and that a
//! fork's past is its source's.

use longhaul_actors::ids::{CheckpointId, RunnerId};
use longhaul_actors::session::checkpoints::SnapshotState;
use longhaul_actors::session::command::Verb;
use longhaul_actors::session::payload::{RebuildReason, ResumePlan};
use longhaul_actors::session::state::Phase;
use longhaul_actors::session::status::Status;
use proptest::prelude::*;
use serde_json::json;

use crate::kit::{Boxed, RUNNER};
use crate::lineage::{new_checkpoint, snapshot, taken};

#[derive(Debug, Clone)]
enum Move {
    /// A turn; its checkpoint's snapshot, if it ends with one, and one in its middle.
    Turn(Option<u8>, Option<u8>),
    /// A turn that is left in the middle, and one that parks.
    Leave(bool),
    Pin(u8, bool),
    Reject(u8),
    Wait(u16),
    Timer,
    /// A fork after a part of the log, and of a checkpoint.
    Fork(u8),
    ForkDisk(u8),
    /// Who claims from here on.
    Runner(bool),
}

fn moves() -> impl Strategy<Value = (u8, Move)> {
    let snap = proptest::option::of(0u8..4);
    let what = prop_oneof![
        5 => (snap.clone(), snap).prop_map(|(a, b)| Move::Turn(a, b)),
        1 => any::<bool>().prop_map(Move::Leave),
        2 => (0u8..4, any::<bool>()).prop_map(|(c, p)| Move::Pin(c, p)),
        1 => (0u8..3).prop_map(Move::Reject),
        2 => (0u16..700).prop_map(Move::Wait),
        1 => Just(Move::Timer),
        2 => any::<u8>().prop_map(Move::Fork),
        2 => (0u8..3).prop_map(Move::ForkDisk),
        1 => any::<bool>().prop_map(Move::Runner),
    ];
    (any::<u8>(), what)
}

/// What a checkpoint is, without events.
#[derive(Debug, Clone)]
struct Kept {
    id: CheckpointId,
    snapshot: String,
    through: u64,
    over_at_ms: i64,
    pinned: bool,
    rejected: bool,
    expired: bool,
}

/// What a session is, as far as this test cares.
#[derive(Debug, Clone, Default)]
struct Model {
    kept: Vec<Kept>,
    started: bool,
    started_here: bool,
    checkpointed_here: bool,
    fork: bool,
}

const KEPT_MAX: usize = 3;
const TTL_S: u64 = 1;

impl Model {
    fn add(&mut self, b: &Boxed, snapshot: &str, through: u64) {
        self.checkpointed_here = true;
        self.kept.push(Kept {
            id: b.newest(),
            snapshot: snapshot.to_owned(),
            through,
            over_at_ms: b.door.clock.wall_ms() + 1_000,
            pinned: false,
            rejected: false,
            expired: false,
        });
        while self.kept.iter().filter(|k| !k.pinned).count() > KEPT_MAX {
            let oldest = self.kept.iter().position(|k| !k.pinned);
            self.kept.remove(oldest.expect("one"));
        }
    }

    fn expire(&mut self, now_ms: i64) {
        for k in &mut self.kept {
            k.expired |= k.over_at_ms <= now_ms;
        }
    }

    /// The plan of a claim; the session had `last_seq` events.
    fn plan(&self, runner: RunnerId, last_seq: u64) -> (String, u64) {
        let usable = self.kept.iter().rev().find(|k| !k.expired && !k.rejected);
        if let Some(k) = usable.filter(|_| runner == RUNNER) {
            return (k.id.to_string(), last_seq - k.through);
        }
        let reason = if !self.started && !self.checkpointed_here {
            return ("fresh".to_owned(), 0);
        } else if self.fork && !self.started_here && !self.checkpointed_here {
            RebuildReason::Forked
        } else {
            match self.kept.last() {
                None => RebuildReason::NoCheckpoint,
                Some(k) if k.expired => RebuildReason::CheckpointExpired,
                Some(k) if k.rejected => RebuildReason::CheckpointRejected,
                Some(_) => RebuildReason::SnapshotUnreachable,
            }
        };
        (format!("{reason:?}"), 0)
    }

    fn check(&self, b: &Boxed) {
        let ours: Vec<_> = self
            .kept
            .iter()
            .map(|k| {
                (
                    k.id,
                    k.pinned,
                    k.rejected,
                    k.expired,
                    k.snapshot.clone(),
                    k.through,
                )
            })
            .collect();
        let theirs = b.state.checkpoints.0.values().map(|c| {
            let expired = c.snapshot_state == SnapshotState::Expired;
            let created = &c.created;
            let id = created.snapshot.id.clone();
            (
                created.checkpoint_id,
                c.pinned,
                c.rejected.is_some(),
                expired,
                id,
                created.through_sequence,
            )
        });
        assert_eq!(ours, theirs.collect::<Vec<_>>());
    }
}

/// Claims, and checks the plan.
fn claim(b: &mut Boxed, m: &mut Model) -> longhaul_actors::ids::ClaimToken {
    if b.state
        .run
        .as_ref()
        .is_some_and(|r| r.phase != Phase::Queued)
    {
        b.interrupt().expect("interrupt");
    }
    if b.state.run.is_none() {
        b.message("m").expect("message");
    }
    let now_ms = b.door.clock.wall_ms();
    let fresh = |k: &&Kept| !k.expired && k.over_at_ms <= now_ms;
    let said = m.kept.iter().filter(fresh).count() as u64;
    let last_seq = b.state.last_seq + said;
    m.expire(now_ms);
    let token = b.claim().expect("claim");
    let plan = match b.plan() {
        ResumePlan::Checkpoint {
            id, events_after, ..
        } => (id.to_string(), events_after),
        ResumePlan::EventLogRebuild { reason, .. } => (format!("{reason:?}"), 0),
        ResumePlan::Fresh => ("fresh".to_owned(), 0),
        ResumePlan::Attached { .. } => panic!("nothing is attached"),
    };
    assert_eq!(plan, m.plan(b.runner, last_seq));
    b.call(token, "ready", json!({})).expect("ready");
    (m.started, m.started_here) = (true, true);
    token
}

fn play(family: &mut Vec<(Boxed, Model)>, which: u8, what: &Move) {
    let at = usize::from(which) % family.len();
    let grown = family.len() < 6;
    let (b, m) = &mut family[at];
    let pick = |m: &Model, n: u8| m.kept.iter().rev().nth(usize::from(n)).cloned();
    match what {
        Move::Turn(end, middle) => {
            let token = claim(b, m);
            if let Some(n) = middle {
                let name = n.to_string();
                let wrote = b.open(token, "agent.tool_use");
                let verb = Verb::Checkpoint(Box::new(new_checkpoint(&name)));
                b.attempt(token, None, verb).expect("checkpoint");
                m.add(b, &name, wrote.seq());
            }
            let name = end.map(|n| n.to_string());
            b.settle(token, name.as_deref().map(taken)).expect("settle");
            if let Some(name) = name {
                m.add(b, &name, b.state.last_seq);
            }
        }
        Move::Leave(park) => {
            let token = claim(b, m);
            let question = b.open(token, "agent.question");
            if *park {
                let on = json!([{"question_id": question}]);
                let body = json!({"waiting_on": on, "compute": "released"});
                b.call(token, "park", body).expect("park");
            }
        }
        Move::Pin(n, pinned) => {
            if let Some(k) = pick(m, *n) {
                b.pin(k.id, *pinned).expect("pin");
                let k = m.kept.iter_mut().find(|o| o.id == k.id);
                k.expect("kept").pinned = *pinned;
            }
        }
        Move::Reject(n) => {
            let token = claim(b, m);
            if let Some(k) = pick(m, *n) {
                let verb = Verb::RejectCheckpoint {
                    checkpoint: k.id,
                    reason: "why".into(),
                    temporary: false,
                };
                b.attempt(token, None, verb).expect("reject");
                let k = m.kept.iter_mut().find(|o| o.id == k.id).expect("kept");
                k.rejected |= !k.expired;
            }
            b.settle(token, None).expect("settle");
        }
        Move::Wait(ms) => b.world.advance_ms(u64::from(*ms)),
        Move::Timer => {
            let now_ms = b.door.clock.wall_ms();
            let due = b.timers().into_iter().find(|t| t.due_ms <= now_ms);
            if let Some(timer) = due {
                b.expire(timer.expiry());
                m.expire(now_ms);
            }
        }
        Move::Fork(part) => {
            let seq = (b.state.last_seq * (u64::from(*part) + 1)).div_ceil(256);
            let child = b.fork(seq);
            let started = b.at(seq).ever_started;
            let model = Model {
                started,
                fork: true,
                ..Model::default()
            };
            if grown {
                family.push((child, model));
            }
        }
        Move::ForkDisk(n) => {
            let now_ms = b.door.clock.wall_ms();
            let good = |k: &Kept| !k.expired && !k.rejected && k.over_at_ms > now_ms;
            let Some(k) = pick(m, *n).filter(good) else {
                return;
            };
            let child = b.fork_disk(k.id);
            assert_eq!(
                child.types_after(k.through).len() as u64,
                child.state.last_seq - k.through
            );
            let mut model = Model {
                started: b.at(k.through).ever_started,
                fork: true,
                checkpointed_here: true,
                ..Model::default()
            };
            assert_eq!(
                child
                    .state
                    .checkpoints
                    .head()
                    .expect("one")
                    .created
                    .snapshot,
                snapshot(&k.snapshot)
            );
            model.kept.push(Kept {
                id: child.newest(),
                pinned: false,
                rejected: false,
                expired: false,
                ..k
            });
            if grown {
                family.push((child, model));
            }
        }
        Move::Runner(own) => b.runner = if *own { RUNNER } else { RunnerId([99; 16]) },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn families_are_what_the_model_says(moves in proptest::collection::vec(moves(), 1..40)) {
        let mut b = Boxed::empty();
        b.ttl_s = Some(TTL_S);
        b.limits.checkpoints_per_session_max = u32::try_from(KEPT_MAX).expect("fits");
        b.create(json!({})).expect("create");
        let mut family = vec![(b, Model::default())];
        for (which, what) in &moves {
            play(&mut family, *which, what);
            for (b, m) in &family {
                m.check(b);
                prop_assert!(!b.state.status.is_terminal());
            }
        }
        // Every one of them still runs, whatever its past.
        for (b, m) in &mut family {
            let token = claim(b, m);
            b.settle(token, None).expect("settle");
            prop_assert_eq!(b.state.status, Status::Idle);
        }
    }
}
