//! A server without tokens: this machine only, and no web page.

use serde_json::json;

use super::kit::{Site, absent, config, id};

#[tokio::test(flavor = "multi_thread")]
async fn only_loopback_names_and_origins_are_served() {
    let site = Site::open().await;
    for origin in [
        "https://example.com",
        "null",
        "http://127.0.0.1.example.com",
        "file://",
    ] {
        let request = site.request("GET", "/v1/sessions").header("origin", origin);
        site.send(request).await.code(403, "request.origin_refused");
    }
    for origin in [
        "http://localhost:3000",
        "http://127.0.0.1",
        "https://[::1]:1",
    ] {
        let request = site.request("GET", "/v1/sessions").header("origin", origin);
        site.send(request).await.must(200);
    }
    for host in ["example.com", "10.0.0.1", "localhost.example.com"] {
        let request = site.request("GET", "/readyz").header("host", host);
        site.send(request).await.code(403, "request.origin_refused");
    }
    let absolute =
        "GET http://example.com/healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert!(site.raw(absolute).await.contains("request.origin_refused"));
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_addresses_refuse_the_start() {
    let mut public = config();
    public.http.listen = "0.0.0.0:0".parse().unwrap();
    let refused = longhaul::Runtime::open(public).await.err().unwrap();
    assert!(refused.to_string().contains("http.listen"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_workspace_is_a_header() {
    let mut site = Site::open().await;
    let in_default = site.session().await;
    let body = json!({ "name": "other" });
    let workspace = id(&site.post("/v1/workspaces", body).await.must(201));
    site.headers = vec![("longhaul-workspace", workspace.clone())];
    assert_eq!(
        site.get("/v1/sessions").await.must(200)["sessions"],
        json!([])
    );
    let session = site.session().await;
    assert_eq!(site.show(&session).await["workspace"], workspace);
    let foreign = site.get(&format!("/v1/sessions/{in_default}")).await;
    let missing = site.get(&format!("/v1/sessions/{}", absent("sess_"))).await;
    let (mut foreign, mut missing) = (
        foreign.code(404, "session.not_found"),
        missing.code(404, "session.not_found"),
    );
    for problem in [&mut foreign, &mut missing] {
        problem["request_id"] = json!(null);
    }
    let shown = missing.to_string().replace(&absent("sess_"), &in_default);
    assert_eq!(foreign.to_string(), shown, "foreign and absent look alike");

    // The second would be the stored form of `default`, which is no name of it.
    for unknown in [absent("ws_").replace('0', "1"), absent("ws_")] {
        site.headers = vec![("longhaul-workspace", unknown)];
        site.get("/v1/sessions")
            .await
            .code(404, "workspace.not_found");
    }
    site.headers = vec![("longhaul-workspace", "default".to_owned())];
    site.get("/v1/sessions").await.must(200);
    site.headers = vec![("longhaul-workspace", "other".to_owned())];
    site.get("/v1/sessions")
        .await
        .code(400, "request.id_invalid");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_of_an_open_server_serves_every_workspace() {
    let mut site = Site::open().await;
    let runner = site
        .post("/v1/runners", super::kit::runner())
        .await
        .must(201);
    assert_eq!(runner["workspaces"], "*");
    assert!(runner.get("token").is_none(), "no tokens, no token");
    let workspace = id(&site
        .post("/v1/workspaces", json!({ "name": "w" }))
        .await
        .must(201));
    site.headers = vec![("longhaul-workspace", workspace.clone())];
    let session = site.session().await;
    site.message(&session, "hi").await;
    site.headers.clear();
    let claim = site.claim(&id(&runner)).await;
    assert_eq!(
        (&claim["session_id"], &claim["workspace"]),
        (&json!(session), &json!(workspace))
    );
    assert_eq!(claim["deployment"]["revision"], 1);
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_answer() {
    let site = Site::open().await;
    site.get("/healthz").await.must(200);
    site.get("/readyz").await.must(200);
    let document = site.get("/openapi.json").await.must(200);
    assert!(document["paths"]["/v1/sessions/{id}/events"]["post"].is_object());
    let session = site.session().await;
    site.get(&format!("/v1/sessions/{session}x"))
        .await
        .code(400, "request.id_invalid");
    let metrics = site.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    for line in [
        "# TYPE longhaul_http_responses_total counter",
        "longhaul_http_problems_total{code=\"request.id_invalid\"} 1",
        "longhaul_appends_total",
        "longhaul_oldest_pending_seconds",
    ] {
        assert!(
            metrics.text.contains(line),
            "{line} is not in\n{}",
            metrics.text
        );
    }
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_of_the_table_is_served() {
    let site = Site::open().await;
    for route in longhaul::api::ROUTES {
        let path = route
            .path
            .replace("{id}", "x")
            .replace("{token}", "x")
            .replace("{revision}", "1");
        let mut request = site.request(route.method, &path);
        if route.method == "POST" {
            request = request.json(&json!({}));
        }
        let answer = site.send(request).await;
        let code = answer.json["code"].as_str().unwrap_or_default();
        assert!(
            !code.starts_with("request.route") && !code.starts_with("request.method"),
            "{route:?}"
        );
    }
    site.close().await;
}
