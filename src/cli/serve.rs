//! `longhaul serve`.

use std::net::{SocketAddr, ToSocketAddrs};

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::args::ServeArgs;
use super::exit::{CliError, Exit};
use super::output::Output;
use crate::api::{self, ServeError};
use crate::config::{Config, Sources};
use crate::runtime::Runtime;
use crate::telemetry;

/// Serves until it is told to stop.
pub(crate) async fn run(args: ServeArgs, out: Output) -> Result<(), CliError> {
    telemetry::init_logs(out.is_json());
    let config = config(&args)?;
    let stop = stop_signal()?;
    let runtime = Runtime::open(config).await?;
    let served = serve(&runtime, &args, stop, out).await;
    runtime.close().await;
    served
}

async fn serve(
    runtime: &Runtime,
    args: &ServeArgs,
    stop: impl Future<Output = ()>,
    out: Output,
) -> Result<(), CliError> {
    let listener = api::bind(runtime)?;
    let address = listener.local_addr().map_err(ServeError::from)?;
    let shown = format!(
        "listening on http://{address}, data in {}",
        args.data.display()
    );
    let value = json!({ "listening": format!("http://{address}"), "data": args.data });
    // Nobody may be reading; the server serves all the same.
    let _ = out.result(shown, &value);
    api::serve(runtime.clone(), listener, stop).await?;
    Ok(())
}

/// Defaults, file, environment, `--set`, then the options of their own.
fn config(args: &ServeArgs) -> Result<Config, CliError> {
    let env = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let sources = Sources {
        file: args.config.clone(),
        env: env.collect(),
        set: args.set.clone(),
    };
    let mut config = sources.load()?;
    config.storage.data_dir.clone_from(&args.data);
    config.http.listen = address(&args.listen)?;
    config.runs.paused |= args.paused;
    Ok(config)
}

fn address(text: &str) -> Result<SocketAddr, CliError> {
    let found = text.to_socket_addrs().ok().and_then(|mut all| all.next());
    found.ok_or_else(|| {
        CliError::usage(format!("--listen {text:?} is no HOST:PORT of this machine"))
    })
}

/// Resolves at SIGTERM or Ctrl-C.
pub(crate) fn stop_signal() -> Result<impl Future<Output = ()>, CliError> {
    let failed = |e: std::io::Error| CliError::failed("cli.signal", e.to_string());
    let mut term = signal(SignalKind::terminate()).map_err(failed)?;
    let mut int = signal(SignalKind::interrupt()).map_err(failed)?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}

impl From<ServeError> for CliError {
    fn from(e: ServeError) -> Self {
        match e {
            ServeError::Listen { .. } => Self::new(
                Exit::AddressInUse,
                "serve.address",
                e.to_string(),
                "Stop what listens there, or choose another address with --listen.",
            ),
            ServeError::Io(e) => Self::failed("serve.io", e.to_string()),
            ServeError::Runtime(r) => r.into(),
        }
    }
}
