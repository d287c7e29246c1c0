//! What is done once stays done, whatever becomes of the attempt that did it.

use longhaul::{NewSession, SessionHandle};
use longhaul_actors::session::payload::Budget;
use serde_json::{Value, json};

use super::kit::{
    Cast, Notes, Played, Stage, TestTool, Way, calls, log, of, plain, says, spent, times, turn,
    until, wait,
};

/// What agents wrote, without ids.
async fn written(session: &SessionHandle) -> Vec<(Value, Value)> {
    let all = log(session).await.into_iter();
    let agents = all.filter(|e| e["type"].as_str().unwrap().starts_with("agent."));
    agents
        .map(|mut e| {
            let mut content = e["content"].take();
            if let Some(fields) = content.as_object_mut() {
                fields.remove("tool_use_id");
            }
            (e["type"].take(), content)
        })
        .collect()
}

#[tokio::test]
async fn j6_j12_m1_a_run_that_is_cut_off_goes_on_where_it_was() {
    let notes = Notes::default();
    let answers = vec![
        calls(&[("note", json!({"n": 1}))]),
        calls(&[("note", json!({"n": 2}))]),
        says("done"),
    ];
    let model = Played::new(answers).hold(2);
    let cast = Cast::new(&model).tool(TestTool::new("note", Way::Notes, &notes));
    let stage = Stage::open(&cast).await;
    let session = stage.session(json!({"tools": ["note"]})).await;
    session.send("go").await.unwrap();
    wait("the third call", || model.calls() == 3).await;
    let id = session.id();
    let before = model.saw(2);
    model.let_go();
    drop(session);
    let stage = stage.reopen(&cast).await;
    let session = stage.again(id);
    let settled = until(&session, "run.settled", 1).await;
    assert_eq!(settled["attempt"], 2, "{settled}");
    assert_eq!(settled["content"]["outcome"], "succeeded", "{settled}");
    // Each tool once, and only the call that was cut off again.
    assert_eq!(notes.lock().unwrap().len(), 2);
    assert_eq!(model.calls(), 4);
    assert_eq!(spent(&session).await, times(3));
    assert_eq!(of(&session, "usage.recorded").await.len(), 3);
    // The model got the very same conversation.
    assert_eq!(plain(&before), plain(&model.saw(3)));
    stage.runtime.close().await;
}

#[tokio::test]
async fn l8_without_any_checkpoint_the_conversation_comes_from_the_log() {
    let notes = Notes::default();
    let answers = vec![calls(&[("note", json!({"n": 1}))]), says("done")];
    let model = Played::new(answers).hold(1);
    let cast = Cast::new(&model).tool(TestTool::new("note", Way::Notes, &notes));
    let stage = Stage::open(&cast).await;
    let session = stage
        .session_in_dir(json!({"tools": ["note"], "checkpoint": "off"}))
        .await;
    session.send("go").await.unwrap();
    wait("the second call", || model.calls() == 2).await;
    let id = session.id();
    model.let_go();
    drop(session);
    let stage = stage.reopen(&cast).await;
    let session = stage.again(id);
    until(&session, "run.settled", 1).await;
    assert_eq!(notes.lock().unwrap().len(), 1);
    assert_eq!(plain(&model.saw(1)), plain(&model.saw(2)));
    stage.runtime.close().await;
}

#[tokio::test]
async fn j13_the_same_call_in_a_later_turn_runs_again() {
    let notes = Notes::default();
    let call = calls(&[("note", json!({"n": 1}))]);
    let model = Played::new(vec![
        call.clone(),
        call.clone(),
        says("one"),
        call,
        says("two"),
    ]);
    let cast = Cast::new(&model).tool(TestTool::new("note", Way::Notes, &notes));
    let stage = Stage::open(&cast).await;
    let session = stage.session(json!({"tools": ["note"]})).await;
    turn(&session, "go").await;
    turn(&session, "go").await;
    assert_eq!(notes.lock().unwrap().len(), 3);
    stage.runtime.close().await;
}

/// A run that is cut off after one call, then driven by `second`; how it settled.
async fn swapped(second: impl FnOnce(&Played, &Notes) -> Cast) -> (Value, usize) {
    let notes = Notes::default();
    let answers = vec![calls(&[("note", json!({"n": 1}))]), says("done")];
    let model = Played::new(answers).hold(1);
    let cast = Cast::new(&model).tool(TestTool::new("note", Way::Notes, &notes));
    let stage = Stage::open(&cast).await;
    let session = stage.session(json!({"tools": ["note"]})).await;
    session.send("go").await.unwrap();
    wait("the second call", || model.calls() == 2).await;
    let id = session.id();
    model.let_go();
    drop(session);
    let stage = stage.reopen(&second(&model, &notes)).await;
    let session = stage.again(id);
    let settled = until(&session, "run.settled", 1).await;
    stage.runtime.close().await;
    (settled["content"].clone(), model.calls())
}

#[tokio::test]
async fn j22_another_model_is_a_divergence() {
    let (settled, calls) = swapped(|model, notes| {
        Cast::new(&model.clone().named("test/other")).tool(TestTool::new("note", Way::Notes, notes))
    })
    .await;
    assert_eq!(settled["error"]["code"], "journal.divergence", "{settled}");
    assert_eq!(calls, 2, "nothing was asked");
}

#[tokio::test]
async fn j22_another_revision_of_a_tool_is_a_divergence() {
    let (settled, _) = swapped(|model, notes| {
        Cast::new(model).tool(TestTool::new("note", Way::Notes, notes).revision_of("2"))
    })
    .await;
    assert_eq!(settled["error"]["code"], "journal.divergence", "{settled}");
}

#[tokio::test]
async fn j22_the_same_model_and_tools_are_none() {
    let (settled, calls) =
        swapped(|model, notes| Cast::new(model).tool(TestTool::new("note", Way::Notes, notes)))
            .await;
    assert_eq!(settled["outcome"], "succeeded", "{settled}");
    assert_eq!(calls, 3);
}

/// A run that is cut off while its tool works.
async fn cut_off(way: Way) -> (usize, Vec<String>) {
    let notes = Notes::default();
    let model = Played::new(vec![calls(&[("tool", json!({}))]), says("done")]);
    let cast = Cast::new(&model).tool(TestTool::new("tool", way, &notes));
    let stage = Stage::open(&cast).await;
    let session = stage.session(json!({"tools": ["tool"]})).await;
    session.send("go").await.unwrap();
    wait("the tool", || notes.lock().unwrap().len() == 1).await;
    let id = session.id();
    let works = Cast::new(&model).tool(TestTool::new("tool", Way::Notes, &notes));
    drop(session);
    let stage = stage.reopen(&works).await;
    let session = stage.again(id);
    let settled = until(&session, "run.settled", 1).await;
    assert_eq!(settled["content"]["outcome"], "succeeded", "{settled}");
    stage.runtime.close().await;
    let made = notes.lock().unwrap().len();
    (made, plain(&model.saw(1)))
}

#[tokio::test]
async fn a_call_in_doubt_is_not_made_again_and_the_model_is_told() {
    let (made, saw) = cut_off(Way::Hangs).await;
    assert_eq!(made, 1);
    assert_eq!(
        saw.last().unwrap(),
        "tool error: tool.in_doubt: the call was cut off: it may or may not have happened"
    );
}

#[tokio::test]
async fn files_that_are_gone_are_made_again_in_order_and_nothing_is_said_twice() {
    let notes = Notes::default();
    let sh = |command: &str| ("sh", json!({ "sh": command }));
    let answers = vec![
        calls(&[sh("echo one > f")]),
        calls(&[sh("cat f; echo two >> f")]),
        calls(&[sh("cat f")]),
        says("done"),
    ];
    let model = Played::new(answers).hold(2);
    let cast = Cast::new(&model).tool(TestTool::new("sh", Way::Shell, &notes));
    let stage = Stage::open(&cast).await;
    let session = stage.session_in_dir(json!({"tools": ["sh"]})).await;
    session.send("go").await.unwrap();
    wait("the third call", || model.calls() == 3).await;
    let id = session.id();
    model.let_go();
    drop(session);
    let stage = stage.reopen(&cast).await;
    let session = stage.again(id);
    let settled = until(&session, "run.settled", 1).await;
    assert_eq!(settled["content"]["outcome"], "succeeded", "{settled}");
    let results = of(&session, "agent.tool_result").await;
    let outputs: Vec<&Value> = results.iter().map(|r| &r["output"]).collect();
    assert_eq!(outputs, ["", "one\n", "one\ntwo\n"]);
    // Two were made again, silently.
    assert_eq!(notes.lock().unwrap().len(), 5);
    assert_eq!(written(&session).await.len(), 7);
    assert_eq!(spent(&session).await, times(4));
    stage.runtime.close().await;
}

#[tokio::test]
async fn a_spent_budget_parks_the_run_and_raising_it_goes_on() {
    let notes = Notes::default();
    let call = calls(&[("note", json!({"n": 1}))]);
    let model = Played::new(vec![call.clone(), call, says("done")]);
    let cast = Cast::new(&model).tool(TestTool::new("note", Way::Notes, &notes));
    let stage = Stage::open(&cast).await;
    let agent = stage.agent(json!({"tools": ["note"]})).await;
    let budget = |cost| Budget {
        cost_micros_max: Some(cost),
        tokens_max: None,
    };
    let new = NewSession::of(agent).budget(budget(10));
    let session = stage.runtime.start(new).await.unwrap();
    session.send("go").await.unwrap();
    let parked = until(&session, "run.parked", 1).await;
    assert_eq!(
        parked["content"]["waiting_on"],
        json!([{"budget": true}]),
        "{parked}"
    );
    // The second answer crossed it: its call is not made.
    assert_eq!(model.calls(), 2);
    assert_eq!(notes.lock().unwrap().len(), 1);
    session.set_budget(budget(100)).await.unwrap();
    let settled = until(&session, "run.settled", 1).await;
    assert_eq!(settled["content"]["outcome"], "succeeded", "{settled}");
    assert_eq!(notes.lock().unwrap().len(), 2);
    assert_eq!(model.calls(), 3);
    assert_eq!(spent(&session).await, times(3));
    stage.runtime.close().await;
}
