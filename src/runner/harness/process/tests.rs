//! Programs in Python, against a server in a few lines.

use serde_json::{Value, json};

use crate::runner::testing::{Rig, rig};

/// A harness in Python's standard library, as in the documentation.
const PRELUDE: &str = r#"
import json, os, subprocess, sys
claim = json.loads(sys.stdin.readline())["claim"]
count = 0
def call(verb, **body):
    global count
    count += 1
    print(json.dumps({"id": count, "verb": verb, "body": body}), flush=True)
    answer = json.loads(sys.stdin.readline() or "null")
    assert answer is None or answer["id"] == count, answer
    return answer
def say(text):
    return call("events", events=[{"type": "agent.message", "content": {"text": text}}])
"#;

async fn start(program: &str) -> Rig {
    let rig = rig(|_| {}).await;
    let harness = json!({
        "kind": "process", "command": ["python3", "-c", format!("{PRELUDE}\n{program}")],
        "env": {"COLOUR": "blue"},
    });
    let message = rig.server.say("hi");
    rig.server.queue(&harness, &[message], false);
    rig
}

fn said(rig: &Rig) -> Vec<String> {
    let world = rig.server.world();
    world
        .of("agent.message")
        .iter()
        .map(|c| c["text"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_program_drives_a_run() {
    let rig = start(
        r#"
assert "claim_token" not in claim
text = claim["inputs"][0]["content"]["text"]
one = say(text + " " + os.environ["COLOUR"])
assert one["status"] == 202 and one["body"]["events"][0]["id"], one
open("made", "w").write("x")
two = call("nothing")
assert two["status"] == 404, two
print("not json", flush=True)
assert json.loads(sys.stdin.readline())["status"] == 400
three = call("settle", outcome="perhaps")
assert three["status"] == 422, three
print("a log line", file=sys.stderr)
call("settle", outcome="succeeded", usage={"input_tokens": 2})
say("never: this is after the last word")
"#,
    )
    .await;
    let end = rig.server.ended().await;
    assert_eq!(
        (&end["verb"], &end["outcome"], &end["usage"]["input_tokens"]),
        (&json!("settle"), &json!("succeeded"), &json!(2)),
        "{end}"
    );
    assert_eq!(said(&rig), ["hi blue"]);
    assert_eq!(rig.folders(), 0);
}

#[tokio::test]
async fn a_program_that_ends_without_settling_leaves_its_claim() {
    for program in [
        "say('bye'); sys.exit(3)",
        "say('bye'); os.close(1); os.close(2)",
        "say('bye'); 1/0",
    ] {
        let rig = start(program).await;
        rig.server
            .until(|w| (w.of("agent.message").len() == 1).then_some(()))
            .await;
        rig.server
            .until(|_| (rig.folders() == 0).then_some(()))
            .await;
        rig.worker.stop().await;
        let world = rig.server.world();
        assert!(world.ended.is_none(), "{:?}", world.ended);
        assert_eq!(
            world
                .calls
                .iter()
                .filter(|(v, _)| v == "settle" || v == "release")
                .count(),
            0
        );
    }
}

#[tokio::test]
async fn a_flooding_program_fails_the_run() {
    let rig = start("sys.stdout.write('x' * 1000000)").await;
    let end = rig.server.ended().await;
    assert_eq!(end["error"]["code"], "harness.line_too_long");
}

#[tokio::test]
async fn a_program_parks_and_is_ended() {
    let rig = start(
        r#"
ids = call("events", events=[{"type": "agent.question", "content": {"questions": []}}])
answer = call("park", waiting_on=[{"question_id": ids["body"]["events"][0]["id"]}], compute="released")
assert answer["body"]["state"] == "parked", answer
import time; time.sleep(600)
"#,
    )
    .await;
    assert_eq!(rig.server.ended().await["outcome"], "continued");
    rig.server
        .until(|_| (rig.folders() == 0).then_some(()))
        .await;
    let lost: Vec<Value> = rig
        .server
        .world()
        .of("agent.message")
        .into_iter()
        .cloned()
        .collect();
    assert_eq!(lost, Vec::<Value>::new());
}

#[tokio::test]
async fn a_lost_claim_ends_the_program_and_what_it_started() {
    let mark = format!("37{}", std::process::id());
    let rig = start(&format!(
        "subprocess.Popen(['setsid', 'sleep', '{mark}']); say('up'); import time; time.sleep(600)"
    ))
    .await;
    rig.server
        .until(|w| (w.of("agent.message").len() == 1).then_some(()))
        .await;
    rig.server
        .world()
        .lost
        .insert("clm_1".to_owned(), "interrupted");
    rig.server
        .until(|_| (rig.folders() == 0).then_some(()))
        .await;
    let running = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|e| std::fs::read(e.path().join("cmdline")).ok());
    assert_eq!(
        running
            .filter(|l| l.starts_with(format!("sleep\0{mark}").as_bytes()))
            .count(),
        0
    );
}

#[tokio::test]
async fn steps_go_through_as_they_are_in_order_and_numbered() {
    let rig = start(
        r#"
begin = dict(op="begin", name="s", occurrence=0, input_digest="d")
one = call("steps", **begin)
assert (one["status"], one["body"]["state"]) == (200, "execute"), one
step = one["body"]["step_id"]
done = dict(op="complete", step_id=step, value={"n": None})
two = call("steps", ops=[done, dict(begin, occurrence=1)])
assert [r["state"] for r in two["body"]["results"]] == ["completed", "execute"], two
three = call("steps", **dict(begin, input_digest="other"))
assert (three["status"], three["body"]["code"]) == (409, "journal.divergence"), three
# Many at once: nothing is lost, and answers come in order.
for n in range(20):
    print(json.dumps({"id": 100 + n, "verb": "steps", "body": dict(begin, name="m", occurrence=n)}))
sys.stdout.flush()
for n in range(20):
    answer = json.loads(sys.stdin.readline())
    assert (answer["id"], answer["body"]["state"]) == (100 + n, "execute"), answer
again = call("steps", **begin)
assert again["body"]["value"] == {"n": None}, again
call("settle", outcome="succeeded")
"#,
    )
    .await;
    rig.server
        .world()
        .faults
        .push_back(("steps", crate::runner::testing::Fault::AnswerLost));
    assert_eq!(rig.server.ended().await["outcome"], "succeeded");
    let world = rig.server.world();
    assert_eq!(world.of("step.started").len(), 22);
    let numbers = world.calls.iter().filter(|(verb, _)| verb == "steps");
    let mut numbers: Vec<_> = numbers
        .map(|(_, body)| body["n"].as_u64().unwrap())
        .collect();
    // The refused one had a number that the next call has again.
    numbers.dedup();
    assert!(numbers.is_sorted() && numbers.len() >= 23, "{numbers:?}");
}
