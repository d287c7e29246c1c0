//! Resident memory of a server.

use crate::Row;
use crate::server::Server;

pub(crate) fn rows() -> Vec<Row> {
    let idle = Server::start(&[]).resident_mb();
    let mut server = Server::start(&["runner.enabled=false", "runs.lease_s=600"]);
    let claims = server.claimed(10_000);
    for claim in &claims {
        server.append(claim, 1);
    }
    let live = server.resident_mb();
    // The same sessions at rest: nothing holds them but the disk.
    server.restart();
    let rest = server.resident_mb();
    vec![
        Row::new(
            "memory, idle",
            format!("{idle:.0} MB"),
            "< 60 MB",
            idle < 60.0,
        ),
        Row::new(
            "memory, 10,000 live sessions",
            format!("{live:.0} MB"),
            "< 300 MB",
            live < 300.0,
        ),
        Row::new(
            "memory, just restarted with them",
            format!("{rest:.0} MB"),
            "-",
            true,
        ),
    ]
}
