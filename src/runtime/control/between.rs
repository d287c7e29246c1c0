//! Sandboxes between operations: taken back after a restart, let go when nobody uses them.

use std::sync::Arc;
use std::time::Duration;

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::engine::operations::Opened;
use longhaul_actors::ids::SessionId;
use longhaul_actors::session::operation::OperationKind;

use super::{Control, Named};
use crate::runner::attached::Disk;
use crate::runner::sandbox::Stay;
use crate::runner::sandbox::dir::DirProvider;
use crate::runtime::{Asked, Runtime};

/// How often sandboxes that nobody uses are looked for.
const LOOK: Duration = Duration::from_secs(5);

impl Runtime {
    /// Takes the sandboxes back that operations left before a restart, before any run is claimed.
    /// Those that are not wanted any more go.
    pub(crate) async fn attach_left(&self, control: &Control, provider: &DirProvider) {
        for (stay, name) in provider.left() {
            if let Err(why) = self.attach(control, provider, &stay, &name).await {
                let session = stay.session_id;
                tracing::info!(session, %why, "a sandbox of an earlier process is not attached again");
                provider.discard(&name).await;
            }
        }
    }

    async fn attach(
        &self,
        control: &Control,
        provider: &DirProvider,
        stay: &Stay,
        name: &str,
    ) -> Result<(), Rejection> {
        let session = SessionId::parse(&stay.session_id)
            .map_err(|e| Rejection::new(Code::IdInvalid, e.to_string()))?;
        let asked = Asked::internal(self.engine().workspace_of(session).await?);
        let work = self
            .work_with(Some(control.clone()), asked, session)
            .await?;
        // The runtime's own request is never an earlier one again.
        let Opened::Begun(id, _) = work.begin(OperationKind::Attach).await? else {
            return Err(Code::Internal.into());
        };
        let disk = Disk {
            sandbox: Arc::from(provider.adopt(name, &stay.session_id, &work.profile)),
            began: stay.began,
        };
        work.end_attached(id, &disk)
            .await
            .map(drop)
            .inspect_err(|_| {
                drop(control.attached.take(&session.to_string()));
            })
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
                if let Err(why) = self.rest(session).await {
                    let now = control.door.clock.mono();
                    let again_s = control.attached.put_off(&id, now).as_secs();
                    tracing::warn!(%session, %why, again_s, "an idle sandbox stays attached");
                }
            }
        }
    }

    async fn rest(&self, session: SessionId) -> Result<(), Rejection> {
        let rested = self.keep_idle(session).await;
        let over = |why: &Rejection| {
            matches!(
                why.code,
                Code::SessionErased | Code::SessionNotFound | Code::SessionTerminal
            ) || why.code == Code::UnsupportedBackend
        };
        match rested {
            // Never to be used again.
            Err(why) if over(&why) => {
                self.let_go(session).await;
                Ok(())
            }
            other => other,
        }
    }

    async fn keep_idle(&self, session: SessionId) -> Result<(), Rejection> {
        let workspace = self.engine().workspace_of(session).await?;
        let work = self.work(Asked::internal(workspace), session).await?;
        let named = Named {
            name: Some("idle".to_owned()),
            ..Named::default()
        };
        work.keep(OperationKind::Rest, named).await.map(drop)
    }

    /// The session has ended: whatever an operation left of its disk goes.
    pub(crate) async fn let_go(&self, session: SessionId) {
        let Some(control) = self.control() else {
            return;
        };
        if let Some(Disk { sandbox, .. }) = control.attached.take(&session.to_string()) {
            // On the runner's threads: whoever asked may have none of tokio's.
            let released = control
                .threads
                .spawn(async move { sandbox.release().await });
            if let Err(error) = released.await {
                tracing::warn!(%session, %error, "a sandbox was not removed");
            }
        }
    }
}
