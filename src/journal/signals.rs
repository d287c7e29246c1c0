//! Signals as steps: what a wait got is recorded, so it gets the same when it is replayed.

use std::time::Duration;

use longhaul_actors::ids::EventId;
use longhaul_actors::session::step::{OnDoubt, StepValue};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::core::Core;
use super::replay::Came;
use super::{Begun, Extra, Journal, JournalError, OpenStep, Step, StepError};
use crate::runner::history::text_at;

const WAIT: &str = "signal:";
const POLL: &str = "signal?:";

/// What a wait got, as it is recorded.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Got {
    /// The signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signal_id: Option<EventId>,
    /// What it carries.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    payload: Value,
    /// The event that says that it did not come in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expired_by: Option<EventId>,
}

/// Whether a step of this name waits for a signal, or looks for one.
pub(super) fn is_wait(step: &str) -> bool {
    step.starts_with(WAIT) || step.starts_with(POLL)
}

/// The events that are part of such a step's result.
pub(super) fn used_by(value: &StepValue) -> impl Iterator<Item = EventId> {
    let got: Option<Got> = match value {
        StepValue::Json(json) => serde_json::from_slice(json).ok(),
        StepValue::Bytes { .. } => None,
    };
    let got = got.unwrap_or_default();
    got.signal_id.into_iter().chain(got.expired_by)
}

pub(super) async fn wait(
    journal: &Journal,
    core: &Core,
    name: &str,
    time_limit: Option<Duration>,
) -> Result<Value, JournalError> {
    let step = Step::named(format!("{WAIT}{name}")).on_doubt(OnDoubt::Retry);
    let got = match begin(journal, step).await? {
        Begin::Known(got) => got,
        Begin::New(open) => {
            let got = match core.replay.came(name, Some(open.id())).await? {
                Some(came) => came.into(),
                None => park(core, name, time_limit).await?,
            };
            record(core, open, &got).await?;
            got
        }
    };
    match got.signal_id {
        Some(_) => Ok(got.payload),
        None => Err(JournalError::TimedOut {
            name: name.to_owned(),
        }),
    }
}

pub(super) async fn poll(
    journal: &Journal,
    core: &Core,
    name: &str,
) -> Result<Option<Value>, JournalError> {
    let step = Step::named(format!("{POLL}{name}")).on_doubt(OnDoubt::Retry);
    let got = match begin(journal, step).await? {
        Begin::Known(got) => got,
        Begin::New(open) => {
            let got = match core.replay.came(name, None).await? {
                Some(came) => came.into(),
                None => {
                    let body = Map::from_iter([("signal".to_owned(), json!(name))]);
                    let answer = core.call("inputs", body).await?;
                    signal_in(&answer.body).map(Got::of).unwrap_or_default()
                }
            };
            record(core, open, &got).await?;
            got
        }
    };
    Ok(got.signal_id.map(|_| got.payload))
}

enum Begin {
    Known(Got),
    New(OpenStep),
}

async fn begin(journal: &Journal, step: Step) -> Result<Begin, JournalError> {
    let name = step.name.clone();
    match journal.begin(step, &()).await? {
        Begun::Execute(open) => Ok(Begin::New(open)),
        Begun::Completed {
            value: StepValue::Json(json),
            ..
        } => {
            let got = serde_json::from_slice(&json);
            got.map(Begin::Known).map_err(|e| JournalError::Value {
                name,
                reason: format!("is no record of a signal: {e}"),
            })
        }
        Begun::Completed { .. } => Err(JournalError::Value {
            name,
            reason: "is no record of a signal".to_owned(),
        }),
        Begun::Failed {
            step_id,
            error,
            failures,
        } => Err(JournalError::Failed {
            step_id,
            name,
            error,
            failures,
        }),
        // It is begun with the policy to run it again.
        Begun::InDoubt { step_id, .. } => Err(JournalError::Failed {
            step_id,
            name,
            error: StepError::new("journal.in_doubt", "a wait was left in doubt"),
            failures: 0,
        }),
    }
}

async fn park(core: &Core, name: &str, time_limit: Option<Duration>) -> Result<Got, JournalError> {
    let mut on = json!({"signal": name});
    if let (Some(on), Some(limit)) = (on.as_object_mut(), time_limit) {
        let ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        on.insert("timeout_ms".to_owned(), ms.into());
    }
    let body = Map::from_iter([
        ("waiting_on".to_owned(), json!([on])),
        ("compute".to_owned(), json!("released")),
    ]);
    let answer = core.call("park", body).await?;
    let signal = signal_in(&answer.body);
    signal.map(Got::of).ok_or(JournalError::Parked)
}

fn signal_in(body: &Value) -> Option<&Value> {
    let inputs = body.get("inputs")?.as_array()?;
    inputs
        .iter()
        .find(|i| text_at(i, "type") == Some("user.signal"))
}

async fn record(core: &Core, open: OpenStep, got: &Got) -> Result<(), JournalError> {
    let json = serde_json::to_vec(got).map_err(|e| JournalError::Value {
        name: open.name().to_owned(),
        reason: e.to_string(),
    })?;
    let value = StepValue::Json(json.into());
    core.complete(open, value, Extra::default()).await.map(drop)
}

impl Got {
    fn of(envelope: &Value) -> Self {
        let id = text_at(envelope, "id").and_then(|id| EventId::parse(id).ok());
        let payload = envelope.pointer("/content/payload").cloned();
        Self {
            signal_id: id,
            payload: payload.unwrap_or_default(),
            expired_by: None,
        }
    }
}

impl From<Came> for Got {
    fn from(came: Came) -> Self {
        match came {
            Came::Signal(envelope) => Self::of(&envelope),
            Came::TooLate(id) => Self {
                expired_by: Some(id),
                ..Self::default()
            },
        }
    }
}
