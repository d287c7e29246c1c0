//! Commands to sessions, from every door: HTTP, handles, actix messages.

use std::sync::Arc;

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::engine::Answer;
use longhaul_actors::ids::{DeploymentId, SessionId};
use longhaul_actors::session::command::{
    Command, Create, Input, ReceiptKey, Request, SetBudget, Submit,
};
use longhaul_actors::session::payload::{Budget, WorkspaceRef};
use serde_json::{Map, Value};

use super::Runtime;
use crate::auth::Caller;

/// Bytes of a principal's name.
const PRINCIPAL_BYTES_MAX: usize = 256;

/// Who asks, and how the request is known.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The caller.
    pub caller: Arc<Caller>,
    /// The request's id.
    pub request_id: Arc<str>,
    /// Where its answer is kept, if the caller wants that.
    pub receipt: Option<ReceiptKey>,
}

/// A session to be, its events already checked for form.
#[derive(Debug, Clone)]
pub struct CreateSession {
    /// The agent.
    pub deployment: DeploymentId,
    /// Its revision; `None` = the newest now.
    pub revision: Option<u32>,
    /// Who the session acts as; `None` = the caller.
    pub principal: Option<String>,
    /// Caller's pairs.
    pub metadata: Map<String, Value>,
    /// What it may spend.
    pub budget: Option<Budget>,
    /// First events.
    pub events: Vec<Input>,
}

/// Events of people for one session, checked for form.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The last position the caller has seen, where it insists.
    pub expected_seq: Option<u64>,
    /// The events; all or none.
    pub events: Vec<Input>,
}

/// Where the answer to an Idempotency-Key is kept: by workspace, principal, method and path, key;
/// and what it answers: the body.
pub fn receipt_key(caller: &Caller, method_path: &str, key: &str, body: &[u8]) -> ReceiptKey {
    let mut hasher = blake3::Hasher::new_derive_key("longhaul receipt scope v1");
    hasher.update(&caller.workspace.0.0);
    for part in [caller.id.as_str(), method_path, key] {
        // Lengths first, so that no two lists of parts read alike.
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    let mut scope = [0; 16];
    hasher.finalize_xof().fill(&mut scope);
    let mut digest = [0; 16];
    blake3::Hasher::new()
        .update(body)
        .finalize_xof()
        .fill(&mut digest);
    ReceiptKey {
        scope,
        body: digest,
    }
}

/// A principal has a name of bounded length.
pub(super) fn check_principal(principal: &str) -> Result<(), Rejection> {
    if principal.is_empty() || principal.len() > PRINCIPAL_BYTES_MAX {
        let detail = format!("principal has 1 to {PRINCIPAL_BYTES_MAX} bytes");
        return Err(Rejection::new(Code::FieldInvalid, detail));
    }
    Ok(())
}

impl Asked {
    /// The runtime itself asks.
    pub(crate) fn internal(workspace: WorkspaceRef) -> Self {
        Self {
            caller: Arc::new(Caller::dev(workspace)),
            request_id: "runtime".into(),
            receipt: None,
        }
    }

    pub(crate) fn request(self) -> Request {
        Request {
            viewer: self.caller.viewer(),
            author: self.caller.author(),
            request_id: self.request_id,
            receipt: self.receipt,
        }
    }
}

impl Runtime {
    /// Admits a session.
    ///
    /// # Errors
    /// `deployment.not_found`, `deployment.revision_not_found`, `auth.scope_missing` for another
    /// principal, and those of the command.
    #[tracing::instrument(level = "debug", skip_all, fields(deployment = %new.deployment, request_id = %asked.request_id))]
    pub async fn create_session(
        &self,
        asked: Asked,
        new: CreateSession,
    ) -> Result<Answer, Rejection> {
        let principal = new.principal.unwrap_or_else(|| asked.caller.id.clone());
        check_principal(&principal)?;
        asked.caller.may_act_as(&principal)?;
        let workspace = asked.caller.workspace;
        let revision = self
            .catalog()
            .revision(workspace, new.deployment, new.revision)
            .await?;
        let retention = self.catalog().retention(workspace).await?;
        let create = Create {
            request: asked.request(),
            principal,
            pin: revision.pin(),
            metadata: new.metadata,
            budget: new.budget,
            retention,
            events: new.events,
        };
        let id = self.engine().new_session_id();
        self.engine()
            .command(id, Command::Create(Box::new(create)))
            .await
    }

    /// Appends events of people.
    ///
    /// # Errors
    /// Those of the command.
    #[tracing::instrument(level = "debug", skip_all, fields(%session, request_id = %asked.request_id))]
    pub async fn submit(
        &self,
        asked: Asked,
        session: SessionId,
        submission: Submission,
    ) -> Result<Answer, Rejection> {
        let Submission {
            expected_seq,
            events,
        } = submission;
        let submit = Submit {
            request: asked.request(),
            expected_seq,
            events,
        };
        self.engine()
            .command(session, Command::Submit(submit))
            .await
    }

    /// Ends a session as done.
    ///
    /// # Errors
    /// Those of the command.
    #[tracing::instrument(level = "debug", skip_all, fields(%session, request_id = %asked.request_id))]
    pub async fn complete(&self, asked: Asked, session: SessionId) -> Result<Answer, Rejection> {
        let done = self
            .engine()
            .command(session, Command::Complete(asked.request()))
            .await?;
        self.let_go(session).await;
        Ok(done)
    }

    /// Ends a session and whatever runs in it.
    ///
    /// # Errors
    /// Those of the command.
    #[tracing::instrument(level = "debug", skip_all, fields(%session, request_id = %asked.request_id))]
    pub async fn cancel(&self, asked: Asked, session: SessionId) -> Result<Answer, Rejection> {
        let done = self
            .engine()
            .command(session, Command::Cancel(asked.request()))
            .await?;
        self.let_go(session).await;
        Ok(done)
    }

    /// Changes what a session may spend: `None` = as it is, `Some(None)` = unlimited.
    ///
    /// # Errors
    /// Those of the command.
    #[tracing::instrument(level = "debug", skip_all, fields(%session, request_id = %asked.request_id))]
    pub async fn set_budget(
        &self,
        asked: Asked,
        session: SessionId,
        cost_micros_max: Option<Option<u64>>,
        tokens_max: Option<Option<u64>>,
    ) -> Result<Answer, Rejection> {
        let budget = SetBudget {
            request: asked.request(),
            cost_micros_max,
            tokens_max,
        };
        self.engine()
            .command(session, Command::Budget(budget))
            .await
    }

    /// Removes a session but for its tombstone.
    ///
    /// # Errors
    /// Those of the command.
    #[tracing::instrument(level = "debug", skip_all, fields(%session, request_id = %asked.request_id))]
    pub async fn erase(&self, asked: Asked, session: SessionId) -> Result<Answer, Rejection> {
        let done = self
            .engine()
            .command(session, Command::Erase(asked.request()))
            .await?;
        self.let_go(session).await;
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_receipt_counts() {
        let caller = Caller::dev(WorkspaceRef::DEFAULT);
        let other = Caller {
            id: "x".into(),
            ..caller.clone()
        };
        let key = receipt_key(&caller, "POST /a", "k", b"{}");
        assert_eq!(key, receipt_key(&caller, "POST /a", "k", b"{}"));
        let scopes = [
            receipt_key(&other, "POST /a", "k", b"{}").scope,
            receipt_key(&caller, "POST /b", "k", b"{}").scope,
            receipt_key(&caller, "POST /a", "l", b"{}").scope,
            receipt_key(&caller, "POST /", "ak", b"{}").scope,
        ];
        assert!(scopes.iter().all(|s| *s != key.scope));
        let body = receipt_key(&caller, "POST /a", "k", b"{ }");
        assert!(body.scope == key.scope && body.body != key.body);
    }
}
