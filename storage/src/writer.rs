//! The writer: one thread that takes all queued writes at once, checks each against the tables
//! and against those before it, and commits what it took with one batch and one sync.
//!
//! The callers' threads have already serialised their writes; the writer puts the bytes one
//! behind the other. A refusal waits for the commit of what stands before it, because it may
//! rest on that.

pub(crate) mod queue;

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::check::{Checker, Fence, Refusal, Taken};
use crate::fault;
use crate::log::{AppendError, Appended, Condition, Expect, Pending, RowChange, StreamId, Write};
use crate::plan;
use crate::rocks::batch::{Batch, Concatenation, FamilyIds};
use crate::rocks::recover::Failure;
use crate::rocks::shared::Shared;
use crate::rocks::tables::DbTables;

use queue::Turn;

type Answer = oneshot::Sender<Result<Appended, AppendError>>;

/// One write on its way to the writer.
#[derive(Debug)]
pub(crate) struct Submission {
    body: Body,
    fence: Option<Fence>,
    conditions: Vec<(Bytes, Condition)>,
    /// What the writes behind it must see of its rows.
    rows: Vec<RowChange>,
    /// Bytes that it keeps while it waits.
    pub(crate) bytes: usize,
    answer: Answer,
}

#[derive(Debug)]
enum Body {
    /// Serialised by the caller.
    Laid(Batch, Appended),
    /// Needs what is stored to be serialised: a fork, an erasure or an expiry.
    Whole(Box<Write>),
}

impl Submission {
    /// Checks and serialises a write on the caller's thread.
    pub(crate) fn new(write: Write, ids: FamilyIds) -> Result<(Self, Pending), AppendError> {
        plan::validate(&write)?;
        let (answer, pending) = Pending::new();
        let fence = write.stream.as_ref().map(Fence::of);
        let bytes = size(&write);
        let laid_later = fence.as_ref().is_some_and(|f| {
            f.erase || !f.expire.is_empty() || matches!(f.expect, Expect::Fork { .. })
        });
        let (body, conditions, rows) = if laid_later {
            let (conditions, rows) = (write.conditions.clone(), write.rows.clone());
            (Body::Whole(Box::new(write)), conditions, rows)
        } else {
            let mut batch = Batch::new(ids, bytes);
            let end = plan::lay_taken(&write, Taken::Plain, &mut batch)?;
            (Body::Laid(batch, end), write.conditions, write.rows)
        };
        Ok((
            Self {
                body,
                fence,
                conditions,
                rows,
                bytes,
                answer,
            },
            pending,
        ))
    }

    /// A batch of the log's own making, without fence or condition.
    pub(crate) fn unconditional(batch: Batch) -> (Self, Pending) {
        let (answer, pending) = Pending::new();
        let submission = Self {
            bytes: batch.len_bytes(),
            body: Body::Laid(batch, plan::NO_STREAM),
            fence: None,
            conditions: Vec::new(),
            rows: Vec::new(),
            answer,
        };
        (submission, pending)
    }

    /// Answers without having written.
    pub(crate) fn refuse(self, error: AppendError) {
        settle(self.answer, Err(error));
    }
}

/// About the bytes of a write once it is serialised.
fn size(write: &Write) -> usize {
    const PER_ITEM: usize = 128;
    let mut bytes = PER_ITEM;
    for change in &write.rows {
        bytes += PER_ITEM / 4
            + match change {
                RowChange::Put(key, value) => key.len() + value.len(),
                RowChange::Delete(key) => key.len(),
                RowChange::DeletePrefix(prefix) => 2 * prefix.len(),
            };
    }
    if let Some(stream) = &write.stream {
        let records = stream
            .records
            .iter()
            .map(|r| PER_ITEM + r.header.len() + r.content.len());
        let history = stream.history.iter().map(|h| PER_ITEM + h.value.len());
        bytes += records.chain(history).sum::<usize>();
        bytes += stream.state.as_ref().map_or(0, Bytes::len);
    }
    bytes
}

fn settle(answer: Answer, result: Result<Appended, AppendError>) {
    // A caller that no longer waits has lost interest, not its write.
    let _ = answer.send(result);
}

/// A write in the batch in progress. A refused one has an empty batch.
#[derive(Debug)]
struct InBatch {
    sort: StreamId,
    batch: Batch,
    answer: Answer,
    result: Result<Appended, AppendError>,
}

/// The writer's thread.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    checker: Checker,
    joined: Concatenation,
    batch: Vec<InBatch>,
    batch_bytes: usize,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let checker = Checker::new(shared.options.ends_len_max);
        let joined = Concatenation::default();
        Self {
            shared,
            checker,
            joined,
            batch: Vec::new(),
            batch_bytes: 0,
        }
    }

    /// Runs until the queue is closed and empty.
    pub(crate) fn run(mut self) {
        let mut taken = Vec::new();
        while self.shared.queue.take(&mut taken) == Turn::Work {
            fault::point("writer::taken");
            self.shared.resume_if_there_is_room();
            for submission in taken.drain(..) {
                match self.shared.refusal() {
                    Some(error) => submission.refuse(error),
                    None => self.add(submission),
                }
            }
            fault::point("writer::checked");
            self.commit();
        }
    }

    /// Adds a write to the batch, or its refusal.
    fn add(&mut self, submission: Submission) {
        let checked = match self.check(&submission) {
            Err(Refusal::CommitFirst) => {
                self.commit();
                self.check(&submission)
            }
            checked => checked,
        };
        let taken = checked.map_err(|refusal| match refusal {
            Refusal::Error(error) => error,
            // Right after a commit no batch is in progress.
            Refusal::CommitFirst => AppendError::Busy,
        });
        let ids = self.shared.ids;
        let laid = taken.and_then(|taken| match submission.body {
            Body::Laid(batch, end) => Ok((batch, end)),
            Body::Whole(write) => {
                let mut batch = Batch::new(ids, submission.bytes);
                let end = plan::lay_taken(&write, taken, &mut batch)?;
                Ok((batch, end))
            }
        });
        let (batch, result) = match laid {
            Ok((batch, end)) => {
                self.checker
                    .take(submission.fence.as_ref(), end, &submission.rows);
                (batch, Ok(end))
            }
            Err(error) => (Batch::new(ids, 0), Err(error)),
        };
        self.batch_bytes += batch.len_bytes();
        let sort = submission.fence.map_or(StreamId([0; 16]), |f| f.stream);
        self.batch.push(InBatch {
            sort,
            batch,
            answer: submission.answer,
            result,
        });
        if self.batch_bytes >= self.shared.options.batch_bytes_max {
            self.commit();
        }
    }

    fn check(&mut self, submission: &Submission) -> Result<Taken, Refusal> {
        let db = self.shared.gate.enter()?;
        let tables = DbTables::live(&db);
        self.checker
            .check(&tables, submission.fence.as_ref(), &submission.conditions)
    }

    /// Commits the batch in progress, and answers.
    fn commit(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        if batch.iter().any(|w| !w.batch.is_empty()) {
            // Neighbours in the tables go in together; where one row changes twice, in order.
            if !self.checker.ordered() {
                batch.sort_by_key(|w| w.sort);
            }
            fault::point("writer::before_write");
            let joined = self.joined.join(batch.iter().map(|w| &w.batch));
            if let Err(failure) = self.shared.write(joined) {
                self.fail(batch, failure);
                return;
            }
            fault::point("writer::after_write");
        }
        self.checker.committed();
        for write in batch.drain(..) {
            settle(write.answer, write.result);
        }
        self.batch = batch;
        fault::point("writer::after_answers");
    }

    /// Nothing that was remembered holds; everyone in the batch gets what is known. A refused
    /// write too: its refusal may rest on what was not written.
    fn fail(&mut self, batch: Vec<InBatch>, failure: Failure) {
        self.checker.forget();
        self.shared.recover(failure, |error| {
            for write in batch {
                settle(write.answer, Err(error.clone()));
            }
        });
    }
}
