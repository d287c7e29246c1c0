//! Steps that give many values, one after the other.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use futures_util::future::BoxFuture;
use longhaul_actors::session::step::StepValue;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::core::Core;
use super::{JournalError, OpenStep, StepError};

/// The values of a step that gives many; see [`Journal::stream`](super::Journal::stream).
pub struct Chunks<T, S> {
    state: State<S>,
    values: PhantomData<fn() -> T>,
}

enum State<S> {
    /// What the step of this name gave, as JSON.
    Kept(String, std::vec::IntoIter<Box<RawValue>>),
    Live(Box<Live<S>>),
    /// The end is being recorded.
    Ending(BoxFuture<'static, Result<(), JournalError>>),
    Over,
}

struct Live<S> {
    source: S,
    recorder: Recorder,
}

/// Keeps what came, and says so if nobody takes the rest.
struct Recorder {
    core: Option<Arc<Core>>,
    /// `None` once its end is said.
    open: Option<OpenStep>,
    /// A JSON array without its last bracket.
    json: Vec<u8>,
}

impl<T, S> fmt::Debug for Chunks<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Kept(..) => "kept",
            State::Live(_) => "live",
            State::Ending(_) => "ending",
            State::Over => "over",
        };
        f.debug_struct("Chunks").field("state", &state).finish()
    }
}

impl<T, S> Chunks<T, S> {
    pub(super) fn kept(step: String, values: Vec<Box<RawValue>>) -> Self {
        Self {
            state: State::Kept(step, values.into_iter()),
            values: PhantomData,
        }
    }

    pub(super) fn live(core: Option<Arc<Core>>, open: OpenStep, source: S) -> Self {
        let recorder = Recorder {
            core,
            open: Some(open),
            json: b"[".to_vec(),
        };
        Self {
            state: State::Live(Box::new(Live { source, recorder })),
            values: PhantomData,
        }
    }
}

impl<T, E, S> Stream for Chunks<T, S>
where
    T: Serialize + DeserializeOwned,
    E: Into<StepError>,
    S: Stream<Item = Result<T, E>> + Unpin,
{
    type Item = Result<T, JournalError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            match &mut this.state {
                State::Over => return Poll::Ready(None),
                State::Kept(name, values) => {
                    let value = values.next();
                    return Poll::Ready(value.map(|json| {
                        serde_json::from_str(json.get()).map_err(|e| JournalError::Value {
                            name: name.clone(),
                            reason: format!("a part cannot be read back: {e}"),
                        })
                    }));
                }
                State::Ending(end) => {
                    let ended = ready!(end.as_mut().poll(cx));
                    this.state = State::Over;
                    return Poll::Ready(ended.err().map(Err));
                }
                State::Live(live) => {
                    let next = ready!(Pin::new(&mut live.source).poll_next(cx));
                    let read = match next {
                        None => Err(None),
                        Some(value) => {
                            let kept = value
                                .map_err(Into::into)
                                .and_then(|v| live.recorder.keep(&v));
                            kept.map_err(Some)
                        }
                    };
                    match read {
                        Ok(value) => return Poll::Ready(Some(Ok(value))),
                        Err(error) => this.state = State::Ending(live.recorder.end(error)),
                    }
                }
            }
        }
    }
}

impl Recorder {
    /// Keeps a value, and gives back what a later attempt will get.
    fn keep<T: Serialize + DeserializeOwned>(&mut self, value: &T) -> Result<T, StepError> {
        let invalid = |e: serde_json::Error| StepError::new("journal.value_invalid", e.to_string());
        let at = self.json.len();
        if at > 1 {
            self.json.push(b',');
        }
        let from = self.json.len();
        let read = serde_json::to_writer(&mut self.json, value)
            .and_then(|()| serde_json::from_slice(self.json.get(from..).unwrap_or_default()));
        if read.is_err() {
            self.json.truncate(at);
        }
        read.map_err(invalid)
    }

    fn take(&mut self) -> Bytes {
        let mut json = std::mem::take(&mut self.json);
        json.push(b']');
        json.into()
    }

    /// Says the end: with `error`, it failed.
    fn end(&mut self, error: Option<StepError>) -> BoxFuture<'static, Result<(), JournalError>> {
        let json = self.take();
        let (core, open) = (self.core.clone(), self.open.take());
        Box::pin(async move {
            let Some(open) = open else { return Ok(()) };
            let (step_id, name) = (open.id(), open.name().to_owned());
            let failed = match (core, error) {
                (Some(core), None) => core
                    .complete_or_fail(open, StepValue::Json(json))
                    .await?
                    .map(|f| (f.error, f.failures)),
                (Some(core), Some(error)) => {
                    let (_, failures) = core.fail_with(&open, &error, json).await?;
                    Some((error, failures))
                }
                (None, error) => error.map(|e| (e, 1)),
            };
            match failed {
                None => Ok(()),
                Some((error, failures)) => Err(JournalError::Failed {
                    step_id,
                    name,
                    error,
                    failures,
                }),
            }
        })
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let json = self.take();
        if let (Some(core), Some(open)) = (&self.core, self.open.take()) {
            let error = StepError::new("stream.dropped", "the rest was not taken");
            core.fail_last(&open, &error, json);
        }
    }
}
