//! Exit codes and the errors that lead to them.

use std::fmt;
use std::io;
use std::path::Path;

use longhaul_actors::code::{Code, Rejection};
use longhaul_storage::OpenError;
use serde_json::{Map, Value, json};

use crate::config::ConfigError;

/// How the command ended. Documented in `docs/cli.md`; the numbers are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// Refused or failed; the printed code says why.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The thing named does not exist (or was erased).
    NotFound = 3,
    /// The token is missing, unknown or lacks a scope.
    NotAllowed = 4,
    /// The session's state does not allow it now.
    Conflict = 5,
    /// Full or stopped at the moment; try again later.
    TryLater = 6,
    /// Another process uses the data folder.
    FolderInUse = 10,
    /// The data folder was written by a newer version.
    NewerFormat = 11,
    /// The data is damaged.
    Damaged = 12,
    /// The address to listen on is in use or not ours.
    AddressInUse = 13,
    /// No server answers there.
    Unreachable = 14,
    /// No room on the disk.
    DiskFull = 15,
}

impl Exit {
    /// Every exit, with what it means.
    pub const ALL: &'static [(Exit, &'static str)] = &[
        (Exit::Done, "done"),
        (Exit::Failed, "refused or failed; the printed code says why"),
        (Exit::Usage, "the command line is wrong"),
        (
            Exit::NotFound,
            "what the command names does not exist, or was erased",
        ),
        (
            Exit::NotAllowed,
            "the token is missing, unknown, expired or lacks a scope",
        ),
        (
            Exit::Conflict,
            "the state of the session does not allow it now",
        ),
        (
            Exit::TryLater,
            "something is full or stopped at the moment; try again later",
        ),
        (Exit::FolderInUse, "another process uses the data folder"),
        (
            Exit::NewerFormat,
            "the data folder was written by a newer version",
        ),
        (
            Exit::Damaged,
            "the data is damaged (also: `verify` or `load` found a fault)",
        ),
        (
            Exit::AddressInUse,
            "the address to listen on is in use or cannot be had",
        ),
        (Exit::Unreachable, "no server answers at the address"),
        (Exit::DiskFull, "no space left on the device"),
    ];

    /// The exit that an HTTP status leads to.
    pub fn of_status(status: u16) -> Self {
        match status {
            404 | 410 => Self::NotFound,
            401 | 403 => Self::NotAllowed,
            409 | 412 => Self::Conflict,
            429 | 502..=504 => Self::TryLater,
            507 => Self::DiskFull,
            _ => Self::Failed,
        }
    }
}

/// What a command prints when it does not succeed: what was wrong and what to do next.
#[derive(Debug, Clone)]
pub struct CliError {
    /// The exit code.
    pub exit: Exit,
    /// `area.reason`.
    pub code: String,
    /// What was wrong this time.
    pub detail: String,
    /// What to do next.
    pub next: String,
    /// Typed extras of the server.
    pub extras: Map<String, Value>,
}

impl CliError {
    /// An error with its particulars.
    pub fn new(exit: Exit, code: &str, detail: impl Into<String>, next: impl Into<String>) -> Self {
        let (detail, next) = (detail.into(), next.into());
        Self {
            exit,
            code: code.to_owned(),
            detail,
            next,
            extras: Map::new(),
        }
    }

    /// Something failed that has no exit code of its own.
    pub fn failed(code: &str, detail: impl Into<String>) -> Self {
        Self::new(Exit::Failed, code, detail, "")
    }

    /// A file or program cannot be used.
    pub fn io(path: &Path, e: &io::Error) -> Self {
        let exit = match e.kind() {
            io::ErrorKind::StorageFull => Exit::DiskFull,
            _ => Exit::Failed,
        };
        let detail = format!("{}: {e}", path.display());
        Self::new(
            exit,
            "cli.io",
            detail,
            "Check the path, its permissions and the room there.",
        )
    }

    /// The command line asks for something impossible.
    pub fn usage(detail: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "cli.usage", detail, "See `longhaul help`.")
    }

    /// The reader of our output went away: no error, nothing to print.
    pub(crate) fn closed() -> Self {
        Self::new(Exit::Done, CLOSED, "", "")
    }

    /// Whether there is nobody to print it to.
    pub(crate) fn is_closed(&self) -> bool {
        self.code == CLOSED
    }

    /// No server at `url`.
    pub fn unreachable(url: &str, cause: impl fmt::Display) -> Self {
        Self::new(
            Exit::Unreachable,
            "cli.unreachable",
            format!("no answer from {url}: {cause}"),
            "Start one with `longhaul serve --data DIR`, or name it with --server or LONGHAUL_URL.",
        )
    }

    /// A server's `application/problem+json`.
    pub fn of_problem(status: u16, body: &Value) -> Self {
        let text = |key: &str| body.get(key).and_then(Value::as_str).map(str::to_owned);
        let code = text("code").unwrap_or_else(|| format!("http.{status}"));
        let next = Code::ALL
            .iter()
            .find(|c| c.text() == code)
            .map_or("", |c| c.info().next);
        let known = ["status", "code", "title", "detail", "type", "instance"];
        let extras = body.as_object().map(|all| {
            let rest = all.iter().filter(|(k, _)| !known.contains(&k.as_str()));
            rest.map(|(k, v)| (k.clone(), v.clone())).collect()
        });
        Self {
            exit: Exit::of_status(status),
            detail: text("detail").or_else(|| text("title")).unwrap_or_default(),
            next: next.to_owned(),
            code,
            extras: extras.unwrap_or_default(),
        }
    }

    /// As one JSON object.
    pub fn to_json(&self) -> Value {
        let mut all = self.extras.clone();
        all.insert("code".into(), json!(self.code));
        all.insert("detail".into(), json!(self.detail));
        all.insert("next".into(), json!(self.next));
        all.insert("exit".into(), json!(self.exit as u8));
        json!({ "error": all })
    }
}

/// The code of an error that nobody is there to read.
const CLOSED: &str = "cli.output_closed";

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {} ({})", self.detail, self.code)?;
        for (key, value) in &self.extras {
            if !matches!(key.as_str(), "retryable") {
                write!(f, "\n  {key}: {value}")?;
            }
        }
        if self.next.is_empty() {
            Ok(())
        } else {
            write!(f, "\n  next: {}", self.next)
        }
    }
}

impl std::error::Error for CliError {}

impl From<Rejection> for CliError {
    fn from(r: Rejection) -> Self {
        let info = r.code.info();
        Self {
            exit: Exit::of_status(info.status),
            code: info.code.to_owned(),
            detail: r.detail,
            next: info.next.to_owned(),
            extras: r.extras,
        }
    }
}

impl From<OpenError> for CliError {
    fn from(e: OpenError) -> Self {
        let (exit, code, next) = match &e {
            OpenError::Locked { .. } => (
                Exit::FolderInUse,
                "storage.locked",
                "Stop the other process, or use another --data folder. Nothing was changed.",
            ),
            OpenError::NewerFormat { .. } => (
                Exit::NewerFormat,
                "storage.newer_format",
                "Use the version that wrote it, or a newer one. Nothing was changed.",
            ),
            OpenError::Damaged { .. } => (
                Exit::Damaged,
                "storage.damaged",
                "Run `longhaul verify --data DIR` to see what is hit. Nothing was changed.",
            ),
            OpenError::Full { .. } => (
                Exit::DiskFull,
                "storage.full",
                "Make room on that device and start again.",
            ),
            OpenError::Io { .. } => (
                Exit::Failed,
                "storage.unusable",
                "Check that the folder can be made, read and written by this user.",
            ),
        };
        Self::new(exit, code, e.to_string(), next)
    }
}

impl From<ConfigError> for CliError {
    fn from(e: ConfigError) -> Self {
        let next = "See docs/configuration.md for the settings and their values.";
        Self::new(Exit::Usage, "config.invalid", e.to_string(), next)
    }
}

impl From<crate::error::OpenError> for CliError {
    fn from(e: crate::error::OpenError) -> Self {
        use crate::error::OpenError as E;
        match e {
            E::Config(e) => e.into(),
            E::Log(e) => e.into(),
            E::Engine(r) => r.into(),
            E::Tokens(_) => Self::new(
                Exit::Usage,
                "config.tokens",
                e.to_string(),
                "Correct the file; `longhaul token new` prints lines for it.",
            ),
            E::Died | E::Runner(_) | E::Snapshots(_) => Self::failed("serve.start", e.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_distinct() {
        let mut numbers: Vec<u8> = Exit::ALL.iter().map(|(e, _)| *e as u8).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), Exit::ALL.len());
    }

    #[test]
    fn a_problem_keeps_its_code_and_gains_advice() {
        let body = json!({"status": 409, "code": "session.terminal", "title": "t",
            "detail": "it is over", "retryable": false, "request_id": "r1"});
        let e = CliError::of_problem(409, &body);
        assert_eq!(e.exit, Exit::Conflict);
        assert_eq!(e.code, "session.terminal");
        assert_eq!(e.next, Code::SessionTerminal.info().next);
        assert!(e.to_string().contains("request_id"));
    }

    #[test]
    fn an_answer_that_is_no_problem_still_has_a_code() {
        let e = CliError::of_problem(502, &Value::Null);
        assert_eq!((e.exit, e.code.as_str()), (Exit::TryLater, "http.502"));
    }
}
