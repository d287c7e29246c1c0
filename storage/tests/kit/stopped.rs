//! A test that runs itself again in a process that is stopped at a fault point.

use std::path::Path;
use std::process::{Command, Stdio};

/// How the process ended.
pub(crate) struct Stopped {
    /// Whether the point was reached.
    pub(crate) reached: bool,
    /// What it printed before.
    pub(crate) said: String,
}

/// Runs `test` of this program alone, with `variable` naming the folder to work in, armed to stop
/// at `point` after so many passes.
pub(crate) fn stopped_at(
    point: &str,
    passes: usize,
    test: &str,
    (variable, folder): (&str, &Path),
) -> Stopped {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(variable, folder)
        .env("FAILPOINTS", format!("{point}={passes}*off->return"))
        .stderr(Stdio::null())
        .output()
        .unwrap();
    Stopped {
        reached: !output.status.success(),
        said: String::from_utf8_lossy(&output.stdout).into_owned(),
    }
}
