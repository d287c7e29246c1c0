//! The claim protocol over HTTP.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::kit::{Site, config, external, id, runner};

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_says_everything_a_runner_needs() {
    let site = Site::open().await;
    let mut with_config = external();
    with_config["release"]["harness"]["config"] = json!({ "depth": 3 });
    let made = site.post("/v1/deployments", with_config).await.must(201);
    let new = json!({ "agent_deployment": made["id"] });
    let session = id(&site.post("/v1/sessions", new).await.must(201));
    site.message(&session, "one").await;
    let claim = site.claim(&site.runner().await).await;
    assert_eq!(claim["session_id"], session);
    assert_eq!(
        (&claim["attempt"], &claim["continues"]),
        (&json!(1), &Value::Null)
    );
    assert_eq!(claim["lease_ms"], 30_000);
    assert_eq!(claim["resume"]["kind"], "fresh");
    assert_eq!(claim["inputs"][0]["content"]["text"], "one");
    let deployment = &claim["deployment"];
    for field in ["id", "harness_revision", "sandbox_profile_revision"] {
        assert_eq!(deployment[field], made[field]);
    }
    assert_eq!(deployment["release"]["harness"]["config"]["depth"], 3);
    assert_eq!(deployment["sandbox"]["provider"], "none");
    for field in ["startup_deadline", "deadline"] {
        assert!(claim[field].as_str().unwrap().ends_with('Z'));
    }
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_run_from_claim_to_settlement() {
    let site = Site::open().await;
    let (session, claim) = site.running().await;
    let said = |n: u64, text: &str| json!({ "n": n, "events": [{ "type": "agent.message", "content": { "text": text } }] });
    let first = site.call(&claim, "events", said(1, "once")).await.must(202);
    assert_eq!(
        site.call(&claim, "events", said(1, "once")).await.must(202),
        first
    );
    let refused = site.call(&claim, "events", said(3, "later")).await;
    assert_eq!(refused.code(409, "claim.out_of_order")["expected"], 2);
    site.message(&session, "more").await;
    let inputs = site.call(&claim, "inputs", json!({})).await.must(200);
    assert_eq!(inputs["inputs"][0]["content"]["text"], "more");
    let settle = json!({ "outcome": "succeeded", "usage": { "input_tokens": 3 } });
    let settled = site.call(&claim, "settle", settle.clone()).await.must(200);
    assert_eq!(site.call(&claim, "settle", settle).await.must(200), settled);
    let other = site
        .call(&claim, "settle", json!({ "outcome": "failed" }))
        .await;
    other.code(409, "run.already_settled");
    let lost = site.call(&claim, "heartbeat", json!({})).await;
    assert_eq!(lost.code(409, "runtime.claim_lost")["reason"], "settled");
    let shown = site.show(&session).await;
    assert_eq!(
        (&shown["status"], &shown["usage"]["input_tokens"]),
        (&json!("idle"), &json!(3))
    );
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_wait_for_what_comes() {
    let site = Site::open().await;
    let (session, claim) = site.running().await;
    let token = claim["claim_token"].as_str().unwrap();
    let path = format!("/v1/claims/{token}/inputs?wait_ms=20000");
    let (waited, _) = tokio::join!(site.post(&path, json!({})), site.message(&session, "now"));
    assert_eq!(waited.must(200)["inputs"][0]["content"]["text"], "now");
    let path = format!("/v1/claims/{token}/heartbeat?wait_ms=1");
    site.post(&path, json!({}))
        .await
        .code(400, "request.query_invalid");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_whose_peer_is_gone_gives_its_claim_back() {
    let site = Site::open().await;
    let session = site.session().await;
    let (gone, alive) = (site.runner().await, site.runner().await);
    let mut socket = site.connect().await;
    let head = format!(
        "POST /v1/runners/{gone}/claims?wait_ms=30000 HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/json\r\ncontent-length: 0\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    while site.runtime.engine().stats().runners == 0 {
        tokio::task::yield_now().await;
    }
    socket.shutdown().await.unwrap();
    // The end of the answer's side is the server having let go of the poll.
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty());
    site.message(&session, "x").await;
    let claim = site.claim(&alive).await;
    assert_eq!(claim["attempt"], 1, "no attempt was spent on the dead peer");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_claims_fit_one_answer() {
    let site = Site::open().await;
    let runner = site.runner().await;
    let sessions = [
        site.session().await,
        site.session().await,
        site.session().await,
    ];
    for session in &sessions {
        site.message(session, "x").await;
    }
    let mut claimed = Vec::new();
    while claimed.len() < sessions.len() {
        let path = format!("/v1/runners/{runner}/claims?wait_ms=20000&max=3");
        let answer = site.post(&path, json!({})).await.must(200);
        for claim in answer["claims"].as_array().unwrap() {
            claimed.push(claim["session_id"].as_str().unwrap().to_owned());
        }
    }
    claimed.sort();
    assert_eq!(claimed, sessions, "ids sort by age");
    for (query, code) in [
        ("?max=0", "request.query_invalid"),
        ("?max=101", "request.query_invalid"),
        ("?wait_ms=-1", "request.query_invalid"),
        ("?wait=1", "request.query_invalid"),
    ] {
        site.post(&format!("/v1/runners/{runner}/claims{query}"), json!({}))
            .await
            .code(400, code);
    }
    let empty = site
        .post(&format!("/v1/runners/{runner}/claims"), json!({}))
        .await
        .must(200);
    assert_eq!(empty, json!({ "claims": [], "clones": [] }));
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runners_are_enrolled_drained_and_forgotten() {
    let site = Site::open().await;
    let with = |field: &str, value: Value| {
        let mut body = runner();
        body[field] = value;
        body
    };
    for bad in [
        with("name", json!("")),
        with("host_id", json!("")),
        with("targets", json!([])),
        with("targets", json!(["x"])),
        with("capacity", json!(0)),
        with("workspaces", json!("some")),
    ] {
        site.post("/v1/runners", bad)
            .await
            .code(422, "request.field_invalid");
    }
    site.post("/v1/runners", with("x", json!(1)))
        .await
        .code(422, "request.field_unknown");
    let id = site.runner().await;
    let claims = format!("/v1/runners/{id}/claims");
    site.post(&claims, json!({})).await.must(200);
    let drained = site
        .post(&format!("/v1/runners/{id}/drain"), json!({}))
        .await
        .must(200);
    assert_eq!(drained["draining"], true);
    site.post(&claims, json!({}))
        .await
        .code(409, "runner.draining");
    site.delete(&format!("/v1/runners/{id}")).await.must(204);
    site.post(&claims, json!({}))
        .await
        .code(404, "runner.not_found");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_servers_hand_out_nothing() {
    let mut paused = config();
    paused.runs.paused = true;
    let site = Site::with(paused).await;
    let session = site.session().await;
    site.message(&session, "x").await;
    let path = format!("/v1/runners/{}/claims?wait_ms=50", site.runner().await);
    assert_eq!(
        site.post(&path, json!({})).await.must(200)["claims"],
        json!([])
    );
    assert_eq!(
        site.show(&session).await["run"]["blocked_by"],
        "paused_start"
    );
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_carries_the_decisions_that_are_remembered() {
    let site = Site::open().await;
    let (session, claim) = site.running().await;
    assert_eq!(claim["remembered_approvals"], json!({}));
    let content = json!({ "tool": "bash", "input": {} });
    let ask = json!({ "type": "agent.action_approval_requested", "content": content });
    site.call(&claim, "events", json!({ "events": [ask] }))
        .await
        .must(202);
    let granted = json!({ "decision": "granted", "remember": true });
    site.submit(&session, "user.action_approval", granted)
        .await
        .must(202);
    site.call(&claim, "release", json!({})).await.must(200);
    let claim = site.claim(&site.runner().await).await;
    assert_eq!(claim["remembered_approvals"], json!({ "bash": "granted" }));
    site.close().await;
}
