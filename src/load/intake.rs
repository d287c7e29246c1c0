//! Message intake: people's messages into sessions whose runs are busy, within the limit of
//! untaken inputs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use longhaul_actors::env::{Clock, SystemClock};
use tokio::task::JoinSet;

use super::drive::padding;
use super::fleet::Fleet;
use super::physical::{histogram, record};
use super::report::{Intake, quantile_ms};
use super::target::Call;
use crate::cli::exit::CliError;

/// Messages of one session: below the documented limit of untaken inputs.
const MESSAGES_MAX: usize = 8_000;

/// Sends messages for `time`, or until every session has enough of them.
pub(crate) async fn measure(
    fleet: &Arc<Fleet>,
    clients: u32,
    event_bytes: usize,
    time: Duration,
) -> Result<Intake, CliError> {
    let stop = Arc::new(AtomicBool::new(false));
    let body = Arc::new(format!(
        r#"{{"events":[{{"type":"user.message","content":{{"text":"{}"}}}}]}}"#,
        padding(event_bytes, 3)
    ));
    let clock = SystemClock::new();
    let each_max = MESSAGES_MAX * fleet.slots.len() / clients as usize;
    let mut senders = JoinSet::new();
    for id in 0..clients as usize {
        let (fleet, stop, body) = (Arc::clone(fleet), Arc::clone(&stop), Arc::clone(&body));
        senders.spawn(async move {
            let mut lane = fleet.target.lane();
            let clock = SystemClock::new();
            let mut times = histogram();
            let mut index = id % fleet.slots.len();
            for _ in 0..each_max {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let Some(slot) = fleet.slots.get(index) else {
                    break;
                };
                let from = clock.mono();
                let answer = lane
                    .call(
                        Call::Send {
                            session: &slot.session,
                        },
                        body.as_bytes(),
                    )
                    .await;
                let answer = answer.map_err(|e| CliError::unreachable("the server", e))?;
                if answer.status != 202 {
                    let problem = serde_json::from_slice(&answer.body).unwrap_or_default();
                    return Err(CliError::of_problem(answer.status, &problem));
                }
                record(&mut times, clock.mono().saturating_sub(from));
                index += clients as usize;
                if index >= fleet.slots.len() {
                    index = id % fleet.slots.len();
                }
            }
            Ok(times)
        });
    }
    let mut all = histogram();
    let mut took = None;
    loop {
        tokio::select! {
            done = senders.join_next() => match done {
                Some(times) => {
                    let times = times.map_err(|e| CliError::failed("load.intake", e.to_string()))??;
                    all.add(&times).map_err(|e| CliError::failed("load.intake", e.to_string()))?;
                }
                None => break,
            },
            () = clock.sleep_until(time), if took.is_none() => {
                took = Some(());
                stop.store(true, Ordering::Relaxed);
            }
        }
    }
    Ok(Intake {
        messages: all.len(),
        messages_per_s: all.len() as f64 / clock.mono().as_secs_f64(),
        p50_ms: quantile_ms(&all, 0.5),
        p99_ms: quantile_ms(&all, 0.99),
    })
}
