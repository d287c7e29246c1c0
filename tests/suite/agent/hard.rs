//! Models and tools that misbehave: each call has one result, whatever happens.

use longhaul::model::StopReason;
use serde_json::{Value, json};

use super::kit::{
    Cast, Notes, Played, Stage, TestTool, Way, calls, of, plain, says, spent, times, turn,
};

async fn one_call(way: Way, name: &str, harness: Value) -> (Vec<String>, Value) {
    let notes = Notes::default();
    let model = Played::new(vec![calls(&[(name, json!({}))]), says("ok")]);
    let cast = Cast::new(&model).tool(TestTool::new("tool", way, &notes));
    let stage = Stage::open(&cast).await;
    let session = stage.session(harness).await;
    let settled = turn(&session, "go").await;
    assert_eq!(settled["outcome"], "succeeded", "{settled}");
    let results = of(&session, "agent.tool_result").await;
    assert_eq!(results.len(), 1);
    stage.runtime.close().await;
    (plain(&model.saw(1)), results[0].clone())
}

#[tokio::test]
async fn an_unknown_tool_is_told_with_the_known_ones() {
    let (saw, _) = one_call(Way::Notes, "tol", json!({"tools": ["tool"]})).await;
    assert_eq!(
        saw.last().unwrap(),
        "tool error: there is no tool \"tol\"; there are: tool"
    );
}

#[tokio::test]
async fn a_tool_that_hangs_is_stopped() {
    let harness = json!({"tools": ["tool"], "tool_s_max": 1});
    let (saw, result) = one_call(Way::Hangs, "tool", harness).await;
    assert_eq!(
        saw.last().unwrap(),
        "tool error: the tool was stopped after 1 s"
    );
    assert_eq!(result["is_error"], true);
}

#[tokio::test]
async fn a_flood_is_cut() {
    let (_, result) = one_call(Way::Floods, "tool", json!({"tools": ["tool"]})).await;
    let text = result["output"].as_str().unwrap();
    assert!(text.len() < 200 << 10, "{}", text.len());
    assert!(text.ends_with("[the rest of the output was cut]"));
}

#[tokio::test]
async fn a_tool_that_dies_is_an_error_of_that_call() {
    let (saw, _) = one_call(Way::Dies, "tool", json!({"tools": ["tool"]})).await;
    assert_eq!(saw.last().unwrap(), "tool error: the tool died");
}

#[tokio::test]
async fn a_tool_that_fails_says_why() {
    let (saw, _) = one_call(Way::Fails, "tool", json!({"tools": ["tool"]})).await;
    assert_eq!(saw.last().unwrap(), "tool error: note.full: no room");
}

#[tokio::test]
async fn half_json_is_told_and_not_made() {
    let notes = Notes::default();
    let mut half = calls(&[("tool", json!("{\"a\": "))]);
    half.tool_calls[0].malformed = Some("it ends too soon".to_owned());
    let model = Played::new(vec![half, says("ok")]);
    let cast = Cast::new(&model).tool(TestTool::new("tool", Way::Notes, &notes));
    let stage = Stage::open(&cast).await;
    // Nobody is asked about a call that cannot be made.
    let tools = json!({"tools": [{"name": "tool", "approval": "ask"}]});
    let session = stage.session(tools).await;
    assert_eq!(turn(&session, "go").await["outcome"], "succeeded");
    assert!(notes.lock().unwrap().is_empty());
    let saw = plain(&model.saw(1));
    assert!(saw.last().unwrap().ends_with("it ends too soon"), "{saw:?}");
    stage.runtime.close().await;
}

#[tokio::test]
async fn repeated_ids_are_calls_of_their_own() {
    let notes = Notes::default();
    let twice = calls(&[("tool", json!({"n": 1})), ("tool", json!({"n": 1}))]);
    assert_eq!(twice.tool_calls[0].id, twice.tool_calls[1].id);
    let model = Played::new(vec![twice.clone(), twice, says("ok")]);
    let cast = Cast::new(&model).tool(TestTool::new("tool", Way::Notes, &notes));
    let stage = Stage::open(&cast).await;
    let session = stage.session(json!({"tools": ["tool"]})).await;
    assert_eq!(turn(&session, "go").await["outcome"], "succeeded");
    assert_eq!(notes.lock().unwrap().len(), 4);
    assert_eq!(of(&session, "agent.tool_result").await.len(), 4);
    stage.runtime.close().await;
}

#[tokio::test]
async fn an_answer_with_too_many_calls_is_cut() {
    let notes = Notes::default();
    let many: Vec<_> = (0..40).map(|n| ("tool", json!({ "n": n }))).collect();
    let model = Played::new(vec![calls(&many), says("ok")]);
    let cast = Cast::new(&model).tool(TestTool::new("tool", Way::Notes, &notes));
    let stage = Stage::open(&cast).await;
    let session = stage.session(json!({"tools": ["tool"]})).await;
    assert_eq!(turn(&session, "go").await["outcome"], "succeeded");
    assert_eq!(notes.lock().unwrap().len(), longhaul::agent::CALLS_MAX);
    stage.runtime.close().await;
}

#[tokio::test]
async fn an_empty_answer_ends_the_turn() {
    let model = Played::new(vec![says(""), says("two")]);
    let stage = Stage::open(&Cast::new(&model)).await;
    let session = stage.session(json!({})).await;
    assert_eq!(turn(&session, "go").await["outcome"], "succeeded");
    assert!(of(&session, "agent.message").await.is_empty());
    assert_eq!(spent(&session).await, times(1));
    assert_eq!(turn(&session, "more").await["outcome"], "succeeded");
    assert_eq!(plain(&model.saw(1)), ["user: go", "user: more"]);
    stage.runtime.close().await;
}

#[tokio::test]
async fn a_refusal_fails_the_run_and_says_what_was_said() {
    let mut refusal = says("I will not");
    refusal.stop = StopReason::Refusal;
    let model = Played::new(vec![refusal, says("hello")]);
    let stage = Stage::open(&Cast::new(&model)).await;
    let session = stage.session(json!({})).await;
    let settled = turn(&session, "go").await;
    assert_eq!(settled["error"]["code"], "agent.refused", "{settled}");
    let said = of(&session, "agent.message").await;
    assert_eq!(said[0], json!({"text": "I will not", "stop": "refusal"}));
    assert_eq!(turn(&session, "then hi").await["outcome"], "succeeded");
    stage.runtime.close().await;
}

#[tokio::test]
async fn an_answer_longer_than_an_event_is_cut() {
    let model = Played::new(vec![says(&"ä".repeat(1 << 20))]);
    let stage = Stage::open(&Cast::new(&model)).await;
    let session = stage.session(json!({})).await;
    assert_eq!(turn(&session, "go").await["outcome"], "succeeded");
    let said = of(&session, "agent.message").await;
    assert!(
        said[0]["text"]
            .as_str()
            .unwrap()
            .ends_with("[the rest was cut]")
    );
    stage.runtime.close().await;
}

#[tokio::test]
async fn a_model_that_is_away_fails_the_run_with_its_code() {
    let stage = Stage::open_with(longhaul::runner::Extensions::default()).await;
    let answers = json!([{"error": "overloaded"}]);
    let model = json!({"route": "scripted", "answers": answers});
    let session = stage.session(json!({ "model": model })).await;
    let settled = turn(&session, "go").await;
    assert_eq!(settled["error"]["code"], "model.unavailable", "{settled}");
    assert_eq!(of(&session, "step.failed").await.len(), 1);
    let session = stage.session(json!({"model": "nowhere/at-all"})).await;
    let settled = turn(&session, "go").await;
    assert_eq!(
        settled["error"]["code"], "model.not_configured",
        "{settled}"
    );
    let session = stage
        .session(json!({"model": model, "tools": ["nothing"]}))
        .await;
    let settled = turn(&session, "go").await;
    assert_eq!(settled["error"]["code"], "agent.tool_unknown", "{settled}");
    stage.runtime.close().await;
}
