//! One Idempotency-Key, one effect; also when asked at the same time.

use futures_util::future::join_all;
use serde_json::{Value, json};

use longhaul::config::StorageEngine;

use super::kit::{Site, config, external, id, runner};

/// Sends the same thing many times at once: one answer. Then another body: refused.
async fn once(site: &Site, path: &str, body: Value, other: Value) -> Value {
    let key = [("idempotency-key", "k-1")];
    let all = join_all((0..12).map(|_| site.post_with(path, body.clone(), &key))).await;
    let first = &all[0];
    assert!((200..300).contains(&first.status), "{path}: {}", first.text);
    for answer in &all {
        assert_eq!(
            (answer.status, &answer.text),
            (first.status, &first.text),
            "{path}"
        );
    }
    site.post_with(path, other, &key)
        .await
        .code(409, "request.idempotency_conflict");
    first.json.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mutation_takes_a_key() {
    let site = Site::open().await;
    let mut renamed = external();
    renamed["name"] = json!("other");
    let dep = id(&once(&site, "/v1/deployments", external(), renamed).await);

    let mut revision = external();
    revision.as_object_mut().unwrap().remove("name");
    let mut changed = revision.clone();
    changed["release"]["instructions"] = json!("other");
    let path = format!("/v1/deployments/{dep}/revisions");
    assert_eq!(once(&site, &path, revision, changed).await["revision"], 2);

    once(
        &site,
        "/v1/workspaces",
        json!({ "name": "a" }),
        json!({ "name": "b" }),
    )
    .await;
    let mut larger = runner();
    larger["capacity"] = json!(9);
    let rnr = id(&once(&site, "/v1/runners", runner(), larger).await);

    let new = json!({ "agent_deployment": dep });
    let other = json!({ "agent_deployment": dep, "metadata": { "a": 1 } });
    let session = id(&once(&site, "/v1/sessions", new, other).await);
    assert_eq!(
        site.get("/v1/sessions").await.must(200)["sessions"]
            .as_array()
            .unwrap()
            .len(),
        1
    );

    let message =
        |text: &str| json!({ "events": [{ "type": "user.message", "content": { "text": text } }] });
    let events = format!("/v1/sessions/{session}/events");
    once(&site, &events, message("a"), message("b")).await;
    assert_eq!(site.show(&session).await["untaken_inputs"], 1);

    let cancel = format!("/v1/sessions/{session}/cancel");
    let key = [("idempotency-key", "k-2")];
    let first = site.post_with(&cancel, json!({}), &key).await.must(200);
    assert_eq!(
        site.post_with(&cancel, json!({}), &key).await.must(200),
        first
    );

    let drain = format!("/v1/runners/{rnr}/drain");
    let first = site.post_with(&drain, json!({}), &key).await.must(200);
    assert_eq!(
        site.post_with(&drain, json!({}), &key).await.must(200),
        first
    );
    let remove = || {
        site.request("DELETE", &format!("/v1/runners/{rnr}"))
            .header("idempotency-key", "k")
    };
    site.send(remove()).await.must(204);
    site.send(remove()).await.must(204);
    site.delete(&format!("/v1/runners/{rnr}"))
        .await
        .code(404, "runner.not_found");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_not_kept_and_paths_do_not_share_keys() {
    let site = Site::open().await;
    let key = [("idempotency-key", "same")];
    site.post_with("/v1/workspaces", json!({ "name": "" }), &key)
        .await
        .code(422, "request.field_invalid");
    site.post_with("/v1/workspaces", json!({ "name": "x" }), &key)
        .await
        .must(201);
    site.post_with("/v1/deployments", external(), &key)
        .await
        .must(201);
    let (_, claim) = site.running().await;
    let token = claim["claim_token"].as_str().unwrap();
    let path = format!("/v1/claims/{token}/heartbeat");
    let refused = site
        .post_with(&path, json!({}), &key)
        .await
        .code(400, "request.header_invalid");
    assert!(refused["detail"].as_str().unwrap().contains("`n`"));
    site.close().await;
}

/// Whether any file below `folder` holds the bytes.
fn on_disk(folder: &std::path::Path, marker: &str) -> bool {
    let entries = std::fs::read_dir(folder).unwrap();
    // Files come and go while they are looked at.
    entries.flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return on_disk(&path, marker);
        }
        let bytes = std::fs::read(&path).unwrap_or_default();
        bytes.windows(marker.len()).any(|w| w == marker.as_bytes())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erased_session_takes_its_kept_answers_along() {
    const MARKER: &str = "marker-4711-of-the-metadata";
    let folder = tempfile::tempdir().unwrap();
    let mut config = config();
    config.storage.engine = StorageEngine::Rocksdb;
    config.storage.data_dir = folder.path().join("data");
    let site = Site::with(config).await;
    let key = [("idempotency-key", "k")];
    let body = json!({ "agent_deployment": site.deployment().await, "metadata": { "a": MARKER } });
    let create = || site.post_with("/v1/sessions", body.clone(), &key);
    let first = create().await.must(201);
    assert_eq!(create().await.must(201), first);
    let path = format!("/v1/sessions/{}", id(&first));
    for key in ["a", "b"] {
        let (path, key) = (format!("{path}/cancel"), [("idempotency-key", key)]);
        let shown = site.post_with(&path, json!({}), &key).await.must(200);
        assert_eq!(shown["metadata"]["a"], MARKER);
    }
    assert!(on_disk(folder.path(), MARKER));
    site.delete(&path).await.must(200);
    create().await.code(410, "session.erased");
    let mut other = body.clone();
    other["metadata"] = json!({});
    site.post_with("/v1/sessions", other, &key)
        .await
        .code(409, "request.idempotency_conflict");
    while on_disk(folder.path(), MARKER) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    create().await.code(410, "session.erased");
    site.close().await;
}
