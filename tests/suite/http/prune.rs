//! Pruning over HTTP: journals of what is over and checkpoints go, to the last byte; what goes on,
//! what is pinned and what is shared stays.

use longhaul_actors::time::rfc3339;
use serde_json::{Value, json};

use super::checkpoints::checkpoints;
use super::forks::{fork, log, path};
use super::kit::{Site, id};
use super::retention::{Place, secret, states};

/// One step, from its beginning to its end.
pub(super) async fn step(site: &Site, claim: &Value, name: &str, value: &str) {
    let begin = json!({
        "op": "begin", "name": name, "input_digest": "d", "input": { "asked": value },
    });
    let begun = site.call(claim, "steps", begin).await.must(200);
    assert_eq!(begun["state"], "execute");
    let complete =
        json!({ "op": "complete", "step_id": begun["step_id"], "value": { "said": value } });
    site.call(claim, "steps", complete).await.must(200);
}

/// A turn with a journal, settled like this.
async fn turn(site: &Site, session: &str, value: &str, settle: Value) {
    let claim = live(site, session).await;
    step(site, &claim, "s", value).await;
    site.call(&claim, "settle", settle).await.must(200);
}

/// The claim of a new run that is ready.
async fn live(site: &Site, session: &str) -> Value {
    site.message(session, "go").await;
    ready(site).await
}

async fn ready(site: &Site) -> Value {
    let claim = site.claim(&site.runner().await).await;
    site.call(&claim, "ready", json!({})).await.must(200);
    claim
}

/// A checkpoint whose bytes any runner has.
async fn keep(site: &Site, claim: &Value, name: &str) -> String {
    let snapshot = json!({ "provider": "ext", "id": name, "retention": "platform", "bytes": 10 });
    let body = json!({ "snapshot": snapshot, "resume": { "kind": "rebuild_from_log" } });
    let made = site.call(claim, "checkpoint", body).await.must(201);
    made["checkpoint_id"].as_str().unwrap().to_owned()
}

fn succeeded() -> Value {
    json!({ "outcome": "succeeded" })
}

fn failed() -> Value {
    json!({ "outcome": "failed", "error": { "code": "x", "message": "y" } })
}

async fn prune(site: &Site, body: Value) -> Value {
    let pruned = site.post("/v1/prune", body).await.must(200);
    assert_eq!(pruned["next"], Value::Null);
    pruned
}

impl Place {
    async fn lasting() -> Self {
        Self::with(json!({})).await.0
    }

    fn now(&self) -> String {
        rfc3339(self.world.door().clock.wall_ms())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn j11_prune_by_session_by_time_and_by_both_and_an_empty_filter_is_refused() {
    let place = Place::lasting().await;
    let site = &place.site;
    let [a1, b1, a2, b2] = ["a1", "b1", "a2", "b2"].map(secret);
    let [a, b] = [site.session().await, site.session().await];
    turn(site, &a, &a1, succeeded()).await;
    turn(site, &b, &b1, succeeded()).await;
    place.world.advance_ms(1_000);
    let cut = place.now();
    turn(site, &a, &a2, succeeded()).await;
    turn(site, &b, &b2, succeeded()).await;
    for empty in [json!({}), json!({ "dry_run": true })] {
        site.post("/v1/prune", empty)
            .await
            .code(422, "prune.filter_empty");
    }
    let bad = json!({ "before": "yesterday" });
    site.post("/v1/prune", bad)
        .await
        .code(422, "request.field_invalid");

    // What would go is what goes, and is still there.
    let before = [log(site, &a).await, log(site, &b).await];
    let told = prune(site, json!({ "before": cut, "dry_run": true })).await;
    assert_eq!(
        (&told["sessions"], &told["journal_values"], &told["dry_run"]),
        (&json!(2), &json!(4), &json!(true))
    );
    let bytes = told["journal_bytes"].as_u64().unwrap();
    assert!(bytes > 4 * a1.len() as u64, "{told}");
    assert_eq!(before, [log(site, &a).await, log(site, &b).await]);

    let both = prune(site, json!({ "before": cut, "session_id": a })).await;
    assert_eq!(
        (&both["sessions"], &both["journal_values"]),
        (&json!(1), &json!(2))
    );
    place.until_gone(&a1).await;
    assert!(place.count(&b1) > 0 && place.count(&a2) > 0);
    let after = log(site, &a).await;
    assert_eq!(states(&after, "step.completed"), ["expired", "present"]);
    assert_eq!(states(&after, "step.started"), ["expired", "present"]);
    let said = after.last().unwrap();
    assert_eq!(
        (&said["type"], &said["content"]["reason"]),
        (&json!("content.erased"), &json!("pruned"))
    );

    prune(site, json!({ "before": cut })).await;
    place.until_gone(&b1).await;
    assert!(place.count(&b2) > 0);
    prune(site, json!({ "session_id": a })).await;
    place.until_gone(&a2).await;
    assert!(place.count(&b2) > 0);

    // What is gone is gone: nothing is written again.
    let whole = [log(site, &a).await, log(site, &b).await];
    let nothing = prune(site, json!({ "session_id": a })).await;
    assert_eq!(nothing["sessions"], 0);
    prune(site, json!({ "before": cut })).await;
    assert_eq!(whole, [log(site, &a).await, log(site, &b).await]);
    // The conversation is whole: it can be forked, and goes on with nothing missing.
    fork(site, &a, json!({ "head": true })).await;
    let claim = live(site, &a).await;
    assert_eq!(claim["resume"].get("missing"), None, "{claim}");
    site.call(&claim, "settle", succeeded()).await.must(200);
    let whole = log(site, &a).await;
    let place = place.restart(0).await;
    assert_eq!(whole, log(&place.site, &a).await);
    place.site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn j11_the_journal_of_what_goes_on_stays() {
    let place = Place::lasting().await;
    let site = &place.site;
    let session = site.session().await;
    let all = json!({ "session_id": session });
    let values = |pruned: Value| pruned["journal_values"].as_u64().unwrap();
    turn(site, &session, "old", succeeded()).await;
    // Live, then parked, then gone on from there: only what was before it goes.
    let claim = live(site, &session).await;
    step(site, &claim, "s", "kept").await;
    assert_eq!(values(prune(site, all.clone()).await), 2);
    let park = json!({ "waiting_on": [{ "signal": "go" }], "compute": "released" });
    site.call(&claim, "park", park).await.must(200);
    assert_eq!(values(prune(site, all.clone()).await), 0);
    site.submit(&session, "user.signal", json!({ "name": "go" }))
        .await
        .must(202);
    let claim = ready(site).await;
    let again = json!({ "op": "begin", "name": "s", "input_digest": "d" });
    let kept = site.call(&claim, "steps", again.clone()).await.must(200);
    assert_eq!(kept["value"], json!({ "said": "kept" }));
    // It fails, and can be continued.
    site.call(&claim, "settle", failed()).await.must(200);
    assert_eq!(values(prune(site, all.clone()).await), 0);
    let resume = path(&session, "/resume");
    site.post(&resume, json!({})).await.must(202);
    let claim = ready(site).await;
    let kept = site.call(&claim, "steps", again).await.must(200);
    assert_eq!(kept["value"], json!({ "said": "kept" }));
    site.call(&claim, "settle", succeeded()).await.must(200);
    assert_eq!(values(prune(site, all.clone()).await), 2);
    // One that failed and can go on no more.
    turn(site, &session, "last", failed()).await;
    assert_eq!(values(prune(site, all.clone()).await), 0);
    site.post(&path(&session, "/cancel"), json!({}))
        .await
        .must(200);
    assert_eq!(values(prune(site, all).await), 2);
    place.restart(0).await.site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_living_fork_shares_is_not_pruned_until_it_is_alone() {
    let place = Place::lasting().await;
    let site = &place.site;
    let [shared, own] = ["shared journal", "own journal"].map(secret);
    let source = site.session().await;
    turn(site, &source, &shared, succeeded()).await;
    let child = id(&fork(site, &source, json!({ "head": true })).await);
    turn(site, &child, &own, succeeded()).await;
    let far = json!({ "before": "2100-01-01T00:00:00Z" });
    let pruned = prune(site, far.clone()).await;
    assert_eq!(
        (&pruned["sessions"], &pruned["journal_values"]),
        (&json!(1), &json!(2))
    );
    place.until_gone(&own).await;
    assert!(place.count(&shared) > 0);
    site.delete(&path(&source, "")).await.must(200);
    assert_eq!(prune(site, far).await["journal_values"], 2);
    place.until_gone(&shared).await;
    let states = states(&log(site, &child).await, "step.completed");
    assert_eq!(states, ["expired", "expired"]);
    place.restart(0).await.site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_sessions_and_long_ones_go_page_by_page() {
    let place = Place::lasting().await;
    let site = &place.site;
    let deployment = site.deployment().await;
    for _ in 0..120 {
        let new = json!({ "agent_deployment": deployment });
        site.post("/v1/sessions", new).await.must(201);
    }
    let session = site.session().await;
    let claim = live(site, &session).await;
    for round in 0..6 {
        let name = |i| format!("{round}-{i}");
        let ops = |op: &dyn Fn(usize) -> Value| (0..100).map(op).collect::<Vec<_>>();
        let begin = ops(&|i| json!({ "op": "begin", "name": name(i), "input_digest": "d" }));
        let begun = json!({ "ops": begin });
        let begun = site.call(&claim, "steps", begun).await.must(200);
        let done = ops(
            &|i| json!({ "op": "complete", "step_id": begun["results"][i]["step_id"], "value": i }),
        );
        let done = json!({ "ops": done });
        site.call(&claim, "steps", done).await.must(200);
    }
    site.call(&claim, "settle", succeeded()).await.must(200);
    let mut body = json!({ "before": "2100-01-01T00:00:00Z" });
    let (mut pages, mut values) = (0, 0);
    loop {
        let pruned = site.post("/v1/prune", body.clone()).await.must(200);
        pages += 1;
        values += pruned["journal_values"].as_u64().unwrap();
        if pruned["next"].is_null() {
            break;
        }
        body["page"] = pruned["next"].clone();
    }
    assert!(pages > 1, "{pages}");
    assert_eq!(values, 1_200);
    let bad = json!({ "before": "2100-01-01T00:00:00Z", "page": "x" });
    site.post("/v1/prune", bad)
        .await
        .code(400, "request.id_invalid");
    place.restart(0).await.site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_checkpoints_are_pruned_by_session_and_by_time_but_for_pinned_ones() {
    let place = Place::lasting().await;
    let site = &place.site;
    let (a, claim) = site.running().await;
    let pinned = keep(site, &claim, "1").await;
    let pin = path(&a, &format!("/checkpoints/{pinned}/pin"));
    site.post(&pin, json!({ "pinned": true })).await.must(200);
    let old = keep(site, &claim, "2").await;
    site.call(&claim, "settle", succeeded()).await.must(200);
    let (b, other) = site.running().await;
    let theirs = keep(site, &other, "3").await;
    place.world.advance_ms(1_000);
    let cut = place.now();
    let claim = live(site, &a).await;
    let new = keep(site, &claim, "4").await;
    site.call(&claim, "settle", succeeded()).await.must(200);

    let by_time = prune(site, json!({ "before": cut, "dry_run": true })).await;
    assert_eq!(by_time["checkpoints"], json!([old]), "{by_time}");
    let by_time = prune(site, json!({ "before": cut })).await;
    assert_eq!(by_time["checkpoints"], json!([old]));
    assert_eq!(checkpoints(site, &a).await, [new.clone(), pinned.clone()]);
    assert_eq!(
        checkpoints(site, &b).await,
        [&*theirs],
        "the disk of a live run"
    );
    let from = json!({ "from": { "checkpoint_id": old } });
    site.post(&path(&a, "/fork"), from)
        .await
        .code(404, "checkpoint.not_found");
    let by_session = prune(site, json!({ "session_id": a })).await;
    assert_eq!(by_session["checkpoints"], json!([new]));
    assert_eq!(checkpoints(site, &a).await, [pinned]);
    site.call(&other, "settle", succeeded()).await.must(200);
    let by_session = prune(site, json!({ "session_id": b })).await;
    assert_eq!(by_session["checkpoints"], json!([theirs]));
    assert!(checkpoints(site, &b).await.is_empty());
    place.restart(0).await.site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c9_a_clock_that_was_set_back_changes_neither_the_latest_nor_what_is_pruned() {
    let place = Place::lasting().await;
    let site = &place.site;
    let (session, claim) = site.running().await;
    step(site, &claim, "before", "x").await;
    let first = keep(site, &claim, "1").await;
    place.world.jump_wall_ms(-60_000);
    step(site, &claim, "after", "x").await;
    let last = keep(site, &claim, "2").await;
    site.call(&claim, "settle", succeeded()).await.must(200);
    assert_eq!(
        checkpoints(site, &session).await,
        [last.clone(), first.clone()]
    );
    // Between the two times: what came later in the log is not older.
    place.world.advance_ms(30_000);
    let nothing = prune(site, json!({ "before": place.now() })).await;
    assert_eq!(
        (&nothing["journal_values"], &nothing["checkpoints"]),
        (&json!(0), &json!([]))
    );
    site.message(&session, "on").await;
    let claim = site.claim(&site.runner().await).await;
    assert_eq!(claim["resume"]["id"], last.as_str(), "{claim}");
    site.call(&claim, "ready", json!({})).await.must(200);
    site.call(&claim, "settle", succeeded()).await.must(200);
    place.world.advance_ms(60_000);
    let all = prune(site, json!({ "before": place.now() })).await;
    assert_eq!(
        (&all["journal_values"], &all["checkpoints"]),
        (&json!(4), &json!([first, last]))
    );
    place.restart(0).await.site.close().await;
}
