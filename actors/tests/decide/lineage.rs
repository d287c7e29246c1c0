//! The session in a box: its checkpoints and its forks.

use longhaul_actors::code::Rejection;
use longhaul_actors::codec;
use longhaul_actors::ids::{CheckpointId, ClaimToken, SessionId};
use longhaul_actors::rows;
use longhaul_actors::session::command::{
    Command, Fork, ForkedDisk, NewCheckpoint, PinCheckpoint, Settle, SettleCheckpoint, Verb,
};
use longhaul_actors::session::decide::base_of;
use longhaul_actors::session::decision::Reply;
use longhaul_actors::session::evolve::evolve;
use longhaul_actors::session::payload::{
    Body, Outcome, ResumeFrom, ResumePlan, Retention, Selector, SnapshotRef, Usage,
};
use longhaul_actors::session::projection::TimerRow;
use longhaul_actors::session::state::State;
use serde_json::json;

use crate::kit::{Boxed, RUNNER, request};

impl Boxed {
    /// The source at `seq`, as a fork sees it.
    pub(crate) fn at(&self, seq: u64) -> State {
        let mut state = State::new(self.state.id);
        let past = self.log.iter().take_while(|e| e.event.seq <= seq);
        past.for_each(|e| evolve(&mut state, &e.event));
        assert_eq!(state.last_seq, seq);
        state
    }

    /// A fork after `seq`, asked for as `change` says.
    pub(crate) fn fork_with(
        &self,
        seq: u64,
        change: impl FnOnce(&mut Fork),
    ) -> Result<(Self, Reply), Rejection> {
        let mut fork = Fork {
            expired: None,
            request: request(None),
            source: Box::new(self.at(seq)),
            root: self.state.forked.as_ref().map_or(self.state.id, |f| f.root),
            selector: Selector::Seq(seq),
            principal: None,
            metadata: None,
            prompt: None,
            checkpoint: None,
        };
        change(&mut fork);
        let id = self.door.ids.uuid(self.door.clock.wall_ms());
        let mut child = Self::at_world(self.world.clone());
        child.door = self.door.clone();
        child.limits = self.limits.clone();
        child.tokens = self.tokens;
        child.ttl_s = self.ttl_s;
        child.state.id = SessionId(id);
        let past = self.log.iter().take_while(|e| e.event.seq <= seq);
        past.for_each(|new| child.note(new));
        assert_eq!(child.state, base_of(&fork, SessionId(id)));
        let reply = child.ask(Command::Fork(Box::new(fork)))?;
        let shared = usize::try_from(seq).expect("a length");
        for (theirs, ours) in self.log[..shared].iter().zip(&child.log[..shared]) {
            assert_eq!(theirs.event, ours.event, "ids and positions are kept");
        }
        Ok((child, reply))
    }

    /// A fork of the conversation after `seq`.
    pub(crate) fn fork(&self, seq: u64) -> Self {
        self.fork_with(seq, |_| {}).expect("fork").0
    }

    /// A fork with the disk of a checkpoint.
    pub(crate) fn fork_disk(&self, checkpoint: CheckpointId) -> Self {
        let listed = self.state.checkpoints.find(checkpoint).expect("listed");
        let created = listed.created.clone();
        let with_disk = |f: &mut Fork| {
            f.selector = Selector::CheckpointId(checkpoint);
            f.checkpoint = Some(Box::new(ForkedDisk {
                checkpoint: created.clone(),
                blob: None,
                adopted: None,
            }));
        };
        self.fork_with(created.through_sequence, with_disk)
            .expect("fork")
            .0
    }

    /// Settles the run, with the checkpoint of the turn's end.
    pub(crate) fn settle(
        &mut self,
        token: ClaimToken,
        checkpoint: Option<SettleCheckpoint>,
    ) -> Result<Reply, Rejection> {
        let settle = Settle {
            outcome: Outcome::Succeeded,
            error: None,
            usage: Usage {
                input_tokens: 3,
                ..Usage::default()
            },
            session_failed: false,
            checkpoint,
            body: [1; 16],
        };
        self.attempt(token, None, Verb::Settle(Box::new(settle)))
    }

    /// A whole turn that ends with a checkpoint over the snapshot of this name.
    pub(crate) fn turn(&mut self, snapshot: &str) -> CheckpointId {
        if self.state.run.is_none() {
            self.message("again").expect("message");
        }
        let token = self.claim().expect("claim");
        self.call(token, "ready", json!({})).expect("ready");
        self.settle(token, Some(taken(snapshot))).expect("settle");
        self.newest()
    }

    pub(crate) fn newest(&self) -> CheckpointId {
        let head = self.state.checkpoints.head().expect("a checkpoint");
        head.created.checkpoint_id
    }

    pub(crate) fn pin(
        &mut self,
        checkpoint: CheckpointId,
        pinned: bool,
    ) -> Result<Reply, Rejection> {
        self.ask(Command::Pin(Box::new(PinCheckpoint {
            request: request(None),
            checkpoint,
            pinned,
        })))
    }

    /// The ids of the listed checkpoints, oldest first.
    pub(crate) fn listed(&self) -> Vec<CheckpointId> {
        let all = self.state.checkpoints.0.values();
        all.map(|c| c.created.checkpoint_id).collect()
    }

    /// The plan of the last claim.
    pub(crate) fn plan(&self) -> ResumePlan {
        self.last(|b| match b {
            Body::RunClaimed(c) => Some(c.resume.clone()),
            _ => None,
        })
        .expect("a claim")
    }

    /// Durable timers, as stored.
    pub(crate) fn timers(&self) -> Vec<TimerRow> {
        let timers = self.rows.iter().filter(|(k, _)| k[0] == rows::TIMER);
        timers
            .map(|(_, v)| codec::decode(v).expect("a timer"))
            .collect()
    }
}

/// A snapshot of this name, taken by the runner of all tests.
pub(crate) fn snapshot(id: &str) -> SnapshotRef {
    SnapshotRef {
        id: id.into(),
        provider: "dir".into(),
        retention: Retention::Platform,
        runner_id: Some(RUNNER),
        bytes: 10,
    }
}

pub(crate) fn new_checkpoint(snapshot_id: &str) -> NewCheckpoint {
    NewCheckpoint {
        snapshot: snapshot(snapshot_id),
        kept: Some(longhaul_actors::session::command::Kept {
            manifest: vec![7],
            packs: vec![[8; 16]],
        }),
        resume: ResumeFrom::RebuildFromLog,
        blob: None,
        name: None,
        metadata_json: "{}".into(),
        cursor: None,
    }
}

pub(crate) fn taken(snapshot_id: &str) -> SettleCheckpoint {
    SettleCheckpoint::Made(Box::new(new_checkpoint(snapshot_id)))
}
