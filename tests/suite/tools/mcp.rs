//! MCP servers that behave, and servers that do everything wrong.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use longhaul::config::McpConfig;
use longhaul::runner::sandbox::none::NoneProvider;
use longhaul::runner::sandbox::{Sandbox, SandboxProvider, SandboxRequest};
use longhaul::tool::mcp::McpServers;
use longhaul::tool::mcp::file::ServerSpec;
use longhaul::tool::{Effects, Tool, ToolError, ToolInput, ToolOutput};
use longhaul_actors::env::Door;
use serde_json::{Value, json};

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mcp_server.py");

fn spec(args: &[&str]) -> ServerSpec {
    let args = [&[SERVER], args].concat();
    serde_json::from_value(json!({"name": "srv", "command": "python3", "args": args})).unwrap()
}

fn servers(spec: ServerSpec, config: McpConfig) -> McpServers {
    McpServers::of(vec![spec], &config, &Door::system())
}

async fn tools(servers: &McpServers) -> Vec<Arc<dyn Tool>> {
    servers.tools(&["srv".to_owned()]).await.unwrap()
}

async fn no_sandbox() -> Box<dyn Sandbox> {
    let request = SandboxRequest {
        session_id: String::new(),
        run_id: String::new(),
        workspace: None,
        attempt: 1,
        profile: Value::Null,
        resume: Value::Null,
    };
    NoneProvider.create(request).await.unwrap()
}

struct Bench {
    servers: McpServers,
    tools: Vec<Arc<dyn Tool>>,
    sandbox: Box<dyn Sandbox>,
}

impl Bench {
    async fn new() -> Self {
        Self::of(servers(spec(&[]), McpConfig::default())).await
    }

    async fn of(servers: McpServers) -> Self {
        Self {
            tools: tools(&servers).await,
            sandbox: no_sandbox().await,
            servers,
        }
    }

    async fn call(&self, tool: &str, input: Value) -> Result<ToolOutput, ToolError> {
        self.call_within(tool, input, 60_000).await
    }

    async fn call_within(
        &self,
        tool: &str,
        input: Value,
        ms: u64,
    ) -> Result<ToolOutput, ToolError> {
        let name = format!("srv__{tool}");
        let tool = self.tools.iter().find(|t| t.spec().name == name).unwrap();
        let call = ToolInput {
            call_id: "evt_1",
            input: &input,
            sandbox: self.sandbox.as_ref(),
            time_limit: Duration::from_millis(ms),
        };
        tool.call(call).await
    }

    async fn says(&self, tool: &str) -> Value {
        let done = self.call(tool, json!({"text": "hello"})).await.unwrap();
        assert!(!done.is_error, "{tool}: {done:?}");
        done.output
    }
}

#[tokio::test]
async fn tools_are_listed_and_called() {
    let bench = Bench::new().await;
    let names: Vec<&str> = bench.tools.iter().map(|t| t.spec().name.as_str()).collect();
    assert!(
        names.contains(&"srv__echo") && names.contains(&"srv__odd_name"),
        "{names:?}"
    );
    assert_eq!(
        names.len(),
        15,
        "the one whose name is too long is left out: {names:?}"
    );
    for tool in &bench.tools {
        assert_eq!(tool.effects(), Effects::External);
        assert_eq!(tool.is_idempotent(), tool.spec().name == "srv__look");
    }
    let schema = &bench.tools[0].spec().input_schema;
    assert_eq!(schema["properties"]["text"]["type"], "string");
    assert_eq!(bench.says("echo").await, "hello");
    assert_eq!(bench.says("json").await, json!({"sum": 3}));
    assert_eq!(
        bench.says("image").await,
        "[image (image/png, about 300 bytes) is not shown]"
    );
    assert_eq!(bench.says("call_id").await, "evt_1");
    let refused = bench.call("refuse", json!({})).await.unwrap();
    assert!(refused.is_error);
    assert_eq!(refused.output, "the text is too green (code -32602)");
    let refused = bench.call("echo", json!(3)).await.unwrap();
    assert!(refused.is_error);
    bench.servers.close().await;
}

#[tokio::test]
async fn a_server_gets_only_the_variables_that_it_needs() {
    let bench = Bench::new().await;
    let names = bench.says("environment").await;
    let names = names.as_str().unwrap();
    assert!(
        names.contains("PATH") && !names.contains("CARGO"),
        "{names}"
    );
    let mut more = spec(&[]);
    more.env_from = vec!["CARGO_MANIFEST_DIR".to_owned()];
    let bench = Bench::of(servers(more, McpConfig::default())).await;
    let names = bench.says("environment").await;
    assert!(names.as_str().unwrap().contains("CARGO_MANIFEST_DIR"));
}

#[tokio::test]
async fn a_long_list_is_cut() {
    let bench = Bench::of(servers(spec(&["many"]), McpConfig::default())).await;
    assert_eq!(bench.tools.len(), 128);
}

#[tokio::test]
async fn a_server_that_dies_fails_the_call_and_is_started_again() {
    let bench = Bench::new().await;
    for _ in 0..2 {
        let died = bench.call("die", json!({})).await.unwrap_err();
        assert_eq!(died.code, "mcp.server_ended", "{died}");
    }
    assert_eq!(bench.says("echo").await, "hello");
}

#[tokio::test]
async fn a_server_that_floods_is_ended() {
    let bench = Bench::new().await;
    for flood in ["flood", "chatter"] {
        let ended = bench.call(flood, json!({})).await.unwrap_err();
        assert_eq!(ended.code, "mcp.server_ended", "{flood}: {ended}");
    }
    assert_eq!(bench.says("echo").await, "hello");
}

#[tokio::test]
async fn a_server_that_hangs_is_not_waited_for() {
    let bench = Bench::new().await;
    let late = bench.call_within("hang", json!({}), 500).await.unwrap_err();
    assert_eq!(late.code, "mcp.timed_out", "{late}");
    // It gives no sign of life, is ended, which fails the call that came too early, and is
    // started again.
    let early = bench.call("echo", json!({"text": "x"})).await.unwrap_err();
    assert_eq!(early.code, "mcp.server_ended", "{early}");
    assert_eq!(bench.says("echo").await, "hello");
}

#[tokio::test]
async fn nonsense_is_passed_over_or_an_error() {
    let bench = Bench::new().await;
    assert_eq!(bench.says("nonsense").await, "and yet");
    let wrong = bench
        .call_within("wrong", json!({}), 1_000)
        .await
        .unwrap_err();
    assert!(wrong.code.starts_with("mcp."), "{wrong}");
    assert_eq!(bench.says("echo").await, "hello");
}

#[tokio::test]
async fn servers_that_do_not_start_are_unavailable() {
    let config = McpConfig {
        start_s_max: 1,
        ..McpConfig::default()
    };
    let mut none = spec(&[]);
    none.command = Some("/nowhere/at-all".to_owned());
    for (spec, said) in [
        (none, "cannot start"),
        (spec(&["exit"]), "unavailable"),
        (spec(&["silent"]), "in time"),
    ] {
        let servers = servers(spec, config.clone());
        let refused = servers.tools(&["srv".to_owned()]).await.unwrap_err();
        assert_eq!(refused.code(), "mcp.unavailable");
        assert!(refused.to_string().contains(said), "{refused}");
    }
    let servers = servers(spec(&[]), config);
    let refused = servers
        .tools(&["srv".to_owned(), "x".to_owned()])
        .await
        .unwrap_err();
    assert_eq!(refused.code(), "mcp.not_configured");
    assert!(refused.to_string().contains("there are: srv"), "{refused}");
}

/// Waits for a condition that another process brings about.
async fn until(condition: impl Fn() -> bool) {
    let mut every = tokio::time::interval(Duration::from_millis(5));
    for _ in 0..2_000 {
        every.tick().await;
        if condition() {
            return;
        }
    }
    panic!("never");
}

#[tokio::test]
async fn closing_ends_a_server_and_what_it_started() {
    let bench = Bench::new().await;
    let child = bench.says("child").await;
    let child = format!("/proc/{}/cmdline", child.as_str().unwrap());
    let lives = || std::fs::read(&child).is_ok_and(|line| line.starts_with(b"sleep"));
    until(lives).await;
    bench.servers.close().await;
    until(|| !lives()).await;
    assert_eq!(
        bench.says("echo").await,
        "hello",
        "it is started again when it is needed"
    );
}

/// A stateless server that answers in plain JSON and wants a token.
async fn answer(headers: HeaderMap, body: String) -> axum::response::Response {
    let token = format!("Bearer {}", std::env::var("CARGO_PKG_NAME").unwrap());
    if headers.get("authorization").is_none_or(|h| *h != *token) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let message: Value = serde_json::from_str(&body).unwrap();
    let result = match message["method"].as_str().unwrap() {
        "initialize" => json!({"protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}}, "serverInfo": {"name": "web", "version": "1"}}),
        "tools/list" => json!({"tools": [{"name": "add", "inputSchema": {"type": "object"}}]}),
        "tools/call" => json!({"content": [{"type": "text", "text": "3"}]}),
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
    axum::Json(answer).into_response()
}

#[tokio::test]
async fn servers_are_reached_over_http() {
    let app = axum::Router::new().route("/mcp", axum::routing::post(answer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });
    let of = |spec: Value| servers(serde_json::from_value(spec).unwrap(), McpConfig::default());
    let bench = Bench::of(of(
        json!({"name": "srv", "url": url, "bearer_from": "CARGO_PKG_NAME"}),
    ))
    .await;
    assert_eq!(bench.says("add").await, "3");
    let refused = of(json!({"name": "srv", "url": url}));
    let refused = refused.tools(&["srv".to_owned()]).await.unwrap_err();
    assert_eq!(refused.code(), "mcp.unavailable", "{refused}");
    serving.abort();
}
