//! The runner inside the server.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Server, assert_whole};

/// Lost attempts are noticed soon.
pub(super) const QUICK: &[&str] = &["runs.lease_s=1", "runs.beat_s=1", "runs.backoff_ms_min=10"];

pub(super) fn contents(log: &[Value], kind: &str) -> Vec<Value> {
    log.iter()
        .filter(|e| e["type"] == kind)
        .map(|e| e["content"].clone())
        .collect()
}

pub(super) fn script(steps: Value) -> Value {
    json!({ "kind": "script", "steps": steps })
}

/// The attempts' folders of a server on `data`.
pub(super) fn sandboxes(data: &Path) -> Vec<std::path::PathBuf> {
    let root = data.with_extension("sandboxes");
    let entries = std::fs::read_dir(root).unwrap().flatten();
    entries.map(|e| e.path()).filter(|p| p.is_dir()).collect()
}

#[tokio::test]
async fn a_turn_with_files_and_commands() {
    let server = Server::start(&[]).await;
    let steps = json!([
        { "write": { "path": "in/a", "text": "{{input}}\n" } },
        { "exec": "cat in/a; echo 2 > b; exit 4" },
        { "exec": "cat b" },
        { "usage": { "input_tokens": 5, "output_tokens": 1 } },
        { "say": "done: {{input}}" },
    ]);
    let deployment = server.deployment(script(steps)).await;
    let session = server.session(&deployment).await;
    server.send(&session, "hello").await;
    let shown = server.wait_status(&session, &["idle"]).await;
    assert_eq!(shown["usage"]["input_tokens"], 5, "{shown}");
    let log = server.log(&session).await;
    assert_whole(&log);
    let results = contents(&log, "agent.tool_result");
    assert_eq!(
        (&results[1]["output"], &results[1]["exit_code"]),
        (&json!("hello\n"), &json!(4))
    );
    assert_eq!(results[2]["output"], "2\n");
    assert_eq!(contents(&log, "agent.message")[0]["text"], "done: hello");
    assert_eq!(sandboxes(&server.data), Vec::<std::path::PathBuf>::new());
    // The next turn starts with an empty folder.
    server.send(&session, "again").await;
    server.wait_status(&session, &["idle"]).await;
}

#[tokio::test]
async fn questions_and_custom_tools_wait_for_people() {
    let server = Server::start(&[]).await;
    let steps = json!([
        { "say": "start" },
        { "question": { "questions": [{ "question": "which?", "options": ["a", "b"] }] } },
        { "write": { "path": "kept", "text": "here" } },
        { "custom_tool": { "name": "lookup", "input": { "key": 1 } } },
        { "exec": "cat kept" },
        { "say": "{{input}}" },
    ]);
    let deployment = server.deployment(script(steps)).await;
    let session = server.session(&deployment).await;
    server.send(&session, "one").await;
    server.wait_status(&session, &["paused"]).await;
    server.send(&session, "two").await;
    let events =
        |kind: &str, content: Value| json!({ "events": [{ "type": kind, "content": content }] });
    let path = format!("/v1/sessions/{session}/events");
    let log = server.log(&session).await;
    let question = log.iter().find(|e| e["type"] == "agent.question").unwrap()["id"].clone();
    let answer = json!({ "question_id": question, "answers": [["a"]] });
    server
        .post(&path, events("user.question_answer", answer))
        .await;
    server.wait_status(&session, &["waiting"]).await;
    let log = server.log(&session).await;
    let tool = log
        .iter()
        .find(|e| e["type"] == "agent.custom_tool_use")
        .unwrap()["id"]
        .clone();
    let result = json!({ "tool_use_id": tool, "output": "found" });
    server
        .post(&path, events("user.custom_tool_result", result))
        .await;
    server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    assert_whole(&log);
    assert_eq!(
        contents(&log, "agent.tool_result").last().unwrap()["output"],
        "here"
    );
    let said: Vec<_> = contents(&log, "agent.message")
        .iter()
        .map(|c| c["text"].clone())
        .collect();
    assert_eq!(said, ["start", "one\ntwo"]);
    let outcomes: Vec<_> = contents(&log, "run.settled")
        .iter()
        .map(|c| c["outcome"].clone())
        .collect();
    assert_eq!(outcomes, ["continued", "succeeded"]);
}

#[tokio::test]
async fn a_failed_run_says_why_and_the_session_goes_on() {
    let server = Server::start(&[]).await;
    let deployment = server
        .deployment(script(json!([{ "fail": "not {{input}}" }])))
        .await;
    let session = server.session(&deployment).await;
    server.send(&session, "now").await;
    server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    let error = &contents(&log, "run.settled")[0]["error"];
    assert_eq!(
        *error,
        json!({ "code": "harness.script_failed", "message": "not now" })
    );
}

#[tokio::test]
async fn without_a_sandbox_a_command_fails_the_run() {
    let server = Server::start(&[]).await;
    let body = json!({ "name": "test", "sandbox": { "provider": "none", "max_duration_seconds": 60 },
        "release": { "instructions": "", "harness": script(json!([{ "say": "a" }, { "exec": "true" }])) } });
    let deployment = crate::support::id(&server.post("/v1/deployments", body).await);
    let session = server.session(&deployment).await;
    server.send(&session, "x").await;
    server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    let settled = &contents(&log, "run.settled")[0];
    assert_eq!(settled["error"]["code"], "sandbox.unsupported", "{settled}");
    // The tool use that could not be carried out is closed with the run.
    assert_eq!(contents(&log, "agent.message").len(), 1);
}

#[tokio::test]
async fn a_program_of_the_hosts_drives_a_run() {
    let server = Server::start(&[]).await;
    let program = r#"
import json, sys
claim = json.loads(sys.stdin.readline())["claim"]
def call(id, verb, **body):
    print(json.dumps({"id": id, "verb": verb, "body": body}), flush=True)
    return json.loads(sys.stdin.readline() or "null")
text = claim["inputs"][0]["content"]["text"]
answer = call(1, "events", events=[{"type": "agent.message", "content": {"text": text.upper()}}])
assert answer["status"] == 202, answer
refused = call(2, "events", events=[{"type": "user.message", "content": {"text": "no"}}])
assert refused["status"] == 403 and refused["body"]["code"] == "event.type_reserved", refused
call(3, "settle", outcome="succeeded", usage={"input_tokens": 7})
"#;
    let harness = json!({ "kind": "process", "command": ["python3", "-c", program] });
    let deployment = server.deployment(harness).await;
    let session = server.session(&deployment).await;
    server.send(&session, "shout").await;
    let shown = server.wait_status(&session, &["idle"]).await;
    assert_eq!(shown["usage"]["input_tokens"], 7, "{shown}");
    let log = server.log(&session).await;
    assert_eq!(contents(&log, "agent.message")[0]["text"], "SHOUT");
    assert_eq!(contents(&log, "run.settled")[0]["outcome"], "succeeded");
}

#[tokio::test]
async fn a_program_that_keeps_dying_exhausts_its_attempts() {
    let settings = [QUICK, &["runs.attempts_max=2"]].concat();
    let server = Server::start(&settings).await;
    let harness = json!({ "kind": "process", "command": ["/bin/sh", "-c", "exit 9"] });
    let deployment = server.deployment(harness).await;
    let session = server.session(&deployment).await;
    server.send(&session, "x").await;
    server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    let settled = &contents(&log, "run.settled")[0];
    assert_eq!(
        settled["error"]["code"], "runtime.attempts_exhausted",
        "{settled}"
    );
    assert_eq!(contents(&log, "run.claimed").len(), 2);
}

#[tokio::test]
async fn a_stopping_server_gives_its_runs_back_and_the_next_one_finishes_them() {
    let mut server = Server::start(QUICK).await;
    let steps = json!([{ "exec": "echo kept > f" }, { "sleep_ms": 3_000 }, { "exec": "cat f" }]);
    let deployment = server.deployment(script(steps)).await;
    let session = server.session(&deployment).await;
    server.send(&session, "x").await;
    let log = loop {
        let log = server.log(&session).await;
        if !contents(&log, "agent.tool_result").is_empty() {
            break log;
        }
    };
    assert_eq!(contents(&log, "run.settled").len(), 0);
    let pid = i32::try_from(server.process.pid())
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::TERM).unwrap();
    let mut every = tokio::time::interval(std::time::Duration::from_millis(10));
    let status = loop {
        every.tick().await;
        if let Some(status) = server.process.ended().unwrap() {
            break status;
        }
    };
    assert!(status.success(), "{status}: {}", server.process.log());
    server.process.restart().await.unwrap();
    server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    assert_whole(&log);
    let requeued: Vec<_> = contents(&log, "run.requeued")
        .iter()
        .map(|c| c["reason"].clone())
        .collect();
    assert_eq!(requeued, ["released"]);
    assert_eq!(contents(&log, "agent.tool_result")[1]["output"], "kept\n");
    assert_eq!(contents(&log, "agent.tool_use").len(), 2);
}
