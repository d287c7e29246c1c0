//! How long a journal lasts, what its steps cost, and what reaches a run from outside.

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::ids::{ClaimToken, EventId};
use longhaul_actors::session::command::{Command, Expiry, SetBudget};
use longhaul_actors::session::decision::Reply;
use longhaul_actors::session::event::EventType as T;
use longhaul_actors::session::payload::{Body, Budget};
use longhaul_actors::session::step::StepAnswer as A;
use serde_json::json;

use crate::kit::{Boxed, author, body, request};
use crate::resume::resume;
use crate::steps::{begin, complete, fail, is_completed, with};

#[test]
fn j14_a_finished_run_never_replays_into_the_next() {
    let (mut b, t) = Boxed::running();
    let done = b.run(t, "pay", json!(1));
    let open = b.execute(t, begin("open"));
    b.call(t, "settle", json!({"outcome": "succeeded"}))
        .expect("settle");
    assert!(b.state.journal.open.is_empty());
    b.message("hi").expect("message");
    let t = b.go();
    for name in ["pay", "open"] {
        b.execute(t, begin(name));
    }
    // What belonged to the other run cannot be ended here.
    b.no_step(t, Code::StepNotFound, complete(done, json!(1)));
    b.no_step(t, Code::StepNotFound, complete(open, json!(1)));
    b.no_step(t, Code::StepNotFound, complete(EventId([1; 16]), json!(1)));
}

#[test]
fn j15_a_failed_run_is_not_replayed_into_another_prompt() {
    let (mut b, t) = Boxed::running();
    b.run(t, "pay", json!(1));
    b.execute(t, begin("open"));
    b.call(t, "settle", json!({"outcome": "failed"}))
        .expect("settle");
    assert_eq!(b.state.journal.open.len(), 1, "a resume may go on");
    b.message("another").expect("message");
    assert!(b.state.journal.open.is_empty());
    let t = b.go();
    b.execute(t, begin("pay"));
}

#[test]
fn a_resume_after_a_failure_replays_the_journal() {
    for outcome in ["failed", "succeeded"] {
        let (mut b, t) = Boxed::running();
        let done = b.run(t, "pay", json!(1));
        let open = b.execute(t, begin("open"));
        b.call(t, "settle", json!({"outcome": outcome}))
            .expect("settle");
        resume(&mut b, author(), None).expect("resume");
        let t = b.go();
        let (pay, doubt) = (b.begin(t, "pay"), b.begin(t, "open"));
        if outcome == "failed" {
            assert!(is_completed(&pay, done));
            assert!(matches!(doubt, A::InDoubt { step, .. } if step == open));
        } else {
            assert!(matches!(pay, A::Execute { .. }) && matches!(doubt, A::Execute { .. }));
        }
    }
}

#[test]
fn a_parked_run_goes_on_with_its_journal() {
    let (mut b, t) = Boxed::running();
    let done = b.run(t, "pay", json!(1));
    let open = b.execute(t, begin("open"));
    let chain = b.state.journal.chain_seq;
    b.call(
        t,
        "park",
        json!({"waiting_on": [{"signal": "go"}], "compute": "released"}),
    )
    .expect("park");
    b.submit(&[("user.signal", json!({"name": "go"}))])
        .expect("signal");
    let t = b.go();
    assert_eq!(b.state.journal.chain_seq, chain);
    assert!(is_completed(&b.begin(t, "pay"), done));
    assert!(
        matches!(b.begin(t, "open"), A::InDoubt { step, started_attempt: 1, .. } if step == open)
    );
}

#[test]
fn held_compute_keeps_its_open_steps() {
    let (mut b, t) = Boxed::running();
    let open = b.execute(t, begin("open"));
    b.call(
        t,
        "park",
        json!({"waiting_on": [{"signal": "go"}], "compute": "held"}),
    )
    .expect("park");
    b.no_step(t, Code::ClaimNotReady, begin("x"));
    b.submit(&[("user.signal", json!({"name": "go"}))])
        .expect("signal");
    assert_eq!(b.begin(t, "open"), A::InProgress { step: open });
}

#[test]
fn m2_a_replay_charges_nothing() {
    let (mut b, t) = Boxed::running();
    let step = b.execute(t, begin("model"));
    let op = with(
        complete(step, json!(1)),
        json!({"usage": {"cost_micros": 5}}),
    );
    b.step(t, op.clone());
    b.step(t, op);
    let t = b.next_attempt(t);
    assert!(is_completed(&b.begin(t, "model"), step));
    assert_eq!(b.state.usage.cost_micros, 5);
}

#[test]
fn usage_is_told_by_model_up_to_a_number_of_models() {
    let (mut b, t) = Boxed::running();
    for i in 0..40 {
        let usage = json!({"cost_micros": 1, "model": format!("m-{i}")});
        let events = json!({"events": [{"type": "usage.recorded", "content": usage}]});
        b.call(t, "events", events).expect("usage");
    }
    assert_eq!(b.state.spent.len(), 33);
    assert_eq!(b.state.spent["other"].cost_micros, 8);
    assert_eq!(b.state.usage.cost_micros, 40);
}

/// A session that has spent all of its budget of ten, with one step open.
fn spent() -> (Boxed, ClaimToken, EventId) {
    let mut b = Boxed::empty();
    b.budget = Some(Budget {
        cost_micros_max: Some(10),
        tokens_max: None,
    });
    b.create(json!({})).expect("create");
    b.message("hi").expect("message");
    let t = b.go();
    let step = b.execute(t, begin("model"));
    let open = b.execute(t, begin("open"));
    let op = with(
        complete(step, json!(1)),
        json!({"usage": {"cost_micros": 11}}),
    );
    assert!(matches!(b.step(t, op), A::Recorded(r) if r.budget_exceeded));
    (b, t, open)
}

fn raise(b: &mut Boxed, to: Option<u64>) -> Result<Reply, Rejection> {
    b.ask(Command::Budget(SetBudget {
        request: request(None),
        cost_micros_max: Some(to),
        tokens_max: None,
    }))
}

#[test]
fn a_spent_budget_lets_a_run_record_park_and_settle_only() {
    let (mut b, t, open) = spent();
    b.no_step(t, Code::BudgetExceeded, begin("more"));
    // What is done may be said, and what was done is told.
    assert!(matches!(b.begin(t, "model"), A::Completed { .. }));
    b.step(t, fail(open));
    let retry = with(begin("open"), json!({"on_failure": "retry"}));
    b.no_step(t, Code::BudgetExceeded, retry);
    b.call(t, "settle", json!({"outcome": "succeeded"}))
        .expect("settle");
}

#[test]
fn m3_raising_the_budget_goes_on_with_the_parked_run() {
    let (mut b, t, _) = spent();
    let run = b.state.run.as_ref().expect("run").id;
    let park = json!({"waiting_on": [{"budget": true}], "compute": "released"});
    b.call(t, "park", park).expect("park");
    raise(&mut b, Some(11)).expect("not spent at the limit itself");
    let on = b.state.run.as_ref().expect("run");
    assert_eq!(on.continues, Some(run));
    let t = b.go();
    assert!(matches!(b.begin(t, "model"), A::Completed { .. }));
    b.execute(t, begin("more"));
    // Too little, and the same, release nobody.
    let (mut b, t, _) = spent();
    let park = json!({"waiting_on": [{"budget": true}], "compute": "held"});
    b.call(t, "park", park).expect("park");
    raise(&mut b, Some(5)).expect("less");
    let seq = b.state.last_seq;
    raise(&mut b, Some(5)).expect("the same");
    assert_eq!(b.state.last_seq, seq);
    b.no_step(t, Code::ClaimNotReady, begin("more"));
    raise(&mut b, None).expect("no limit");
    b.execute(t, begin("more"));
}

#[test]
fn a_budget_is_changed_by_parts_and_not_after_the_end() {
    let (mut b, _, _) = spent();
    let set = SetBudget {
        request: request(None),
        cost_micros_max: None,
        tokens_max: Some(Some(7)),
    };
    let shown = b.ask(Command::Budget(set)).expect("set");
    let budget = body(&shown)["budget"].clone();
    assert_eq!(budget, json!({"cost_micros_max": 10, "tokens_max": 7}));
    assert!(
        b.last(|e| matches!(e, Body::SessionUpdated(_)).then_some(()))
            .is_some()
    );
    b.cancel().expect("cancel");
    b.refused(Code::SessionTerminal, |b| raise(b, None));
}

#[test]
fn expired_values_are_said_to_be_gone() {
    let mut b = Boxed::empty();
    b.kept.ttl_s = Some(60);
    b.create(json!({})).expect("create");
    b.message("hi").expect("message");
    let t = b.go();
    let done = b.run(t, "pay", json!(1));
    let failed = b.execute(t, begin("failed"));
    b.step(t, fail(failed));
    let sandbox = with(begin("files"), json!({"effects": "sandbox"}));
    let files = b.execute(t, sandbox.clone());
    b.step(t, complete(files, json!(1)));
    let park = json!({"waiting_on": [{"signal": "go"}], "compute": "released"});
    b.call(t, "park", park).expect("park");
    b.world.advance_ms(120_000);
    while let Some(since_seq) = Some(b.state.aging.since_seq).filter(|_| b.state.aging.waits()) {
        let through = b.state.aging.through_seq;
        b.expire(Expiry::Contents { since_seq });
        if b.state.aging.through_seq == through {
            break;
        }
    }
    assert!(b.state.aging.has_expired(done.seq()));
    b.submit(&[("user.signal", json!({"name": "go"}))])
        .expect("signal");
    let t = b.go();
    for name in ["pay", "failed"] {
        b.no_step(t, Code::JournalValueUnavailable, begin(name));
    }
    // What runs again needs no value.
    let retry = with(begin("failed"), json!({"on_failure": "retry"}));
    assert_eq!(b.step(t, retry), A::Execute { step: failed });
    assert_eq!(b.step(t, sandbox), A::Execute { step: files });
}

#[test]
fn zero_data_retention_values_go_with_the_process() {
    let mut b = Boxed::empty();
    b.keeps_nothing = true;
    b.create(json!({})).expect("create");
    b.message("hi").expect("message");
    let t = b.go();
    let step = b.run(t, "pay", json!(1));
    assert!(is_completed(&b.begin(t, "pay"), step));
    // As a restart would leave it.
    b.state.now.contents_from = b.state.last_seq + 1;
    let extras = b.no_step(t, Code::JournalValueUnavailable, begin("pay"));
    assert_eq!(extras["step_id"], json!(step));
}

#[test]
fn a_fork_goes_on_with_the_journal_of_a_parked_run_only() {
    let (mut b, t) = Boxed::running();
    let done = b.run(t, "pay", json!(1));
    b.execute(t, begin("open"));
    let live = b.state.last_seq;
    let park = json!({"waiting_on": [{"signal": "go"}], "compute": "released"});
    b.call(t, "park", park).expect("park");
    let mut child = b.fork(b.state.last_seq);
    child
        .submit(&[("user.signal", json!({"name": "go"}))])
        .expect("signal");
    let t = child.go();
    assert!(is_completed(&child.begin(t, "pay"), done));
    assert!(matches!(child.begin(t, "open"), A::InDoubt { .. }));
    // A run that the fork settles leaves nothing.
    let mut child = b.fork(live);
    assert!(child.state.journal.open.is_empty());
    child.message("hi").expect("message");
    let t = child.go();
    child.execute(t, begin("pay"));
    child.execute(t, begin("open"));
}

#[test]
fn m4_a_fork_starts_with_nothing_spent() {
    let (mut b, t) = Boxed::running();
    let step = b.execute(t, begin("model"));
    let usage = json!({"usage": {"cost_micros": 5, "model": "m"}});
    b.step(t, with(complete(step, json!(1)), usage));
    let child = b.fork(b.state.last_seq);
    assert!(child.state.spent.is_empty());
    assert_eq!(child.state.inherited_usage.cost_micros, 5);
}

#[test]
fn s4_a_poll_takes_the_oldest_signal_and_never_waits() {
    let (mut b, t) = Boxed::running();
    let poll = |b: &mut Boxed, name: &str| {
        let reply = b.call(t, "inputs", json!({"signal": name})).expect("poll");
        reply.inputs.expect("inputs")
    };
    assert!(poll(&mut b, "go").is_empty());
    let mut sent = Vec::new();
    for name in ["go", "other", "go"] {
        b.submit(&[("user.signal", json!({"name": name, "payload": null}))])
            .expect("signal");
        sent.push(b.state.last_seq);
    }
    let before = b.state.last_seq;
    assert_eq!(
        poll(&mut b, "go").iter().map(|a| a.seq).collect::<Vec<_>>(),
        [sent[0]]
    );
    assert_eq!(
        b.types_after(before),
        [T::SignalConsumed, T::RunInputsTaken]
    );
    assert_eq!(poll(&mut b, "go")[0].seq, sent[2]);
    assert!(poll(&mut b, "go").is_empty());
    assert_eq!(b.state.signals.len(), 1);
    b.refused(Code::FieldInvalid, |b| {
        b.call(t, "inputs", json!({"signal": ""}))
    });
}

#[test]
fn s7_unconsumed_signals_are_bounded_by_name() {
    let (mut b, t) = Boxed::running();
    let send = |b: &mut Boxed, name: &str| b.submit(&[("user.signal", json!({"name": name}))]);
    for _ in 0..64 {
        send(&mut b, "go").expect("signal");
    }
    b.refused(Code::SignalsFull, |b| send(b, "go"));
    send(&mut b, "other").expect("signal");
    b.call(t, "inputs", json!({"signal": "go"})).expect("poll");
    send(&mut b, "go").expect("signal");
}

#[test]
fn h3_a_remembered_decision_comes_with_the_next_claim() {
    let (mut b, t) = Boxed::running();
    let decide = |b: &mut Boxed, decision: &str, remember: bool| {
        let id = b.open(t, "agent.action_approval_requested");
        let content = json!({"approval_id": id, "decision": decision, "remember": remember});
        b.submit(&[("user.action_approval", content)])
            .expect("answer");
    };
    decide(&mut b, "granted", false);
    assert!(b.state.remembered.is_empty());
    decide(&mut b, "granted", true);
    assert_eq!(b.state.remembered, [("x".to_owned(), true)]);
    decide(&mut b, "denied", true);
    assert_eq!(b.state.remembered, [("x".to_owned(), false)]);
    // A fork for somebody else remembers nothing.
    let child = b.fork(b.state.last_seq);
    assert_eq!(child.state.remembered.len(), 1);
}
