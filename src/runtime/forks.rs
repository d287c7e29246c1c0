//! Forks, how sessions compare, and checkpoints, from every door.

use longhaul_actors::code::Rejection;
use longhaul_actors::engine::{Answer, Common, EventPage, EventQuery, FamilyMember, ForkRequest};
use longhaul_actors::ids::{CheckpointId, SessionId};
use longhaul_actors::session::command::{Command, PinCheckpoint};
use longhaul_actors::session::payload::Selector;
use longhaul_actors::session::viewer::Viewer;
use longhaul_storage::Order;
use serde_json::{Map, Value, json};

use super::Runtime;
use super::sessions::{Asked, check_principal};

/// A fork to be.
#[derive(Debug, Clone)]
pub struct ForkSession {
    /// Where it starts; the place itself is part of the child.
    pub from: Selector,
    /// Who the child acts as; `None` = as the source.
    pub principal: Option<String>,
    /// The child's pairs; `None` = the source's.
    pub metadata: Option<Map<String, Value>>,
}

/// Which part of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiffQuery {
    /// Most events of each side.
    pub limit: usize,
    /// Left events start after this position, or after the shared past if that is later.
    pub left_after: Option<u64>,
    /// The same for the right side.
    pub right_after: Option<u64>,
}

impl Default for DiffQuery {
    fn default() -> Self {
        Self {
            limit: 100,
            left_after: None,
            right_after: None,
        }
    }
}

/// How two sessions compare: what they share, and what each has of its own.
#[derive(Debug, Clone)]
pub struct Diff {
    /// Where they part.
    pub common: Common,
    /// The session that was asked.
    pub left: DiffSide,
    /// The one it was compared with.
    pub right: DiffSide,
}

/// One side of a comparison.
#[derive(Debug, Clone)]
pub struct DiffSide {
    /// The session.
    pub session: SessionId,
    /// Its status, as shown.
    pub status: Value,
    /// Its own usage, as shown.
    pub usage: Value,
    /// A page of its events after the shared past.
    pub page: EventPage,
}

impl Runtime {
    /// Forks a session; the answer shows the child.
    ///
    /// # Errors
    /// `request.field_invalid` for the principal's name, `auth.scope_missing` for another
    /// principal than the caller, `event.not_found`,
    /// `checkpoint.not_found`, those of a checkpoint that cannot be used, and of the command.
    #[tracing::instrument(level = "debug", skip_all, fields(%source, request_id = %asked.request_id))]
    pub async fn fork(
        &self,
        asked: Asked,
        source: SessionId,
        new: ForkSession,
    ) -> Result<Answer, Rejection> {
        if let Some(principal) = &new.principal {
            check_principal(principal)?;
            asked.caller.may_act_as(principal)?;
        }
        let ask = ForkRequest {
            request: asked.request(),
            source,
            selector: new.from,
            principal: new.principal,
            metadata: new.metadata,
            prompt: None,
        };
        self.engine().fork(ask).await
    }

    /// Compares two sessions. Positions that cannot be read are there with the
    /// state of their content.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`, `session.damaged`, of either.
    pub async fn diff(
        &self,
        viewer: Viewer,
        left: SessionId,
        right: SessionId,
        query: DiffQuery,
    ) -> Result<Diff, Rejection> {
        // Shown first: what is wrong with one of them is said of that one.
        let (left_shown, right_shown) = (
            self.engine().show(viewer.clone(), left).await?,
            self.engine().show(viewer.clone(), right).await?,
        );
        let common = self.engine().common(viewer.clone(), left, right).await?;
        let side = async |session: SessionId, shown: Value, after: Option<u64>| {
            let after = after.unwrap_or(0).max(common.through_seq);
            let query = EventQuery {
                after: Some(after),
                before: None,
                order: Order::Asc,
                limit: query.limit,
                types: None,
            };
            let page = self.engine().events(viewer.clone(), session, query).await?;
            let of = |key: &str| shown.get(key).cloned().unwrap_or_default();
            Ok::<_, Rejection>(DiffSide {
                session,
                status: of("status"),
                usage: of("usage"),
                page,
            })
        };
        Ok(Diff {
            common,
            left: side(left, left_shown, query.left_after).await?,
            right: side(right, right_shown, query.right_after).await?,
        })
    }

    /// The family of a session: everything forked from the same first one, erased ones as places
    /// without content.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`, `session.damaged`.
    pub async fn tree(&self, viewer: Viewer, session: SessionId) -> Result<Value, Rejection> {
        let family = self.engine().family(viewer, session).await?;
        let sessions: Vec<Value> = family.members.iter().map(FamilyMember::json).collect();
        Ok(json!({
            "session_id": session,
            "root": family.root,
            "sessions": sessions,
            "truncated": family.truncated,
        }))
    }

    /// The checkpoints of a session, newest first: what is known of them, never their contents.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`, `session.damaged`.
    pub async fn checkpoints(
        &self,
        viewer: Viewer,
        session: SessionId,
    ) -> Result<Vec<Value>, Rejection> {
        self.engine().checkpoints(viewer, session).await
    }

    /// Exempts a checkpoint from the count, or no longer; the answer shows it.
    ///
    /// # Errors
    /// `checkpoint.not_found`, `checkpoint.pinned_limit`, and those of the command.
    #[tracing::instrument(level = "debug", skip_all, fields(%session, %checkpoint, request_id = %asked.request_id))]
    pub async fn pin(
        &self,
        asked: Asked,
        session: SessionId,
        checkpoint: CheckpointId,
        pinned: bool,
    ) -> Result<Answer, Rejection> {
        let pin = PinCheckpoint {
            request: asked.request(),
            checkpoint,
            pinned,
        };
        self.engine()
            .command(session, Command::Pin(Box::new(pin)))
            .await
    }
}
