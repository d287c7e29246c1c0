//! A sample of every body, and what they are made of.

use longhaul_actors::ids::*;
use longhaul_actors::session::checkpoints::*;
use longhaul_actors::session::event::*;
use longhaul_actors::session::payload::*;
use longhaul_actors::session::status::Status;

pub(crate) fn event_id(seq: u64) -> EventId {
    EventId::with_seq([0x11; 16], seq)
}

pub(crate) fn sample_pin() -> Pin {
    Pin {
        agent_deployment: DeploymentId([1; 16]),
        agent_deployment_revision_number: 7,
        harness_revision: HarnessRevision([2; 16]),
        sandbox_profile_revision: SandboxRevision([3; 16]),
        external: true,
        max_duration_seconds: 120,
    }
}

pub(crate) fn usage() -> Usage {
    Usage {
        input_tokens: 1,
        output_tokens: 2,
        cache_read_tokens: 3,
        cache_write_tokens: 4,
        cost_micros: 5,
    }
}

pub(crate) fn trigger() -> Trigger {
    Trigger {
        kind: TriggerKind::Continuation,
        event_id: Some(event_id(2)),
    }
}

pub(crate) fn snapshot() -> SnapshotRef {
    SnapshotRef {
        id: "snap_1".into(),
        provider: "dir".into(),
        retention: Retention::Platform,
        runner_id: Some(RunnerId([4; 16])),
        bytes: 4_096,
    }
}

pub(crate) fn checkpoint_created() -> CheckpointCreated {
    CheckpointCreated {
        checkpoint_id: CheckpointId([12; 16]),
        kind: CheckpointKind::Explicit,
        run_id: Some(RunId([6; 16])),
        parent_checkpoint_id: Some(CheckpointId([11; 16])),
        through_sequence: 3,
        through_event_id: event_id(3),
        name: Some("before".into()),
        metadata_json: r#"{"k":1}"#.into(),
        turn: 2,
        cumulative_usage: usage(),
        cursor: Some("c".into()),
        resume: ResumeFrom::Blob {
            size: 10,
            digest: "00ff".into(),
            schema: Some("v1".into()),
        },
        snapshot: snapshot(),
        expires_at_ms: 2_000_000,
    }
}

pub(crate) fn checkpoint() -> Checkpoint {
    Checkpoint {
        seq: 12,
        created_at_ms: 1_000_000,
        created: checkpoint_created(),
        pinned: true,
        snapshot_state: SnapshotState::Live,
        rejected: Some("its digest differs".into()),
    }
}

/// A body of every type that has one; the others are opaque.
pub(crate) fn body(kind: EventType) -> Body {
    match kind {
        EventType::SessionCreated => Body::SessionCreated(Box::new(SessionCreated {
            workspace: WorkspaceRef(WorkspaceId([8; 16])),
            principal: "ann".into(),
            pin: sample_pin(),
            metadata: serde_json::Map::from_iter([("k".to_owned(), serde_json::json!("v"))]),
            budget: Some(Budget {
                cost_micros_max: Some(9),
                tokens_max: None,
            }),
            retention: RetentionPolicy {
                checkpoint_ttl_s: Some(3_600),
                zero_data_retention: true,
                content_ttl_s: Some(7_200),
            },
        })),
        EventType::SessionForked => Body::SessionForked(Box::new(SessionForked {
            source_session_id: SessionId([9; 16]),
            root_session_id: SessionId([10; 16]),
            selector: Selector::CheckpointId(CheckpointId([12; 16])),
            boundary_seq: 3,
            boundary_event_id: event_id(3),
            principal: "ann".into(),
            metadata: serde_json::Map::from_iter([("k".to_owned(), serde_json::json!("v"))]),
            adopted: Some(Adopted {
                runner: RunnerId([4; 16]),
                sandbox_ref: "copy-1".into(),
            }),
        })),
        EventType::CheckpointCreated => Body::CheckpointCreated(Box::new(checkpoint_created())),
        EventType::CheckpointFailed => Body::CheckpointFailed(CheckpointFailed {
            kind: CheckpointKind::Settle,
            reason: "the disk is full".into(),
        }),
        EventType::CheckpointRejected => Body::CheckpointRejected(CheckpointRejected {
            checkpoint_id: CheckpointId([12; 16]),
            reason: "its digest differs".into(),
        }),
        EventType::CheckpointPinned => Body::CheckpointPinned(CheckpointPinned {
            checkpoint_id: CheckpointId([12; 16]),
            pinned: true,
        }),
        EventType::CheckpointExpired => Body::CheckpointExpired(CheckpointExpired {
            checkpoint_id: CheckpointId([12; 16]),
        }),
        EventType::CheckpointDeleted => Body::CheckpointDeleted(CheckpointDeleted {
            checkpoint_id: CheckpointId([12; 16]),
            what: DeletedWhat::Snapshot,
        }),
        EventType::SessionUpdated => Body::SessionUpdated(SessionUpdated {
            metadata: None,
            budget: Some(Budget {
                cost_micros_max: None,
                tokens_max: Some(10),
            }),
        }),
        EventType::SessionStatus => Body::SessionStatus(SessionStatus {
            from: Status::Pending,
            to: Status::Provisioning,
            reason: "claim".into(),
        }),
        EventType::SessionLimitWarning => Body::SessionLimitWarning(SessionLimitWarning {
            events: 50,
            events_max: 100,
            percent: 50,
        }),
        EventType::ContentErased => Body::ContentErased(ContentErased {
            reason: ErasedReason::Retention,
            through_seq: 12,
            kept_seq: 3,
            ranges: vec![(4, 6), (9, 12)],
        }),
        EventType::RunQueued => Body::RunQueued(RunQueued {
            trigger: trigger(),
            continues: Some(RunId([6; 16])),
        }),
        EventType::RunClaimed => Body::RunClaimed(RunClaimed {
            runner_id: RunnerId([4; 16]),
            claim_digest: TokenDigest([5; 16]),
            startup_deadline: 1_060_000,
            deadline: 1_180_000,
            resume: ResumePlan::EventLogRebuild {
                reason: RebuildReason::NoCheckpoint,
                missing: vec![(3, 4)],
            },
        }),
        EventType::RunStarted => Body::RunStarted(RunStarted {
            resume: ResumePlan::Checkpoint {
                id: CheckpointId([12; 16]),
                snapshot: snapshot(),
                resume: ResumeFrom::RebuildFromLog,
                through_sequence: 3,
                events_after: 1,
                missing: Vec::new(),
                sandbox_ref: Some("sbx".into()),
                instead_of: Some(InsteadOf {
                    id: Some(CheckpointId([13; 16])),
                    reason: RebuildReason::SnapshotDeleted,
                }),
            },
            agent_deployment: DeploymentId([1; 16]),
            agent_deployment_revision_number: 7,
            harness_revision: HarnessRevision([2; 16]),
            sandbox_profile_revision: SandboxRevision([3; 16]),
        }),
        EventType::RunInputsTaken => Body::RunInputsTaken(RunInputsTaken {
            event_ids: vec![event_id(2), event_id(3)],
        }),
        EventType::RunRequeued => Body::RunRequeued(RunRequeued {
            reason: RequeueReason::Lease,
            next_attempt: 2,
            attempts_lost: 1,
            not_before: 1_001_000,
        }),
        EventType::RunParked => Body::RunParked(RunParked {
            waiting_on: vec![
                WaitingOn::Question {
                    question_id: event_id(5),
                },
                WaitingOn::Approval {
                    approval_id: event_id(6),
                },
                WaitingOn::ToolUse {
                    tool_use_id: event_id(7),
                },
                WaitingOn::Signal {
                    signal: "go".into(),
                    expires_at: Some(1_002_000),
                },
                WaitingOn::Budget { budget: true },
            ],
            compute: Compute::Held,
            released_by: None,
            hold_until: Some(1_300_000),
            already_in: vec![(0, Some(event_id(8)))],
        }),
        EventType::RunSettled => Body::RunSettled(RunSettled {
            outcome: Outcome::Failed,
            error: Some(RunError {
                code: "a.b".into(),
                message: "c".into(),
            }),
            usage: usage(),
            cost: 5,
        }),
        EventType::ItemClosed => Body::ItemClosed(ItemClosed {
            item_id: event_id(5),
            state: ItemState::Granted,
            by: "ann".into(),
            answer_id: Some(event_id(8)),
            signal: None,
        }),
        EventType::SignalConsumed => Body::SignalConsumed(SignalConsumed {
            signal_id: event_id(9),
            name: "go".into(),
        }),
        EventType::UsageRecorded => Body::UsageRecorded(UsageRecorded {
            usage: usage(),
            model: Some("m-1".into()),
        }),
        _ => Body::Opaque,
    }
}

/// A content of every type that folding does not read.
pub(crate) fn opaque(kind: EventType) -> &'static [u8] {
    match kind {
        EventType::StepStarted => {
            br#"{"path":"a/b","name":"pay","occurrence":1,"idempotency_key":"k","input_digest":"d1","effects":"sandbox","input":{"n":1}}"#
        }
        EventType::StepCompleted => {
            br#"{"step_id":"evt_00000000000000000000000000000004","value":null,"event_ids":["evt_00000000000000000000000000000005"]}"#
        }
        EventType::StepFailed => {
            br#"{"step_id":"evt_00000000000000000000000000000004","error":{"code":"a.b","message":"c"},"failures":2,"partial":["x"],"event_ids":[]}"#
        }
        EventType::StepResolved => {
            br#"{"step_id":"evt_00000000000000000000000000000004","as":"retry","reason":"doubt"}"#
        }
        _ => br#"{"text":"\u00e9"}"#,
    }
}
