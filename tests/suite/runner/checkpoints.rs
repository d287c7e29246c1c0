//! Checkpoints that harnesses ask for, and attempts that go on from them.

use serde_json::json;

use super::builtin::{QUICK, contents, script};
use crate::support::{Server, assert_whole};

#[tokio::test]
async fn an_attempt_goes_on_from_the_checkpoint_of_a_step_without_doing_it_twice() {
    let mut server = Server::start(QUICK).await;
    let steps = json!([
        { "exec": "echo x >> f" },
        { "checkpoint": { "name": "middle" } },
        { "exec": "echo y >> f" },
        { "sleep_ms": 1_500 },
        { "exec": "cat f" },
    ]);
    let deployment = server.deployment(script(steps)).await;
    let session = server.session(&deployment).await;
    server.send(&session, "x").await;
    loop {
        let log = server.log(&session).await;
        if contents(&log, "agent.tool_result").len() == 2 {
            break;
        }
    }
    server.process.kill9().unwrap();
    server.process.restart().await.unwrap();
    server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    assert_whole(&log);
    let made = contents(&log, "checkpoint.created");
    assert_eq!(made.len(), 2, "the step's, and that of the turn's end");
    assert_eq!(
        (&made[0]["kind"], &made[0]["name"], &made[0]["metadata"]),
        (&json!("explicit"), &json!("middle"), &json!({"step": 1}))
    );
    let claims = contents(&log, "run.claimed");
    assert_eq!(claims.len(), 2);
    assert_eq!(claims[1]["resume"]["id"], made[0]["checkpoint_id"]);
    // What the checkpoint has is there once; what came after it was done again, silently.
    let last = contents(&log, "agent.tool_result").pop().unwrap();
    assert_eq!(last["output"], "x\ny\n");
    assert_eq!(contents(&log, "agent.tool_use").len(), 3);
}

#[tokio::test]
async fn without_snapshots_a_checkpoint_step_is_passed_over() {
    let server = Server::start(QUICK).await;
    let harness = script(json!([{ "checkpoint": {} }, { "say": "on" }]));
    let body = json!({ "name": "test", "sandbox": { "provider": "none", "max_duration_seconds": 60 },
        "release": { "instructions": "", "harness": harness } });
    let deployment = crate::support::id(&server.post("/v1/deployments", body).await);
    let session = server.session(&deployment).await;
    server.send(&session, "x").await;
    server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    assert_eq!(contents(&log, "agent.message").len(), 1);
    assert_eq!(contents(&log, "checkpoint.created").len(), 0);
}
