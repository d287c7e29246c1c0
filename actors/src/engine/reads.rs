//! What can be read of sessions: committed views only, each page from one snapshot.

use std::sync::Arc;

use bytes::Bytes;
use longhaul_storage::{Order, PageLimit, ReadError, StreamHead, StreamId, View};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use super::Engine;
use super::inner::Inner;
use crate::code::{Code, Rejection};
use crate::codec;
use crate::dispatch::actor::BlockedBy;
use crate::feed::channel::{Channel, Head};
use crate::feed::follower::Follower;
use crate::ids::{EventId, SessionId};
use crate::limits::{PAGE_BYTES_MAX, PAGE_EVENTS_MAX};
use crate::reader::Class;
use crate::rows;
use crate::session::actor::{Read, recover};
use crate::session::envelope::envelope;
use crate::session::event::EventType;
use crate::session::history::RunRow;
use crate::session::projection::SessionRow;
use crate::session::show::{ShowExtras, show};
use crate::session::state::{Phase, State};
use crate::session::status::Status;
use crate::session::stored::header_of;
use crate::session::viewer::Viewer;
use crate::time;

/// Most sessions looked through for one page of a filtered list.
const LIST_SCAN_MAX: usize = 5_000;

/// Which events of a session.
#[derive(Debug, Clone)]
pub struct EventQuery {
    /// Positions above this one (ascending pages go on from here).
    pub after: Option<u64>,
    /// Positions below this one (descending pages go on from here).
    pub before: Option<u64>,
    /// Direction.
    pub order: Order,
    /// Most events.
    pub limit: usize,
    /// Only these types.
    pub types: Option<Vec<EventType>>,
}

/// A page of a session's events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPage {
    /// Envelopes.
    pub events: Vec<Bytes>,
    /// Where the next page goes on (`after`, or `before` in descending order); `None` = this one
    /// reached the end. Events that the filter left out count, so it always moves.
    pub next_after: Option<u64>,
    /// The last position of the log.
    pub last_seq: u64,
    /// The first position whose content may be there.
    pub first_available_seq: u64,
}

/// A page of a workspace's sessions, or of a session's runs.
#[derive(Debug, Clone, PartialEq)]
pub struct ListPage<K> {
    /// Items as shown.
    pub items: Vec<Value>,
    /// Where the next page goes on; `None` = there is none.
    pub next_after: Option<K>,
}

impl Engine {
    /// The session as shown: its committed state, and why it is where it is.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`, `session.damaged`, `runtime.*`.
    pub async fn show(&self, viewer: Viewer, session: SessionId) -> Result<Value, Rejection> {
        let inner = &self.inner;
        let state = self.state(viewer, session).await?;
        let queued = state.run.as_ref().is_some_and(|r| r.phase == Phase::Queued);
        // Asked after the state: whatever the state says, the dispatcher was told before.
        let blocked_by = match inner.parts().filter(|_| queued) {
            Some(parts) => parts
                .dispatcher
                .send(BlockedBy(session))
                .await
                .unwrap_or(None),
            None => None,
        };
        let attempts_max = inner.config.limits.attempts_max;
        Ok(show(
            &state,
            ShowExtras {
                blocked_by,
                attempts_max,
            },
        ))
    }

    /// The committed state: of the actor, or read from the log without starting one.
    pub(crate) async fn state(
        &self,
        viewer: Viewer,
        session: SessionId,
    ) -> Result<Box<State>, Rejection> {
        let inner = &self.inner;
        if let Some(addr) = inner.directory.find(session).and_then(|slot| slot.addr()) {
            let (reply, state) = oneshot::channel();
            if addr
                .try_send(Read {
                    viewer: viewer.clone(),
                    reply,
                })
                .is_ok()
                && let Ok(state) = state.await
            {
                return state.ok_or_else(|| not_found(session));
            }
        }
        let read = inner.read(Class::Page, move |view| recover(view, session));
        let state = Box::new(read.await?.state);
        let here = state
            .about
            .as_ref()
            .is_some_and(|a| viewer.sees(a.workspace, &a.principal));
        if here {
            Ok(state)
        } else {
            Err(not_found(session))
        }
    }

    /// Sessions that there are for a viewer, in the order of their ids (that of their creation).
    ///
    /// # Errors
    /// `runtime.*`.
    pub async fn list(
        &self,
        viewer: Viewer,
        after: Option<SessionId>,
        limit: usize,
        status: Option<Status>,
    ) -> Result<ListPage<SessionId>, Rejection> {
        let limit = limit.clamp(1, PAGE_EVENTS_MAX);
        let read = self.inner.read(Class::Page, move |view| {
            sessions(view, &viewer, after, limit, status)
        });
        read.await
    }

    /// Runs of a session, in the order they were queued. `after`: `next_after` of the page before.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`, `session.damaged`, `runtime.*`.
    pub async fn runs(
        &self,
        viewer: Viewer,
        session: SessionId,
        after: Option<u64>,
        limit: usize,
    ) -> Result<ListPage<u64>, Rejection> {
        let limit = limit.clamp(1, PAGE_EVENTS_MAX);
        let read = self.inner.read(Class::Page, move |view| {
            let stream = StreamId(session.0);
            let head = here(view, &viewer, session)?.0;
            let after = after.map(rows::at);
            let page = PageLimit {
                items_max: limit,
                bytes_max: PAGE_BYTES_MAX,
            };
            let kind = rows::HISTORY_RUN;
            let found = view.history(stream, kind, after, head.last_seq, Order::Asc, page)?;
            let mut items = Vec::with_capacity(found.len());
            for row in &found {
                let run: RunRow = codec::decode(&row.value).map_err(|e| ReadError::Damaged {
                    stream,
                    seq: row.seq,
                    reason: e.to_string(),
                })?;
                items.push(run.json());
            }
            let last = found.last().filter(|_| found.len() == limit);
            // The natural key is the position, so its upper half is zero.
            let next_after = last.map(|row| u128::from_be_bytes(row.key) as u64);
            Ok(ListPage { items, next_after })
        });
        read.await.map_err(|e| named(e, session))
    }

    /// A page of a session's events.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`, `session.damaged`, `runtime.*`.
    pub async fn events(
        &self,
        viewer: Viewer,
        session: SessionId,
        query: EventQuery,
    ) -> Result<EventPage, Rejection> {
        let read = self.inner.read(Class::Page, move |view| {
            let (head, _) = here(view, &viewer, session)?;
            page(view, session, head.last_seq, &query)
        });
        read.await.map_err(|e| named(e, session))
    }

    /// The envelope of one event by its id.
    ///
    /// # Errors
    /// `event.not_found`; as [`Engine::events`].
    pub async fn event(
        &self,
        viewer: Viewer,
        session: SessionId,
        id: EventId,
    ) -> Result<Bytes, Rejection> {
        let read = self.inner.read(Class::Page, move |view| {
            let (head, _) = here(view, &viewer, session)?;
            let seq = id.seq();
            if seq == 0 || seq > head.last_seq {
                return Ok(None);
            }
            let stream = StreamId(session.0);
            let one = PageLimit {
                items_max: 1,
                bytes_max: PAGE_BYTES_MAX,
            };
            let found = view.records(stream, seq - 1, seq, Order::Asc, one)?;
            let Some(record) = found.first() else {
                return Ok(None);
            };
            let damaged = |reason: String| ReadError::Damaged {
                stream,
                seq,
                reason,
            };
            let header = header_of(record).map_err(|e| damaged(e.to_string()))?;
            let json = envelope(record).map_err(|e| damaged(e.to_string()))?;
            Ok((header.id == id).then_some(json))
        });
        let found = read.await.map_err(|e| named(e, session))?;
        found.ok_or_else(|| Rejection::new(Code::EventNotFound, format!("there is no {id} here")))
    }

    /// Follows a session from `after` on: what is there, then what comes.
    ///
    /// # Errors
    /// `request.cursor_invalid` past the end, `stream.limit`, `session.not_found`,
    /// `session.erased`, `runtime.*`.
    pub async fn follow(
        &self,
        viewer: Viewer,
        session: SessionId,
        after: u64,
        types: Option<Vec<EventType>>,
    ) -> Result<Follower, Rejection> {
        let inner = &self.inner;
        let permit = inner.feed.permit()?;
        // Joined before the end is read: whatever is committed later passes through the channel.
        let watching = Watching::new(inner, session);
        let read = inner.read(Class::Page, move |view| here(view, &viewer, session));
        let (head, row) = read.await.map_err(|e| named(e, session))?;
        if after > head.last_seq {
            let detail = format!("{after} is past the end of the log, {}", head.last_seq);
            return Err(Rejection::new(Code::CursorInvalid, detail).with("last_seq", head.last_seq));
        }
        let ended = Some(row.status).filter(|s| s.is_terminal());
        watching.channel.advance(head.last_seq, ended);
        if inner.feed.is_closed() {
            watching.channel.close();
        }
        let channel = watching.into_channel();
        Ok(Follower::new(
            Arc::clone(inner),
            session,
            channel,
            after,
            types,
            permit,
        ))
    }
}

/// A use of a session's channel, given up when dropped.
pub(crate) struct Watching<'a> {
    inner: &'a Arc<Inner>,
    session: SessionId,
    channel: Arc<Channel>,
    kept: bool,
}

impl<'a> Watching<'a> {
    /// Watches a session's commits from now on.
    pub(crate) fn new(inner: &'a Arc<Inner>, session: SessionId) -> Self {
        Self {
            inner,
            session,
            channel: inner.feed.join(session),
            kept: false,
        }
    }

    /// Its committed end.
    pub(crate) fn head(&self) -> watch::Receiver<Head> {
        self.channel.watch()
    }

    /// The channel, for somebody who will leave it in time.
    fn into_channel(mut self) -> Arc<Channel> {
        self.kept = true;
        Arc::clone(&self.channel)
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.inner.feed.leave(self.session, &self.channel);
        }
    }
}

/// The session must be there for this viewer: foreign and absent look alike.
pub(super) fn here(
    view: &dyn View,
    viewer: &Viewer,
    session: SessionId,
) -> Result<(StreamHead, SessionRow), ReadError> {
    let stream = StreamId(session.0);
    let head = view.head(stream)?.ok_or(ReadError::NotFound)?;
    let row = view
        .row(&rows::session(viewer.workspace, session))?
        .ok_or(ReadError::NotFound)?;
    let row: SessionRow = codec::decode(&row).map_err(|e| ReadError::Damaged {
        stream,
        seq: head.last_seq,
        reason: e.to_string(),
    })?;
    match viewer.sees_principal(&row.principal) {
        true => Ok((head, row)),
        false => Err(ReadError::NotFound),
    }
}

pub(super) fn not_found(session: SessionId) -> Rejection {
    Rejection::new(
        Code::SessionNotFound,
        format!("there is no session {session} here"),
    )
}

pub(super) fn named(e: Rejection, session: SessionId) -> Rejection {
    if e.code == Code::SessionNotFound {
        not_found(session)
    } else {
        e
    }
}

fn sessions(
    view: &dyn View,
    viewer: &Viewer,
    after: Option<SessionId>,
    limit: usize,
    status: Option<Status>,
) -> Result<ListPage<SessionId>, ReadError> {
    let prefix = rows::sessions(viewer.workspace);
    let mut after = after.map(|id| rows::session(viewer.workspace, id));
    let (mut items, mut scanned) = (Vec::new(), 0);
    loop {
        let page = PageLimit {
            items_max: limit,
            bytes_max: PAGE_BYTES_MAX,
        };
        let found = view.rows(&prefix, after.as_deref(), Order::Asc, page)?;
        let full = found.len() == limit;
        for (key, value) in found {
            let row: SessionRow = codec::decode(&value)
                .map_err(|e| ReadError::Engine(format!("a session row does not decode: {e}")))?;
            scanned += 1;
            after = Some(key);
            let shown = viewer.sees_principal(&row.principal);
            if shown && status.is_none_or(|s| s == row.status) {
                items.push(listed(&row));
            }
            if items.len() == limit || scanned == LIST_SCAN_MAX {
                return Ok(ListPage {
                    items,
                    next_after: Some(row.id),
                });
            }
        }
        if !full {
            return Ok(ListPage {
                items,
                next_after: None,
            });
        }
    }
}

fn listed(row: &SessionRow) -> Value {
    let metadata: Value = serde_json::from_str(&row.metadata_json).unwrap_or_default();
    json!({
        "id": row.id,
        "status": row.status,
        "agent_deployment": row.pin.agent_deployment,
        "agent_deployment_revision_number": row.pin.agent_deployment_revision_number,
        "principal": row.principal,
        "workspace": row.workspace,
        "metadata": metadata,
        "created_at": time::rfc3339(row.created_at_ms),
    })
}

fn page(
    view: &dyn View,
    session: SessionId,
    last_seq: u64,
    query: &EventQuery,
) -> Result<EventPage, ReadError> {
    let stream = StreamId(session.0);
    let low = query.after.unwrap_or(0);
    let high = query
        .before
        .map_or(last_seq, |b| b.saturating_sub(1).min(last_seq));
    let mut out = EventPage {
        events: Vec::new(),
        next_after: None,
        last_seq,
        first_available_seq: 1,
    };
    if low >= high {
        return Ok(out);
    }
    let limit = query.limit.clamp(1, PAGE_EVENTS_MAX);
    // A filtered page looks through more events than it gives, within the same bounds.
    let items_max = if query.types.is_some() {
        PAGE_EVENTS_MAX
    } else {
        limit
    };
    let bounds = PageLimit {
        items_max,
        bytes_max: PAGE_BYTES_MAX,
    };
    let records = view.records(stream, low, high, query.order, bounds)?;
    let mut last = None;
    for record in &records {
        if out.events.len() == limit {
            break;
        }
        last = Some(record.seq);
        let damaged = |reason: String| ReadError::Damaged {
            stream,
            seq: record.seq,
            reason,
        };
        if let Some(types) = &query.types {
            let header = header_of(record).map_err(|e| damaged(e.to_string()))?;
            if !types.contains(&header.kind) {
                continue;
            }
        }
        out.events
            .push(envelope(record).map_err(|e| damaged(e.to_string()))?);
    }
    out.next_after = last.filter(|seq| match query.order {
        Order::Asc => *seq < high,
        Order::Desc => *seq > low + 1,
    });
    Ok(out)
}
