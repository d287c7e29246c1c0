//! Nothing that an agent started outlives its run: not an interrupt, not a killed server.

use serde_json::json;

use super::builtin::{QUICK, contents, sandboxes, script};
use crate::support::Server;

/// How many processes have this command line.
fn running(needle: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|e| std::fs::read(e.path().join("cmdline")).ok());
    lines
        .filter(|l| l.strip_suffix(b"\0").unwrap_or(l) == needle.replace(' ', "\0").as_bytes())
        .count()
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let mut every = tokio::time::interval(std::time::Duration::from_millis(10));
    for _ in 0..3_000 {
        every.tick().await;
        if condition() {
            return;
        }
    }
    panic!("never: {what}");
}

/// A sleep that no other test has.
fn sleep_of(test: u32) -> String {
    format!("sleep {test}{}", std::process::id())
}

/// A tree of processes, one of them a daemon, that would run for days.
fn tree(sleep: &str) -> String {
    format!("{sleep} & (setsid {sleep} > /dev/null 2>&1 &); (env -i {sleep} &); {sleep}")
}

#[tokio::test]
async fn an_interrupt_ends_the_command_and_all_it_started() {
    let server = Server::start(&[QUICK, &["runs.beat_s=1"]].concat()).await;
    let sleep = sleep_of(41);
    let deployment = server
        .deployment(script(json!([{ "exec": tree(&sleep) }])))
        .await;
    let session = server.session(&deployment).await;
    server.send(&session, "x").await;
    until("the tree runs", || running(&sleep) == 4).await;
    let interrupt = json!({ "events": [{ "type": "user.interrupt", "content": {} }] });
    server
        .post(&format!("/v1/sessions/{session}/events"), interrupt)
        .await;
    until("the tree is gone", || running(&sleep) == 0).await;
    until("the folder is gone", || sandboxes(&server.data).is_empty()).await;
    let log = server.log(&session).await;
    assert_eq!(contents(&log, "run.settled")[0]["outcome"], "interrupted");
}

#[tokio::test]
async fn a_killed_server_leaves_nothing_after_its_next_start() {
    for (test, isolation) in [(42, "preferred"), (43, "none")] {
        let isolation = format!("runner.isolation={isolation}");
        let settings = [QUICK, &["runs.attempts_max=1", isolation.as_str()]].concat();
        let mut server = Server::start(&settings).await;
        let sleep = sleep_of(test);
        // Without isolation, what leaves both its environment and its group is out of reach.
        let script = script(
            json!([{ "exec": format!("{sleep} & (setsid {sleep} > /dev/null 2>&1 &); {sleep}") }]),
        );
        let deployment = server.deployment(script).await;
        let session = server.session(&deployment).await;
        server.send(&session, "x").await;
        until("the tree runs", || running(&sleep) == 3).await;
        let before = sandboxes(&server.data);
        assert_eq!(before.len(), 1);
        server.process.kill9().unwrap();
        server.process.restart().await.unwrap();
        assert_eq!(running(&sleep), 0, "{isolation}");
        assert!(!before[0].exists());
        server.wait_status(&session, &["idle"]).await;
    }
}
