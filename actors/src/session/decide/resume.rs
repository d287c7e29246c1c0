//! Going on with a conversation, and with a run that failed.

use serde_json::json;

use super::draft::{Draft, Emit};
use super::{people, turn};
use crate::checkpoint::plan;
use crate::code::{Code, Rejection};
use crate::ids::EventId;
use crate::session::command::{Prompt, Request, Resume};
use crate::session::decision::{Decision, Reply};
use crate::session::event::Cause;
use crate::session::facts::Facts;
use crate::session::payload::{Body, Outcome};

/// Says the prompt. Where the last run failed, the next one goes on with it: its journal counts.
pub(super) fn resume(
    mut draft: Draft<'_>,
    facts: &Facts,
    r: &Resume,
) -> Result<Decision, Rejection> {
    if let Some(decision) = people::first_answer(&draft, facts, &r.request)? {
        return Ok(decision);
    }
    people::open(&draft)?;
    if let Some(id) = r.checkpoint {
        let listed = &draft.base().checkpoints;
        let detail = format!("{id} is not the newest checkpoint here");
        let refused = Rejection::new(Code::CheckpointNotFound, detail);
        if listed.find(id).is_none() {
            return Err(refused);
        }
        let Some(head) = listed.head().filter(|c| c.created.checkpoint_id == id) else {
            return Err(refused.with(OLDER, true));
        };
        // Whoever names a disk gets that one or none.
        if let Some(why) = plan::why_named_unusable(head, draft.env.now_ms) {
            return Err(why);
        }
    }
    let said = say(&mut draft, &r.request, &r.prompt)?;
    let reply = resumed(&draft, said, false);
    Ok(draft.done_for(&r.request, reply))
}

/// Marks the refusal of a checkpoint that is listed and not the newest: a fork goes on from it.
pub const OLDER: &str = "older";

/// Says the prompt, and starts a run for it unless one is live.
pub(super) fn say(
    draft: &mut Draft<'_>,
    request: &Request,
    prompt: &Prompt,
) -> Result<EventId, Rejection> {
    draft.room_for(1)?;
    people::room_for_message(draft)?;
    draft.caused_by(Cause::Request(request.request_id.to_string()));
    let emit = Emit::by(prompt.author.clone(), None);
    let id = draft.emit_input(&prompt.message, emit, Body::Opaque);
    draft.caused_by(Cause::Event(id));
    let last = draft.state().last_run.as_ref();
    let failed = last.filter(|r| r.outcome == Outcome::Failed).map(|r| r.id);
    turn::start_for(draft, id, failed)?;
    Ok(id)
}

/// The answer of a resume.
pub(super) fn resumed(draft: &Draft<'_>, said: EventId, forked: bool) -> Reply {
    let mut body = draft.accepted(&[said]);
    body.insert("session_id".to_owned(), json!(draft.base().id));
    body.insert("forked".to_owned(), json!(forked));
    Reply::json(202, &body.into())
}
