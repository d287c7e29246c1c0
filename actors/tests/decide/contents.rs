//! Contents whose time is over.

use std::collections::BTreeSet;

use longhaul_actors::code::Code;
use longhaul_actors::session::aging::Aging;
use longhaul_actors::session::event::EventType as T;
use longhaul_actors::session::facts::Aged;
use longhaul_actors::session::payload::{Body, ContentErased, RebuildReason, ResumePlan};
use longhaul_actors::session::projection::{Due, TimerRow};
use serde_json::json;

use super::kit::Boxed;

const TTL_S: u64 = 60;
/// Contents that expire in one step.
const STEP: usize = 4;
const TTL_MS: u64 = TTL_S * 1_000;

/// What becomes of the contents of a session in a box.
#[derive(Default)]
pub(crate) struct Kept {
    /// How long they stay, by the policy of the workspace.
    pub(crate) ttl_s: Option<u64>,
    /// How much of the past other living sessions share.
    shared_seq: u64,
    /// Positions whose contents have gone.
    gone: BTreeSet<u64>,
    /// When the last timer was told to ask again.
    pub(crate) again_ms: Option<i64>,
}

impl Kept {
    /// Whether the content at this position has gone.
    pub(crate) fn has_gone(&self, seq: u64) -> bool {
        self.gone.contains(&seq)
    }
}

impl Boxed {
    /// At most [`STEP`] contents that can go, as the log would say.
    pub(crate) fn aged(&self, aging: &Aging) -> Aged {
        let shared = self.kept.shared_seq;
        let freed = shared < aging.kept_seq;
        let range = match freed {
            true => shared + 1..=aging.kept_seq,
            false => shared.max(aging.through_seq) + 1..=aging.last_seq,
        };
        let mut looked: Vec<u64> = range.collect();
        if freed {
            looked.reverse();
        }
        looked.truncate(STEP);
        let is_content = |seq: &u64| self.log[*seq as usize - 1].event.body == Body::Opaque;
        let there = |seq: &&u64| is_content(seq) && !self.kept.gone.contains(seq);
        let ranges = looked.iter().filter(there).map(|seq| (*seq, *seq));
        let mut ranges: Vec<_> = ranges.collect();
        ranges.sort_unstable();
        let last = looked.last().copied();
        Aged {
            looked_at: (aging.through_seq, aging.kept_seq),
            ranges,
            through_seq: last.filter(|_| !freed).unwrap_or(aging.through_seq),
            kept_seq: match freed {
                true => last.map_or(shared, |seq| seq - 1),
                false => aging.kept_seq.max(shared),
            },
            shared_seq: shared,
        }
    }

    /// Contents go: only those of people and agents, none that is shared, each once.
    pub(crate) fn let_go(&mut self, ranges: &[(u64, u64)]) {
        for seq in ranges.iter().flat_map(|(from, to)| *from..=*to) {
            let body = &self.log[seq as usize - 1].event.body;
            assert_eq!(body, &Body::Opaque, "only contents of people and agents go");
            assert!(seq > self.kept.shared_seq, "what is shared stays");
            assert!(self.kept.gone.insert(seq), "each goes once");
        }
    }
}

/// A session whose workspace keeps contents for a minute, with one settled turn.
fn lived() -> Boxed {
    let mut b = fresh();
    b.turn("a");
    b
}

fn fresh() -> Boxed {
    let mut b = Boxed::empty();
    b.kept.ttl_s = Some(TTL_S);
    b.create(json!({})).expect("create");
    b
}

fn timer(b: &Boxed) -> Option<TimerRow> {
    let timers = b.timers();
    let mut found = timers.into_iter().filter(|t| t.due == Due::Contents);
    let timer = found.next();
    assert_eq!(found.next(), None, "one is enough");
    timer
}

/// The timer is due, again and again for as long as it is to ask at once.
fn fire(b: &mut Boxed) -> usize {
    let timer = timer(b).expect("a timer");
    for steps in 1..100 {
        b.expire(timer.expiry());
        if b.kept.again_ms.is_none_or(|at| at > now_ms(b)) {
            return steps;
        }
    }
    panic!("it never ends");
}

fn now_ms(b: &Boxed) -> i64 {
    b.door.clock.wall_ms()
}

fn is_missing(b: &Boxed, seq: u64) -> bool {
    let missing = b.state.missing.iter();
    missing
        .into_iter()
        .any(|(from, to)| (*from..=*to).contains(&seq))
}

fn opaque(b: &Boxed) -> Vec<u64> {
    let is = |e: &&longhaul_actors::session::event::NewEvent| e.event.body == Body::Opaque;
    b.log.iter().filter(is).map(|e| e.event.seq).collect()
}

fn said(b: &Boxed) -> Vec<ContentErased> {
    let bodies = b.log.iter().map(|e| &e.event.body);
    let said = bodies.filter_map(|body| match body {
        Body::ContentErased(c) => Some(c.clone()),
        _ => None,
    });
    said.collect()
}

#[test]
fn without_a_policy_nothing_is_due() {
    let mut b = Boxed::new();
    b.turn("a");
    assert_eq!(timer(&b), None);
    // And nothing to expire: no timer either.
    assert_eq!(timer(&fresh()), None);
}

#[test]
fn what_was_quiet_for_long_enough_goes_once() {
    let mut b = lived();
    let (from, contents) = (b.state.last_seq, opaque(&b));
    assert!(!contents.is_empty());
    let timer = timer(&b).expect("a timer");
    b.world.advance_ms(TTL_MS - 1);
    b.expire(timer.expiry());
    assert_eq!(
        (b.state.last_seq, b.kept.again_ms),
        (from, Some(now_ms(&b) + 1))
    );
    b.world.advance_ms(1);
    b.expire(timer.expiry());
    assert!(b.types_after(from).iter().all(|t| *t == T::ContentErased));
    fire_out(&mut b, timer);
    assert_eq!(b.kept.gone.iter().copied().collect::<Vec<_>>(), contents);
    let mut told = said(&b).into_iter().flat_map(|c| c.ranges);
    assert!(contents.iter().all(|seq| is_missing(&b, *seq)));
    assert!(told.all(|(from, to)| (from..=to).all(|seq| b.kept.gone.contains(&seq))));
    // Nothing is left to look at, and a late word says nothing.
    let from = b.state.last_seq;
    assert!(b.timers().iter().all(|t| t.due != Due::Contents));
    b.world.advance_ms(10 * TTL_MS);
    b.expire(timer.expiry());
    assert_eq!((b.state.last_seq, b.kept.again_ms), (from, None));
}

/// Asks until nothing more is to be done at once.
fn fire_out(b: &mut Boxed, timer: TimerRow) {
    while b.kept.again_ms.is_some_and(|at| at <= now_ms(b)) {
        b.expire(timer.expiry());
    }
}

#[test]
fn activity_keeps_everything_and_moves_no_row() {
    let mut b = fresh();
    b.message("a").expect("message");
    let token = b.claim().expect("claim");
    b.call(token, "ready", json!({})).expect("ready");
    let timer = timer(&b).expect("a timer");
    for _ in 0..5 {
        b.world.advance_ms(TTL_MS - 1);
        let said = json!({"events": [{"type": "agent.message", "content": {"text": "b"}}]});
        b.call(token, "events", said).expect("events");
        assert_eq!(self::timer(&b), Some(timer), "the row stays as it is");
        b.expire(timer.expiry());
        assert_eq!(b.kept.again_ms, Some(now_ms(&b) + TTL_MS as i64));
    }
    assert!(b.kept.gone.is_empty() && said(&b).is_empty());
    // The end of a turn sets it anew; the word of the old row is out of date.
    b.call(token, "settle", json!({"outcome": "succeeded"}))
        .expect("settle");
    assert_ne!(self::timer(&b), Some(timer));
    b.world.advance_ms(TTL_MS);
    b.expire(timer.expiry());
    assert_eq!(b.kept.again_ms, None);
    assert!(b.kept.gone.is_empty());
    assert!(fire(&mut b) > 1, "in bounded steps");
    assert_eq!(b.kept.gone.len(), opaque(&b).len());
}

#[test]
fn what_comes_after_an_expiry_has_its_own_time() {
    let mut b = lived();
    b.world.advance_ms(TTL_MS);
    fire(&mut b);
    let before = b.kept.gone.clone();
    b.message("later").expect("message");
    let timer = timer(&b).expect("a timer of its own");
    b.world.advance_ms(TTL_MS - 1);
    b.expire(timer.expiry());
    assert_eq!(b.kept.gone, before);
    b.world.advance_ms(1);
    fire(&mut b);
    assert_eq!(b.kept.gone.len(), before.len() + 1);
}

#[test]
fn two_at_once_do_it_once() {
    let mut b = lived();
    b.world.advance_ms(TTL_MS);
    let timer = timer(&b).expect("a timer");
    for _ in 0..10 {
        // The kit refuses a position that goes twice.
        b.expire(timer.expiry());
    }
    let events = said(&b).len();
    assert_eq!(b.kept.gone.len(), opaque(&b).len());
    assert_eq!(events, fire_count(&b));
}

fn fire_count(b: &Boxed) -> usize {
    // Steps of at most so many positions, up to the last content.
    let last = *opaque(b).last().expect("some") as usize;
    last.div_ceil(STEP)
}

#[test]
fn what_is_shared_stays_until_it_is_not() {
    let mut b = lived();
    b.turn("b");
    let contents = opaque(&b);
    b.kept.shared_seq = contents[1];
    b.world.advance_ms(TTL_MS);
    fire(&mut b);
    let kept: Vec<_> = contents
        .iter()
        .copied()
        .filter(|s| *s <= b.kept.shared_seq)
        .collect();
    assert_eq!(b.kept.gone.len(), contents.len() - kept.len());
    assert!(kept.iter().all(|seq| !is_missing(&b, *seq)));
    assert_eq!(b.kept.again_ms, Some(now_ms(&b) + TTL_MS as i64));
    // Still shared: nothing is said. Then no longer.
    let from = b.state.last_seq;
    b.world.advance_ms(TTL_MS);
    fire(&mut b);
    assert_eq!(b.state.last_seq, from);
    b.kept.shared_seq = 0;
    b.world.advance_ms(TTL_MS);
    fire(&mut b);
    assert_eq!(b.kept.gone.iter().copied().collect::<Vec<_>>(), contents);
    assert_eq!(timer(&b), None);
}

#[test]
fn a_run_goes_on_without_its_past_and_not_without_its_input() {
    let mut b = lived();
    b.world.advance_ms(TTL_MS);
    fire(&mut b);
    b.message("b").expect("message");
    b.claim().expect("claim");
    let plan = b.state.claim().expect("a claim").resume.clone();
    match plan {
        ResumePlan::EventLogRebuild { reason, missing } => {
            assert_eq!(reason, RebuildReason::HistoryIncomplete);
            assert_eq!(missing, b.state.missing);
            assert!(!missing.is_empty());
        }
        ResumePlan::Checkpoint { missing, .. } => assert_eq!(missing, b.state.missing),
        other => panic!("{other:?}"),
    }

    let mut b = fresh();
    b.message("a").expect("message");
    b.world.advance_ms(TTL_MS);
    fire(&mut b);
    let from = b.state.last_seq;
    b.claim().ok();
    assert!(b.types_after(from).contains(&T::RunSettled));
    let error = b.state.last_run.as_ref().and_then(|r| r.error.clone());
    let error = error.expect("an error");
    assert_eq!(error.code, Code::HistoryUnavailable.text());
    assert!(error.message.contains("has expired"), "{}", error.message);
    // The conversation goes on.
    b.message("again").expect("message");
    b.claim().expect("claim");
}
