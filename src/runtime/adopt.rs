//! Sandboxes that operations of an earlier process left: taken up again before any claim or
//! operation is decided.

use longhaul_actors::code::Rejection;
use longhaul_actors::ids::{RunnerId, SessionId};
use longhaul_actors::session::operation;

use super::{Asked, Runtime};
use crate::runner::attached::Attached;
use crate::runner::sandbox::dir::{DirProvider, Left};

impl Runtime {
    /// Takes up what the provider found, each as dirty. What no session goes on with is removed.
    pub(crate) async fn adopt_left(
        &self,
        provider: &DirProvider,
        attached: &Attached,
        runner: RunnerId,
    ) {
        for left in provider.take_left() {
            if let Err(why) = self.adopt_one(provider, attached, runner, &left).await {
                let session = &left.session_id;
                tracing::info!(session, %why, "a sandbox of an earlier process is removed");
                provider.remove_left(left).await;
            }
        }
    }

    async fn adopt_one(
        &self,
        provider: &DirProvider,
        attached: &Attached,
        runner: RunnerId,
        left: &Left,
    ) -> Result<(), Rejection> {
        use longhaul_actors::code::Code;
        let id = |e: longhaul_actors::ids::IdError| Rejection::new(Code::IdInvalid, e.to_string());
        let session = SessionId::parse(&left.session_id).map_err(id)?;
        let workspace = self.engine().workspace_of(session).await?;
        let profile = self.dir_profile(workspace, session).await?;
        let sandbox = provider.reopen(left, &profile).await?;
        let request = Asked::internal(workspace).request();
        let found = operation::Attached {
            runner,
            dirty: true,
        };
        self.engine()
            .adopt_attached(session, request, found)
            .await?;
        let now = self.door().clock.mono();
        attached.leave(&left.session_id, sandbox, now);
        tracing::info!(%session, "took up the sandbox that an operation left");
        Ok(())
    }
}
