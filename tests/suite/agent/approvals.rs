//! People (or a program) in the loop: H1 to H7, and tools that the caller answers.

use std::sync::{Arc, Mutex};

use longhaul::SessionHandle;
use longhaul::agent::{Approval, ApprovalAsk, Approver};
use longhaul::runner::BoxFuture;
use serde_json::{Value, json};

use super::kit::{
    Cast, Notes, Played, Stage, TestTool, Way, calls, of, plain, says, send, turn, until,
};

fn pay() -> Value {
    json!({"tools": [{"name": "pay", "approval": "ask"}, "note"]})
}

fn cast(model: &Played, notes: &Notes) -> Cast {
    Cast::new(model)
        .tool(TestTool::new("pay", Way::Notes, notes))
        .tool(TestTool::new("note", Way::Notes, notes))
}

/// Waits for so many approvals; the ids of all.
async fn asked(session: &SessionHandle, count: usize) -> Vec<Value> {
    until(session, "agent.action_approval_requested", count).await;
    let log = super::kit::log(session).await;
    let all = log
        .iter()
        .filter(|e| e["type"] == "agent.action_approval_requested");
    all.map(|e| e["id"].clone()).collect()
}

async fn answer(session: &SessionHandle, id: &Value, mut content: Value) {
    content["approval_id"] = id.clone();
    send(session, "user.action_approval", content).await;
}

#[tokio::test]
async fn h1_h6_a_parked_approval_resumes_and_the_tool_executes_once() {
    let notes = Notes::default();
    let model = Played::new(vec![calls(&[("pay", json!({"eur": 5}))]), says("paid")]);
    let stage = Stage::open(&cast(&model, &notes)).await;
    let session = stage.session(pay()).await;
    session.send("go").await.unwrap();
    let id = asked(&session, 1).await.remove(0);
    until(&session, "run.parked", 1).await;
    assert!(notes.lock().unwrap().is_empty());
    let about = of(&session, "agent.action_approval_requested").await;
    assert_eq!(about[0]["tool"], "pay");
    assert_eq!(about[0]["input"], json!({"eur": 5}));
    assert!(about[0]["tool_use_id"].is_string());
    // A restart while it waits changes nothing.
    let id_of = session.id();
    drop(session);
    let stage = stage.reopen(&cast(&model, &notes)).await;
    let session = stage.again(id_of);
    answer(&session, &id, json!({"decision": "granted"})).await;
    let settled = until(&session, "run.settled", 1).await;
    assert_eq!(settled["content"]["outcome"], "succeeded", "{settled}");
    assert_eq!(*notes.lock().unwrap(), [json!({"eur": 5})]);
    assert_eq!(model.calls(), 2);
    assert_eq!(
        of(&session, "agent.action_approval_requested").await.len(),
        1
    );
    stage.runtime.close().await;
}

#[tokio::test]
async fn h2_edited_arguments_are_what_is_executed() {
    let notes = Notes::default();
    let model = Played::new(vec![calls(&[("pay", json!({"eur": 500}))]), says("paid")]);
    let stage = Stage::open(&cast(&model, &notes)).await;
    let session = stage.session(pay()).await;
    session.send("go").await.unwrap();
    let id = asked(&session, 1).await.remove(0);
    let edited = json!({"decision": "granted", "edited_input": {"eur": 5}});
    answer(&session, &id, edited).await;
    until(&session, "run.settled", 1).await;
    assert_eq!(*notes.lock().unwrap(), [json!({"eur": 5})]);
    assert_eq!(
        of(&session, "agent.tool_result").await[0]["output"],
        "noted {\"eur\":5}"
    );
    stage.runtime.close().await;
}

#[tokio::test]
async fn h3_a_remembered_answer_is_asked_for_once() {
    for (decision, made) in [("granted", 3), ("denied", 0)] {
        let notes = Notes::default();
        let call = calls(&[("pay", json!({}))]);
        let model = Played::new(vec![
            call.clone(),
            call.clone(),
            says("one"),
            call.clone(),
            says("two"),
        ]);
        let stage = Stage::open(&cast(&model, &notes)).await;
        let session = stage.session(pay()).await;
        session.send("go").await.unwrap();
        let id = asked(&session, 1).await.remove(0);
        let remembered = json!({"decision": decision, "remember": true});
        answer(&session, &id, remembered).await;
        until(&session, "run.settled", 1).await;
        // Durably.
        let id_of = session.id();
        drop(session);
        let stage = stage.reopen(&cast(&model, &notes)).await;
        let session = stage.again(id_of);
        assert_eq!(turn(&session, "again").await["outcome"], "succeeded");
        assert_eq!(
            of(&session, "agent.action_approval_requested").await.len(),
            1
        );
        assert_eq!(notes.lock().unwrap().len(), made, "{decision}");
        stage.runtime.close().await;
    }
}

#[tokio::test]
async fn h4_the_reason_of_a_denial_reaches_the_model() {
    let notes = Notes::default();
    let model = Played::new(vec![calls(&[("pay", json!({}))]), says("ok")]);
    let stage = Stage::open(&cast(&model, &notes)).await;
    let session = stage.session(pay()).await;
    session.send("go").await.unwrap();
    let id = asked(&session, 1).await.remove(0);
    let denial = json!({"decision": "denied", "reason": "too much"});
    answer(&session, &id, denial).await;
    until(&session, "run.settled", 1).await;
    assert!(notes.lock().unwrap().is_empty());
    assert_eq!(
        plain(&model.saw(1)).last().unwrap(),
        "tool error: the call was denied: too much"
    );
    stage.runtime.close().await;
}

/// Answers by the tool's input; notes how often it was asked.
#[derive(Debug, Default)]
struct Clerk(Mutex<u32>);

impl Approver for Clerk {
    fn approve<'a>(&'a self, ask: ApprovalAsk<'a>) -> BoxFuture<'a, Result<Approval, String>> {
        Box::pin(async move {
            *self.0.lock().unwrap() += 1;
            match ask.input["eur"].as_u64() {
                Some(0) => Err("the clerk is ill".to_owned()),
                Some(1) => Ok(Approval::Denied {
                    reason: "too little".to_owned(),
                }),
                Some(2) => Ok(Approval::Granted {
                    edited_input: Some(json!({"eur": 20})),
                }),
                _ => Ok(Approval::Granted { edited_input: None }),
            }
        })
    }
}

#[tokio::test]
async fn h5_a_failing_approver_is_a_denial() {
    let notes = Notes::default();
    let call = |n: u64| ("pay", json!({"eur": n}));
    let model = Played::new(vec![
        calls(&[call(0), call(1), call(2), call(3)]),
        says("ok"),
    ]);
    let clerk = Arc::new(Clerk::default());
    let mut cast = cast(&model, &notes);
    cast.approver = Some(clerk.clone());
    let stage = Stage::open(&cast).await;
    let session = stage.session(pay()).await;
    assert_eq!(turn(&session, "go").await["outcome"], "succeeded");
    let mut made = notes.lock().unwrap().clone();
    made.sort_by_key(|i| i["eur"].as_u64());
    assert_eq!(made, [json!({"eur": 3}), json!({"eur": 20})]);
    let saw = plain(&model.saw(1)).join("\n");
    assert!(
        saw.contains("tool error: the call was denied: nobody could be asked: the clerk is ill"),
        "{saw}"
    );
    assert!(
        saw.contains("tool error: the call was denied: too little"),
        "{saw}"
    );
    assert_eq!(*clerk.0.lock().unwrap(), 4);
    assert!(of(&session, "run.parked").await.is_empty());
    stage.runtime.close().await;
}

#[tokio::test]
async fn h7_several_approvals_are_answered_in_any_order_each_to_its_own_call() {
    let notes = Notes::default();
    let call = |n: u64| ("pay", json!({"eur": n}));
    let model = Played::new(vec![
        calls(&[call(1), ("note", json!({"free": true})), call(2), call(3)]),
        says("ok"),
    ]);
    let stage = Stage::open(&cast(&model, &notes)).await;
    let session = stage.session(pay()).await;
    session.send("go").await.unwrap();
    let ids = asked(&session, 3).await;
    until(&session, "run.parked", 1).await;
    // What needs nobody is made meanwhile.
    assert_eq!(*notes.lock().unwrap(), [json!({"free": true})]);
    answer(&session, &ids[2], json!({"decision": "granted"})).await;
    let denied = json!({"decision": "denied", "reason": "no"});
    answer(&session, &ids[0], denied).await;
    let edited = json!({"decision": "granted", "edited_input": {"eur": 22}});
    answer(&session, &ids[1], edited).await;
    until(&session, "run.settled", 1).await;
    let mut made = notes.lock().unwrap().clone();
    made.sort_by_key(|i| i["eur"].as_u64());
    assert_eq!(
        made,
        [json!({"free": true}), json!({"eur": 3}), json!({"eur": 22})]
    );
    let uses = super::kit::log(&session).await;
    let use_of = |n: u64| {
        let found = uses
            .iter()
            .find(|e| e["type"] == "agent.tool_use" && e["content"]["input"] == json!({"eur": n}));
        found.unwrap()["id"].clone()
    };
    let results = of(&session, "agent.tool_result").await;
    for (n, output) in [
        (1, "the call was denied: no"),
        (2, "noted {\"eur\":22}"),
        (3, "noted {\"eur\":3}"),
    ] {
        let result = results.iter().find(|r| r["tool_use_id"] == use_of(n));
        assert_eq!(result.unwrap()["output"], output);
    }
    stage.runtime.close().await;
}

#[tokio::test]
async fn a_custom_tool_is_answered_by_the_caller() {
    let notes = Notes::default();
    let model = Played::new(vec![
        calls(&[("lookup", json!({"q": 1})), ("note", json!({"n": 1}))]),
        says("ok"),
    ]);
    let stage = Stage::open(&cast(&model, &notes)).await;
    let harness = json!({"tools": ["note"], "custom_tools": [{"name": "lookup"}]});
    let session = stage.session(harness).await;
    session.send("go").await.unwrap();
    let asked = until(&session, "agent.custom_tool_use", 1).await;
    assert_eq!(asked["content"]["input"], json!({"q": 1}));
    until(&session, "run.parked", 1).await;
    let result = json!({"tool_use_id": asked["id"], "output": "found"});
    send(&session, "user.custom_tool_result", result).await;
    until(&session, "run.settled", 1).await;
    let saw = plain(&model.saw(1));
    assert!(saw.contains(&"tool: found".to_owned()), "{saw:?}");
    assert!(saw.contains(&"tool: noted {\"n\":1}".to_owned()), "{saw:?}");
    assert_eq!(notes.lock().unwrap().len(), 1);
    stage.runtime.close().await;
}
