//! What is refused for its form, and how.

use serde_json::{Value, json};

use super::kit::{Site, absent, config, external, id, runner};

#[tokio::test(flavor = "multi_thread")]
async fn the_frameworks_own_errors_have_the_one_form() {
    let site = Site::open().await;
    site.get("/nothing")
        .await
        .code(404, "request.route_unknown");
    site.get("/v1/sessions/")
        .await
        .code(404, "request.route_unknown");
    for later in ["nothing", "budgets"] {
        let path = format!("/v1/sessions/{}/{later}", absent("sess_"));
        site.post(&path, json!({}))
            .await
            .code(404, "request.route_unknown");
    }
    let path = format!("/v1/sessions/{}/unknown", absent("sess_"));
    site.get(&path).await.code(404, "request.route_unknown");
    for later in ["step", "nothing"] {
        let path = format!("/v1/claims/{}/{later}", absent("clm_"));
        site.post(&path, json!({}))
            .await
            .code(404, "request.route_unknown");
    }
    site.post("/api/v1/runtimes/reboot", json!({}))
        .await
        .code(404, "request.route_unknown");

    let put = site
        .send(site.request("PUT", "/v1/sessions").json(&json!({})))
        .await;
    assert_eq!(put.headers["allow"], "POST, GET");
    put.code(405, "request.method_not_allowed");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_json_or_nothing() {
    let site = Site::open().await;
    let session = site.session().await;
    let path = format!("/v1/sessions/{session}/events");
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonp",
    ] {
        let request = site
            .request("POST", &path)
            .header("content-type", kind)
            .body("{}");
        site.send(request).await.code(415, "request.content_type");
    }
    site.send(site.request("POST", &path))
        .await
        .code(415, "request.content_type");

    let deep = format!("{}{}", "[".repeat(129), "]".repeat(129));
    let deep = format!(
        r#"{{"events":[{{"type":"user.message","content":{{"text":"x","blocks":{deep}}}}}]}}"#
    );
    for bad in [
        "",
        "{",
        "{not json",
        "[1,]",
        "{} {}",
        r#"{"events":[],"events":[]}"#,
        r#"{"events":[{"type":"user.message","content":{"text":"\ud800"}}]}"#,
        &deep,
    ] {
        site.post_raw(&path, bad)
            .await
            .code(400, "request.body_invalid");
    }
    site.post_raw(&path, b"\xff".to_vec())
        .await
        .code(400, "request.body_invalid");
    for unknown in [r#"{"event":[]}"#, r#"{"events":[],"x":1}"#] {
        site.post_raw(&path, unknown)
            .await
            .code(422, "request.field_unknown");
    }
    for invalid in [
        "[]",
        "7",
        r#"{"events":{}}"#,
        r#"{}"#,
        r#"{"events":[{"type":7}]}"#,
    ] {
        site.post_raw(&path, invalid)
            .await
            .code(422, "request.field_invalid");
    }
    for route in ["complete", "cancel"] {
        let path = format!("/v1/sessions/{session}/{route}");
        site.post(&path, json!({ "x": 1 }))
            .await
            .code(422, "request.field_unknown");
    }
    assert_eq!(site.last_seq(&session).await, 1, "nothing was written");
    let cancel = site.request("POST", &format!("/v1/sessions/{session}/cancel"));
    site.send(cancel.header("content-type", "application/json; charset=utf-8"))
        .await
        .must(200);
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_takes_no_body() {
    let site = Site::open().await;
    let session = format!("/v1/sessions/{}", site.session().await);
    let runner = site.post("/v1/runners", runner()).await.must(201);
    let runner = format!("/v1/runners/{}", id(&runner));
    for (path, status) in [(session, 200), (runner, 204)] {
        for body in ["{}", r#"{"unknown":1}"#, "x"] {
            let request = site.request("DELETE", &path).body(body);
            site.send(request).await.code(400, "request.body_invalid");
        }
        site.delete(&path).await.must(status);
    }
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_other_string_comes_back_byte_exact() {
    let site = Site::open().await;
    let session = site.session().await;
    for text in [
        "\u{0}",
        "a\r\nb\u{2028}",
        "\u{fffe}",
        "\u{1f600}",
        "\\u0000",
        "\"\\",
    ] {
        let seq = site.message(&session, text).await["events"][0]["seq"]
            .as_u64()
            .unwrap();
        let path = format!("/v1/sessions/{session}/events?after={}&limit=1", seq - 1);
        let page = site.get(&path).await;
        assert_eq!(page.must(200)["events"][0]["content"]["text"], text);
    }
    // Bytes between tokens stay too, and cannot break the stream's frames.
    let path = format!("/v1/sessions/{session}/events");
    let body = "{\"events\":[{\"type\":\"user.message\",\"content\":{\"text\":\r\n\"x\"}}]}";
    let seq = site.post_raw(&path, body).await.must(202)["events"][0]["seq"]
        .as_u64()
        .unwrap();
    let mut events = site.follow(&session, &format!("?after={}", seq - 1)).await;
    assert_eq!(
        events.next().await.unwrap().data["content"],
        json!({ "text": "x" })
    );
    drop(events);
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_are_bounded() {
    let mut small = config();
    small.http.body_bytes_max = 3 << 20;
    let site = Site::with(small).await;
    let session = site.session().await;
    let path = format!("/v1/sessions/{session}/events");
    let event = |bytes: usize| {
        let content = json!({ "text": "x".repeat(bytes - r#"{"text":""}"#.len()) });
        json!({ "type": "user.message", "content": content })
    };
    site.post(&path, json!({ "events": [event(1 << 20)] }))
        .await
        .must(202);
    let problem = site
        .post(&path, json!({ "events": [event((1 << 20) + 1)] }))
        .await;
    assert_eq!(problem.code(413, "event.too_large")["bytes_max"], 1 << 20);
    let many: Vec<Value> = (0..101).map(|_| event(20)).collect();
    site.post(&path, json!({ "events": many }))
        .await
        .code(413, "event.batch_too_large");
    let huge = site
        .post(&path, json!({ "events": vec![event(1 << 20); 4] }))
        .await;
    assert_eq!(
        huge.code(413, "request.body_too_large")["bytes_max"],
        3 << 20
    );
    // Without a length in the head, too.
    let chunks =
        futures_util::stream::iter((0..4).map(|_| Ok::<_, std::io::Error>(vec![b' '; 1 << 20])));
    let request = site
        .request("POST", &path)
        .header("content-type", "application/json");
    let chunked = site
        .send(request.body(reqwest::Body::wrap_stream(chunks)))
        .await;
    chunked.code(413, "request.body_too_large");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_checked_before_anything_is_looked_up() {
    let site = Site::open().await;
    let hex = "0".repeat(32);
    let bad = [
        "x",
        "%2F",
        "%20",
        "sess_",
        "run_%2F",
        &hex,
        &format!("sess_{}", "A".repeat(32)),
    ];
    for bad in bad {
        site.get(&format!("/v1/sessions/{bad}"))
            .await
            .code(400, "request.id_invalid");
        site.get(&format!("/v1/deployments/{bad}"))
            .await
            .code(400, "request.id_invalid");
        site.delete(&format!("/v1/runners/{bad}"))
            .await
            .code(400, "request.id_invalid");
        let body = json!({ "agent_deployment": bad });
        site.post("/v1/sessions", body)
            .await
            .code(400, "request.id_invalid");
        let path = format!("/v1/claims/{bad}/heartbeat");
        site.post(&path, json!({}))
            .await
            .code(400, "request.id_invalid");
    }
    // What a client library would already have resolved.
    for bad in ["..", "%2e%2e", "."] {
        let get = format!(
            "GET /v1/sessions/{bad} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        );
        assert!(site.raw(&get).await.contains("request.id_invalid"), "{bad}");
    }
    let dep = site.deployment().await;
    for bad in ["0", "-1", "x", "99999999999"] {
        let path = format!("/v1/deployments/{dep}/revisions/{bad}");
        site.get(&path).await.code(400, "request.id_invalid");
    }
    site.get(&format!("/v1/sessions/{}", absent("sess_")))
        .await
        .code(404, "session.not_found");
    site.get(&format!("/v1/deployments/{}", absent("dep_")))
        .await
        .code(404, "deployment.not_found");
    site.get(&format!("/v1/deployments/{dep}/revisions/2"))
        .await
        .code(404, "deployment.revision_not_found");
    site.delete(&format!("/v1/runners/{}", absent("rnr_")))
        .await
        .code(404, "runner.not_found");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_and_headers_mean_something() {
    let site = Site::open().await;
    let session = site.session().await;
    let events = format!("/v1/sessions/{session}/events");
    for query in [
        "?limit=0",
        "?limit=1001",
        "?limit=x",
        "?limit=1&limit=2",
        "?x=1",
        "?types=",
        "?types=no.such",
        "?order=up",
        "?before=3",
        "?order=desc&after=3",
    ] {
        site.get(&format!("{events}{query}"))
            .await
            .code(400, "request.query_invalid");
    }
    for query in [
        "?after=x",
        "?after=-1",
        "?after=",
        "?order=desc&before=0",
        "?order=desc&before=x",
    ] {
        site.get(&format!("{events}{query}"))
            .await
            .code(400, "request.cursor_invalid");
    }
    site.get("/v1/sessions?page=x")
        .await
        .code(400, "request.cursor_invalid");
    site.get("/v1/sessions?status=busy")
        .await
        .code(400, "request.query_invalid");
    site.get(&format!("/v1/sessions/{session}?x=1"))
        .await
        .code(400, "request.query_invalid");

    let body = json!({ "events": [{ "type": "user.message", "content": { "text": "x" } }] });
    for bad in ["x", "\"1\"", "-1", "", "1 2"] {
        let refused = site
            .post_with(&events, body.clone(), &[("if-match", bad)])
            .await;
        refused.code(400, "request.header_invalid");
    }
    let long = "k".repeat(256);
    for bad in ["", "a b", "\u{e9}", long.as_str()] {
        let refused = site
            .post_with(&events, body.clone(), &[("idempotency-key", bad)])
            .await;
        refused.code(400, "request.header_invalid");
    }
    let twice = [("idempotency-key", "a"), ("idempotency-key", "b")];
    site.post_with(&events, body.clone(), &twice)
        .await
        .code(400, "request.header_invalid");
    let conflict = site
        .post_with(&events, body.clone(), &[("if-match", "7")])
        .await;
    conflict.code(409, "session.sequence_conflict");
    site.post_with(&events, body, &[("if-match", "1")])
        .await
        .must(202);
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deployments_describe_what_can_run() {
    let site = Site::open().await;
    let with = |path: &[&str], value: Value| {
        let mut body = external();
        let last = path.iter().fold(&mut body, |at, key| &mut at[*key]);
        *last = value;
        body
    };
    for body in [
        with(&["name"], json!("")),
        with(&["release", "harness"], json!({})),
        with(&["release", "harness"], json!({ "kind": "magic" })),
        with(
            &["release", "harness"],
            json!({ "kind": "script", "steps": [] }),
        ),
        with(
            &["release", "harness"],
            json!({ "kind": "script", "steps": [{ "dance": 1 }] }),
        ),
        with(
            &["release", "harness"],
            json!({ "kind": "process", "command": [] }),
        ),
        with(&["sandbox", "provider"], json!("vm")),
        with(&["sandbox", "max_duration_seconds"], json!(0)),
        with(&["release"], Value::Null),
    ] {
        site.post("/v1/deployments", body)
            .await
            .code(422, "deployment.invalid");
    }
    let unknown = with(
        &["release", "harness"],
        json!({ "kind": "external", "steps": [] }),
    );
    site.post("/v1/deployments", unknown)
        .await
        .code(422, "request.field_unknown");
    let unknown = with(&["model"], json!("x"));
    site.post("/v1/deployments", unknown)
        .await
        .code(422, "request.field_unknown");

    let made = site.post("/v1/deployments", external()).await.must(201);
    assert_eq!(made["revision"], 1);
    assert!(
        made["harness_revision"]
            .as_str()
            .unwrap()
            .starts_with("hrv_")
    );
    assert!(
        made["sandbox_profile_revision"]
            .as_str()
            .unwrap()
            .starts_with("sbx_")
    );
    let dep = made["id"].as_str().unwrap();
    let mut next = external();
    next.as_object_mut().unwrap().remove("name");
    let path = format!("/v1/deployments/{dep}/revisions");
    assert_eq!(
        site.post(&path, next.clone()).await.must(201)["revision"],
        2
    );
    let shown = site.get(&format!("{path}/2")).await.must(200);
    assert_eq!(shown["release"]["harness"]["kind"], "external");
    assert_eq!(
        shown["harness_revision"], made["harness_revision"],
        "same content, same id"
    );
    let missing = format!("/v1/deployments/{}/revisions", absent("dep_"));
    site.post(&missing, next)
        .await
        .code(404, "deployment.not_found");

    let body = json!({ "agent_deployment": dep, "agent_deployment_revision_number": 3 });
    site.post("/v1/sessions", body)
        .await
        .code(404, "deployment.revision_not_found");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_come_is_not_waited_for() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (site, world) = Site::manual(config()).await;
    let mut socket = site.connect().await;
    let head = "POST /v1/deployments HTTP/1.1\r\nhost: localhost\r\n\
                content-type: application/json\r\ncontent-length: 10\r\n\r\n{";
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let mut every = tokio::time::interval(std::time::Duration::from_millis(20));
    // The clock is moved until the server, which first has to start waiting, has answered.
    loop {
        let mut some = [0; 4096];
        tokio::select! {
            read = socket.read(&mut some) => {
                answer.extend_from_slice(&some[..read.unwrap()]);
                break;
            }
            _ = every.tick() => world.advance_ms(30_000),
        }
    }
    let answer = String::from_utf8(answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 408") && answer.contains("request.timeout"),
        "{answer}"
    );
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_http_gets_a_bare_refusal() {
    let site = Site::open().await;
    let many = "x: y\r\n".repeat(200);
    for bad in [
        "GARBAGE\r\n\r\n".to_owned(),
        "GET /healthz HTTP/1.1\r\nno colon\r\n\r\n".to_owned(),
        format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{many}\r\n"),
        format!(
            "GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n",
            "x".repeat(1 << 20)
        ),
    ] {
        let answer = site.raw(&bad).await;
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    site.get("/healthz").await.must(200);
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_array_is_no_body_anywhere_and_no_reader_is_named() {
    let site = Site::open().await;
    let session = site.session().await;
    let of = |rest: &str| format!("/v1/sessions/{session}/{rest}");
    let mut paths: Vec<String> = ["fork", "events", "resume", "budget", "complete", "cancel"]
        .map(of)
        .into();
    paths.extend(["/v1/sessions", "/v1/deployments", "/v1/runners"].map(str::to_owned));
    paths.push("/v1/workspaces".to_owned());
    let verbs = ["checkpoint", "pause", "resume", "close", "exec", "checkout"];
    paths.extend(verbs.map(|verb| format!("/api/v1/runtimes/{verb}")));
    for path in paths {
        for body in [json!([]), json!([session, null, {}]), json!("x")] {
            let answer = site.post(&path, body.clone()).await;
            assert_eq!(answer.status, 422, "{path} {body}: {}", answer.text);
            assert!(!answer.text.contains("struct"), "{path}: {}", answer.text);
        }
    }
    let fork = site.post(&of("fork"), json!({ "from": [true] })).await;
    assert!(fork.text.contains("expected an object"), "{}", fork.text);
    fork.code(422, "request.field_invalid");
    site.close().await;
}
