//! Forks as the engine makes them: of live and of cold sessions, of forks, twice at once.

use serde_json::{Value, json};

use super::kit::{Boxed, WS, author, check, config, count, query, request, run};
use crate::code::Code;
use crate::engine::{Family, ForkRequest};
use crate::ids::{ClaimToken, EventId, SessionId};
use crate::session::command::{Command, ReceiptKey, Request};
use crate::session::payload::{Selector, WorkspaceRef};

pub(super) fn fork_of(source: SessionId, selector: Selector) -> ForkRequest {
    ForkRequest {
        request: request(),
        source,
        selector,
        principal: None,
        metadata: None,
        prompt: None,
    }
}

pub(super) fn id_of(answer: &[u8]) -> SessionId {
    let shown: Value = serde_json::from_slice(answer).expect("JSON");
    SessionId::parse(shown["id"].as_str().expect("id")).expect("an id")
}

pub(super) async fn fork(b: &Boxed, source: SessionId, selector: Selector) -> SessionId {
    let answer = b.engine.fork(fork_of(source, selector)).await;
    let answer = answer.expect("fork");
    assert_eq!(answer.status, 201);
    id_of(&answer.body)
}

/// All events of a session, as answered.
async fn events(b: &Boxed, id: SessionId) -> Vec<Value> {
    let mut out = Vec::new();
    let mut after = Some(0);
    while let Some(from) = after {
        let page = b.engine.events(WS, id, query(from)).await.expect("events");
        let read = |e: &bytes::Bytes| serde_json::from_slice(e).expect("JSON");
        out.extend(page.events.iter().map(read));
        after = page.next_after;
    }
    out
}

#[test]
fn a_fork_of_a_live_and_of_a_cold_session_shares_its_past() {
    run(async {
        let mut b = Boxed::new(config());
        let (source, token) = b.running().await;
        b.write(token, "said before").await.expect("events");
        for cold in [false, true] {
            if cold {
                b = b.restart(config()).await;
            }
            let past = events(&b, source).await;
            let child = fork(&b, source, Selector::Head).await;
            let own = events(&b, child).await;
            assert_eq!(own[..past.len()], past[..], "cold: {cold}");
            assert_eq!(own[past.len()]["type"], "session.forked");
            assert_eq!(
                own[past.len()]["content"]["source_session_id"],
                json!(source)
            );
            assert_eq!(b.show(child).await["status"], "idle");
            assert_eq!(b.show(source).await["status"], "running");
            check(&b, child);
            check(&b, source);
            // The claim is a right in the source only.
            b.write(token, "goes on").await.expect("the claim stands");
            assert_eq!(events(&b, child).await, own);
            // The child runs by itself.
            b.say(child, "to the child").await.expect("say");
            assert_eq!(b.show(child).await["status"], "pending");
            b.ask(child, Command::Cancel(request()))
                .await
                .expect("cancel");
        }
        b.engine.close().await;
    });
}

#[test]
fn a_chain_of_a_hundred_forks_reads_as_one_log() {
    run(async {
        let b = Boxed::new(config());
        let root = b.create(&["0"]).await;
        let mut last = root;
        for n in 1..=100 {
            last = fork(&b, last, Selector::Head).await;
            b.say(last, &n.to_string()).await.expect("say");
        }
        let texts = |all: &[Value]| {
            let said = all.iter().filter(|e| e["type"] == "user.message");
            said.map(|e| e["content"]["text"].as_str().expect("text").to_owned())
                .collect::<Vec<_>>()
        };
        let expected: Vec<String> = (0..=100).map(|n| n.to_string()).collect();
        let before = events(&b, last).await;
        assert_eq!(texts(&before), expected);
        assert_eq!(count(&b.types(last).await, "session.forked"), 100);
        check(&b, last);
        let shown = b.show(last).await;
        assert_eq!(shown["untaken_inputs"], 101);
        let Family {
            members,
            truncated: more,
            ..
        } = b.engine.family(WS, last).await.expect("family");
        assert_eq!((members.len(), more), (101, false));
        assert_eq!(members[0].id, root);
        let common = b.engine.common(WS, root, last).await.expect("common");
        assert_eq!(common.through_seq, events(&b, root).await.len() as u64);
        let b = b.restart(config()).await;
        assert_eq!(events(&b, last).await, before);
        assert_eq!(b.show(last).await, shown);
        b.engine.close().await;
    });
}

/// Parks the run on a question, whose id is given.
async fn parked(b: &Boxed, token: ClaimToken, compute: &str) -> Value {
    let question = json!({"type": "agent.question", "content": {"text": "?"}});
    let asked = b
        .call(token, "events", json!({"events": [question]}))
        .await
        .expect("events");
    let question = asked["events"][0]["id"].clone();
    let on = json!([{"question_id": question}]);
    let park = json!({"waiting_on": on, "compute": compute});
    b.call(token, "park", park).await.expect("park");
    question
}

#[test]
fn a_fork_is_the_same_after_a_restart() {
    run(async {
        let b = Boxed::new(config());
        let (source, token) = b.running().await;
        let question = parked(&b, token, "held").await;
        let child = fork(&b, source, Selector::Head).await;
        let before = b.engine.state(WS, child).await.expect("state");
        let b = b.restart(config()).await;
        assert_eq!(b.engine.state(WS, child).await.expect("state"), before);
        // The answer in the child starts the child's own continuation.
        let answer = json!({"question_id": question, "dismissed": true});
        b.submit(child, "user.question_answer", answer.clone())
            .await
            .expect("answer");
        assert_eq!(b.show(child).await["status"], "pending");
        assert_eq!(b.show(source).await["status"], "waiting");
        check(&b, child);
        b.submit(source, "user.question_answer", answer)
            .await
            .expect("the source has its own");
        b.engine.close().await;
    });
}

#[test]
fn an_answer_after_the_boundary_is_open_again_in_the_child() {
    run(async {
        let b = Boxed::new(config());
        let (source, token) = b.running().await;
        let question = parked(&b, token, "released").await;
        let parked = events(&b, source).await.len() as u64;
        let answer = json!({"question_id": question, "dismissed": true});
        b.submit(source, "user.question_answer", answer.clone())
            .await
            .expect("answer");
        let child = fork(&b, source, Selector::Seq(parked)).await;
        assert_eq!(b.show(child).await["status"], "paused");
        check(&b, child);
        let again = b
            .submit(source, "user.question_answer", answer.clone())
            .await;
        assert_eq!(again.unwrap_err().code, Code::ItemNotOpen);
        b.submit(child, "user.question_answer", answer)
            .await
            .expect("open in the child");
        assert_eq!(b.show(child).await["status"], "pending");
        check(&b, child);
        b.engine.close().await;
    });
}

#[test]
fn two_forks_with_one_key_make_one_child() {
    run(async {
        let b = Boxed::new(config());
        let source = b.create(&[]).await;
        let ask = |body: u8| {
            let mut ask = fork_of(source, Selector::Head);
            ask.request = Request {
                receipt: Some(ReceiptKey {
                    scope: [9; 16],
                    body: [body; 16],
                }),
                author: author(),
                ..request()
            };
            let engine = b.engine.clone();
            tokio::spawn(async move { engine.fork(ask).await })
        };
        b.log.hold();
        let calls: Vec<_> = (0..8).map(|_| ask(1)).collect();
        super::kit::eventually(|| b.log.held() == 8).await;
        b.log.release();
        let mut bodies = Vec::new();
        for call in calls {
            bodies.push(call.await.expect("task").expect("forked").body);
        }
        assert!(bodies.iter().all(|body| *body == bodies[0]));
        let list = b.engine.list(WS, None, 100, None).await.expect("list");
        assert_eq!(list.items.len(), 2, "the source and one child");
        let members = b.engine.family(WS, source).await.expect("family").members;
        assert_eq!(members.len(), 2);
        let other = ask(2).await.expect("task").unwrap_err();
        assert_eq!(other.code, Code::IdempotencyConflict);
        let again = ask(1).await.expect("task").expect("the first answer");
        assert_eq!(again.body, bodies[0]);
        let list = b.engine.list(WS, None, 100, None).await.expect("list");
        assert_eq!(list.items.len(), 2);
        b.engine.close().await;
    });
}

#[test]
fn what_cannot_be_forked_is_refused_and_leaves_nothing() {
    run(async {
        let b = Boxed::new(config());
        let source = b.create(&["hi"]).await;
        let foreign = b.create(&["hi"]).await;
        let last = events(&b, source).await.len() as u64;
        let theirs = events(&b, foreign).await[1]["id"].clone();
        let theirs = EventId::parse(theirs.as_str().expect("id")).expect("id");
        let refused = async |ask: ForkRequest| b.engine.fork(ask).await.unwrap_err().code;
        for selector in [
            Selector::Seq(0),
            Selector::Seq(last + 1),
            Selector::Seq(u64::MAX),
            Selector::EventId(theirs),
        ] {
            assert_eq!(
                refused(fork_of(source, selector)).await,
                Code::EventNotFound
            );
        }
        let unknown = crate::ids::CheckpointId([5; 16]);
        assert_eq!(
            refused(fork_of(source, Selector::CheckpointId(unknown))).await,
            Code::CheckpointNotFound
        );
        let mut other = fork_of(source, Selector::Head);
        other.request.viewer.workspace = WorkspaceRef(crate::ids::WorkspaceId([5; 16]));
        assert_eq!(refused(other).await, Code::SessionNotFound);
        let nobody = SessionId([77; 16]);
        assert_eq!(
            refused(fork_of(nobody, Selector::Head)).await,
            Code::SessionNotFound
        );
        b.ask(foreign, Command::Erase(request()))
            .await
            .expect("erase");
        assert_eq!(
            refused(fork_of(foreign, Selector::Seq(1))).await,
            Code::SessionErased
        );
        let list = b.engine.list(WS, None, 100, None).await.expect("list");
        assert_eq!(list.items.len(), 1);
        b.engine.close().await;
    });
}

#[test]
fn a_child_outlives_its_source() {
    run(async {
        let b = Boxed::new(config());
        let source = b.create(&["hi"]).await;
        let child = fork(&b, source, Selector::Head).await;
        let own = events(&b, child).await;
        b.ask(source, Command::Erase(request()))
            .await
            .expect("erase");
        assert_eq!(events(&b, child).await, own);
        let b = b.restart(config()).await;
        assert_eq!(events(&b, child).await, own);
        b.say(child, "more").await.expect("say");
        let members = b.engine.family(WS, child).await.expect("family").members;
        assert_eq!(members.len(), 2);
        assert!(members[0].row.is_none(), "a tombstone");
        b.engine.close().await;
    });
}
