//! Tools: what an agent can do. Those that come along are [`BUILT_IN`]; more come from MCP servers
//! ([`mcp`]) and from the host, by the trait [`Tool`].
#![doc = include_str!("../docs/tools.md")]

mod arguments;
mod bash;
mod bound;
mod builtin;
mod edit;
mod files;
mod from_fn;
mod list;
mod search;
mod walk;

pub mod mcp;

use std::fmt::Debug;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::model::ToolSpec;
use crate::runner::Sandbox;
pub use arguments::check as check_arguments;
pub use builtin::{BUILT_IN, built_in};
pub use from_fn::{FnTool, from_fn};

/// Something an agent can do. A host adds its own.
pub trait Tool: Send + Sync + Debug + 'static {
    /// How a model sees it.
    fn spec(&self) -> &ToolSpec;

    /// Revision of its code: another one is another tool, and no earlier result counts for it.
    fn revision(&self) -> &str {
        "1"
    }

    /// What a call changes.
    fn effects(&self) -> Effects {
        Effects::External
    }

    /// Whether a call that was cut off may simply be made again.
    fn is_idempotent(&self) -> bool {
        false
    }

    /// Makes the call. Dropping the future ends it; what it started must end too.
    ///
    /// An `Err` is a fault of the tool and is told to the model like an output with `is_error`.
    ///
    /// # Errors
    /// See [`ToolError`].
    fn call<'a>(&'a self, call: ToolInput<'a>) -> BoxFuture<'a, Result<ToolOutput, ToolError>>;
}

/// What a step changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Effects {
    /// The world: never made again once its result is recorded.
    #[default]
    External,
    /// The sandbox's files only: made again where those are gone.
    Sandbox,
}

/// A call, as its tool gets it.
#[derive(Debug, Clone, Copy)]
pub struct ToolInput<'a> {
    /// Stable over attempts: a key for effects elsewhere.
    pub call_id: &'a str,
    /// Its arguments, as approved.
    pub input: &'a Value,
    /// Where files are.
    pub sandbox: &'a dyn Sandbox,
    /// How long it may take; the caller stops it then.
    pub time_limit: Duration,
}

/// What a tool answers.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutput {
    /// Text for the model, or any JSON.
    pub output: Value,
    /// Whether it went wrong, in a way that the model may mend.
    pub is_error: bool,
    /// Of commands.
    pub exit_code: Option<i32>,
}

impl ToolOutput {
    /// It went well.
    pub fn text(output: impl Into<String>) -> Self {
        Self {
            output: Value::String(output.into()),
            is_error: false,
            exit_code: None,
        }
    }

    /// It went wrong, in a way that the model may mend.
    pub fn error(output: impl Into<String>) -> Self {
        Self {
            is_error: true,
            ..Self::text(output)
        }
    }
}

/// Why a tool has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ToolError {
    /// `area.reason`.
    pub code: String,
    /// For the model and for people.
    pub message: String,
}
