//! Following a session's events over lost connections and restarts of the server.
//!
//! The cursor is the position of the last event printed. It is kept over every reconnect, also
//! when a connection brought nothing but heartbeats, so no event is lost or printed twice.

use std::time::Duration;

use futures_util::StreamExt;
use longhaul_actors::env::{Clock, SystemClock};
use reqwest::Method;

use super::args::FollowArgs;
use super::client::{Client, answer, cause};
use super::exit::{CliError, Exit};
use crate::sse::{Frame, Parser};

/// First and longest wait before connecting again.
const BACKOFF_MS: (u64, u64) = (100, 5_000);
/// A stream without a byte for this long (three heartbeats) is dead.
const SILENCE_MAX: Duration = Duration::from_secs(45);

/// One event, as it came.
#[derive(Debug, Clone)]
pub(crate) struct Followed {
    /// Its position.
    pub(crate) seq: u64,
    /// Its type.
    pub(crate) kind: String,
    /// The envelope.
    pub(crate) json: String,
}

/// Why following ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// At a boundary, as asked.
    Boundary,
    /// The session has ended.
    Terminal,
    /// The receiver said stop.
    Stopped,
}

/// What the receiver of an event wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// More.
    Go,
    /// No more.
    Stop,
}

/// A follower of one session.
#[derive(Debug)]
pub(crate) struct Follower<'a> {
    client: &'a Client,
    session: &'a str,
    how: FollowArgs,
    cursor: u64,
    clock: SystemClock,
}

/// How one connection ended.
enum Cut {
    Ended(Ended),
    /// Lost, or closed by the server: connect again.
    Lost(CliError),
    /// The server asks to connect again.
    Reconnect,
}

impl<'a> Follower<'a> {
    /// Follows from `how.after` on.
    pub(crate) fn new(client: &'a Client, session: &'a str, how: FollowArgs) -> Self {
        Self {
            client,
            session,
            cursor: how.after,
            how,
            clock: SystemClock::new(),
        }
    }

    /// Gives every event to `each`, in order, once. `lost` hears of lost connections.
    pub(crate) async fn run(
        &mut self,
        mut each: impl FnMut(&Followed) -> Result<Then, CliError>,
        mut lost: impl FnMut(&CliError, Duration),
    ) -> Result<Ended, CliError> {
        let mut failures = 0;
        loop {
            let before = self.cursor;
            let error = match self.connection(&mut each).await? {
                Cut::Ended(how) => return Ok(how),
                Cut::Reconnect => None,
                Cut::Lost(e) => Some(e),
            };
            if self.cursor > before {
                failures = 0;
            }
            failures += 1;
            let wait = backoff(failures);
            if let Some(e) = error {
                if failures > self.how.retries {
                    return Err(e);
                }
                lost(&e, wait);
            }
            self.clock.sleep_until(self.clock.mono() + wait).await;
        }
    }

    fn path(&self) -> String {
        let mut path = format!(
            "/v1/sessions/{}/events/stream?after={}",
            self.session, self.cursor
        );
        if self.how.until_boundary {
            path.push_str("&until=boundary");
        }
        if !self.how.types.is_empty() {
            path.push_str("&types=");
            path.push_str(&self.how.types.join(","));
        }
        path
    }

    async fn connection(
        &mut self,
        each: &mut impl FnMut(&Followed) -> Result<Then, CliError>,
    ) -> Result<Cut, CliError> {
        let request = self.client.request(Method::GET, &self.path());
        let request = request.header("accept", "text/event-stream");
        let response = match request.send().await {
            Ok(response) => response,
            Err(e) => {
                return Ok(Cut::Lost(CliError::unreachable(
                    self.client.base(),
                    cause(&e),
                )));
            }
        };
        if !response.status().is_success() {
            return match answer(response).await {
                Err(e) if matches!(e.exit, Exit::TryLater | Exit::Unreachable) => Ok(Cut::Lost(e)),
                Err(e) => Err(e),
                Ok(_) => Ok(Cut::Reconnect),
            };
        }
        let mut bytes = response.bytes_stream();
        let mut parser = Parser::default();
        loop {
            let piece = match self.or_silence(bytes.next()).await {
                Some(Some(Ok(piece))) => piece,
                Some(Some(Err(e))) => return Ok(Cut::Lost(self.cut(cause(&e)))),
                Some(None) => return Ok(Cut::Lost(self.cut("the stream ended".into()))),
                None => {
                    return Ok(Cut::Lost(
                        self.cut("nothing came, not even heartbeats".into()),
                    ));
                }
            };
            let frames = match parser.push(&piece) {
                Ok(frames) => frames,
                Err(e) => return Ok(Cut::Lost(self.cut(e.to_string()))),
            };
            for frame in frames {
                if let Some(cut) = self.frame(frame, each)? {
                    return Ok(cut);
                }
            }
        }
    }

    /// The future's value, or `None` when the stream was silent too long.
    async fn or_silence<T>(&self, next: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            value = next => Some(value),
            () = self.clock.sleep_until(self.clock.mono() + SILENCE_MAX) => None,
        }
    }

    fn cut(&self, why: String) -> CliError {
        CliError::unreachable(self.client.base(), why)
    }

    fn frame(
        &mut self,
        frame: Frame,
        each: &mut impl FnMut(&Followed) -> Result<Then, CliError>,
    ) -> Result<Option<Cut>, CliError> {
        match (frame.event.as_str(), frame.id) {
            ("end", _) => Ok(Some(Cut::Ended(Ended::Terminal))),
            ("reconnect", _) => Ok(Some(Cut::Reconnect)),
            (_, Some(id)) => {
                let Ok(seq) = id.parse::<u64>() else {
                    return Ok(None);
                };
                // A server that repeats itself must not make us do so.
                if seq <= self.cursor {
                    return Ok(None);
                }
                self.cursor = seq;
                let boundary = is_boundary(&frame.data);
                let event = Followed {
                    seq,
                    kind: frame.event,
                    json: frame.data,
                };
                if each(&event)? == Then::Stop {
                    return Ok(Some(Cut::Ended(Ended::Stopped)));
                }
                let done = self.how.until_boundary && boundary;
                Ok(done.then_some(Cut::Ended(Ended::Boundary)))
            }
            _ => Ok(None),
        }
    }
}

fn is_boundary(envelope: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Boundary {
        #[serde(default)]
        boundary: bool,
    }
    serde_json::from_str::<Boundary>(envelope).is_ok_and(|e| e.boundary)
}

fn backoff(failures: u32) -> Duration {
    let (min, max) = BACKOFF_MS;
    Duration::from_millis(
        min.saturating_mul(1 << failures.saturating_sub(1).min(10))
            .min(max),
    )
}
