//! What a step gives is what every later attempt gets.

use std::collections::BTreeMap;

use longhaul::journal::{Binary, Journal, JournalError, OnFailure, Step, StepError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::kit::{CRASH, Count, DONE, Stage};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Sort {
    Unit,
    Pair(i64, String),
    Named { odd: Option<u8>, list: Vec<f64> },
}

/// Runs a step with this value in two attempts: both get the same.
async fn twice<T>(journal: &Journal, runs: &Count, value: T) -> Result<T, JournalError>
where
    T: longhaul::journal::JournalValue + Clone + PartialEq + std::fmt::Debug,
{
    let got: T = journal
        .step("v", "x", async || runs.effect(value.clone()).await)
        .await?;
    assert_eq!(got, value);
    Ok(got)
}

#[tokio::test]
async fn j17_j18_values_of_every_kind_come_back_and_none_is_code() {
    let runs = Count::default();
    let counted = runs.clone();
    let stage = Stage::new(move |attempt, journal| {
        let (runs, last) = (counted.clone(), attempt.claim().attempt);
        Box::pin(async move {
            let (j, r) = (&journal, &runs);
            twice(j, r, ()).await?;
            twice(j, r, Option::<u32>::None).await?;
            twice(j, r, (u64::MAX, i64::MIN, true)).await?;
            twice(j, r, vec![0.1_f64, 1e300, -0.0, 5e-324, 1.0 / 3.0]).await?;
            twice(
                j,
                r,
                "\u{0}\u{1f600}\u{202e}é\u{10ffff}\"\\\n\u{2028}".to_owned(),
            )
            .await?;
            twice(
                j,
                r,
                "__import__('os').system('true') {{input}} $(true)".to_owned(),
            )
            .await?;
            twice(j, r, "ü".repeat(400_000)).await?;
            let sorts = vec![
                Sort::Unit,
                Sort::Pair(-1, "x".to_owned()),
                Sort::Named {
                    odd: None,
                    list: vec![2.5],
                },
            ];
            twice(j, r, sorts).await?;
            let map: BTreeMap<String, Value> = [
                ("".to_owned(), Value::Null),
                ("a/~b".to_owned(), json!({"$": [1, "2"]})),
            ]
            .into();
            twice(j, r, map).await?;
            let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
            let content_type = "image/png".to_owned();
            twice(
                j,
                r,
                Binary {
                    content_type,
                    bytes: bytes.into(),
                },
            )
            .await?;
            if last < 3 { CRASH() } else { DONE() }
        })
    })
    .await;
    stage.succeeds("go").await;
    assert_eq!(runs.get(), 10);
    stage.close().await;
}

#[tokio::test]
async fn what_cannot_be_kept_fails_its_step_the_first_time_already() {
    let stage = Stage::new(|attempt, journal| {
        Box::pin(async move {
            let huge = "x".repeat(2 << 20);
            let got = journal
                .step("huge", "x", async || Ok::<_, StepError>(huge.clone()))
                .await;
            let Err(JournalError::Failed {
                error, failures: 1, ..
            }) = got
            else {
                panic!("{:?}", got.map(|g| g.len()));
            };
            assert_eq!(error.code, "journal.value_too_large");
            // No number in JSON: it would not come back.
            let got = journal
                .step("nan", "x", async || Ok::<_, StepError>(f64::NAN))
                .await;
            let Err(JournalError::Failed {
                error, failures: 1, ..
            }) = got
            else {
                panic!("{got:?}");
            };
            assert_eq!(error.code, "journal.value_invalid");
            let name = "n".repeat(257);
            let got = journal
                .step(name, "x", async || Ok::<_, StepError>(1))
                .await;
            assert!(matches!(got, Err(JournalError::Invalid(_))), "{got:?}");
            if attempt.claim().attempt == 1 {
                CRASH()
            } else {
                DONE()
            }
        })
    })
    .await;
    stage.succeeds("go").await;
    assert_eq!(stage.of_type("step.failed").await.len(), 2);
    stage.close().await;
}

#[tokio::test]
async fn j8_streams_replay_whole_or_not_at_all() {
    use futures_util::{StreamExt, stream};
    let runs = Count::default();
    let counted = runs.clone();
    let stage = Stage::new(move |attempt, journal| {
        let (runs, last) = (counted.clone(), attempt.claim().attempt);
        Box::pin(async move {
            let source = || {
                runs.up();
                stream::iter((0..50_u32).map(|n| Ok::<_, StepError>(format!("part {n}"))))
            };
            let parts = journal.stream("whole", "x", source).await?;
            let parts: Result<Vec<String>, _> =
                parts.collect::<Vec<_>>().await.into_iter().collect();
            assert_eq!(parts?.last().unwrap(), "part 49");
            let step = Step::named("cut").on_failure(OnFailure::Retry);
            let mut parts = journal.stream(step, "x", source).await?;
            if last == 1 {
                assert_eq!(parts.next().await.unwrap()?, "part 0");
                drop(parts);
                return CRASH();
            }
            assert_eq!(parts.count().await, 50);
            DONE()
        })
    })
    .await;
    stage.succeeds("go").await;
    assert_eq!(
        runs.get(),
        3,
        "the whole one was not asked of its source again"
    );
    let failed = stage.of_type("step.failed").await;
    assert_eq!(failed.len(), 1);
    assert_eq!(
        (&failed[0]["partial"], &failed[0]["error"]["code"]),
        (&json!(["part 0"]), &json!("stream.dropped"))
    );
    stage.close().await;
}
