//! A server in this process, and calls to it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use longhaul::config::{Config, StorageEngine};
use longhaul::{Runtime, api};
use longhaul_actors::env::{Door, ManualWorld};
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A running server. Every test has its own.
pub(super) struct Site {
    pub(super) runtime: Runtime,
    pub(super) addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<Result<(), api::ServeError>>,
    client: reqwest::Client,
    /// Sent with every call.
    pub(super) headers: Vec<(&'static str, String)>,
}

/// An answer.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) json: Value,
    pub(super) text: String,
}

impl Answer {
    /// The body of an answer that must have this status.
    #[track_caller]
    pub(super) fn must(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        self.json
    }

    /// A problem that must have this code, in its whole form.
    #[track_caller]
    pub(super) fn code(self, status: u16, code: &str) -> Value {
        assert_eq!(
            (self.status, self.json["code"].as_str()),
            (status, Some(code)),
            "{}",
            self.text
        );
        let kind = self.headers["content-type"].to_str().unwrap();
        assert_eq!(kind, "application/problem+json");
        assert_eq!(self.json["status"], status);
        assert!(self.json["title"].is_string() && self.json["detail"].is_string());
        let known = longhaul::Code::ALL
            .iter()
            .find(|c| c.text() == code)
            .unwrap();
        assert_eq!(self.json["retryable"], known.is_retryable());
        assert_eq!(
            self.headers.contains_key("retry-after"),
            known.is_retryable(),
            "{code}"
        );
        assert_eq!(self.headers.contains_key("www-authenticate"), status == 401);
        assert_eq!(
            self.json["request_id"],
            self.headers["x-request-id"].to_str().unwrap()
        );
        self.json
    }
}

pub(super) fn config() -> Config {
    let mut config = Config::default();
    config.storage.engine = StorageEngine::Memory;
    config.http.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    config.http.workers = 1;
    config.runner.enabled = false;
    config
}

impl Site {
    pub(super) async fn open() -> Self {
        Self::with(config()).await
    }

    pub(super) async fn with(config: Config) -> Self {
        Self::serve(Runtime::open(config).await.unwrap())
    }

    /// With clocks that move only when told.
    pub(super) async fn manual(config: Config) -> (Self, ManualWorld) {
        let world = ManualWorld::new(1_800_000_000_000);
        let door: Door = world.door();
        (
            Self::serve(Runtime::builder(config).door(door).open().await.unwrap()),
            world,
        )
    }

    pub(super) fn serve(runtime: Runtime) -> Self {
        let listener = api::bind(&runtime).unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            // A dropped sender means the same.
            let _ = stopped.await;
        };
        let served = tokio::spawn(api::serve(runtime.clone(), listener, shutdown));
        let client = reqwest::Client::new();
        Self {
            runtime,
            addr,
            stop: Some(stop),
            served,
            client,
            headers: Vec::new(),
        }
    }

    /// Stops serving and closes the runtime.
    pub(super) async fn close(mut self) {
        drop(self.stop.take());
        self.served.await.unwrap().unwrap();
        self.runtime.close().await;
    }

    /// Stops serving; resolves when the server has ended.
    pub(super) async fn stop(&mut self) {
        drop(self.stop.take());
        (&mut self.served).await.unwrap().unwrap();
    }

    /// Closes the runtime of a site that has stopped.
    pub(super) async fn close_runtime(self) {
        self.runtime.close().await;
    }

    pub(super) fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let url = format!("http://{}{path}", self.addr);
        let mut request = self.client.request(method.parse().unwrap(), url);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        request
    }

    pub(super) async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap();
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        assert!(
            headers["x-request-id"]
                .to_str()
                .unwrap()
                .starts_with("req_")
        );
        Answer {
            status,
            headers,
            json,
            text,
        }
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.send(self.request("GET", path)).await
    }

    pub(super) async fn delete(&self, path: &str) -> Answer {
        self.send(self.request("DELETE", path)).await
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> Answer {
        self.post_with(path, body, &[]).await
    }

    pub(super) async fn post_with(
        &self,
        path: &str,
        body: Value,
        headers: &[(&str, &str)],
    ) -> Answer {
        let mut request = self.request("POST", path).json(&body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request).await
    }

    /// A POST whose body is sent as it is.
    pub(super) async fn post_raw(&self, path: &str, body: impl Into<Vec<u8>>) -> Answer {
        let request = self
            .request("POST", path)
            .header("content-type", "application/json");
        self.send(request.body(body.into())).await
    }

    pub(super) async fn deployment(&self) -> String {
        id(&self.post("/v1/deployments", external()).await.must(201))
    }

    pub(super) async fn session(&self) -> String {
        let body = json!({ "agent_deployment": self.deployment().await });
        id(&self.post("/v1/sessions", body).await.must(201))
    }

    pub(super) async fn message(&self, session: &str, text: &str) -> Value {
        self.submit(session, "user.message", json!({ "text": text }))
            .await
            .must(202)
    }

    pub(super) async fn submit(&self, session: &str, kind: &str, content: Value) -> Answer {
        let path = format!("/v1/sessions/{session}/events");
        self.post(
            &path,
            json!({ "events": [{ "type": kind, "content": content }] }),
        )
        .await
    }

    pub(super) async fn runner(&self) -> String {
        id(&self.post("/v1/runners", runner()).await.must(201))
    }

    /// Polls until there is a claim.
    pub(super) async fn claim(&self, runner: &str) -> Value {
        let path = format!("/v1/runners/{runner}/claims?wait_ms=20000");
        let answer = self.post(&path, json!({})).await.must(200);
        assert_eq!(answer["clones"], json!([]));
        answer["claims"][0].clone()
    }

    /// One call under a claim.
    pub(super) async fn call(&self, claim: &Value, verb: &str, body: Value) -> Answer {
        let token = claim["claim_token"].as_str().unwrap();
        self.post(&format!("/v1/claims/{token}/{verb}"), body).await
    }

    /// A session with a run that is ready, and its claim.
    pub(super) async fn running(&self) -> (String, Value) {
        let session = self.session().await;
        self.message(&session, "go").await;
        let claim = self.claim(&self.runner().await).await;
        self.call(&claim, "ready", json!({})).await.must(200);
        (session, claim)
    }

    pub(super) async fn show(&self, session: &str) -> Value {
        self.get(&format!("/v1/sessions/{session}")).await.must(200)
    }

    pub(super) async fn last_seq(&self, session: &str) -> u64 {
        self.show(session).await["last_seq"].as_u64().unwrap()
    }

    pub(super) async fn follow(&self, session: &str, query: &str) -> Sse {
        let path = format!("/v1/sessions/{session}/events/stream{query}");
        Sse::of(self.request("GET", &path)).await
    }

    /// A connection of one's own, for what a client library would not do.
    pub(super) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    /// Bytes sent as they are; everything that comes back until the end, however that comes.
    pub(super) async fn raw(&self, request: &str) -> String {
        let mut socket = self.connect().await;
        // A server that has read enough to refuse closes with bytes unread: that is a reset here.
        let _ = socket.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }
}

pub(super) fn external() -> Value {
    json!({
        "name": "test",
        "release": { "instructions": "", "harness": { "kind": "external" } },
        "sandbox": { "provider": "none", "max_duration_seconds": 60 },
    })
}

pub(super) fn runner() -> Value {
    json!({ "name": "test", "host_id": "here", "targets": ["*"], "capacity": 8 })
}

#[track_caller]
pub(super) fn id(answer: &Value) -> String {
    answer["id"]
        .as_str()
        .unwrap_or_else(|| panic!("no id: {answer}"))
        .to_owned()
}

/// An id of the right form that nothing has.
pub(super) fn absent(prefix: &str) -> String {
    format!("{prefix}{}", "0".repeat(32))
}

/// An open event stream.
pub(super) struct Sse {
    response: reqwest::Response,
    buffer: String,
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SseEvent {
    pub(super) id: Option<u64>,
    pub(super) name: String,
    pub(super) data: Value,
}

impl Sse {
    pub(super) async fn of(request: reqwest::RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            response,
            buffer: String::new(),
        }
    }

    /// The next block: an event, or a comment (`None` inside); `None` = the stream has ended.
    pub(super) async fn block(&mut self) -> Option<Option<SseEvent>> {
        loop {
            if let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let event = parse(block);
                self.buffer = rest.to_owned();
                return Some(event);
            }
            let chunk = self.response.chunk().await.unwrap()?;
            self.buffer.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The next event.
    pub(super) async fn next(&mut self) -> Option<SseEvent> {
        loop {
            if let Some(event) = self.block().await? {
                return Some(event);
            }
        }
    }

    /// Everything until the server ends the stream.
    pub(super) async fn rest(&mut self) -> Vec<SseEvent> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            all.push(event);
        }
        all
    }
}

fn parse(block: &str) -> Option<SseEvent> {
    let mut fields: BTreeMap<&str, String> = BTreeMap::new();
    for line in block.lines() {
        let (name, value) = line.split_once(':').unwrap();
        let value = value.strip_prefix(' ').unwrap_or(value);
        let field = fields.entry(name).or_default();
        if !field.is_empty() {
            field.push('\n');
        }
        field.push_str(value);
    }
    assert!(!fields.contains_key("retry"), "{block}");
    let name = fields.get("event")?.clone();
    let id = fields.get("id").map(|id| id.parse().unwrap());
    Some(SseEvent {
        id,
        name,
        data: serde_json::from_str(&fields["data"]).unwrap(),
    })
}
