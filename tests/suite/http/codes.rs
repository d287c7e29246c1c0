//! Every code of the table, provoked over HTTP, or named below with the reason why not here.

use std::collections::BTreeSet;

use longhaul::Code;
use serde_json::{Value, json};

mod faults;
mod journal;
mod runtimes;

use super::kit::{Answer, Site, absent, config, external};

/// Codes that no request of this test gets, and where they are tested instead.
const ELSEWHERE: &[(&str, &str)] = &[
    ("auth.token_missing", "http/auth.rs: needs tokens"),
    ("auth.token_invalid", "http/auth.rs: needs tokens"),
    ("auth.scope_missing", "http/auth.rs: needs tokens"),
    (
        "request.timeout",
        "http/forms.rs: needs a clock that is moved",
    ),
    (
        "session.transition_refused",
        "every command of this version has a rule that refuses first",
    ),
    (
        "item.not_found",
        "kept for items of other sessions; answers name open ones or get item.not_open",
    ),
    (
        "runtime.session_history_unavailable",
        "kept for forks of a past that cannot be read; nothing loses its content yet",
    ),
    (
        "checkpoint.not_found",
        "http/checkpoints.rs: one that was pruned, and one that never was",
    ),
    (
        "checkpoint.pinned_limit",
        "http/checkpoints.rs: needs a small limit",
    ),
    (
        "runtime.checkpoint_expired",
        "http/checkpoints.rs: needs a clock that is moved",
    ),
    (
        "runtime.checkpoint_rejected",
        "checkpoints/disks.rs: needs packs that were damaged",
    ),
    (
        "runtime.snapshot_unreadable",
        "checkpoints/truth.rs: needs packs that cannot be read",
    ),
    ("snapshot.refused", "checkpoints/refused.rs: deep trees"),
    ("sandbox.gone", "checkpoints/refused.rs: no folder"),
    (
        "runtime.snapshot_deleted",
        "checkpoints/disks.rs: needs a snapshot that was deleted",
    ),
    (
        "runtime.no_eligible_runner",
        "checkpoints/clones.rs: needs a runner that copies",
    ),
    (
        "runtime.clone_timeout",
        "checkpoints/clones.rs: needs a runner that copies",
    ),
    (
        "runtime.clone_failed",
        "checkpoints/clones.rs: needs a runner that copies",
    ),
    (
        "checkpoint.blob_too_large",
        "a call under a claim: tests of the engine",
    ),
    (
        "journal.value_unavailable",
        "needs a value that has gone: tests of the engine and of decisions",
    ),
    (
        "clone.not_found",
        "checkpoints/clones.rs: needs a runner that copies",
    ),
    (
        "runtime.turn_deadline_exceeded",
        "the error of a run: tests of decisions",
    ),
    (
        "runtime.attempts_exhausted",
        "the error of a run: tests of decisions",
    ),
];

#[derive(Default)]
struct Seen(BTreeSet<String>);

impl Seen {
    #[track_caller]
    fn take(&mut self, answer: Answer, code: &str) {
        let info = Code::ALL
            .iter()
            .map(|c| c.info())
            .find(|i| i.code == code)
            .unwrap();
        answer.code(info.status, code);
        self.0.insert(code.to_owned());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_code_is_provoked() {
    let mut seen = Seen::default();
    requests(&mut seen).await;
    sessions(&mut seen).await;
    runs(&mut seen).await;
    limits(&mut seen).await;
    journal::provoke(&mut seen).await;
    runtimes::provoke(&mut seen).await;
    faults::faults(&mut seen).await;
    let elsewhere: BTreeSet<String> = ELSEWHERE.iter().map(|(c, _)| (*c).to_owned()).collect();
    let all: BTreeSet<String> = Code::ALL.iter().map(|c| c.text().to_owned()).collect();
    let both: Vec<_> = seen.0.intersection(&elsewhere).collect();
    assert!(both.is_empty(), "provoked after all: {both:?}");
    let missing: Vec<_> = all
        .difference(&seen.0)
        .filter(|c| !elsewhere.contains(*c))
        .collect();
    assert!(missing.is_empty(), "never provoked: {missing:?}");
}

async fn requests(seen: &mut Seen) {
    let site = Site::open().await;
    let session = site.session().await;
    let path = format!("/v1/sessions/{session}");
    let events = format!("{path}/events");
    seen.take(site.post_raw(&events, "{").await, "request.body_invalid");
    seen.take(site.get("/v1/sessions/x").await, "request.id_invalid");
    let all = site.post("/v1/prune", json!({})).await;
    seen.take(all, "prune.filter_empty");
    seen.take(
        site.get(&format!("{events}?after=x")).await,
        "request.cursor_invalid",
    );
    seen.take(
        site.get(&format!("{events}?x=1")).await,
        "request.query_invalid",
    );
    let bad = site
        .post_with(&events, json!({}), &[("if-match", "x")])
        .await;
    seen.take(bad, "request.header_invalid");
    seen.take(site.get("/").await, "request.route_unknown");
    seen.take(
        site.delete("/v1/sessions").await,
        "request.method_not_allowed",
    );
    let huge = vec![b' '; (8 << 20) + 1];
    seen.take(site.post_raw(&events, huge).await, "request.body_too_large");
    seen.take(
        site.send(site.request("POST", &events)).await,
        "request.content_type",
    );
    seen.take(
        site.post(&events, json!({ "x": 1 })).await,
        "request.field_unknown",
    );
    seen.take(site.post(&events, json!({})).await, "request.field_invalid");
    let key = [("idempotency-key", "k")];
    site.post_with("/v1/workspaces", json!({ "name": "a" }), &key)
        .await
        .must(201);
    let other = site
        .post_with("/v1/workspaces", json!({ "name": "b" }), &key)
        .await;
    seen.take(other, "request.idempotency_conflict");
    let origin = site
        .request("GET", "/readyz")
        .header("origin", "https://example.com");
    seen.take(site.send(origin).await, "request.origin_refused");

    let header = [("longhaul-workspace", &*absent("ws_").replace('0', "1"))];
    let elsewhere = site.post_with("/v1/deployments", external(), &header).await;
    seen.take(elsewhere, "workspace.not_found");
    let policy = |policy: Value| json!({ "name": "w", "policy": policy });
    let bad = policy(json!({ "checkpoint_ttl_s": 0, "zero_data_retention": true }));
    seen.take(
        site.post("/v1/workspaces", bad).await,
        "workspace.policy_invalid",
    );
    let nothing = site
        .get(&format!("/v1/deployments/{}", absent("dep_")))
        .await;
    seen.take(nothing, "deployment.not_found");
    let dep = site.deployment().await;
    let revision = site
        .get(&format!("/v1/deployments/{dep}/revisions/9"))
        .await;
    seen.take(revision, "deployment.revision_not_found");
    let invalid = site.post("/v1/deployments", json!({ "name": "x" })).await;
    seen.take(invalid, "deployment.invalid");
    let nobody = site
        .post(&format!("/v1/runners/{}/drain", absent("rnr_")), json!({}))
        .await;
    seen.take(nobody, "runner.not_found");
    let rnr = site.runner().await;
    site.post(&format!("/v1/runners/{rnr}/drain"), json!({}))
        .await
        .must(200);
    let drained = site
        .post(&format!("/v1/runners/{rnr}/claims"), json!({}))
        .await;
    seen.take(drained, "runner.draining");
    site.close().await;
}

async fn sessions(seen: &mut Seen) {
    let site = Site::open().await;
    let nothing = site.get(&format!("/v1/sessions/{}", absent("sess_"))).await;
    seen.take(nothing, "session.not_found");
    let session = site.session().await;
    let path = format!("/v1/sessions/{session}");
    let events = format!("{path}/events");
    let message = json!({ "events": [{ "type": "user.message", "content": { "text": "x" } }] });
    let late = site
        .post_with(&events, message.clone(), &[("if-match", "9")])
        .await;
    seen.take(late, "session.sequence_conflict");
    let beyond = json!({ "from": { "seq": 99 } });
    seen.take(
        site.post(&format!("{path}/fork"), beyond).await,
        "event.not_found",
    );
    let typed = |kind: &str| json!({ "events": [{ "type": kind, "content": {} }] });
    seen.take(
        site.post(&events, typed("no.such")).await,
        "event.type_unknown",
    );
    seen.take(
        site.post(&events, typed("run.settled")).await,
        "event.type_reserved",
    );
    seen.take(
        site.post(&events, json!({ "events": [] })).await,
        "event.batch_empty",
    );
    let many = json!({ "events": vec![&message["events"][0]; 101] });
    seen.take(site.post(&events, many).await, "event.batch_too_large");
    let large = site
        .submit(
            &session,
            "user.message",
            json!({ "text": "x".repeat(1 << 20) }),
        )
        .await;
    seen.take(large, "event.too_large");
    let new = |metadata: Value| json!({ "agent_deployment": null, "metadata": metadata });
    let mut many = new(json!({ "a": { "b": 1 } }));
    many["agent_deployment"] = json!(site.deployment().await);
    seen.take(
        site.post("/v1/sessions", many).await,
        "session.metadata_invalid",
    );
    site.message(&session, "x").await;
    let live = site.post(&format!("{path}/complete"), json!({})).await;
    seen.take(live, "session.run_live");
    site.post(&format!("{path}/cancel"), json!({}))
        .await
        .must(200);
    seen.take(
        site.post(&events, message.clone()).await,
        "session.terminal",
    );
    site.delete(&path).await.must(200);
    seen.take(site.post(&events, message).await, "session.erased");
    site.close().await;
}

async fn runs(seen: &mut Seen) {
    let site = Site::open().await;
    let (session, claim) = site.running().await;
    let write =
        |kind: &str, content: Value| json!({ "events": [{ "type": kind, "content": content }] });
    let stray = format!("evt_{}", "0".repeat(31) + "1");
    let result = json!({ "tool_use_id": stray, "output": "x", "is_error": false });
    let orphan = site
        .call(&claim, "events", write("agent.tool_result", result))
        .await;
    seen.take(orphan, "event.tool_use_unknown");
    let answer = json!({ "question_id": stray, "answers": [["a"]] });
    let closed = site.submit(&session, "user.question_answer", answer).await;
    seen.take(closed, "item.not_open");
    let approval = || {
        write(
            "agent.action_approval_requested",
            json!({ "tool": "t", "input": {} }),
        )
    };
    for _ in 0..2 {
        site.call(&claim, "events", approval()).await.must(202);
    }
    let vague = site
        .submit(
            &session,
            "user.action_approval",
            json!({ "decision": "granted" }),
        )
        .await;
    seen.take(vague, "item.ambiguous");
    let nothing = json!({ "waiting_on": [], "compute": "released" });
    seen.take(
        site.call(&claim, "park", nothing).await,
        "run.park_without_cause",
    );
    let skipped = site.call(&claim, "heartbeat", json!({ "n": 7 })).await;
    seen.take(skipped, "claim.out_of_order");
    let token = claim["claim_token"].as_str().unwrap();
    let wrong =
        json!({ "claim_token": format!("{}{}", &token[..token.len() - 32], "0".repeat(32)) });
    seen.take(
        site.call(&wrong, "heartbeat", json!({})).await,
        "claim.not_found",
    );
    site.call(&claim, "settle", json!({ "outcome": "succeeded" }))
        .await
        .must(200);
    let other = site
        .call(&claim, "settle", json!({ "outcome": "failed" }))
        .await;
    seen.take(other, "run.already_settled");
    seen.take(
        site.call(&claim, "heartbeat", json!({})).await,
        "runtime.claim_lost",
    );
    let second = site.session().await;
    site.message(&second, "x").await;
    let claim = site.claim(&site.runner().await).await;
    let early = site
        .call(
            &claim,
            "events",
            write("agent.message", json!({ "text": "x" })),
        )
        .await;
    seen.take(early, "claim.not_ready");
    site.close().await;
}

async fn limits(seen: &mut Seen) {
    let mut small = config();
    small.sessions.events_max = 100;
    small.sessions.untaken_inputs_max = 2;
    small.sessions.signals_max = 1;
    small.sessions.open_items_max = 1;
    small.http.streams_max = 1;
    let site = Site::with(small).await;
    let (session, claim) = site.running().await;
    for text in ["1", "2"] {
        site.message(&session, text).await;
    }
    let third = site
        .submit(&session, "user.message", json!({ "text": "3" }))
        .await;
    seen.take(third, "session.untaken_inputs_full");
    let signal = json!({ "name": "s", "payload": null });
    site.submit(&session, "user.signal", signal.clone())
        .await
        .must(202);
    seen.take(
        site.submit(&session, "user.signal", signal).await,
        "session.signals_full",
    );
    let ask = json!({ "events": [{ "type": "agent.question", "content": { "questions": [{ "question": "?", "options": ["a"] }] } }] });
    site.call(&claim, "events", ask.clone()).await.must(202);
    seen.take(site.call(&claim, "events", ask).await, "item.limit");
    let _stream = site.follow(&session, "").await;
    let second = site
        .get(&format!("/v1/sessions/{session}/events/stream"))
        .await;
    seen.take(second, "stream.limit");
    let said = json!({ "type": "agent.message", "content": { "text": "x" } });
    let full = loop {
        let body = json!({ "events": vec![&said; 20] });
        let answer = site.call(&claim, "events", body).await;
        if answer.status != 202 {
            break answer;
        }
    };
    seen.take(full, "session.event_limit");
    site.post(&format!("/v1/sessions/{session}/cancel"), json!({}))
        .await
        .must(200);
    drop(_stream);
    site.close().await;
}
