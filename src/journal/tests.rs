//! Journals against a server in a few lines, with faults on demand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::*;
use crate::runner::testing::{Fault, Rig, rig};
use crate::runner::{Attempt, BoxFuture, End, Failure, Harness, Settlement};

type Body =
    dyn for<'a> Fn(&'a Attempt, Journal) -> BoxFuture<'a, Result<(), Failure>> + Send + Sync;

/// A harness in one function.
struct Played(Box<Body>);

impl std::fmt::Debug for Played {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Played")
    }
}

impl Harness for Played {
    fn kind(&self) -> &str {
        "played"
    }

    fn run<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<End, Failure>> {
        Box::pin(async move {
            attempt.ready().await?;
            (self.0)(attempt, Journal::open(attempt)).await?;
            Ok(End::Settle(Settlement::succeeded()))
        })
    }
}

async fn play<F>(body: F) -> Rig
where
    F: for<'a> Fn(&'a Attempt, Journal) -> BoxFuture<'a, Result<(), Failure>>
        + Send
        + Sync
        + 'static,
{
    rig(|r| r.add_harness(Arc::new(Played(Box::new(body))))).await
}

/// Queues a run's first attempt and waits for its end.
async fn first(rig: &Rig) -> Value {
    rig.server.queue(&json!({"kind": "played"}), &[], false);
    rig.server.ended().await
}

/// Queues the same run's next attempt, as after a crash, and waits for its end.
async fn again(rig: &Rig) -> Value {
    rig.server.requeue(&json!({"kind": "played"}), &[]);
    rig.server.ended().await
}

fn calls(rig: &Rig, verb: &str) -> usize {
    let world = rig.server.world();
    world.calls.iter().filter(|(v, _)| v == verb).count()
}

type Count = Arc<AtomicU32>;

fn count(count: &Count) -> u32 {
    count.load(Ordering::SeqCst)
}

async fn effect(runs: &Count, value: u32) -> Result<u32, StepError> {
    runs.fetch_add(1, Ordering::SeqCst);
    Ok(value)
}

#[tokio::test]
async fn j1_j12_a_finished_step_is_not_run_by_a_later_attempt() {
    let runs = Count::default();
    let ran = Arc::clone(&runs);
    let rig = play(move |attempt, journal| {
        let ran = Arc::clone(&ran);
        Box::pin(async move {
            let mut sum = 0;
            for n in 0..5_u32 {
                sum += journal
                    .step("add", &n, async || effect(&ran, n).await)
                    .await?;
            }
            assert_eq!(sum, 10);
            match attempt.claim().attempt {
                1 => Err(Failure::run("test.crash", "")),
                _ => Ok(()),
            }
        })
    })
    .await;
    assert_eq!(first(&rig).await["outcome"], "failed");
    let before = calls(&rig, "steps");
    assert_eq!(again(&rig).await["outcome"], "succeeded");
    assert_eq!(count(&runs), 5);
    assert_eq!(calls(&rig, "steps"), before, "answered from the log");
}

#[tokio::test]
async fn a_lost_answer_neither_doubles_an_effect_nor_loses_a_result() {
    let runs = Count::default();
    let ran = Arc::clone(&runs);
    let rig = play(move |_, journal| {
        let ran = Arc::clone(&ran);
        Box::pin(async move {
            for n in 0..3_u32 {
                let got: u32 = journal
                    .step("s", &n, async || effect(&ran, n).await)
                    .await?;
                assert_eq!(got, n);
            }
            Ok(())
        })
    })
    .await;
    for fault in [
        Fault::AnswerLost,
        Fault::NotReached,
        Fault::AnswerLost,
        Fault::Busy,
    ] {
        rig.server.world().faults.push_back(("steps", fault));
    }
    assert_eq!(first(&rig).await["outcome"], "succeeded");
    assert_eq!(count(&runs), 3);
    let world = rig.server.world();
    assert_eq!(world.of("step.started").len(), 3);
    assert_eq!(world.of("step.completed").len(), 3);
}

#[tokio::test]
async fn what_follows_a_result_waits_behind_it() {
    let rig = play(|attempt, journal| {
        Box::pin(async move {
            for n in 0..3_u32 {
                let _: u32 = journal
                    .step("s", &n, async || Ok::<_, StepError>(n))
                    .await?;
            }
            attempt
                .event("agent.message", json!({"text": "said"}))
                .await?;
            let _: u32 = journal
                .step("s", &3, async || Ok::<_, StepError>(3))
                .await?;
            Ok(())
        })
    })
    .await;
    assert_eq!(first(&rig).await["outcome"], "succeeded");
    let world = rig.server.world();
    let kinds: Vec<_> = world
        .log
        .iter()
        .map(|e| e["type"].as_str().unwrap())
        .collect();
    let step = ["step.started", "step.completed"];
    let mut expected = vec!["run.queued", "run.started"];
    expected.extend(step.repeat(3));
    expected.push("agent.message");
    expected.extend(step);
    assert_eq!(kinds, expected);
    // A result goes with the next begin: one call for both.
    let steps = world.calls.iter().filter(|(v, _)| v == "steps");
    assert!(steps.count() <= 7, "{:?}", world.calls);
    assert_eq!(world.calls.last().unwrap().0, "settle");
}

#[tokio::test]
async fn a_refused_result_fails_the_next_call_and_the_run() {
    let rig = play(|_, journal| {
        Box::pin(async move {
            let _: u32 = journal
                .step("s", &1, async || Ok::<_, StepError>(1))
                .await?;
            journal.flush().await?;
            let _: u32 = journal
                .step("s", &2, async || Ok::<_, StepError>(2))
                .await?;
            Ok(())
        })
    })
    .await;
    rig.server.world().refused_value = Some((json!(2), "session.event_limit"));
    let end = first(&rig).await;
    assert_eq!(end["outcome"], "failed", "{end}");
    assert_eq!(end["error"]["code"], "session.event_limit");
}

#[tokio::test]
async fn j4_j22_another_input_or_revision_is_a_divergence() {
    let rig = play(|attempt, journal| {
        Box::pin(async move {
            let last = attempt.claim().attempt;
            let revision = if last == 2 { "2" } else { "1" };
            let input = if last == 3 { "other" } else { "same" };
            let step = Step::named("s").revision(revision);
            let got = journal
                .step(step, input, async || Ok::<_, StepError>(1))
                .await;
            match got {
                Ok(1) if matches!(last, 1 | 4) => Err(Failure::run("test.crash", "")),
                Err(JournalError::Divergence { step_id, name, .. }) => {
                    assert!(step_id.is_some());
                    assert_eq!((name.as_str(), matches!(last, 2 | 3)), ("s", true));
                    Err(Failure::run("test.diverged", ""))
                }
                other => panic!("{other:?}"),
            }
        })
    })
    .await;
    assert_eq!(first(&rig).await["error"]["code"], "test.crash");
    for code in ["test.diverged", "test.diverged", "test.crash"] {
        assert_eq!(again(&rig).await["error"]["code"], code);
    }
}

#[tokio::test]
async fn one_refused_of_many_at_once_harms_no_other() {
    let rig = play(|attempt, journal| {
        Box::pin(async move {
            let first = attempt.claim().attempt == 1;
            if first {
                // Begun and never ended, with another input.
                let _open = journal.begin(Step::named("s").at(3), "old").await?;
                return Err(Failure::run("test.crash", ""));
            }
            let all = (0..10_u32).map(|n| {
                let journal = journal.clone();
                async move {
                    let step = Step::named("s").at(n);
                    journal.step(step, &n, async || Ok::<_, StepError>(n)).await
                }
            });
            let all = futures_util::future::join_all(all).await;
            for (n, got) in (0..).zip(all) {
                match got {
                    Ok(got) => assert_eq!((got, n != 3), (n, true)),
                    Err(JournalError::Divergence { .. }) => assert_eq!(n, 3),
                    Err(other) => panic!("{other}"),
                }
            }
            Ok(())
        })
    })
    .await;
    first(&rig).await;
    assert_eq!(again(&rig).await["outcome"], "succeeded");
    assert_eq!(rig.server.world().of("step.completed").len(), 9);
}

#[tokio::test]
async fn j7_two_steps_of_one_key_at_once_are_one() {
    let runs = Count::default();
    let ran = Arc::clone(&runs);
    let rig = play(move |_, journal| {
        let ran = Arc::clone(&ran);
        Box::pin(async move {
            let one = |name: &'static str| {
                let (journal, ran) = (journal.clone(), Arc::clone(&ran));
                async move {
                    let step = Step::named(name).keyed("k");
                    journal
                        .step(step, "x", async || {
                            tokio::task::yield_now().await;
                            effect(&ran, 7).await
                        })
                        .await
                }
            };
            let (a, b, c) = tokio::join!(one("a"), one("b"), one("c"));
            assert_eq!((a?, b?, c?), (7, 7, 7));
            let other = Step::named("a").keyed("other");
            let got: u32 = journal
                .step(other, "x", async || effect(&ran, 8).await)
                .await?;
            assert_eq!(got, 8);
            let named: u32 = journal
                .step("k", "x", async || effect(&ran, 9).await)
                .await?;
            assert_eq!(named, 9, "a key and a name never collide");
            Ok(())
        })
    })
    .await;
    assert_eq!(first(&rig).await["outcome"], "succeeded");
    assert_eq!(count(&runs), 3);
}

#[tokio::test]
async fn failures_are_recorded_and_tried_again_over_attempts() {
    let runs = Count::default();
    let ran = Arc::clone(&runs);
    let rig = play(move |_, journal| {
        let ran = Arc::clone(&ran);
        Box::pin(async move {
            let retries = Retries {
                max: 2,
                pause: Duration::from_millis(1),
                pause_max: Duration::from_millis(2),
            };
            let failing = || async {
                ran.fetch_add(1, Ordering::SeqCst);
                Err::<u32, _>(StepError::new("bank.away", "no answer"))
            };
            let got = journal.step_retrying("charge", "x", retries, failing).await;
            match got {
                Err(JournalError::Failed {
                    error, failures: 3, ..
                }) => {
                    assert_eq!(error, StepError::new("bank.away", "no answer"));
                    Err(Failure::run("test.crash", ""))
                }
                other => panic!("{other:?}"),
            }
        })
    })
    .await;
    first(&rig).await;
    assert_eq!(count(&runs), 3);
    assert_eq!(again(&rig).await["error"]["code"], "test.crash");
    assert_eq!(count(&runs), 3, "the count goes on over attempts");
    assert_eq!(rig.server.world().of("step.failed").len(), 3);
}

#[tokio::test]
async fn j8_only_a_drained_stream_is_replayed_and_a_partial_is_kept() {
    let runs = Count::default();
    let ran = Arc::clone(&runs);
    let rig = play(move |attempt, journal| {
        let ran = Arc::clone(&ran);
        Box::pin(async move {
            let source = |values: Vec<Result<u32, StepError>>| {
                ran.fetch_add(1, Ordering::SeqCst);
                stream::iter(values)
            };
            let again = OnFailure::Retry;
            let whole = || source(vec![Ok(1), Ok(2), Ok(3)]);
            let drained = journal.stream("drained", "x", whole).await?;
            let drained: Vec<_> = drained.map(Result::unwrap).collect().await;
            assert_eq!(drained, [1, 2, 3]);

            let step = Step::named("dropped").on_failure(again);
            let mut dropped = journal.stream(step, "x", whole).await?;
            assert_eq!(dropped.next().await.unwrap().unwrap(), 1);
            drop(dropped);

            let broken = || source(vec![Ok(1), Err(StepError::new("model.away", "")), Ok(3)]);
            let step = Step::named("broken").on_failure(again);
            let broken = journal.stream(step, "x", broken).await?;
            let broken: Vec<_> = broken.collect().await;
            assert!(
                matches!(broken.as_slice(), [
                Ok(1), Err(JournalError::Failed { failures, .. })
            ] if *failures == attempt.claim().attempt),
                "{broken:?}"
            );
            Err(Failure::run("test.crash", ""))
        })
    })
    .await;
    first(&rig).await;
    assert_eq!(count(&runs), 3);
    assert_eq!(again(&rig).await["error"]["code"], "test.crash");
    assert_eq!(count(&runs), 5, "the drained one came from the log");
    let world = rig.server.world();
    let partials: Vec<_> = world
        .of("step.failed")
        .iter()
        .map(|c| c["partial"].clone())
        .collect();
    assert_eq!(partials, vec![json!([1]); 4]);
}

#[tokio::test]
async fn j2_outside_a_run_every_step_runs_each_time() {
    let runs = Count::default();
    let journal = Journal::off();
    for n in 1..=3 {
        let got: u32 = journal
            .step("s", "x", async || effect(&runs, n).await)
            .await
            .unwrap();
        assert_eq!(got, n);
    }
    assert_eq!(count(&runs), 3);
    let fails = || async {
        runs.fetch_add(1, Ordering::SeqCst);
        Err::<u32, _>(StepError::new("x", ""))
    };
    let failed = journal.step_retrying("f", "x", Retries::up_to(2), fails);
    assert!(matches!(failed.await, Err(JournalError::Failed { .. })));
    assert_eq!(count(&runs), 6);
    assert_eq!(journal.poll_signal("go").await, Ok(None));
    let parts = journal
        .stream("t", "x", || stream::iter([Ok::<_, StepError>(1)]))
        .await
        .unwrap();
    assert_eq!(parts.map(Result::unwrap).collect::<Vec<u8>>().await, [1]);
}

#[test]
fn j23_j24_digests_tell_inputs_and_revisions_apart() {
    #[derive(Serialize)]
    struct Job {
        id: u32,
    }
    let of = |revision: &str, input: &Value| {
        let step = Step::named("s").revision(revision);
        core::digest(&step, input).unwrap().0
    };
    let digests = [
        of("", &json!(Job { id: 1 })),
        of("", &json!(Job { id: 2 })),
        of("1", &json!(Job { id: 1 })),
        of("", &json!("1")),
        of("1", &json!("")),
        of("", &Value::Null),
    ];
    let different: std::collections::BTreeSet<_> = digests.iter().collect();
    assert_eq!(different.len(), digests.len());
    let maps = [("a", 1), ("b", 2), ("c", 3)].map(|(k, v)| (k, v));
    let one: std::collections::HashMap<_, _> = maps.into_iter().collect();
    let other: std::collections::HashMap<_, _> = maps.into_iter().rev().collect();
    let digest = |m| core::digest(&Step::named("s"), m).unwrap().0;
    assert_eq!(digest(&one), digest(&other), "a map's order does not count");
}
