//! Who calls, and what they may do. Tokens are compared by their BLAKE3 digest, in constant time.

mod tokens;

use std::sync::Arc;

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::env::Door;
use longhaul_actors::ids::RunnerId;
use longhaul_actors::session::command::Bearer;
use longhaul_actors::session::event::{Author, AuthorKind};
use longhaul_actors::session::payload::WorkspaceRef;
use longhaul_actors::session::viewer::Viewer;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

pub use tokens::{TokenLine, Tokens, TokensError};

/// What a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Read sessions, events, deployments.
    Read,
    /// Create and change them.
    Write,
    /// Enrol runners, claim runs and work on them.
    Run,
    /// See every principal's sessions, create workspaces, enrol runners for all of them, read
    /// metrics.
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Run, Self::Admin];

    /// The wire form.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Run => "run",
            Self::Admin => "admin",
        }
    }

    /// Reads the wire form.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.text() == text)
    }
}

/// What sort of caller a token belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallerKind {
    /// A person or service.
    Principal,
    /// A runner.
    Runner,
}

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The tenant it belongs to.
    pub workspace: WorkspaceRef,
    /// What sort of caller.
    pub kind: CallerKind,
    /// The principal's or runner's name.
    pub id: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// The one runner that its token was made for.
    pub runner: Option<RunnerId>,
}

impl Caller {
    /// The caller of a server without tokens, and the default one of a host: may do everything.
    pub fn dev(workspace: WorkspaceRef) -> Self {
        Self {
            workspace,
            kind: CallerKind::Principal,
            id: "dev".to_owned(),
            scopes: Scope::ALL.to_vec(),
            runner: None,
        }
    }

    /// Whether it has the scope.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }

    /// Refuses a caller without the scope.
    ///
    /// # Errors
    /// `auth.scope_missing`.
    pub fn need(&self, scope: Scope) -> Result<(), Rejection> {
        if self.may(scope) {
            return Ok(());
        }
        let detail = format!("the token lacks the scope `{}`", scope.text());
        Err(Rejection::new(Code::ScopeMissing, detail).with("scope", scope.text()))
    }

    /// Which sessions there are for it: a principal's own, or with the scope `admin`, and for
    /// runners, those of the workspace.
    pub fn viewer(&self) -> Viewer {
        let alone = self.kind == CallerKind::Principal && !self.may(Scope::Admin);
        Viewer {
            workspace: self.workspace,
            principal: alone.then(|| self.id.as_str().into()),
        }
    }

    /// Refuses to let a session act as somebody whose sessions are not for this caller.
    ///
    /// # Errors
    /// `auth.scope_missing`.
    pub fn may_act_as(&self, principal: &str) -> Result<(), Rejection> {
        match self.viewer().sees_principal(principal) {
            true => Ok(()),
            false => self.need(Scope::Admin),
        }
    }

    /// It, as the one who calls under a claim.
    pub fn bearer(&self) -> Bearer {
        match self.runner {
            Some(id) => Bearer::Runner(id),
            None if self.may(Scope::Admin) => Bearer::Trusted,
            None => Bearer::Workspace(self.workspace),
        }
    }

    /// It, as the author of events.
    pub fn author(&self) -> Author {
        let kind = match self.kind {
            CallerKind::Principal => AuthorKind::Principal,
            CallerKind::Runner => AuthorKind::Runner,
        };
        Author {
            kind,
            id: self.id.clone(),
        }
    }
}

/// Digest of a bearer token: what is kept of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash(pub [u8; 32]);

impl TokenHash {
    /// The digest of a token: plain BLAKE3 of its text, so that other tools can make it too.
    pub fn of(token: &str) -> Self {
        Self(*blake3::hash(token.as_bytes()).as_bytes())
    }

    /// 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        blake3::Hash::from_hex(text)
            .ok()
            .map(|h| Self(*h.as_bytes()))
    }

    /// Compares in constant time.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl std::fmt::Display for TokenHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

/// A new bearer token. Its text is shown once; only the digest is kept.
#[derive(Clone)]
pub struct NewToken {
    /// The token itself.
    pub secret: String,
    /// What is kept.
    pub hash: TokenHash,
}

impl NewToken {
    /// A token for the tokens file: `lht_` and 64 hexadecimal digits.
    pub fn mint(door: &Door) -> Self {
        Self::with_prefix("lht_", door)
    }

    /// The token of one enrolled runner: `lhr_`, the runner's 32 digits, and 64 more.
    pub fn for_runner(door: &Door, runner: RunnerId) -> Self {
        Self::with_prefix(&format!("lhr_{:032x}", u128::from_be_bytes(runner.0)), door)
    }

    fn with_prefix(prefix: &str, door: &Door) -> Self {
        let [a, b] = [door.ids.secret(), door.ids.secret()].map(u128::from_be_bytes);
        let secret = format!("{prefix}{a:032x}{b:032x}");
        let hash = TokenHash::of(&secret);
        Self { secret, hash }
    }
}

/// The runner that a token of [`NewToken::for_runner`] says it belongs to.
pub(crate) fn runner_of(token: &str) -> Option<RunnerId> {
    let (id, rest) = token.strip_prefix("lhr_")?.split_at_checked(32)?;
    let whole = rest.len() == 64;
    RunnerId::parse(&format!("{}{id}", RunnerId::PREFIX))
        .ok()
        .filter(|_| whole)
}

/// How requests are let in.
#[derive(Debug, Clone)]
pub enum Gate {
    /// No tokens: anyone who reaches the (loopback) port is `dev`.
    Open,
    /// Bearer tokens.
    Tokens(Arc<Tokens>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runner_token_leads_to_its_runner() {
        let door = Door::system();
        let id = RunnerId([7; 16]);
        let token = NewToken::for_runner(&door, id);
        assert_eq!(runner_of(&token.secret), Some(id));
        assert!(TokenHash::of(&token.secret).matches(&token.hash));
        assert_eq!(runner_of(&NewToken::mint(&door).secret), None);
        assert_eq!(runner_of("lhr_é"), None);
        assert_eq!(TokenHash::parse(&token.hash.to_string()), Some(token.hash));
    }
}
