//! Forks, how they compare, and families, over HTTP.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::kit::{Site, absent, external, id};

/// The whole log of a session.
pub(super) async fn log(site: &Site, session: &str) -> Vec<Value> {
    let (mut all, mut after) = (Vec::new(), json!(0));
    while !after.is_null() {
        let path = format!("/v1/sessions/{session}/events?limit=1000&after={after}");
        let page = site.get(&path).await.must(200);
        all.extend(page["events"].as_array().unwrap().iter().cloned());
        after = page["next_after"].clone();
    }
    let seqs: Vec<u64> = all.iter().map(|e| e["seq"].as_u64().unwrap()).collect();
    assert!(
        seqs.iter().copied().eq(1..=all.len() as u64),
        "not 1..n: {seqs:?}"
    );
    all
}

pub(super) fn path(session: &str, rest: &str) -> String {
    format!("/v1/sessions/{session}{rest}")
}

pub(super) async fn fork(site: &Site, session: &str, from: Value) -> Value {
    let body = json!({ "from": from });
    site.post(&path(session, "/fork"), body).await.must(201)
}

/// A session with a settled turn, a failed one and a message that waits: its log.
async fn lived(site: &Site) -> String {
    let (session, claim) = site.running().await;
    let said =
        json!({ "events": [{ "type": "agent.message", "content": { "text": "a\u{0}ß\n" } }] });
    site.call(&claim, "events", said).await.must(202);
    site.call(&claim, "settle", json!({ "outcome": "succeeded" }))
        .await
        .must(200);
    site.message(&session, "again").await;
    let claim = site.claim(&site.runner().await).await;
    site.call(&claim, "ready", json!({})).await.must(200);
    let failed = json!({ "outcome": "failed", "error": { "code": "x", "message": "y" } });
    site.call(&claim, "settle", failed).await.must(200);
    site.message(&session, "waits").await;
    session
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_at_any_place_is_that_prefix_and_then_its_own() {
    let site = Site::open().await;
    let source = lived(&site).await;
    let before = log(&site, &source).await;
    for (k, event) in before.iter().enumerate() {
        let seq = k as u64 + 1;
        let by_seq = fork(&site, &source, json!({ "seq": seq })).await;
        let by_event = fork(&site, &source, json!({ "event_id": event["id"] })).await;
        for (child, selector) in [
            (&by_seq, json!({ "seq": seq })),
            (&by_event, json!({ "event_id": event["id"] })),
        ] {
            let log = log(&site, &id(child)).await;
            assert_eq!(
                log[..=k],
                before[..=k],
                "the prefix up to {seq}, to the byte"
            );
            let forked = &log[k + 1];
            assert_eq!(forked["type"], "session.forked", "at {seq}");
            let content = &forked["content"];
            assert_eq!(content["source_session_id"], source.as_str());
            assert_eq!(content["boundary_seq"], seq);
            assert_eq!(content["boundary_event_id"], event["id"]);
            assert_eq!(content["selector"], selector);
            assert_eq!(
                child["forked_from"],
                json!({ "session_id": source, "boundary_seq": seq })
            );
            // Whatever was going on rests, or waits for a runner.
            let status = child["status"].as_str().unwrap();
            assert!(["idle", "pending"].contains(&status), "{status} at {seq}");
        }
    }
    let head = fork(&site, &source, json!({ "head": true })).await;
    let last = &log(&site, &id(&head)).await[before.len()];
    assert_eq!(
        (&last["type"], &last["content"]["selector"]),
        (&json!("session.forked"), &json!("head"))
    );
    assert_eq!(
        head["usage"]["input_tokens"], 0,
        "its own usage starts at zero"
    );
    assert_eq!(
        log(&site, &source).await,
        before,
        "the source knows nothing of it"
    );
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_is_whose_it_is_asked_to_be() {
    let site = Site::open().await;
    let body = json!({ "agent_deployment": site.deployment().await, "principal": "ada",
        "metadata": { "k": "v" } });
    let source = id(&site.post("/v1/sessions", body).await.must(201));
    let plain = fork(&site, &source, json!({ "head": true })).await;
    assert_eq!(
        (&plain["principal"], &plain["metadata"]),
        (&json!("ada"), &json!({ "k": "v" }))
    );
    let body = json!({ "from": { "head": true }, "principal": "bob", "metadata": { "n": 1 } });
    let other = site.post(&path(&source, "/fork"), body).await.must(201);
    assert_eq!(
        (&other["principal"], &other["metadata"]),
        (&json!("bob"), &json!({ "n": 1 }))
    );
    assert_eq!(site.show(&id(&other)).await["principal"], "bob");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_session_forks_at_one_moment() {
    let site = Site::open().await;
    let source = site.session().await;
    let pour = async {
        for n in 0..60 {
            site.message(&source, &n.to_string()).await;
        }
    };
    let forks = async {
        let mut children = Vec::new();
        for _ in 0..20 {
            children.push(id(&fork(&site, &source, json!({ "head": true })).await));
        }
        children
    };
    let ((), children) = tokio::join!(pour, forks);
    let whole = log(&site, &source).await;
    for child in &children {
        let log = log(&site, child).await;
        let cut = log
            .iter()
            .position(|e| e["type"] == "session.forked")
            .unwrap();
        assert_eq!(log[..cut], whole[..cut]);
    }
    let all: BTreeSet<&String> = children.iter().chain([&source]).collect();
    assert_eq!(all.len(), 21, "always a new id");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_run_waits_in_both_and_each_is_answered_by_itself() {
    let site = Site::open().await;
    let (source, claim) = site.running().await;
    let ask =
        json!({ "type": "agent.question", "content": { "questions": [{ "question": "?" }] } });
    let asked = site
        .call(&claim, "events", json!({ "events": [ask] }))
        .await;
    let question = asked.must(202)["events"][0]["id"].clone();
    let park = json!({ "waiting_on": [{ "question_id": question }], "compute": "released" });
    site.call(&claim, "park", park).await.must(200);
    let child = fork(&site, &source, json!({ "head": true })).await;
    assert_eq!(child["status"], "paused");
    assert_eq!(child["waiting_on"][0]["question_id"], question);
    let before = log(&site, &source).await;
    let child = id(&child);
    let answer = json!({ "question_id": question, "answers": [["a"]] });
    site.submit(&child, "user.question_answer", answer.clone())
        .await
        .must(202);
    let got = site.claim(&site.runner().await).await;
    assert_eq!(got["session_id"], child);
    assert_eq!(log(&site, &source).await, before);
    assert_eq!(site.show(&source).await["status"], "paused");
    // The source's own answer is its own, and a fork after it has it once.
    site.submit(&source, "user.question_answer", answer)
        .await
        .must(202);
    let late = id(&fork(&site, &source, json!({ "head": true })).await);
    let answers = log(&site, &late).await;
    let answers = answers
        .iter()
        .filter(|e| e["type"] == "user.question_answer");
    assert_eq!(answers.count(), 1);
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_run_goes_on_in_the_source_only() {
    let site = Site::open().await;
    let (source, claim) = site.running().await;
    let child = fork(&site, &source, json!({ "head": true })).await;
    assert_eq!(child["status"], "idle");
    let ended = log(&site, &id(&child)).await;
    let ended = ended.iter().find(|e| e["type"] == "run.settled").unwrap();
    assert_eq!(ended["content"]["outcome"], "canceled");
    site.call(&claim, "heartbeat", json!({})).await.must(200);
    site.call(&claim, "settle", json!({ "outcome": "succeeded" }))
        .await
        .must(200);
    site.message(&id(&child), "on").await;
    let next = site.claim(&site.runner().await).await;
    assert_eq!(next["session_id"], child["id"]);
    assert_eq!(
        next["resume"],
        json!({ "kind": "event_log_rebuild", "reason": "forked" })
    );
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_makes_one_child() {
    let site = Site::open().await;
    let source = site.session().await;
    let (path, key) = (path(&source, "/fork"), [("idempotency-key", "f-1")]);
    let body = json!({ "from": { "head": true } });
    let all = join_all((0..8).map(|_| site.post_with(&path, body.clone(), &key))).await;
    let made: BTreeSet<String> = all.into_iter().map(|a| id(&a.must(201))).collect();
    assert_eq!(made.len(), 1, "{made:?}");
    // The source has moved on: the answer has not.
    site.message(&source, "x").await;
    let again = site.post_with(&path, body, &key).await.must(201);
    assert!(made.contains(&id(&again)));
    site.post_with(&path, json!({ "from": { "seq": 1 } }), &key)
        .await
        .code(409, "request.idempotency_conflict");
    let listed = site.get("/v1/sessions").await.must(200);
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 2);
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_names_no_one_place_is_refused() {
    let site = Site::open().await;
    let source = site.session().await;
    let other = site.session().await;
    let stranger = log(&site, &other).await[0]["id"].clone();
    let ckpt = absent("ckpt_");
    for (from, status, code) in [
        (json!({}), 422, "request.field_invalid"),
        (json!({ "head": false }), 422, "request.field_invalid"),
        (json!({ "head": 1 }), 422, "request.field_invalid"),
        (
            json!({ "head": true, "seq": 1 }),
            422,
            "request.field_invalid",
        ),
        (
            json!({ "seq": 1, "checkpoint_id": ckpt }),
            422,
            "request.field_invalid",
        ),
        (json!({ "seq": 0 }), 422, "request.field_invalid"),
        (json!({ "seq": -1 }), 422, "request.field_invalid"),
        (json!({ "seq": 1.5 }), 422, "request.field_invalid"),
        (json!({ "seq": "1" }), 422, "request.field_invalid"),
        (json!("head"), 422, "request.field_invalid"),
        (
            json!({ "at_event": stranger }),
            422,
            "request.field_unknown",
        ),
        (json!({ "event_id": "x" }), 400, "request.id_invalid"),
        (
            json!({ "checkpoint_id": stranger }),
            400,
            "request.id_invalid",
        ),
        (json!({ "seq": 9_999 }), 404, "event.not_found"),
        (json!({ "seq": u64::MAX }), 404, "event.not_found"),
        (json!({ "event_id": stranger }), 404, "event.not_found"),
        (
            json!({ "checkpoint_id": ckpt }),
            404,
            "checkpoint.not_found",
        ),
    ] {
        let body = json!({ "from": from });
        site.post(&path(&source, "/fork"), body)
            .await
            .code(status, code);
    }
    for (body, code) in [
        (json!({}), "request.field_invalid"),
        (
            json!({ "from": { "head": true }, "x": 1 }),
            "request.field_unknown",
        ),
        (
            json!({ "from": { "head": true }, "principal": "" }),
            "request.field_invalid",
        ),
        (
            json!({ "from": { "head": true }, "principal": "x".repeat(257) }),
            "request.field_invalid",
        ),
        (
            json!({ "from": { "head": true }, "metadata": { "a": {} } }),
            "session.metadata_invalid",
        ),
    ] {
        site.post(&path(&source, "/fork"), body)
            .await
            .code(422, code);
    }
    let nobody = absent("sess_");
    let head = json!({ "from": { "head": true } });
    site.post(&path(&nobody, "/fork"), head.clone())
        .await
        .code(404, "session.not_found");
    site.delete(&path(&source, "")).await.must(200);
    site.post(&path(&source, "/fork"), head)
        .await
        .code(410, "session.erased");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_comparison_starts_where_two_sessions_part() {
    let site = Site::open().await;
    let source = lived(&site).await;
    let child = id(&fork(&site, &source, json!({ "seq": 5 })).await);
    site.message(&child, "child").await;
    let (of_source, of_child) = (log(&site, &source).await, log(&site, &child).await);
    let diff = |rest: String| {
        let path = path(&source, &format!("/diff?against={rest}"));
        let site = &site;
        async move { site.get(&path).await }
    };
    let d = diff(child.clone()).await.must(200);
    assert_eq!(
        d["common"],
        json!({ "through_seq": 5, "through_event_id": of_source[4]["id"] })
    );
    for (side, session, log) in [("left", &source, &of_source), ("right", &child, &of_child)] {
        let side = &d[side];
        assert_eq!(side["session_id"], session.as_str());
        assert_eq!(side["events"].as_array().unwrap()[..], log[5..]);
        let shown = site.show(session).await;
        assert_eq!(
            (&side["status"], &side["usage"]),
            (&shown["status"], &shown["usage"])
        );
        assert_eq!(side["next_after"], Value::Null);
    }
    // A page at a time, each side by itself; what is shared never comes.
    let d = diff(format!("{child}&limit=1")).await.must(200);
    assert_eq!(d["left"]["events"][0]["seq"], 6);
    assert_eq!(
        (&d["left"]["next_after"], &d["right"]["next_after"]),
        (&json!(6), &json!(6))
    );
    let d = diff(format!("{child}&limit=2&left_after=0&right_after=7"))
        .await
        .must(200);
    assert_eq!(d["left"]["events"][0]["seq"], 6);
    assert_eq!(d["right"]["events"][0]["seq"], 8);
    // With itself, and with a stranger.
    let d = diff(source.clone()).await.must(200);
    assert_eq!(d["common"]["through_seq"], of_source.len());
    assert_eq!(
        (&d["left"]["events"], &d["right"]["events"]),
        (&json!([]), &json!([]))
    );
    let stranger = site.session().await;
    let d = diff(stranger.clone()).await.must(200);
    assert_eq!(
        d["common"],
        json!({ "through_seq": 0, "through_event_id": null })
    );
    assert_eq!(d["left"]["events"][0], of_source[0]);

    let bad = |rest: &str| diff(rest.to_owned());
    bad("x").await.code(400, "request.id_invalid");
    bad(&absent("sess_")).await.code(404, "session.not_found");
    for rest in ["&limit=0", "&limit=1001", "&after=1"] {
        bad(&format!("{child}{rest}"))
            .await
            .code(400, "request.query_invalid");
    }
    bad(&format!("{child}&left_after=x"))
        .await
        .code(400, "request.cursor_invalid");
    site.get(&path(&source, "/diff"))
        .await
        .code(400, "request.query_invalid");
    site.delete(&path(&stranger, "")).await.must(200);
    bad(&stranger).await.code(410, "session.erased");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_outlive_what_they_were_forked_from() {
    let site = Site::open().await;
    let a = lived(&site).await;
    let b = id(&fork(&site, &a, json!({ "head": true })).await);
    site.message(&b, "b").await;
    let c = id(&fork(&site, &b, json!({ "head": true })).await);
    site.message(&c, "c").await;
    let whole = log(&site, &c).await;
    let tree = async || site.get(&path(&c, "/tree")).await.must(200);
    let family = tree().await;
    assert_eq!(
        (&family["root"], &family["truncated"]),
        (&json!(a), &json!(false))
    );
    let ids: Vec<&Value> = family["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| &m["id"])
        .collect();
    assert_eq!(ids, [&json!(a), &json!(b), &json!(c)]);
    assert_eq!(family["sessions"][2]["forked_from"]["session_id"], b);

    for (n, gone) in [&a, &b].into_iter().enumerate() {
        site.delete(&path(gone, "")).await.must(200);
        assert_eq!(
            log(&site, &c).await,
            whole,
            "complete without {n} of its ancestors"
        );
        let member = &tree().await["sessions"][n];
        assert_eq!(
            (&member["id"], &member["erased"], &member["status"]),
            (&json!(gone), &json!(true), &Value::Null)
        );
        site.get(&path(&c, &format!("/diff?against={gone}")))
            .await
            .code(410, "session.erased");
        site.get(&path(gone, "/tree"))
            .await
            .code(410, "session.erased");
    }
    assert_eq!(tree().await["sessions"][1]["forked_from"]["session_id"], a);
    // It is still a session to work with, and to fork.
    site.message(&c, "on").await;
    fork(&site, &c, json!({ "head": true })).await;
    assert_eq!(tree().await["sessions"].as_array().unwrap().len(), 4);
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn families_stay_in_their_workspace() {
    let mut site = Site::open().await;
    let source = site.session().await;
    let made = site.post("/v1/workspaces", json!({ "name": "w" })).await;
    site.headers = vec![("longhaul-workspace", id(&made.must(201)))];
    let own = {
        let dep = id(&site.post("/v1/deployments", external()).await.must(201));
        let body = json!({ "agent_deployment": dep });
        id(&site.post("/v1/sessions", body).await.must(201))
    };
    let head = json!({ "from": { "head": true } });
    site.post(&path(&source, "/fork"), head)
        .await
        .code(404, "session.not_found");
    for rest in ["/tree", "/checkpoints"] {
        site.get(&path(&source, rest))
            .await
            .code(404, "session.not_found");
    }
    for (left, right) in [(&own, &source), (&source, &own)] {
        site.get(&path(left, &format!("/diff?against={right}")))
            .await
            .code(404, "session.not_found");
    }
    site.close().await;
}

/// The same request is answered alike although the checkpoint was the newest only the first time.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_resume_goes_on_once() {
    let site = Site::open().await;
    let session = site.session().await;
    let path = format!("/v1/sessions/{session}/resume");
    let resume = async |key: &str, body: Value| {
        site.post_with(&path, body, &[("idempotency-key", key)])
            .await
    };
    let first = resume("a", json!({ "prompt": "on", "from": "latest" })).await;
    let again = resume("a", json!({ "prompt": "on", "from": "latest" })).await;
    assert_eq!(first.must(202), again.must(202));
    let shown = site.get(&format!("/v1/sessions/{session}")).await.must(200);
    assert_eq!(shown["untaken_inputs"], 1);
    site.post(&path, json!({ "prompt": "x", "user": "somebody else" }))
        .await
        .code(404, "session.not_found");
    let unknown = "ckpt_00000000000000000000000000000000";
    site.post(&path, json!({ "prompt": "x", "from": unknown }))
        .await
        .code(404, "checkpoint.not_found");
    site.post(&path, json!({ "prompt": "x", "from": "newest" }))
        .await
        .code(400, "request.id_invalid");
}
