//! `bash`: a shell command in the sandbox.

use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::read;
use super::bound::{binary_note, cut_middle, is_binary};
use super::builtin::{Answer, BuiltIn, own_time, place};
use super::{ToolInput, ToolOutput};
use crate::runner::sandbox::{Exec, ExecOutput};

/// Longest `timeout_ms`; the call's own limit is shorter.
const TIMEOUT_MS_MAX: u64 = 24 * 3_600_000;

#[derive(Debug, Deserialize)]
struct Arguments {
    command: String,
    cwd: Option<String>,
    timeout_ms: Option<u64>,
}

pub(super) fn tool() -> BuiltIn {
    let description = "Runs a command with bash and answers what it printed (standard output and \
        standard error in the order of writing) and its exit code. Each call is a new shell: \
        folder and variables are not kept, files are. Nothing that it starts outlives it. Long \
        output is cut.";
    let properties = json!({
        "command": { "type": "string", "minLength": 1, "description": "For `bash -c`." },
        "cwd": { "type": "string", "minLength": 1,
            "description": "Where it starts, relative to the working folder." },
        "timeout_ms": { "type": "integer", "minimum": 1, "maximum": TIMEOUT_MS_MAX,
            "description": "It is ended after so many milliseconds, or after the limit of all commands, whichever is shorter." },
    });
    BuiltIn::new("bash", description, properties, &["command"], run)
}

fn run(call: ToolInput<'_>) -> BoxFuture<'_, Answer> {
    async move {
        let arguments: Arguments = read(call.input)?;
        let own = own_time(call.time_limit);
        let asked = arguments.timeout_ms.map_or(own, Duration::from_millis);
        let exec = Exec {
            command: arguments.command,
            cwd: arguments.cwd.map(|cwd| place(&cwd)),
            timeout: Some(asked.min(own)),
            merge_stderr: true,
            ..Exec::default()
        };
        let output = call.sandbox.exec(exec).await?;
        Ok(told(&output))
    }
    .boxed()
}

fn told(output: &ExecOutput) -> ToolOutput {
    let mut bytes = output.stdout.clone();
    bytes.extend_from_slice(&output.stderr);
    let mut text = if is_binary(&bytes) {
        format!("[{}]", binary_note("the output", &bytes))
    } else {
        cut_middle(String::from_utf8_lossy(&bytes).into_owned())
    };
    let mut note = |what: String| {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("[{what}]\n"));
    };
    if output.dropped_bytes > 0 {
        note(format!(
            "{} further bytes of output were dropped",
            output.dropped_bytes
        ));
    }
    if output.timed_out {
        note("its time was over: it was stopped, with everything that it had started".to_owned());
    }
    ToolOutput {
        output: Value::String(text),
        is_error: output.exit_code != Some(0),
        exit_code: output.exit_code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(bytes: &[u8]) -> ExecOutput {
        ExecOutput {
            stdout: bytes.to_vec(),
            exit_code: Some(0),
            ..ExecOutput::default()
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        assert_eq!(told(&output(b"x")).output, "x");
        let dropped = ExecOutput {
            dropped_bytes: 7,
            ..output(b"x")
        };
        let text = told(&dropped).output;
        assert_eq!(text, "x\n[7 further bytes of output were dropped]\n");
        let late = ExecOutput {
            timed_out: true,
            exit_code: None,
            ..output(b"")
        };
        let late = told(&late);
        assert!(late.is_error && late.exit_code.is_none());
        assert!(
            late.output
                .as_str()
                .unwrap()
                .starts_with("[its time was over")
        );
        let binary = told(&output(b"\0\x01")).output;
        assert_eq!(
            binary,
            "[the output is binary: 2 bytes that begin with 00 01]"
        );
    }
}
