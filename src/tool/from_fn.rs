//! Tools in one function.

use std::fmt;

use futures_util::future::{BoxFuture, FutureExt};
use serde_json::Value;

use super::{Tool, ToolError, ToolInput, ToolOutput};
use crate::model::ToolSpec;

/// A tool in one function, made by [`from_fn`].
#[derive(Clone)]
pub struct FnTool<F> {
    spec: ToolSpec,
    revision: String,
    is_idempotent: bool,
    call: F,
}

/// A tool in one function: its name, what it does (for the model), the JSON Schema of its
/// arguments, and the function, which gets them. It changes the world, not the sandbox, and is not
/// called again when a call was cut off unless it is said to be [`FnTool::idempotent`].
///
/// ```
/// use longhaul::tool::{ToolOutput, from_fn};
/// use serde_json::{Value, json};
///
/// let double = from_fn(
///     "double",
///     "Doubles a number.",
///     json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
///     |input: Value| async move {
///         let n = input["n"].as_i64().unwrap_or(0);
///         Ok(ToolOutput::text((n * 2).to_string()))
///     },
/// );
/// # let _ = double;
/// ```
pub fn from_fn<F, R>(
    name: impl Into<String>,
    description: impl Into<String>,
    input_schema: Value,
    call: F,
) -> FnTool<F>
where
    F: Fn(Value) -> R + Send + Sync + 'static,
    R: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
{
    FnTool {
        spec: ToolSpec {
            name: name.into(),
            description: description.into(),
            input_schema,
        },
        revision: "1".to_owned(),
        is_idempotent: false,
        call,
    }
}

impl<F> FnTool<F> {
    /// The revision of its code: another one is another tool, and no earlier result counts for it.
    #[must_use]
    pub fn revision(mut self, revision: impl Into<String>) -> Self {
        self.revision = revision.into();
        self
    }

    /// A call that was cut off may simply be made again.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.is_idempotent = true;
        self
    }
}

impl<F> fmt::Debug for FnTool<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FnTool")
            .field("name", &self.spec.name)
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}

impl<F, R> Tool for FnTool<F>
where
    F: Fn(Value) -> R + Send + Sync + 'static,
    R: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
{
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn revision(&self) -> &str {
        &self.revision
    }

    fn is_idempotent(&self) -> bool {
        self.is_idempotent
    }

    fn call<'a>(&'a self, call: ToolInput<'a>) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        (self.call)(call.input.clone()).boxed()
    }
}
