//! The loop itself: answers, passes, limits, what the model sees.

use std::sync::Arc;

use longhaul::NewSession;
use longhaul_actors::session::payload::WorkspaceRef;
use serde_json::json;

use super::kit::{
    Cast, Notes, Played, Stage, TestTool, Way, calls, deployment, log, of, plain, says, spent,
    times, turn, until,
};

#[tokio::test]
async fn an_answer_with_a_call_and_one_without_are_a_turn() {
    let notes = Notes::default();
    let model = Played::new(vec![calls(&[("note", json!({"n": 1}))]), says("done")]);
    let cast = Cast::new(&model).tool(TestTool::new("note", Way::Notes, &notes));
    let stage = Stage::open(&cast).await;
    let session = stage.session(json!({"tools": ["note"]})).await;
    let settled = turn(&session, "go").await;
    assert_eq!(settled["outcome"], "succeeded", "{settled}");
    assert_eq!(*notes.lock().unwrap(), [json!({"n": 1})]);
    assert_eq!(model.asked.lock().unwrap()[0].system, "be brief");
    assert_eq!(plain(&model.saw(0)), ["user: go"]);
    assert_eq!(
        plain(&model.saw(1)),
        [
            "user: go",
            "agent calls note {\"n\":1}",
            "tool: noted {\"n\":1}"
        ]
    );
    assert_eq!(of(&session, "agent.message").await[0]["text"], "done");
    assert_eq!(spent(&session).await, times(2));
    // Each answer and each result is one commit with the end of its step.
    let types: Vec<String> = log(&session)
        .await
        .iter()
        .map(|e| e["type"].as_str().unwrap().to_owned())
        .filter(|t| !t.starts_with("run.") && !t.starts_with("session."))
        .collect();
    assert_eq!(
        types,
        [
            "user.message",
            "step.started",
            "agent.tool_use",
            "usage.recorded",
            "step.completed",
            "step.started",
            "agent.tool_result",
            "step.completed",
            "step.started",
            "agent.message",
            "usage.recorded",
            "step.completed",
        ]
    );
    stage.runtime.close().await;
}

#[tokio::test]
async fn l9_a_later_run_goes_on_from_the_log() {
    let notes = Notes::default();
    let answers = vec![
        calls(&[("note", json!({"n": 1}))]),
        says("one"),
        says("two"),
    ];
    let model = Played::new(answers);
    let cast = Cast::new(&model).tool(TestTool::new("note", Way::Notes, &notes));
    let stage = Stage::open(&cast).await;
    let session = stage.session(json!({"tools": ["note"]})).await;
    turn(&session, "first").await;
    turn(&session, "second").await;
    assert_eq!(
        plain(&model.saw(2)),
        [
            "user: first",
            "agent calls note {\"n\":1}",
            "tool: noted {\"n\":1}",
            "agent: one",
            "user: second",
        ]
    );
    stage.runtime.close().await;
}

#[tokio::test]
async fn l14_the_turn_limit_counts_the_invocation_not_the_sessions_life() {
    let notes = Notes::default();
    let call = calls(&[("note", json!({}))]);
    let answers = vec![
        call.clone(),
        says("one"),
        call.clone(),
        says("two"),
        call.clone(),
        call.clone(),
        says("never"),
    ];
    let model = Played::new(answers);
    let cast = Cast::new(&model).tool(TestTool::new("note", Way::Notes, &notes));
    let stage = Stage::open(&cast).await;
    let session = stage
        .session(json!({"tools": ["note"], "turns_max": 2}))
        .await;
    assert_eq!(turn(&session, "a").await["outcome"], "succeeded");
    assert_eq!(turn(&session, "b").await["outcome"], "succeeded");
    let settled = turn(&session, "c").await;
    assert_eq!(
        settled["error"]["code"], "agent.turns_exhausted",
        "{settled}"
    );
    assert_eq!(model.calls(), 6);
    stage.runtime.close().await;
}

#[tokio::test]
async fn l15_changed_instructions_reach_the_model_only_in_new_sessions() {
    let model = Played::new(vec![says("a"), says("b")]);
    let stage = Stage::open(&Cast::new(&model)).await;
    let agent = stage.agent_in("none", "be brief", json!({})).await;
    let old = stage.runtime.start(NewSession::of(agent)).await.unwrap();
    turn(&old, "hi").await;
    let mut changed = deployment("none", "be long", json!({}));
    changed.as_object_mut().unwrap().remove("name");
    let changed = serde_json::from_value(changed).unwrap();
    let catalog = stage.runtime.catalog();
    catalog
        .create_revision(WorkspaceRef::DEFAULT, "dev", agent, &changed, None)
        .await
        .unwrap();
    let new = stage.runtime.start(NewSession::of(agent)).await.unwrap();
    turn(&old, "again").await;
    turn(&new, "hi").await;
    let told: Vec<String> = {
        let asked = model.asked.lock().unwrap();
        asked.iter().map(|r| r.system.clone()).collect()
    };
    assert_eq!(told, ["be brief", "be brief", "be long"]);
    let started = of(&old, "run.started").await;
    assert_eq!(started[1]["agent_deployment_revision_number"], 1);
    stage.runtime.close().await;
}

#[tokio::test]
async fn steering_messages_reach_the_next_answer() {
    let notes = Notes::default();
    let model = Played::new(vec![calls(&[("slow", json!({}))]), says("done")]);
    let cast = Cast::new(&model).tool(TestTool::new("slow", Way::Hangs, &notes));
    let stage = Stage::open(&cast).await;
    let session = stage
        .session(json!({"tools": ["slow"], "tool_s_max": 1}))
        .await;
    session.send("go").await.unwrap();
    until(&session, "agent.tool_use", 1).await;
    session.send("hurry").await.unwrap();
    session.send("please").await.unwrap();
    until(&session, "run.settled", 1).await;
    let saw = plain(&model.saw(1));
    // The result stands behind its call, whatever was said between the two.
    assert_eq!(
        saw,
        [
            "user: go",
            "agent calls slow {}",
            "tool error: the tool was stopped after 1 s",
            "user: hurry",
            "user: please",
        ]
    );
    // The log gives the same conversation.
    assert_eq!(of(&session, "run.queued").await.len(), 1);
    stage.runtime.close().await;
}

#[tokio::test]
async fn an_interrupt_during_a_model_call_leaves_nothing_half_written() {
    let model = Played::new(vec![says("never"), says("later")]).hold(0);
    let stage = Stage::open(&Cast::new(&model)).await;
    let session = stage.session(json!({})).await;
    session.send("go").await.unwrap();
    until(&session, "step.started", 1).await;
    session.interrupt().await.unwrap();
    let settled = until(&session, "run.settled", 1).await;
    assert_eq!(settled["content"]["outcome"], "interrupted");
    assert!(of(&session, "agent.message").await.is_empty());
    assert!(of(&session, "usage.recorded").await.is_empty());
    model.let_go();
    assert_eq!(turn(&session, "again").await["outcome"], "succeeded");
    // The interrupted call has never ended: its answer is still to come.
    let said = of(&session, "agent.message").await;
    assert_eq!(said[0]["text"], "never");
    assert_eq!(
        plain(&model.saw(1)),
        ["user: go", "user: again"],
        "both messages are in the conversation"
    );
    stage.runtime.close().await;
}

#[tokio::test]
async fn a_compaction_is_an_event_and_what_the_model_sees_from_then_on() {
    let notes = Notes::default();
    let answers = vec![
        calls(&[("note", json!({"n": 1}))]),
        says("it was noted"),
        says("done"),
        says("more"),
    ];
    let model = Played::new(answers);
    let cast = Cast::new(&model).tool(TestTool::new("note", Way::Notes, &notes));
    let stage = Stage::open(&cast).await;
    let session = stage
        .session(json!({"tools": ["note"], "compact_at_tokens": 9}))
        .await;
    let settled = turn(&session, "go").await;
    assert_eq!(settled["outcome"], "succeeded", "{settled}");
    let compacted = of(&session, "agent.context_compacted").await;
    assert_eq!(compacted[0]["summary"], "it was noted");
    assert_eq!(plain(&model.saw(2)), ["user summary: it was noted"]);
    assert_eq!(spent(&session).await, times(3));
    stage.runtime.close().await;
}

#[tokio::test]
async fn a_summary_leaves_out_what_was_just_asked() {
    let answers = vec![says("one"), says("the summary"), says("two")];
    let model = Played::new(answers);
    let stage = Stage::open(&Cast::new(&model)).await;
    let session = stage.session(json!({"compact_at_tokens": 9})).await;
    turn(&session, "first").await;
    turn(&session, "second").await;
    assert_eq!(
        plain(&model.saw(2)),
        ["user summary: the summary", "user: second"]
    );
    stage.runtime.close().await;
}

#[tokio::test]
async fn a_stop_hook_sends_it_back_until_it_is_content() {
    let model = Played::new(vec![says("one"), says("two"), says("three")]);
    let stage = Stage::open(&Cast::new(&model)).await;
    let hook =
        "test -e a && test -e b || { test -e a && touch b || touch a; echo not yet; exit 3; }";
    let session = stage
        .session_in_dir(json!({"stop_hooks": [{"exec": hook}]}))
        .await;
    let settled = turn(&session, "go").await;
    assert_eq!(settled["outcome"], "succeeded", "{settled}");
    let saw = plain(&model.saw(2));
    assert_eq!(saw[0], "user: go");
    assert_eq!(saw[1], "agent: one");
    assert!(
        saw[2].ends_with("ended with status 3:\nnot yet\n"),
        "{saw:?}"
    );
    assert_eq!(saw[3], "agent: two");
    stage.runtime.close().await;
}

#[tokio::test]
async fn a_stop_hook_that_is_never_content_ends_the_passes() {
    let model = Played::new(vec![says("one"), says("two"), says("three")]);
    let stage = Stage::open(&Cast::new(&model)).await;
    let harness = json!({"stop_hooks": [{"exec": "false"}], "passes_max": 2});
    let session = stage.session_in_dir(harness).await;
    let settled = turn(&session, "go").await;
    assert_eq!(
        settled["error"]["code"], "agent.passes_exhausted",
        "{settled}"
    );
    assert_eq!(model.calls(), 2);
    stage.runtime.close().await;
}

#[tokio::test]
async fn prices_are_counted_where_the_model_has_none() {
    let mut answer = says("done");
    answer.usage.cost_micros = 0;
    let model = Played::new(vec![answer]);
    let stage = Stage::open(&Cast::new(&model)).await;
    let prices = json!({"input_micros_per_mtok": 3_000_000, "output_micros_per_mtok": 15_000_000});
    let session = stage.session(json!({"prices": prices})).await;
    turn(&session, "go").await;
    assert_eq!(spent(&session).await.cost_micros, 10 * 3 + 5 * 15);
    stage.runtime.close().await;
}

#[tokio::test]
async fn a_recorded_model_needs_no_routes() {
    let stage = Stage::open_with(longhaul::runner::Extensions::default()).await;
    let answers = json!([{"text": "you said {{input}}"}]);
    let harness = json!({"model": {"route": "scripted", "answers": answers}});
    let session = stage.session(harness).await;
    assert_eq!(turn(&session, "ada").await["outcome"], "succeeded");
    assert_eq!(
        of(&session, "agent.message").await[0]["text"],
        "you said ada"
    );
    let settled = turn(&session, "more").await;
    assert_eq!(settled["error"]["code"], "model.nonsense", "{settled}");
    stage.runtime.close().await;
}

#[derive(Debug)]
struct Broken;

impl longhaul::agent::StopHook for Broken {
    fn check<'a>(
        &'a self,
        _: longhaul::agent::StopInput<'a>,
    ) -> longhaul::runner::BoxFuture<'a, Result<Option<String>, String>> {
        Box::pin(async { Err("no judge today".to_owned()) })
    }
}

#[tokio::test]
async fn a_hook_that_cannot_tell_fails_the_run() {
    let model = Played::new(vec![says("one")]);
    let mut cast = Cast::new(&model);
    cast.hook = Some(Arc::new(Broken));
    let stage = Stage::open(&cast).await;
    let session = stage.session(json!({})).await;
    let settled = turn(&session, "go").await;
    assert_eq!(settled["error"]["code"], "agent.hook_failed", "{settled}");
    stage.runtime.close().await;
}
