//! A sample of what is folded, and of what is answered.

use longhaul_actors::ids::*;
use longhaul_actors::session::aging::Aging;
use longhaul_actors::session::decision::Reply;
use longhaul_actors::session::journal::*;
use longhaul_actors::session::payload::*;
use longhaul_actors::session::state::*;
use longhaul_actors::session::status::Status;
use longhaul_actors::session::step::*;

use crate::samples::*;

pub(crate) fn answer() -> Answer {
    Answer {
        seq: 8,
        id: event_id(8),
    }
}

pub(crate) fn reply() -> Reply {
    Reply {
        status: 202,
        body: b"{}".to_vec(),
        inputs: Some(vec![answer()]),
        steps: Some(StepsReply {
            many: true,
            answers: vec![
                StepAnswer::Execute { step: event_id(4) },
                StepAnswer::Completed {
                    step: event_id(4),
                    done_seq: 5,
                },
                StepAnswer::Failed {
                    step: event_id(4),
                    done_seq: 5,
                    failures: 2,
                },
                StepAnswer::InProgress { step: event_id(4) },
                StepAnswer::InDoubt {
                    step: event_id(4),
                    started_attempt: 1,
                    started_run: RunId([6; 16]),
                },
                StepAnswer::Recorded(StepRecorded {
                    step: event_id(4),
                    failed: true,
                    failures: 1,
                    event_ids: vec![event_id(5)],
                    budget_exceeded: true,
                }),
            ],
        }),
    }
}

pub(crate) fn mark() -> StepMark {
    StepMark {
        key: [0x21; 16],
        effects: StepEffects::Sandbox,
        failures: 1,
        digest: "d1".into(),
    }
}

pub(crate) fn state() -> State {
    let mut state = State::new(SessionId([9; 16]));
    state.last_seq = 20;
    state.about = Some(About {
        workspace: WorkspaceRef::DEFAULT,
        principal: "ann".into(),
        pin: sample_pin(),
        metadata_json: "{}".into(),
        budget: Some(Budget {
            cost_micros_max: Some(1),
            tokens_max: Some(2),
        }),
        retention: RetentionPolicy {
            checkpoint_ttl_s: Some(3_600),
            zero_data_retention: true,
            content_ttl_s: Some(7_200),
        },
    });
    state.status = Status::Waiting;
    state.created_at_ms = 1;
    state.updated_at_ms = 2;
    state.untaken = Some(Untaken {
        first_seq: 18,
        first_id: event_id(18),
        count: 2,
    });
    state.run = Some(LiveRun {
        id: RunId([6; 16]),
        queued_seq: 3,
        queued_at_ms: 3,
        trigger: trigger(),
        continues: None,
        attempt: 2,
        lost: 1,
        phase: Phase::Waiting,
        not_before_ms: 4,
        claim: Some(Claim {
            token: TokenDigest([5; 16]),
            runner: RunnerId([4; 16]),
            claimed_at_ms: 5,
            startup_deadline_ms: 6,
            deadline_ms: 7,
            resume: ResumePlan::Fresh,
        }),
        waits: vec![Wait {
            on: WaitingOn::Signal {
                signal: "go".into(),
                expires_at: None,
            },
            done: false,
        }],
        parked_seq: 10,
        parked_id: event_id(10),
        hold_until_ms: 8,
        answers: vec![answer()],
        usage: usage(),
        at: answer(),
    });
    state.last_run = Some(SettledRun {
        id: RunId([7; 16]),
        queued_seq: 2,
        queued_at_ms: 1,
        settled_at_ms: 2,
        trigger: Trigger {
            kind: TriggerKind::Message,
            event_id: None,
        },
        continues: Some(RunId([6; 16])),
        attempt: 1,
        outcome: Outcome::Continued,
        error: None,
        usage: usage(),
        answers: Vec::new(),
    });
    state.items.insert(
        9,
        Item {
            kind: ItemKind::CustomTool,
            id: event_id(9),
            attempt: 2,
            tool: Some("bash".into()),
        },
    );
    state.signals.push_back(Signal {
        name: "s".into(),
        seq: 11,
        id: event_id(11),
    });
    state.usage = usage();
    state.spent.insert("m-1".into(), usage());
    state.remembered.push(("bash".into(), true));
    state.journal.chain_seq = 3;
    state.journal.open.insert(
        12,
        OpenStep {
            id: event_id(12),
            mark: mark(),
            run: RunId([6; 16]),
            attempt: 2,
        },
    );
    state.ever_started = true;
    state.started_here = true;
    state.ever_checkpointed = true;
    state.forked = Some(Forked {
        source: SessionId([9; 16]),
        root: SessionId([10; 16]),
        boundary_seq: 3,
        adopted: Some(Adopted {
            runner: RunnerId([4; 16]),
            sandbox_ref: "copy-1".into(),
        }),
    });
    state.inherited_usage = usage();
    state.turns = 3;
    state.warned_percent = 50;
    state.aging = Aging {
        active_at_ms: 2,
        last_seq: 18,
        through_seq: 9,
        kept_seq: 4,
        since_seq: 17,
        since_ms: 1,
    };
    state
}
