//! The journal of a run: what runs, what has run, and what nobody knows of.

use longhaul_actors::code::Code;
use longhaul_actors::ids::{ClaimToken, EventId};
use longhaul_actors::session::command::Expiry;
use longhaul_actors::session::decision::Reply;
use longhaul_actors::session::event::EventType as T;
use longhaul_actors::session::payload::StepCompleted;
use longhaul_actors::session::step::StepAnswer as A;
use serde_json::{Value, json};

use crate::kit::Boxed;

impl Boxed {
    /// The answer to one operation.
    pub(crate) fn step(&mut self, token: ClaimToken, op: Value) -> A {
        one(&self.call(token, "steps", op).expect("a step"))
    }

    pub(crate) fn begin(&mut self, token: ClaimToken, name: &str) -> A {
        self.step(token, begin(name))
    }

    /// Begins a step that must run, and gives its id.
    pub(crate) fn execute(&mut self, token: ClaimToken, op: Value) -> EventId {
        match self.step(token, op) {
            A::Execute { step } => step,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn run(&mut self, token: ClaimToken, name: &str, value: Value) -> EventId {
        let step = self.execute(token, begin(name));
        self.step(token, complete(step, value));
        step
    }

    /// The next attempt of the live run.
    pub(crate) fn next_attempt(&mut self, lost: ClaimToken) -> ClaimToken {
        self.expire(Expiry::Lease(lost.digest()));
        self.world.advance_ms(100_000);
        self.go()
    }

    /// Claims the queued run and is ready.
    pub(crate) fn go(&mut self) -> ClaimToken {
        let token = self.claim().expect("claim");
        self.call(token, "ready", json!({})).expect("ready");
        token
    }

    /// The content of the event at this position.
    fn content(&self, seq: u64) -> Value {
        serde_json::from_slice(&self.log[seq as usize - 1].content).expect("JSON")
    }

    pub(crate) fn no_step(&mut self, token: ClaimToken, code: Code, op: Value) -> Value {
        let refusal = self.refused(code, |b| b.call(token, "steps", op));
        Value::Object(refusal.extras)
    }
}

fn one(reply: &Reply) -> A {
    let steps = reply.steps.as_ref().expect("steps");
    assert_eq!((steps.many, steps.answers.len()), (false, 1));
    steps.answers[0].clone()
}

pub(crate) fn begin(name: &str) -> Value {
    json!({"op": "begin", "name": name, "input_digest": "d"})
}

pub(crate) fn with(mut op: Value, fields: Value) -> Value {
    let more = fields.as_object().expect("fields").clone();
    op.as_object_mut().expect("an op").extend(more);
    op
}

pub(crate) fn complete(step: EventId, value: Value) -> Value {
    json!({"op": "complete", "step_id": step, "value": value})
}

pub(crate) fn fail(step: EventId) -> Value {
    json!({"op": "fail", "step_id": step, "error": {"code": "a.b", "message": "c"}})
}

pub(crate) fn is_completed(answer: &A, id: EventId) -> bool {
    matches!(answer, A::Completed { step, .. } if *step == id)
}

#[test]
fn j1_a_step_runs_once_in_its_place() {
    let (mut b, t) = Boxed::running();
    let step = b.execute(t, begin("pay"));
    assert_eq!(b.begin(t, "pay"), A::InProgress { step });
    let before = b.state.last_seq;
    let A::Recorded(kept) = b.step(t, complete(step, json!({"paid": 3}))) else {
        panic!("not recorded");
    };
    assert!(!kept.failed && kept.event_ids.is_empty() && !kept.budget_exceeded);
    assert_eq!(b.types_after(before), [T::StepCompleted]);
    let before = b.state.last_seq;
    let again = b.begin(t, "pay");
    assert_eq!(b.state.last_seq, before, "a replay writes nothing");
    assert_eq!(
        again,
        A::Completed {
            step,
            done_seq: before
        }
    );
    assert_eq!(b.content(before)["value"], json!({"paid": 3}));
}

#[test]
fn j12_the_next_attempt_gets_the_result() {
    let (mut b, t) = Boxed::running();
    let step = b.run(t, "pay", json!(1));
    let t = b.next_attempt(t);
    assert!(is_completed(&b.begin(t, "pay"), step));
    // And after a release.
    b.call(t, "release", json!({})).expect("release");
    let t = b.go();
    assert!(is_completed(&b.begin(t, "pay"), step));
}

#[test]
fn j4_changed_input_is_a_divergence() {
    let (mut b, t) = Boxed::running();
    let open = b.execute(t, begin("open"));
    let done = b.run(t, "done", json!(1));
    let failed = b.execute(t, begin("failed"));
    b.step(t, fail(failed));
    for (name, step) in [("open", open), ("done", done), ("failed", failed)] {
        let other = with(begin(name), json!({"input_digest": "e"}));
        let extras = b.no_step(t, Code::JournalDivergence, other);
        let told = json!({"step_id": step, "name": name, "path": "", "occurrence": 0});
        assert_eq!(extras, told);
    }
    assert!(is_completed(&b.begin(t, "done"), done));
}

#[test]
fn j24_occurrences_and_paths_are_steps_of_their_own() {
    let (mut b, t) = Boxed::running();
    let places = [
        json!({}),
        json!({"occurrence": 1}),
        json!({"path": "a"}),
        json!({"path": "a/b"}),
    ];
    for (i, place) in places.iter().enumerate() {
        let step = b.execute(t, with(begin("s"), place.clone()));
        b.step(t, complete(step, json!(i)));
    }
    for (i, place) in places.iter().enumerate() {
        let A::Completed { done_seq, .. } = b.step(t, with(begin("s"), place.clone())) else {
            panic!("{place}");
        };
        assert_eq!(b.content(done_seq)["value"], json!(i));
    }
}

#[test]
fn j7_an_idempotency_key_joins_steps_across_names() {
    let (mut b, t) = Boxed::running();
    let keyed = |name: &str, key: &str| with(begin(name), json!({"idempotency_key": key}));
    let step = b.execute(t, keyed("pay", "order-7"));
    b.step(t, complete(step, json!("paid")));
    assert!(is_completed(&b.step(t, keyed("other", "order-7")), step));
    b.execute(t, keyed("pay", "order-8"));
    // A name is no key.
    b.execute(t, begin("order-7"));
}

#[test]
fn j25_a_step_that_never_ended_is_in_doubt() {
    let (mut b, t) = Boxed::running();
    let run = b.state.run.as_ref().expect("run").id;
    let step = b.execute(t, begin("wire"));
    let t = b.next_attempt(t);
    let doubt = A::InDoubt {
        step,
        started_attempt: 1,
        started_run: run,
    };
    assert_eq!(b.begin(t, "wire"), doubt);
    // It is not this attempt's to end.
    let extras = b.no_step(t, Code::StepNotOpen, complete(step, json!(1)));
    assert_eq!(extras["state"], "in_doubt");
    let resolve = json!({"op": "resolve", "step_id": step, "as": "completed", "value": "sent"});
    let before = b.state.last_seq;
    assert!(matches!(b.step(t, resolve.clone()), A::Recorded(r) if !r.failed));
    assert_eq!(b.types_after(before), [T::StepResolved, T::StepCompleted]);
    assert!(is_completed(&b.begin(t, "wire"), step));
    // Said again, it is answered again; nothing else can be said any more.
    let before = b.state.last_seq;
    assert!(matches!(b.step(t, resolve), A::Recorded(_)));
    assert_eq!(b.state.last_seq, before);
    let retry = json!({"op": "resolve", "step_id": step, "as": "retry"});
    b.no_step(t, Code::StepNotOpen, retry);
}

#[test]
fn a_step_in_doubt_is_run_again_or_failed_as_asked() {
    let (mut b, t) = Boxed::running();
    let again = b.execute(t, begin("again"));
    let gone = b.execute(t, begin("gone"));
    let t = b.next_attempt(t);
    let retry = json!({"op": "resolve", "step_id": again, "as": "retry"});
    assert_eq!(b.step(t, retry.clone()), A::Execute { step: again });
    assert_eq!(b.begin(t, "again"), A::InProgress { step: again });
    let extras = b.no_step(t, Code::StepNotOpen, retry);
    assert_eq!(extras["state"], "in_progress");
    b.step(t, complete(again, json!(1)));
    let failed = json!({"op": "resolve", "step_id": gone, "as": "failed",
        "error": {"code": "bank.down", "message": "no"}});
    assert!(matches!(b.step(t, failed), A::Recorded(r) if r.failed && r.failures == 1));
    assert!(matches!(b.begin(t, "gone"), A::Failed { failures: 1, .. }));
}

#[test]
fn on_doubt_retry_makes_the_step_this_attempts_own() {
    let (mut b, t) = Boxed::running();
    let op = with(begin("s"), json!({"on_doubt": "retry"}));
    let keyed = with(begin("k"), json!({"idempotency_key": "k"}));
    let (step, by_key) = (b.execute(t, op.clone()), b.execute(t, keyed.clone()));
    let t = b.next_attempt(t);
    let before = b.state.last_seq;
    assert_eq!(b.step(t, op.clone()), A::Execute { step });
    assert_eq!(b.types_after(before), [T::StepResolved]);
    let said = b.content(before + 1);
    assert_eq!(
        said,
        json!({"step_id": step, "as": "retry", "reason": "doubt"})
    );
    assert_eq!(b.step(t, op), A::InProgress { step });
    // With an idempotency key that is what happens if nothing is said.
    assert_eq!(b.step(t, keyed), A::Execute { step: by_key });
    b.step(t, complete(step, json!(1)));
}

#[test]
fn failures_are_kept_counted_and_retried_by_policy() {
    let (mut b, t) = Boxed::running();
    let step = b.execute(t, begin("flaky"));
    b.step(t, with(fail(step), json!({"partial": ["a", "b"]})));
    let seq = b.state.last_seq;
    assert_eq!(b.content(seq)["partial"], json!(["a", "b"]));
    let failed = A::Failed {
        step,
        done_seq: seq,
        failures: 1,
    };
    assert_eq!(b.begin(t, "flaky"), failed);
    assert_eq!(b.state.last_seq, seq);
    let t = b.next_attempt(t);
    let retry = with(begin("flaky"), json!({"on_failure": "retry"}));
    assert_eq!(b.step(t, retry), A::Execute { step });
    b.step(t, fail(step));
    assert!(matches!(b.begin(t, "flaky"), A::Failed { failures: 2, .. }));
    let resolve = json!({"op": "resolve", "step_id": step, "as": "retry"});
    assert_eq!(b.step(t, resolve), A::Execute { step });
    b.step(t, complete(step, json!(1)));
    assert!(is_completed(&b.begin(t, "flaky"), step));
}

#[test]
fn an_end_said_again_is_answered_again_and_another_one_is_refused() {
    let (mut b, t) = Boxed::running();
    let events = json!([{"type": "agent.message", "content": {"text": "x"}}]);
    let done = b.execute(t, begin("done"));
    let said = with(complete(done, json!({"a": 1})), json!({"events": events}));
    let first = b.step(t, said.clone());
    let failed = b.execute(t, begin("failed"));
    let told = b.step(t, fail(failed));
    let before = b.state.last_seq;
    assert_eq!(b.step(t, said), first);
    assert_eq!(b.step(t, fail(failed)), told);
    assert_eq!(b.state.last_seq, before);
    for (op, state) in [
        (complete(done, json!({"a": 2})), "completed"),
        (fail(done), "completed"),
        (complete(failed, json!(1)), "failed"),
        (
            with(
                fail(failed),
                json!({"error": {"code": "x.y", "message": ""}}),
            ),
            "failed",
        ),
    ] {
        assert_eq!(b.no_step(t, Code::StepNotOpen, op)["state"], state);
    }
}

#[test]
fn events_and_usage_are_one_commit_with_the_result() {
    let (mut b, t) = Boxed::running();
    let step = b.execute(t, begin("model"));
    let before = b.state.last_seq;
    let op = with(
        complete(step, json!("hi")),
        json!({
            "usage": {"input_tokens": 7, "output_tokens": 2, "cost_micros": 9, "model": "m-1"},
            "events": [
                {"type": "agent.message", "content": {"text": "hi"}},
                {"type": "agent.tool_use", "content": {"name": "bash", "input": {}}},
            ],
        }),
    );
    let A::Recorded(kept) = b.step(t, op) else {
        panic!("not recorded");
    };
    let types = [
        T::AgentMessage,
        T::AgentToolUse,
        T::UsageRecorded,
        T::StepCompleted,
    ];
    assert_eq!(b.types_after(before), types);
    let ids: Vec<u64> = kept.event_ids.iter().map(|id| id.seq()).collect();
    assert_eq!(ids, [before + 1, before + 2]);
    let last = b.log.last().expect("an event").content.clone();
    let read: StepCompleted<'_> = serde_json::from_slice(&last).expect("content");
    assert_eq!(read.event_ids, kept.event_ids);
    assert_eq!(b.state.usage.input_tokens, 7);
    assert_eq!(b.state.spent["m-1"].cost_micros, 9);
    // An event that is refused takes the result with it.
    let step = b.execute(t, begin("tool"));
    let foreign = json!([{"type": "agent.tool_result",
        "content": {"tool_use_id": EventId([7; 16]), "output": 1}}]);
    let op = with(complete(step, json!(1)), json!({"events": foreign}));
    b.no_step(t, Code::ToolUseUnknown, op);
}

#[test]
fn sandbox_steps_run_again_where_their_files_are_gone() {
    let (mut b, t) = Boxed::running();
    let sandbox = |name: &str| with(begin(name), json!({"effects": "sandbox"}));
    let step = b.execute(t, sandbox("write"));
    b.step(t, complete(step, json!(1)));
    let external = b.run(t, "pay", json!(1));
    // In the same attempt the files are there.
    assert!(is_completed(&b.step(t, sandbox("write")), step));
    let t = b.next_attempt(t);
    assert_eq!(b.step(t, sandbox("write")), A::Execute { step });
    let said = b.content(b.state.last_seq);
    assert_eq!(said["reason"], "sandbox");
    assert!(is_completed(&b.begin(t, "pay"), external));
    b.step(t, complete(step, json!(2)));
    assert!(is_completed(&b.step(t, sandbox("write")), step));
}

#[test]
fn sandbox_steps_that_the_checkpoint_holds_are_done() {
    let (mut b, t) = Boxed::running();
    let sandbox = |name: &str| with(begin(name), json!({"effects": "sandbox"}));
    let (before, after) = (
        b.execute(t, sandbox("before")),
        b.execute(t, sandbox("after")),
    );
    b.step(t, complete(before, json!(1)));
    let snapshot = json!({"snapshot": {"id": "s1", "provider": "dir", "retention": "host_local"}});
    b.call(t, "checkpoint", snapshot).expect("checkpoint");
    b.step(t, complete(after, json!(1)));
    let t = b.next_attempt(t);
    assert!(is_completed(&b.step(t, sandbox("before")), before));
    assert_eq!(b.step(t, sandbox("after")), A::Execute { step: after });
}

#[test]
fn a_list_is_decided_whole_or_not_at_all() {
    let (mut b, t) = Boxed::running();
    let first = b.execute(t, begin("first"));
    let ops = json!({"ops": [complete(first, json!(1)), begin("first"), begin("second"), begin("second")]});
    let reply = b.call(t, "steps", ops).expect("steps");
    let steps = reply.steps.expect("steps");
    assert!(steps.many);
    assert!(matches!(steps.answers[0], A::Recorded(_)));
    assert!(is_completed(&steps.answers[1], first));
    let A::Execute { step } = steps.answers[2] else {
        panic!("{:?}", steps.answers);
    };
    assert_eq!(steps.answers[3], A::InProgress { step });
    let divergent = with(begin("first"), json!({"input_digest": "e"}));
    let ops = json!({"ops": [begin("third"), divergent]});
    let extras = b.no_step(t, Code::JournalDivergence, ops);
    assert_eq!(extras["index"], 1);
    let ops: Vec<Value> = (0..101).map(|i| begin(&i.to_string())).collect();
    b.no_step(t, Code::FieldInvalid, json!({"ops": ops}));
    b.no_step(t, Code::FieldInvalid, json!({"ops": []}));
}

#[test]
fn open_steps_are_bounded() {
    let (mut b, t) = Boxed::running();
    for round in 0..4 {
        let ops: Vec<Value> = (0..64).map(|i| begin(&format!("{round}-{i}"))).collect();
        b.call(t, "steps", json!({"ops": ops})).expect("steps");
    }
    let extras = b.no_step(t, Code::StepsFull, begin("one more"));
    assert_eq!(extras["steps_max"], 256);
    let open = b.state.journal.open.values().next().expect("one").id;
    b.step(t, complete(open, json!(1)));
    b.execute(t, begin("one more"));
}

#[test]
fn j18_values_of_every_kind_are_kept_as_they_came() {
    let (mut b, t) = Boxed::running();
    for (i, value) in [
        json!(null),
        json!(false),
        json!("\u{0}é"),
        json!([1, [2.5, {}]]),
        json!({"deep": {"er": []}}),
    ]
    .into_iter()
    .enumerate()
    {
        b.run(t, &i.to_string(), value.clone());
        assert_eq!(b.content(b.state.last_seq)["value"], value);
    }
    let step = b.execute(t, begin("bytes"));
    let bytes = json!({"op": "complete", "step_id": step, "value_base64": "AAEC", "content_type": "image/png"});
    b.step(t, bytes.clone());
    let kept = b.content(b.state.last_seq);
    assert_eq!(
        (&kept["value_base64"], &kept["content_type"]),
        (&json!("AAEC"), &json!("image/png"))
    );
    // The same bytes again.
    assert!(matches!(b.step(t, bytes), A::Recorded(_)));
}

#[test]
fn bodies_are_checked_field_by_field() {
    let (mut b, t) = Boxed::running();
    let step = b.execute(t, begin("s"));
    let long = |n: usize| "x".repeat(n);
    for bad in [
        json!({}),
        json!({"op": "start"}),
        json!({"op": "begin", "name": "x"}),
        json!({"op": "begin", "input_digest": "d"}),
        with(begin("x"), json!({"name": ""})),
        with(begin("x"), json!({"name": long(257)})),
        with(begin("x"), json!({"path": long(1_025)})),
        with(begin("x"), json!({"input_digest": long(129)})),
        with(begin("x"), json!({"idempotency_key": ""})),
        with(begin("x"), json!({"effects": "both"})),
        json!({"op": "complete", "step_id": step}),
        json!({"op": "complete", "step_id": "evt_1", "value": 1}),
        json!({"op": "complete", "step_id": step, "value_base64": "AA=="}),
        json!({"op": "complete", "step_id": step, "value_base64": "!", "content_type": "a"}),
        json!({"op": "complete", "step_id": step, "value": 1, "content_type": "a"}),
        json!({"op": "fail", "step_id": step}),
        json!({"op": "resolve", "step_id": step, "as": "done"}),
        json!({"op": "resolve", "step_id": step, "as": "completed"}),
        with(
            complete(step, json!(1)),
            json!({"events": [{"type": "usage.recorded", "content": {}}]}),
        ),
    ] {
        b.no_step(t, Code::FieldInvalid, bad);
    }
    for unknown in [
        with(begin("x"), json!({"value": null})),
        with(complete(step, json!(1)), json!({"name": "x"})),
        with(fail(step), json!({"value": 1})),
        with(begin("x"), json!({"colour": "red"})),
        json!({"ops": [with(begin("x"), json!({"n": 1}))]}),
        json!({"ops": [begin("x")], "op": "begin"}),
        json!({"op": "resolve", "step_id": step, "as": "retry", "value": 1}),
        with(complete(step, json!(1)), json!({"usage": {"money": 1}})),
    ] {
        b.no_step(t, Code::FieldUnknown, unknown);
    }
    let large = complete(step, json!(long(1 << 20)));
    b.no_step(t, Code::EventTooLarge, large);
}
