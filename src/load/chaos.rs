//! Killing the server while it is driven.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use longhaul_actors::env::{Clock, SystemClock};

use super::server::ServerProcess;
use crate::cli::exit::CliError;
use crate::cli::output::Progress;

/// Kills the server with -9 every `every` and starts it again, until `stop`. Gives it back
/// running, and how often it was killed.
pub(crate) async fn kill_again_and_again(
    mut server: ServerProcess,
    every: Duration,
    stop: Arc<AtomicBool>,
    bar: Progress,
) -> Result<(ServerProcess, u64), CliError> {
    const LOOK_EVERY: Duration = Duration::from_millis(20);
    let clock = SystemClock::new();
    let mut next = clock.mono() + every;
    let mut kills = 0;
    while !stop.load(Ordering::SeqCst) {
        if clock.mono() >= next {
            server.kill9()?;
            let killed = clock.mono();
            server.restart().await?;
            kills += 1;
            let away = clock.mono().saturating_sub(killed).as_millis();
            bar.say(format!(
                "kill -9 number {kills}: the server was back after {away} ms"
            ));
            next = clock.mono() + every;
        } else if server.ended()?.is_some() {
            let detail = format!(
                "the server ended by itself; its log ends in:\n{}",
                server.log()
            );
            return Err(CliError::failed("load.server", detail));
        }
        clock.sleep_until(clock.mono() + LOOK_EVERY).await;
    }
    Ok((server, kills))
}
