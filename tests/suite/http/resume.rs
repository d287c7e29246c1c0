//! Going on with a conversation.

use serde_json::{Value, json};

use super::kit::Site;

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

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_prompt_says_nothing_and_is_refused() {
    let site = Site::open().await;
    let session = site.session().await;
    let path = format!("/v1/sessions/{session}/resume");
    let before = site.last_seq(&session).await;
    site.post(&path, json!({ "prompt": " " }))
        .await
        .code(422, "request.field_invalid");
    assert_eq!(site.last_seq(&session).await, before);
}
