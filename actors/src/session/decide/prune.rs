//! What is no longer wanted goes: journals of what is over, and checkpoints.

use serde_json::json;

use super::checkpoint::drop_blob;
use super::draft::{Draft, Emit};
use super::people::first_answer;
use crate::code::Rejection;
use crate::session::command::Prune;
use crate::session::decision::{Decision, Reply};
use crate::session::event::{Cause, EventType};
use crate::session::facts::Facts;
use crate::session::payload::{Body, CheckpointDeleted, ContentErased, DeletedWhat, ErasedReason};
use crate::session::prune;

/// Lets the checkpoints go that can, and the contents that were found.
pub(super) fn prune(mut draft: Draft<'_>, facts: &Facts, p: &Prune) -> Result<Decision, Rejection> {
    if let Some(decision) = first_answer(&draft, facts, &p.request)? {
        return Ok(decision);
    }
    draft.caused_by(Cause::Request(p.request.request_id.to_string()));
    let emit = || Emit::by(p.request.author.clone(), None);
    let gone = prune::checkpoints(draft.base(), p.before_ms);
    for checkpoint_id in &gone {
        drop_blob(&mut draft, *checkpoint_id);
        let body = CheckpointDeleted {
            checkpoint_id: *checkpoint_id,
            what: DeletedWhat::Checkpoint,
        };
        draft.emit(
            EventType::CheckpointDeleted,
            emit(),
            Body::CheckpointDeleted(body),
        );
    }
    // Whoever looked may have seen less than is so by now.
    let settled = prune::settled_through(draft.base());
    let ranges = p.ranges.iter().copied();
    let ranges: Vec<_> = ranges.filter(|(_, to)| *to <= settled).collect();
    if let Some((_, through_seq)) = ranges.last().copied() {
        let erased = ContentErased {
            reason: ErasedReason::Pruned,
            through_seq,
            kept_seq: p.shared_seq,
            ranges: ranges.clone(),
        };
        draft.emit(
            EventType::ContentErased,
            emit(),
            Body::ContentErased(erased),
        );
    }
    let reply = Reply::json(200, &json!({ "checkpoints": gone }));
    let mut decision = draft.done(reply);
    decision.expire = ranges;
    Ok(decision)
}
