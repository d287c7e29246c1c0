//! A program with a journal of its own making: the example in Python.

use longhaul::Config;
use longhaul::runner::IsolationMode;
use longhaul::{NewSession, Runtime};
use serde_json::json;

use super::kit::{Stage, quick};

/// Notes each piece of work; in the first attempt it is killed right after the second.
const WORK: &str = r#"
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import bring_your_own_harness as harness
def work(word):
    with open(sys.argv[2], "a") as ledger:
        ledger.write(word + "\n")
    if word == "two" and harness.claim["attempt"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return word.upper()
harness.main(work)
"#;

#[tokio::test]
async fn the_example_in_python_is_killed_and_does_not_repeat_a_finished_step() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger");
    let mut config = quick(Config::in_memory());
    config.runner.isolation = IsolationMode::None;
    let runtime = Runtime::open(config).await.unwrap();
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    let command = json!(["python3", "-B", "-c", WORK, examples, ledger]);
    let new = json!({ "name": "python", "sandbox": { "provider": "dir" },
        "release": { "harness": { "kind": "process", "command": command } } });
    let new = serde_json::from_value(new).unwrap();
    let deployment = runtime.deploy(&new).await.unwrap();
    let session = runtime.start(NewSession::of(deployment.id)).await.unwrap();
    let stage = Stage { runtime, session };
    stage.succeeds("one two three").await;
    let noted = std::fs::read_to_string(&ledger).unwrap();
    // The second was in doubt, and the example tries it again.
    assert_eq!(noted, "one\ntwo\ntwo\nthree\n");
    let said = stage.of_type("agent.message").await;
    assert_eq!(said.len(), 1);
    assert_eq!(said[0]["text"], "ONE TWO THREE");
    assert_eq!(stage.of_type("step.completed").await.len(), 3);
    stage.close().await;
}
