//! What steps cost is counted once.

use longhaul::journal::{Begun, Extra, Journal, JournalError, StepValue};
use longhaul::runner::{Attempt, BoxFuture, Compute, End, Failure};
use longhaul::{Config, NewSession};
use longhaul_actors::session::payload::{Budget, Usage};
use serde_json::json;

use super::kit::{CRASH, DONE, Stage, open};

/// A model call of 10 tokens; whether the budget is spent.
async fn call(journal: &Journal, attempt: &Attempt) -> Result<bool, JournalError> {
    let Begun::Execute(open) = journal.begin("model", "x").await? else {
        return Ok(false);
    };
    let usage = Usage {
        input_tokens: 10,
        ..Usage::default()
    };
    let said = json!({"text": format!("in attempt {}", attempt.claim().attempt)});
    let extra = Extra {
        usage: Some((usage, Some("scripted/one".to_owned()))),
        events: vec![("agent.message".to_owned(), said)],
    };
    let value = StepValue::Json("\"answer\"".into());
    let ended = journal.complete(open, value, extra).await?;
    assert_eq!(ended.event_ids.len(), 1);
    Ok(ended.budget_exceeded)
}

#[tokio::test]
async fn m2_replay_charges_nothing_and_says_nothing_again() {
    let stage = Stage::new(|attempt, journal| {
        Box::pin(async move {
            for _ in 0..3 {
                call(&journal, attempt).await?;
            }
            if attempt.claim().attempt < 3 {
                CRASH()
            } else {
                DONE()
            }
        })
    })
    .await;
    stage.succeeds("go").await;
    assert_eq!(
        stage.session.show().await.unwrap()["usage"]["input_tokens"],
        30
    );
    assert_eq!(stage.of_type("agent.message").await.len(), 3);
    assert_eq!(stage.of_type("usage.recorded").await.len(), 3);
    stage.close().await;
}

/// Three calls; where the budget is spent before, the run waits for it.
fn spend(attempt: &Attempt, journal: Journal) -> BoxFuture<'_, Result<End, Failure>> {
    Box::pin(async move {
        for _ in 0..3 {
            match call(&journal, attempt).await {
                Ok(_) => {}
                Err(JournalError::BudgetExceeded) => {
                    let on = vec![json!({"budget": true})];
                    attempt.park(on, Compute::Released).await?;
                    return Ok(End::Over);
                }
                Err(other) => return Err(other.into()),
            }
        }
        DONE()
    })
}

#[tokio::test]
async fn m3_a_budget_survives_a_restart_and_a_parked_run_goes_on_when_it_is_raised() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::in_folder(folder.path().join("data"));
    let runtime = open(config.clone(), None, spend).await;
    let first = Stage::of(runtime, "ada").await;
    let deployment = first.session.show().await.unwrap()["agent_deployment"].clone();
    let budget = Budget {
        tokens_max: Some(15),
        cost_micros_max: None,
    };
    let new = NewSession::of(serde_json::from_value(deployment).unwrap()).budget(budget);
    let session = first.runtime.start(new).await.unwrap();
    let stage = Stage {
        runtime: first.runtime.clone(),
        session,
    };
    drop(first);
    let id = stage.session.id();
    let sent = stage.session.send("go").await.unwrap().events[0].seq;
    stage.until(sent, |e| e["type"] == "run.parked").await;
    stage.close().await;

    let runtime = open(config, None, spend).await;
    let session = runtime.session(id);
    let stage = Stage { runtime, session };
    assert_eq!(
        stage.session.show().await.unwrap()["usage"]["input_tokens"],
        20
    );
    let more = Budget {
        tokens_max: Some(100),
        cost_micros_max: None,
    };
    stage.session.set_budget(more).await.unwrap();
    assert_eq!(stage.settled(sent).await["outcome"], "succeeded");
    assert_eq!(
        stage.session.show().await.unwrap()["usage"]["input_tokens"],
        30
    );
    stage.close().await;
}
