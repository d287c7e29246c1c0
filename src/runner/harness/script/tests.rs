//! Scripts, against a server in a few lines that loses, refuses and requeues on demand.

use std::time::Duration;

use serde_json::{Value, json};

use crate::runner::testing::{FakeServer, Fault, Rig, rig};

fn script(steps: Value) -> Value {
    json!({"kind": "script", "steps": steps})
}

async fn start(steps: &Value, text: &str) -> Rig {
    let rig = rig(|_| {}).await;
    let message = rig.server.say(text);
    rig.server.queue(&script(steps.clone()), &[message], false);
    rig
}

fn contents(server: &FakeServer, kind: &str) -> Vec<Value> {
    server.world().of(kind).into_iter().cloned().collect()
}

#[tokio::test]
async fn every_step_leaves_what_it_should() {
    let steps = json!([
        {"say": "hello {{input}}"},
        {"write": {"path": "a/b.txt", "text": "<{{input}}>"}},
        {"exec": "cat a/b.txt; echo oops >&2; exit 2"},
        {"tool": {"name": "search", "input": {"q": "{{input}}"}, "result": {"hits": [1]}}},
        {"sleep_ms": 1}, {"checkpoint": {}},
        {"usage": {"input_tokens": 3}},
        {"write": {"path": "../out", "text": ""}},
    ]);
    let rig = start(&steps, "you\u{0}\"").await;
    let end = rig.server.ended().await;
    assert_eq!(
        (&end["verb"], &end["outcome"]),
        (&json!("settle"), &json!("succeeded"))
    );
    assert_eq!(
        contents(&rig.server, "agent.message"),
        [json!({"text": "hello you\u{0}\"", "step": 0})]
    );
    let uses = contents(&rig.server, "agent.tool_use");
    assert_eq!(
        uses[0],
        json!({"name": "write", "input": {"path": "a/b.txt", "text": "<you\u{0}\">"}, "step": 1})
    );
    assert_eq!(uses[1]["name"], "bash");
    assert_eq!(
        uses[2],
        json!({"name": "search", "input": {"q": "{{input}}"}, "step": 3})
    );
    let results = contents(&rig.server, "agent.tool_result");
    let short: Vec<_> = results
        .iter()
        .map(|r| {
            (
                r["output"].clone(),
                r["exit_code"].clone(),
                r["is_error"].clone(),
            )
        })
        .collect();
    assert_eq!(short[0], (json!(""), Value::Null, json!(false)));
    assert_eq!(
        short[1],
        (json!("<you\u{0}\">oops\n"), json!(2), json!(true))
    );
    assert_eq!(short[2], (json!({"hits": [1]}), Value::Null, json!(false)));
    assert_eq!(short[3].2, json!(true));
    assert_eq!(
        contents(&rig.server, "usage.recorded"),
        [json!({"input_tokens": 3, "step": 6})]
    );
    assert_eq!(rig.folders(), 0);
}

#[tokio::test]
async fn lost_answers_and_busy_servers_double_nothing() {
    let steps = json!([{"say": "one"}, {"exec": "echo x >> f; cat f"}, {"say": "two"}]);
    let rig = rig(|_| {}).await;
    let faults = [
        ("ready", Fault::AnswerLost),
        ("events", Fault::AnswerLost),
        ("events", Fault::NotReached),
        ("events", Fault::AnswerLost),
        ("events", Fault::Busy),
        ("settle", Fault::AnswerLost),
    ];
    rig.server.world().faults.extend(faults);
    rig.server.queue(&script(steps), &[], false);
    rig.server.ended().await;
    assert!(
        rig.server
            .until(|w| w.faults.is_empty().then_some(true))
            .await
    );
    rig.worker.stop().await;
    let kinds: Vec<_> = rig
        .server
        .world()
        .log
        .iter()
        .map(|e| e["type"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        kinds,
        [
            "run.queued",
            "run.started",
            "agent.message",
            "agent.tool_use",
            "agent.tool_result",
            "agent.message"
        ]
    );
    assert_eq!(
        contents(&rig.server, "agent.tool_result")[0]["output"],
        "x\n"
    );
}

#[tokio::test]
async fn a_later_attempt_goes_on_where_the_log_ends() {
    let steps = json!([
        {"exec": "echo {{input}} >> f; cat f"}, {"sleep_ms": 60_000}, {"say": "{{input}}"},
        {"exec": "echo b >> f; cat f"}, {"sleep_ms": 60_000}, {"say": "end"},
    ]);
    let rig = start(&steps, "a").await;
    let sleeping = |n: usize| {
        move |w: &crate::runner::testing::World| {
            (w.of("agent.tool_result").len() == n).then_some(())
        }
    };
    rig.server.until(sleeping(1)).await;
    // The second attempt also takes a new message, and sleeps again: that step left no trace.
    let more = rig.server.say("more");
    rig.server.requeue(&script(steps.clone()), &[more]);
    rig.server
        .until(|w| (w.of("run.started").len() == 2).then_some(()))
        .await;
    rig.server.world().log.push(json!({"seq": 99, "id": format!("evt_{:032x}", 99), "type": "agent.message", "run_id": format!("run_{:032x}", 1), "content": {"text": "a\nmore", "step": 2}}));
    rig.server.requeue(&script(steps.clone()), &[]);
    rig.server.until(sleeping(2)).await;
    let results = contents(&rig.server, "agent.tool_result");
    // The first step ran again for its file, with the input it had then.
    assert_eq!(results[1]["output"], "a\nb\n");
    assert_eq!(contents(&rig.server, "agent.tool_use").len(), 2);
    rig.worker.stop().await;
    assert_eq!(rig.server.ended().await["verb"], "release");
}

#[tokio::test]
async fn a_step_begun_runs_again_under_its_first_tool_use() {
    let steps = json!([{"exec": "echo x >> f; cat f; sleep ${LONG:-0}"}, {"say": "end"}]);
    let rig = rig(|_| {}).await;
    {
        let mut world = rig.server.world();
        world.run = 1;
        world.log.push(json!({"seq": 1, "id": format!("evt_{:032x}", 1), "type": "run.queued", "run_id": format!("run_{:032x}", 1), "content": {}}));
        world.log.push(json!({"seq": 2, "id": format!("evt_{:032x}", 2), "type": "agent.tool_use", "run_id": format!("run_{:032x}", 1), "content": {"name": "bash", "input": {"command": "echo first"}, "step": 0}}));
    }
    rig.server.requeue(&script(json!([])), &[]);
    rig.server.requeue(&script(steps), &[]);
    rig.server
        .until(|w| w.of("agent.message").first().map(|_| ()))
        .await;
    let results = contents(&rig.server, "agent.tool_result");
    assert_eq!(results.len(), 1);
    assert_eq!(
        (&results[0]["tool_use_id"], &results[0]["output"]),
        (&json!(format!("evt_{:032x}", 2)), &json!("first\n"))
    );
}

#[tokio::test]
async fn a_question_parks_and_the_continuation_goes_on_after_it() {
    let steps = json!([
        {"say": "start"}, {"question": {"questions": [{"question": "{{input}}?"}]}}, {"sleep_ms": 0},
        {"approval": {"tool": "deploy", "input": {"to": "{{input}}"}}}, {"say": "end {{input}}"},
    ]);
    let rig = start(&steps, "which").await;
    assert_eq!(rig.server.ended().await["outcome"], "continued");
    rig.server
        .until(|w| (w.of("agent.question").len() == 1).then_some(()))
        .await;
    let question = rig
        .server
        .until(|w| {
            w.log
                .iter()
                .find(|e| e["type"] == "agent.question")
                .map(|e| e["id"].as_str().unwrap().to_owned())
        })
        .await;
    rig.server.close(
        "user.question_answer",
        json!({"question_id": question}),
        &question,
    );
    let more = rig.server.say("more");
    rig.server.queue(&script(steps.clone()), &[more], true);
    rig.server
        .until(|w| {
            (w.of("agent.action_approval_requested").len() == 1 && w.ended.is_some()).then_some(())
        })
        .await;
    assert_eq!(
        contents(&rig.server, "agent.action_approval_requested")[0],
        json!({"tool": "deploy", "input": {"to": "which\nmore"}, "step": 3})
    );
    let approval = rig
        .server
        .until(|w| {
            w.log
                .iter()
                .find(|e| e["type"] == "agent.action_approval_requested")
                .map(|e| e["id"].as_str().unwrap().to_owned())
        })
        .await;
    // Answered before the next attempt parks again: it is told `ready` and goes on.
    rig.server.close(
        "user.action_approval",
        json!({"approval_id": approval, "decision": "granted"}),
        &approval,
    );
    rig.server.queue(&script(steps), &[], true);
    rig.server
        .until(|w| (w.of("agent.message").len() == 2).then_some(()))
        .await;
    assert_eq!(
        contents(&rig.server, "agent.message")[1],
        json!({"text": "end which\nmore", "step": 4})
    );
    assert_eq!(contents(&rig.server, "agent.question").len(), 1);
}

#[tokio::test]
async fn a_custom_tool_waits_with_its_sandbox() {
    let steps = json!([
        {"write": {"path": "kept", "text": "here"}}, {"custom_tool": {"name": "ask", "input": {"x": 1}}}, {"exec": "cat kept"},
    ]);
    let rig = start(&steps, "x").await;
    rig.server
        .until(|w| w.calls.iter().any(|(v, _)| v == "inputs").then_some(()))
        .await;
    assert_eq!(
        contents(&rig.server, "agent.custom_tool_use"),
        [json!({"name": "ask", "input": {"x": 1}, "step": 1})]
    );
    let item = rig
        .server
        .until(|w| {
            w.log
                .iter()
                .find(|e| e["type"] == "agent.custom_tool_use")
                .map(|e| e["id"].as_str().unwrap().to_owned())
        })
        .await;
    rig.server.close(
        "user.custom_tool_result",
        json!({"tool_use_id": item, "output": 7}),
        &item,
    );
    assert_eq!(rig.server.ended().await["outcome"], "succeeded");
    assert_eq!(
        contents(&rig.server, "agent.tool_result")[1]["output"],
        "here"
    );
}

#[tokio::test]
async fn failures_settle_with_their_code() {
    for (steps, sandbox, code) in [
        (
            json!([{"fail": "no {{input}}"}]),
            "dir",
            "harness.script_failed",
        ),
        (json!([{"nothing": 1}]), "dir", "harness.script_invalid"),
        (json!([{"exec": "true"}]), "none", "sandbox.unsupported"),
        (json!([]), "vm", "sandbox.unsupported"),
    ] {
        let rig = rig(|_| {}).await;
        rig.server.queue(&script(steps), &[], false);
        rig.server
            .world()
            .claims
            .iter_mut()
            .for_each(|c| c["deployment"]["sandbox"]["provider"] = json!(sandbox));
        let end = rig.server.ended().await;
        assert_eq!(
            (&end["outcome"], &end["error"]["code"]),
            (&json!("failed"), &json!(code))
        );
        assert_eq!(rig.folders(), 0);
    }
}

#[tokio::test]
async fn a_lost_claim_stops_the_command_at_once() {
    let mark = format!("36{}", std::process::id());
    let rig = start(&json!([{"exec": format!("sleep {mark}")}]), "x").await;
    rig.server
        .until(|w| (w.of("agent.tool_use").len() == 1).then_some(()))
        .await;
    rig.server
        .world()
        .lost
        .insert("clm_1".to_owned(), "interrupted");
    let gone = |_: &crate::runner::testing::World| (rig.folders() == 0).then_some(());
    rig.server.until(gone).await;
    let calls = rig.server.world().calls.clone();
    assert!(
        calls
            .iter()
            .all(|(verb, _)| verb != "settle" && verb != "release"),
        "{calls:?}"
    );
}

#[tokio::test]
async fn a_stopping_runner_gives_its_attempts_back_within_seconds() {
    let rig = start(&json!([{"exec": "trap '' TERM; sleep 600"}]), "x").await;
    rig.server
        .until(|w| (w.of("agent.tool_use").len() == 1).then_some(()))
        .await;
    let worker = rig.worker;
    tokio::time::timeout(Duration::from_secs(4), worker.stop())
        .await
        .expect("in time");
    assert_eq!(rig.server.ended().await["verb"], "release");
    assert_eq!(
        std::fs::read_dir(&rig.root).unwrap().count(),
        1,
        "only the lock"
    );
}
