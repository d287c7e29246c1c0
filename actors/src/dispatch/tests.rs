//! Fairness, targets, capacity, back-off: the queue alone.

use std::collections::HashMap;
use std::time::Duration;

use super::matcher::{Claimed, Match, Matcher, PollId};
use super::{RunnerInfo, RunnerTarget, Workspaces};
use crate::code::Code;
use crate::ids::{
    HarnessRevision, RunId, RunnerId, SandboxRevision, SessionId, TokenDigest, WorkspaceId,
};
use crate::session::payload::WorkspaceRef;
use crate::session::projection::{LiveRow, Target};
use crate::session::state::Phase;

const NOW: Duration = Duration::from_secs(100);
const H: HarnessRevision = HarnessRevision([1; 16]);
const S: SandboxRevision = SandboxRevision([2; 16]);

fn ws(n: u8) -> WorkspaceRef {
    WorkspaceRef(WorkspaceId([n; 16]))
}

fn row(session: u32, workspace: u8, target: Target) -> LiveRow {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&session.to_be_bytes());
    LiveRow {
        session: SessionId(id),
        workspace: ws(workspace),
        target,
        run: RunId(id),
        phase: Phase::Queued,
        not_before_ms: 0,
        queued_at_ms: i64::from(session),
        owner: None,
        claim: None,
    }
}

fn pinned(session: u32, workspace: u8) -> LiveRow {
    row(session, workspace, Target::Pinned(H, S))
}

fn runner(n: u8, targets: Vec<RunnerTarget>, capacity: u32) -> RunnerInfo {
    let workspaces = Workspaces::All;
    RunnerInfo {
        id: RunnerId([n; 16]),
        targets,
        workspaces,
        capacity,
        draining: false,
    }
}

fn exact(n: u8, capacity: u32) -> RunnerInfo {
    runner(n, vec![RunnerTarget::Exact(H, S)], capacity)
}

fn matcher(runners: impl IntoIterator<Item = RunnerInfo>) -> Matcher {
    let mut m = Matcher::new(false, 1_000);
    for r in runners {
        assert!(m.enrol(r).expect("enrol").is_empty());
    }
    m
}

fn offer(m: &mut Matcher, row: LiveRow) -> Vec<Match> {
    m.offer(row, NOW, NOW, NOW, false)
}

fn poll(m: &mut Matcher, poll: u64, n: u8, max: usize) -> Vec<Match> {
    m.poll(PollId(poll), RunnerId([n; 16]), max).expect("poll")
}

fn granted(m: &mut Matcher, of: &Match) {
    m.held(of.row.session, TokenDigest([1; 16]), of.runner);
    assert!(m.settle(of, Claimed::Yes).is_empty());
}

#[test]
fn a_run_goes_to_whoever_advertises_its_target_only() {
    let other = RunnerTarget::Exact(HarnessRevision([9; 16]), S);
    let any = runner(3, vec![RunnerTarget::AnyExternal], 5);
    let mut m = matcher([exact(1, 5), runner(2, vec![other], 5), any]);
    assert!(poll(&mut m, 2, 2, 1).is_empty());
    assert!(poll(&mut m, 3, 3, 1).is_empty());
    assert!(
        offer(&mut m, pinned(1, 1)).is_empty(),
        "`*` is for external harnesses"
    );
    let got = poll(&mut m, 1, 1, 1);
    assert_eq!(got.len(), 1);
    granted(&mut m, &got[0]);
    let external = offer(&mut m, row(2, 1, Target::External(H, S)));
    assert_eq!(external[0].runner, RunnerId([3; 16]));
    assert_eq!(m.depth(), 1);
}

#[test]
fn a_runner_of_one_workspace_serves_that_one() {
    let mut info = exact(1, 5);
    info.workspaces = Workspaces::One(ws(2));
    let mut m = matcher([info]);
    offer(&mut m, pinned(1, 1));
    assert!(poll(&mut m, 1, 1, 5).is_empty());
    let got = offer(&mut m, pinned(2, 2));
    assert_eq!(got[0].row.workspace, ws(2));
}

#[test]
fn workspaces_take_turns_and_sessions_wait_in_order() {
    let mut m = matcher([exact(1, 1_000)]);
    for n in 0..60 {
        offer(&mut m, pinned(n, 1));
    }
    for n in 60..70 {
        offer(&mut m, pinned(n, 2));
    }
    let got = poll(&mut m, 1, 1, 20);
    let mut shares: HashMap<WorkspaceRef, usize> = HashMap::new();
    got.iter()
        .for_each(|g| *shares.entry(g.row.workspace).or_default() += 1);
    assert_eq!(shares[&ws(1)], 10);
    assert_eq!(shares[&ws(2)], 10);
    let first: Vec<i64> = got
        .iter()
        .filter(|g| g.row.workspace == ws(1))
        .map(|g| g.row.queued_at_ms)
        .collect();
    assert!(first.is_sorted());
}

#[test]
fn a_workspace_that_comes_back_again_and_again_does_not_starve_others() {
    let mut m = matcher([exact(1, 1_000)]);
    for n in 0..10 {
        offer(&mut m, pinned(n, 2));
    }
    let mut of_two = 0;
    for n in 0..20 {
        offer(&mut m, pinned(100 + n, 1));
        let got = poll(&mut m, u64::from(n), 1, 1);
        of_two += usize::from(got[0].row.workspace == ws(2));
        granted(&mut m, &got[0]);
    }
    assert!(of_two >= 9, "{of_two} of 10");
}

#[test]
fn capacity_bounds_claims_and_a_freed_place_is_used() {
    let mut m = matcher([exact(1, 2)]);
    for n in 0..5 {
        offer(&mut m, pinned(n, 1));
    }
    let got = poll(&mut m, 1, 1, 5);
    assert_eq!(got.len(), 2);
    got.iter().for_each(|g| granted(&mut m, g));
    assert!(poll(&mut m, 2, 1, 5).is_empty());
    assert!(
        m.freed(got[0].row.session, TokenDigest([9; 16])).is_empty(),
        "another claim's end"
    );
    let next = m.freed(got[0].row.session, TokenDigest([1; 16]));
    assert_eq!((next.len(), next[0].poll), (1, PollId(2)));
    let blocked = m.blocked_by(pinned(4, 1).session, NOW, |_| true);
    assert_eq!(blocked, Some("capacity"));
}

#[test]
fn refused_and_unanswered_claims_leave_the_queue_right() {
    let mut m = matcher([exact(1, 5)]);
    offer(&mut m, pinned(1, 1));
    let got = poll(&mut m, 1, 1, 1);
    assert!(m.settle(&got[0], Claimed::Stale).is_empty());
    assert_eq!(m.depth(), 0);
    offer(&mut m, pinned(1, 1));
    let got = poll(&mut m, 2, 1, 1);
    let later = NOW + Duration::from_secs(1);
    assert!(m.settle(&got[0], Claimed::Later(later)).is_empty());
    assert!(poll(&mut m, 3, 1, 1).is_empty());
    assert_eq!(
        m.blocked_by(got[0].row.session, NOW, |_| true),
        Some("backoff")
    );
    assert!(m.mature(NOW).is_empty());
    assert_eq!(m.next_ripe(), Some(later));
    assert_eq!(m.mature(later).len(), 1);
    // A newer offer of the session outlives the end of an older claim.
    let got = poll(&mut m, 4, 1, 1);
    assert!(got.is_empty());
    m.withdraw(pinned(1, 1).session);
    let mut newer = pinned(1, 1);
    newer.run = RunId([8; 16]);
    assert_eq!(offer(&mut m, newer).len(), 1);
}

#[test]
fn rows_read_some_time_ago_change_nothing_that_is_known() {
    let mut m = matcher([]);
    let mut newer = pinned(1, 1);
    newer.run = RunId([8; 16]);
    offer(&mut m, newer.clone());
    m.offer(pinned(1, 1), NOW, NOW, NOW, true);
    m.enrol(exact(1, 5)).expect("enrol");
    assert_eq!(poll(&mut m, 1, 1, 1)[0].row.run, newer.run);
}

#[test]
fn draining_and_forgotten_runners_get_nothing() {
    let mut m = matcher([exact(1, 5), exact(2, 5)]);
    assert!(poll(&mut m, 1, 1, 1).is_empty());
    assert_eq!(m.drain(RunnerId([1; 16])), [PollId(1)]);
    assert!(offer(&mut m, pinned(1, 1)).is_empty());
    let refused = m.poll(PollId(2), RunnerId([1; 16]), 1).unwrap_err();
    assert_eq!(refused.code, Code::RunnerDraining);
    assert!(poll(&mut m, 3, 2, 1).len() == 1);
    m.forget(RunnerId([2; 16]));
    let gone = m.poll(PollId(4), RunnerId([2; 16]), 1).unwrap_err();
    assert_eq!(gone.code, Code::RunnerNotFound);
    offer(&mut m, pinned(2, 1));
    assert_eq!(
        m.blocked_by(pinned(2, 1).session, NOW, |_| true),
        Some("no_runner")
    );
}

#[test]
fn dead_runners_do_not_count_and_a_pause_is_named() {
    let mut m = matcher([exact(1, 5)]);
    offer(&mut m, pinned(1, 1));
    let session = pinned(1, 1).session;
    assert_eq!(m.blocked_by(session, NOW, |_| false), Some("no_runner"));
    assert_eq!(m.blocked_by(session, NOW, |_| true), None);
    let mut paused = Matcher::new(true, 10);
    paused.enrol(exact(1, 5)).expect("enrol");
    offer(&mut paused, pinned(1, 1));
    assert!(poll(&mut paused, 1, 1, 1).is_empty());
    assert_eq!(
        paused.blocked_by(session, NOW, |_| true),
        Some("paused_start")
    );
}

#[test]
fn a_new_run_goes_to_the_runner_served_longest_ago() {
    let mut m = matcher([exact(1, 5), exact(2, 5)]);
    let mut served = Vec::new();
    for n in 0..6u32 {
        let _ = poll(&mut m, u64::from(n) * 2, 1, 1);
        let _ = poll(&mut m, u64::from(n) * 2 + 1, 2, 1);
        let got = offer(&mut m, pinned(n, 1));
        served.push(got[0].runner);
        m.withdraw(got[0].row.session);
        m.settle(&got[0], Claimed::Yes);
    }
    let first = served.iter().filter(|r| **r == RunnerId([1; 16])).count();
    assert_eq!(first, 3, "{served:?}");
}

#[test]
fn a_hundred_thousand_runs_are_matched_without_searching() {
    let mut m = matcher([exact(1, u32::MAX)]);
    // Many workspaces, and as many runs that were withdrawn again.
    for n in 0..100_000u32 {
        let workspace = u8::try_from(n % 200).expect("small");
        offer(&mut m, pinned(n, workspace));
        offer(&mut m, pinned(200_000 + n, workspace));
        m.withdraw(pinned(200_000 + n, workspace).session);
    }
    assert_eq!(m.depth(), 100_000);
    let mut got = 0;
    for n in 0..100u64 {
        let matches = poll(&mut m, n, 1, 1_000);
        got += matches.len();
        matches.iter().for_each(|g| {
            m.withdraw(g.row.session);
            m.settle(g, Claimed::Yes);
        });
    }
    assert_eq!((got, m.depth()), (100_000, 0));
}
