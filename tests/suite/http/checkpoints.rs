//! Checkpoints over HTTP: what is listed, pinned, pruned and over.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::forks::{fork, log, path};
use super::kit::{Site, config, id};

/// Takes a checkpoint of a running session, as a runner elsewhere does.
async fn take(site: &Site, claim: &Value, name: &str) -> String {
    let snapshot = json!({ "provider": "ext", "id": name, "retention": "host_local", "bytes": 10 });
    let body = json!({ "snapshot": snapshot, "resume": { "kind": "rebuild_from_log" } });
    let made = site.call(claim, "checkpoint", body).await.must(201);
    made["checkpoint_id"].as_str().unwrap().to_owned()
}

async fn checkpoints(site: &Site, session: &str) -> Vec<String> {
    let answer = site.get(&path(session, "/checkpoints")).await.must(200);
    let listed = answer["checkpoints"].as_array().unwrap();
    listed.iter().map(id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_are_listed_newest_first_pinned_and_pruned() {
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
