//! Commands that meet in one append see each other, and what they leave is what a fold of the
//! log says.

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::kit::{Boxed, RUNNER, WS, check, config, count, eventually, input, pin, request, run};
use crate::code::Rejection;
use crate::engine::Answer;
use crate::ids::{ClaimToken, SessionId};
use crate::session::command::{AttemptCall, Bearer, Command, Create, ReceiptKey, Request, Submit};
use crate::session::input::parse_attempt;

type Call = JoinHandle<Result<Answer, Rejection>>;

fn send(b: &Boxed, id: SessionId, command: Command) -> Call {
    let engine = b.engine.clone();
    tokio::spawn(async move { engine.command(id, command).await })
}

fn attempt(token: ClaimToken, verb: &str, body: &Value) -> Command {
    let (n, verb) = parse_attempt(verb, body.to_string().as_bytes()).expect("a valid call");
    Command::Attempt(AttemptCall {
        by: Bearer::Trusted,
        token: token.digest(),
        n,
        verb,
    })
}

fn keyed(body: u8) -> Request {
    Request {
        receipt: Some(ReceiptKey {
            scope: [9; 16],
            body: [body; 16],
        }),
        ..request()
    }
}

/// Sends all of them while an append is held back, so that they share the next one.
async fn together(
    b: &Boxed,
    id: SessionId,
    commands: Vec<Command>,
) -> Vec<Result<Value, Rejection>> {
    b.log.hold();
    let first = send(
        b,
        id,
        super::kit::submit("user.signal", json!({"name": "first"})),
    );
    eventually(|| b.log.held() == 1).await;
    let mut calls = Vec::new();
    for command in commands {
        let open = b.engine.stats().commands_open;
        calls.push(send(b, id, command));
        // One after the other into the queue.
        eventually(|| b.engine.stats().commands_open > open).await;
    }
    b.log.release();
    first.await.expect("task").expect("first");
    let mut out = Vec::new();
    for call in calls {
        let answer = call.await.expect("task");
        out.push(answer.map(|a| serde_json::from_slice(&a.body).expect("JSON")));
    }
    out
}

#[test]
fn numbered_calls_in_one_append_are_counted_and_repeated() {
    run(async {
        let b = Boxed::new(config());
        let (id, token) = b.running().await;
        let event = json!({"type": "agent.message", "content": {"text": "once"}});
        let one = json!({"n": 1, "events": [event]});
        let calls = vec![
            attempt(token, "events", &one),
            attempt(token, "events", &one),
            attempt(token, "heartbeat", &json!({"n": 2})),
            attempt(token, "heartbeat", &json!({"n": 4})),
            attempt(token, "heartbeat", &json!({"n": 3})),
        ];
        let answers = together(&b, id, calls).await;
        assert_eq!(answers[0], answers[1]);
        assert!(answers[2].is_ok() && answers[4].is_ok());
        assert_eq!(answers[3].as_ref().unwrap_err().extras["expected"], 3);
        assert_eq!(count(&b.types(id).await, "agent.message"), 1);
        check(&b, id);
        b.engine.close().await;
    });
}

#[test]
fn a_settled_claim_is_fenced_within_the_same_append() {
    run(async {
        let b = Boxed::new(config());
        let (id, token) = b.running().await;
        let settle = json!({"outcome": "succeeded"});
        let event = json!({"type": "agent.message", "content": {"text": "late"}});
        let calls = vec![
            attempt(token, "settle", &settle),
            attempt(token, "events", &json!({"events": [event]})),
            attempt(token, "settle", &settle),
            attempt(token, "settle", &json!({"outcome": "failed"})),
            super::kit::submit("user.message", json!({"text": "next"})),
        ];
        let answers = together(&b, id, calls).await;
        assert_eq!(answers[1].as_ref().unwrap_err().extras["reason"], "settled");
        assert_eq!(answers[0], answers[2], "an identical retry");
        assert_eq!(
            answers[3].as_ref().unwrap_err().extras["outcome"],
            "succeeded"
        );
        assert!(answers[4].is_ok());
        let types = b.types(id).await;
        assert_eq!(count(&types, "agent.message"), 0);
        assert_eq!(count(&types, "run.queued"), 2);
        check(&b, id);
        b.engine.close().await;
    });
}

#[test]
fn inputs_of_one_append_are_taken_once() {
    run(async {
        let b = Boxed::new(config());
        let (id, token) = b.running().await;
        let say = |t: &str| super::kit::submit("user.message", json!({"text": t}));
        let inputs = || attempt(token, "inputs", &json!({}));
        let answers = together(
            &b,
            id,
            vec![say("a"), inputs(), say("b"), say("c"), inputs(), inputs()],
        )
        .await;
        let texts = |i: usize| -> Vec<String> {
            let inputs = answers[i].as_ref().expect("inputs")["inputs"].clone();
            let inputs = inputs.as_array().expect("array").clone();
            inputs
                .iter()
                .map(|e| e["content"]["text"].as_str().expect("text").into())
                .collect()
        };
        assert_eq!(texts(1), ["a"]);
        assert_eq!(texts(4), ["b", "c"]);
        assert!(texts(5).is_empty());
        check(&b, id);
        b.engine.close().await;
    });
}

#[test]
fn an_answer_and_the_question_it_answers_meet_in_one_append() {
    run(async {
        let b = Boxed::new(config());
        let (id, token) = b.running().await;
        let ask = json!({"type": "agent.question", "content": {"questions": [{"text": "?"}]}});
        let wrote = b
            .call(token, "events", json!({"events": [ask]}))
            .await
            .expect("events");
        let question = wrote["events"][0]["id"].clone();
        let answer = json!({"question_id": question, "answers": [["yes"]]});
        let park = json!({"waiting_on": [{"question_id": question}], "compute": "held"});
        let again = answer.clone();
        let answers = together(
            &b,
            id,
            vec![
                super::kit::submit("user.question_answer", answer),
                super::kit::submit("user.question_answer", again),
                attempt(token, "park", &park),
            ],
        )
        .await;
        assert!(answers[0].is_ok());
        assert_eq!(answers[1].as_ref().unwrap_err().extras["state"], "answered");
        assert_eq!(answers[2].as_ref().expect("park")["state"], "ready");
        check(&b, id);
        b.engine.close().await;
    });
}

#[test]
fn one_key_has_one_answer_within_an_append_and_across_restarts() {
    run(async {
        let b = Boxed::new(config());
        let id = b.create(&[]).await;
        let say = |body: u8| {
            let events = vec![input("user.message", json!({"text": "once"}))];
            Command::Submit(Submit {
                request: keyed(body),
                expected_seq: None,
                events,
            })
        };
        let answers = together(&b, id, vec![say(1), say(1), say(2)]).await;
        assert_eq!(answers[0], answers[1]);
        let conflict = answers[2].as_ref().unwrap_err();
        assert_eq!(conflict.code, crate::code::Code::IdempotencyConflict);
        let b = b.restart(config()).await;
        assert_eq!(b.ask(id, say(1)).await, answers[0]);
        assert_eq!(count(&b.types(id).await, "user.message"), 1);
        check(&b, id);
        b.engine.close().await;
    });
}

#[test]
fn two_creations_with_one_key_make_one_session() {
    run(async {
        let b = Boxed::new(config());
        let create = || {
            Command::Create(Box::new(Create {
                request: keyed(1),
                principal: "ann".into(),
                pin: pin(),
                metadata: serde_json::Map::new(),
                budget: None,
                retention: Default::default(),
                events: Vec::new(),
            }))
        };
        b.log.hold();
        let calls: Vec<Call> = (0..8)
            .map(|_| send(&b, b.engine.new_session_id(), create()))
            .collect();
        eventually(|| b.log.held() == 8).await;
        b.log.release();
        let mut bodies = Vec::new();
        for call in calls {
            bodies.push(call.await.expect("task").expect("created").body);
        }
        assert!(bodies.iter().all(|body| *body == bodies[0]));
        let list = b.engine.list(WS, None, 100, None).await.expect("list");
        assert_eq!(list.items.len(), 1);
        b.engine.close().await;
    });
}

#[test]
fn a_message_and_the_claim_of_its_run_leave_rows_as_a_fold_does() {
    run(async {
        let b = Boxed::new(config());
        b.engine.enrol(super::kit::runner(5)).await.expect("enrol");
        let id = b.create(&["one"]).await;
        check(&b, id);
        let grant = b.claim().await;
        check(&b, id);
        grant.confirm.delivered();
        b.engine.forget(RUNNER).await.expect("forget");
        b.submit(id, "user.interrupt", json!({}))
            .await
            .expect("interrupt");
        check(&b, id);
        b.say(id, "two").await.expect("say");
        check(&b, id);
        b.ask(id, Command::Cancel(request())).await.expect("cancel");
        check(&b, id);
        b.engine.close().await;
    });
}
