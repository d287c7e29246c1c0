//! Checkpoints of the loop: after turns, after passes, and without either.

use longhaul::SessionHandle;
use longhaul::runner::BoxFuture;
use longhaul::runner::sandbox::{Entry, Exec, ExecOutput, Launch, Process, Snapshot};
use longhaul::runner::{Sandbox, SandboxError, SandboxProvider, SandboxRequest};
use serde_json::{Value, json};
use std::sync::Arc;

use super::kit::{
    Cast, Notes, Played, Stage, TestTool, Way, calls, of, plain, says, spent, times, turn, until,
    wait,
};

/// Kinds, turns and inputs paid for, oldest first.
async fn kept(session: &SessionHandle) -> Vec<(String, u64, u64)> {
    let created = of(session, "checkpoint.created").await;
    created
        .iter()
        .map(|c| {
            let paid = c["cumulative_usage"]["input_tokens"].as_u64();
            let kind = c["kind"].as_str().unwrap().to_owned();
            (kind, c["turn"].as_u64().unwrap(), paid.unwrap())
        })
        .collect()
}

fn sh(command: &str) -> longhaul::model::ModelAnswer {
    calls(&[("sh", json!({ "sh": command }))])
}

fn cast(model: &Played) -> Cast {
    Cast::new(model).tool(TestTool::new("sh", Way::Shell, &Notes::default()))
}

#[tokio::test]
async fn l1_l2_one_checkpoint_after_a_pass_and_none_without_opting_in() {
    for (mode, wanted) in [
        ("pass", vec![("pass".to_owned(), 2, 20)]),
        ("off", vec![]),
        ("settle", vec![("settle".to_owned(), 1, 20)]),
    ] {
        let model = Played::new(vec![sh("echo a > f"), says("done")]);
        let stage = Stage::open(&cast(&model)).await;
        let harness = json!({"tools": ["sh"], "checkpoint": mode});
        let session = stage.session_in_dir(harness).await;
        assert_eq!(turn(&session, "go").await["outcome"], "succeeded");
        assert_eq!(kept(&session).await, wanted, "{mode}");
        stage.runtime.close().await;
    }
}

#[tokio::test]
async fn l3_one_per_pass_that_a_stop_hook_asked_for() {
    let model = Played::new(vec![says("one"), says("two"), says("three")]);
    let stage = Stage::open(&cast(&model)).await;
    let hook = "test -e a && test -e b || { test -e a && touch b || touch a; exit 1; }";
    let harness = json!({"checkpoint": "pass", "stop_hooks": [{"exec": hook}]});
    let session = stage.session_in_dir(harness).await;
    assert_eq!(turn(&session, "go").await["outcome"], "succeeded");
    let pass = |turn, paid| ("pass".to_owned(), turn, paid);
    assert_eq!(
        kept(&session).await,
        [pass(1, 10), pass(2, 20), pass(3, 30)]
    );
    stage.runtime.close().await;
}

#[tokio::test]
async fn l3b_a_crash_after_three_turns_leaves_three() {
    let model = Played::new(vec![
        sh("echo 1 >> f"),
        sh("echo 2 >> f"),
        sh("echo 3 >> f"),
        sh("cat f"),
        says("done"),
    ])
    .hold(3);
    let notes = Notes::default();
    let cast = Cast::new(&model).tool(TestTool::new("sh", Way::Shell, &notes));
    let stage = Stage::open(&cast).await;
    let harness = json!({"tools": ["sh"], "checkpoint": "turn"});
    let session = stage.session_in_dir(harness).await;
    session.send("go").await.unwrap();
    wait("the fourth call", || model.calls() == 4).await;
    let turn = |turn, paid| ("turn".to_owned(), turn, paid);
    let three = [turn(1, 10), turn(2, 20), turn(3, 30)];
    assert_eq!(kept(&session).await, three);
    let id = session.id();
    model.let_go();
    drop(session);
    let stage = stage.reopen(&cast).await;
    let session = stage.again(id);
    until(&session, "run.settled", 1).await;
    let results = of(&session, "agent.tool_result").await;
    assert_eq!(results[3]["output"], "1\n2\n3\n");
    // The third checkpoint has all three: nothing was made again.
    assert_eq!(notes.lock().unwrap().len(), 4);
    assert_eq!(spent(&session).await, times(5));
    assert_eq!(kept(&session).await[3..], [turn(4, 40), turn(5, 50)]);
    stage.runtime.close().await;
}

#[tokio::test]
async fn l4_cut_off_in_its_second_pass_it_goes_on_with_the_very_conversation() {
    let model = Played::new(vec![says("one"), sh("cat a"), says("two")]).hold(2);
    let cast = cast(&model);
    let stage = Stage::open(&cast).await;
    let hook = "test -e a || { echo first > a; echo go on; exit 1; }";
    let harness = json!({"tools": ["sh"], "checkpoint": "pass", "stop_hooks": [{"exec": hook}]});
    let session = stage.session_in_dir(harness).await;
    session.send("go").await.unwrap();
    wait("the third call", || model.calls() == 3).await;
    let before = model.saw(2);
    let id = session.id();
    model.let_go();
    drop(session);
    let stage = stage.reopen(&cast).await;
    let session = stage.again(id);
    until(&session, "run.settled", 1).await;
    assert_eq!(plain(&before), plain(&model.saw(3)));
    assert_eq!(spent(&session).await, times(3));
    stage.runtime.close().await;
}

/// Its sandboxes cannot be kept.
#[derive(Debug)]
struct Slippery;

#[derive(Debug)]
struct Eel;

impl SandboxProvider for Slippery {
    fn kind(&self) -> &str {
        "slippery"
    }

    fn takes_snapshots(&self) -> bool {
        true
    }

    fn create(&self, _: SandboxRequest) -> BoxFuture<'_, Result<Box<dyn Sandbox>, SandboxError>> {
        Box::pin(async { Ok(Box::new(Eel) as Box<dyn Sandbox>) })
    }
}

fn no<T: Send + 'static>() -> BoxFuture<'static, Result<T, SandboxError>> {
    Box::pin(async { Err(SandboxError::Failed("it slipped".to_owned())) })
}

impl Sandbox for Eel {
    fn exec(&self, _: Exec) -> BoxFuture<'_, Result<ExecOutput, SandboxError>> {
        no()
    }

    fn launch(&self, _: Launch) -> BoxFuture<'_, Result<Process, SandboxError>> {
        no()
    }

    fn read_file(&self, _: String, _: usize) -> BoxFuture<'_, Result<Vec<u8>, SandboxError>> {
        no()
    }

    fn write_file(&self, _: String, _: Vec<u8>) -> BoxFuture<'_, Result<(), SandboxError>> {
        no()
    }

    fn list(&self, _: String, _: usize) -> BoxFuture<'_, Result<Vec<Entry>, SandboxError>> {
        no()
    }

    fn snapshot(&self, _: bool) -> BoxFuture<'_, Result<Snapshot, SandboxError>> {
        no()
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

#[tokio::test]
async fn l10_a_checkpoint_that_fails_is_an_event_and_the_run_succeeds() {
    let model = Played::new(vec![says("done")]);
    let mut extensions = cast(&model).extensions();
    extensions.add_provider(Arc::new(Slippery));
    let stage = Stage::open_with(extensions).await;
    let agent = stage
        .agent_in("slippery", "", json!({"checkpoint": "turn"}))
        .await;
    let new = longhaul::NewSession::of(agent);
    let session = stage.runtime.start(new).await.unwrap();
    assert_eq!(turn(&session, "go").await["outcome"], "succeeded");
    let failed: Vec<Value> = of(&session, "checkpoint.failed").await;
    assert_eq!(failed, [json!({"kind": "turn", "reason": "it slipped"})]);
    stage.runtime.close().await;
}
