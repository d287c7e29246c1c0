//! One connection to a server: a process of ours on its standard streams, or HTTP.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use longhaul_actors::env::Door;
use rmcp::ServiceError;
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientRequest, Implementation,
    InitializeRequestParams, ListToolsResult, PaginatedRequestParams, PingRequest,
    RequestMetaObject,
};
use rmcp::service::{RoleClient, RunningService, serve_client};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::{Map, Value};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::Mutex;

use super::file::ServerSpec;
use super::meter::{MESSAGE_BYTES_MAX, Meter, Metered};
use crate::runner::sandbox::bwrap::MARK;
use crate::runner::sandbox::spawn::Spawner;
use crate::runner::sandbox::tree::{Sweep, Tree};

/// How long a server has to end once its input is closed.
const END_MAX: Duration = Duration::from_secs(2);
/// How long connecting to an address may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Variables that every server gets.
const ENV: &[&str] = &["PATH", "HOME", "LANG", "TMPDIR"];
/// Lines of a server's standard error that are logged for each of its starts.
const LOG_LINES_MAX: usize = 200;
/// So much of each, bytes.
const LOG_LINE_BYTES_MAX: u64 = 1_000;
/// Where a call's id is found by the server: in `_meta`.
const CALL_ID: &str = "longhaul/call_id";

/// A connection. Dropped, its process is killed.
#[derive(Debug)]
pub(super) struct Connection {
    door: Door,
    service: RunningService<RoleClient, InitializeRequestParams>,
    process: Mutex<Option<Tree>>,
    meter: Arc<Meter>,
    /// Set by the first call that found it closed: the library may notice later than its callers.
    is_closed: AtomicBool,
}

impl Connection {
    /// Starts the server's program and greets it.
    pub(super) async fn start(
        door: &Door,
        spawner: &Spawner,
        spec: &ServerSpec,
    ) -> Result<Self, String> {
        let mark = format!("mcp.{:032x}", u128::from_be_bytes(door.ids.secret()));
        let command = command(spec, &mark);
        let sweep = Sweep::new(door, &mark, true);
        let about = |e: std::io::Error| format!("its command cannot start: {e}");
        let mut process = Tree::start(spawner, command, sweep).await.map_err(about)?;
        let (stdin, stdout, stderr) = process.take_pipes().ok_or("it has no pipes")?;
        tokio::spawn(log(spec.name.clone(), stderr));
        let meter = Arc::new(Meter::default());
        let output = Metered::new(stdout, Arc::clone(&meter));
        let transport =
            AsyncRwTransport::new_client(output, stdin).with_max_line_length(MESSAGE_BYTES_MAX);
        let service = Box::pin(serve_client(introduction(), transport)).await;
        Ok(Self {
            door: door.clone(),
            service: service.map_err(|e| short(&e.to_string()))?,
            process: Mutex::new(Some(process)),
            meter,
            is_closed: AtomicBool::new(false),
        })
    }

    /// Connects to an address.
    pub(super) async fn connect(door: &Door, spec: &ServerSpec, url: &str) -> Result<Self, String> {
        let client = reqwest::Client::builder().connect_timeout(CONNECT_MAX);
        let client = client.build().map_err(|e| e.to_string())?;
        let mut config = StreamableHttpClientTransportConfig::with_uri(url)
            .max_sse_event_size(MESSAGE_BYTES_MAX)
            .max_json_response_size(MESSAGE_BYTES_MAX);
        if let Some(name) = &spec.bearer_from {
            let token =
                std::env::var(name).map_err(|_| format!("the variable {name} is not set"))?;
            config = config.auth_header(token);
        }
        let transport = StreamableHttpClientTransport::with_client(client, config);
        let service = Box::pin(serve_client(introduction(), transport)).await;
        Ok(Self {
            door: door.clone(),
            service: service.map_err(|e| short(&e.to_string()))?,
            process: Mutex::new(None),
            meter: Arc::default(),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Whether it may still answer.
    pub(super) fn is_alive(&self) -> bool {
        !self.is_closed.load(Ordering::Relaxed) && !self.service.peer().is_transport_closed()
    }

    /// One page of the list of tools.
    pub(super) async fn list(
        &self,
        cursor: Option<String>,
    ) -> Result<ListToolsResult, ServiceError> {
        self.meter.restart();
        let page = PaginatedRequestParams::default().with_cursor(cursor);
        self.noted(self.service.peer().list_tools(Some(page)).await)
    }

    /// Calls a tool. Dropping the future tells the server that nobody waits.
    pub(super) async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        call_id: &str,
    ) -> Result<CallToolResult, ServiceError> {
        self.meter.restart();
        let mut params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let mut meta = RequestMetaObject::new();
        meta.insert(CALL_ID.to_owned(), call_id.into());
        params.meta = Some(meta);
        self.noted(self.service.peer().call_tool(params).await)
    }

    fn noted<T>(&self, done: Result<T, ServiceError>) -> Result<T, ServiceError> {
        if let Err(ServiceError::TransportClosed | ServiceError::TransportSend(_)) = &done {
            self.is_closed.store(true, Ordering::Relaxed);
        }
        done
    }

    /// Asks for a sign of life.
    pub(super) async fn ping(&self) -> Result<(), ServiceError> {
        let ping = PingRequest {
            method: rmcp::model::PingRequestMethod,
            extensions: rmcp::model::Extensions::default(),
        };
        let request = ClientRequest::PingRequest(ping);
        self.service.peer().send_request(request).await.map(drop)
    }

    /// Closes its input, gives it a moment, and ends its process with everything it started.
    pub(super) async fn close(&self) {
        self.service.cancellation_token().cancel();
        let Some(mut process) = self.process.lock().await.take() else {
            return;
        };
        let clock = &self.door.clock;
        let over = clock.sleep_until(clock.mono() + END_MAX);
        tokio::select! { () = process.ended() => {} () = over => {} }
        process.finish().await;
    }

    /// Ends it at once.
    pub(super) async fn kill(&self) {
        self.service.cancellation_token().cancel();
        if let Some(mut process) = self.process.lock().await.take() {
            process.finish().await;
        }
    }
}

fn introduction() -> InitializeRequestParams {
    let us = Implementation::new("longhaul", env!("CARGO_PKG_VERSION"));
    InitializeRequestParams::new(ClientCapabilities::default(), us)
}

fn command(spec: &ServerSpec, mark: &str) -> Command {
    let mut command = Command::new(spec.command.as_deref().unwrap_or_default());
    command.args(&spec.args).env_clear();
    for name in ENV
        .iter()
        .copied()
        .chain(spec.env_from.iter().map(String::as_str))
    {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
        .env(MARK, mark)
        .process_group(0)
        .kill_on_drop(true)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Logs what a server says on its standard error, up to a limit, and drops the rest.
async fn log(server: String, stderr: impl AsyncRead + Unpin) {
    let mut from = BufReader::new(stderr);
    for _ in 0..LOG_LINES_MAX {
        let mut line = Vec::new();
        match (&mut from)
            .take(LOG_LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)
            .await
        {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let line = String::from_utf8_lossy(&line);
                tracing::info!(%server, line = line.trim_end(), "an MCP server says");
            }
        }
    }
    tracing::info!(%server, "an MCP server says more, which is not logged");
    let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
}

/// A library's words, which may quote a whole message.
fn short(text: &str) -> String {
    crate::tool::bound::cut_line(text, 500)
}
