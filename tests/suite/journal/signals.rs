//! Signals as steps of a journal.

use std::time::Duration;

use longhaul::Config;
use longhaul::journal::{Journal, JournalError};
use longhaul::runner::Attempt;
use serde_json::{Value, json};

use super::kit::{CRASH, Count, DONE, Stage, open};

#[tokio::test]
async fn s1_s3_s9_a_wait_parks_wakes_in_order_and_outlives_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::in_folder(folder.path().join("data"));
    let runs = Count::default();
    let counted = runs.clone();
    let body = move |attempt: &Attempt, journal: Journal| {
        let (runs, last) = (counted.clone(), attempt.claim().attempt);
        async move {
            let _: u32 = journal
                .step("before", "x", async || runs.effect(1).await)
                .await?;
            let first = journal.wait_for_signal("go", None).await?;
            let second = journal.wait_for_signal("go", None).await?;
            let _: u32 = journal
                .step("after", "x", async || runs.effect(1).await)
                .await?;
            assert_eq!((first, second), (json!(1), json!({"n": 2})));
            // Replayed once more: it gets the same, and takes nothing again.
            if last == 1 { CRASH() } else { DONE() }
        }
    };
    let again = body.clone();
    let runtime = open(config.clone(), None, move |a, j| Box::pin(body(a, j))).await;
    let stage = Stage::of(runtime, "ada").await;
    let id = stage.session.id();
    let sent = stage.session.send("wait").await.unwrap().events[0].seq;
    stage.until(sent, |e| e["type"] == "run.parked").await;
    stage.close().await;

    let runtime = open(config, None, move |a, j| Box::pin(again(a, j))).await;
    let session = runtime.session(id);
    let stage = Stage { runtime, session };
    let first = stage.signal("go", json!(1)).await;
    stage.until(first, |e| e["type"] == "run.parked").await;
    stage.signal("other", json!("not this one")).await;
    stage.signal("go", json!({"n": 2})).await;
    stage.signal("go", json!("nobody's")).await;
    assert_eq!(stage.settled(sent).await["outcome"], "succeeded");
    assert_eq!(runs.get(), 2);
    assert_eq!(stage.of_type("signal.consumed").await.len(), 2);
    stage.close().await;
}

#[tokio::test]
async fn s2_s4_s6_s10_kept_signals_are_polled_once_each_and_null_is_a_payload() {
    let stage = Stage::new(|attempt, journal| {
        Box::pin(async move {
            let mut got = Vec::new();
            for _ in 0..3 {
                got.push(journal.poll_signal("go").await?);
            }
            let expected: [Option<Value>; 3] = [Some(Value::Null), Some(json!(2)), None];
            assert_eq!(got, expected);
            // One that was there before the wait: nothing is parked.
            let kept = journal.wait_for_signal("kept", None).await?;
            assert_eq!(kept, "k");
            if attempt.claim().attempt < 3 {
                CRASH()
            } else {
                DONE()
            }
        })
    })
    .await;
    for (name, payload) in [("go", Value::Null), ("kept", json!("k")), ("go", json!(2))] {
        stage.signal(name, payload).await;
    }
    stage.succeeds("poll").await;
    assert_eq!(stage.of_type("signal.consumed").await.len(), 3);
    assert_eq!(stage.of_type("run.parked").await.len(), 0);
    stage.close().await;
}

#[tokio::test]
async fn s5_signals_of_another_session_are_not_seen() {
    let stage = Stage::new(|_, journal| {
        Box::pin(async move {
            assert_eq!(journal.poll_signal("go").await?, None);
            assert_eq!(journal.poll_signal("Go").await?, None);
            DONE()
        })
    })
    .await;
    let other = Stage::of(stage.runtime.clone(), "bob").await;
    other.signal("go", json!(1)).await;
    stage.succeeds("look").await;
    stage.close().await;
}

#[tokio::test]
async fn s7_the_sixty_fifth_signal_of_a_name_is_refused() {
    use longhaul::{Code, NewEvent};
    let stage = Stage::new(|_, _| Box::pin(async { DONE() })).await;
    for n in 0..64 {
        stage.signal("go", json!(n)).await;
    }
    let one = |name: &str| [NewEvent::new("user.signal", json!({"name": name}))];
    let refused = stage.session.submit(&one("go"), Default::default()).await;
    assert_eq!(refused.unwrap_err().code, Code::SignalsFull);
    stage.signal("another", Value::Null).await;
    stage.close().await;
}

#[tokio::test]
async fn s8_a_time_out_is_an_error_is_replayed_and_leaves_nothing() {
    let stage = Stage::new(|attempt, journal| {
        Box::pin(async move {
            let limit = Some(Duration::from_millis(50));
            match journal.wait_for_signal("go", limit).await {
                Err(JournalError::TimedOut { name }) => assert_eq!(name, "go"),
                Err(parked @ JournalError::Parked) => return Err(parked.into()),
                other => panic!("{other:?}"),
            }
            // What comes later is for the next wait.
            let late = journal.wait_for_signal("go", None).await?;
            assert_eq!(late, "late");
            if attempt.claim().attempt == 1 {
                CRASH()
            } else {
                DONE()
            }
        })
    })
    .await;
    let sent = stage.session.send("wait").await.unwrap().events[0].seq;
    let parked = std::cell::Cell::new(0);
    let second = |e: &Value| {
        parked.set(parked.get() + u32::from(e["type"] == "run.parked"));
        parked.get() == 2
    };
    stage.until(sent, second).await;
    stage.signal("go", json!("late")).await;
    assert_eq!(stage.settled(sent).await["outcome"], "succeeded");
    stage.close().await;
}
