//! The codes of the journal.

use serde_json::{Value, json};

use super::Seen;
use crate::http::kit::{Site, external, id};

fn begin(name: &str) -> Value {
    json!({ "op": "begin", "name": name, "input_digest": "d" })
}

fn complete(step: &Value, value: Value) -> Value {
    json!({ "op": "complete", "step_id": step, "value": value })
}

/// Provokes them.
pub(super) async fn provoke(seen: &mut Seen) {
    let site = Site::open().await;
    let (_, claim) = site.running().await;
    let step = site.call(&claim, "steps", begin("pay")).await.must(200)["step_id"].clone();
    let kept = site
        .call(&claim, "steps", complete(&step, json!({ "paid": 3 })))
        .await
        .must(200);
    assert_eq!(
        kept,
        json!({ "state": "completed", "step_id": step, "event_ids": [] })
    );
    let replay = site.call(&claim, "steps", begin("pay")).await.must(200);
    let wanted = json!({ "state": "completed", "step_id": step, "value": { "paid": 3 } });
    assert_eq!(replay, wanted);
    let mut other = begin("pay");
    other["input_digest"] = json!("e");
    let diverges = site.call(&claim, "steps", other).await;
    seen.take(diverges, "journal.divergence");
    let another = site.call(&claim, "steps", complete(&step, json!(4))).await;
    seen.take(another, "step.not_open");
    let stray = json!(format!("evt_{}", "0".repeat(31) + "1"));
    let nothing = site.call(&claim, "steps", complete(&stray, json!(1))).await;
    seen.take(nothing, "step.not_found");
    for round in 0..4 {
        let ops: Vec<_> = (0..64).map(|i| begin(&format!("{round}-{i}"))).collect();
        site.call(&claim, "steps", json!({ "ops": ops }))
            .await
            .must(200);
    }
    seen.take(
        site.call(&claim, "steps", begin("more")).await,
        "step.limit",
    );
    site.close().await;
    budget(seen).await;
}

/// A budget that is spent, seen, and raised.
async fn budget(seen: &mut Seen) {
    let site = Site::open().await;
    let dep = id(&site.post("/v1/deployments", external()).await.must(201));
    let new = json!({ "agent_deployment": dep, "budget": { "cost_micros_max": 1 } });
    let session = id(&site.post("/v1/sessions", new).await.must(201));
    site.message(&session, "x").await;
    let claim = site.claim(&site.runner().await).await;
    site.call(&claim, "ready", json!({})).await.must(200);
    let usage = json!({ "type": "usage.recorded", "content": { "cost_micros": 2, "model": "m" } });
    site.call(&claim, "events", json!({ "events": [usage] }))
        .await
        .must(202);
    let spent = site.call(&claim, "steps", begin("more")).await;
    seen.take(spent, "run.budget_exceeded");
    let path = format!("/v1/sessions/{session}/budget");
    for bad in [
        json!({ "cost_micros_max": -1 }),
        json!({ "cost_micros_max": "x" }),
    ] {
        site.post(&path, bad)
            .await
            .code(422, "request.field_invalid");
    }
    site.post(&path, json!({ "money": 1 }))
        .await
        .code(422, "request.field_unknown");
    let raised = site.post(&path, json!({ "tokens_max": 9 })).await.must(200);
    let both = json!({ "cost_micros_max": 1, "tokens_max": 9 });
    assert_eq!(raised["budget"], both);
    let lifted = json!({ "cost_micros_max": null });
    let shown = site.post(&path, lifted).await.must(200);
    assert_eq!(shown["budget"], json!({ "tokens_max": 9 }));
    assert_eq!(shown["usage_by_model"]["m"]["cost_micros"], 2);
    site.call(&claim, "steps", begin("more")).await.must(200);
    site.close().await;
}
