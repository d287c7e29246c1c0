//! Logs and metrics of the process.

use std::io::IsTerminal;
use std::sync::OnceLock;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// Seconds; from a fast append to a slow one.
const LATENCY_BUCKETS: &[f64] = &[
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];

/// The recorder of this process, installed once: several runtimes share it. `None` where the
/// host has installed one of its own, which then gets everything.
pub fn metrics() -> Option<&'static PrometheusHandle> {
    static HANDLE: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    HANDLE
        .get_or_init(|| {
            PrometheusBuilder::new()
                .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), LATENCY_BUCKETS)
                .ok()?
                .install_recorder()
                .ok()
        })
        .as_ref()
}

/// What is logged where `RUST_LOG` says nothing: `info`. But the framework's parser of requests
/// would log whatever garbage a client sends as an error of the server; the client gets a 4xx.
const DEFAULT_FILTER: &str =
    "info,actix_http::h1::decoder=off,actix_http::h1::dispatcher=off,rmcp=warn";

/// Writes logs to standard error, as text or as JSON lines. `RUST_LOG` chooses what (default
/// `info`, without what clients garble). Does nothing where the host has a subscriber already.
pub fn init_logs(json: bool) {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let set = if json {
        logs.json().finish().try_init()
    } else {
        logs.finish().try_init()
    };
    if set.is_err() {
        tracing::debug!("logs go to the host's subscriber");
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn what_a_client_garbles_is_no_error_of_the_server() {
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(DEFAULT_FILTER))
            .with_writer(std::io::sink)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            assert!(!tracing::enabled!(target: "actix_http::h1::decoder", Level::ERROR));
            assert!(!tracing::enabled!(target: "actix_http::h1::dispatcher", Level::ERROR));
            assert!(tracing::enabled!(target: "actix_http::h1::service", Level::ERROR));
            assert!(tracing::enabled!(target: "longhaul", Level::INFO));
            assert!(!tracing::enabled!(target: "longhaul", Level::DEBUG));
        });
    }
}
