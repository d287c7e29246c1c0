//! Tools of MCP servers (Model Context Protocol).
//!
//! Which servers there are, the operator says in a file (`mcp.servers_file`): they run outside of
//! every sandbox, with the rights of this process. A deployment only names them. A server is
//! started when it is first needed, is shared by all sessions, and is started again, with a
//! growing pause, when it has ended. Whatever it does, a call ends: it has a time limit, its
//! messages a size limit.

pub mod file;

#[cfg(feature = "mcp")]
mod connection;
#[cfg(feature = "mcp")]
mod meter;
#[cfg(feature = "mcp")]
mod output;
#[cfg(feature = "mcp")]
mod server;

use std::sync::Arc;

use longhaul_actors::env::Door;

use super::Tool;
use crate::config::McpConfig;
use file::ServerSpec;

/// Tools of one server; more are left out.
pub const TOOLS_MAX: usize = 128;

/// Why there are no tools of a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum McpError {
    /// The file of servers cannot be read, or says what makes no sense.
    #[error("mcp.servers_file, {path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// The operator has configured no such server.
    #[error("there is no MCP server {name:?}; there are: {known}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// This program is built without the feature `mcp`.
    #[error("this build has no MCP client (cargo feature `mcp`)")]
    NotBuilt,
    /// The server does not start, or does not answer sensibly.
    #[error("MCP server {name:?} is unavailable: {reason}")]
    Unavailable {
        /// The server.
        name: String,
        /// What happened.
        reason: String,
    },
}

impl McpError {
    /// The stable code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::File { .. } | Self::Unknown { .. } | Self::NotBuilt => "mcp.not_configured",
            Self::Unavailable { .. } => "mcp.unavailable",
        }
    }
}

/// The configured servers. A clone is the same servers.
#[derive(Debug, Clone)]
pub struct McpServers {
    #[cfg(feature = "mcp")]
    servers: Arc<Vec<Arc<server::Server>>>,
    #[cfg(not(feature = "mcp"))]
    servers: Arc<Vec<ServerSpec>>,
}

impl McpServers {
    /// Reads the file of servers. None is started yet. Without a file there are none.
    ///
    /// # Errors
    /// [`McpError::File`].
    pub fn open(config: &McpConfig, door: &Door) -> Result<Self, McpError> {
        let specs = match &config.servers_file {
            Some(path) => file::read(path)?,
            None => Vec::new(),
        };
        Ok(Self::of(specs, config, door))
    }

    /// The servers, in the order of the file.
    pub fn names(&self) -> Vec<String> {
        let specs = self.servers.iter();
        specs.map(|s| Self::spec(s).name.clone()).collect()
    }

    /// Whether there is one of this name.
    ///
    /// # Errors
    /// [`McpError::Unknown`], with the names that there are.
    pub fn check(&self, name: &str) -> Result<(), McpError> {
        let names = self.names();
        if names.iter().any(|n| n == name) {
            return Ok(());
        }
        Err(McpError::Unknown {
            name: name.to_owned(),
            known: match names.is_empty() {
                true => "none".to_owned(),
                false => names.join(", "),
            },
        })
    }
}

#[cfg(feature = "mcp")]
impl McpServers {
    /// These servers.
    pub fn of(specs: Vec<ServerSpec>, config: &McpConfig, door: &Door) -> Self {
        let shared = Arc::new(server::Shared::new(config, door));
        let servers = specs
            .into_iter()
            .map(|spec| Arc::new(server::Server::new(spec, Arc::clone(&shared))));
        Self {
            servers: Arc::new(servers.collect()),
        }
    }

    fn spec(server: &server::Server) -> &ServerSpec {
        server.spec()
    }

    /// The tools of the named servers, named `<server>__<tool>`, as the servers list them now; at
    /// most [`TOOLS_MAX`] of each. Servers that do not run are started.
    ///
    /// # Errors
    /// See [`McpError`]; the first one.
    pub async fn tools(&self, names: &[String]) -> Result<Vec<Arc<dyn Tool>>, McpError> {
        let mut wanted = Vec::new();
        for name in names {
            self.check(name)?;
            wanted.extend(self.servers.iter().filter(|s| s.spec().name == *name));
        }
        let lists = wanted.into_iter().map(server::Server::tools);
        let lists = futures_util::future::try_join_all(lists).await?;
        Ok(lists.into_iter().flatten().collect())
    }

    /// Ends the servers. Those that are used after this are started again.
    pub async fn close(&self) {
        futures_util::future::join_all(self.servers.iter().map(|s| s.close())).await;
    }
}

#[cfg(not(feature = "mcp"))]
impl McpServers {
    /// These servers.
    pub fn of(specs: Vec<ServerSpec>, _: &McpConfig, _: &Door) -> Self {
        Self {
            servers: Arc::new(specs),
        }
    }

    fn spec(spec: &ServerSpec) -> &ServerSpec {
        spec
    }

    /// Refuses every name: there is no client in this build.
    ///
    /// # Errors
    /// [`McpError::NotBuilt`], unless nothing is asked for.
    pub async fn tools(&self, names: &[String]) -> Result<Vec<Arc<dyn Tool>>, McpError> {
        match names {
            [] => Ok(Vec::new()),
            _ => Err(McpError::NotBuilt),
        }
    }

    /// Nothing runs.
    pub async fn close(&self) {}
}
