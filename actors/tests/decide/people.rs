use longhaul_actors::code::Code;
use longhaul_actors::session::command::ReceiptKey;
use longhaul_actors::session::event::{AuthorKind, Cause, EventType as E};
use longhaul_actors::session::payload::{Body, Outcome};
use longhaul_actors::session::status::Status;
use serde_json::json;

use crate::kit::{Boxed, body, request};

#[test]
fn a_message_starts_a_run_and_says_why() {
    let mut b = Boxed::new();
    b.message("hi").expect("message");
    assert_eq!(b.types(), [E::SessionCreated, E::UserMessage, E::RunQueued]);
    let message = &b.log[1].event;
    assert_eq!(message.header.author.kind, AuthorKind::Principal);
    assert_eq!(message.header.cause, Cause::Request("req-1".into()));
    assert_eq!(b.log[2].event.header.cause, Cause::Event(message.header.id));
    assert_eq!(b.state.status, Status::Pending);
}

#[test]
fn a_batch_is_one_run() {
    let mut b = Boxed::new();
    let events: Vec<_> = (0..50)
        .map(|i| ("user.message", json!({"text": i.to_string()})))
        .collect();
    let reply = b.submit(&events).expect("batch");
    assert_eq!(body(&reply)["events"].as_array().map(Vec::len), Some(50));
    assert_eq!(b.types().iter().filter(|t| **t == E::RunQueued).count(), 1);
    assert_eq!(b.state.untaken_count(), 50);
}

#[test]
fn if_match_fences_input() {
    let mut b = Boxed::new();
    let hi = [("user.message", json!({"text": "a"}))];
    b.submit_with(&hi, None, Some(1)).expect("at 1");
    let refusal = b.refused(Code::SequenceConflict, |b| {
        b.submit_with(&hi, None, Some(1))
    });
    assert_eq!(refusal.extras["last_seq"], 3);
}

#[test]
fn a_key_gives_the_first_answer_again_and_refuses_another_body() {
    let mut b = Boxed::new();
    let key = |body| {
        Some(ReceiptKey {
            scope: [1; 16],
            body: [body; 16],
        })
    };
    let hi = [("user.message", json!({"text": "a"}))];
    let first = b.submit_with(&hi, key(1), None).expect("first");
    let events = b.log.len();
    assert_eq!(b.submit_with(&hi, key(1), None), Ok(first));
    assert_eq!(b.log.len(), events);
    b.refused(Code::IdempotencyConflict, |b| {
        b.submit_with(&hi, key(2), None)
    });
}

#[test]
fn a_key_is_forgotten_after_seven_days() {
    let mut b = Boxed::new();
    let key = Some(ReceiptKey {
        scope: [1; 16],
        body: [1; 16],
    });
    let hi = [("user.message", json!({"text": "a"}))];
    b.submit_with(&hi, key, None).expect("first");
    b.world.advance_ms(7 * 24 * 3_600 * 1_000);
    let events = b.log.len();
    b.submit_with(&hi, key, None).expect("kept");
    assert_eq!(b.log.len(), events);
    b.world.advance_ms(1);
    b.submit_with(&hi, key, None).expect("new");
    assert_eq!(b.log.len(), events + 1);
}

#[test]
fn a_foreign_session_looks_absent() {
    let mut b = Boxed::new();
    let mut other = request(None);
    other.viewer.workspace =
        longhaul_actors::session::payload::WorkspaceRef(longhaul_actors::ids::WorkspaceId([5; 16]));
    let cancel = longhaul_actors::session::command::Command::Cancel(other.clone());
    let foreign = b.refused(Code::SessionNotFound, |b| b.ask(cancel));
    let mut none = Boxed::empty();
    let cancel = longhaul_actors::session::command::Command::Cancel(other);
    let absent = none.ask(cancel).expect_err("absent");
    assert_eq!(foreign, absent);
}

#[test]
fn interrupt_ends_the_turn_in_one_commit() {
    let (mut b, token) = Boxed::running();
    b.open(token, "agent.question");
    b.open(token, "agent.tool_use");
    let before = b.state.last_seq;
    b.interrupt().expect("interrupt");
    let types = [
        E::UserInterrupt,
        E::ItemClosed,
        E::ItemClosed,
        E::SessionStatus,
        E::RunSettled,
    ];
    assert_eq!(b.types_after(before), types);
    assert_eq!(b.state.status, Status::Idle);
    assert!(b.log.last().is_some_and(|e| e.event.header.boundary));
    let refusal = b.refused(Code::ClaimLost, |b| b.call(token, "heartbeat", json!({})));
    assert_eq!(refusal.extras["reason"], "interrupted");
}

#[test]
fn interrupt_with_nothing_to_interrupt_is_logged() {
    let mut b = Boxed::new();
    b.interrupt().expect("interrupt");
    assert_eq!(b.types(), [E::SessionCreated, E::UserInterrupt]);
}

#[test]
fn input_before_an_interrupt_goes_with_the_next() {
    let (mut b, _) = Boxed::running();
    b.message("2").expect("2");
    b.interrupt().expect("interrupt");
    assert!(b.state.run.is_none());
    assert_eq!(b.state.untaken_count(), 1);
    let both = [
        ("user.interrupt", json!({})),
        ("user.message", json!({"text": "3"})),
    ];
    b.submit(&both).expect("both");
    assert_eq!(b.state.status, Status::Pending);
    b.claim().expect("claim");
    assert_eq!(b.state.untaken_count(), 0);
    let taken = b.last(|body| match body {
        Body::RunInputsTaken(t) => Some(t.event_ids.len()),
        _ => None,
    });
    assert_eq!(taken, Some(2));
}

#[test]
fn interrupt_of_a_queued_run_leaves_the_session_idle() {
    let mut b = Boxed::new();
    b.message("x").expect("message");
    b.interrupt().expect("interrupt");
    assert_eq!(b.state.status, Status::Idle);
    assert_eq!(
        b.state.last_run.as_ref().map(|r| r.outcome),
        Some(Outcome::Interrupted)
    );
}

#[test]
fn complete_needs_a_settled_session_and_is_idempotent() {
    let (mut b, token) = Boxed::running();
    b.refused(Code::SessionRunLive, Boxed::complete);
    b.call(token, "settle", json!({"outcome": "succeeded"}))
        .expect("settle");
    let first = b.complete().expect("complete");
    assert_eq!(body(&first)["status"], "completed");
    let events = b.log.len();
    assert_eq!(b.complete(), Ok(first));
    assert_eq!(b.log.len(), events);
    b.refused(Code::SessionTerminal, |b| b.message("late"));
    b.refused(Code::SessionTerminal, Boxed::cancel);
}

#[test]
fn cancel_ends_everything_from_every_live_status() {
    let (mut b, token) = Boxed::running();
    b.message("left").expect("message");
    b.cancel().expect("cancel");
    assert_eq!(b.state.status, Status::Canceled);
    assert!(b.state.run.is_none());
    let refusal = b.refused(Code::ClaimLost, |b| {
        b.call(token, "settle", json!({"outcome": "failed"}))
    });
    assert_eq!(refusal.extras["reason"], "canceled");
}

#[test]
fn metadata_has_limits() {
    for bad in [
        json!({"k": {}}),
        json!({"k": "x".repeat(512)}),
        json!({"k".repeat(65): 1}),
        json!({"": 1}),
        (0..17)
            .map(|i| (i.to_string(), json!(i)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
    ] {
        let mut b = Boxed::empty();
        let refusal = b.create(bad.clone()).expect_err("a refusal");
        assert_eq!(refusal.code, Code::MetadataInvalid, "{bad}");
    }
    Boxed::empty()
        .create(json!({"k": "x".repeat(510), "b": true, "n": null}))
        .expect("fits");
}

#[test]
fn the_key_of_an_erased_session_answers_that_it_is_erased() {
    let mut b = Boxed::empty();
    let key = |body| ReceiptKey {
        scope: [1; 16],
        body: [body; 16],
    };
    let first = b.create_with(json!({"a": 1}), Some(key(1))).expect("first");
    let again = b.create_with(json!({"a": 1}), Some(key(1))).expect("again");
    assert_eq!(again, first);
    b.created.values_mut().for_each(|c| c.erased = true);
    b.refused(Code::SessionErased, |b| {
        b.create_with(json!({}), Some(key(1)))
    });
    b.refused(Code::IdempotencyConflict, |b| {
        b.create_with(json!({}), Some(key(2)))
    });
    b.world.advance_ms(7 * 24 * 3_600 * 1_000 + 1);
    // A new request: here it meets the session of the first one.
    b.refused(Code::SequenceConflict, |b| {
        b.create_with(json!({}), Some(key(2)))
    });
}
