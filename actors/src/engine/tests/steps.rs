//! Journals in a running engine: values come from the log, and new steps ask it nothing.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use serde_json::{Value, json};

use super::kit::{Boxed, check, config, count, run};
use crate::code::{Code, Rejection};
use crate::ids::{ClaimToken, EventId};
use crate::session::command::Bearer;
use crate::session::payload::{RetentionPolicy, Selector};
use crate::session::step::{
    BeginStep, CompleteStep, OnDoubt, OnFailure, StepEffects, StepOp, StepPlace, StepResult as R,
    StepValue,
};

fn begin(name: &str) -> StepOp {
    StepOp::Begin(Box::new(BeginStep {
        place: StepPlace {
            path: String::new(),
            name: name.to_owned(),
            occurrence: 0,
            idempotency_key: None,
        },
        input_digest: "d".to_owned(),
        input: Some(Bytes::from_static(b"{\"n\":1}")),
        effects: StepEffects::External,
        on_doubt: OnDoubt::Surface,
        on_failure: OnFailure::Surface,
    }))
}

fn complete(step: EventId, value: StepValue) -> StepOp {
    StepOp::Complete(Box::new(CompleteStep {
        step,
        value,
        usage: None,
        events: Vec::new(),
    }))
}

fn json_value(value: &Value) -> StepValue {
    StepValue::Json(value.to_string().into())
}

impl Boxed {
    async fn op(&self, token: ClaimToken, op: StepOp) -> Result<R, Rejection> {
        let mut results = self.engine.steps(Bearer::Trusted, token, vec![op]).await?;
        assert_eq!(results.len(), 1);
        Ok(results.remove(0))
    }

    async fn execute(&self, token: ClaimToken, name: &str) -> EventId {
        match self.op(token, begin(name)).await {
            Ok(R::Execute { step }) => step,
            other => panic!("{other:?}"),
        }
    }

    async fn step(&self, token: ClaimToken, name: &str, value: StepValue) -> EventId {
        let step = self.execute(token, name).await;
        self.op(token, complete(step, value)).await.expect("kept");
        step
    }

    async fn value(&self, token: ClaimToken, name: &str) -> StepValue {
        match self.op(token, begin(name)).await {
            Ok(R::Completed { value, .. }) => value,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn j18_values_come_back_as_they_came_over_a_restart() {
    run(async {
        let b = Boxed::new(config());
        let (id, t) = b.running().await;
        let large = json!("x".repeat(900_000));
        let values = [
            json_value(&Value::Null),
            json_value(&json!({"b": [1, 2.5, "\u{0}é"]})),
            json_value(&large),
            StepValue::Bytes {
                content_type: "image/png".to_owned(),
                bytes: Bytes::from_static(&[0, 1, 255]),
            },
        ];
        for (i, value) in values.iter().enumerate() {
            b.step(t, &i.to_string(), value.clone()).await;
        }
        let b = b.restart(config()).await;
        for (i, value) in values.iter().enumerate() {
            assert_eq!(b.value(t, &i.to_string()).await, *value);
        }
        b.execute(t, "new").await;
        check(&b, id);
    });
}

#[test]
fn a_new_step_asks_the_log_nothing() {
    run(async {
        let b = Boxed::new(config());
        let (_, t) = b.running().await;
        let before = b.log.views.load(Ordering::SeqCst);
        for i in 0..20 {
            b.step(t, &i.to_string(), json_value(&json!(i))).await;
        }
        assert_eq!(b.log.views.load(Ordering::SeqCst), before);
        assert_eq!(b.value(t, "3").await, json_value(&json!(3)));
        assert!(b.log.views.load(Ordering::SeqCst) > before);
    });
}

#[test]
fn j10_each_acknowledged_step_is_on_disk_by_an_append_of_its_own() {
    run(async {
        let b = Boxed::new(config());
        let (_, t) = b.running().await;
        let from = b.log.appends.load(Ordering::SeqCst);
        let appends = || b.log.appends.load(Ordering::SeqCst) - from;
        let step = b.execute(t, "s").await;
        assert_eq!(appends(), 1, "the intent");
        b.op(t, complete(step, json_value(&json!(1))))
            .await
            .expect("kept");
        assert_eq!(appends(), 2, "the result");
        b.value(t, "s").await;
        assert_eq!(appends(), 2, "what is read again writes nothing");

        b.log.hold();
        let mut begun = Box::pin(b.op(t, begin("other")));
        let early = "answered before it is on disk";
        tokio::select! {
            answer = &mut begun => panic!("{early}: {answer:?}"),
            () = super::kit::eventually(|| b.log.held() == 1) => {}
        }
        for _ in 0..64 {
            tokio::select! {
                biased;
                answer = &mut begun => panic!("{early}: {answer:?}"),
                () = tokio::task::yield_now() => {}
            }
        }
        b.log.release();
        assert!(matches!(begun.await, Ok(R::Execute { .. })));
    });
}

#[test]
fn j9_concurrent_steps_are_all_kept_in_few_commits() {
    run(async {
        let b = Boxed::new(config());
        let (id, t) = b.running().await;
        b.log.hold();
        let first = b.write(t, "x");
        let all = (0..64).map(|i| {
            let b = &b;
            async move { b.execute(t, &format!("s{i}")).await }
        });
        let before = b.log.appends.load(Ordering::SeqCst);
        let steps = futures_util::future::join_all(all);
        let release = async {
            super::kit::eventually(|| b.log.held() == 1).await;
            for _ in 0..64 {
                tokio::task::yield_now().await;
            }
            b.log.release();
        };
        let (_, steps, ()) = tokio::join!(first, steps, release);
        assert!(b.log.appends.load(Ordering::SeqCst) - before < 40);
        let done = steps.iter().enumerate().map(|(i, step)| {
            let op = complete(*step, json_value(&json!(i)));
            b.op(t, op)
        });
        futures_util::future::join_all(done).await;
        for i in 0..64 {
            assert_eq!(b.value(t, &format!("s{i}")).await, json_value(&json!(i)));
        }
        assert_eq!(count(&b.types(id).await, "step.completed"), 64);
        check(&b, id);
    });
}

#[test]
fn a_result_said_twice_in_one_batch_is_kept_once() {
    run(async {
        let b = Boxed::new(config());
        let (id, t) = b.running().await;
        let step = b.execute(t, "s").await;
        b.log.hold();
        let first = b.write(t, "x");
        let again = || b.op(t, complete(step, json_value(&json!(1))));
        let other = b.op(t, complete(step, json_value(&json!(2))));
        let replay = b.op(t, begin("s"));
        let release = async {
            super::kit::eventually(|| b.log.held() == 1).await;
            for _ in 0..16 {
                tokio::task::yield_now().await;
            }
            b.log.release();
        };
        let (_, one, two, other, replay, ()) =
            tokio::join!(first, again(), again(), other, replay, release);
        assert_eq!(one, two);
        assert_eq!(other.expect_err("another").code, Code::StepNotOpen);
        assert!(matches!(replay, Ok(R::Completed { .. })), "{replay:?}");
        assert_eq!(count(&b.types(id).await, "step.completed"), 1);
        check(&b, id);
    });
}

#[test]
fn zero_data_retention_values_live_as_long_as_the_process() {
    run(async {
        let b = Boxed::new(config());
        b.engine.enrol(super::kit::runner(10)).await.expect("enrol");
        let nothing = RetentionPolicy {
            zero_data_retention: true,
            ..RetentionPolicy::default()
        };
        let id = b.engine.new_session_id();
        b.create_with(id, &["hi"], nothing).await.expect("create");
        let (_, t) = b.ready().await;
        let secret = json_value(&json!("secret"));
        let step = b.step(t, "s", secret.clone()).await;
        assert_eq!(b.value(t, "s").await, secret);
        // Also what was said before can be compared.
        let again = b.op(t, complete(step, secret)).await;
        assert!(matches!(again, Ok(R::Recorded(_))), "{again:?}");
        let b = b.restart(config()).await;
        let gone = b.op(t, begin("s")).await.expect_err("gone");
        assert_eq!(gone.code, Code::JournalValueUnavailable);
        b.execute(t, "new").await;
    });
}

#[test]
fn a_numbered_call_has_its_value_in_each_answer() {
    run(async {
        let b = Boxed::new(config());
        let (_, t) = b.running().await;
        b.step(t, "s", json_value(&json!({"a": 1}))).await;
        let body = json!({"n": 1, "op": "begin", "name": "s", "input_digest": "d"});
        let first = b.call(t, "steps", body.clone()).await.expect("begin");
        assert_eq!(first["value"], json!({"a": 1}));
        assert_eq!(b.call(t, "steps", body).await, Ok(first));
        let body = json!({"n": 2, "ops": [
            {"op": "begin", "name": "x", "input_digest": "d"},
            {"op": "begin", "name": "s", "input_digest": "d"},
        ]});
        let list = b.call(t, "steps", body).await.expect("steps");
        assert_eq!(list["results"][0]["state"], "execute");
        assert_eq!(list["results"][1]["value"], json!({"a": 1}));
    });
}

#[test]
fn j17_what_is_not_json_is_refused_at_the_door() {
    run(async {
        let b = Boxed::new(config());
        let (_, t) = b.running().await;
        let step = b.execute(t, "s").await;
        for bad in ["", "{", "1 2", "{\"a\":1,\"a\":2}"] {
            let op = complete(step, StepValue::Json(bad.into()));
            let refused = b.op(t, op).await.expect_err(bad);
            assert_eq!(refused.code, Code::BodyInvalid, "{bad}");
        }
        let foreign = ClaimToken {
            secret: [9; 16],
            ..t
        };
        let refused = b.op(foreign, begin("s")).await.expect_err("a wrong token");
        assert_eq!(refused.code, Code::ClaimNotFound);
    });
}

#[test]
fn a_fork_reads_the_values_of_a_parked_runs_journal() {
    run(async {
        let b = Boxed::new(config());
        let (source, t) = b.running().await;
        let value = json_value(&json!({"a": 1}));
        b.step(t, "s", value.clone()).await;
        let park = json!({"waiting_on": [{"signal": "go"}], "compute": "released"});
        b.call(t, "park", park).await.expect("park");
        let child = super::forks::fork(&b, source, Selector::Head).await;
        // Each goes on alone: what the other does is not seen.
        for (id, own) in [(child, "of the child"), (source, "of the source")] {
            b.submit(id, "user.signal", json!({"name": "go"}))
                .await
                .expect("signal");
            let (claimed, t) = b.ready().await;
            assert_eq!(claimed, id);
            assert_eq!(b.value(t, "s").await, value);
            b.step(t, "own", json_value(&json!(own))).await;
            assert_eq!(b.value(t, "own").await, json_value(&json!(own)));
            check(&b, id);
        }
        b.engine.close().await;
    });
}
