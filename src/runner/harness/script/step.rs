//! The steps of a script.

use serde::Deserialize;
use serde_json::{Map, Value};

/// Most steps of a script.
pub const STEPS_MAX: usize = 10_000;

/// One step: an object with one field, whose name says what it is.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// An `agent.message`.
    Say(String),
    /// A shell command in the sandbox, as the tool `bash`.
    Exec(String),
    /// A file in the sandbox, as the tool `write`.
    Write {
        /// Where, relative to the sandbox's root.
        path: String,
        /// What.
        text: String,
    },
    /// A recorded call: nothing is executed.
    Tool {
        /// The tool.
        name: String,
        /// Its input.
        #[serde(default)]
        input: Value,
        /// What it answered.
        #[serde(default)]
        result: Value,
    },
    /// Waits, milliseconds.
    SleepMs(u64),
    /// An `agent.question`; parks without compute.
    Question(Value),
    /// An `agent.action_approval_requested`; parks without compute.
    Approval {
        /// What is to be approved.
        tool: String,
        /// With which input.
        #[serde(default)]
        input: Value,
    },
    /// An `agent.custom_tool_use`; waits with its sandbox in hand.
    CustomTool {
        /// The tool.
        name: String,
        /// Its input.
        #[serde(default)]
        input: Value,
    },
    /// Keeps the sandbox's files.
    Checkpoint {
        /// For people.
        #[serde(default)]
        name: Option<String>,
    },
    /// A `usage.recorded`.
    Usage(Map<String, Value>),
    /// Fails the run with this message.
    Fail(String),
}

/// Reads the `steps` of a harness profile of kind `script`.
///
/// # Errors
/// Which step is wrong, and how.
pub fn parse_steps(profile: &Value) -> Result<Vec<Step>, String> {
    let steps = match profile.get("steps") {
        None => return Ok(Vec::new()),
        Some(Value::Array(steps)) => steps,
        Some(_) => return Err("`steps` must be an array".to_owned()),
    };
    if steps.len() > STEPS_MAX {
        return Err(format!("a script has at most {STEPS_MAX} steps"));
    }
    let read = |(i, step): (usize, &Value)| {
        let step = Step::deserialize(step).map_err(|e| format!("step {i}: {e}"))?;
        match &step {
            Step::Question(v) if !v.is_object() => {
                Err(format!("step {i}: its value must be an object"))
            }
            _ => Ok(step),
        }
    };
    steps.iter().enumerate().map(read).collect()
}

/// Puts the input in the place of `{{input}}`.
pub fn fill(text: &str, input: &str) -> String {
    text.replace("{{input}}", input)
}
