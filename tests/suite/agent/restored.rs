//! Going on with a conversation: from the newest checkpoint, from an older one, without any.

use std::path::Path;

use longhaul::catalog::profile::{CheckpointMode, SandboxProfile};
use longhaul::runtime::NUDGE;
use longhaul::{Agent, AgentHandle, Code, Config, Outcome, Resume, Runtime};
use serde_json::{Value, json};

use super::kit::{EACH, Notes, Played, TestTool, Way, calls, log, plain, says, times};

/// A folder, and settings under which every checkpoint stays.
fn folder() -> (tempfile::TempDir, Config) {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::in_folder(folder.path().join("data"));
    config.retention.checkpoints_per_session_max = 0;
    (folder, config)
}

fn seq(checkpoint: &Value) -> u64 {
    checkpoint["through_sequence"].as_u64().unwrap()
}

fn id(checkpoint: &Value) -> &str {
    checkpoint["id"].as_str().unwrap()
}

#[tokio::test]
async fn c1_c2_c3_checkpoints_are_listed_newest_first_fifty_unless_told_otherwise() {
    let (_folder, config) = folder();
    let model = Played::new(vec![says("a long answer that is not part of a list"); 56]);
    let agent = Agent::new("clerk").model(model).open_with(config);
    let agent = agent.await.unwrap();
    let session = agent.start().await.unwrap();
    let none = agent.list_checkpoints(session, None).await.unwrap();
    assert_eq!(none, Vec::<Value>::new());
    for _ in 0..55 {
        agent.run_in(session, "go").await.unwrap();
    }
    let fifty = agent.list_checkpoints(session, None).await.unwrap();
    assert_eq!(fifty.len(), 50);
    let all = agent.list_checkpoints(session, 1_000).await.unwrap();
    assert_eq!((all.len(), &all[..50]), (55, &fifty[..]));
    let three = agent.list_checkpoints(session, 3).await.unwrap();
    assert_eq!(three, all[..3]);
    assert!(all.is_sorted_by(|a, b| seq(a) > seq(b)), "newest first");
    let text = json!(all).to_string();
    assert!(
        !text.contains("a long answer"),
        "what is known of them only"
    );
    // The newest by position is the latest: it goes on in place.
    let latest = Resume::of(session)
        .prompt("on")
        .from_checkpoint(id(&all[0]));
    assert_eq!(agent.resume(latest).await.unwrap().session_id, session);
    agent.close().await;
}

#[tokio::test]
async fn c4_l13_a_checkpoint_that_is_not_the_sessions_is_none() {
    let (_folder, mut config) = folder();
    config.retention.checkpoints_per_session_max = 1;
    let runtime = Runtime::open(config).await.unwrap();
    let model = Played::new(vec![says("a"), says("b")]);
    let agent = Agent::new("clerk").model(model.clone()).embed(&runtime);
    let agent = agent.await.unwrap();
    let mine = agent.run("go").await.unwrap().session_id;
    let pruned = agent.list_checkpoints(mine, None).await.unwrap().remove(0);
    agent.run_in(mine, "go").await.unwrap();
    let other = agent.run("go").await.unwrap().session_id;
    let others = agent.list_checkpoints(other, None).await.unwrap().remove(0);
    let (events, asked) = (log(&runtime.session(mine)).await.len(), model.calls());
    for absent in [
        id(&others),
        id(&pruned),
        "ckpt_00000000000000000000000000000000",
        "ckpt_of_mine",
        "latest ",
        "",
    ] {
        let resume = Resume::of(mine).prompt("x").from_checkpoint(absent);
        let refused = agent.resume(resume).await.unwrap_err();
        assert_eq!(refused.code(), Some(Code::CheckpointNotFound), "{absent:?}");
    }
    assert_eq!(log(&runtime.session(mine)).await.len(), events);
    assert_eq!(model.calls(), asked, "nothing began anew");
    runtime.close().await;
}

async fn open(data: &Path, model: &Played, notes: &Notes) -> AgentHandle {
    let note = TestTool::new("note", Way::Notes, notes);
    let agent = Agent::new("clerk").model(model.clone()).tool(note);
    agent.open(data.join("data")).await.unwrap()
}

#[tokio::test]
async fn c5_l6_l7_m4_an_older_checkpoint_is_gone_on_from_in_a_fork() {
    let folder = tempfile::tempdir().unwrap();
    let notes = Notes::default();
    let model = Played::new(vec![
        calls(&[("note", json!({"n": 1, "deep": {"list": [null, "ü"]}}))]),
        says("noted"),
        says("second"),
        says("in place"),
        says("another way"),
    ]);
    let agent = open(folder.path(), &model, &notes).await;
    let one = agent.run("one").await.unwrap();
    let session = one.session_id;
    agent.run_in(session, "two").await.unwrap();
    agent.close().await;

    let agent = open(folder.path(), &model, &notes).await;
    let listed = agent.list_checkpoints(session, None).await.unwrap();
    let latest = Resume::of(session).prompt("three");
    let latest = latest.from_checkpoint(id(&listed[0]));
    let three = agent.resume(latest).await.unwrap();
    assert_eq!((three.session_id, three.usage), (session, EACH));

    let before = agent.list_checkpoints(session, None).await.unwrap();
    let older = Resume::of(session).prompt("or so");
    let older = older.from_checkpoint(id(&listed[1]));
    let fork = agent.resume(older).await.unwrap();
    assert_ne!(fork.session_id, session);
    // The very conversation up to there, with calls and results, and nothing after it.
    let wanted = [
        "user: one",
        r#"agent calls note {"deep":{"list":[null,"ü"]},"n":1}"#,
        r#"tool: noted {"deep":{"list":[null,"ü"]},"n":1}"#,
        "agent: noted",
        "user: or so",
    ];
    let last = model.calls() - 1;
    assert_eq!(plain(&model.saw(last)), wanted);
    assert_eq!(notes.lock().unwrap().len(), 1);
    // Its own usage begins at nothing, what the past cost stands apart.
    assert_eq!((fork.session_usage, fork.inherited_usage), (EACH, times(2)));
    // It has a checkpoint of its own, and knows where it is from; the source is as it was.
    let own = agent.list_checkpoints(fork.session_id, None).await.unwrap();
    assert!(own.iter().all(|c| !before.contains(c)), "{own:?}");
    assert!(!own.is_empty());
    let shown = agent.show(fork.session_id).await.unwrap();
    let from = shown.to_string();
    assert!(from.contains(&session.to_string()), "{shown}");
    assert_eq!(agent.list_checkpoints(session, None).await.unwrap(), before);
    agent.close().await;
}

#[tokio::test]
async fn l4_m1_a_run_that_failed_is_gone_on_with_and_nothing_is_paid_twice() {
    let folder = tempfile::tempdir().unwrap();
    let notes = Notes::default();
    let first = vec![says("hi"), calls(&[("note", json!({"n": 1}))])];
    let model = Played::new(first.clone());
    let agent = open(folder.path(), &model, &notes).await;
    let session = agent.run("hello").await.unwrap().session_id;
    let failed = agent.run_in(session, "work").await.unwrap();
    let Outcome::Failed { code, .. } = &failed.outcome else {
        panic!("{failed:?}");
    };
    assert_eq!(code, "model.nonsense");
    let before = plain(&model.saw(model.calls() - 1));
    agent.close().await;

    let model = Played::new([first, vec![says("done")]].concat());
    let agent = open(folder.path(), &model, &notes).await;
    let done = agent.resume(Resume::of(session).prompt("go on")).await;
    let done = done.unwrap();
    assert_eq!((done.text.as_str(), done.turns), ("done", 1));
    assert_eq!((done.usage, done.session_usage), (EACH, times(3)));
    assert_eq!(model.calls(), 1, "only what was not answered is asked");
    let wanted = [before, vec!["user: go on".to_owned()]].concat();
    assert_eq!(plain(&model.saw(0)), wanted);
    assert_eq!(notes.lock().unwrap().len(), 1);
    agent.close().await;
}

#[tokio::test]
async fn l5_without_a_prompt_the_runtime_says_go_on() {
    let (_folder, config) = folder();
    let runtime = Runtime::open(config).await.unwrap();
    let model = Played::new(vec![says("one"), says("two")]);
    let agent = Agent::new("clerk").model(model.clone()).embed(&runtime);
    let agent = agent.await.unwrap();
    let session = agent.run("go").await.unwrap().session_id;
    agent.resume(Resume::of(session)).await.unwrap();
    let nudge = format!("user: {NUDGE}");
    assert_eq!(plain(&model.saw(1)).last().unwrap(), &nudge);
    let all = log(&runtime.session(session)).await;
    let said = all.iter().rfind(|e| e["type"] == "user.message").unwrap();
    assert_eq!(said["authored_by"]["kind"], "system", "{said}");
    runtime.close().await;
}

#[tokio::test]
async fn l8_l9_without_any_checkpoint_the_conversation_is_in_the_log() {
    for (mode, provider) in [(CheckpointMode::Off, "dir"), (CheckpointMode::Turn, "none")] {
        let (_folder, config) = folder();
        let model = Played::new(vec![says("one"), says("two")]);
        let sandbox = SandboxProfile {
            provider: provider.to_owned(),
            ..SandboxProfile::default()
        };
        let agent = Agent::new("clerk").model(model.clone()).sandbox(sandbox);
        let agent = agent.checkpoint(mode).open_with(config).await.unwrap();
        let session = agent.run("go").await.unwrap().session_id;
        let none = agent.list_checkpoints(session, None).await.unwrap();
        assert!(none.is_empty(), "{none:?}");
        let two = agent.resume(Resume::of(session).prompt("on")).await;
        let two = two.unwrap();
        assert_eq!((two.session_id, two.text.as_str()), (session, "two"));
        assert_eq!(plain(&model.saw(1)), ["user: go", "agent: one", "user: on"]);
        agent.close().await;
    }
}

#[tokio::test]
async fn j3_j5_sessions_at_the_same_time_keep_their_own_steps() {
    let (_folder, config) = folder();
    let notes = Notes::default();
    let turn = vec![calls(&[("note", json!({"n": 1}))]), says("done")];
    let note = TestTool::new("note", Way::Notes, &notes);
    let agent = Agent::new("clerk").model(Played::new(turn)).tool(note);
    let runtime = Runtime::open(config).await.unwrap();
    let agent = agent.embed(&runtime).await.unwrap();
    let runs = (0..8).map(|_| agent.run("the same"));
    let answers = futures_util::future::join_all(runs).await;
    // The same call with the same input in each: none is answered from another one's journal.
    assert_eq!(notes.lock().unwrap().len(), 8);
    for answer in answers {
        let answer = answer.unwrap();
        assert_eq!((answer.turns, answer.session_usage), (2, times(2)));
        let log = log(&runtime.session(answer.session_id)).await;
        let count = |kind: &str| log.iter().filter(|e| e["type"] == kind).count();
        assert_eq!(
            (count("step.completed"), count("agent.tool_result")),
            (3, 1)
        );
        let runs = log.iter().filter_map(|e| e["run_id"].as_str());
        assert!(runs.into_iter().all(|run| run == answer.run_id));
    }
    runtime.close().await;
}
