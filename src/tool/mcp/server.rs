//! One configured server: its connection, made again when it has ended, and its tools.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use longhaul_actors::env::Door;
use rmcp::ServiceError;
use tokio::sync::{Mutex, OnceCell};

use super::connection::Connection;
use super::file::ServerSpec;
use super::output::output;
use super::{McpError, TOOLS_MAX};
use crate::config::McpConfig;
use crate::model::ToolSpec;
use crate::runner::sandbox::spawn::Spawner;
use crate::tool::bound::cut_line;
use crate::tool::builtin::own_time;
use crate::tool::{Tool, ToolError, ToolInput, ToolOutput};

/// First pause before a server that has ended is started again; doubles.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// Longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long a server that let a call run out of time has for a sign of life.
const PING_MAX: Duration = Duration::from_secs(3);
/// How long closing waits for one that is being started.
const CLOSE_MAX: Duration = Duration::from_secs(1);
/// Pages of one list of tools.
const PAGES_MAX: usize = 32;
/// Longest name of a tool.
const NAME_CHARS_MAX: usize = 64;
/// Longest description, characters.
const DESCRIPTION_CHARS_MAX: usize = 4_096;
/// Largest schema, bytes.
const SCHEMA_BYTES_MAX: usize = 64 << 10;

/// What all servers share.
#[derive(Debug)]
pub(super) struct Shared {
    door: Door,
    start_max: Duration,
    call_max: Duration,
    spawner: OnceCell<Spawner>,
}

impl Shared {
    pub(super) fn new(config: &McpConfig, door: &Door) -> Self {
        Self {
            door: door.clone(),
            start_max: Duration::from_secs(config.start_s_max),
            call_max: Duration::from_secs(config.call_s_max),
            spawner: OnceCell::new(),
        }
    }

    /// What `work` gives, or nothing when that takes too long.
    async fn within<T>(&self, time: Duration, work: impl Future<Output = T>) -> Option<T> {
        let over = self.door.clock.sleep_until(self.door.clock.mono() + time);
        tokio::select! { done = work => Some(done), () = over => None }
    }
}

/// A server.
#[derive(Debug)]
pub(super) struct Server {
    spec: ServerSpec,
    shared: Arc<Shared>,
    state: Mutex<State>,
    /// Ends and failed starts since the last answer.
    failures: AtomicU32,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Arc<Connection>>,
    /// On the monotonic clock.
    not_before: Duration,
}

impl Server {
    pub(super) fn new(spec: ServerSpec, shared: Arc<Shared>) -> Self {
        Self {
            spec,
            shared,
            state: Mutex::default(),
            failures: AtomicU32::new(0),
        }
    }

    pub(super) fn spec(&self) -> &ServerSpec {
        &self.spec
    }

    /// The tools that it lists.
    pub(super) async fn tools(self: &Arc<Self>) -> Result<Vec<Arc<dyn Tool>>, McpError> {
        let connection = self.connection().await?;
        let list = self.list(&connection);
        let listed = match self.shared.within(self.shared.start_max, list).await {
            Some(Ok(listed)) => listed,
            Some(Err(error)) => return Err(self.unavailable(cut_line(&error.to_string(), 500))),
            None => {
                connection.kill().await;
                return Err(self.unavailable("it does not list its tools in time".to_owned()));
            }
        };
        self.failures.store(0, Ordering::Relaxed);
        let mut tools: Vec<Arc<McpTool>> = Vec::new();
        for tool in listed {
            match McpTool::of(self, tool) {
                Ok(tool) if tools.iter().any(|t| t.spec.name == tool.spec.name) => {
                    self.left_out(&tool.spec.name, "another one has this name");
                }
                Ok(tool) => tools.push(Arc::new(tool)),
                Err((name, why)) => self.left_out(&name, why),
            }
        }
        Ok(tools.into_iter().map(|t| t as Arc<dyn Tool>).collect())
    }

    fn left_out(&self, tool: &str, why: &str) {
        let (server, tool) = (&self.spec.name, cut_line(tool, 100));
        tracing::warn!(%server, %tool, why, "a tool of an MCP server is left out");
    }

    async fn list(&self, connection: &Connection) -> Result<Vec<rmcp::model::Tool>, ServiceError> {
        let (mut all, mut cursor) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let page = connection.list(cursor).await?;
            all.extend(page.tools);
            cursor = page.next_cursor;
            if cursor.is_none() || all.len() >= TOOLS_MAX {
                break;
            }
        }
        if all.len() > TOOLS_MAX || cursor.is_some() {
            let server = &self.spec.name;
            tracing::warn!(%server, TOOLS_MAX, "an MCP server has more tools than are taken");
            all.truncate(TOOLS_MAX);
        }
        Ok(all)
    }

    /// The connection, made anew where there is none or it has ended.
    async fn connection(&self) -> Result<Arc<Connection>, McpError> {
        let mut state = self.state.lock().await;
        if let Some(connection) = &state.connection {
            if connection.is_alive() {
                return Ok(Arc::clone(connection));
            }
            tracing::warn!(server = %self.spec.name, "an MCP server has ended");
            state.connection = None;
            self.failed(&mut state);
        }
        self.shared.door.clock.sleep_until(state.not_before).await;
        let start = self.start();
        let started = match self.shared.within(self.shared.start_max, start).await {
            Some(started) => started,
            None => Err("it does not start in time".to_owned()),
        };
        match started {
            Ok(connection) => Ok(Arc::clone(state.connection.insert(Arc::new(connection)))),
            Err(why) => {
                self.failed(&mut state);
                Err(self.unavailable(why))
            }
        }
    }

    async fn start(&self) -> Result<Connection, String> {
        let shared = &self.shared;
        if let Some(url) = &self.spec.url {
            return Connection::connect(&shared.door, &self.spec, url).await;
        }
        let make = || std::future::ready(Spawner::start().map_err(|e| e.to_string()));
        let spawner = shared.spawner.get_or_try_init(make).await?;
        Connection::start(&shared.door, spawner, &self.spec).await
    }

    fn failed(&self, state: &mut State) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        state.not_before = self.shared.door.clock.mono() + pause(failures);
    }

    fn unavailable(&self, reason: String) -> McpError {
        McpError::Unavailable {
            name: self.spec.name.clone(),
            reason,
        }
    }

    /// Ends it. One that is just being started belongs to a call, and ends with that.
    pub(super) async fn close(&self) {
        let state = self.shared.within(CLOSE_MAX, self.state.lock()).await;
        let connection = state.and_then(|mut state| state.connection.take());
        if let Some(connection) = connection {
            connection.close().await;
        }
    }

    async fn call(&self, tool: &McpTool, call: ToolInput<'_>) -> Result<ToolOutput, ToolError> {
        let Some(arguments) = call.input.as_object() else {
            return Ok(ToolOutput::error("the arguments must be a JSON object"));
        };
        let limit = own_time(call.time_limit).min(self.shared.call_max);
        // What is to be asked for a sign of life, if the time runs out.
        let asked: std::sync::OnceLock<Arc<Connection>> = std::sync::OnceLock::new();
        let work = async {
            let connection = self
                .connection()
                .await
                .map_err(|e| fault(e.code(), e.to_string()))?;
            let connection = asked.get_or_init(|| connection);
            match connection
                .call(&tool.remote, arguments.clone(), call.call_id)
                .await
            {
                Ok(result) => {
                    self.failures.store(0, Ordering::Relaxed);
                    Ok(output(result))
                }
                Err(error) => self.refused(error),
            }
        };
        let done = self.shared.within(limit, work).await;
        if let Some(done) = done {
            return done;
        }
        if let Some(connection) = asked.into_inner() {
            let (shared, server) = (Arc::clone(&self.shared), self.spec.name.clone());
            tokio::spawn(async move {
                if !matches!(
                    shared.within(PING_MAX, connection.ping()).await,
                    Some(Ok(()))
                ) {
                    tracing::warn!(%server, "an MCP server hangs and is ended");
                    connection.kill().await;
                }
            });
        }
        Err(fault(
            "mcp.timed_out",
            format!(
                "MCP server {:?} did not answer within {} ms",
                self.spec.name,
                limit.as_millis()
            ),
        ))
    }

    /// What a call without a result means.
    fn refused(&self, error: ServiceError) -> Result<ToolOutput, ToolError> {
        let server = &self.spec.name;
        match error {
            // The server's own words: the model may mend it.
            ServiceError::McpError(error) => {
                self.failures.store(0, Ordering::Relaxed);
                let text = format!("{} (code {})", error.message, error.code.0);
                Ok(ToolOutput::error(cut_line(&text, 4_000)))
            }
            ServiceError::TransportClosed | ServiceError::TransportSend(_) => Err(fault(
                "mcp.server_ended",
                format!(
                    "MCP server {server:?} ended before it answered; it may or may not have done it. It is started again for the next call"
                ),
            )),
            other => Err(fault(
                "mcp.nonsense",
                format!(
                    "MCP server {server:?} answered what makes no sense: {}",
                    cut_line(&other.to_string(), 500)
                ),
            )),
        }
    }
}

fn fault(code: &str, message: String) -> ToolError {
    ToolError {
        code: code.to_owned(),
        message,
    }
}

/// The pause after so many failures before this one.
fn pause(failures: u32) -> Duration {
    PAUSE_MIN
        .saturating_mul(1 << failures.min(16))
        .min(PAUSE_MAX)
}

/// A tool of a server.
#[derive(Debug)]
struct McpTool {
    spec: ToolSpec,
    /// Its name there.
    remote: String,
    is_idempotent: bool,
    server: Arc<Server>,
}

impl McpTool {
    /// The tool as we name it; or its name there, and why it cannot be taken.
    fn of(server: &Arc<Server>, tool: rmcp::model::Tool) -> Result<Self, (String, &'static str)> {
        let remote = tool.name.into_owned();
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        };
        let name: String = remote.chars().map(plain).collect();
        let name = format!("{}__{name}", server.spec.name);
        if remote.is_empty() || name.len() > NAME_CHARS_MAX {
            return Err((remote, "its name is empty or too long"));
        }
        let input_schema = serde_json::Value::Object((*tool.input_schema).clone());
        if input_schema.to_string().len() > SCHEMA_BYTES_MAX {
            return Err((remote, "its schema is too large"));
        }
        let hints = tool.annotations.unwrap_or_default();
        let hinted = |hint: Option<bool>| hint == Some(true);
        let description = tool.description.unwrap_or_default();
        Ok(Self {
            spec: ToolSpec {
                name,
                description: cut_line(&description, DESCRIPTION_CHARS_MAX),
                input_schema,
            },
            remote,
            is_idempotent: hinted(hints.read_only_hint) || hinted(hints.idempotent_hint),
            server: Arc::clone(server),
        })
    }
}

impl Tool for McpTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn is_idempotent(&self) -> bool {
        self.is_idempotent
    }

    fn call<'a>(&'a self, call: ToolInput<'a>) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        self.server.call(self, call).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        let ms: Vec<u128> = [0, 1, 2, 6, 7, 99].map(|n| pause(n).as_millis()).to_vec();
        assert_eq!(ms, [250, 500, 1_000, 16_000, 30_000, 30_000]);
    }
}
