//! Going on with a conversation.

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::engine::{Answer, ForkRequest};
use longhaul_actors::ids::{CheckpointId, SessionId};
use longhaul_actors::session::command::{Command, Prompt, Resume};
use longhaul_actors::session::decide::OLDER;
use longhaul_actors::session::event::Author;
use longhaul_actors::session::input::{Origin, parse_one};
use longhaul_actors::session::payload::Selector;
use serde_json::json;

use super::Runtime;
use super::sessions::Asked;

/// What an agent is told where nobody says anything.
pub const NUDGE: &str = "Continue from where you left off.";

/// How a conversation goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResumeSession {
    /// What is said; `None` = a nudge of the runtime's own.
    pub prompt: Option<String>,
    /// From this checkpoint: the newest one goes on in place, an older one in a fork. `None` =
    /// from wherever the conversation is.
    pub from: Option<CheckpointId>,
    /// Who the session must act as; another one's looks absent.
    pub user: Option<String>,
}

impl Runtime {
    /// Goes on with a conversation: a message in place, or in a fork where it goes on from an older
    /// checkpoint. Where the last run failed, the next one continues it: steps that it completed
    /// are not made again. The answer has `session_id`, `forked` and `events`.
    ///
    /// # Errors
    /// `checkpoint.not_found`, `session.not_found` (also for another user's), `session.terminal`,
    /// those of a fork, and of the command.
    #[tracing::instrument(level = "debug", skip_all, fields(%session, request_id = %asked.request_id))]
    pub async fn resume(
        &self,
        asked: Asked,
        session: SessionId,
        resume: ResumeSession,
    ) -> Result<Answer, Rejection> {
        if resume
            .prompt
            .as_deref()
            .is_some_and(|p| p.trim().is_empty())
        {
            let detail = "`prompt` says something, or is left out";
            return Err(Rejection::new(Code::FieldInvalid, detail));
        }
        if let Some(user) = &resume.user {
            let shown = self.engine().show(asked.caller.viewer(), session).await?;
            if shown.get("principal") != Some(&json!(user)) {
                let detail = format!("there is no session {session} here");
                return Err(Rejection::new(Code::SessionNotFound, detail));
            }
        }
        let request = asked.request();
        let author = match resume.prompt {
            Some(_) => request.author.clone(),
            None => Author::system(),
        };
        let text = resume.prompt.as_deref().unwrap_or(NUDGE);
        let content = json!({ "text": text }).to_string();
        let prompt = Prompt {
            author,
            message: parse_one(Origin::People, "user.message", &content)?,
        };
        let in_place = Resume {
            request: request.clone(),
            prompt: prompt.clone(),
            checkpoint: resume.from,
        };
        let command = Command::Resume(Box::new(in_place));
        let refused = match self.engine().command(session, command).await {
            Err(refused) => refused,
            answered => return answered,
        };
        let Some(older) = resume.from.filter(|_| refused.extras.contains_key(OLDER)) else {
            return Err(refused);
        };
        let fork = ForkRequest {
            request,
            source: session,
            selector: Selector::CheckpointId(older),
            principal: None,
            metadata: None,
            prompt: Some(Box::new(prompt)),
        };
        self.engine().fork(fork).await
    }
}
