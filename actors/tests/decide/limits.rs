use longhaul_actors::code::Code;
use longhaul_actors::session::event::EventType as E;
use longhaul_actors::session::payload::Body;
use longhaul_actors::session::status::Status;
use serde_json::json;

use crate::kit::Boxed;

fn say() -> serde_json::Value {
    json!({"events": [{"type": "agent.message", "content": {"text": "x"}}]})
}

#[test]
fn the_event_limit_warns_then_refuses_but_lets_things_end() {
    let (mut b, token) = Boxed::running();
    b.limits.session_events_max = 100;
    let refusal = loop {
        match b.call(token, "events", say()) {
            Ok(_) => {}
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal.code, Code::EventLimit);
    let marks: Vec<u8> = b
        .log
        .iter()
        .filter_map(|e| match &e.event.body {
            Body::SessionLimitWarning(w) => Some(w.percent),
            _ => None,
        })
        .collect();
    assert_eq!(marks, [50, 80, 95]);
    b.refused(Code::EventLimit, |b| b.message("more"));
    b.call(token, "settle", json!({"outcome": "failed"}))
        .expect("settle still works");
    assert_eq!(b.state.status, Status::Idle);
    b.interrupt().expect("interrupt still works");
    b.cancel().expect("cancel still works");
}

#[test]
fn untaken_messages_are_bounded() {
    let mut b = Boxed::new();
    b.limits.untaken_inputs_max = 3;
    for _ in 0..3 {
        b.message("x").expect("message");
    }
    b.refused(Code::UntakenInputs, |b| b.message("y"));
    b.claim().expect("claim");
    b.message("y").expect("taken, so there is room");
}

#[test]
fn open_items_and_signals_are_bounded() {
    let (mut b, token) = Boxed::running();
    b.limits.open_items_max = 2;
    b.limits.signals_max = 1;
    b.open(token, "agent.tool_use");
    b.open(token, "agent.question");
    let open = json!({"events": [{"type": "agent.question", "content": {}}]});
    b.refused(Code::ItemsFull, |b| b.call(token, "events", open));
    b.submit(&[("user.signal", json!({"name": "s"}))])
        .expect("one");
    b.refused(Code::SignalsFull, |b| {
        b.submit(&[("user.signal", json!({"name": "s"}))])
    });
    b.submit(&[("user.signal", json!({"name": "t"}))])
        .expect("another name");
}

#[test]
fn a_refused_batch_writes_nothing() {
    let mut b = Boxed::new();
    b.limits.untaken_inputs_max = 1;
    let two = [
        ("user.message", json!({"text": "1"})),
        ("user.message", json!({"text": "2"})),
    ];
    b.refused(Code::UntakenInputs, |b| b.submit(&two));
    assert_eq!(b.types(), [E::SessionCreated]);
}
