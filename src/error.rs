//! Errors: one type for everything that can be refused or fail after the start, with a stable
//! code and a kind that says what to do; and the reasons a runtime cannot open.

pub use longhaul_actors::code::{Code, Info, Kind, Rejection as Error};

use crate::auth::TokensError;
use crate::config::ConfigError;

/// Why a runtime could not be opened. Nothing was changed on disk.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The settings do not fit together.
    #[error("configuration: {0}")]
    Config(#[from] ConfigError),
    /// The log cannot be opened; the message names the folder.
    #[error(transparent)]
    Log(#[from] longhaul_storage::OpenError),
    /// The tokens file cannot be used.
    #[error("tokens: {0}")]
    Tokens(#[from] TokensError),
    /// The engine or the catalog did not start.
    #[error("start: {0}")]
    Engine(#[from] Error),
    /// The thread that opened the log died.
    #[error("the thread that opened the log died")]
    Died,
    /// The store of snapshots cannot be opened.
    #[error("snapshots: {0}")]
    Snapshots(String),
    /// The built-in runner did not start.
    #[error("runner: {0}")]
    Runner(String),
}

/// docs/errors.md: every code, from the table in the code.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Errors\n\n\
         Every error is `application/problem+json`: `status`, `code`, `title`, `detail`, `retryable`,\n\
         `request_id`, and extras of the code. `retryable` says whether the very same request may\n\
         succeed later. Kinds: *refused* (the request is wrong or not allowed), *full* (a queue or an\n\
         allowance is full; see `Retry-After`), *stopped* (a part is stopped or starting), *fault*\n\
         (the server failed). Codes without a status appear only as the error of a run.\n\n\
         | code | status | kind | meaning | what to do |\n|---|---|---|---|---|\n",
    );
    for code in Code::ALL {
        let info = code.info();
        let status = if info.status == 0 {
            "-".to_owned()
        } else {
            info.status.to_string()
        };
        let kind = match info.kind {
            Kind::Refused => "refused",
            Kind::Full => "full",
            Kind::Stopped => "stopped",
            Kind::Fault => "fault",
        };
        out.push_str(&format!(
            "| `{}` | {status} | {kind} | {} | {} |\n",
            info.code, info.title, info.next
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/errors.md");
        let found = std::fs::read_to_string(path).unwrap_or_default();
        if found != markdown() && std::env::var_os("LONGHAUL_BLESS").is_some() {
            std::fs::write(path, markdown()).expect("docs/errors.md is writable");
            return;
        }
        assert_eq!(
            found,
            markdown(),
            "run the tests once with LONGHAUL_BLESS=1"
        );
    }
}
