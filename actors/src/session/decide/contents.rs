//! Contents whose time is over.

use super::draft::{Draft, Emit};
use crate::session::aging::{MISSING_MAX, miss};
use crate::session::decision::{Decision, Reply};
use crate::session::event::EventType;
use crate::session::facts::{Aged, Facts};
use crate::session::payload::{Body, ContentErased, ErasedReason};

/// What a look at the contents of a session comes to.
#[derive(Default)]
struct Look {
    /// Contents that go, exactly.
    expire: Vec<(u64, u64)>,
    /// When to look again.
    again_ms: Option<i64>,
}

/// Lets contents go, one bounded step, if nothing has happened for long enough. Age counts from
/// the last event, so a timer that is due may have to wait on.
pub(super) fn expire(mut draft: Draft<'_>, facts: &Facts, since_seq: u64) -> Decision {
    let look = look(&mut draft, facts, since_seq);
    let mut decision = draft.done(Reply::ok());
    decision.expire = look.expire;
    decision.again_ms = look.again_ms;
    decision
}

fn look(draft: &mut Draft<'_>, facts: &Facts, since_seq: u64) -> Look {
    let (base, now_ms) = (draft.base(), draft.env.now_ms);
    let Some(ttl_ms) = base.content_ttl_ms() else {
        return Look::default();
    };
    let aging = base.aging;
    if !aging.waits() || aging.since_seq != since_seq {
        // Another timer has taken its place.
        return Look::default();
    }
    let again = |at_ms| Look {
        again_ms: Some(at_ms),
        ..Look::default()
    };
    let due_ms = aging.active_at_ms.saturating_add(ttl_ms);
    if now_ms < due_ms {
        return again(due_ms);
    }
    let looked_at = (aging.through_seq, aging.kept_seq);
    let Some(aged) = facts.aged.as_ref().filter(|a| a.looked_at == looked_at) else {
        // Somebody has been here since.
        return again(now_ms);
    };
    if aged.ranges.is_empty() && (aged.through_seq, aged.kept_seq) == looked_at {
        // All that is left is shared: that can change without an event here.
        return again(now_ms.saturating_add(ttl_ms));
    }
    draft.emit(
        EventType::ContentErased,
        Emit::system(None),
        Body::ContentErased(erased(aged)),
    );
    let left = draft.state().aging;
    let more = left.last_seq > left.through_seq || left.kept_seq > aged.shared_seq;
    let again_ms = if more {
        Some(now_ms)
    } else {
        (left.kept_seq > 0).then(|| now_ms.saturating_add(ttl_ms))
    };
    Look {
        expire: aged.ranges.clone(),
        again_ms,
    }
}

fn erased(aged: &Aged) -> ContentErased {
    let mut ranges = Vec::with_capacity(aged.ranges.len().min(MISSING_MAX));
    for range in &aged.ranges {
        miss(&mut ranges, *range);
    }
    ContentErased {
        reason: ErasedReason::Retention,
        through_seq: aged.through_seq,
        kept_seq: aged.kept_seq,
        ranges,
    }
}
