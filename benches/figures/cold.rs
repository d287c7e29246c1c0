//! Sessions that no actor holds, and servers that were dead.

use std::time::Instant;

use serde_json::json;

use crate::server::{Claim, Server};
use crate::{Row, quantile};

/// Milliseconds of the first and of the second durable append of each claim after a restart.
fn first_and_second(server: &mut Server, claims: &[Claim]) -> (Vec<f64>, Vec<f64>) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for claim in claims {
        for times in [&mut first, &mut second] {
            let start = Instant::now();
            server.append(claim, 1);
            times.push(start.elapsed().as_secs_f64() * 1000.0);
        }
    }
    (first, second)
}

/// The time a session needs to wake: its first append after a restart, less what an append of a
/// session that is awake takes.
pub(crate) fn wake() -> Vec<Row> {
    let mut rows = Vec::new();
    for (events, sessions, goal_ms, goal) in [
        (10, 400, 2.0, "p99 < 2 ms"),
        (10_000, 40, 5.0, "p99 < 5 ms"),
    ] {
        let mut server = Server::start(&["runner.enabled=false", "runs.lease_s=600"]);
        let claims = server.claimed(sessions);
        for claim in &claims {
            for _ in 0..events / 100 {
                server.append(claim, 100);
            }
            server.append(claim, events % 100 + 1);
        }
        let mut waking = Vec::new();
        for _ in 0..3 {
            server.restart();
            let (first, mut second) = first_and_second(&mut server, &claims);
            let awake = quantile(&mut second, 0.5);
            waking.extend(first.iter().map(|t| (t - awake).max(0.0)));
        }
        let (p50, p99) = (quantile(&mut waking, 0.5), quantile(&mut waking, 0.99));
        let figure = format!("p50 {p50:.2} ms, p99 {p99:.2} ms");
        rows.push(Row::new(
            format!("waking a session of {events} events"),
            figure,
            goal,
            p99 < goal_ms,
        ));
    }
    rows
}

/// From the start of the process to the first durable append.
pub(crate) fn restart() -> Vec<Row> {
    let mut server = Server::start(&["runner.enabled=false", "runs.lease_s=600"]);
    let claims = server.claimed(1_000);
    for claim in &claims {
        server.append(claim, 96);
    }
    let mut times = Vec::new();
    for claim in claims.iter().take(5) {
        let ready = server.restart();
        let start = Instant::now();
        let event = json!({ "type": "user.message", "content": { "text": "x" } });
        let path = format!("/v1/sessions/{}/events", claim.session);
        server.post(&path, &json!({ "events": [event] }));
        times.push((ready + start.elapsed()).as_secs_f64() * 1000.0);
    }
    let median = quantile(&mut times, 0.5);
    vec![Row::new(
        "kill -9, restart with 100,000 events and 1,000 live runs, first durable append",
        format!("{median:.0} ms after the process started"),
        "< 1 s",
        median < 1000.0,
    )]
}
