//! The tokens file: JSON lines, read again when it changes.

use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use longhaul_actors::ids::RunnerId;
use longhaul_actors::session::payload::WorkspaceRef;
use longhaul_actors::time::parse_rfc3339;
use serde::{Deserialize, Serialize};

use super::{Caller, CallerKind, Scope, TokenHash};

/// Bytes of a tokens file.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// One line of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenLine {
    /// BLAKE3 of the token, 64 hexadecimal digits.
    pub hash: String,
    /// `default` or a `ws_` id.
    pub workspace: WorkspaceRef,
    /// Whose it is.
    pub kind: CallerKind,
    /// Their name (for one enrolled runner: its `rnr_` id).
    pub id: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// RFC 3339; absent = never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// Why a tokens file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokensError {
    /// It cannot be read.
    #[error("cannot read {path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// A line is not a token.
    #[error("{path}, line {line}: {reason}")]
    Line {
        /// The file.
        path: String,
        /// Its number, from 1.
        line: usize,
        /// What does not fit.
        reason: String,
    },
}

/// The tokens of a file, as of its last change.
#[derive(Debug)]
pub struct Tokens {
    path: PathBuf,
    read: RwLock<Read>,
}

#[derive(Debug, Default)]
struct Read {
    stamp: Option<Stamp>,
    by_hash: HashMap<[u8; 32], Known>,
}

/// What tells one version of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

#[derive(Debug, Clone)]
struct Known {
    hash: TokenHash,
    caller: Caller,
    expires_at_ms: Option<i64>,
}

impl Tokens {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read, or a line of it is not a token.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, TokensError> {
        let path = path.into();
        let read = read(&path)?;
        Ok(Self {
            path,
            read: RwLock::new(read),
        })
    }

    /// The caller that a token belongs to, if it is known and not expired.
    pub fn find(&self, token: &str, now_ms: i64) -> Option<Caller> {
        self.refresh();
        let hash = TokenHash::of(token);
        let read = self.read.read().unwrap_or_else(PoisonError::into_inner);
        // The map is keyed by digest: its timing says nothing about any token's text.
        let known = read
            .by_hash
            .get(&hash.0)
            .filter(|k| k.hash.matches(&hash))?;
        let valid = known.expires_at_ms.is_none_or(|at| now_ms < at);
        valid.then(|| known.caller.clone())
    }

    /// Reads the file again if it is another one. While it is gone nobody is known; while a line
    /// of it is wrong, the last good version stays.
    fn refresh(&self) {
        let stamp = std::fs::metadata(&self.path).ok().map(|m| Stamp::of(&m));
        if self
            .read
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .stamp
            == stamp
        {
            return;
        }
        let new = match (stamp, read(&self.path)) {
            (_, Ok(new)) => Some(new),
            (None, Err(_)) => Some(Read::default()),
            (Some(_), Err(reason)) => {
                tracing::error!(%reason, "the tokens file is wrong: keeping its last good version");
                None
            }
        };
        let mut read = self.read.write().unwrap_or_else(PoisonError::into_inner);
        match new {
            Some(new) => *read = new,
            None => read.stamp = stamp,
        }
    }
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self {
            inode: meta.ino(),
            len: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
        }
    }
}

fn read(path: &Path) -> Result<Read, TokensError> {
    let shown = path.display().to_string();
    let file = |reason: String| TokensError::File {
        path: shown.clone(),
        reason,
    };
    let meta = std::fs::metadata(path).map_err(|e| file(e.to_string()))?;
    if meta.len() > FILE_BYTES_MAX {
        return Err(file(format!("more than {FILE_BYTES_MAX} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|e| file(e.to_string()))?;
    let mut by_hash = HashMap::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let known = Known::read(line).map_err(|reason| TokensError::Line {
            path: shown.clone(),
            line: i + 1,
            reason,
        })?;
        by_hash.insert(known.hash.0, known);
    }
    Ok(Read {
        stamp: Some(Stamp::of(&meta)),
        by_hash,
    })
}

impl Known {
    fn read(line: &str) -> Result<Self, String> {
        let line: TokenLine = serde_json::from_str(line).map_err(|e| e.to_string())?;
        let hash = TokenHash::parse(&line.hash).ok_or("hash is 64 hexadecimal digits")?;
        if line.id.is_empty() || line.id.len() > 256 {
            return Err("id has 1 to 256 bytes".to_owned());
        }
        let expires_at_ms = match &line.expires_at {
            Some(text) => Some(parse_rfc3339(text).ok_or("expires_at is an RFC 3339 time")?),
            None => None,
        };
        let runner = match line.kind {
            CallerKind::Runner => RunnerId::parse(&line.id).ok(),
            CallerKind::Principal => None,
        };
        let caller = Caller {
            workspace: line.workspace,
            kind: line.kind,
            id: line.id,
            scopes: line.scopes,
            runner,
        };
        Ok(Self {
            hash,
            caller,
            expires_at_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(token: &str, id: &str, expires_at: Option<&str>) -> String {
        let line = TokenLine {
            hash: TokenHash::of(token).to_string(),
            workspace: WorkspaceRef::DEFAULT,
            kind: CallerKind::Principal,
            id: id.to_owned(),
            scopes: vec![Scope::Read],
            expires_at: expires_at.map(str::to_owned),
        };
        serde_json::to_string(&line).expect("serialises")
    }

    #[test]
    fn the_file_is_read_again_when_it_changes() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("tokens");
        std::fs::write(&path, format!("# people\n{}\n", line("a", "ann", None))).expect("write");
        let tokens = Tokens::open(&path).expect("valid");
        assert_eq!(tokens.find("a", 0).map(|c| c.id), Some("ann".to_owned()));
        assert_eq!(tokens.find("b", 0), None);

        std::fs::write(&path, line("b", "bob", None) + "\n\n").expect("write");
        assert_eq!(tokens.find("a", 0), None);
        assert_eq!(tokens.find("b", 0).map(|c| c.id), Some("bob".to_owned()));

        std::fs::write(&path, "not a token").expect("write");
        assert!(tokens.find("b", 0).is_some(), "the last good version stays");
        std::fs::remove_file(&path).expect("remove");
        assert_eq!(tokens.find("b", 0), None, "without a file nobody is known");
    }

    #[test]
    fn tokens_expire() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("tokens");
        std::fs::write(&path, line("a", "ann", Some("1970-01-01T00:00:01Z"))).expect("write");
        let tokens = Tokens::open(&path).expect("valid");
        assert!(tokens.find("a", 999).is_some());
        assert!(tokens.find("a", 1_000).is_none());
    }

    #[test]
    fn wrong_lines_are_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("tokens");
        assert!(matches!(Tokens::open(&path), Err(TokensError::File { .. })));
        for bad in [
            "{}",
            "x",
            &line("a", "", None),
            &line("a", "x", Some("soon")),
        ] {
            std::fs::write(&path, format!("\n{bad}\n")).expect("write");
            assert!(
                matches!(Tokens::open(&path), Err(TokensError::Line { line: 2, .. })),
                "{bad}"
            );
        }
    }
}
