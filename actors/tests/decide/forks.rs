//! Forks: what goes on in the child, and what ends there.

use longhaul_actors::code::Code;
use longhaul_actors::ids::EventId;
use longhaul_actors::session::command::Expiry;
use longhaul_actors::session::event::EventType as T;
use longhaul_actors::session::payload::{Body, CheckpointKind, Outcome, Selector, Usage};
use longhaul_actors::session::projection::Due;
use longhaul_actors::session::state::{Item, ItemKind, Phase, State};
use longhaul_actors::session::status::Status;
use serde_json::{Map, json};

use crate::kit::{Boxed, body, request};

/// What a fork of a session in this state must come to: its status, and its live run's phase.
fn expected(s: &State) -> (Status, Option<Phase>) {
    let queued = (Status::Pending, Some(Phase::Queued));
    match &s.run {
        Some(run) if matches!(run.phase, Phase::Parked | Phase::Waiting) => {
            if run.waits.iter().all(|w| w.done) {
                queued
            } else {
                (Status::Paused, Some(Phase::Parked))
            }
        }
        Some(_) if s.untaken.is_some() => queued,
        Some(_) => (Status::Idle, None),
        None if s.status != Status::Pending => (Status::Idle, None),
        None => {
            let last = s.last_run.as_ref().map(|r| r.outcome);
            if s.untaken.is_some() || last == Some(Outcome::Continued) {
                queued
            } else {
                (Status::Pending, None)
            }
        }
    }
}

/// Answers everything that is waited for, runs what is queued, and starts a turn of its own.
fn finish(b: &mut Boxed) {
    while let Some(on) = b
        .state
        .run
        .as_ref()
        .and_then(|r| r.waits.iter().find(|w| !w.done))
        .map(|w| w.on.clone())
    {
        use longhaul_actors::session::payload::WaitingOn as On;
        let (kind, content) = match on {
            On::Question { question_id } => (
                "user.question_answer",
                json!({"question_id": question_id, "dismissed": true}),
            ),
            On::Approval { approval_id } => (
                "user.action_approval",
                json!({"approval_id": approval_id, "decision": "granted"}),
            ),
            On::ToolUse { tool_use_id } => (
                "user.custom_tool_result",
                json!({"tool_use_id": tool_use_id, "output": 1}),
            ),
            On::Signal { signal, .. } => ("user.signal", json!({"name": signal})),
            On::Budget { .. } => panic!("a fork has spent nothing"),
        };
        b.submit(&[(kind, content)]).expect("an answer");
    }
    for _ in 0..2 {
        if b.state.run.is_none() {
            b.message("more").expect("message");
        }
        let token = b.claim().expect("claim");
        b.call(token, "ready", json!({})).expect("ready");
        b.settle(token, None).expect("settle");
    }
    assert_eq!(b.state.status, Status::Idle);
}

/// What must hold of every fork of `b` after `seq`.
fn check_fork(b: &Boxed, seq: u64) -> Boxed {
    let base = b.at(seq);
    let (status, phase) = expected(&base);
    let child = b.fork(seq);
    let s = &child.state;
    let what = format!("after {seq}: {:?}", child.types_after(seq));
    let got = (s.status, s.run.as_ref().map(|r| r.phase));
    assert_eq!(got, (status, phase), "{what}");
    assert_eq!(child.types_after(seq).first(), Some(&T::SessionForked));
    let changes = child.types_after(seq);
    let changes = changes.iter().filter(|t| **t == T::SessionStatus).count();
    assert_eq!(changes, usize::from(base.status != status), "{what}");
    let forked = s.forked.clone().expect("a fork");
    assert_eq!((forked.source, forked.boundary_seq), (b.state.id, seq));
    assert_eq!(s.usage, Usage::default());
    assert_eq!(s.inherited_usage, base.inherited_usage.plus(base.usage));
    assert!(s.checkpoints.0.is_empty());
    assert_eq!(s.untaken, base.untaken);
    assert_eq!(s.signals, base.signals);
    assert!(s.claim().is_none());
    let ids = |s: &State| s.items.values().map(|i| i.id).collect::<Vec<_>>();
    let timers = child.timers();
    if phase == Some(Phase::Parked) {
        assert_eq!(ids(s), ids(&base), "{what}");
        assert_eq!(
            s.run.as_ref().map(|r| r.id),
            base.run.as_ref().map(|r| r.id)
        );
        assert!(timers.iter().all(|t| matches!(t.due, Due::Wait(_))));
    } else {
        assert!(timers.is_empty(), "{what}");
    }
    // Only a run that was parked goes on in the child; any other is queued anew or not at all.
    let continues = s.run.as_ref().and_then(|r| r.continues);
    if phase != Some(Phase::Parked) {
        // A run that goes on has the tool uses of the one before to end.
        let left = |i: &Item| continues.is_some() && i.kind == ItemKind::ToolUse;
        assert!(s.items.values().all(left), "{what}");
    }
    let was = base.run.as_ref();
    if phase == Some(Phase::Queued) && was.is_some_and(|r| !r.waits.is_empty()) {
        assert_eq!(continues, was.map(|r| r.id), "{what}");
    }
    finish(&mut b.fork(seq));
    child
}

/// Every kind of open item, parks held and released, answers, a requeue and a next turn.
fn history() -> Boxed {
    let (mut b, token) = Boxed::running();
    let tool_use = b.open(token, "agent.tool_use");
    let custom = b.open(token, "agent.custom_tool_use");
    b.submit(&[("user.signal", json!({"name": "early"}))])
        .expect("signal");
    let usage = json!({"events": [{"type": "usage.recorded", "content": {"input_tokens": 7}}]});
    b.call(token, "events", usage).expect("usage");
    let held = json!({"waiting_on": [{"tool_use_id": custom}], "compute": "held"});
    b.call(token, "park", held).expect("park");
    b.message("meanwhile").expect("message");
    b.submit(&[(
        "user.custom_tool_result",
        json!({"tool_use_id": custom, "output": 1}),
    )])
    .expect("result");
    b.call(token, "inputs", json!({})).expect("inputs");
    let result = json!({"events": [{"type": "agent.tool_result",
        "content": {"tool_use_id": tool_use, "output": 1}}]});
    b.call(token, "events", result).expect("tool result");
    let question = b.open(token, "agent.question");
    let approval = b.open(token, "agent.action_approval_requested");
    let on = json!([{"question_id": question}, {"approval_id": approval},
        {"signal": "go", "timeout_ms": 50_000}]);
    let park = json!({"waiting_on": on, "compute": "released"});
    b.call(token, "park", park).expect("park");
    b.submit(&[(
        "user.question_answer",
        json!({"question_id": question, "dismissed": true}),
    )])
    .expect("answer");
    b.submit(&[("user.signal", json!({"name": "go"}))])
        .expect("signal");
    b.submit(&[(
        "user.action_approval",
        json!({"approval_id": approval, "decision": "granted"}),
    )])
    .expect("approval");
    let token = b.claim().expect("claim");
    b.call(token, "ready", json!({})).expect("ready");
    b.call(token, "release", json!({})).expect("release");
    let token = b.claim().expect("claim");
    b.call(token, "ready", json!({})).expect("ready");
    b.open(token, "agent.tool_use");
    b.message("left over").expect("message");
    b.settle(token, None).expect("settle");
    b.interrupt().expect("interrupt");
    b.message("at last").expect("message");
    b.cancel().expect("cancel");
    b
}

#[test]
fn a_fork_after_any_event_comes_to_rest_and_goes_on() {
    let b = history();
    assert!(b.state.last_seq >= 30, "{}", b.state.last_seq);
    let before = b.state.clone();
    let mut kinds = std::collections::BTreeSet::new();
    for seq in 1..=b.state.last_seq {
        let child = check_fork(&b, seq);
        kinds.insert(child.state.status);
        // A fork of a fork, at its own head and within the shared past.
        check_fork(&child, child.state.last_seq);
        check_fork(&child, seq);
    }
    assert_eq!(b.state, before, "the source knows nothing of it");
    assert_eq!(
        kinds.into_iter().collect::<Vec<_>>(),
        [Status::Pending, Status::Paused, Status::Idle]
    );
}

#[test]
fn a_fork_of_a_session_in_each_status() {
    let queued = || {
        let mut b = Boxed::new();
        b.message("hi").expect("message");
        b
    };
    let claimed = || {
        let mut b = queued();
        b.claim().expect("claim");
        b
    };
    let ended = |how: fn(&mut Boxed)| {
        let (mut b, token) = Boxed::running();
        b.settle(token, None).expect("settle");
        how(&mut b);
        b
    };
    let running_with_input = || {
        let (mut b, _) = Boxed::running();
        b.message("more").expect("message");
        b
    };
    let cut = [T::SessionForked, T::SessionStatus, T::RunSettled];
    let only = [T::SessionForked];
    let turned = [T::SessionForked, T::SessionStatus];
    let requeued = [T::SessionForked, T::RunSettled, T::RunQueued];
    let moved = [
        T::SessionForked,
        T::SessionStatus,
        T::RunSettled,
        T::RunQueued,
    ];
    let cases: [(&str, Boxed, Status, &[T]); 8] = [
        ("new", Boxed::new(), Status::Pending, &only),
        ("queued", queued(), Status::Pending, &requeued),
        ("claimed", claimed(), Status::Idle, &cut),
        ("running", Boxed::running().0, Status::Idle, &cut),
        ("with input", running_with_input(), Status::Pending, &moved),
        ("idle", ended(|_| ()), Status::Idle, &only),
        (
            "completed",
            ended(|b| drop(b.complete().expect("complete"))),
            Status::Idle,
            &turned,
        ),
        (
            "canceled",
            ended(|b| drop(b.cancel().expect("cancel"))),
            Status::Idle,
            &turned,
        ),
    ];
    for (name, b, status, types) in cases {
        let child = check_fork(&b, b.state.last_seq);
        assert_eq!(child.state.status, status, "{name}");
        assert_eq!(child.types_after(b.state.last_seq), types, "{name}");
        if types.contains(&T::RunSettled) {
            let settled = child.last(|b| match b {
                Body::RunSettled(s) => Some(s.clone()),
                _ => None,
            });
            let settled = settled.expect("settled");
            assert_eq!(settled.outcome, Outcome::Canceled, "{name}");
            assert_eq!(settled.error.expect("why").code, "forked", "{name}");
        }
    }
}

#[test]
fn what_was_open_is_closed_before_the_cut_run_settles() {
    let (mut b, token) = Boxed::running();
    b.open(token, "agent.tool_use");
    b.open(token, "agent.question");
    let child = check_fork(&b, b.state.last_seq);
    assert_eq!(
        child.types_after(b.state.last_seq),
        [
            T::SessionForked,
            T::ItemClosed,
            T::ItemClosed,
            T::SessionStatus,
            T::RunSettled
        ]
    );
}

/// A session parked on a question, with compute held or released.
fn parked(compute: &str) -> (Boxed, EventId) {
    let (mut b, token) = Boxed::running();
    let question = b.open(token, "agent.question");
    let on = json!([{"question_id": question}]);
    b.call(token, "park", json!({"waiting_on": on, "compute": compute}))
        .expect("park");
    (b, question)
}

fn answer(b: &mut Boxed, question: EventId) {
    let content = json!({"question_id": question, "answers": [["yes"]]});
    b.submit(&[("user.question_answer", content)])
        .expect("answer");
}

#[test]
fn a_parked_run_answered_in_the_child_goes_on_there() {
    for (compute, own) in [
        ("released", &[T::SessionForked][..]),
        (
            "held",
            &[T::SessionForked, T::SessionStatus, T::RunParked][..],
        ),
    ] {
        let (mut b, question) = parked(compute);
        let cut = b.state.last_seq;
        // The source's own answer comes after the boundary: it does not exist in the child.
        answer(&mut b, question);
        let mut child = b.fork(cut);
        assert_eq!(child.types_after(cut), own, "{compute}");
        assert_eq!(child.state.status, Status::Paused);
        let parked = child.state.run.clone().expect("parked");
        assert_eq!(Some(parked.id), b.at(cut).run.map(|r| r.id));
        answer(&mut child, question);
        let run = child.state.run.clone().expect("a continuation");
        assert_eq!(run.continues, Some(parked.id));
        assert_eq!(child.state.status, Status::Pending);
        let token = child.claim().expect("claim");
        let given = child.state.last_seq;
        assert_eq!(
            child.types_after(given - 1),
            [T::RunInputsTaken],
            "the answer goes with it"
        );
        child.call(token, "ready", json!({})).expect("ready");
        child.settle(token, None).expect("settle");
    }
}

#[test]
fn a_parked_run_whose_items_are_all_in_goes_on_at_once() {
    for compute in ["held", "released"] {
        let (mut b, question) = parked(compute);
        let run = b.state.run.as_ref().map(|r| r.id);
        answer(&mut b, question);
        let closed = b
            .log
            .iter()
            .find(|e| e.event.header.kind == T::ItemClosed)
            .expect("closed");
        let child = check_fork(&b, closed.event.seq);
        assert_eq!(child.state.status, Status::Pending, "{compute}");
        let next = child.state.run.expect("a continuation");
        assert_eq!(next.continues, run);
        assert_eq!(next.answers.len(), 1, "{compute}");
    }
}

#[test]
fn a_wait_for_a_signal_ends_in_the_child_by_its_own_timer() {
    let (mut b, token) = Boxed::running();
    let on = json!([{"signal": "go", "timeout_ms": 50}]);
    b.call(token, "park", json!({"waiting_on": on, "compute": "held"}))
        .expect("park");
    let mut child = check_fork(&b, b.state.last_seq);
    let timers = child.timers();
    assert_eq!(timers.len(), 1, "no hold: {timers:?}");
    assert_eq!(timers[0].session, child.state.id);
    child.world.advance_ms(50);
    let Expiry::Wait { .. } = timers[0].expiry() else {
        panic!("{timers:?}")
    };
    child.expire(timers[0].expiry());
    assert_eq!(child.state.status, Status::Pending);
    assert_eq!(b.state.status, Status::Waiting);
}

#[test]
fn usage_is_inherited_apart_and_added_up_over_generations() {
    let (mut b, token) = Boxed::running();
    b.settle(token, None).expect("settle");
    assert_eq!(b.state.usage.input_tokens, 3);
    let mut child = b.fork(b.state.last_seq);
    child.turn("s");
    assert_eq!(child.state.usage.input_tokens, 3);
    assert_eq!(child.state.inherited_usage.input_tokens, 3);
    let created = &child.state.checkpoints.head().expect("one").created;
    assert_eq!(created.cumulative_usage.input_tokens, 6);
    assert_eq!(created.turn, 2);
    let grandchild = child.fork(child.state.last_seq);
    assert_eq!(grandchild.state.usage, Usage::default());
    assert_eq!(grandchild.state.inherited_usage.input_tokens, 6);
    let forked = grandchild.state.forked.expect("a fork");
    assert_eq!((forked.source, forked.root), (child.state.id, b.state.id));
}

#[test]
fn a_checkpoint_fork_refers_to_the_snapshot_by_itself() {
    let mut b = Boxed::new();
    let source = b.turn("s");
    b.turn("later");
    let child = b.fork_disk(source);
    let theirs = b.state.checkpoints.find(source).expect("listed");
    let cut = theirs.created.through_sequence;
    assert_eq!(
        child.types_after(cut),
        [T::SessionForked, T::CheckpointCreated]
    );
    assert_eq!(child.listed().len(), 1, "the source's are not the child's");
    let ours = child.state.checkpoints.head().expect("one");
    assert_eq!(ours.created.kind, CheckpointKind::Fork);
    assert_eq!(ours.created.parent_checkpoint_id, Some(source));
    assert_ne!(ours.created.checkpoint_id, source);
    assert_eq!(ours.created.snapshot, theirs.created.snapshot);
    assert_eq!(ours.created.expires_at_ms, theirs.created.expires_at_ms);
    assert_eq!(ours.created.through_sequence, cut);
    assert_eq!(child.state.status, Status::Idle);
    assert_eq!(child.state.usage, Usage::default());
    // The next one of the child descends from it.
    let mut child = child;
    let first = child.newest();
    child.turn("child");
    let head = child.state.checkpoints.head().expect("one");
    assert_eq!(head.created.parent_checkpoint_id, Some(first));
}

#[test]
fn a_fork_may_act_as_another_and_is_refused_what_any_session_is() {
    let (mut b, token) = Boxed::running();
    b.settle(token, None).expect("settle");
    let seq = b.state.last_seq;
    let (child, reply) = b
        .fork_with(seq, |f| {
            f.principal = Some("bob".into());
            f.metadata = Some(Map::from_iter([("k".to_owned(), json!(1))]));
            f.selector = Selector::Head;
        })
        .expect("fork");
    assert_eq!(reply.status, 201);
    let shown = body(&reply);
    assert_eq!(shown["id"], json!(child.state.id));
    assert_eq!(shown["principal"], "bob");
    assert_eq!(shown["metadata"], json!({"k": 1}));
    let kept = b.fork(seq);
    let about = kept.state.about.expect("about");
    assert_eq!(about.principal, "ann");
    let refused = |change: fn(&mut longhaul_actors::session::command::Fork)| {
        b.fork_with(seq, change).err().expect("a refusal").code
    };
    assert_eq!(
        refused(|f| f.metadata = Some(Map::from_iter([("k".to_owned(), json!([]))]))),
        Code::MetadataInvalid
    );
    assert_eq!(
        refused(|f| {
            f.request = request(None);
            f.request.viewer.workspace = longhaul_actors::session::payload::WorkspaceRef(
                longhaul_actors::ids::WorkspaceId([5; 16]),
            );
        }),
        Code::SessionNotFound
    );
    let mut full = b.fork(seq);
    full.limits.session_events_max = full.state.last_seq;
    let why = full.fork_with(full.state.last_seq, |_| {}).err();
    assert_eq!(why.expect("a refusal").code, Code::EventLimit);
}
