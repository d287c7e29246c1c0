//! Going on after a run that failed: with a prompt, and with none.

use longhaul::runtime::ResumeSession;
use serde_json::json;

use super::kit::{
    Cast, Notes, Played, Stage, TestTool, Way, calls, log, of, plain, says, spent, times, turn,
    until,
};

/// A run that fails after two turns, then a resume; what the model saw next.
async fn resumed(prompt: Option<&str>) -> (Vec<String>, serde_json::Value) {
    let notes = Notes::default();
    let call = |n: u64| calls(&[("note", json!({ "n": n }))]);
    let model = Played::new(vec![call(1), call(2), call(3), says("done")]);
    let cast = Cast::new(&model).tool(TestTool::new("note", Way::Notes, &notes));
    let stage = Stage::open(&cast).await;
    let harness = json!({"tools": ["note"], "turns_max": 2});
    let session = stage.session(harness).await;
    let settled = turn(&session, "go").await;
    assert_eq!(settled["error"]["code"], "agent.turns_exhausted");
    let resume = ResumeSession {
        prompt: prompt.map(str::to_owned),
        ..ResumeSession::default()
    };
    let same = session.resume(resume, None).await.unwrap();
    assert_eq!(same.id(), session.id());
    let settled = until(&session, "run.settled", 2).await;
    // Another invocation, with turns of its own; what was done is not done again.
    assert_eq!(settled["content"]["outcome"], "succeeded", "{settled}");
    assert_eq!(notes.lock().unwrap().len(), 3);
    assert_eq!(model.calls(), 4);
    assert_eq!(spent(&session).await, times(4));
    assert_eq!(of(&session, "agent.tool_use").await.len(), 3);
    let log = log(&session).await;
    let said = log.iter().rfind(|e| e["type"] == "user.message").unwrap();
    let author = said["authored_by"]["kind"].clone();
    drop((session, same));
    stage.runtime.close().await;
    (plain(&model.saw(2)), author)
}

fn before() -> Vec<String> {
    let lines = [
        "user: go",
        "agent calls note {\"n\":1}",
        "tool: noted {\"n\":1}",
        "agent calls note {\"n\":2}",
        "tool: noted {\"n\":2}",
    ];
    lines.map(str::to_owned).to_vec()
}

#[tokio::test]
async fn l4_a_resume_sees_the_very_conversation_and_the_prompt() {
    let (saw, author) = resumed(Some("try harder")).await;
    let mut wanted = before();
    wanted.push("user: try harder".to_owned());
    assert_eq!(saw, wanted);
    assert_eq!(author, "principal");
}

#[tokio::test]
async fn l5_without_a_prompt_the_system_gives_a_nudge() {
    let (saw, author) = resumed(None).await;
    let mut wanted = before();
    wanted.push(format!("user: {}", longhaul::runtime::NUDGE));
    assert_eq!(saw, wanted);
    assert_eq!(author, "system");
}
