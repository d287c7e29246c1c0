//! The `current` rows that are a function of state, and the effects that follow from them.
//!
//! Rows and effects are computed from the same difference, so every effect can be derived again
//! from a row: a crash between commit and effect loses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bincode::{Decode, Encode};
use bytes::Bytes;
use longhaul_storage::RowChange;

use super::checkpoints::{Checkpoint, SnapshotKey};
use super::command::Expiry;
use super::payload::{Pin, WaitingOn, WorkspaceRef};
use super::state::{Forked, Phase, State};
use super::status::Status;
use crate::checkpoint::plan;
use crate::codec;
use crate::ids::{RunId, RunnerId, SessionId, TokenDigest};
use crate::rows;

/// Everything outside the log that follows from a state.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Projection {
    session: Option<SessionRow>,
    live: Option<LiveRow>,
    timers: BTreeSet<TimerRow>,
    checkpoints: BTreeMap<u64, Arc<Checkpoint>>,
    family: Option<Member>,
}

/// A fork's place in its family.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Member {
    /// The fork.
    pub id: SessionId,
    /// Where it comes from.
    pub forked: Forked,
}

/// A session in lists: what can be said without reading its log.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct SessionRow {
    /// The session.
    pub id: SessionId,
    /// Its tenant.
    pub workspace: WorkspaceRef,
    /// Who it acts as.
    pub principal: String,
    /// Its agent.
    pub pin: Pin,
    /// Where it is.
    pub status: Status,
    /// Caller's pairs, JSON.
    pub metadata_json: String,
    /// When it was admitted, milliseconds.
    pub created_at_ms: i64,
    /// The first session of its family, if it is a fork.
    pub root: Option<SessionId>,
}

/// A session with a live run: what start-up needs to go on.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct LiveRow {
    /// The session.
    pub session: SessionId,
    /// Its tenant.
    pub workspace: WorkspaceRef,
    /// What a runner must offer.
    pub target: Target,
    /// The run.
    pub run: RunId,
    /// Where it is.
    pub phase: Phase,
    /// Not offered before, milliseconds of wall time.
    pub not_before_ms: i64,
    /// Since when it waits for a runner, milliseconds.
    pub queued_at_ms: i64,
    /// Who alone can restore the disk that the queued run would get; it is offered to nobody else
    /// for a while.
    pub owner: Option<RunnerId>,
    /// The claim, while one is held.
    pub claim: Option<LiveClaim>,
}

/// The timed part of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct LiveClaim {
    /// Digest of its token.
    pub token: TokenDigest,
    /// Who holds it.
    pub runner: RunnerId,
    /// Milliseconds of wall time.
    pub claimed_at_ms: i64,
    /// See `claimed_at_ms`.
    pub startup_deadline_ms: i64,
    /// See `claimed_at_ms`.
    pub deadline_ms: i64,
    /// Whether it has been ready.
    pub ready: bool,
    /// Whether it is parked with its compute held. A change gives the claim a fresh lease.
    pub waiting: bool,
}

/// What a runner must advertise to be offered a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub enum Target {
    /// `<harness_revision>/<sandbox_profile_revision>`.
    Pinned(crate::ids::HarnessRevision, crate::ids::SandboxRevision),
    /// The same, of an `external` harness: `*` matches it too.
    External(crate::ids::HarnessRevision, crate::ids::SandboxRevision),
}

impl Target {
    /// The target of a pinned agent.
    pub fn of(pin: &Pin) -> Self {
        let (h, s) = (pin.harness_revision, pin.sandbox_profile_revision);
        if pin.external {
            Self::External(h, s)
        } else {
            Self::Pinned(h, s)
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Pinned(h, s) | Self::External(h, s)) = self;
        write!(f, "{h}/{s}")
    }
}

/// A durable timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct TimerRow {
    /// When, milliseconds of wall time.
    pub due_ms: i64,
    /// For whom.
    pub session: SessionId,
    /// The event it belongs to: a park, a checkpoint's creation, or what contents are old since.
    pub seq: u64,
    /// What is due.
    pub due: Due,
}

/// What a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub enum Due {
    /// Compute was held long enough.
    Hold,
    /// The wait of this index is over.
    Wait(u32),
    /// The checkpoint's time is over.
    Checkpoint,
    /// Contents may be old enough to go.
    Contents,
}

impl TimerRow {
    /// What the session is told when it is due.
    pub fn expiry(&self) -> Expiry {
        match self.due {
            Due::Hold => Expiry::Hold {
                parked_seq: self.seq,
            },
            Due::Wait(index) => Expiry::Wait {
                parked_seq: self.seq,
                index,
            },
            Due::Checkpoint => Expiry::Checkpoint { seq: self.seq },
            Due::Contents => Expiry::Contents {
                since_seq: self.seq,
            },
        }
    }
}

/// What to do after a commit. Each is a hint to look at a row that is already there.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Offer the queued run (its `LiveRow`) to runners.
    Offer(LiveRow),
    /// The run is no longer queued.
    Withdraw(SessionId),
    /// Watch the attempt's lease, start-up and deadline.
    Watch(LiveClaim),
    /// The claim is over: stop watching, free its runner's place.
    Unwatch(LiveClaim),
    /// A reference to a snapshot is gone: its bytes may be.
    Collect,
    /// Wake the session at this time.
    SetTimer(TimerRow),
    /// No longer.
    ClearTimer(TimerRow),
}

impl Projection {
    /// What follows from `state`.
    pub fn of(state: &State) -> Self {
        let Some(about) = &state.about else {
            return Self::default();
        };
        let session = SessionRow {
            id: state.id,
            workspace: about.workspace,
            principal: about.principal.clone(),
            pin: about.pin.clone(),
            status: state.status,
            metadata_json: about.metadata_json.clone(),
            created_at_ms: state.created_at_ms,
            root: state.forked.as_ref().map(|f| f.root),
        };
        let live = state.run.as_ref().map(|run| LiveRow {
            session: state.id,
            workspace: about.workspace,
            target: Target::of(&about.pin),
            run: run.id,
            phase: run.phase,
            not_before_ms: run.not_before_ms,
            queued_at_ms: run.queued_at_ms,
            owner: match run.phase {
                Phase::Queued => plan::wanted_runner(state),
                _ => None,
            },
            claim: run.claim.as_ref().map(|c| LiveClaim {
                token: c.token,
                runner: c.runner,
                claimed_at_ms: c.claimed_at_ms,
                startup_deadline_ms: c.startup_deadline_ms,
                deadline_ms: c.deadline_ms,
                ready: run.phase != Phase::Claimed,
                waiting: run.phase == Phase::Waiting,
            }),
        });
        Self {
            session: Some(session),
            live,
            timers: timers(state),
            checkpoints: state.checkpoints.0.clone(),
            family: state.forked.clone().map(|forked| Member {
                id: state.id,
                forked,
            }),
        }
    }

    fn workspace(&self) -> WorkspaceRef {
        self.session
            .as_ref()
            .map_or(WorkspaceRef::DEFAULT, |s| s.workspace)
    }

    /// Counted references to snapshots, by position of the checkpoint.
    fn references(&self) -> BTreeMap<u64, SnapshotKey> {
        let workspace = self.workspace();
        let live = self.checkpoints.values().filter(|c| c.holds_bytes());
        live.map(|c| (c.seq, c.snapshot_key(workspace))).collect()
    }

    /// Changes of the rows of checkpoints, of their ids, and of their references.
    fn checkpoint_changes(&self, after: &Self, out: &mut Vec<RowChange>) {
        let id = match (&self.session, &after.session) {
            (Some(s), _) | (None, Some(s)) => s.id,
            (None, None) => return,
        };
        for (seq, old) in &self.checkpoints {
            if !after.checkpoints.contains_key(seq) {
                out.push(RowChange::Delete(rows::checkpoint(id, *seq)));
                let named = rows::checkpoint_id(old.created.checkpoint_id);
                out.push(RowChange::Delete(named));
            }
        }
        for (seq, new) in &after.checkpoints {
            let old = self.checkpoints.get(seq);
            if old.is_some_and(|old| Arc::ptr_eq(old, new) || old == new) {
                continue;
            }
            out.push(RowChange::Put(
                rows::checkpoint(id, *seq),
                codec::encode(&**new),
            ));
            if old.is_none() {
                let named = rows::checkpoint_id(new.created.checkpoint_id);
                out.push(RowChange::Put(named, codec::encode(&(id, *seq))));
            }
        }
        let (was, is) = (self.references(), after.references());
        for (seq, key) in was.iter().filter(|(seq, _)| !is.contains_key(*seq)) {
            out.push(RowChange::Delete(rows::snapshot_holder(*key, id, *seq)));
        }
        let gone = let_go(&was, &is).into_iter();
        out.extend(gone.map(|key| RowChange::Put(rows::collect(key), Bytes::new())));
        for (seq, key) in is.iter().filter(|(seq, _)| !was.contains_key(*seq)) {
            out.push(RowChange::Put(
                rows::snapshot_holder(*key, id, *seq),
                Bytes::new(),
            ));
        }
    }

    /// The rows as they must be in the log's `current` table (for checks).
    pub fn rows(&self) -> Vec<(Bytes, Bytes)> {
        let session = self.session.iter().map(|s| (s.key(), codec::encode(s)));
        let live = self
            .live
            .iter()
            .map(|l| (rows::live(l.session), codec::encode(l)));
        let timers = self.timers.iter().map(|t| (t.key(), codec::encode(t)));
        let mut all: Vec<_> = session.chain(live).chain(timers).collect();
        let mut more = Vec::new();
        Self::default().checkpoint_changes(self, &mut more);
        if let Some(m) = &self.family {
            more.push(m.put());
        }
        all.extend(more.into_iter().filter_map(|change| match change {
            RowChange::Put(key, value) => Some((key, value)),
            RowChange::Delete(_) | RowChange::DeletePrefix(_) => None,
        }));
        all
    }

    /// The row changes that lead from `self` to `after`.
    pub fn changes(&self, after: &Self) -> Vec<RowChange> {
        let mut out = Vec::new();
        if self.session != after.session
            && let Some(s) = &after.session
        {
            out.push(RowChange::Put(s.key(), codec::encode(s)));
        }
        if self.live != after.live {
            match (&self.live, &after.live) {
                (_, Some(l)) => out.push(RowChange::Put(rows::live(l.session), codec::encode(l))),
                (Some(l), None) => out.push(RowChange::Delete(rows::live(l.session))),
                (None, None) => {}
            }
        }
        out.extend(
            self.timers
                .difference(&after.timers)
                .map(|t| RowChange::Delete(t.key())),
        );
        let new = after.timers.difference(&self.timers);
        out.extend(new.map(|t| RowChange::Put(t.key(), codec::encode(t))));
        self.checkpoint_changes(after, &mut out);
        // A member of a family stays one when it is erased: the others come from it.
        if self.family != after.family
            && let Some(m) = &after.family
        {
            out.push(m.put());
        }
        out
    }

    /// The effects that lead from `self` to `after`.
    pub fn effects(&self, after: &Self) -> Vec<Effect> {
        let mut out = Vec::new();
        let queued = |p: &Self| p.live.clone().filter(|l| l.phase == Phase::Queued);
        let (was, is) = (queued(self), queued(after));
        if was != is {
            match (was, is) {
                (_, Some(l)) => out.push(Effect::Offer(l)),
                (Some(l), None) => out.push(Effect::Withdraw(l.session)),
                (None, None) => {}
            }
        }
        let claim = |p: &Self| p.live.as_ref().and_then(|l| l.claim);
        let (was, is) = (claim(self), claim(after));
        if was != is {
            let other = |a: LiveClaim, b: Option<LiveClaim>| b.is_none_or(|b| b.token != a.token);
            out.extend(was.filter(|w| other(*w, is)).map(Effect::Unwatch));
            out.extend(is.map(Effect::Watch));
        }
        out.extend(
            self.timers
                .difference(&after.timers)
                .copied()
                .map(Effect::ClearTimer),
        );
        out.extend(
            after
                .timers
                .difference(&self.timers)
                .copied()
                .map(Effect::SetTimer),
        );
        let (was, is) = (self.references(), after.references());
        if !let_go(&was, &is).is_empty() {
            out.push(Effect::Collect);
        }
        out
    }
}

/// The snapshots that lost all their references by this session. Whatever else loses one has
/// another here, whose end is looked at in its turn.
fn let_go(
    was: &BTreeMap<u64, SnapshotKey>,
    is: &BTreeMap<u64, SnapshotKey>,
) -> BTreeSet<SnapshotKey> {
    let held: BTreeSet<_> = is.values().collect();
    let was = was.values().filter(|key| !held.contains(key));
    was.copied().collect()
}

impl SessionRow {
    fn key(&self) -> Bytes {
        rows::session(self.workspace, self.id)
    }
}

impl Member {
    fn put(&self) -> RowChange {
        RowChange::Put(rows::member(self.forked.root, self.id), codec::encode(self))
    }
}

impl TimerRow {
    /// Its key: sorts by time.
    pub fn key(&self) -> Bytes {
        rows::timer(self)
    }
}

fn timers(state: &State) -> BTreeSet<TimerRow> {
    let timer = |due_ms, seq, due| TimerRow {
        due_ms,
        session: state.id,
        seq,
        due,
    };
    // The next checkpoint to go is enough: its end sets the one after it.
    let live = state.checkpoints.0.values().filter(|c| c.holds_bytes());
    let next = live.min_by_key(|c| (c.created.expires_at_ms, c.seq));
    let next = next.map(|c| timer(c.created.expires_at_ms, c.seq, Due::Checkpoint));
    // Activity since does not move it: it looks when it is due, and waits on.
    let aging = state.aging;
    let ttl_ms = state.content_ttl_ms().filter(|_| aging.waits());
    let contents = ttl_ms.map(|ttl_ms| {
        let due_ms = aging.since_ms.saturating_add(ttl_ms);
        timer(due_ms, aging.since_seq, Due::Contents)
    });
    let next = next.into_iter().chain(contents);
    let Some(run) = &state.run else {
        return next.collect();
    };
    let hold =
        (run.phase == Phase::Waiting).then(|| timer(run.hold_until_ms, run.parked_seq, Due::Hold));
    let waits = (0u32..).zip(&run.waits).filter_map(|(i, w)| match &w.on {
        WaitingOn::Signal {
            expires_at: Some(at),
            ..
        } if !w.done => Some(timer(*at, run.parked_seq, Due::Wait(i))),
        _ => None,
    });
    hold.into_iter().chain(waits).chain(next).collect()
}
