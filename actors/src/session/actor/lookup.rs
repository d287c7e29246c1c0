//! Facts: what the log knows of a command, and what the batch in progress has decided since.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use longhaul_storage::{Condition, HistoryRow, Order, PageLimit, ReadError, StreamId, View};

use super::{aged, steps};
use crate::codec;
use crate::ids::{EventId, SessionId, TokenDigest};
use crate::rows;
use crate::session::blob;
use crate::session::decision::RowOp;
use crate::session::envelope::envelope_with;
use crate::session::event::NewEvent;
use crate::session::facts::{
    Created, Earlier, EndedClaim, Facts, ItemFact, Needs, Receipt, StoredCall,
};
use crate::session::state::{Answer, State};
use crate::session::stored::header_of;

/// Rows read at once while collecting inputs.
const PAGE: PageLimit = PageLimit {
    items_max: 1_000,
    bytes_max: 1 << 20,
};
/// One row.
const ONE: PageLimit = PageLimit {
    items_max: 1,
    bytes_max: 1 << 20,
};

/// Looks up what a command needs, in one snapshot.
pub(super) fn load(
    view: &dyn View,
    session: SessionId,
    last_seq: u64,
    needs: &Needs,
) -> Result<Facts, ReadError> {
    let at = Place {
        view,
        session,
        stream: StreamId(session.0),
        last_seq,
    };
    let mut facts = Facts::default();
    if let Some(scope) = needs.receipt {
        facts.receipt = at.row(&rows::session_receipt(session, scope))?;
    }
    if let Some(scope) = needs.created
        && let Some(made) = at.row::<Created>(&rows::created(scope))?
    {
        facts.receipt = at.row(&rows::session_receipt(made.session, scope))?;
        let erased = match view.head(StreamId(made.session.0)) {
            Ok(_) => false,
            Err(ReadError::Erased) => true,
            Err(e) => return Err(e),
        };
        facts.created = Some(Earlier { made, erased });
    }
    if let Some(token) = needs.ended_claim {
        facts.ended_claim = at.row(&rows::ended(session, token))?;
    }
    if let Some((token, n)) = needs.calls {
        facts.last_n = at.last_number(token)?;
        facts.call = at.row(&rows::call(session, token, n))?;
    }
    for id in &needs.items {
        if let Some(fact) = at.item(*id)? {
            facts.items.insert(*id, fact);
        }
    }
    if let Some(from) = needs.inputs_from {
        let after = rows::at(from.saturating_sub(1));
        facts.inputs = at.answers(rows::HISTORY_INPUT, after, u64::MAX)?;
    }
    if let Some(queued) = needs.taken_by {
        facts.taken = at.answers(rows::HISTORY_TAKEN, rows::taken(queued, 0), queued)?;
    }
    for (seq, described) in &needs.blobs {
        let bytes = view.row(&rows::blob(session, *seq))?;
        let verified = blob::verify(described, bytes.as_deref());
        let good = verified.is_ok();
        let found = verified.map(|()| bytes.unwrap_or_default());
        facts.blobs.insert(*seq, found);
        if good {
            break;
        }
    }
    if let Some(aging) = &needs.aged {
        facts.aged = Some(aged::look(view, at.stream, aging)?);
    }
    steps::load(view, at.stream, last_seq, needs, &mut facts)?;
    Ok(facts)
}

struct Place<'a> {
    view: &'a dyn View,
    session: SessionId,
    stream: StreamId,
    last_seq: u64,
}

impl Place<'_> {
    fn damaged(&self, seq: u64, e: &dyn std::fmt::Display) -> ReadError {
        ReadError::Damaged {
            stream: self.stream,
            seq,
            reason: e.to_string(),
        }
    }

    fn row<T: bincode::Decode<()>>(&self, key: &[u8]) -> Result<Option<T>, ReadError> {
        let Some(value) = self.view.row(key)? else {
            return Ok(None);
        };
        codec::decode(&value)
            .map(Some)
            .map_err(|e| self.damaged(self.last_seq, &e))
    }

    /// The last number used under a claim.
    fn last_number(&self, token: TokenDigest) -> Result<u64, ReadError> {
        let prefix = rows::calls(self.session, token);
        let last = self.view.rows(&prefix, None, Order::Desc, ONE)?;
        let number = last.first().and_then(|(key, _)| key.last_chunk::<8>());
        Ok(number.map_or(0, |n| u64::from_be_bytes(*n)))
    }

    /// The item that this very event opened.
    fn item(&self, id: EventId) -> Result<Option<ItemFact>, ReadError> {
        let seq = id.seq();
        if seq == 0 || seq > self.last_seq {
            return Ok(None);
        }
        let key = rows::at(seq);
        let row = self
            .view
            .history_row(self.stream, rows::HISTORY_ITEM, key, self.last_seq)?;
        let Some(row) = row else { return Ok(None) };
        // The row is keyed by position: only the record tells whether it is this id's.
        let records = self
            .view
            .records(self.stream, seq - 1, seq, Order::Asc, ONE)?;
        let Some(record) = records.first() else {
            return Ok(None);
        };
        let header = header_of(record).map_err(|e| self.damaged(seq, &e))?;
        if header.id != id {
            return Ok(None);
        }
        codec::decode(&row.value)
            .map(Some)
            .map_err(|e| self.damaged(seq, &e))
    }

    /// Event ids kept in history rows after `after`, while the upper half of the key is `group`
    /// (`u64::MAX`: any).
    fn answers(&self, kind: u8, after: [u8; 16], group: u64) -> Result<Vec<Answer>, ReadError> {
        let mut out = Vec::new();
        let mut after = after;
        loop {
            let page = self.view.history(
                self.stream,
                kind,
                Some(after),
                self.last_seq,
                Order::Asc,
                PAGE,
            )?;
            let Some(last) = page.last() else {
                return Ok(out);
            };
            after = last.key;
            for row in &page {
                let Some(answer) = answer(row) else {
                    return Err(self.damaged(row.seq, &"an input's row does not hold an event id"));
                };
                if group != u64::MAX && halves(row.key).0 != group {
                    return Ok(out);
                }
                out.push(answer);
            }
            if page.len() < PAGE.items_max {
                return Ok(out);
            }
        }
    }
}

/// The halves of a natural key: for inputs taken, the run's position and the input's.
fn halves(key: [u8; 16]) -> (u64, u64) {
    let bits = u128::from_be_bytes(key);
    // Each half has 64 bits; the narrowing drops none of it.
    ((bits >> 64) as u64, bits as u64)
}

fn answer(row: &HistoryRow) -> Option<Answer> {
    let id = EventId(<[u8; 16]>::try_from(&row.value[..]).ok()?);
    Some(Answer {
        seq: halves(row.key).1,
        id,
    })
}

/// What the batch in progress has decided and no snapshot shows yet.
#[derive(Default)]
pub(super) struct Overlay {
    receipts: HashMap<[u8; 16], Receipt>,
    ended: HashMap<TokenDigest, EndedClaim>,
    calls: HashMap<(TokenDigest, u64), StoredCall>,
    last_n: HashMap<TokenDigest, u64>,
    items: BTreeMap<EventId, ItemFact>,
    inputs: Vec<Answer>,
    taken: Vec<(u64, Answer)>,
    blobs: BTreeMap<u64, Bytes>,
    steps: steps::EndedHere,
}

impl Overlay {
    /// Notes what one decision adds.
    pub(super) fn note_rows(&mut self, ops: &[RowOp]) {
        for op in ops {
            match op {
                RowOp::Receipt(scope, receipt) => {
                    self.receipts.insert(*scope, receipt.clone());
                }
                // A creation with the same key is another session's.
                RowOp::Created(..) => {}
                RowOp::Call(token, n, call) => {
                    self.calls.insert((*token, *n), call.clone());
                    self.last_n.insert(*token, *n);
                }
                RowOp::Ended(token, ended) => {
                    self.ended.insert(*token, ended.clone());
                }
                RowOp::PutBlob(seq, bytes) => {
                    self.blobs.insert(*seq, bytes.clone());
                }
                // Its checkpoint is over: nobody asks.
                RowOp::DropBlob(_)
                | RowOp::PutSnapshot(..)
                | RowOp::HoldSnapshot(_)
                | RowOp::Operation(_)
                | RowOp::Attached(_)
                | RowOp::Changed(_)
                | RowOp::Unread(_) => {}
            }
        }
    }

    /// Notes the history rows that one event made.
    pub(super) fn note_history(&mut self, new: &NewEvent, made: &[HistoryRow]) {
        for row in made {
            match row.kind {
                rows::HISTORY_INPUT => self.inputs.extend(answer(row)),
                rows::HISTORY_STEP => self.steps.note(new),
                rows::HISTORY_TAKEN => {
                    self.taken
                        .extend(answer(row).map(|a| (halves(row.key).0, a)));
                }
                rows::HISTORY_ITEM => {
                    // An event that closes an item names it; one that opens it is it.
                    let id = match &new.event.body {
                        crate::session::payload::Body::ItemClosed(b) => b.item_id,
                        _ => new.event.header.id,
                    };
                    if let Ok(fact) = codec::decode(&row.value) {
                        self.items.insert(id, fact);
                    }
                }
                _ => {}
            }
        }
    }

    /// Brings what was looked up before the batch up to date.
    pub(super) fn apply(&self, state: &State, needs: &Needs, facts: &mut Facts) {
        if let Some(receipt) = needs.receipt.and_then(|scope| self.receipts.get(&scope)) {
            facts.receipt = Some(receipt.clone());
        }
        if let Some((token, n)) = needs.calls {
            facts.last_n = self.last_n.get(&token).copied().unwrap_or(facts.last_n);
            if let Some(call) = self.calls.get(&(token, n)) {
                facts.call = Some(call.clone());
            }
        }
        for id in &needs.items {
            if let Some(fact) = self.items.get(id) {
                facts.items.insert(*id, fact.clone());
            }
        }
        if needs.inputs_from.is_some() {
            facts.inputs.extend(self.inputs.iter().copied());
        }
        self.steps.apply(state, needs, facts);
        let blobs = self.blobs.iter();
        let blobs = blobs.map(|(seq, bytes)| (*seq, Ok(bytes.clone())));
        facts.blobs.extend(blobs);
        let queued = state.run.as_ref().map(|r| r.queued_seq);
        if queued != needs.taken_by {
            // The run was queued by this very batch: only the batch knows what it took.
            facts.taken.clear();
        }
        let taken = self.taken.iter().filter(|(run, _)| Some(*run) == queued);
        facts.taken.extend(taken.map(|(_, a)| *a));
    }

    /// How a claim ended in this batch (asked for whatever the needs said: it was live then).
    pub(super) fn ended(&self, token: TokenDigest) -> Option<&EndedClaim> {
        self.ended.get(&token)
    }
}

/// The rows of one decision, as changes.
pub(super) fn row_changes(
    session: SessionId,
    ops: &[RowOp],
    out: &mut Vec<longhaul_storage::RowChange>,
) {
    use longhaul_storage::RowChange::{Delete, DeletePrefix, Put};
    for op in ops {
        match op {
            RowOp::Receipt(scope, r) => {
                out.push(Put(
                    rows::session_receipt(session, *scope),
                    codec::encode(r),
                ));
            }
            RowOp::Created(scope, c) => out.push(Put(rows::created(*scope), codec::encode(c))),
            RowOp::Call(token, n, c) => {
                out.push(Put(rows::call(session, *token, *n), codec::encode(c)));
            }
            RowOp::Ended(token, e) => {
                out.push(DeletePrefix(rows::calls(session, *token)));
                out.push(Put(rows::ended(session, *token), codec::encode(e)));
            }
            RowOp::PutSnapshot(key, row) => {
                out.push(Put(rows::snapshot(*key), codec::encode(row)));
                let packs = row.kept.iter().flat_map(|k| &k.packs);
                out.extend(packs.map(|p| Put(rows::pack_holder(*p, *key), Bytes::new())));
            }
            RowOp::PutBlob(seq, bytes) => {
                out.push(Put(rows::blob(session, *seq), bytes.clone()));
            }
            RowOp::DropBlob(seq) => out.push(Delete(rows::blob(session, *seq))),
            RowOp::Changed(true) => out.push(Put(rows::changed(session), Bytes::new())),
            RowOp::Changed(false) => out.push(Delete(rows::changed(session))),
            // A condition only; in memory only.
            RowOp::HoldSnapshot(_)
            | RowOp::Operation(_)
            | RowOp::Attached(_)
            | RowOp::Unread(_) => {}
        }
    }
}

/// What must hold for the rows of one decision.
pub(super) fn row_conditions(ops: &[RowOp], out: &mut Vec<(Bytes, Condition)>) {
    for op in ops {
        match op {
            RowOp::PutSnapshot(key, _) => out.push((rows::doomed(*key), Condition::Absent)),
            RowOp::HoldSnapshot(key) => {
                out.push((rows::doomed(*key), Condition::Absent));
                out.push((rows::snapshot(*key), Condition::Present));
            }
            RowOp::Receipt(..)
            | RowOp::Created(..)
            | RowOp::Call(..)
            | RowOp::Ended(..)
            | RowOp::PutBlob(..)
            | RowOp::DropBlob(_)
            | RowOp::Operation(_)
            | RowOp::Attached(_)
            | RowOp::Changed(_)
            | RowOp::Unread(_) => {}
        }
    }
}

/// Envelopes of the given events, as far as one page goes.
pub(super) fn envelopes(
    view: &dyn View,
    stream: StreamId,
    answers: &[Answer],
    limit: PageLimit,
    contents: &BTreeMap<u64, Bytes>,
) -> Result<(Vec<Bytes>, Option<u64>), ReadError> {
    let mut out = Vec::with_capacity(answers.len().min(limit.items_max));
    let mut bytes = 0;
    for (index, answer) in answers.iter().enumerate() {
        let after = answer.seq.saturating_sub(1);
        let records = view.records(stream, after, answer.seq, Order::Asc, ONE)?;
        let damaged = |reason: String| ReadError::Damaged {
            stream,
            seq: answer.seq,
            reason,
        };
        let record = records
            .first()
            .ok_or_else(|| damaged("no record".to_owned()))?;
        let envelope =
            envelope_with(record, contents.get(&answer.seq)).map_err(|e| damaged(e.to_string()))?;
        bytes += envelope.len();
        if index > 0 && (index >= limit.items_max || bytes > limit.bytes_max) {
            let last = answers.get(index - 1).map(|a| a.seq);
            return Ok((out, last));
        }
        out.push(envelope);
    }
    Ok((out, None))
}
