//! The queue of runs and the runners that wait. Pure: time is given, nothing is sent.

mod parts;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use super::ready::{Ready, Ticket};
use super::{RunnerInfo, RunnerTarget};
use crate::code::{Code, Rejection};
use crate::ids::{RunnerId, SessionId, TokenDigest};
use crate::session::payload::WorkspaceRef;
use crate::session::projection::LiveRow;
use parts::{Place, Run, Runner, open_to};

/// Names one long poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PollId(pub(crate) u64);

/// A run and the poll that may claim it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Match {
    /// The poll; it no longer waits.
    pub(crate) poll: PollId,
    /// Whose.
    pub(crate) runner: RunnerId,
    /// The run.
    pub(crate) row: LiveRow,
}

/// What became of a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// The session granted it.
    Yes,
    /// The session refused: the run is not what the queue thought.
    Stale,
    /// It could not be asked or answered; the run may still be there.
    Later(Duration),
}

/// What a runner serves: one workspace or all, and a target.
type Served = (Option<WorkspaceRef>, RunnerTarget);

/// Matches queued runs with waiting runners.
#[derive(Debug)]
pub(crate) struct Matcher {
    paused: bool,
    runners_max: usize,
    runs: HashMap<SessionId, Run>,
    ready: HashMap<RunnerTarget, Ready>,
    backoff: BTreeSet<(Duration, SessionId)>,
    /// Until when runs are kept for the one runner that has their disk.
    kept: BTreeSet<(Duration, SessionId)>,
    /// Since when runs wait, oldest first.
    ages: BTreeSet<(i64, SessionId)>,
    runners: HashMap<RunnerId, Runner>,
    /// Runners with a poll and a free place, by what they serve; served longest ago first.
    idle: HashMap<Served, BTreeSet<(u64, RunnerId)>>,
    holders: HashMap<SessionId, (TokenDigest, RunnerId)>,
    turn: u64,
}

impl Matcher {
    /// An empty queue.
    pub(crate) fn new(paused: bool, runners_max: usize) -> Self {
        Self {
            paused,
            runners_max,
            runs: HashMap::new(),
            ready: HashMap::new(),
            backoff: BTreeSet::new(),
            kept: BTreeSet::new(),
            ages: BTreeSet::new(),
            runners: HashMap::new(),
            idle: HashMap::new(),
            holders: HashMap::new(),
            turn: 0,
        }
    }

    /// Adds or changes a runner. Its polls and claims stay.
    ///
    /// # Errors
    /// `runtime.busy` if there are too many.
    pub(crate) fn enrol(&mut self, info: RunnerInfo) -> Result<Vec<Match>, Rejection> {
        let id = info.id;
        if !self.runners.contains_key(&id) && self.runners.len() >= self.runners_max {
            return Err(Rejection::new(Code::Busy, "too many runners are enrolled"));
        }
        self.unlist(id);
        let held = self
            .holders
            .iter()
            .filter(|(_, (_, r))| *r == id)
            .map(|(s, _)| *s);
        match self.runners.get_mut(&id) {
            Some(runner) => runner.info = info,
            None => {
                let held = held.collect();
                let polls = VecDeque::new();
                let served = self.turn;
                self.runners.insert(
                    id,
                    Runner {
                        info,
                        held,
                        offered: 0,
                        polls,
                        served,
                    },
                );
            }
        }
        Ok(self.serve(id))
    }

    /// The runner gets no more claims. Its open polls are given back, to be ended.
    pub(crate) fn drain(&mut self, id: RunnerId) -> Vec<PollId> {
        self.unlist(id);
        let Some(runner) = self.runners.get_mut(&id) else {
            return Vec::new();
        };
        runner.info.draining = true;
        runner.polls.drain(..).map(|(poll, _)| poll).collect()
    }

    /// The runner is gone. Its open polls are given back, to be ended.
    pub(crate) fn forget(&mut self, id: RunnerId) -> Vec<PollId> {
        let polls = self.drain(id);
        self.runners.remove(&id);
        polls
    }

    /// A run is queued (or changed). `if_absent`: only if nothing is known of the session, for
    /// rows read some time ago.
    pub(crate) fn offer(
        &mut self,
        row: LiveRow,
        ready_at: Duration,
        kept_until: Duration,
        now: Duration,
        if_absent: bool,
    ) -> Vec<Match> {
        let session = row.session;
        if if_absent && self.runs.contains_key(&session) {
            return Vec::new();
        }
        self.withdraw(session);
        self.turn += 1;
        self.ages.insert((row.queued_at_ms, session));
        let kept_until = row.owner.map(|_| kept_until).filter(|at| *at > now);
        self.kept.extend(kept_until.map(|at| (at, session)));
        let run = Run {
            row,
            number: self.turn,
            place: Place::Backoff(ready_at),
            kept_until,
        };
        self.runs.insert(session, run);
        if ready_at > now {
            self.backoff.insert((ready_at, session));
            return Vec::new();
        }
        self.ripe(session)
    }

    /// The run is no longer queued.
    pub(crate) fn withdraw(&mut self, session: SessionId) {
        let Some(run) = self.runs.remove(&session) else {
            return;
        };
        self.ages.remove(&(run.row.queued_at_ms, session));
        if let Some(at) = run.kept_until {
            self.kept.remove(&(at, session));
        }
        if let Place::Backoff(at) = run.place {
            self.backoff.remove(&(at, session));
        }
    }

    /// A runner waits for up to `max` claims.
    ///
    /// # Errors
    /// `runner.not_found`, `runner.draining`.
    pub(crate) fn poll(
        &mut self,
        poll: PollId,
        id: RunnerId,
        max: usize,
    ) -> Result<Vec<Match>, Rejection> {
        let runner = self.runners.get_mut(&id).ok_or(Code::RunnerNotFound)?;
        if runner.info.draining {
            return Err(Code::RunnerDraining.into());
        }
        runner.polls.push_back((poll, max.max(1)));
        Ok(self.serve(id))
    }

    /// The poll no longer waits.
    pub(crate) fn cancel(&mut self, id: RunnerId, poll: PollId) {
        self.unlist(id);
        if let Some(runner) = self.runners.get_mut(&id) {
            runner.polls.retain(|(p, _)| *p != poll);
        }
        self.list(id);
    }

    /// Runs whose back-off is over.
    pub(crate) fn mature(&mut self, now: Duration) -> Vec<Match> {
        let mut out = Vec::new();
        while let Some((at, session)) = self.backoff.first().copied() {
            if at > now {
                break;
            }
            self.backoff.pop_first();
            out.extend(self.ripe(session));
        }
        out
    }

    /// Runs that have been kept for their owner long enough: anybody may have them now. One whose
    /// owner is live is kept on, and looked at again after `again`.
    pub(crate) fn release(
        &mut self,
        now: Duration,
        again: Duration,
        is_live: impl Fn(RunnerId) -> bool,
    ) -> Vec<Match> {
        let mut out = Vec::new();
        while let Some((at, session)) = self.kept.first().copied().filter(|(at, _)| *at <= now) {
            self.kept.remove(&(at, session));
            let Some(run) = self.runs.get_mut(&session) else {
                continue;
            };
            if run.row.owner.is_some_and(&is_live) {
                let at = now.saturating_add(again);
                run.kept_until = Some(at);
                self.kept.insert((at, session));
                continue;
            }
            run.kept_until = None;
            if run.place == Place::Ready {
                out.extend(self.ripe(session));
            }
        }
        out
    }

    /// When the next back-off is over, or the next run may be somebody else's.
    pub(crate) fn next_ripe(&self) -> Option<Duration> {
        let backoff = self.backoff.first().map(|(at, _)| *at);
        let kept = self.kept.first().map(|(at, _)| *at);
        backoff.into_iter().chain(kept).min()
    }

    /// What became of a match; the runner may have room again.
    pub(crate) fn settle(&mut self, m: &Match, claimed: Claimed) -> Vec<Match> {
        self.unlist(m.runner);
        if let Some(runner) = self.runners.get_mut(&m.runner) {
            runner.offered = runner.offered.saturating_sub(1);
        }
        let session = m.row.session;
        let same = self
            .runs
            .get(&session)
            .is_some_and(|r| r.place == Place::Offered && r.row.run == m.row.run);
        let mut out = Vec::new();
        match claimed {
            Claimed::Later(at) if same => {
                if let Some(run) = self.runs.get_mut(&session) {
                    run.place = Place::Backoff(at);
                    self.backoff.insert((at, session));
                }
            }
            Claimed::Yes | Claimed::Stale if same => self.withdraw(session),
            _ => {}
        }
        out.extend(self.serve(m.runner));
        out
    }

    /// A claim is held (again, after a restart).
    pub(crate) fn held(&mut self, session: SessionId, token: TokenDigest, id: RunnerId) {
        self.unhold(session);
        self.holders.insert(session, (token, id));
        self.unlist(id);
        if let Some(runner) = self.runners.get_mut(&id) {
            runner.held.insert(session);
        }
        self.list(id);
    }

    /// A claim is over: its runner has a free place.
    pub(crate) fn freed(&mut self, session: SessionId, token: TokenDigest) -> Vec<Match> {
        if self
            .holders
            .get(&session)
            .is_none_or(|(held, _)| *held != token)
        {
            return Vec::new();
        }
        self.unhold(session)
            .map_or_else(Vec::new, |id| self.serve(id))
    }

    /// One runner, as enrolled.
    pub(crate) fn info(&self, id: RunnerId) -> Option<&RunnerInfo> {
        self.runners.get(&id).map(|r| &r.info)
    }

    /// Every runner, as enrolled.
    pub(crate) fn infos(&self) -> impl Iterator<Item = &RunnerInfo> {
        self.runners.values().map(|r| &r.info)
    }

    /// Runs that wait for a runner.
    pub(crate) fn depth(&self) -> usize {
        self.runs.len()
    }

    /// Since when the oldest of them waits, wall milliseconds.
    pub(crate) fn oldest_ms(&self) -> Option<i64> {
        self.ages.first().map(|(at, _)| *at)
    }

    /// Enrolled runners.
    pub(crate) fn runners(&self) -> usize {
        self.runners.len()
    }

    /// Why a queued run is not being claimed; `None` = nothing stands in its way, or it is not
    /// queued.
    pub(crate) fn blocked_by(
        &self,
        session: SessionId,
        now: Duration,
        is_live: impl Fn(RunnerId) -> bool,
    ) -> Option<&'static str> {
        let run = self.runs.get(&session)?;
        if self.paused {
            return Some("paused_start");
        }
        match run.place {
            Place::Backoff(at) if at > now => return Some("backoff"),
            Place::Offered => return None,
            Place::Backoff(_) | Place::Ready => {}
        }
        let fits = |r: &&Runner| {
            !r.info.draining
                && r.only().is_none_or(|ws| ws == run.row.workspace)
                && open_to(run).iter().any(|t| r.targets().any(|of| of == *t))
                && is_live(r.info.id)
        };
        let mut fitting = self.runners.values().filter(fits).peekable();
        if fitting.peek().is_none() {
            return Some("no_runner");
        }
        fitting.all(|r| r.free() == 0).then_some("capacity")
    }

    /// A run may be handed out from now on.
    fn ripe(&mut self, session: SessionId) -> Vec<Match> {
        let Some(run) = self.runs.get_mut(&session) else {
            return Vec::new();
        };
        run.place = Place::Ready;
        let targets = open_to(run);
        let (workspace, number) = (run.row.workspace, run.number);
        for target in targets.iter().copied() {
            let ready = self.ready.entry(target).or_default();
            let runs = &self.runs;
            ready.push(workspace, Ticket { session, number }, self.turn, |t| {
                is_ready(runs, t)
            });
        }
        let keys = targets
            .into_iter()
            .flat_map(|t| [(None, t), (Some(workspace), t)]);
        let first = keys
            .filter_map(|key| self.idle.get(&key)?.first().copied())
            .min();
        first.map_or_else(Vec::new, |(_, id)| self.serve(id))
    }

    /// Hands runs to the runner's polls as long as it has any, and room.
    fn serve(&mut self, id: RunnerId) -> Vec<Match> {
        self.unlist(id);
        let mut out = Vec::new();
        'polls: while let Some((poll, max)) = self.open_poll(id) {
            let mut got = 0;
            while got < max {
                let Some(row) = self.next_for(id) else { break };
                got += 1;
                out.push(Match {
                    poll,
                    runner: id,
                    row,
                });
            }
            if got == 0 {
                break 'polls;
            }
            if let Some(runner) = self.runners.get_mut(&id) {
                runner.polls.pop_front();
            }
        }
        self.list(id);
        out
    }

    fn open_poll(&self, id: RunnerId) -> Option<(PollId, usize)> {
        let runner = self.runners.get(&id)?;
        runner.polls.front().copied()
    }

    /// The next run for this runner: of the workspace served longest ago.
    fn next_for(&mut self, id: RunnerId) -> Option<LiveRow> {
        let runner = self.runners.get(&id)?;
        if self.paused || runner.info.draining || runner.free() == 0 {
            return None;
        }
        let (only, runs) = (runner.only(), &self.runs);
        let mut best: Option<(u64, WorkspaceRef, RunnerTarget)> = None;
        for target in runner.targets() {
            let Some(ready) = self.ready.get_mut(&target) else {
                continue;
            };
            match ready.next(only, |t| is_ready(runs, t)) {
                Some((served, ws)) if best.is_none_or(|(b, ..)| served < b) => {
                    best = Some((served, ws, target));
                }
                Some(_) => {}
                None => {
                    if only.is_none() {
                        self.ready.remove(&target);
                    }
                }
            }
        }
        let (_, workspace, target) = best?;
        self.turn += 1;
        let ticket = self.ready.get_mut(&target)?.pop(workspace, self.turn)?;
        let run = self.runs.get_mut(&ticket.session)?;
        run.place = Place::Offered;
        let runner = self.runners.get_mut(&id)?;
        runner.offered += 1;
        runner.served = self.turn;
        Some(run.row.clone())
    }

    fn unhold(&mut self, session: SessionId) -> Option<RunnerId> {
        let (_, id) = self.holders.remove(&session)?;
        self.unlist(id);
        if let Some(runner) = self.runners.get_mut(&id) {
            runner.held.remove(&session);
        }
        self.list(id);
        Some(id)
    }

    /// Takes the runner out of the index; before anything about it changes.
    fn unlist(&mut self, id: RunnerId) {
        let Some(runner) = self.runners.get(&id) else {
            return;
        };
        for target in runner.targets() {
            let key = (runner.only(), target);
            if let Some(set) = self.idle.get_mut(&key) {
                set.remove(&(runner.served, id));
                if set.is_empty() {
                    self.idle.remove(&key);
                }
            }
        }
    }

    /// Puts it back, if it can take a run.
    fn list(&mut self, id: RunnerId) {
        let Some(runner) = self.runners.get(&id) else {
            return;
        };
        if self.paused || runner.info.draining || runner.polls.is_empty() || runner.free() == 0 {
            return;
        }
        for target in runner.targets() {
            let key = (runner.only(), target);
            self.idle
                .entry(key)
                .or_default()
                .insert((runner.served, id));
        }
    }
}

fn is_ready(runs: &HashMap<SessionId, Run>, ticket: &Ticket) -> bool {
    let run = runs.get(&ticket.session);
    run.is_some_and(|r| r.number == ticket.number && r.place == Place::Ready)
}
