//! What a session and its family spent.

use longhaul_storage::ReadError;
use serde_json::{Value, json};

use super::Engine;
use crate::code::Rejection;
use crate::ids::SessionId;
use crate::reader::Class;
use crate::session::actor::recover;
use crate::session::payload::Usage;
use crate::session::viewer::Viewer;

/// Which runs are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageQuery {
    /// Runs queued after this position (pages go on from here).
    pub after: Option<u64>,
    /// Most runs.
    pub limit: usize,
}

impl Engine {
    /// What a session spent itself, by model and by run, what it inherited, and what all of its
    /// family spent, as far as that is for the viewer and not erased.
    ///
    /// # Errors
    /// As [`Engine::show`].
    pub async fn usage(
        &self,
        viewer: Viewer,
        session: SessionId,
        query: UsageQuery,
    ) -> Result<Value, Rejection> {
        let state = self.state(viewer.clone(), session).await?;
        let runs = self.runs(viewer.clone(), session, query.after, query.limit);
        let runs = runs.await?;
        let family = self.family(viewer, session).await?;
        let others = family.members.into_iter();
        let others = others.filter(|m| m.row.is_some() && m.id != session);
        let others: Vec<SessionId> = others.map(|m| m.id).collect();
        let mut sessions = 1;
        let mut usage = state.usage;
        let read = self.inner.read(Class::Page, move |view| {
            let mut spent = Vec::with_capacity(others.len());
            for id in others {
                match recover(view, id) {
                    Ok(recovered) => spent.push(recovered.state.usage),
                    // Erased since the family was read.
                    Err(ReadError::Erased | ReadError::NotFound) => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(spent)
        });
        for spent in read.await? {
            sessions += 1;
            usage = Usage::plus(usage, spent);
        }
        let by_run = runs.items.iter();
        let by_run = by_run.map(|r| json!({"run_id": r.get("id"), "usage": r.get("usage")}));
        Ok(json!({
            "session": {"usage": state.usage, "by_model": state.spent},
            "inherited": state.inherited_usage,
            "runs": by_run.collect::<Vec<_>>(),
            "next_page": runs.next_after.map(|seq| seq.to_string()),
            "tree": {"usage": usage, "sessions": sessions, "truncated": family.truncated},
        }))
    }
}
