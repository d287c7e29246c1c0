//! Events of a session over lost connections and restarts of the server: each once, in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use longhaul_actors::ids::SessionId;
use reqwest::Method;

use super::{Events, There, answer, cause};
use crate::agent::handle::{AgentError, AgentEvent};
use crate::sse::{Frame, Parser};

/// A stream without a byte for this long (three heartbeats) is dead.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// Connections in a row that bring nothing.
const FAILURES_MAX: u32 = 10;
/// First and longest wait before connecting again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A follower of one session.
pub(super) struct Following {
    there: Arc<There>,
    session: SessionId,
    cursor: u64,
    connection: Option<Connection>,
    waiting: VecDeque<Frame>,
    failures: u32,
}

struct Connection {
    bytes: BoxStream<'static, reqwest::Result<Bytes>>,
    parser: Parser,
}

/// Why there is nothing more.
enum End {
    Session,
    Error(AgentError),
}

impl Following {
    pub(super) fn start(there: Arc<There>, session: SessionId, after: u64) -> Events {
        let following = Self {
            there,
            session,
            cursor: after,
            connection: None,
            waiting: VecDeque::new(),
            failures: 0,
        };
        let events = stream::unfold(Some(following), |following| async move {
            let mut following = following?;
            let mut ended = following.there.ended.subscribe();
            let next = tokio::select! {
                next = following.next() => next,
                // Without a runner the session may wait for ever.
                why = ended.wait_for(Option::is_some) => Err(End::Error(AgentError::Runner(
                    why.ok().and_then(|w| w.clone()).unwrap_or_default(),
                ))),
            };
            match next {
                Ok(event) => Some((Ok(event), Some(following))),
                Err(End::Session) => None,
                Err(End::Error(error)) => Some((Err(error), None)),
            }
        });
        events.boxed()
    }

    async fn next(&mut self) -> Result<AgentEvent, End> {
        loop {
            while let Some(frame) = self.waiting.pop_front() {
                if let Some(event) = self.frame(&frame)? {
                    self.failures = 0;
                    return Ok(event);
                }
            }
            if let Err(why) = self.more().await? {
                self.connection = None;
                self.failures += 1;
                if self.failures > FAILURES_MAX {
                    return Err(End::Error(AgentError::Unreachable(why)));
                }
                let pause = PAUSE.0 * 2_u32.saturating_pow(self.failures - 1);
                let clock = &self.there.door.clock;
                clock.sleep_until(clock.mono() + pause.min(PAUSE.1)).await;
            }
        }
    }

    /// Reads on; `Err` = the connection is no more.
    async fn more(&mut self) -> Result<Result<(), String>, End> {
        if self.connection.is_none() {
            match connect(&self.there, self.session, self.cursor).await? {
                Ok(connection) => self.connection = Some(connection),
                Err(why) => return Ok(Err(why)),
            }
        }
        let Some(connection) = &mut self.connection else {
            return Ok(Ok(()));
        };
        let clock = &self.there.door.clock;
        let silent = clock.sleep_until(clock.mono() + SILENCE_MAX);
        let piece = tokio::select! {
            piece = connection.bytes.next() => piece,
            () = silent => return Ok(Err("nothing came, not even heartbeats".to_owned())),
        };
        let frames = match piece {
            Some(Ok(piece)) => connection.parser.push(&piece).map_err(|e| e.to_string()),
            Some(Err(error)) => Err(cause(&error)),
            None => Err("the stream ended".to_owned()),
        };
        Ok(frames.map(|frames| self.waiting.extend(frames)))
    }

    fn frame(&mut self, frame: &Frame) -> Result<Option<AgentEvent>, End> {
        let seq = frame.id.as_ref().and_then(|id| id.parse::<u64>().ok());
        match (frame.event.as_str(), seq) {
            ("end", _) => Err(End::Session),
            ("reconnect", _) => {
                self.connection = None;
                Ok(None)
            }
            // A server that repeats itself must not make us do so.
            (_, Some(seq)) if seq > self.cursor => {
                self.cursor = seq;
                let event = serde_json::from_str(&frame.data);
                let why = |e: serde_json::Error| AgentError::Unreachable(e.to_string());
                event.map(Some).map_err(|e| End::Error(why(e)))
            }
            _ => Ok(None),
        }
    }
}

/// A new connection; the inner error = try again.
async fn connect(
    there: &There,
    session: SessionId,
    cursor: u64,
) -> Result<Result<Connection, String>, End> {
    let session = session.to_string();
    let path = ["sessions", session.as_str(), "events", "stream"];
    let query = [("after", cursor.to_string())];
    let request = there.request(Method::GET, &path, &query);
    let response = match request.header("accept", "text/event-stream").send().await {
        Ok(response) => response,
        Err(error) => return Ok(Err(cause(&error))),
    };
    if !response.status().is_success() {
        return match answer(response).await {
            Err((error, false)) => Err(End::Error(error)),
            Err((error, true)) => Ok(Err(error.to_string())),
            Ok(_) => Ok(Err("the answer is no stream".to_owned())),
        };
    }
    Ok(Ok(Connection {
        bytes: response.bytes_stream().boxed(),
        parser: Parser::default(),
    }))
}
