//! A provider on this machine, and a clock that does not wait.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, Response, Uri};
use futures_util::StreamExt;
use longhaul_actors::env::{self, Sleep};
use serde_json::Value;
use tokio::sync::watch;

use crate::model::client::ENDING_MAX;

/// How the provider answers one request.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    /// Events, then the proper end of the body.
    Stream(Vec<String>),
    /// Events, then the connection breaks.
    Cut(Vec<String>),
    /// Events, and nothing more for ever.
    Hang(Vec<String>),
    /// A status with headers and a body.
    Status(u16, Vec<(&'static str, &'static str)>, String),
    /// A body of another type.
    Other(&'static str, &'static str),
}

/// What was asked.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    /// The connection.
    pub(super) peer: SocketAddr,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Value,
}

#[derive(Debug, Default)]
struct Script {
    replies: Mutex<VecDeque<Reply>>,
    asked: watch::Sender<Vec<Asked>>,
}

/// The provider. It ends with the test's runtime.
#[derive(Debug)]
pub(super) struct Provider {
    pub(super) url: String,
    script: Arc<Script>,
}

impl Provider {
    pub(super) async fn start() -> Self {
        let script = Arc::<Script>::default();
        let app = axum::Router::new()
            .fallback(answer)
            .layer(axum::extract::DefaultBodyLimit::disable())
            .with_state(script.clone())
            .into_make_service_with_connect_info::<SocketAddr>();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, script }
    }

    /// The next answers, in order. Without one the provider says 500.
    pub(super) fn will(&self, replies: impl IntoIterator<Item = Reply>) {
        self.script.replies.lock().expect("lock").extend(replies);
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.script.asked.borrow().clone()
    }

    /// Waits until it was asked so often.
    pub(super) async fn was_asked(&self, times: usize) {
        let mut asked = self.script.asked.subscribe();
        let reached = asked.wait_for(|asked| asked.len() >= times).await;
        reached.expect("the provider lives");
    }
}

async fn answer(
    State(script): State<Arc<Script>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let asked = Asked {
        peer,
        path: uri.path().to_owned(),
        headers,
        body: serde_json::from_slice(&body).expect("JSON"),
    };
    let next = script.replies.lock().expect("lock").pop_front();
    script.asked.send_modify(|all| all.push(asked));
    let stream = Response::builder().header("content-type", "text/event-stream");
    let ok = |text: String| Ok::<_, Infallible>(text);
    let whole = |events: Vec<String>| futures_util::stream::iter(events).map(ok);
    let response = match next {
        Some(Reply::Stream(events)) => stream.body(Body::from_stream(whole(events))),
        Some(Reply::Cut(events)) => {
            let broken = std::io::Error::other("broken");
            let events = events.into_iter().map(Ok).chain([Err(broken)]);
            stream.body(Body::from_stream(futures_util::stream::iter(events)))
        }
        Some(Reply::Hang(events)) => {
            let events = whole(events).chain(futures_util::stream::pending());
            stream.body(Body::from_stream(events))
        }
        Some(Reply::Status(status, headers, body)) => {
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            response.body(Body::from(body))
        }
        Some(Reply::Other(kind, body)) => Response::builder()
            .header("content-type", kind)
            .body(Body::from(body)),
        None => Response::builder()
            .status(500)
            .body(Body::from("no script")),
    };
    response.expect("a response")
}

/// A clock on which waits between tries are over at once, and are noted; limits (of a whole
/// request, of the end of a body) end when the test moves it.
#[derive(Debug, Clone)]
pub(super) struct Clock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    mono: watch::Sender<Duration>,
    waits: Mutex<Vec<Duration>>,
}

impl Clock {
    /// A wait of so long is not over at once.
    const LONG: Duration = Duration::from_secs(300);

    pub(super) fn new() -> Self {
        Self(Arc::new(Inner {
            mono: watch::Sender::new(Duration::ZERO),
            waits: Mutex::default(),
        }))
    }

    pub(super) fn advance(&self, by: Duration) {
        self.0.mono.send_modify(|now| *now += by);
    }

    /// How many wait for it to be moved.
    pub(super) fn sleepers(&self) -> usize {
        self.0.mono.receiver_count()
    }

    /// The short waits so far.
    pub(super) fn waits(&self) -> Vec<Duration> {
        let waits = self.0.waits.lock();
        waits.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl env::Clock for Clock {
    fn wall_ms(&self) -> i64 {
        1_800_000_000_000
    }

    fn mono(&self) -> Duration {
        *self.0.mono.borrow()
    }

    fn sleep_until(&self, until: Duration) -> Sleep {
        let wait = until.saturating_sub(self.mono());
        if wait < Self::LONG && wait != ENDING_MAX {
            let waits = self.0.waits.lock();
            waits.unwrap_or_else(PoisonError::into_inner).push(wait);
            self.advance(wait);
            return Box::pin(std::future::ready(()));
        }
        let mut now = self.0.mono.subscribe();
        Box::pin(async move {
            let reached = now.wait_for(|now| *now >= until).await;
            reached.map(drop).expect("the clock lives");
        })
    }
}
