//! Who looks at sessions, and which of them there are for it.

use std::sync::Arc;

use super::payload::WorkspaceRef;

/// Whom sessions are shown to. What it does not see looks absent, whatever is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Viewer {
    /// Its workspace: there are no sessions of others.
    pub workspace: WorkspaceRef,
    /// The one principal whose sessions there are; `None` = all of the workspace.
    pub principal: Option<Arc<str>>,
}

impl Viewer {
    /// Sees every session of a workspace.
    pub const fn all(workspace: WorkspaceRef) -> Self {
        Self {
            workspace,
            principal: None,
        }
    }

    /// Whether there is a session of this workspace and principal for it.
    pub fn sees(&self, workspace: WorkspaceRef, principal: &str) -> bool {
        self.workspace == workspace && self.sees_principal(principal)
    }

    /// Whether sessions of this principal are shown, within the workspace.
    pub fn sees_principal(&self, principal: &str) -> bool {
        self.principal.as_deref().is_none_or(|p| p == principal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::WorkspaceId;

    #[test]
    fn a_principal_sees_its_own_in_its_workspace() {
        let (here, there) = (WorkspaceRef::DEFAULT, WorkspaceRef(WorkspaceId([7; 16])));
        let ann = Viewer {
            principal: Some("ann".into()),
            ..Viewer::all(here)
        };
        assert!(ann.sees(here, "ann"));
        assert!(!ann.sees(here, "bob") && !ann.sees(there, "ann") && !ann.sees(here, ""));
        assert!(Viewer::all(here).sees(here, "bob") && !Viewer::all(here).sees(there, "bob"));
    }
}
