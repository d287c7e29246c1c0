//! Whether a long log is slower than a short one.

use std::time::Instant;

use crate::server::{Claim, Server};
use crate::{Row, quantile};

fn appends(server: &mut Server, claim: &Claim, count: usize) -> f64 {
    let mut times: Vec<f64> = (0..count)
        .map(|_| {
            let start = Instant::now();
            server.append(claim, 1);
            start.elapsed().as_secs_f64() * 1000.0
        })
        .collect();
    quantile(&mut times, 0.5)
}

pub(crate) fn rows() -> Vec<Row> {
    let mut server = Server::start(&["runner.enabled=false"]);
    let claim = server.claimed(1).remove(0);
    let first = appends(&mut server, &claim, 2_000);
    for _ in 0..970 {
        server.append(&claim, 100);
    }
    let last = appends(&mut server, &claim, 2_000);
    let figure = format!(
        "p50 {last:.3} ms; the first {first:.3} ms: {:.2} ×",
        last / first
    );
    vec![Row::new(
        "appending the 100,000th event of a session",
        figure,
        "as fast as the first",
        last < first * 1.2,
    )]
}
