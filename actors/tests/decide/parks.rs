use longhaul_actors::code::Code;
use longhaul_actors::ids::{ClaimToken, EventId};
use longhaul_actors::session::command::{Command, Create, Expiry};
use longhaul_actors::session::event::EventType as E;
use longhaul_actors::session::payload::{
    Body, Budget, ItemState, Outcome, RetentionPolicy, WaitingOn,
};
use longhaul_actors::session::state::Phase;
use longhaul_actors::session::status::Status;
use serde_json::{Map, json};

use crate::kit::{Boxed, body, pin, request};

#[test]
fn a_released_park_continues_when_all_items_are_in() {
    let (mut b, token) = Boxed::running();
    let q = b.open(token, "agent.question");
    let a = b.open(token, "agent.action_approval_requested");
    let park =
        json!({"waiting_on": [{"question_id": q}, {"approval_id": a}], "compute": "released"});
    let parked = b.call(token, "park", park.clone()).expect("park");
    assert_eq!(body(&parked)["state"], "parked");
    assert_eq!(b.state.status, Status::Paused);
    assert!(
        b.log.last().is_some_and(|e| e.event.header.boundary),
        "a park is a boundary"
    );
    assert_eq!(
        b.call(token, "park", park),
        Ok(parked),
        "an identical retry"
    );
    b.message("meanwhile").expect("a message does not answer");
    b.submit(&[(
        "user.action_approval",
        json!({"approval_id": a, "decision": "granted"}),
    )])
    .expect("grant");
    assert_eq!(b.state.status, Status::Paused);
    let before = b.state.last_seq;
    let old = b.state.run.as_ref().map(|r| r.id);
    b.submit(&[(
        "user.question_answer",
        json!({"question_id": q, "answers": [["a"]]}),
    )])
    .expect("answer");
    let types = [
        E::UserQuestionAnswer,
        E::ItemClosed,
        E::SessionStatus,
        E::RunSettled,
        E::RunQueued,
    ];
    assert_eq!(b.types_after(before), types);
    assert_eq!(
        b.state.last_run.as_ref().map(|r| r.outcome),
        Some(Outcome::Continued)
    );
    let settled = b
        .log
        .iter()
        .rev()
        .find(|e| e.event.header.kind == E::RunSettled)
        .expect("settled");
    assert!(
        !settled.event.header.boundary,
        "a continued run is no boundary"
    );
    assert_eq!(b.state.run.as_ref().map(|r| r.continues), Some(old));
    b.claim().expect("claim");
    let taken = b.last(|body| match body {
        Body::RunInputsTaken(t) => Some(t.event_ids.len()),
        _ => None,
    });
    assert_eq!(taken, Some(3), "the grant, the message, the answer");
    let refusal = b.refused(Code::ItemNotOpen, |b| {
        b.submit(&[(
            "user.question_answer",
            json!({"question_id": q, "answers": [["b"]]}),
        )])
    });
    assert_eq!(refusal.extras["state"], "answered");
}

#[test]
fn a_held_park_goes_on_in_the_same_attempt() {
    let (mut b, token) = Boxed::running();
    let t = b.open(token, "agent.custom_tool_use");
    b.call(
        token,
        "park",
        json!({"waiting_on": [{"tool_use_id": t}], "compute": "held"}),
    )
    .expect("park");
    assert_eq!(b.state.status, Status::Waiting);
    let none = b.call(token, "inputs", json!({})).expect("inputs");
    assert_eq!(none.inputs, Some(Vec::new()));
    b.call(token, "heartbeat", json!({}))
        .expect("the claim is held");
    b.submit(&[(
        "user.custom_tool_result",
        json!({"tool_use_id": t, "output": {"x": 1}}),
    )])
    .expect("result");
    assert_eq!(b.state.status, Status::Running);
    let some = b.call(token, "inputs", json!({})).expect("inputs");
    assert_eq!(some.inputs.map(|i| i.len()), Some(1));
    assert_eq!(b.state.run.as_ref().map(|r| r.attempt), Some(1));
}

#[test]
fn held_compute_is_let_go_by_time_loss_or_release_and_stays_parked() {
    for how in ["hold", "lease", "release"] {
        let (mut b, token) = Boxed::running();
        let t = b.open(token, "agent.custom_tool_use");
        b.call(
            token,
            "park",
            json!({"waiting_on": [{"tool_use_id": t}], "compute": "held"}),
        )
        .expect("park");
        let parked_seq = b.state.run.as_ref().map_or(0, |r| r.parked_seq);
        match how {
            "hold" => drop(b.expire(Expiry::Hold { parked_seq })),
            "lease" => drop(b.expire(Expiry::Lease(token.digest()))),
            _ => drop(b.call(token, "release", json!({})).expect("release")),
        }
        assert_eq!(b.state.status, Status::Paused, "{how}");
        assert_eq!(
            b.state.run.as_ref().map(|r| (r.phase, r.lost)),
            Some((Phase::Parked, 0))
        );
        b.refused(Code::ClaimLost, |b| b.call(token, "heartbeat", json!({})));
        b.submit(&[(
            "user.custom_tool_result",
            json!({"tool_use_id": t, "output": 1}),
        )])
        .expect("result");
        assert_eq!(
            b.state.run.as_ref().map(|r| r.phase),
            Some(Phase::Queued),
            "{how}"
        );
    }
}

#[test]
fn what_is_answered_already_is_not_waited_for() {
    let (mut b, token) = Boxed::running();
    let q = b.open(token, "agent.question");
    b.submit(&[("user.question_answer", json!({"answers": [["a"]]}))])
        .expect("the only open one");
    let park = json!({"waiting_on": [{"question_id": q}], "compute": "released"});
    let reply = b.call(token, "park", park).expect("park");
    assert_eq!(body(&reply)["state"], "ready");
    assert_eq!(reply.inputs.map(|i| i.len()), Some(1));
    assert_eq!(b.state.status, Status::Running);
    b.call(token, "heartbeat", json!({}))
        .expect("the same claim goes on");
}

#[test]
fn a_partly_answered_park_waits_for_the_rest_and_hands_over_all() {
    let (mut b, token) = Boxed::running();
    let q1 = b.open(token, "agent.question");
    let q2 = b.open(token, "agent.question");
    let answer = |q| {
        [(
            "user.question_answer",
            json!({"question_id": q, "answers": [["a"]]}),
        )]
    };
    b.submit(&answer(q1)).expect("first");
    let both =
        json!({"waiting_on": [{"question_id": q1}, {"question_id": q2}], "compute": "released"});
    b.call(token, "park", both).expect("park");
    assert_eq!(b.state.status, Status::Paused);
    b.submit(&answer(q2)).expect("second");
    b.claim().expect("claim");
    let taken = b.last(|body| match body {
        Body::RunInputsTaken(t) => Some(t.event_ids.len()),
        _ => None,
    });
    assert_eq!(taken, Some(2));
}

#[test]
fn a_park_needs_a_cause_outside_the_run() {
    let (mut b, token) = Boxed::running();
    let park = |on: serde_json::Value| json!({"waiting_on": on, "compute": "released"});
    b.refused(Code::ParkWithoutCause, |b| {
        b.call(token, "park", park(json!([])))
    });
    let unknown = format!("evt_{:032x}", 3);
    b.refused(Code::ParkWithoutCause, |b| {
        b.call(token, "park", park(json!([{"question_id": unknown}])))
    });
    let own = b.open(token, "agent.tool_use");
    b.refused(Code::ParkWithoutCause, |b| {
        b.call(token, "park", park(json!([{"tool_use_id": own}])))
    });
    for bad in [
        json!([{}]),
        json!([{"signal": "s", "budget": true}]),
        json!([{"signal": "s", "timeout_ms": 0}]),
        json!([{"budget": true, "timeout_ms": 5}]),
        json!([{"signal": "s"}, {"signal": "s"}]),
        json!([{"signal": ""}]),
    ] {
        b.refused(Code::FieldInvalid, |b| {
            b.call(token, "park", park(bad.clone()))
        });
    }
}

#[test]
fn a_tool_use_stays_open_for_the_run_that_goes_on() {
    let (mut b, token) = Boxed::running();
    let call = b.open(token, "agent.tool_use");
    let approval = b.open(token, "agent.action_approval_requested");
    let other = b.open(token, "agent.question");
    let park = json!({"waiting_on": [{"approval_id": approval}], "compute": "released"});
    b.call(token, "park", park).expect("park");
    let answer = json!({"approval_id": approval, "decision": "granted"});
    b.submit(&[("user.action_approval", answer)])
        .expect("answer");
    let open: Vec<_> = b.state.items.values().map(|i| i.id).collect();
    assert_eq!(open, [call], "and {other} is cancelled");
    let token = b.claim().expect("claim");
    b.call(token, "ready", json!({})).expect("ready");
    let result = json!({"events": [{"type": "agent.tool_result",
        "content": {"tool_use_id": call, "output": 1}}]});
    b.call(token, "events", result).expect("its result");
    // Where nothing goes on, nothing stays open.
    b.open(token, "agent.tool_use");
    b.settle(token, None).expect("settle");
    assert!(b.state.items.is_empty());
}

#[test]
fn an_answer_without_an_id_must_be_unambiguous() {
    let (mut b, token) = Boxed::running();
    b.open(token, "agent.question");
    b.open(token, "agent.question");
    let refusal = b.refused(Code::ItemAmbiguous, |b| {
        b.submit(&[("user.question_answer", json!({"dismissed": true}))])
    });
    assert_eq!(
        refusal.extras["open_item_ids"].as_array().map(Vec::len),
        Some(2)
    );
    b.refused(Code::ItemNotOpen, |b| {
        b.submit(&[("user.action_approval", json!({"decision": "denied"}))])
    });
}

#[test]
fn interrupt_while_parked_cancels_the_items() {
    let (mut b, token) = Boxed::running();
    let q = b.open(token, "agent.question");
    b.call(
        token,
        "park",
        json!({"waiting_on": [{"question_id": q}], "compute": "released"}),
    )
    .expect("park");
    b.interrupt().expect("interrupt");
    assert_eq!(b.state.status, Status::Idle);
    let state = b.last(|body| match body {
        Body::ItemClosed(c) => Some(c.state),
        _ => None,
    });
    assert_eq!(state, Some(ItemState::Cancelled));
    let refusal = b.refused(Code::ItemNotOpen, |b| {
        b.submit(&[(
            "user.question_answer",
            json!({"question_id": q, "answers": []}),
        )])
    });
    assert_eq!(refusal.extras["state"], "cancelled");
    let refusal = b.refused(Code::ClaimLost, |b| b.call(token, "heartbeat", json!({})));
    assert_eq!(refusal.extras["reason"], "parked");
}

#[test]
fn signals_are_kept_until_consumed_first_in_first_out() {
    let (mut b, token) = Boxed::running();
    for i in 0..2 {
        b.submit(&[("user.signal", json!({"name": "go", "payload": i}))])
            .expect("signal");
    }
    let first = b.state.signals[0].id;
    let park = json!({"waiting_on": [{"signal": "go"}], "compute": "held"});
    let reply = b.call(token, "park", park.clone()).expect("park");
    assert_eq!(body(&reply)["state"], "ready");
    assert_eq!(
        reply.inputs.as_ref().and_then(|i| i.first()).map(|a| a.id),
        Some(first)
    );
    b.call(token, "park", park.clone()).expect("the second one");
    b.call(token, "park", park).expect("now it waits");
    assert_eq!(b.state.status, Status::Waiting);
    b.submit(&[("user.signal", json!({"name": "other"}))])
        .expect("another");
    assert_eq!(b.state.status, Status::Waiting);
    b.submit(&[("user.signal", json!({"name": "go"}))])
        .expect("wakes");
    assert_eq!(b.state.status, Status::Running);
    assert_eq!(b.state.signals.len(), 1);
}

#[test]
fn a_wait_for_a_signal_ends_by_time() {
    let (mut b, token) = Boxed::running();
    let park = json!({"waiting_on": [{"signal": "go", "timeout_ms": 500}], "compute": "released"});
    b.call(token, "park", park).expect("park");
    let parked_seq = b.state.run.as_ref().map_or(0, |r| r.parked_seq);
    b.expire(Expiry::Wait {
        parked_seq: parked_seq + 1,
        index: 0,
    });
    b.expire(Expiry::Wait {
        parked_seq,
        index: 7,
    });
    assert_eq!(
        b.state.status,
        Status::Paused,
        "expiries of another park change nothing"
    );
    b.expire(Expiry::Wait {
        parked_seq,
        index: 0,
    });
    let closed = b.last(|body| match body {
        Body::ItemClosed(c) => Some((c.state, c.signal.clone())),
        _ => None,
    });
    assert_eq!(closed, Some((ItemState::Expired, Some("go".to_owned()))));
    assert_eq!(b.state.run.as_ref().map(|r| r.phase), Some(Phase::Queued));
}

/// A running session that has spent more than it may.
fn overspent() -> (Boxed, ClaimToken) {
    let mut b = Boxed::empty();
    let budget = Budget {
        tokens_max: Some(5),
        ..Budget::default()
    };
    b.ask(Command::Create(Box::new(Create {
        request: request(None),
        principal: "ann".into(),
        pin: pin(),
        metadata: Map::new(),
        budget: Some(budget),
        retention: RetentionPolicy::default(),
        events: Vec::new(),
    })))
    .expect("create");
    b.message("hi").expect("message");
    let token = b.claim().expect("claim");
    b.call(token, "ready", json!({})).expect("ready");
    let usage = json!({"events": [{"type": "usage.recorded", "content": {"input_tokens": 6}}]});
    b.call(token, "events", usage).expect("usage");
    assert!(b.state.budget_exceeded());
    (b, token)
}

/// A fork of a session that waits for money, and for `also` if it is given.
fn fork_of_overspent(compute: &str, also: bool) -> (Boxed, Boxed, Option<EventId>) {
    let (mut b, token) = overspent();
    let mut on = vec![json!({"budget": true})];
    let question = also.then(|| b.open(token, "agent.question"));
    on.extend(question.map(|q| json!({"question_id": q})));
    let park = json!({"waiting_on": on, "compute": compute});
    let parked = b.call(token, "park", park).expect("park");
    assert_eq!(body(&parked)["state"], "parked", "{compute}");
    let child = b.fork(b.state.last_seq);
    assert!(!child.state.budget_exceeded(), "its own usage is none");
    (b, child, question)
}

#[test]
fn a_run_parked_on_the_budget_goes_on_at_once_in_a_fork() {
    for compute in ["released", "held"] {
        let (b, mut child, _) = fork_of_overspent(compute, false);
        let parked = b.state.run.clone().expect("parked");
        assert!(!parked.all_in(), "{compute}: the source waits on");
        assert_eq!(child.state.status, Status::Pending, "{compute}");
        let next = child.state.run.clone().expect("a continuation");
        assert_eq!(
            (next.phase, next.continues),
            (Phase::Queued, Some(parked.id))
        );
        let token = child.claim().expect("claim");
        child.call(token, "ready", json!({})).expect("ready");
        child.settle(token, None).expect("settle");
        assert_eq!(child.state.status, Status::Idle, "{compute}");
    }
}

#[test]
fn a_fork_waits_for_what_its_source_waits_for_beside_the_budget() {
    for compute in ["released", "held"] {
        let (b, mut child, question) = fork_of_overspent(compute, true);
        let question_id = question.expect("asked");
        assert_eq!(child.state.status, Status::Paused, "{compute}");
        let told = child.last(|body| match body {
            Body::RunParked(p) if p.released_by.is_some() => Some(p.waiting_on.clone()),
            _ => None,
        });
        let told_anew = (compute == "held").then(|| vec![WaitingOn::Question { question_id }]);
        assert_eq!(told, told_anew, "{compute}");
        let answer = json!({"question_id": question_id, "dismissed": true});
        child
            .submit(&[("user.question_answer", answer)])
            .expect("answer");
        assert_eq!(child.state.status, Status::Pending, "{compute}");
        let continues = child.state.run.as_ref().and_then(|r| r.continues);
        assert_eq!(continues, b.state.run.as_ref().map(|r| r.id));
    }
}
