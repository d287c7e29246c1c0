//! Tokens: who may do what.

use longhaul::api::ROUTES;
use longhaul::auth::{CallerKind, Scope, TokenHash, TokenLine};
use longhaul_actors::session::payload::WorkspaceRef;
use serde_json::json;
use tempfile::TempDir;

use super::kit::{Site, absent, config, id, runner};

const OTHER: &str = "ws_00000000000000000000000000000001";

pub(super) fn line(
    token: &str,
    workspace: &str,
    scopes: &[Scope],
    expires_at: Option<&str>,
) -> String {
    let line = TokenLine {
        hash: TokenHash::of(token).to_string(),
        workspace: WorkspaceRef::parse(workspace).unwrap(),
        kind: CallerKind::Principal,
        id: token.to_owned(),
        scopes: scopes.to_vec(),
        expires_at: expires_at.map(str::to_owned),
    };
    serde_json::to_string(&line).unwrap() + "\n"
}

async fn site() -> (Site, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let mut lines = line("all", "default", &Scope::ALL, None);
    for scope in Scope::ALL {
        lines += &line(scope.text(), "default", &[scope], None);
    }
    lines += &line("nothing", "default", &[], None);
    lines += &line("old", "default", &Scope::ALL, Some("2020-01-01T00:00:00Z"));
    lines += &line("foreign", OTHER, &Scope::ALL, None);
    lines += &line("foreign run", OTHER, &[Scope::Run], None);
    std::fs::write(&path, lines).unwrap();
    let mut config = config();
    config.auth.tokens_file = Some(path);
    (Site::with(config).await, folder)
}

pub(super) fn act_as(site: &mut Site, token: &str) {
    site.headers = vec![("authorization", format!("Bearer {token}"))];
}

fn fill(path: &str, session: &str) -> String {
    let prefix = if path.contains("/sessions/") {
        session.to_owned()
    } else if path.contains("/deployments/") {
        absent("dep_")
    } else {
        absent("rnr_")
    };
    let token = format!("clm_{}", "0".repeat(64));
    path.replace("{id}", &prefix)
        .replace("{token}", &token)
        .replace("{revision}", "1")
}

fn body(path: &str) -> serde_json::Value {
    match path {
        p if p.ends_with("}/events") && p.contains("sessions") => {
            json!({ "events": [{ "type": "user.message", "content": { "text": "x" } }] })
        }
        p if p.ends_with("}/events") => {
            json!({ "events": [{ "type": "agent.message", "content": { "text": "x" } }] })
        }
        p if p.ends_with("/fork") => json!({ "from": { "head": true } }),
        p if p.ends_with("/pin") => json!({ "pinned": true }),
        p if p.ends_with("/settle") => json!({ "outcome": "succeeded" }),
        p if p.ends_with("/park") => {
            json!({ "waiting_on": [{ "signal": "x" }], "compute": "released" })
        }
        _ => json!({}),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_needs_its_scope() {
    let (mut site, _folder) = site().await;
    let missing = absent("sess_");
    for route in ROUTES {
        let path = fill(route.path, &missing);
        let ask = |site: &Site| {
            let request = site.request(route.method, &path);
            if route.method == "POST" {
                request.json(&body(route.path))
            } else {
                request
            }
        };
        site.headers.clear();
        let Some(scope) = route.scope else {
            site.send(ask(&site)).await.must(200);
            continue;
        };
        site.send(ask(&site)).await.code(401, "auth.token_missing");
        for bad in ["wrong", "old", ""] {
            act_as(&mut site, bad);
            site.send(ask(&site)).await.code(401, "auth.token_invalid");
        }
        site.headers = vec![("authorization", "Basic all".to_owned())];
        site.send(ask(&site)).await.code(401, "auth.token_invalid");
        for other in Scope::ALL
            .iter()
            .filter(|s| **s != scope)
            .map(|s| s.text())
            .chain(["nothing"])
        {
            act_as(&mut site, other);
            let refused = site.send(ask(&site)).await.code(403, "auth.scope_missing");
            assert_eq!(refused["scope"], scope.text());
        }
        act_as(&mut site, scope.text());
        let answer = site.send(ask(&site)).await;
        assert!(
            !matches!(answer.status, 401 | 403),
            "{route:?}: {}",
            answer.text
        );
    }
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn absent_and_foreign_look_alike() {
    let (mut site, _folder) = site().await;
    act_as(&mut site, "all");
    let session = site.session().await;
    site.message(&session, "secret").await;
    let (dep, rnr) = (site.deployment().await, site.runner().await);
    act_as(&mut site, "foreign");
    for route in ROUTES.iter().filter(|r| r.path.contains("{id}")) {
        let (real, none) = match route.path {
            p if p.contains("/sessions/") => (session.clone(), absent("sess_")),
            p if p.contains("/deployments/") => (dep.clone(), absent("dep_")),
            _ => (rnr.clone(), absent("rnr_")),
        };
        let mut answers = Vec::new();
        for id in [&real, &none] {
            let mut path = route.path.replace("{id}", id).replace("{revision}", "1");
            path = path.replace("{checkpoint}", &absent("ckpt_"));
            if path.ends_with("/diff") {
                path.push_str(&format!("?against={session}"));
            }
            let mut request = site.request(route.method, &path);
            if route.method == "POST" {
                let revision = json!({ "release": { "harness": { "kind": "external" } } });
                let described = route.path.ends_with("revisions");
                request = request.json(&if described {
                    revision
                } else {
                    body(route.path)
                });
            }
            let mut answer = site.send(request).await;
            assert_eq!(answer.status, 404, "{route:?}: {}", answer.text);
            answer.json["request_id"] = json!(null);
            answers.push(answer.json.to_string().replace(id, "ID"));
        }
        assert_eq!(answers[0], answers[1], "{route:?}");
    }
    let new = json!({ "agent_deployment": dep });
    site.post("/v1/sessions", new)
        .await
        .code(404, "deployment.not_found");
    assert_eq!(
        site.get("/v1/sessions").await.must(200)["sessions"],
        json!([])
    );
    act_as(&mut site, "all");
    assert_eq!(
        site.show(&session).await["untaken_inputs"],
        1,
        "nothing was changed"
    );
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_has_a_token_of_its_own() {
    let (mut site, _folder) = site().await;
    act_as(&mut site, "all");
    let key = [("idempotency-key", "once")];
    let enrolled = site
        .post_with("/v1/runners", runner(), &key)
        .await
        .must(201);
    let again = site
        .post_with("/v1/runners", runner(), &key)
        .await
        .must(201);
    assert!(
        again.get("token").is_none() && again["id"] == enrolled["id"],
        "shown once"
    );
    assert_eq!(enrolled["workspaces"], "default");
    let (own, other) = (id(&enrolled), site.runner().await);
    let session = site.session().await;
    site.message(&session, "x").await;
    let mut everywhere = runner();
    everywhere["workspaces"] = json!("*");
    assert_eq!(
        site.post("/v1/runners", everywhere.clone()).await.must(201)["workspaces"],
        "*"
    );
    act_as(&mut site, "run");
    site.post("/v1/runners", everywhere)
        .await
        .code(403, "auth.scope_missing");

    let token = enrolled["token"].as_str().unwrap().to_owned();
    act_as(&mut site, &token);
    let claim = site.claim(&own).await;
    site.call(&claim, "ready", json!({})).await.must(200);
    site.post(&format!("/v1/runners/{other}/claims"), json!({}))
        .await
        .code(404, "runner.not_found");
    site.get(&format!("/v1/sessions/{session}")).await.must(200);
    site.submit(&session, "user.message", json!({ "text": "x" }))
        .await
        .code(403, "auth.scope_missing");
    act_as(&mut site, &format!("{}0", &token[..token.len() - 1]));
    let last = site.get("/v1/sessions").await;
    assert!(last.status == 401 || token.ends_with('0'));
    act_as(&mut site, &token);
    site.delete(&format!("/v1/runners/{own}")).await.must(204);
    site.get("/v1/sessions")
        .await
        .code(401, "auth.token_invalid");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_workspace_is_the_tokens() {
    let (mut site, folder) = site().await;
    act_as(&mut site, "all");
    site.headers.push(("longhaul-workspace", OTHER.to_owned()));
    site.get("/v1/sessions")
        .await
        .code(404, "workspace.not_found");
    act_as(&mut site, "read");
    let own = site.get("/v1/workspaces").await.must(200);
    assert_eq!(own["workspaces"].as_array().unwrap().len(), 1);
    // Pages of other origins may call with a token: it is not sent by itself.
    let request = site
        .request("GET", "/v1/sessions")
        .header("origin", "https://example.com");
    site.send(request).await.must(200);
    // A removed line works no more, at once.
    let path = folder.path().join("tokens");
    std::fs::write(&path, line("all", "default", &Scope::ALL, None)).unwrap();
    site.get("/v1/sessions")
        .await
        .code(401, "auth.token_invalid");
    site.close().await;
}

/// A runner with its token.
pub(super) async fn enrolled(site: &Site) -> (String, String) {
    let enrolled = site.post("/v1/runners", runner()).await.must(201);
    (
        id(&enrolled),
        enrolled["token"].as_str().unwrap().to_owned(),
    )
}

/// A session whose disk is with this runner alone, and the checkpoint of it.
async fn host_local(site: &mut Site, own: &(String, String)) -> (String, serde_json::Value) {
    let session = site.session().await;
    site.message(&session, "go").await;
    act_as(site, &own.1);
    let claim = site.claim(&own.0).await;
    site.call(&claim, "ready", json!({})).await.must(200);
    let snapshot =
        json!({ "provider": "ext", "id": "bytes", "retention": "host_local", "bytes": 1 });
    let taken = json!({ "snapshot": snapshot, "resume": { "kind": "rebuild_from_log" } });
    let made = site.call(&claim, "checkpoint", taken).await.must(201);
    let settle = json!({ "outcome": "succeeded" });
    site.call(&claim, "settle", settle).await.must(200);
    act_as(site, "all");
    (session, made["checkpoint_id"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_answered_by_the_runner_that_was_asked_for_it() {
    let (mut site, _folder) = site().await;
    act_as(&mut site, "all");
    let (own, other) = (enrolled(&site).await, enrolled(&site).await);
    let (session, checkpoint) = host_local(&mut site, &own).await;
    let fork = site
        .request("POST", &format!("/v1/sessions/{session}/fork"))
        .json(&json!({ "from": { "checkpoint_id": checkpoint } }));
    let answers = [
        ("adopt", json!({ "sandbox_ref": "theirs" })),
        ("fail", json!({ "reason": "theirs" })),
    ];
    let answered = async {
        act_as(&mut site, &own.1);
        let polled = format!("/v1/runners/{}/claims?wait_ms=20000", own.0);
        let clone = site.post(&polled, json!({})).await.must(200)["clones"][0].clone();
        let path = |token: &serde_json::Value, verb: &str| {
            format!("/v1/clones/{}/{verb}", token.as_str().unwrap())
        };
        let token = &clone["clone_token"];
        for (bearer, status, code) in [
            (&*other.1, 404, "clone.not_found"),
            ("foreign run", 404, "clone.not_found"),
            ("read", 403, "auth.scope_missing"),
            ("wrong", 401, "auth.token_invalid"),
        ] {
            act_as(&mut site, bearer);
            for (verb, body) in &answers {
                let refused = site.post(&path(token, verb), body.clone()).await;
                refused.code(status, code);
            }
        }
        act_as(&mut site, &own.1);
        let child = clone["child_session_id"].as_str().unwrap();
        let unseen = site.get(&format!("/v1/sessions/{child}")).await;
        unseen.code(404, "session.not_found");
        let adopt = json!({ "sandbox_ref": "mine" });
        site.post(&path(token, "adopt"), adopt).await.must(200);
        child.to_owned()
    };
    let (forked, child) = tokio::join!(fork.send(), answered);
    let forked = forked.unwrap();
    assert_eq!(forked.status(), 201);
    let forked: serde_json::Value = forked.json().await.unwrap();
    assert_eq!(id(&forked), child);
    // Its first run is for the one copy that was adopted.
    act_as(&mut site, "all");
    site.message(&child, "go").await;
    act_as(&mut site, &own.1);
    let claim = site.claim(&own.0).await;
    assert_eq!(claim["resume"]["sandbox_ref"], "mine");
    site.close().await;
}
