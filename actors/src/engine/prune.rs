//! Pruning: journals of what is over, and checkpoints, that nobody wants any longer. It looks
//! through logs on the readers' threads, a bounded part at a time; what goes is a command like any
//! other, so appends wait for nothing but that one.

use std::fmt;
use std::str::FromStr;

use longhaul_storage::{ContentState, Order, PageLimit, ReadError, Record, StreamId, View};
use serde::{Deserialize, Serialize};

use super::Engine;
use super::reads::{here, named};
use crate::code::{Code, Rejection};
use crate::codec;
use crate::ids::{CheckpointId, IdError, SessionId};
use crate::limits::{PAGE_BYTES_MAX, PAGE_EVENTS_MAX};
use crate::reader::Class;
use crate::rows;
use crate::session::command::{Command, Prune, Request};
use crate::session::event::EventType;
use crate::session::projection::SessionRow;
use crate::session::prune::{checkpoints, settled_through};
use crate::session::stored::header_of;
use crate::session::viewer::Viewer;

/// Sessions looked at in one call.
const SESSIONS_MAX: usize = 100;
/// Parts of logs looked through in one call.
const STEPS_MAX: usize = 64;
/// Contents that go with one write.
const GONE_MAX: usize = 500;
/// Records looked through for one write.
const SCAN_MAX: usize = 20_000;

/// Which things are to go: those that every filter names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PruneQuery {
    /// What is older than this, milliseconds.
    pub before_ms: Option<i64>,
    /// What is of this session.
    pub session: Option<SessionId>,
    /// Whether to say only what would go.
    pub dry_run: bool,
    /// Where the call before ended.
    pub page: Option<PrunePlace>,
}

/// Where a call ended: within this session, after this position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrunePlace {
    /// The session.
    pub session: SessionId,
    /// The last position that was looked at.
    pub after_seq: u64,
}

impl fmt::Display for PrunePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.session, self.after_seq)
    }
}

impl FromStr for PrunePlace {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let (session, seq) = text.split_once('.').unwrap_or((text, ""));
        let session = SessionId::parse(session)?;
        // What is no position of the server's own making starts the session again.
        let after_seq = seq.parse().unwrap_or(0);
        Ok(Self { session, after_seq })
    }
}

/// What went, or would go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pruned {
    /// Sessions of which something went. One that a call ends within counts in the next one too.
    pub sessions: u64,
    /// Contents of steps' events.
    pub journal_values: u64,
    /// Their bytes.
    pub journal_bytes: u64,
    /// Checkpoints.
    pub checkpoints: Vec<CheckpointId>,
    /// Where to go on; `None` = that was all.
    pub next: Option<PrunePlace>,
}

/// Contents of a part of a log that can go.
#[derive(Debug, Default)]
struct Found {
    ranges: Vec<(u64, u64)>,
    values: u64,
    bytes: u64,
    shared_seq: u64,
    /// Where to look on.
    next_seq: Option<u64>,
}

/// What one look at one session came to.
struct Step {
    found: Found,
    gone: Vec<CheckpointId>,
}

impl Engine {
    /// Lets journals of what is over go, and checkpoints. What a living fork shares stays, and so
    /// do pinned checkpoints, the journal and the newest disk of what goes on.
    ///
    /// # Errors
    /// `prune.filter_empty`; `session.not_found` and the like of the session that is named;
    /// `runtime.*`: what went until then is gone.
    pub async fn prune(&self, request: Request, query: PruneQuery) -> Result<Pruned, Rejection> {
        if query.before_ms.is_none() && query.session.is_none() {
            return Err(Code::PruneFilterEmpty.into());
        }
        let mut done = Pruned::default();
        let mut steps = STEPS_MAX;
        let Some(session) = query.session else {
            self.prune_page(&request, &query, &mut steps, &mut done)
                .await?;
            return Ok(done);
        };
        let page = query.page.filter(|p| p.session == session);
        let after = page.map_or(0, |p| p.after_seq);
        self.prune_one(&request, &query, (session, after), &mut steps, &mut done)
            .await?;
        Ok(done)
    }

    /// A page of sessions, each to its end.
    async fn prune_page(
        &self,
        request: &Request,
        query: &PruneQuery,
        steps: &mut usize,
        done: &mut Pruned,
    ) -> Result<(), Rejection> {
        let mut left = SESSIONS_MAX;
        let mut after = None;
        if let Some(page) = query.page {
            after = Some(page.session);
            if page.after_seq > 0 {
                left -= 1;
                let place = (page.session, page.after_seq);
                self.prune_known(request, query, place, steps, done).await?;
            }
        }
        if done.next.is_some() {
            return Ok(());
        }
        let viewer = request.viewer.clone();
        let read = self.inner.read(Class::Page, move |view| {
            session_ids(view, &viewer, after, left)
        });
        let (ids, next) = read.await?;
        for session in ids {
            if *steps == 0 {
                done.next = after.map(|session| PrunePlace {
                    session,
                    after_seq: 0,
                });
                return Ok(());
            }
            self.prune_known(request, query, (session, 0), steps, done)
                .await?;
            if done.next.is_some() {
                return Ok(());
            }
            after = Some(session);
        }
        done.next = next.map(|session| PrunePlace {
            session,
            after_seq: 0,
        });
        Ok(())
    }

    /// A session that was listed: it may be erased meanwhile, and a damaged one stops no other.
    async fn prune_known(
        &self,
        request: &Request,
        query: &PruneQuery,
        place: (SessionId, u64),
        steps: &mut usize,
        done: &mut Pruned,
    ) -> Result<(), Rejection> {
        let pruned = self.prune_one(request, query, place, steps, done).await;
        match pruned {
            Err(e)
                if matches!(
                    e.code,
                    Code::SessionNotFound | Code::SessionErased | Code::SessionDamaged
                ) =>
            {
                tracing::warn!(session = %place.0, error = %e, "not pruned");
                Ok(())
            }
            other => other,
        }
    }

    async fn prune_one(
        &self,
        request: &Request,
        query: &PruneQuery,
        (session, mut after): (SessionId, u64),
        steps: &mut usize,
        done: &mut Pruned,
    ) -> Result<(), Rejection> {
        let mut some = false;
        loop {
            *steps = steps.saturating_sub(1);
            let step = self.prune_step(request, query, session, after).await?;
            some |= step.found.values > 0 || !step.gone.is_empty();
            done.journal_values += step.found.values;
            done.journal_bytes += step.found.bytes;
            done.checkpoints.extend(step.gone);
            match step.found.next_seq {
                None => break,
                Some(seq) if *steps == 0 => {
                    done.next = Some(PrunePlace {
                        session,
                        after_seq: seq,
                    });
                    break;
                }
                Some(seq) => after = seq,
            }
        }
        done.sessions += u64::from(some);
        Ok(())
    }

    /// Looks at a part of a session, and lets go what it found.
    async fn prune_step(
        &self,
        request: &Request,
        query: &PruneQuery,
        session: SessionId,
        after: u64,
    ) -> Result<Step, Rejection> {
        let (viewer, before_ms) = (request.viewer.clone(), query.before_ms);
        let state = self.state(viewer.clone(), session).await?;
        let through = settled_through(&state);
        let read = self.inner.read(Class::Page, move |view| {
            here(view, &viewer, session)?;
            look(view, StreamId(session.0), (after, through), before_ms)
        });
        let found = read.await.map_err(|e| named(e, session))?;
        // A page that goes on within a session has told of its checkpoints.
        let first = after == 0 || !query.dry_run;
        let gone = if first {
            checkpoints(&state, before_ms)
        } else {
            Vec::new()
        };
        if query.dry_run || (found.ranges.is_empty() && gone.is_empty()) {
            return Ok(Step { found, gone });
        }
        let prune = Prune {
            request: request.clone(),
            before_ms,
            ranges: found.ranges.clone(),
            shared_seq: found.shared_seq,
        };
        let command = Command::Prune(Box::new(prune));
        let said = self.command(session, command).await?;
        let said: Said = serde_json::from_slice(&said.body)
            .map_err(|e| Rejection::new(Code::Internal, e.to_string()))?;
        Ok(Step {
            found,
            gone: said.checkpoints,
        })
    }
}

/// The next sessions of a viewer, and the last one looked at where there are more.
fn session_ids(
    view: &dyn View,
    viewer: &Viewer,
    after: Option<SessionId>,
    len_max: usize,
) -> Result<(Vec<SessionId>, Option<SessionId>), ReadError> {
    let prefix = rows::sessions(viewer.workspace);
    let after = after.map(|id| rows::session(viewer.workspace, id));
    let limit = PageLimit {
        items_max: PAGE_EVENTS_MAX,
        // Whole rows of the most sessions: the count alone says whether there are more.
        bytes_max: 16 * PAGE_BYTES_MAX,
    };
    let found = view.rows(&prefix, after.as_deref(), Order::Asc, limit)?;
    let mut more = found.len() == PAGE_EVENTS_MAX;
    let (mut ids, mut last) = (Vec::new(), None);
    for (_, value) in found {
        if ids.len() == len_max {
            more = true;
            break;
        }
        let row: SessionRow = codec::decode(&value)
            .map_err(|e| ReadError::Engine(format!("a session row does not decode: {e}")))?;
        last = Some(row.id);
        if viewer.sees_principal(&row.principal) {
            ids.push(row.id);
        }
    }
    Ok((ids, last.filter(|_| more)))
}

/// The answer to the command.
#[derive(Serialize, Deserialize)]
struct Said {
    checkpoints: Vec<CheckpointId>,
}

/// Contents of steps' events behind `after` and up to `through` that can go. Positions count, not
/// times alone: a clock that was set back lets nothing go before what is older.
fn look(
    view: &dyn View,
    stream: StreamId,
    (after, through): (u64, u64),
    before_ms: Option<i64>,
) -> Result<Found, ReadError> {
    let shared_seq = view.shared_through(stream)?;
    let mut found = Found {
        shared_seq,
        ..Found::default()
    };
    let mut at = after;
    let mut scanned = 0;
    while at < through {
        let limit = PageLimit {
            items_max: GONE_MAX,
            bytes_max: PAGE_BYTES_MAX,
        };
        let page = view.records(stream, at, through, Order::Asc, limit)?;
        if page.is_empty() {
            return Ok(found);
        }
        for record in &page {
            let header = header_of(record).map_err(|e| ReadError::Damaged {
                stream,
                seq: record.seq,
                reason: e.to_string(),
            })?;
            if before_ms.is_some_and(|before| header.created_at_ms >= before) {
                return Ok(found);
            }
            at = record.seq;
            if record.seq > shared_seq && is_step(header.kind) {
                found.take(record);
            }
            if found.values >= GONE_MAX as u64 {
                found.next_seq = Some(at).filter(|at| *at < through);
                return Ok(found);
            }
        }
        scanned += page.len();
        if scanned >= SCAN_MAX {
            found.next_seq = Some(at).filter(|at| *at < through);
            return Ok(found);
        }
    }
    Ok(found)
}

fn is_step(kind: EventType) -> bool {
    matches!(
        kind,
        EventType::StepStarted
            | EventType::StepCompleted
            | EventType::StepFailed
            | EventType::StepResolved
    )
}

impl Found {
    fn take(&mut self, record: &Record) {
        if record.content_state != ContentState::Present {
            return;
        }
        self.values += 1;
        self.bytes += record.content.len() as u64;
        match self.ranges.last_mut() {
            Some((_, last)) if *last + 1 == record.seq => *last = record.seq,
            _ => self.ranges.push((record.seq, record.seq)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_as_it_was_written() {
        let place = PrunePlace {
            session: SessionId([7; 16]),
            after_seq: 12,
        };
        assert_eq!(place.to_string().parse(), Ok(place));
        assert!("x.1".parse::<PrunePlace>().is_err());
    }
}
