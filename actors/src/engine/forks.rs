//! Forks of sessions, and how two sessions compare.

use bytes::Bytes;
use longhaul_storage::{Order, PageLimit, ReadError, StreamHead, StreamId, View};
use serde_json::{Map, Value};

use super::clones::Copied;
use super::reads::{here, named, not_found};
use super::{Answer, Engine};
use crate::checkpoint::BytesThere;
use crate::checkpoint::plan::why_named_unusable;
use crate::code::{Code, Rejection};
use crate::codec;
use crate::dispatch::clones::CloneOffer;
use crate::ids::{CheckpointId, CloneToken, EventId, SessionId};
use crate::limits::PAGE_BYTES_MAX;
use crate::reader::Class;
use crate::rows;
use crate::session::actor::{checkpoints, state_at};
use crate::session::blob;
use crate::session::checkpoints::{Checkpoint, SnapshotKey, SnapshotState, owner};
use crate::session::command::{Command, Fork, ForkedDisk, Prompt, Request};
use crate::session::decision::SnapshotRow;
use crate::session::payload::{ResumeFrom, Selector};
use crate::session::projection::Target;
use crate::session::state::State;
use crate::session::stored::header_of;
use crate::session::viewer::Viewer;

const ONE: PageLimit = PageLimit {
    items_max: 1,
    bytes_max: PAGE_BYTES_MAX,
};

/// What is asked of a fork.
#[derive(Debug, Clone)]
pub struct ForkRequest {
    /// Who asks.
    pub request: Request,
    /// The session to fork.
    pub source: SessionId,
    /// Where.
    pub selector: Selector,
    /// Who the child acts as; `None` = as the source.
    pub principal: Option<String>,
    /// The child's pairs; `None` = the source's.
    pub metadata: Option<Map<String, Value>>,
    /// The child's first own message.
    pub prompt: Option<Box<Prompt>>,
}

/// The place that was selected.
struct Boundary {
    /// The source, folded up to there; what is missing of it is so by now.
    source: Box<State>,
    /// The row of what is missing, as it was then.
    expired: Option<Bytes>,
    /// The first session of its family.
    root: SessionId,
    /// The checkpoint that was selected.
    checkpoint: Option<Checkpoint>,
    /// Its resume blob, verified.
    blob: Option<Bytes>,
}

/// Where two sessions part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Common {
    /// The last shared position; 0 = none.
    pub through_seq: u64,
    /// Its event.
    pub through_event_id: Option<EventId>,
}

impl Engine {
    /// Forks a session: a new one that shares the source's past up to the selected place, at the
    /// same cost whatever the length of that past.
    ///
    /// # Errors
    /// `event.not_found`, `checkpoint.not_found`, `runtime.checkpoint_expired`,
    /// `runtime.snapshot_deleted`, `runtime.checkpoint_rejected`, `runtime.snapshot_unreadable`,
    /// `runtime.no_eligible_runner`; those of [`Engine::command`].
    pub async fn fork(&self, ask: ForkRequest) -> Result<Answer, Rejection> {
        let child = self.new_session_id();
        let Boundary {
            source,
            expired,
            root,
            checkpoint,
            blob,
        } = self.boundary(&ask).await?;
        let copied = match &checkpoint {
            Some(c) => self.disk_for(child, &source, c).await?,
            None => None,
        };
        let adopted = copied.as_ref().map(|c| c.adopted.clone());
        let chosen = checkpoint.as_ref().map(|c| {
            let workspace = ask.request.viewer.workspace;
            (c.created.checkpoint_id, c.snapshot_key(workspace))
        });
        let fork = Fork {
            request: ask.request,
            source,
            expired,
            root,
            selector: ask.selector,
            principal: ask.principal,
            metadata: ask.metadata,
            prompt: ask.prompt,
            checkpoint: checkpoint.map(|c| {
                Box::new(ForkedDisk {
                    checkpoint: c.created,
                    blob,
                    adopted,
                })
            }),
        };
        let answer = match self.command(child, Command::Fork(Box::new(fork))).await {
            // Its condition failed each time: perhaps what it needs is not there any more.
            Err(why) if why.code == Code::Busy => {
                Err(self.gone_meanwhile(chosen).await.unwrap_or(why))
            }
            other => other,
        };
        if let Some(copied) = copied {
            copied.settle(answer.as_ref().map(drop).map_err(Clone::clone));
        }
        answer
    }

    /// What is said of a checkpoint whose snapshot went after it was looked at.
    async fn gone_meanwhile(
        &self,
        chosen: Option<(CheckpointId, SnapshotKey)>,
    ) -> Option<Rejection> {
        let (id, key) = chosen?;
        let read = self.inner.read(Class::Session, move |view| {
            let there = view.row(&rows::snapshot(key))?.is_some();
            Ok(there && view.row(&rows::doomed(key))?.is_none())
        });
        let there = read.await.ok()?;
        let detail = format!("the snapshot of {id} went meanwhile");
        (!there).then(|| Rejection::new(Code::SnapshotDeleted, detail))
    }

    /// The copy of a checkpoint's disk, where a runner has to make one: the server's own
    /// snapshots are shared, and restored when a run needs them.
    async fn disk_for(
        &self,
        child: SessionId,
        source: &State,
        c: &Checkpoint,
    ) -> Result<Option<Copied>, Rejection> {
        let about = source.about.as_ref().ok_or_else(|| not_found(source.id))?;
        let (workspace, snapshot) = (about.workspace, c.created.snapshot.clone());
        let key = SnapshotKey::of(workspace, &snapshot);
        let read = self.inner.read(Class::Session, move |view| {
            let Some(row) = view.row(&rows::snapshot(key))? else {
                return Ok(None);
            };
            codec::decode::<SnapshotRow>(&row)
                .map(Some)
                .map_err(|e| ReadError::Engine(format!("a snapshot's row: {e}")))
        });
        let row = read.await?.ok_or(Code::SnapshotDeleted)?;
        if row.kept.is_some() {
            // Better no child than one that cannot begin.
            let refused = |code, why: String| {
                let id = c.created.checkpoint_id;
                Err(Rejection::new(code, format!("{id}: {why}")))
            };
            return match self.inner.bytes.probe(&row).await {
                BytesThere::There => Ok(None),
                BytesThere::Unusable(why) => refused(Code::CheckpointRejected, why),
                BytesThere::Unreadable(why) => refused(Code::SnapshotUnreadable, why),
            };
        }
        let door = &self.inner.door;
        let limit_ms = self.inner.config.clone_s_max.saturating_mul(1_000);
        let limit_ms = i64::try_from(limit_ms).unwrap_or(i64::MAX);
        let offer = CloneOffer {
            token: CloneToken(door.ids.secret()),
            child,
            workspace,
            checkpoint: c.created.checkpoint_id,
            owner: owner(&snapshot),
            snapshot,
            target: Target::of(&about.pin),
            deadline_ms: door.clock.wall_ms().saturating_add(limit_ms),
        };
        self.copy_disk(offer).await.map(Some)
    }

    /// The source at the selected place, and the checkpoint that was selected.
    async fn boundary(&self, ask: &ForkRequest) -> Result<Boundary, Rejection> {
        let (viewer, source) = (ask.request.viewer.clone(), ask.source);
        if ask.selector == Selector::Head {
            let state = self.state(viewer, source).await?;
            return Ok(Boundary {
                root: state.forked.as_ref().map_or(source, |f| f.root),
                source: state,
                // Whoever misses something is no source; what goes from now on is too late.
                expired: None,
                checkpoint: None,
                blob: None,
            });
        }
        let selector = ask.selector;
        let now_ms = self.inner.door.clock.wall_ms();
        let read = self.inner.read(Class::Session, move |view| {
            let (head, row) = here(view, &viewer, source)?;
            let (seq, checkpoint) = match selector {
                Selector::Head => (head.last_seq, None),
                Selector::Seq(seq) => (seq, None),
                Selector::EventId(id) => (id.seq(), None),
                Selector::CheckpointId(id) => {
                    let listed = checkpoints(view, source, head.last_seq)?;
                    let Some(found) = listed.find(id) else {
                        return Ok(Err(no_checkpoint(id)));
                    };
                    (found.created.through_sequence, Some((**found).clone()))
                }
            };
            if let Err(why) = event_at(view, source, &head, seq, selector)? {
                return Ok(Err(why));
            }
            if let Some(why) = checkpoint
                .as_ref()
                .and_then(|c| why_named_unusable(c, now_ms))
            {
                return Ok(Err(why));
            }
            let blob = match checkpoint.as_ref().map(|c| blob_of(view, source, c)) {
                Some(Err(Unverified::Read(e))) => return Err(e),
                Some(Err(Unverified::Blob(why))) => {
                    return Ok(Err(Rejection::new(Code::CheckpointRejected, why)));
                }
                Some(Ok(blob)) => blob,
                None => None,
            };
            let mut state = state_at(view, source, seq)?;
            if let Some(about) = &mut state.about {
                // The place may be older than the source, which acts as somebody else then.
                about.principal = row.principal;
            }
            let expired = expired_before(view, source, seq, &mut state)?;
            Ok(Ok(Boundary {
                source: Box::new(state),
                expired,
                root: row.root.unwrap_or(source),
                checkpoint,
                blob,
            }))
        });
        read.await.map_err(|e| named(e, source))?
    }

    /// The checkpoints of a session, newest first: metadata only.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`, `session.damaged`, `runtime.*`.
    pub async fn checkpoints(
        &self,
        viewer: Viewer,
        session: SessionId,
    ) -> Result<Vec<Value>, Rejection> {
        let state = self.state(viewer, session).await?;
        let now_ms = self.inner.door.clock.wall_ms();
        let pin = state.about.as_ref().map(|about| &about.pin);
        let listed = state.checkpoints.newest_first();
        Ok(listed
            .map(|c| {
                let mut shown = (**c).clone();
                // Over is over, also before its event is written.
                if shown.holds_bytes() && shown.is_over(now_ms) {
                    shown.snapshot_state = SnapshotState::Expired;
                }
                shown.json(session, pin)
            })
            .collect())
    }

    /// Where two sessions of a workspace part: the length of the past they share.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`, `session.damaged`, `runtime.*`.
    pub async fn common(
        &self,
        viewer: Viewer,
        left: SessionId,
        right: SessionId,
    ) -> Result<Common, Rejection> {
        let read = self.inner.read(Class::Page, move |view| {
            let (a, _) = here(view, &viewer, left)?;
            let (b, _) = match here(view, &viewer, right) {
                Err(ReadError::NotFound) => return Ok(Err(not_found(right))),
                other => other?,
            };
            let through_seq = shared(&a, &b);
            let through_event_id = match through_seq {
                0 => None,
                seq => Some(id_at(view, left, seq)?),
            };
            Ok(Ok(Common {
                through_seq,
                through_event_id,
            }))
        });
        read.await.map_err(|e| named(e, left))?
    }
}

/// The last position that two streams share: they are made of the same segments up to there.
fn shared(a: &StreamHead, b: &StreamHead) -> u64 {
    let mut through = 0;
    for (x, y) in a.segments.iter().zip(&b.segments) {
        if x.id != y.id {
            break;
        }
        through = x.through.min(y.through);
        if x.through != y.through {
            break;
        }
    }
    through.min(a.last_seq).min(b.last_seq)
}

enum Unverified {
    Read(ReadError),
    Blob(String),
}

/// The resume blob of a checkpoint that has one.
fn blob_of(
    view: &dyn View,
    session: SessionId,
    c: &Checkpoint,
) -> Result<Option<Bytes>, Unverified> {
    let resume = &c.created.resume;
    if *resume == ResumeFrom::RebuildFromLog {
        return Ok(None);
    }
    let row = view.row(&rows::blob(session, c.seq));
    let bytes = row.map_err(Unverified::Read)?;
    blob::verify(resume, bytes.as_deref()).map_err(Unverified::Blob)?;
    Ok(bytes)
}

/// Notes in `state`, which is the source's at `seq`, what of it has expired since. Returns the row.
fn expired_before(
    view: &dyn View,
    source: SessionId,
    seq: u64,
    state: &mut State,
) -> Result<Option<Bytes>, ReadError> {
    let row = view.row(&rows::expired(source))?;
    if let Some(row) = &row {
        let missing: Vec<(u64, u64)> = codec::decode(row)
            .map_err(|e| ReadError::Engine(format!("a row of what has expired: {e}")))?;
        let before = missing.into_iter().filter(|(from, _)| *from <= seq);
        state
            .missing
            .extend(before.map(|(from, to)| (from, to.min(seq))));
    }
    Ok(row)
}

/// What is said of a checkpoint that is not listed, or another workspace's.
pub fn no_checkpoint(id: CheckpointId) -> Rejection {
    Rejection::new(
        Code::CheckpointNotFound,
        format!("there is no checkpoint {id} here"),
    )
}

fn id_at(view: &dyn View, session: SessionId, seq: u64) -> Result<EventId, ReadError> {
    let stream = StreamId(session.0);
    let damaged = |reason: String| ReadError::Damaged {
        stream,
        seq,
        reason,
    };
    let found = view.records(stream, seq.saturating_sub(1), seq, Order::Asc, ONE)?;
    let record = found
        .first()
        .ok_or_else(|| damaged("no record".to_owned()))?;
    Ok(header_of(record).map_err(|e| damaged(e.to_string()))?.id)
}

/// The selected position must be one of the log's, and its event the named one.
fn event_at(
    view: &dyn View,
    session: SessionId,
    head: &StreamHead,
    seq: u64,
    selector: Selector,
) -> Result<Result<(), Rejection>, ReadError> {
    let absent = || {
        let detail = format!("the log has the positions 1 to {}", head.last_seq);
        Rejection::new(Code::EventNotFound, detail).with("last_seq", head.last_seq)
    };
    if seq == 0 || seq > head.last_seq {
        return Ok(Err(absent()));
    }
    if let Selector::EventId(id) = selector
        && id_at(view, session, seq)? != id
    {
        let detail = format!("{id} is no event of {session}");
        return Ok(Err(Rejection::new(Code::EventNotFound, detail)));
    }
    Ok(Ok(()))
}
