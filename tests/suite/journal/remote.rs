//! A journal over HTTP, with a server that is killed on the way.

use std::sync::Arc;
use std::time::Duration;

use longhaul::journal::{
    Begun, Binary, Extra, Journal, JournalError, Step, StepError, StepValue, Verdict,
};
use longhaul::runner::http::{HttpApi, Introduction};
use longhaul::runner::{Attempt, End, Failure, Registry, RunnerConfig, Worker};
use longhaul_actors::env::Door;
use longhaul_actors::session::payload::Usage;
use serde_json::{Value, json};

use super::kit::{CRASH, Count, DONE, Played};
use crate::support::Server;

/// The server forgets nothing soon: it is away for a moment.
const SETTINGS: &[&str] = &["runner.enabled=false", "runs.lease_s=20", "runs.beat_s=1"];

/// A worker whose harness is this function; the profile says `external`.
async fn work<F>(server: &Server, body: F) -> Worker
where
    F: for<'a> Fn(&'a Attempt, Journal) -> longhaul::runner::BoxFuture<'a, Result<End, Failure>>
        + Send
        + Sync
        + 'static,
{
    let introduction = Introduction {
        name: "test".to_owned(),
        host_id: "test".to_owned(),
        capacity: 2,
        snapshot_clone: false,
    };
    let api = HttpApi::new(&server.url(), None, None, introduction).unwrap();
    api.enrol_with(vec!["*".to_owned()]).await.unwrap();
    let mut registry = Registry::built_in();
    registry.add_harness(Arc::new(Played("external", Box::new(body))));
    let config = RunnerConfig::default();
    Worker::start(Arc::new(api), registry, config, Door::system())
}

async fn session(server: &Server) -> String {
    let new = json!({ "name": "test", "release": { "harness": { "kind": "external" } },
        "sandbox": { "provider": "none" } });
    let deployment = crate::support::id(&server.post("/v1/deployments", new).await);
    let session = server.session(&deployment).await;
    server.send(&session, "go").await;
    session
}

async fn settled(server: &Server, session: &str) -> Vec<Value> {
    for _ in 0..600 {
        let log = server.log(session).await;
        if log.iter().any(|e| e["type"] == "run.settled") {
            return log;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never: {:#?}", server.log(session).await);
}

fn of<'a>(log: &'a [Value], kind: &str) -> Vec<&'a Value> {
    log.iter().filter(|e| e["type"] == kind).collect()
}

#[tokio::test]
async fn j9_a_server_killed_under_a_journal_loses_and_doubles_nothing() {
    let mut server = Server::start_with(SETTINGS, &[]).await;
    let runs = Count::default();
    let counted = runs.clone();
    let worker = work(&server, move |_, journal| {
        let runs = counted.clone();
        Box::pin(async move {
            for n in 0..200_u32 {
                let got: u32 = journal.step("s", &n, async || runs.effect(n).await).await?;
                assert_eq!(got, n);
            }
            DONE()
        })
    })
    .await;
    let session = session(&server).await;
    for at in [30, 100] {
        while runs.get() < at {
            tokio::task::yield_now().await;
        }
        server.process.kill9().unwrap();
        server.process.restart().await.unwrap();
    }
    let log = settled(&server, &session).await;
    assert_eq!(
        of(&log, "run.settled")[0]["content"]["outcome"],
        "succeeded"
    );
    assert_eq!(runs.get(), 200);
    assert_eq!(of(&log, "step.started").len(), 200);
    assert_eq!(of(&log, "step.completed").len(), 200);
    worker.stop().await;
}

#[tokio::test]
async fn every_operation_reads_the_same_over_http() {
    let server = Server::start_with(SETTINGS, &[]).await;
    let worker = work(&server, |attempt, journal| {
        let first = attempt.claim().attempt == 1;
        Box::pin(async move {
            let step = Step::named("odd").keyed("k/\u{1f600}").showing_input();
            let odd = vec![Some("\u{0}\u{2028}"), None];
            let got: Vec<Option<String>> = journal
                .step(step, &odd, async || {
                    Ok::<_, StepError>(vec![Some("\u{10ffff}".to_owned()), None])
                })
                .await?;
            assert_eq!(got, [Some("\u{10ffff}".to_owned()), None]);
            let bytes = Binary {
                content_type: "application/zip".to_owned(),
                bytes: vec![0, 255, 128].into(),
            };
            let got: Binary = journal
                .step("bytes", &(), async || Ok::<_, StepError>(bytes.clone()))
                .await?;
            assert_eq!(got, bytes);
            let failed = journal
                .step("fails", &(), async || {
                    Err::<u32, _>(StepError::new("bank.away", "no"))
                })
                .await;
            let Err(JournalError::Failed {
                error, failures: 1, ..
            }) = failed
            else {
                panic!("{failed:?}");
            };
            assert_eq!(error.code, "bank.away");
            if let Begun::Execute(open) = journal.begin("model", &()).await? {
                let usage = Usage {
                    output_tokens: 3,
                    ..Usage::default()
                };
                let extra = Extra {
                    usage: Some((usage, Some("r/m".to_owned()))),
                    events: vec![("agent.message".to_owned(), json!({"text": "said"}))],
                };
                let value = StepValue::Json("null".into());
                let ended = journal.complete(open, value, extra).await?;
                assert_eq!(ended.event_ids.len(), 1);
            }
            match journal.begin("doubtful", &()).await? {
                Begun::Execute(_) if first => return CRASH(),
                Begun::InDoubt {
                    step_id,
                    started_attempt: 1,
                    ..
                } => {
                    let error = StepError::new("test.undone", "it did not happen");
                    journal
                        .resolve(step_id, Verdict::Failed(error.to_run_error()))
                        .await?;
                }
                other => panic!("{other:?}"),
            }
            let diverged = journal.begin(Step::named("bytes").at(0), &1).await;
            assert!(
                matches!(diverged, Err(JournalError::Divergence { .. })),
                "{diverged:?}"
            );
            DONE()
        })
    })
    .await;
    let session = session(&server).await;
    let log = settled(&server, &session).await;
    let end = &of(&log, "run.settled")[0]["content"];
    assert_eq!(end["outcome"], "succeeded", "{end}");
    assert_eq!(of(&log, "agent.message").len(), 1);
    assert_eq!(of(&log, "usage.recorded").len(), 1);
    assert_eq!(end["usage"]["output_tokens"], 3);
    worker.stop().await;
}
