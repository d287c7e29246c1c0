//! What goes out of a session's past takes nothing from how it goes on.

use longhaul_actors::engine::PruneQuery;
use serde_json::json;

use super::kit::{
    Cast, Notes, Played, Stage, TestTool, Way, calls, of, plain, says, send, turn, until,
};

#[tokio::test]
async fn calls_are_counted_although_their_steps_are_pruned() {
    let model = Played::new(vec![says("one"), says("two"), says("three")]);
    let stage = Stage::open(&Cast::new(&model)).await;
    let session = stage.session(json!({})).await;
    turn(&session, "a").await;
    turn(&session, "b").await;
    let all = PruneQuery {
        before_ms: None,
        session: Some(session.id()),
        dry_run: false,
        page: None,
    };
    let pruned = stage.runtime.prune(all).await.unwrap();
    assert!(pruned.journal_values > 0);
    assert_eq!(turn(&session, "c").await["outcome"], "succeeded");
    let said = of(&session, "agent.message").await;
    let texts: Vec<_> = said.iter().map(|m| m["text"].clone()).collect();
    assert_eq!(texts, ["one", "two", "three"]);
    stage.runtime.close().await;
}

#[tokio::test]
async fn a_word_said_while_an_approval_was_awaited_outlives_the_compaction() {
    let notes = Notes::default();
    let model = Played::new(vec![
        calls(&[("pay", json!({}))]),
        says("summed up"),
        says("done"),
    ]);
    let cast = Cast::new(&model).tool(TestTool::new("pay", Way::Notes, &notes));
    let stage = Stage::open(&cast).await;
    let tools = json!([{"name": "pay", "approval": "ask"}]);
    let session = stage
        .session(json!({"tools": tools, "compact_at_tokens": 9}))
        .await;
    session.send("go").await.unwrap();
    let asked = until(&session, "agent.action_approval_requested", 1).await;
    until(&session, "run.parked", 1).await;
    session.send("and hurry").await.unwrap();
    let granted = json!({"approval_id": asked["id"], "decision": "granted"});
    send(&session, "user.action_approval", granted).await;
    until(&session, "run.settled", 1).await;
    let wanted = ["user summary: summed up", "user: and hurry"];
    assert_eq!(plain(&model.saw(2)), wanted);
    // The log says the same: the result went into the summary with its call.
    let seen = session.transcript(longhaul_actors::engine::TranscriptQuery {
        after: 0,
        limit: 100,
        compacted: true,
    });
    let seen = seen.await.unwrap().messages;
    assert_eq!(plain(&seen)[..2], wanted);
    stage.runtime.close().await;
}
