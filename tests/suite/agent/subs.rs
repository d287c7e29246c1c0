//! Sub-agents: J20 and J21.

use serde_json::{Value, json};

use super::kit::{
    Cast, EACH, Notes, Played, Stage, TestTool, Way, calls, of, says, spent, times, turn, until,
    wait,
};

/// A recorded answer that costs as much as every other.
fn costs(mut answer: Value) -> Value {
    answer["usage"] = json!({
        "input_tokens": EACH.input_tokens, "output_tokens": EACH.output_tokens,
        "cost_micros": EACH.cost_micros,
    });
    answer
}

fn helper(name: &str, tool: &str) -> Value {
    let answers = [
        costs(json!({"tool_calls": [{"name": tool, "input": {"by": name}}]})),
        costs(json!({"text": format!("{name} is done")})),
    ];
    json!({"name": name, "tools": [tool],
        "model": {"route": "scripted", "answers": answers}})
}

#[tokio::test]
async fn j21_two_sub_agents_work_at_the_same_time_and_share_nothing() {
    let notes = Notes::default();
    let prompt = json!({"prompt": "help"});
    let model = Played::new(vec![
        calls(&[
            ("ann", prompt.clone()),
            ("bob", prompt.clone()),
            ("ann", prompt),
        ]),
        says("ok"),
    ]);
    let cast = Cast::new(&model).tool(TestTool::new("note", Way::Notes, &notes));
    let stage = Stage::open(&cast).await;
    let harness = json!({"agents": [helper("ann", "note"), helper("bob", "note")]});
    let session = stage.session(harness).await;
    let settled = turn(&session, "go").await;
    assert_eq!(settled["outcome"], "succeeded", "{settled}");
    let results = of(&session, "agent.tool_result").await;
    let mut said: Vec<&str> = results
        .iter()
        .map(|r| r["output"].as_str().unwrap())
        .collect();
    said.sort_unstable();
    assert_eq!(said, ["ann is done", "ann is done", "bob is done"]);
    let mut by: Vec<Value> = notes.lock().unwrap().clone();
    by.sort_by_key(Value::to_string);
    assert_eq!(
        by,
        [
            json!({"by": "ann"}),
            json!({"by": "ann"}),
            json!({"by": "bob"})
        ]
    );
    // Their answers are paid for, and not part of the conversation.
    assert_eq!(spent(&session).await, times(8));
    assert_eq!(of(&session, "agent.tool_use").await.len(), 3);
    stage.runtime.close().await;
}

#[tokio::test]
async fn j20_a_sub_agents_finished_work_is_not_repeated() {
    let notes = Notes::default();
    let slow = Notes::default();
    let prompt = json!({"prompt": "help"});
    let model = Played::new(vec![calls(&[("ann", prompt)]), says("ok")]);
    let answers = [
        costs(json!({"tool_calls": [{"name": "note", "input": {"n": 1}}]})),
        costs(json!({"tool_calls": [{"name": "slow", "input": {"n": 2}}]})),
        costs(json!({"text": "done"})),
    ];
    let ann = json!({"name": "ann", "tools": ["note", "slow"],
        "model": {"route": "scripted", "answers": answers}});
    let cast = |way| {
        Cast::new(&model)
            .tool(TestTool::new("note", Way::Notes, &notes))
            .tool(TestTool::new("slow", way, &slow).idempotent())
    };
    let stage = Stage::open(&cast(Way::Hangs)).await;
    let session = stage.session(json!({"agents": [ann]})).await;
    session.send("go").await.unwrap();
    wait("the slow tool", || slow.lock().unwrap().len() == 1).await;
    let id = session.id();
    drop(session);
    let stage = stage.reopen(&cast(Way::Hangs)).await;
    wait("the slow tool again", || slow.lock().unwrap().len() == 2).await;
    let stage = stage.reopen(&cast(Way::Notes)).await;
    let session = stage.again(id);
    let settled = until(&session, "run.settled", 1).await;
    assert_eq!(settled["content"]["outcome"], "succeeded", "{settled}");
    assert_eq!(slow.lock().unwrap().len(), 3);
    assert_eq!(
        notes.lock().unwrap().len(),
        1,
        "finished work is not repeated"
    );
    // Three of its own, two of its caller.
    assert_eq!(spent(&session).await, times(5));
    stage.runtime.close().await;
}

#[tokio::test]
async fn files_of_a_finished_sub_agent_are_made_again() {
    let notes = Notes::default();
    let prompt = json!({"prompt": "help"});
    let model = Played::new(vec![
        calls(&[("ann", prompt)]),
        calls(&[("sh", json!({"sh": "cat f"}))]),
        says("ok"),
    ])
    .hold(1);
    let answers = [
        costs(json!({"tool_calls": [{"name": "sh", "input": {"sh": "echo mine > f"}}]})),
        costs(json!({"text": "done"})),
    ];
    let ann = json!({"name": "ann", "tools": ["sh"],
        "model": {"route": "scripted", "answers": answers}});
    let cast = Cast::new(&model).tool(TestTool::new("sh", Way::Shell, &notes));
    let stage = Stage::open(&cast).await;
    let session = stage
        .session_in_dir(json!({"tools": ["sh"], "agents": [ann]}))
        .await;
    session.send("go").await.unwrap();
    wait("the second call", || model.calls() == 2).await;
    let id = session.id();
    model.let_go();
    drop(session);
    let stage = stage.reopen(&cast).await;
    let session = stage.again(id);
    until(&session, "run.settled", 1).await;
    let results = of(&session, "agent.tool_result").await;
    assert_eq!(results.last().unwrap()["output"], "mine\n");
    assert_eq!(spent(&session).await, times(5));
    stage.runtime.close().await;
}

#[tokio::test]
async fn a_sub_agent_that_never_stops_is_an_error_of_the_call() {
    let notes = Notes::default();
    let model = Played::new(vec![calls(&[("ann", json!({"prompt": "go"}))]), says("ok")]);
    let cast = Cast::new(&model).tool(TestTool::new("note", Way::Notes, &notes));
    let stage = Stage::open(&cast).await;
    let mut ann = helper("ann", "note");
    ann["turns_max"] = json!(1);
    let session = stage.session(json!({"agents": [ann]})).await;
    assert_eq!(turn(&session, "go").await["outcome"], "succeeded");
    let results = of(&session, "agent.tool_result").await;
    assert_eq!(results[0]["is_error"], true);
    stage.runtime.close().await;
}
