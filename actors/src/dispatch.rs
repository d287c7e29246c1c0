//! Which queued run goes to which waiting runner. [`matcher`] decides, purely; [`actor`] carries
//! it out: a claim is a command to the session, which may refuse it.

pub mod actor;
pub mod clones;
pub mod liveness;
pub mod matcher;
pub mod ready;
#[cfg(test)]
mod tests;

use crate::ids::{HarnessRevision, RunnerId, SandboxRevision};
use crate::session::payload::WorkspaceRef;

/// What a runner says it can drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RunnerTarget {
    /// `<harness_revision>/<sandbox_profile_revision>`.
    Exact(HarnessRevision, SandboxRevision),
    /// `*`: every `external` harness.
    AnyExternal,
    /// Every other harness: for the runner of this process, never on the wire.
    AnyInternal,
    /// Runs whose disk this very runner has; implied, never on the wire.
    Only(RunnerId),
}

impl RunnerTarget {
    /// Reads the wire form.
    ///
    /// # Errors
    /// [`crate::ids::IdError`] if it is neither `*` nor two revisions with a slash between.
    pub fn parse(text: &str) -> Result<Self, crate::ids::IdError> {
        if text == "*" {
            return Ok(Self::AnyExternal);
        }
        let (harness, sandbox) = text.split_once('/').unwrap_or((text, ""));
        Ok(Self::Exact(
            HarnessRevision::parse(harness)?,
            SandboxRevision::parse(sandbox)?,
        ))
    }
}

impl std::fmt::Display for RunnerTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(h, s) => write!(f, "{h}/{s}"),
            Self::AnyExternal => f.write_str("*"),
            Self::AnyInternal => f.write_str("internal"),
            Self::Only(id) => write!(f, "only {id}"),
        }
    }
}

/// Which workspaces a runner serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Workspaces {
    /// The one it enrolled in.
    One(WorkspaceRef),
    /// All of them.
    All,
}

/// A runner as enrolled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerInfo {
    /// Its id.
    pub id: RunnerId,
    /// What it can drive.
    pub targets: Vec<RunnerTarget>,
    /// Whom it serves.
    pub workspaces: Workspaces,
    /// Live claims it may hold at once.
    pub capacity: u32,
    /// Gets no more claims.
    pub draining: bool,
}
