//! Checkpoints over HTTP: what is listed, pinned, pruned and over.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::forks::{fork, log, path};
use longhaul::config::StorageEngine;
use longhaul::runtime::PruneQuery;

use super::kit::{Site, absent, config, id};

/// Takes a checkpoint of a running session, as a runner elsewhere does.
async fn take(site: &Site, claim: &Value, name: &str) -> String {
    let snapshot = json!({ "provider": "ext", "id": name, "retention": "host_local", "bytes": 10 });
    let body = json!({ "snapshot": snapshot, "resume": { "kind": "rebuild_from_log" } });
    let made = site.call(claim, "checkpoint", body).await.must(201);
    made["checkpoint_id"].as_str().unwrap().to_owned()
}

pub(super) async fn checkpoints(site: &Site, session: &str) -> Vec<String> {
    let answer = site.get(&path(session, "/checkpoints")).await.must(200);
    let listed = answer["checkpoints"].as_array().unwrap();
    listed.iter().map(id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn c3_checkpoints_are_listed_newest_first_up_to_a_limit_pinned_and_pruned() {
    let mut few = config();
    few.retention.checkpoints_per_session_max = 2;
    few.retention.checkpoints_pinned_max = 1;
    let site = Site::with(few).await;
    let (session, claim) = site.running().await;
    let first = take(&site, &claim, "1").await;
    let pin = |checkpoint: &str, pinned: Value| {
        let path = path(&session, &format!("/checkpoints/{checkpoint}/pin"));
        let site = &site;
        async move { site.post(&path, json!({ "pinned": pinned })).await }
    };
    let shown = pin(&first, json!(true)).await.must(200);
    assert_eq!(
        (&shown["id"], &shown["pinned"]),
        (&json!(first), &json!(true))
    );
    let mut others = Vec::new();
    for name in ["2", "3", "4"] {
        others.push(take(&site, &claim, name).await);
    }
    let wanted = [others[2].clone(), others[1].clone(), first.clone()];
    assert_eq!(checkpoints(&site, &session).await, wanted);
    pin(&others[0], json!(true))
        .await
        .code(404, "checkpoint.not_found");
    pin(&others[1], json!(true))
        .await
        .code(409, "checkpoint.pinned_limit");
    pin("x", json!(true)).await.code(400, "request.id_invalid");
    pin(&first, json!(1))
        .await
        .code(422, "request.field_invalid");

    let page = site
        .get(&path(&session, "/checkpoints?limit=2"))
        .await
        .must(200);
    assert_eq!(page["next_page"], others[1].as_str());
    let rest = path(
        &session,
        &format!("/checkpoints?limit=2&page={}", others[1]),
    );
    let rest = site.get(&rest).await.must(200);
    assert_eq!(rest["checkpoints"][0]["id"], first.as_str());
    assert_eq!(
        (
            rest["checkpoints"].as_array().unwrap().len(),
            &rest["next_page"]
        ),
        (1, &Value::Null)
    );
    let gone = path(&session, &format!("/checkpoints?page={}", others[0]));
    site.get(&gone).await.code(400, "request.cursor_invalid");

    pin(&first, json!(false)).await.must(200);
    assert_eq!(
        checkpoints(&site, &session).await,
        [others[2].clone(), others[1].clone(), first],
        "counted again, and so the first to go with the next one"
    );
    let kinds: Vec<Value> = log(&site, &session).await;
    let kinds: BTreeSet<&str> = kinds.iter().map(|e| e["type"].as_str().unwrap()).collect();
    for kind in [
        "checkpoint.created",
        "checkpoint.pinned",
        "checkpoint.deleted",
    ] {
        assert!(kinds.contains(kind), "{kind}");
    }
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_has_its_end_and_names_no_disk_after_it() {
    let mut short = config();
    short.retention.checkpoint_ttl_s = 100;
    let (site, world) = Site::manual(short).await;
    let made = json!({ "name": "w", "policy": { "checkpoint_ttl_s": 60 } });
    let workspace = site.post("/v1/workspaces", made).await.must(201);
    assert_eq!(
        workspace["policy"],
        json!({ "checkpoint_ttl_s": 60, "zero_data_retention": false })
    );
    let mut lives = Vec::new();
    let mut site = site;
    for header in [None, Some(id(&workspace))] {
        site.headers = header
            .map(|w| ("longhaul-workspace", w))
            .into_iter()
            .collect();
        let (session, claim) = site.running().await;
        let ckpt = take(&site, &claim, "1").await;
        let listed = site.get(&path(&session, "/checkpoints")).await.must(200);
        let listed = listed["checkpoints"][0].clone();
        let at = |key: &str| {
            let text = listed[key].as_str().unwrap();
            chrono::DateTime::parse_from_rfc3339(text)
                .unwrap()
                .timestamp_millis()
        };
        lives.push(at("expires_at") - at("created_at"));
        world.advance_ms(101_000);
        let body = json!({ "from": { "checkpoint_id": ckpt } });
        site.post(&path(&session, "/fork"), body)
            .await
            .code(409, "runtime.checkpoint_expired");
        let listed = site.get(&path(&session, "/checkpoints")).await.must(200);
        let listed = &listed["checkpoints"][0];
        assert_eq!(listed["snapshot"]["state"], "expired", "it stays listed");
        // The conversation is still there.
        fork(
            &site,
            &session,
            json!({ "event_id": listed["through_event_id"] }),
        )
        .await;
    }
    assert_eq!(lives, [100_000, 60_000]);
    site.close().await;
}

/// A turn with a message, a call, usage and a checkpoint: the session and the checkpoint.
async fn lived(site: &Site) -> (String, String) {
    let (session, claim) = site.running().await;
    let asked = json!({ "tool": "t", "input": { "a": [1, "\u{0}"] } });
    let asked = json!({ "events": [{ "type": "agent.tool_use", "content": asked }] });
    let asked = site.call(&claim, "events", asked).await.must(202);
    let done = json!({ "tool_use_id": asked["events"][0]["id"], "output": "b", "is_error": false });
    let usage = json!({ "input_tokens": 3, "output_tokens": 4, "cost_micros": 5 });
    let rest = json!({ "events": [
        { "type": "agent.tool_result", "content": done },
        { "type": "agent.message", "content": { "text": "said" } },
        { "type": "usage.recorded", "content": usage },
    ] });
    site.call(&claim, "events", rest).await.must(202);
    let checkpoint = take(site, &claim, "1").await;
    let settle = json!({ "outcome": "succeeded" });
    site.call(&claim, "settle", settle).await.must(200);
    (session, checkpoint)
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_what_is_kept_comes_back_and_what_is_missing_is_an_empty_list() {
    let site = Site::open().await;
    let (session, claim) = site.running().await;
    assert!(checkpoints(&site, &session).await.is_empty());
    let snapshot = json!({ "provider": "ext", "id": "x", "retention": "platform", "bytes": 10 });
    let said = json!({ "snapshot": snapshot, "resume": { "kind": "rebuild_from_log" },
        "name": "mine", "metadata": { "n": 1 }, "cursor": "c" });
    let made = site
        .call(&claim, "checkpoint", said.clone())
        .await
        .must(201);
    let listed = site.get(&path(&session, "/checkpoints")).await.must(200);
    let shown = &listed["checkpoints"][0];
    assert_eq!(shown["id"], made["checkpoint_id"]);
    for key in ["name", "metadata", "cursor", "resume"] {
        assert_eq!(shown[key], said[key], "{key}");
    }
    for key in ["provider", "id", "retention", "bytes"] {
        assert_eq!(shown["snapshot"][key], snapshot[key], "{key}");
    }
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_the_latest_is_the_newest_by_position_and_c4_no_other_sessions() {
    let site = Site::open().await;
    let (session, claim) = site.running().await;
    let first = take(&site, &claim, "1").await;
    let last = take(&site, &claim, "2").await;
    let (other, _) = lived(&site).await;
    assert_eq!(checkpoints(&site, &session).await, [last.clone(), first]);
    // What is another session's is no checkpoint of this one.
    for unknown in [last, absent("ckpt_")] {
        let from = json!({ "from": { "checkpoint_id": unknown } });
        site.post(&path(&other, "/fork"), from)
            .await
            .code(404, "checkpoint.not_found");
        let resume = json!({ "from": unknown });
        site.post(&path(&other, "/resume"), resume)
            .await
            .code(404, "checkpoint.not_found");
    }
    assert_eq!(checkpoints(&site, &other).await.len(), 1);
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c5_messages_calls_and_usage_survive_in_a_checkpoint() {
    let site = Site::open().await;
    let (session, _) = lived(&site).await;
    let listed = site.get(&path(&session, "/checkpoints")).await.must(200);
    let usage = &listed["checkpoints"][0]["cumulative_usage"];
    assert_eq!(
        (&usage["input_tokens"], &usage["cost_micros"]),
        (&json!(3), &json!(5))
    );
    let place = json!({ "seq": listed["checkpoints"][0]["through_sequence"] });
    let child = id(&fork(&site, &session, place).await);
    let told = async |session: &str| {
        let told = site.get(&path(session, "/transcript")).await.must(200);
        told["messages"].clone()
    };
    assert_eq!(told(&child).await, told(&session).await);
    let spent = site.get(&path(&child, "/usage")).await.must(200);
    assert_eq!(&spent["inherited"], usage);
    assert_eq!(spent["session"]["usage"]["input_tokens"], 0);
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c6_the_cap_is_each_sessions_own_and_what_it_prunes_is_gone() {
    let mut few = config();
    few.retention.checkpoints_per_session_max = 2;
    let site = Site::with(few).await;
    let (session, claim) = site.running().await;
    let (other, theirs) = site.running().await;
    let mut made = Vec::new();
    for name in ["1", "2", "3"] {
        made.push(take(&site, &claim, name).await);
    }
    let theirs = take(&site, &theirs, "1").await;
    assert_eq!(
        checkpoints(&site, &session).await,
        [made[2].clone(), made[1].clone()]
    );
    assert_eq!(checkpoints(&site, &other).await, [theirs]);
    let from = json!({ "from": { "checkpoint_id": made[0] } });
    site.post(&path(&session, "/fork"), from)
        .await
        .code(404, "checkpoint.not_found");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_every_store_offers_the_same() {
    let mut told = Vec::new();
    for engine in [StorageEngine::Memory, StorageEngine::Rocksdb] {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config();
        config.storage.engine = engine;
        config.storage.data_dir = folder.path().join("data");
        let site = Site::with(config).await;
        let (session, _) = lived(&site).await;
        let listed = site.get(&path(&session, "/checkpoints")).await.must(200);
        let mut shown = listed["checkpoints"][0].clone();
        let own = shown.as_object_mut().unwrap();
        // What differs by nature: ids and times.
        own.retain(|key, _| {
            !(key.ends_with("_at") || key.ends_with("id") || key.ends_with("revision"))
        });
        for key in ["agent_deployment", "snapshot"] {
            own.remove(key);
        }
        // The same decision, asked by a host program.
        let query = PruneQuery {
            session: Some(session.parse().unwrap()),
            dry_run: true,
            ..PruneQuery::default()
        };
        let told_here = site.runtime.prune(query).await.unwrap();
        assert_eq!((told_here.sessions, told_here.checkpoints.len()), (1, 1));
        let empty = site.runtime.prune(PruneQuery::default()).await;
        assert_eq!(empty.unwrap_err().code, longhaul::Code::PruneFilterEmpty);
        let mut pruned = site
            .post("/v1/prune", json!({ "session_id": session }))
            .await
            .must(200);
        assert_eq!(pruned["checkpoints"].as_array().unwrap().len(), 1);
        pruned["checkpoints"] = Value::Null;
        assert!(checkpoints(&site, &session).await.is_empty());
        let kinds = log(&site, &session).await;
        let kinds: Vec<Value> = kinds.into_iter().map(|e| e["type"].clone()).collect();
        told.push((shown, pruned, kinds));
        site.close().await;
    }
    assert_eq!(told[0], told[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_told_by_model_by_run_and_of_the_family() {
    let site = Site::open().await;
    let (session, _) = lived(&site).await;
    let child = id(&fork(&site, &session, json!({ "head": true })).await);
    site.message(&session, "again").await;
    let first = site.get(&path(&session, "/usage?limit=1")).await.must(200);
    assert_eq!(first["runs"][0]["usage"]["input_tokens"], 3);
    let next = first["next_page"].as_str().unwrap();
    let next = path(&session, &format!("/usage?limit=1&page={next}"));
    let next = site.get(&next).await.must(200);
    assert_eq!(next["runs"][0]["usage"]["input_tokens"], 0);
    let shown = site.show(&session).await;
    let own = &first["session"];
    assert_eq!(
        (&own["usage"], &own["by_model"]),
        (&shown["usage"], &shown["usage_by_model"])
    );
    let theirs = site.get(&path(&child, "/usage")).await.must(200);
    assert_eq!(theirs["inherited"], first["session"]["usage"]);
    assert_eq!(theirs["tree"], first["tree"]);
    assert_eq!(
        (&theirs["tree"]["sessions"], &theirs["tree"]["usage"]),
        (&json!(2), &own["usage"])
    );
    site.close().await;
}
