//! Sandboxes that operations left: taken up again after a restart, before any claim or operation
//! is decided; let go when nobody uses them.

use std::time::Duration;

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::ids::{RunnerId, SessionId};
use longhaul_actors::session::checkpoints::DIR;
use longhaul_actors::session::operation::{self, OperationKind};
use longhaul_actors::session::payload::WorkspaceRef;
use serde_json::Value;

use super::control::{Control, Named};
use super::{Asked, Runtime};
use crate::runner::attached::Attached;
use crate::runner::sandbox::dir::{DirProvider, Left};

/// How often sandboxes that nobody uses are looked for.
const LOOK: Duration = Duration::from_secs(5);

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

    /// The profile of a session's `dir` sandbox.
    pub(super) async fn dir_profile(
        &self,
        workspace: WorkspaceRef,
        session: SessionId,
    ) -> Result<Value, Rejection> {
        let pin = self.engine().pin(workspace, session).await?;
        let revision = self
            .catalog()
            .revision(
                workspace,
                pin.agent_deployment,
                Some(pin.agent_deployment_revision_number),
            )
            .await?;
        let revision: Value = serde_json::from_str(&revision.json())
            .map_err(|e| Rejection::new(Code::Internal, e.to_string()))?;
        let profile = revision.get("sandbox").cloned().unwrap_or_default();
        if pin.external || profile.get("provider").and_then(Value::as_str) != Some(DIR) {
            let why = "the server makes no sandbox for this session";
            return Err(Rejection::new(Code::UnsupportedBackend, why));
        }
        Ok(profile)
    }

    /// Looks for sandboxes that nobody has used for long, for ever: keeps what changed, lets go.
    pub(crate) async fn rest_attached(self, control: Control) {
        let idle_s = self.config().runtimes.attached_idle_s_max;
        let idle = Duration::from_secs(idle_s);
        loop {
            let now = control.door.clock.mono();
            control.door.clock.sleep_until(now + LOOK).await;
            let Some(before) = control.door.clock.mono().checked_sub(idle) else {
                continue;
            };
            for id in control.attached.idle(before) {
                let Ok(session) = SessionId::parse(&id) else {
                    continue;
                };
                if let Err(why) = self.rest(&control, session).await {
                    tracing::warn!(%session, %why, "an idle sandbox stays attached");
                }
            }
        }
    }

    async fn rest(&self, control: &Control, session: SessionId) -> Result<(), Rejection> {
        let workspace = self.engine().workspace_of(session).await?;
        let asked = Asked::internal(workspace);
        match self.work(asked, session).await {
            Ok(work) => {
                let named = Named {
                    name: Some("idle".to_owned()),
                    ..Named::default()
                };
                work.keep(OperationKind::Rest, named).await.map(drop)
            }
            // Gone, or never to be used again.
            Err(why) => {
                if let Some(sandbox) = control.attached.take(&session.to_string()) {
                    sandbox.release().await;
                }
                Err(why)
            }
        }
    }
}
