//! How a conversation goes on.

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::ids::{CheckpointId, SessionId};

/// How a conversation goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    pub(super) session: SessionId,
    pub(super) prompt: Option<String>,
    pub(super) from: Option<String>,
    pub(super) user: Option<String>,
}

impl Resume {
    /// From wherever the session is. Without a checkpoint that is the log itself.
    pub fn of(session: SessionId) -> Self {
        Self {
            session,
            prompt: None,
            from: None,
            user: None,
        }
    }

    /// Says this; without it the agent is told to go on, by the runtime.
    #[must_use]
    pub fn prompt(mut self, prompt: impl Into<String>) -> Self {
        self.prompt = Some(prompt.into());
        self
    }

    /// From this checkpoint: the session's newest one goes on in place, an older one in a fork,
    /// and the session stays as it is.
    #[must_use]
    pub fn from_checkpoint(mut self, id: impl Into<String>) -> Self {
        self.from = Some(id.into());
        self
    }

    /// Who the session must act as; another one's looks absent.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The checkpoint, if one was named. A name that cannot be one is that of none.
    pub(super) fn checkpoint(&self) -> Result<Option<CheckpointId>, Rejection> {
        let Some(id) = &self.from else {
            return Ok(None);
        };
        CheckpointId::parse(id).map(Some).map_err(|why| {
            Rejection::new(Code::CheckpointNotFound, format!("{id:?} is none: {why}"))
        })
    }
}
