//! The built-in tools: their names, what a model reads of them, and the one way they are called.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use serde_json::{Value, json};

use super::{Effects, Tool, ToolError, ToolInput, ToolOutput, arguments};
use super::{bash, edit, files, list, search};
use crate::model::ToolSpec;
use crate::runner::sandbox::SandboxError;
use crate::runner::sandbox::bwrap::WORK;

/// The names of the built-in tools.
pub const BUILT_IN: &[&str] = &[
    "bash",
    "read_file",
    "write_file",
    "edit_file",
    "list_files",
    "search",
];

/// The built-in tool of this name, if there is one.
pub fn built_in(name: &str) -> Option<Arc<dyn Tool>> {
    let tool = match name {
        "bash" => bash::tool(),
        "read_file" => files::read_tool(),
        "write_file" => files::write_tool(),
        "edit_file" => edit::tool(),
        "list_files" => list::tool(),
        "search" => search::tool(),
        _ => return None,
    };
    Some(Arc::new(tool))
}

/// How a built-in tool ends.
pub(super) type Answer = Result<ToolOutput, Fault>;
type Run = for<'a> fn(ToolInput<'a>) -> BoxFuture<'a, Answer>;

/// A built-in tool.
#[derive(Debug)]
pub(super) struct BuiltIn {
    spec: ToolSpec,
    read_only: bool,
    run: Run,
}

impl BuiltIn {
    /// A tool whose arguments are `properties`, those of `required` always.
    pub(super) fn new(
        name: &str,
        description: &str,
        properties: Value,
        required: &[&str],
        run: Run,
    ) -> Self {
        let input_schema = json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        });
        Self {
            spec: ToolSpec {
                name: name.to_owned(),
                description: description.to_owned(),
                input_schema,
            },
            read_only: false,
            run,
        }
    }

    /// It changes nothing.
    pub(super) fn read_only(self) -> Self {
        Self {
            read_only: true,
            ..self
        }
    }
}

impl Tool for BuiltIn {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn effects(&self) -> Effects {
        Effects::Sandbox
    }

    fn is_idempotent(&self) -> bool {
        self.read_only
    }

    fn call<'a>(&'a self, call: ToolInput<'a>) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        async move {
            if let Err(faults) = arguments::check(&self.spec.input_schema, call.input) {
                return Ok(ToolOutput::error(faults));
            }
            match (self.run)(call).await {
                Ok(output) => Ok(output),
                Err(Fault::Told(text)) => Ok(ToolOutput::error(text)),
                Err(Fault::Sandbox(error)) => told(error),
            }
        }
        .boxed()
    }
}

/// Why a built-in tool has nothing to show.
#[derive(Debug)]
pub(super) enum Fault {
    /// The model may mend it.
    Told(String),
    /// The sandbox refused, or failed.
    Sandbox(SandboxError),
}

impl From<String> for Fault {
    fn from(text: String) -> Self {
        Self::Told(text)
    }
}

impl From<SandboxError> for Fault {
    fn from(error: SandboxError) -> Self {
        Self::Sandbox(error)
    }
}

fn told(error: SandboxError) -> Result<ToolOutput, ToolError> {
    match error {
        SandboxError::PathInvalid(path) => Ok(ToolOutput::error(format!(
            "{path:?} cannot be used: paths are relative to the working folder, stay inside it, and must be a file where one is wanted and a folder where one is wanted"
        ))),
        SandboxError::NotFound(path) => Ok(ToolOutput::error(format!("there is no {path:?}"))),
        SandboxError::TooLarge { .. } => Ok(ToolOutput::error(format!(
            "{error}; read or change parts of it by a command"
        ))),
        other => Err(ToolError {
            code: other.code().to_owned(),
            message: other.to_string(),
        }),
    }
}

/// A path as the sandbox takes it. Isolated commands see its root as `/work`, so models write that.
pub(super) fn place(path: &str) -> String {
    let inside = match path.strip_prefix(WORK) {
        Some("") => "",
        Some(rest) => rest.strip_prefix('/').unwrap_or(path),
        None => path,
    };
    let inside = inside.trim_end_matches('/');
    match (path, inside) {
        ("", _) => String::new(),
        (_, "") if path.starts_with(WORK) => ".".to_owned(),
        (_, "") => path.to_owned(),
        _ => inside.to_owned(),
    }
}

/// The time that a tool gives itself: a little less than its caller does, so that it can still
/// tell what it has.
pub(super) fn own_time(limit: Duration) -> Duration {
    limit.saturating_sub((limit / 10).min(Duration::from_secs(2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_tool_with_a_whole_schema() {
        for name in BUILT_IN {
            let tool = built_in(name).unwrap();
            let spec = tool.spec();
            assert_eq!(spec.name, *name);
            assert!(spec.description.len() > 40, "{name}");
            assert_eq!(spec.input_schema["additionalProperties"], false);
            for (field, property) in spec.input_schema["properties"].as_object().unwrap() {
                assert!(property["type"].is_string(), "{name}.{field}");
                assert!(property["description"].is_string(), "{name}.{field}");
            }
            assert_eq!(tool.effects(), Effects::Sandbox);
            let reads = ["read_file", "list_files", "search"].contains(name);
            assert_eq!(tool.is_idempotent(), reads, "{name}");
        }
        assert!(built_in("rm").is_none());
    }

    #[test]
    fn paths_of_the_isolated_view_are_understood() {
        for (inside, used) in [("", "."), ("/", "."), ("/a/b", "a/b"), ("/a/", "a")] {
            assert_eq!(place(&format!("{WORK}{inside}")), used);
        }
        assert_eq!(place(&format!("{WORK}shop")), format!("{WORK}shop"));
        for (given, used) in [
            ("a/", "a"),
            (".", "."),
            ("/", "/"),
            ("", ""),
            ("/etc/passwd", "/etc/passwd"),
        ] {
            assert_eq!(place(given), used, "{given}");
        }
    }

    #[test]
    fn a_tool_ends_before_it_is_stopped() {
        assert_eq!(own_time(Duration::from_secs(10)), Duration::from_secs(9));
        assert_eq!(own_time(Duration::from_secs(100)), Duration::from_secs(98));
    }
}
