//! Whose sessions a token sees: a principal's own; anything else looks absent, whatever is asked.

use longhaul::api::{ROUTES, Route};
use longhaul::auth::Scope;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::auth::{act_as, enrolled, line};
use super::forks::{log, path};
use super::kit::{Site, absent, config, id};
use super::prune::step;

async fn site() -> (Site, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let own = [Scope::Read, Scope::Write];
    let lines = [
        line("ann", "default", &own, None),
        line("bob", "default", &own, None),
        line("boss", "default", &Scope::ALL, None),
    ];
    std::fs::write(&path, lines.concat()).unwrap();
    let mut config = config();
    config.auth.tokens_file = Some(path);
    (Site::with(config).await, folder)
}

/// Routes that are about no session: a new one is either here or among those that name theirs.
const OTHERS: &[&str] = &[
    "/v1/claims/",
    "/v1/clones/",
    "/v1/runners",
    "/v1/deployments",
    "/v1/workspaces",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
];

/// How a route is asked about a session, or one of its checkpoints. `None` = it names none.
fn ask(route: &Route, session: &str, checkpoint: &str) -> Option<(String, Value)> {
    if OTHERS.iter().any(|other| route.path.starts_with(other)) {
        return None;
    }
    let runtime = json!({ "runtime_id": session });
    let with = |key: &str, value: &str| {
        let mut body = runtime.clone();
        body[key] = json!(value);
        body
    };
    let body = match route.path {
        // Both have tests of their own below.
        "/v1/sessions" => return None,
        "/v1/prune" => json!({ "session_id": session }),
        "/api/v1/runtimes/exec" => with("command", "true"),
        "/api/v1/runtimes/read-file" => with("path", "a"),
        "/api/v1/runtimes/write-file" => {
            let mut body = with("path", "a");
            body["content_base64"] = json!("");
            body
        }
        "/api/v1/runtimes/checkout" | "/api/v1/runtimes/checkpoint/delete-snapshot" => {
            json!({ "checkpoint_id": checkpoint })
        }
        p if p.starts_with("/api/v1/runtimes/") => runtime,
        p if !p.starts_with("/v1/sessions/{id}") => panic!("how does {p} name its session?"),
        p if p.ends_with("/events") => {
            json!({ "events": [{ "type": "user.message", "content": { "text": "x" } }] })
        }
        p if p.ends_with("/fork") => json!({ "from": { "checkpoint_id": checkpoint } }),
        p if p.ends_with("/pin") => json!({ "pinned": true }),
        _ => json!({}),
    };
    let path = route.path.replace("{id}", session);
    Some((path.replace("{checkpoint}", checkpoint), body))
}

/// The answer, without what tells two requests apart.
async fn told(site: &Site, route: &Route, path: &str, body: &Value, ids: [&str; 2]) -> String {
    let mut request = site.request(route.method, path);
    if route.method == "POST" {
        request = request.json(body);
    }
    let mut answer = site.send(request).await;
    assert_eq!(answer.status, 404, "{route:?}: {}", answer.text);
    answer.json["request_id"] = Value::Null;
    let text = answer.json.to_string();
    text.replace(ids[0], "SESSION")
        .replace(ids[1], "CHECKPOINT")
}

/// A session of ann's with a text, a step and a checkpoint.
async fn lived(site: &mut Site) -> (String, String) {
    act_as(site, "boss");
    let runner = enrolled(site).await;
    act_as(site, "ann");
    let session = site.session().await;
    site.message(&session, "secret").await;
    act_as(site, &runner.1);
    let claim = site.claim(&runner.0).await;
    site.call(&claim, "ready", json!({})).await.must(200);
    step(site, &claim, "pay", "secret").await;
    let snapshot =
        json!({ "provider": "ext", "id": "bytes", "retention": "host_local", "bytes": 1 });
    let taken = json!({ "snapshot": snapshot, "resume": { "kind": "rebuild_from_log" } });
    let made = site.call(&claim, "checkpoint", taken).await.must(201);
    let usage = json!({ "input_tokens": 3 });
    let settle = json!({ "outcome": "succeeded", "usage": usage });
    site.call(&claim, "settle", settle).await.must(200);
    // A runner reads what its workspace says.
    assert!(!log(site, &session).await.is_empty());
    let checkpoint = made["checkpoint_id"].as_str().unwrap().to_owned();
    act_as(site, "ann");
    (session, checkpoint)
}

#[tokio::test(flavor = "multi_thread")]
async fn another_principals_session_looks_absent_on_every_route() {
    let (mut site, _folder) = site().await;
    let (session, checkpoint) = lived(&mut site).await;
    let before = log(&site, &session).await;
    act_as(&mut site, "bob");
    let own = site.session().await;
    let none = [absent("sess_"), absent("ckpt_")];
    let mut asked = 0;
    for route in ROUTES {
        let Some((real, body)) = ask(route, &session, &checkpoint) else {
            continue;
        };
        let (path, nothing) = ask(route, &none[0], &none[1]).unwrap();
        let query = match route.path.ends_with("/diff") {
            true => format!("?against={own}"),
            false => String::new(),
        };
        let (real, path) = (real + &query, path + &query);
        let real = told(&site, route, &real, &body, [&session, &checkpoint]).await;
        let none = told(&site, route, &path, &nothing, [&none[0], &none[1]]).await;
        assert_eq!(real, none, "{route:?}");
        asked += 1;
    }
    assert!(asked > 20, "{asked}");
    // The other side of a comparison.
    let against = |other: &str| path(&own, &format!("/diff?against={other}"));
    for other in [&session, &none[0]] {
        let refused = site.get(&against(other)).await;
        refused.code(404, "session.not_found");
    }
    act_as(&mut site, "ann");
    assert_eq!(log(&site, &session).await, before, "nothing was changed");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_and_families_leave_out_what_is_not_for_the_caller() {
    let (mut site, _folder) = site().await;
    let (session, _) = lived(&mut site).await;
    act_as(&mut site, "boss");
    let given = json!({ "from": { "head": true }, "principal": "bob" });
    let child = site.post(&path(&session, "/fork"), given).await.must(201);
    assert_eq!(child["principal"], "bob");
    let child = id(&child);
    let ids = async |site: &Site| {
        let list = site.get("/v1/sessions").await.must(200);
        let list = list["sessions"].as_array().unwrap();
        list.iter().map(id).collect::<Vec<_>>()
    };
    assert_eq!(ids(&site).await, [session.clone(), child.clone()]);
    let members = |tree: &Value| {
        let members = tree["sessions"].as_array().unwrap();
        members.iter().map(id).collect::<Vec<_>>()
    };
    let tree = site.get(&path(&child, "/tree")).await.must(200);
    assert_eq!(members(&tree), [session.clone(), child.clone()]);
    let usage = site.get(&path(&child, "/usage")).await.must(200);
    assert_eq!(usage["tree"]["usage"]["input_tokens"], 3);
    assert_eq!(usage["tree"]["sessions"], 2);

    act_as(&mut site, "bob");
    assert_eq!(ids(&site).await, [&*child]);
    let tree = site.get(&path(&child, "/tree")).await.must(200);
    assert_eq!(members(&tree), [&*child]);
    let usage = site.get(&path(&child, "/usage")).await.must(200);
    assert_eq!(usage["tree"]["usage"]["input_tokens"], 0);
    assert_eq!(usage["inherited"]["input_tokens"], 3);
    // The shared past is bob's too, and so is a fork of it.
    let middle = json!({ "from": { "seq": 2 } });
    let grandchild = site.post(&path(&child, "/fork"), middle).await.must(201);
    assert_eq!(grandchild["principal"], "bob");
    let far = json!({ "before": "2100-01-01T00:00:00Z", "dry_run": true });
    act_as(&mut site, "ann");
    assert_eq!(ids(&site).await, [&*session]);
    act_as(&mut site, "bob");
    let pruned = site.post("/v1/prune", far).await.must(200);
    assert_eq!(pruned["checkpoints"], json!([]), "not ann's");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_principal_starts_sessions_as_itself() {
    let (mut site, _folder) = site().await;
    act_as(&mut site, "bob");
    let deployment = site.deployment().await;
    let new = |principal: &str| json!({ "agent_deployment": deployment, "principal": principal });
    let refused = site.post("/v1/sessions", new("ann")).await;
    assert_eq!(refused.code(403, "auth.scope_missing")["scope"], "admin");
    let own = id(&site.post("/v1/sessions", new("bob")).await.must(201));
    let fork = json!({ "from": { "head": true }, "principal": "ann" });
    site.post(&path(&own, "/fork"), fork)
        .await
        .code(403, "auth.scope_missing");
    act_as(&mut site, "boss");
    let given = id(&site.post("/v1/sessions", new("ann")).await.must(201));
    site.get(&path(&own, "")).await.must(200);
    act_as(&mut site, "ann");
    assert_eq!(
        site.get(&path(&given, "")).await.must(200)["principal"],
        "ann"
    );
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn l12_only_the_owner_sees_checkpoints_and_resumes() {
    let (mut site, _folder) = site().await;
    let (session, checkpoint) = lived(&mut site).await;
    let listed = path(&session, "/checkpoints");
    let resume = json!({ "from": checkpoint });
    act_as(&mut site, "bob");
    site.get(&listed).await.code(404, "session.not_found");
    let refused = site
        .post(&path(&session, "/resume"), resume.clone())
        .await
        .code(404, "session.not_found");
    assert!(!refused.to_string().contains("secret"));
    site.headers.clear();
    site.get(&listed).await.code(401, "auth.token_missing");
    act_as(&mut site, "ann");
    let own = site.get(&listed).await.must(200);
    assert_eq!(own["checkpoints"][0]["id"], checkpoint.as_str());
    let resumed = site
        .post(&path(&session, "/resume"), resume)
        .await
        .must(202);
    assert_eq!(resumed["session_id"], session.as_str());
    let told = site.get(&path(&session, "/transcript")).await.must(200);
    assert!(told.to_string().contains("secret"));
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn j19_another_users_journal_never_replays() {
    let (mut site, _folder) = site().await;
    let (session, _) = lived(&mut site).await;
    act_as(&mut site, "boss");
    let runner = enrolled(&site).await;
    act_as(&mut site, "bob");
    let from = json!({ "from": { "head": true } });
    site.post(&path(&session, "/fork"), from)
        .await
        .code(404, "session.not_found");
    let own = site.session().await;
    site.message(&own, "secret").await;
    act_as(&mut site, &runner.1);
    let claim = site.claim(&runner.0).await;
    assert_eq!(claim["session_id"], own.as_str(), "{claim}");
    site.call(&claim, "ready", json!({})).await.must(200);
    let same = json!({ "op": "begin", "name": "pay", "input_digest": "d" });
    let begun = site.call(&claim, "steps", same).await.must(200);
    assert_eq!(begun["state"], "execute");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s5_signals_are_of_one_session_one_name_and_one_principal() {
    let (mut site, _folder) = site().await;
    act_as(&mut site, "boss");
    let runner = enrolled(&site).await;
    act_as(&mut site, "ann");
    let session = site.session().await;
    site.message(&session, "go").await;
    act_as(&mut site, &runner.1);
    let claim = site.claim(&runner.0).await;
    site.call(&claim, "ready", json!({})).await.must(200);
    let park = json!({ "waiting_on": [{ "signal": "go" }], "compute": "released" });
    site.call(&claim, "park", park).await.must(200);

    act_as(&mut site, "bob");
    let own = site.session().await;
    let go = json!({ "name": "go" });
    site.submit(&own, "user.signal", go.clone()).await.must(202);
    site.submit(&session, "user.signal", go.clone())
        .await
        .code(404, "session.not_found");
    act_as(&mut site, "ann");
    let other = json!({ "name": "stop" });
    site.submit(&session, "user.signal", other).await.must(202);
    let shown = site.show(&session).await;
    assert_eq!(shown["run"]["state"], "waiting", "{shown}");
    site.submit(&session, "user.signal", go).await.must(202);
    let shown = site.show(&session).await;
    assert_eq!(shown["run"]["state"], "queued", "{shown}");
    site.close().await;
}
