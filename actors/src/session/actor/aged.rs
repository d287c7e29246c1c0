//! The next contents of a session to expire: one bounded step.

use longhaul_storage::{ContentState, Order, PageLimit, ReadError, Record, StreamId, View};

use crate::session::aging::Aging;
use crate::session::facts::Aged;
use crate::session::payload::Body;
use crate::session::stored::event_of;

/// Records looked at in one step.
const STEP: PageLimit = PageLimit {
    items_max: 256,
    bytes_max: 1 << 20,
};

/// What can go next. What living sessions share is a beginning of the log, and stays; when it
/// has become shorter, what is free now goes first, from its end.
pub(super) fn look(view: &dyn View, stream: StreamId, aging: &Aging) -> Result<Aged, ReadError> {
    let shared_seq = view.shared_through(stream)?;
    let freed = shared_seq < aging.kept_seq;
    let (after, through, order) = if freed {
        (shared_seq, aging.kept_seq, Order::Desc)
    } else {
        let after = shared_seq.max(aging.through_seq);
        (after, aging.last_seq, Order::Asc)
    };
    let page = match after < through {
        true => view.records(stream, after, through, order, STEP)?,
        false => Vec::new(),
    };
    let mut seqs = Vec::with_capacity(page.len());
    for record in &page {
        if can_go(record, stream)? {
            seqs.push(record.seq);
        }
    }
    seqs.sort_unstable();
    let mut aged = Aged {
        looked_at: (aging.through_seq, aging.kept_seq),
        ranges: ranges(&seqs),
        through_seq: aging.through_seq,
        kept_seq: aging.kept_seq,
        shared_seq,
    };
    let last = page.last().map(|r| r.seq);
    if freed {
        aged.kept_seq = last.map_or(shared_seq, |seq| seq.saturating_sub(1));
    } else {
        aged.through_seq = last.unwrap_or(through).max(aging.through_seq);
        aged.kept_seq = aging.kept_seq.max(shared_seq);
    }
    Ok(aged)
}

fn can_go(record: &Record, stream: StreamId) -> Result<bool, ReadError> {
    if record.content_state != ContentState::Present {
        return Ok(false);
    }
    let event = event_of(record).map_err(|e| ReadError::Damaged {
        stream,
        seq: record.seq,
        reason: e.to_string(),
    })?;
    Ok(event.body == Body::Opaque)
}

fn ranges(ascending: &[u64]) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for seq in ascending {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *seq => *last = *seq,
            _ => ranges.push((*seq, *seq)),
        }
    }
    ranges
}
