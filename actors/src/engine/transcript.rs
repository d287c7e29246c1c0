//! The conversation of a session as a model sees it, a page at a time.

use longhaul_storage::{Order, PageLimit, ReadError, Record, StreamId, View};
use serde_json::Value;

use super::Engine;
use super::reads::{here, named};
use crate::code::Rejection;
use crate::ids::{EventId, SessionId};
use crate::limits::{PAGE_BYTES_MAX, PAGE_EVENTS_MAX};
use crate::reader::Class;
use crate::session::envelope::envelope;
use crate::session::state::Compacted;
use crate::session::stored::header_of;
use crate::session::viewer::Viewer;
use crate::transcript::fold::{Fold, TYPES, summary};
use crate::transcript::{Block, Message};

/// Records looked through for one page.
const SCAN_MAX: usize = 20_000;

/// Which part of a conversation.
#[derive(Debug, Clone, Copy)]
pub struct TranscriptQuery {
    /// Messages after this position (pages go on from here).
    pub after: u64,
    /// Most messages.
    pub limit: usize,
    /// Whether a summary stands for what a compaction took out; else all of it is shown.
    pub compacted: bool,
}

/// A page of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct TranscriptPage {
    /// Messages, in order.
    pub messages: Vec<Message>,
    /// Where the next page goes on; `None` = this one reached the end.
    pub next_after: Option<u64>,
    /// The last position of the log.
    pub last_seq: u64,
    /// The newest compaction.
    pub compacted: Option<Compacted>,
}

impl Engine {
    /// A page of the conversation as a model sees it.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`, `session.damaged`, `runtime.*`.
    pub async fn transcript(
        &self,
        viewer: Viewer,
        session: SessionId,
        query: TranscriptQuery,
    ) -> Result<TranscriptPage, Rejection> {
        let newest = self.state(viewer.clone(), session).await?.compacted;
        let read = self.inner.read(Class::Page, move |view| {
            let (head, _) = here(view, &viewer, session)?;
            let stream = StreamId(session.0);
            let scan = Scan { view, stream };
            scan.page(query, newest, head.last_seq)
        });
        read.await.map_err(|e| named(e, session))
    }
}

struct Scan<'a> {
    view: &'a dyn View,
    stream: StreamId,
}

impl Scan<'_> {
    fn page(
        &self,
        query: TranscriptQuery,
        newest: Option<Compacted>,
        last_seq: u64,
    ) -> Result<TranscriptPage, ReadError> {
        let limit = query.limit.clamp(1, PAGE_EVENTS_MAX);
        let mut after = query.after;
        let mut messages = Vec::new();
        let newest_shown = newest.filter(|_| query.compacted);
        if let Some(c) = newest_shown.filter(|c| after < c.through_seq) {
            after = c.through_seq;
            messages.extend(self.summary(c)?);
        }
        let mut fold = Fold::after_summary(newest_shown.map_or(0, |c| c.through_seq));
        let (mut scanned, mut bytes) = (0, 0);
        let room = |fold: &Fold| messages.len() + fold.messages().len() <= limit;
        while after < last_seq && scanned < SCAN_MAX && bytes < PAGE_BYTES_MAX && room(&fold) {
            let limit = PageLimit {
                items_max: PAGE_EVENTS_MAX,
                bytes_max: PAGE_BYTES_MAX,
            };
            let records = self
                .view
                .records(self.stream, after, last_seq, Order::Asc, limit)?;
            if records.is_empty() {
                break;
            }
            for record in &records {
                // A message is whole when the next one has begun.
                if !room(&fold) || bytes >= PAGE_BYTES_MAX {
                    break;
                }
                after = record.seq;
                scanned += 1;
                if let Some(event) = self.wanted(record)? {
                    bytes += record.content.len();
                    self.push(&mut fold, &event)?;
                }
            }
        }
        let ended = after >= last_seq && room(&fold);
        messages.extend(fold.into_messages());
        if !ended && messages.len() > 1 {
            messages.pop();
            after = messages.last().map_or(after, |m| m.through_seq);
        }
        Ok(TranscriptPage {
            messages,
            next_after: (!ended).then_some(after),
            last_seq,
            compacted: newest,
        })
    }

    /// What stands for everything before. Where its content is gone, the header still tells.
    fn summary(&self, newest: Compacted) -> Result<Option<Message>, ReadError> {
        let Some(record) = self.record(newest.seq)? else {
            return Ok(None);
        };
        let mut message = summary(&self.json(&record)?);
        (message.seq, message.through_seq) = (newest.through_seq, newest.through_seq);
        if let Some(Block::Summary { through_seq, .. }) = message.content.first_mut() {
            *through_seq = newest.through_seq;
        }
        Ok(Some(message))
    }

    fn push(&self, fold: &mut Fold, event: &Value) -> Result<(), ReadError> {
        let mut failed = None;
        let mut find = |id: &str| {
            let id = EventId::parse(id).ok()?;
            let found = self
                .record(id.seq())
                .and_then(|r| r.map(|r| self.json(&r)).transpose());
            match found {
                Ok(found) => found,
                Err(e) => {
                    failed = Some(e);
                    None
                }
            }
        };
        fold.push(event, &mut find);
        failed.map_or(Ok(()), Err)
    }

    fn record(&self, seq: u64) -> Result<Option<Record>, ReadError> {
        let one = PageLimit {
            items_max: 1,
            bytes_max: PAGE_BYTES_MAX,
        };
        let before = seq.saturating_sub(1);
        let found = self
            .view
            .records(self.stream, before, seq, Order::Asc, one)?;
        Ok(found.into_iter().next())
    }

    fn wanted(&self, record: &Record) -> Result<Option<Value>, ReadError> {
        let header = header_of(record).map_err(|e| self.damaged(record.seq, &e))?;
        match TYPES.contains(&header.kind.text()) {
            true => self.json(record).map(Some),
            false => Ok(None),
        }
    }

    fn json(&self, record: &Record) -> Result<Value, ReadError> {
        let json = envelope(record).map_err(|e| self.damaged(record.seq, &e))?;
        serde_json::from_slice(&json).map_err(|e| self.damaged(record.seq, &e))
    }

    fn damaged(&self, seq: u64, e: &dyn std::fmt::Display) -> ReadError {
        ReadError::Damaged {
            stream: self.stream,
            seq,
            reason: e.to_string(),
        }
    }
}
