//! Pruning, and what was spent, from every door.

use longhaul_actors::code::Rejection;
use longhaul_actors::engine::{PruneQuery, Pruned, UsageQuery};
use longhaul_actors::ids::SessionId;
use longhaul_actors::session::payload::WorkspaceRef;
use longhaul_actors::session::viewer::Viewer;
use serde_json::Value;

use super::Runtime;
use super::sessions::Asked;

impl Runtime {
    /// Lets journals of what is over go, and checkpoints, in the default workspace, as `dev`.
    /// A call does a bounded part; [`Pruned::next`] goes on.
    ///
    /// # Errors
    /// As [`Runtime::prune_as`].
    pub async fn prune(&self, query: PruneQuery) -> Result<Pruned, Rejection> {
        self.prune_as(Asked::internal(WorkspaceRef::DEFAULT), query)
            .await
    }

    /// Likewise, among the sessions that there are for a caller. What a living fork shares stays,
    /// and so do pinned checkpoints, the journal and the newest disk of a run that is live or
    /// parked, or that failed and can be continued.
    ///
    /// # Errors
    /// `prune.filter_empty`, `session.not_found` and the like for a session that is named, and
    /// those of a command.
    #[tracing::instrument(level = "debug", skip_all, fields(request_id = %asked.request_id))]
    pub async fn prune_as(&self, asked: Asked, query: PruneQuery) -> Result<Pruned, Rejection> {
        self.engine().prune(asked.request(), query).await
    }

    /// What a session spent: itself, by model and by run; what it inherited; all of its family.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`, `session.damaged`.
    pub async fn usage(
        &self,
        viewer: Viewer,
        session: SessionId,
        query: UsageQuery,
    ) -> Result<Value, Rejection> {
        self.engine().usage(viewer, session, query).await
    }
}
