//! The HTTP server.

mod body;
mod claims;
mod clones;
mod context;
mod deployments;
mod events;
mod forks;
mod gate;
mod guarded;
mod openapi;
mod operations;
mod params;
mod problem;
mod prune;
mod resume;
mod routes;
mod runners;
mod runtimes;
mod sessions;
mod state;
mod stream;
mod transcript;
mod workspaces;

use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::time::Duration;

use actix_web::dev::Service;
use actix_web::{App, HttpServer, web};

use longhaul_actors::engine::Health;

use crate::error::{Code, Error};
use crate::runtime::Runtime;

pub use openapi::document;
pub use routes::{ROUTES, Route};
use state::Api;

/// How often the parts of the runtime are looked at.
const HEALTH_EVERY: Duration = Duration::from_secs(1);

/// Why serving ended badly.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be used.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// The configured address.
        addr: std::net::SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The server failed.
    #[error("the HTTP server failed: {0}")]
    Io(#[from] io::Error),
    /// A part of the runtime died; the process should end.
    #[error("the runtime failed: {0}")]
    Runtime(Error),
}

/// Binds the configured address. A port of 0 lets the system choose one.
///
/// # Errors
/// The address cannot be used.
pub fn bind(runtime: &Runtime) -> Result<TcpListener, ServeError> {
    let addr = runtime.config().http.listen;
    TcpListener::bind(addr).map_err(|source| ServeError::Listen { addr, source })
}

/// Serves until `shutdown` resolves, the runtime is stopped, or a part of it dies. Then nothing
/// new is taken, streams end with `event: reconnect`, and requests in progress get
/// `http.drain_s_max`. The runtime itself is left open: close it next. Needs a tokio context.
///
/// # Errors
/// See [`ServeError`].
pub async fn serve(
    runtime: Runtime,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let config = runtime.config().http.clone();
    let seconds = Duration::from_secs;
    let api = web::Data::new(Api::new(runtime.clone()));
    let stalled = seconds(config.stalled_write_s_max);
    let app = move || {
        App::new()
            .app_data(api.clone())
            .wrap_fn(|req, srv| {
                let (id, admitted) = gate::admit(&req);
                let next = match admitted {
                    Ok(()) => gate::Next::Serve(srv.call(req)),
                    Err(refused) => gate::Next::Refuse(req, refused),
                };
                gate::answer(id, next)
            })
            .configure(routes::register)
    };
    let workers = config.workers;
    let server = HttpServer::new(app)
        .workers(workers)
        .max_connections(config.connections_max.div_ceil(workers))
        .backlog(4_096)
        .keep_alive(seconds(config.keep_alive_s))
        .client_request_timeout(seconds(config.request_s_max))
        .client_disconnect_timeout(seconds(1))
        .h1_allow_half_closed(false)
        .tcp_nodelay(true)
        .shutdown_timeout(config.drain_s_max)
        .disable_signals()
        .on_connect(move |connection, _| gate::cut_off_stalled(connection, stalled))
        .listen(listener)?
        .run();
    let handle = server.handle();
    let mut running = std::pin::pin!(server);
    let failed = watch_health(&runtime);
    let ended = tokio::select! {
        ended = &mut running => return Ok(ended?),
        () = shutdown => Ok(()),
        () = runtime.stopping() => Ok(()),
        reason = failed => Err(ServeError::Runtime(reason)),
    };
    runtime.stop();
    let (_, stopped) = tokio::join!(handle.stop(true), running);
    stopped?;
    ended
}

/// Resolves when a part of the runtime has died: nothing mends that but another process.
async fn watch_health(runtime: &Runtime) -> Error {
    let clock = &runtime.door().clock;
    loop {
        if let Health::Failed { reason } = runtime.engine().health() {
            return Error::new(Code::Stopped, reason);
        }
        clock
            .sleep_until(clock.mono().saturating_add(HEALTH_EVERY))
            .await;
    }
}
