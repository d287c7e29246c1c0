//! Asking a provider, again and again within one limit of time.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use longhaul_actors::env::Door;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use reqwest::{Response, StatusCode, Url};
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::key::Key;
use super::retry;
use super::wire::{Fault, Wire};
use super::{Model, ModelAnswer, ModelError, ModelRequest};
use crate::config::ModelsConfig;
use crate::sse::Parser;

/// How long the end of a body is waited for once the answer is whole: a connection that has seen
/// its end is used again.
pub(super) const ENDING_MAX: Duration = Duration::from_millis(200);
/// Most bytes of one stream: thoughts and wrapping count, too.
const STREAM_BYTES_MAX: usize = 64 << 20;
/// Bytes that are read of a refusal.
const REFUSAL_BYTES_MAX: usize = 64 << 10;
/// Characters of a provider's words that an error repeats.
const WORDS_MAX: usize = 500;
/// Requests that may wait for their turn.
const WAITING_MAX: usize = 10_000;

/// What all models have in common.
#[derive(Debug)]
pub(super) struct Shared {
    door: Door,
    request_max: Duration,
    retries_max: u32,
    running: Semaphore,
    waiting: Semaphore,
}

impl Shared {
    pub(super) fn new(config: &ModelsConfig, door: Door) -> Self {
        Self {
            door,
            request_max: Duration::from_secs(config.request_s_max),
            retries_max: config.retries_max,
            running: Semaphore::new(config.concurrency_max),
            waiting: Semaphore::new(WAITING_MAX),
        }
    }

    /// The right to one request; in the order of asking.
    async fn turn(&self) -> Result<SemaphorePermit<'_>, Trouble> {
        let _place = self
            .waiting
            .try_acquire()
            .map_err(|_| Trouble::again("too many requests wait for their turn"))?;
        let turn = self.running.acquire().await;
        turn.map_err(|_| Trouble::again("the routes are closed"))
    }
}

/// A model of a provider.
#[derive(Debug)]
pub(super) struct RemoteModel {
    pub(super) name: String,
    pub(super) model: String,
    pub(super) wire: Wire,
    pub(super) url: Url,
    pub(super) http: reqwest::Client,
    pub(super) key: Key,
    pub(super) shared: Arc<Shared>,
}

/// Why one try gave nothing.
enum Trouble {
    /// It may pass.
    Again {
        message: String,
        asked: Option<Duration>,
    },
    /// It will not.
    Final(ModelError),
}

impl Trouble {
    fn again(message: impl Into<String>) -> Self {
        Self::Again {
            message: message.into(),
            asked: None,
        }
    }
}

impl Model for RemoteModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn respond<'a>(
        &'a self,
        request: &'a ModelRequest,
        deltas: &'a mut (dyn FnMut(&str) + Send),
    ) -> BoxFuture<'a, Result<ModelAnswer, ModelError>> {
        self.tries(request, deltas).boxed()
    }
}

impl RemoteModel {
    async fn tries(
        &self,
        request: &ModelRequest,
        deltas: &mut (dyn FnMut(&str) + Send),
    ) -> Result<ModelAnswer, ModelError> {
        let clock = &self.shared.door.clock;
        let deadline = clock.mono().saturating_add(self.shared.request_max);
        let body = Bytes::from(self.wire.body(&self.model, request).to_string());
        let mut tries = 0;
        let mut spoken = false;
        loop {
            tries += 1;
            // Listeners hear one try only: another may use other words.
            let heard = spoken;
            let mut speak = |text: &str| {
                if !heard {
                    spoken = true;
                    deltas(text);
                }
            };
            let trouble = tokio::select! {
                biased;
                answer = self.once(&body, &mut speak) => match answer {
                    Ok(answer) => return Ok(answer),
                    Err(trouble) => trouble,
                },
                () = clock.sleep_until(deadline) => {
                    let limit = self.shared.request_max.as_secs();
                    let message = format!("no answer within {limit} s");
                    return Err(ModelError::Unavailable { tries, message, retry_after: None });
                }
            };
            let (message, asked) = match trouble {
                Trouble::Final(error) => return Err(error),
                Trouble::Again { message, asked } => (message, asked),
            };
            let wait = retry::wait(tries, asked, self.shared.door.ids.secret());
            let next = clock.mono().saturating_add(wait);
            if tries > self.shared.retries_max || next >= deadline {
                return Err(ModelError::Unavailable {
                    tries,
                    message,
                    retry_after: asked,
                });
            }
            let wait_ms = wait.as_millis();
            tracing::warn!(model = %self.name, tries, wait_ms, %message, "a model is asked again");
            clock.sleep_until(next).await;
        }
    }

    async fn once(
        &self,
        body: &Bytes,
        deltas: &mut (dyn FnMut(&str) + Send),
    ) -> Result<ModelAnswer, Trouble> {
        let _turn = self.shared.turn().await?;
        let credential = self.wire.credential(self.key.reveal());
        let credential = HeaderValue::from_str(&credential).map_err(|_| {
            let text = "the key does not fit into a header".to_owned();
            Trouble::Final(ModelError::NotConfigured(text))
        })?;
        let request = self
            .http
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "text/event-stream")
            .body(body.clone());
        let sent = self.wire.headers(request, credential).send().await;
        let response = sent.map_err(|e| Trouble::again(cause(e)))?;
        if response.status().is_success() {
            self.read(response, deltas).await
        } else {
            Err(self.refusal(response).await)
        }
    }

    async fn read(
        &self,
        response: Response,
        deltas: &mut (dyn FnMut(&str) + Send),
    ) -> Result<ModelAnswer, Trouble> {
        let kind = response.headers().get(CONTENT_TYPE);
        let kind = kind.map(|k| String::from_utf8_lossy(k.as_bytes()).into_owned());
        if kind.is_some_and(|k| !k.trim_start().starts_with("text/event-stream")) {
            return Err(nonsense("an answer that is no stream of events"));
        }
        let mut parser = Parser::default();
        let mut reader = self.wire.reader();
        let mut pieces = response.bytes_stream();
        let mut bytes = 0_usize;
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|e| Trouble::again(cause(e)))?;
            bytes = bytes.saturating_add(piece.len());
            if bytes > STREAM_BYTES_MAX {
                return Err(nonsense("a stream without an end"));
            }
            let frames = parser.push(&piece).map_err(|e| nonsense(&e.to_string()))?;
            for frame in frames.iter().filter(|f| !f.data.is_empty()) {
                let taken = reader.take(frame, deltas);
                taken.map_err(|fault| self.trouble(fault))?;
                if reader.is_over() {
                    let clock = &self.shared.door.clock;
                    let until = clock.mono().saturating_add(ENDING_MAX);
                    tokio::select! {
                        biased;
                        _ = pieces.next() => {}
                        () = clock.sleep_until(until) => {}
                    }
                    let answer = reader.answer(&self.model);
                    return answer.map_err(|fault| self.trouble(fault));
                }
            }
        }
        let answer = reader.answer(&self.model);
        answer.map_err(|fault| self.trouble(fault))
    }

    fn trouble(&self, fault: Fault) -> Trouble {
        match fault {
            Fault::Cut => Trouble::again("the answer was cut short"),
            Fault::Failed(words) => Trouble::again(self.words(&words)),
            Fault::Nonsense(what) => Trouble::Final(ModelError::Nonsense(self.words(&what))),
            Fault::Refused(words) => Trouble::Final(ModelError::Refused {
                status: StatusCode::BAD_REQUEST.as_u16(),
                message: self.words(&words),
            }),
        }
    }

    /// What a status other than success means.
    async fn refusal(&self, response: Response) -> Trouble {
        let status = response.status();
        let wall_ms = self.shared.door.clock.wall_ms();
        let asked = retry::asked(response.headers(), wall_ms);
        let mut body = Vec::new();
        let mut pieces = response.bytes_stream();
        while let Some(Ok(piece)) = pieces.next().await {
            body.extend_from_slice(&piece);
            if body.len() > REFUSAL_BYTES_MAX {
                break;
            }
        }
        let error: Value = serde_json::from_slice(&body).unwrap_or_default();
        let message = ["/error/message", "/error", "/message"]
            .iter()
            .find_map(|at| error.pointer(at).and_then(Value::as_str))
            .map_or_else(
                || String::from_utf8_lossy(&body).into_owned(),
                str::to_owned,
            );
        let message = self.words(&message);
        // An account without money is not an overload that passes.
        let spent = error.pointer("/error/code").and_then(Value::as_str);
        if retry::passes(status) && spent != Some("insufficient_quota") {
            let message = format!("status {}: {message}", status.as_u16());
            return Trouble::Again { message, asked };
        }
        Trouble::Final(ModelError::Refused {
            status: status.as_u16(),
            message,
        })
    }

    /// A provider's words, short and without the key.
    fn words(&self, words: &str) -> String {
        let clean = self.key.redact(words.trim());
        let visible = |c: char| if c.is_control() { ' ' } else { c };
        match clean.chars().count() {
            0 => "no reason given".to_owned(),
            n if n <= WORDS_MAX => clean.chars().map(visible).collect(),
            _ => {
                let mut short: String = clean.chars().map(visible).take(WORDS_MAX).collect();
                short.push('…');
                short
            }
        }
    }
}

fn nonsense(what: &str) -> Trouble {
    Trouble::Final(ModelError::Nonsense(what.to_owned()))
}

/// What went wrong with a connection, and why; without the address.
fn cause(e: reqwest::Error) -> String {
    let e = e.without_url();
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(inner) = source {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = inner.source();
    }
    text
}
