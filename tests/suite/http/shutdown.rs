//! Stopping in order.

use longhaul::Runtime;
use longhaul::config::StorageEngine;
use serde_json::json;

use super::kit::{Site, config};

#[tokio::test(flavor = "multi_thread")]
async fn streams_reconnect_and_polls_end() {
    let mut site = Site::open().await;
    let (session, claim) = site.running().await;
    let last = site.last_seq(&session).await;
    let mut events = site.follow(&session, &format!("?after={last}")).await;
    let token = claim["claim_token"].as_str().unwrap();
    let inputs = site.request("POST", &format!("/v1/claims/{token}/inputs?wait_ms=30000"));
    let inputs = tokio::spawn(inputs.json(&json!({})).send());
    let runner = site.runner().await;
    let claims = site.request(
        "POST",
        &format!("/v1/runners/{runner}/claims?wait_ms=30000"),
    );
    let claims = tokio::spawn(claims.json(&json!({})).send());
    // Both have arrived when the engine knows the second runner.
    while site.runtime.engine().stats().runners < 2 {
        tokio::task::yield_now().await;
    }
    site.stop().await;
    assert_eq!(events.rest().await.last().unwrap().name, "reconnect");
    let claims = claims.await.unwrap().unwrap();
    assert_eq!(claims.status(), 200);
    // The other one may still have been on its way in when intake stopped.
    if let Ok(inputs) = inputs.await.unwrap() {
        assert_eq!(inputs.status(), 503);
    }
    site.close_runtime().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_runtime_says_so() {
    let site = Site::open().await;
    let session = site.session().await;
    site.runtime.engine().close().await;
    site.get("/readyz").await.code(503, "runtime.stopped");
    site.get("/healthz").await.must(200);
    let message = json!({ "text": "x" });
    site.submit(&session, "user.message", message)
        .await
        .code(503, "runtime.stopped");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn open_and_close_many_times_on_one_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut on_disk = config();
    on_disk.storage.engine = StorageEngine::Rocksdb;
    on_disk.storage.data_dir = folder.path().join("data");
    for round in 0..5 {
        let site = Site::with(on_disk.clone()).await;
        let listed = site.get("/v1/sessions").await.must(200);
        assert_eq!(listed["sessions"].as_array().unwrap().len(), round);
        let session = site.session().await;
        let second = Runtime::open(on_disk.clone()).await.err().unwrap();
        let folder = on_disk.storage.data_dir.display().to_string();
        assert!(second.to_string().contains(&folder), "{second}");
        let stream = site.follow(&session, "").await;
        site.close().await;
        drop(stream);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_without_closing_does_not_block() {
    let runtime = Runtime::open(config()).await.unwrap();
    let session = runtime.session(runtime.engine().new_session_id());
    drop(runtime);
    assert_eq!(session.show().await.unwrap_err().code.info().status, 404);
}
