//! Steps are run once, whatever dies, and only where they should be.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use longhaul::Config;
use longhaul::journal::{
    Begun, Journal, JournalError, OnDoubt, Step, StepEffects, StepError, StepValue, Verdict,
};
use longhaul::runner::{Attempt, Failure};
use longhaul_storage::{Health, Log, MemoryLog, Pending, ReadError, StreamId, View, Write};

use super::kit::{CRASH, Count, DONE, Stage, open};

fn number(attempt: &Attempt) -> u32 {
    attempt.claim().attempt
}

/// A counted step of two sessions, two turns and some attempts.
#[tokio::test]
async fn j1_j3_j12_j13_j14_j24_once_per_run_and_again_in_the_next() {
    let runs = Count::default();
    let counted = runs.clone();
    let stage = Stage::new(move |attempt, journal| {
        let runs = counted.clone();
        Box::pin(async move {
            for _ in 0..2 {
                // The same name and input twice are two occurrences.
                let _: u32 = journal
                    .step("charge", "x", async || runs.effect(1).await)
                    .await?;
            }
            if number(attempt) < 3 { CRASH() } else { DONE() }
        })
    })
    .await;
    stage.succeeds("pay").await;
    assert_eq!(runs.get(), 2);
    stage.succeeds("pay").await;
    assert_eq!(runs.get(), 4, "a finished run never replays into the next");
    let other = Stage::of(stage.runtime.clone(), "bob").await;
    other.succeeds("pay").await;
    assert_eq!(runs.get(), 6, "sessions are isolated");
    stage.close().await;
}

#[tokio::test]
async fn j15_j19_a_failed_run_is_never_replayed_into_another_prompt_or_principal() {
    let runs = Count::default();
    let counted = runs.clone();
    let stage = Stage::new(move |_, journal| {
        let runs = counted.clone();
        Box::pin(async move {
            let _: u32 = journal
                .step("charge", "x", async || runs.effect(1).await)
                .await?;
            Err(Failure::run("test.broken", ""))
        })
    })
    .await;
    assert_eq!(stage.turn("one").await["outcome"], "failed");
    assert_eq!(stage.turn("two").await["outcome"], "failed");
    assert_eq!(runs.get(), 2);
    let other = Stage::of(stage.runtime.clone(), "eve").await;
    other.turn("one").await;
    assert_eq!(runs.get(), 3);
    stage.close().await;
}

#[tokio::test]
async fn j4_j22_divergence_fails_the_run_and_writes_nothing() {
    let stage = Stage::new(|attempt, journal| {
        Box::pin(async move {
            let step = Step::named("model").revision(number(attempt).to_string());
            let _: u32 = journal
                .step(step, "x", async || Ok::<_, StepError>(1))
                .await?;
            CRASH()
        })
    })
    .await;
    let end = stage.turn("go").await;
    assert_eq!(end["error"]["code"], "journal.divergence", "{end}");
    assert_eq!(stage.of_type("step.started").await.len(), 1);
    assert_eq!(stage.of_type("step.resolved").await.len(), 0);
    stage.close().await;
}

#[tokio::test]
async fn j5_j9_j21_parallel_steps_and_branches_are_all_kept_and_never_share() {
    let runs = Count::default();
    let counted = runs.clone();
    let folder = tempfile::tempdir().unwrap();
    let config = Config::in_folder(folder.path().join("data"));
    let body = move |attempt: &Attempt, journal: Journal| {
        let (runs, first) = (counted.clone(), number(attempt) == 1);
        async move {
            let branches = (0..20_u32).map(|n| {
                let (journal, runs) = (journal.branch("worker"), runs.clone());
                async move {
                    let mut got = Vec::new();
                    for k in 0..3_u32 {
                        let value = n * 100 + k;
                        let one = journal.step("s", "same", async || runs.effect(value).await);
                        got.push(one.await?);
                    }
                    Ok::<_, JournalError>(got)
                }
            });
            for (n, got) in (0..).zip(join_all(branches).await) {
                assert_eq!(got?, [n * 100, n * 100 + 1, n * 100 + 2]);
            }
            if first {
                // As a process that dies here: its claim is left to the next one.
                std::future::pending::<()>().await;
            }
            DONE()
        }
    };
    let again = body.clone();
    let stage = {
        let runtime = open(config.clone(), None, move |a, j| Box::pin(body(a, j))).await;
        Stage::of(runtime, "ada").await
    };
    let id = stage.session.id();
    stage.session.send("go").await.unwrap();
    let all = Count::default();
    stage
        .until(0, |e| e["type"] == "step.completed" && all.up() == 60)
        .await;
    // Closing twice is harmless.
    stage.runtime.clone().close().await;
    stage.close().await;

    let runtime = open(config, None, move |a, j| Box::pin(again(a, j))).await;
    let session = runtime.session(id);
    let stage = Stage { runtime, session };
    assert_eq!(stage.settled(0).await["outcome"], "succeeded");
    assert_eq!(runs.get(), 60, "nothing was run twice");
    stage.close().await;
}

#[tokio::test]
async fn j7_a_key_joins_steps_across_names_and_attempts() {
    let runs = Count::default();
    let counted = runs.clone();
    let stage = Stage::new(move |attempt, journal| {
        let (runs, last) = (counted.clone(), number(attempt));
        Box::pin(async move {
            let name = format!("charge by code of attempt {last}");
            for key in ["order-7", "order-8", "order-7"] {
                let step = Step::named(&name).keyed(key);
                let got: String = journal
                    .step(step, "x", async || runs.effect(key.to_owned()).await)
                    .await?;
                assert_eq!(got, key);
            }
            if last == 1 { CRASH() } else { DONE() }
        })
    })
    .await;
    stage.succeeds("go").await;
    assert_eq!(runs.get(), 2);
    stage.close().await;
}

/// Counts what is made durable.
struct Counting(Arc<MemoryLog>, Arc<AtomicUsize>);

impl Log for Counting {
    fn append(&self, write: Write) -> Pending {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.append(write)
    }

    fn view(&self, f: &mut dyn FnMut(&dyn View)) -> Result<(), ReadError> {
        self.0.view(f)
    }

    fn purge(&self, stream: StreamId) -> Result<(), ReadError> {
        self.0.purge(stream)
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    fn close(&self) {
        self.0.close();
    }
}

#[tokio::test]
async fn j10_every_begun_step_is_a_commit_and_a_result_goes_with_what_follows() {
    let writes = Arc::new(AtomicUsize::new(0));
    let log: Arc<dyn Log> = Arc::new(Counting(MemoryLog::new(), Arc::clone(&writes)));
    let seen = Arc::clone(&writes);
    let body = move |_: &Attempt, journal: Journal| {
        let writes = Arc::clone(&seen);
        async move {
            let now = || writes.load(Ordering::SeqCst);
            let before = now();
            for n in 1..=10_usize {
                let at = now();
                let begun = journal.begin("s", "x").await?;
                assert!(now() > at, "it is durable that the step begins");
                let Begun::Execute(open) = begun else {
                    panic!("{begun:?}");
                };
                let value = StepValue::Json(n.to_string().into());
                journal.complete(open, value, Default::default()).await?;
            }
            journal.flush().await?;
            let used = now() - before;
            assert!((11..=20).contains(&used), "{used} commits");
            DONE()
        }
    };
    let runtime = open(Config::in_memory(), Some(log), move |a, j| {
        Box::pin(body(a, j))
    })
    .await;
    let stage = Stage::of(runtime, "ada").await;
    stage.succeeds("go").await;
    assert_eq!(stage.of_type("step.completed").await.len(), 10);
    stage.close().await;
}

#[tokio::test]
async fn j25_cancelled_right_after_its_effect_a_step_is_in_doubt_and_is_said_so() {
    let runs = Count::default();
    let counted = runs.clone();
    let stage = Stage::new(move |attempt, journal| {
        let (runs, last) = (counted.clone(), number(attempt));
        Box::pin(async move {
            let step = journal.step("charge", "x", async || {
                runs.up();
                if last == 1 {
                    return std::future::pending().await;
                }
                Ok::<u32, StepError>(7)
            });
            if last == 1 {
                // The effect has happened, and the attempt ends before it is recorded.
                tokio::select! {
                    biased;
                    _ = step => panic!("it never ends"),
                    () = until_up(&runs) => return CRASH(),
                }
            }
            match step.await {
                Err(JournalError::InDoubt {
                    step_id,
                    started_attempt: 1,
                    ..
                }) => {
                    let sent = StepValue::Json("7".into());
                    journal.resolve(step_id, Verdict::Completed(sent)).await?;
                }
                other => panic!("{other:?}"),
            }
            let again = Step::named("charge").at(0);
            let got: u32 = journal
                .step(again, "x", async || runs.effect(0).await)
                .await?;
            assert_eq!(got, 7);
            DONE()
        })
    })
    .await;
    stage.succeeds("go").await;
    assert_eq!(runs.get(), 1);
    stage.close().await;
}

async fn until_up(runs: &Count) {
    while runs.get() == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn steps_in_doubt_run_again_with_a_key_and_under_one_id() {
    let runs = Count::default();
    let counted = runs.clone();
    let stage = Stage::new(move |attempt, journal| {
        let (runs, last) = (counted.clone(), number(attempt));
        Box::pin(async move {
            for step in [
                Step::named("a").keyed("k"),
                Step::named("b").on_doubt(OnDoubt::Retry),
                Step::named("c").effects(StepEffects::Sandbox),
            ] {
                match journal.begin(step, "x").await? {
                    Begun::Execute(open) if last > 1 => {
                        runs.up();
                        let value = StepValue::Json("1".into());
                        journal.complete(open, value, Default::default()).await?;
                    }
                    Begun::Execute(_) => {}
                    other => panic!("{other:?}"),
                }
            }
            if last == 1 { CRASH() } else { DONE() }
        })
    })
    .await;
    stage.succeeds("go").await;
    assert_eq!(runs.get(), 3);
    assert_eq!(stage.of_type("step.started").await.len(), 3);
    assert_eq!(stage.of_type("step.resolved").await.len(), 3);
    stage.close().await;
}

#[tokio::test]
async fn j20_finished_work_of_nested_branches_is_not_repeated() {
    let runs = Count::default();
    let counted = runs.clone();
    let stage = Stage::new(move |attempt, journal| {
        let (runs, last) = (counted.clone(), number(attempt));
        Box::pin(async move {
            let outer = journal.branch("agent");
            for n in 0..3_u32 {
                let inner = outer.branch("tool");
                let _: u32 = inner
                    .step("call", &n, async || runs.effect(n).await)
                    .await?;
                if last == 1 && n == 1 {
                    return CRASH();
                }
            }
            let paths = [outer.path(), outer.branch("tool").path()].join(" ");
            assert_eq!(paths, "agent agent/tool#3");
            DONE()
        })
    })
    .await;
    stage.succeeds("go").await;
    assert_eq!(runs.get(), 3);
    stage.close().await;
}
