use longhaul_actors::code::Code;
use longhaul_actors::ids::{RunnerId, WorkspaceId};
use longhaul_actors::session::command::{Bearer, Expiry, Verb};
use longhaul_actors::session::event::EventType as E;
use longhaul_actors::session::payload::{Body, Outcome, RebuildReason, ResumePlan, WorkspaceRef};
use longhaul_actors::session::state::Phase;
use longhaul_actors::session::status::Status;
use serde_json::{Value, json};

use crate::kit::{Boxed, body};

fn say(text: &str) -> Value {
    json!({"events": [{"type": "agent.message", "content": {"text": text}}]})
}

#[test]
fn a_claim_takes_all_input_and_names_its_plan() {
    let mut b = Boxed::new();
    b.message("1").expect("1");
    b.message("2").expect("2");
    let before = b.state.last_seq;
    b.claim().expect("claim");
    assert_eq!(
        b.types_after(before),
        [E::RunClaimed, E::SessionStatus, E::RunInputsTaken]
    );
    assert_eq!(
        b.state.claim().map(|c| c.resume.clone()),
        Some(ResumePlan::Fresh)
    );
    let claim = b.state.claim().expect("claim");
    assert_eq!(claim.startup_deadline_ms - claim.claimed_at_ms, 60_000);
    assert_eq!(claim.deadline_ms - claim.startup_deadline_ms, 120_000);
    let text = String::from_utf8_lossy(&b.log[before as usize].content).into_owned();
    assert!(!text.contains("clm_"), "the token is not stored: {text}");
}

#[test]
fn a_run_is_claimed_once() {
    let mut b = Boxed::new();
    b.message("1").expect("1");
    b.claim().expect("claim");
    let again = b.claim().expect_err("claimed already");
    assert_eq!(again.code, Code::ClaimNotFound);
}

#[test]
fn an_old_token_changes_nothing() {
    let mut b = Boxed::new();
    b.message("1").expect("1");
    let old = b.claim().expect("claim");
    b.call(old, "ready", json!({})).expect("ready");
    b.expire(Expiry::Lease(old.digest()));
    assert_eq!(b.state.status, Status::Pending);
    let new = b.claim().expect("second");
    assert_eq!(
        b.state.run.as_ref().map(|r| (r.attempt, r.lost)),
        Some((2, 1))
    );
    for (verb, body) in [
        ("ready", json!({})),
        ("heartbeat", json!({})),
        ("events", say("late")),
        ("inputs", json!({})),
        (
            "park",
            json!({"waiting_on": [{"signal": "s"}], "compute": "held"}),
        ),
        ("settle", json!({"outcome": "succeeded"})),
        ("release", json!({})),
    ] {
        let refusal = b.refused(Code::ClaimLost, |b| b.call(old, verb, body.clone()));
        assert_eq!(refusal.extras["reason"], "lease");
    }
    b.call(new, "ready", json!({}))
        .expect("the new one goes on");
}

#[test]
fn a_claim_of_somebody_else_looks_absent() {
    let (mut b, token) = Boxed::running();
    let other = WorkspaceRef(WorkspaceId([7; 16]));
    for by in [Bearer::Workspace(other), Bearer::Runner(RunnerId([5; 16]))] {
        b.by = by;
        for (verb, body) in [
            ("heartbeat", json!({})),
            ("events", say("x")),
            ("settle", json!({"outcome": "succeeded"})),
        ] {
            b.refused(Code::ClaimNotFound, |b| b.call(token, verb, body.clone()));
        }
    }
    for by in [
        Bearer::Workspace(WorkspaceRef::DEFAULT),
        Bearer::Runner(RunnerId([4; 16])),
        Bearer::Trusted,
    ] {
        b.by = by;
        b.call(token, "heartbeat", json!({})).expect("its own");
    }
}

#[test]
fn an_unknown_token_is_not_found() {
    let (mut b, mut token) = Boxed::running();
    token.secret = [0xee; 16];
    b.refused(Code::ClaimNotFound, |b| {
        b.call(token, "heartbeat", json!({}))
    });
}

#[test]
fn startup_counts_only_before_ready() {
    let mut b = Boxed::new();
    b.message("1").expect("1");
    let token = b.claim().expect("claim");
    b.call(token, "ready", json!({})).expect("ready");
    let before = b.log.len();
    b.expire(Expiry::Startup(token.digest()));
    assert_eq!(b.log.len(), before);
    b.expire(Expiry::Lease(token.digest()));
    let second = b.claim().expect("second");
    b.expire(Expiry::Startup(second.digest()));
    assert_eq!(b.state.run.as_ref().map(|r| r.phase), Some(Phase::Queued));
    let refusal = b.refused(Code::ClaimLost, |b| b.call(second, "ready", json!({})));
    assert_eq!(refusal.extras["reason"], "startup");
}

#[test]
fn back_off_doubles_and_attempts_end() {
    let mut b = Boxed::new();
    b.message("1").expect("1");
    let mut waits = Vec::new();
    for _ in 0..4 {
        let token = b.claim().expect("claim");
        b.expire(Expiry::Lease(token.digest()));
        let run = b.state.run.as_ref().expect("queued again");
        waits.push(run.not_before_ms - b.state.updated_at_ms);
    }
    assert_eq!(waits, [1_000, 2_000, 4_000, 8_000]);
    b.message("left over").expect("message");
    let token = b.claim().expect("fifth");
    b.message("after the claim").expect("message");
    b.expire(Expiry::Lease(token.digest()));
    let last = b.state.last_run.clone().expect("settled");
    assert_eq!(
        last.error.map(|e| e.code).as_deref(),
        Some("runtime.attempts_exhausted")
    );
    // What the run did not take starts the next one.
    assert_eq!(
        b.state.run.as_ref().map(|r| (r.phase, r.attempt)),
        Some((Phase::Queued, 0))
    );
}

#[test]
fn release_is_no_lost_attempt() {
    let (mut b, token) = Boxed::running();
    let first = b.call(token, "release", json!({})).expect("release");
    assert_eq!(
        b.state.run.as_ref().map(|r| (r.lost, r.not_before_ms)),
        Some((0, b.state.updated_at_ms))
    );
    assert_eq!(
        b.call(token, "release", json!({})),
        Ok(first),
        "an identical retry"
    );
    let refusal = b.refused(Code::ClaimLost, |b| b.call(token, "heartbeat", json!({})));
    assert_eq!(refusal.extras["reason"], "released");
    b.claim().expect("claim");
    assert_eq!(b.state.run.as_ref().map(|r| r.attempt), Some(2));
    assert_eq!(
        b.state.claim().map(|c| c.resume.clone()),
        Some(ResumePlan::EventLogRebuild {
            reason: RebuildReason::NoCheckpoint,
            missing: Vec::new(),
        })
    );
}

#[test]
fn an_undelivered_claim_uses_no_number() {
    let mut b = Boxed::new();
    b.message("1").expect("1");
    let token = b.claim().expect("claim");
    b.attempt(token, None, Verb::Undeliver).expect("undeliver");
    b.claim().expect("again");
    assert_eq!(
        b.state.run.as_ref().map(|r| (r.attempt, r.lost)),
        Some((1, 0))
    );
    let (mut b, token) = Boxed::running();
    b.refused(Code::ClaimNotReady, |b| {
        b.attempt(token, None, Verb::Undeliver)
    });
}

#[test]
fn numbered_calls_are_answered_once() {
    let mut b = Boxed::new();
    b.message("x").expect("message");
    let token = b.claim().expect("claim");
    b.call(token, "ready", json!({"n": 1})).expect("ready");
    let mut two = say("once");
    two["n"] = json!(2);
    let first = b.call(token, "events", two.clone()).expect("events");
    let events = b.log.len();
    assert_eq!(b.call(token, "events", two), Ok(first));
    assert_eq!(b.log.len(), events);
    let refusal = b.refused(Code::OutOfOrder, |b| {
        b.call(token, "heartbeat", json!({"n": 4}))
    });
    assert_eq!(refusal.extras["expected"], 3);
    b.refused(Code::OutOfOrder, |b| {
        b.call(token, "heartbeat", json!({"n": 2}))
    });
    b.call(token, "heartbeat", json!({"n": 3}))
        .expect("in order");
}

#[test]
fn settle_is_idempotent_per_outcome() {
    let (mut b, token) = Boxed::running();
    let ok = json!({"outcome": "succeeded", "usage": {"input_tokens": 10, "output_tokens": 3}});
    let first = b.call(token, "settle", ok.clone()).expect("settle");
    assert_eq!(body(&first)["usage"]["input_tokens"], 10);
    assert_eq!(b.call(token, "settle", ok), Ok(first));
    let refusal = b.refused(Code::AlreadySettled, |b| {
        b.call(token, "settle", json!({"outcome": "failed"}))
    });
    assert_eq!(refusal.extras["outcome"], "succeeded");
    let refusal = b.refused(Code::ClaimLost, |b| b.call(token, "heartbeat", json!({})));
    assert_eq!(refusal.extras["reason"], "settled");
    assert_eq!(b.state.usage.output_tokens, 3);
}

#[test]
fn usage_is_a_total_over_what_was_recorded_and_what_settles() {
    let (mut b, token) = Boxed::running();
    let usage = json!({"events": [{"type": "usage.recorded", "content": {"input_tokens": 5, "model": "m"}}]});
    b.call(token, "events", usage).expect("usage");
    b.call(
        token,
        "settle",
        json!({"outcome": "succeeded", "usage": {"input_tokens": 2}}),
    )
    .expect("settle");
    assert_eq!(
        b.state.last_run.as_ref().map(|r| r.usage.input_tokens),
        Some(7)
    );
    assert_eq!(b.state.usage.input_tokens, 7);
}

#[test]
fn the_deadline_fails_the_run_and_the_conversation_goes_on() {
    let (mut b, token) = Boxed::running();
    b.expire(Expiry::Deadline(token.digest()));
    let last = b.state.last_run.clone().expect("settled");
    assert_eq!(last.outcome, Outcome::Failed);
    assert_eq!(
        last.error.map(|e| e.code).as_deref(),
        Some("runtime.turn_deadline_exceeded")
    );
    let refusal = b.refused(Code::ClaimLost, |b| b.call(token, "heartbeat", json!({})));
    assert_eq!(refusal.extras["reason"], "deadline");
    b.message("again").expect("message");
    assert_eq!(b.state.status, Status::Pending);
}

#[test]
fn a_result_needs_its_tool_use() {
    let (mut b, token) = Boxed::running();
    let unknown = format!("evt_{:032x}", 5);
    let result = |id: &str| json!({"events": [{"type": "agent.tool_result", "content": {"tool_use_id": id, "output": "x"}}]});
    b.refused(Code::ToolUseUnknown, |b| {
        b.call(token, "events", result(&unknown))
    });
    let question = b.open(token, "agent.question").to_string();
    b.refused(Code::ToolUseUnknown, |b| {
        b.call(token, "events", result(&question))
    });
    let id = b.open(token, "agent.tool_use").to_string();
    b.call(token, "events", result(&id)).expect("result");
    b.refused(Code::ToolUseUnknown, |b| {
        b.call(token, "events", result(&id))
    });
}

#[test]
fn events_wait_for_ready() {
    let mut b = Boxed::new();
    b.message("x").expect("message");
    let token = b.claim().expect("claim");
    b.refused(Code::ClaimNotReady, |b| {
        b.call(token, "events", say("early"))
    });
}

#[test]
fn input_during_a_run_is_taken_mid_run_or_by_the_next() {
    let (mut b, token) = Boxed::running();
    b.message("2").expect("2");
    let reply = b.call(token, "inputs", json!({})).expect("inputs");
    assert_eq!(reply.inputs.as_ref().map(Vec::len), Some(1));
    let nothing = b.call(token, "inputs", json!({})).expect("inputs");
    assert_eq!(nothing.inputs.as_ref().map(Vec::len), Some(0));
    b.message("3").expect("3");
    let before = b.state.last_seq;
    b.call(token, "settle", json!({"outcome": "failed"}))
        .expect("settle");
    assert_eq!(
        b.types_after(before),
        [E::SessionStatus, E::RunSettled, E::RunQueued]
    );
    assert_eq!(b.state.status, Status::Pending);
    let trigger = b.last(|body| match body {
        Body::RunQueued(q) => q.trigger.event_id,
        _ => None,
    });
    assert_eq!(trigger, b.state.untaken.map(|u| u.first_id));
}
