//! The API of a host program: sessions as handles, their events as a stream.

mod forks;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::engine::{Answer, EventPage, EventQuery, TranscriptPage, TranscriptQuery};
use longhaul_actors::feed::follower::Follow as Followed;
use longhaul_actors::ids::{DeploymentId, EventId, SessionId};
use longhaul_actors::session::command::Input;
use longhaul_actors::session::event::EventType;
use longhaul_actors::session::input::{Origin, RawEvent, check_json, parse_events};
use longhaul_actors::session::payload::Budget;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::auth::Caller;
use crate::error::Error;
use crate::runtime::{Asked, CreateSession, Runtime, Submission, receipt_key};

pub use forks::ForkOptions;

/// A deployment as made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Deployment {
    /// Its id.
    pub id: DeploymentId,
    /// Its newest revision.
    pub revision: u32,
}

/// An event to submit.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// `user.message`, `user.interrupt`…
    pub kind: String,
    /// A JSON object.
    pub content: Value,
}

impl NewEvent {
    /// An event of any type that people may write.
    pub fn new(kind: impl Into<String>, content: Value) -> Self {
        Self {
            kind: kind.into(),
            content,
        }
    }

    /// A message.
    pub fn message(text: impl Into<String>) -> Self {
        Self::new("user.message", json!({ "text": text.into() }))
    }

    /// Ends the current turn.
    pub fn interrupt() -> Self {
        Self::new("user.interrupt", json!({}))
    }
}

/// A session to start.
#[derive(Debug, Clone)]
pub struct NewSession {
    deployment: DeploymentId,
    revision: Option<u32>,
    principal: Option<String>,
    metadata: Map<String, Value>,
    budget: Option<Budget>,
    events: Vec<NewEvent>,
    idempotency_key: Option<String>,
}

impl NewSession {
    /// Of the newest revision of a deployment.
    pub fn of(deployment: DeploymentId) -> Self {
        Self {
            deployment,
            revision: None,
            principal: None,
            metadata: Map::new(),
            budget: None,
            events: Vec::new(),
            idempotency_key: None,
        }
    }

    /// Of this revision.
    #[must_use]
    pub fn revision(mut self, revision: u32) -> Self {
        self.revision = Some(revision);
        self
    }

    /// Acts as this principal instead of the caller.
    #[must_use]
    pub fn principal(mut self, principal: impl Into<String>) -> Self {
        self.principal = Some(principal.into());
        self
    }

    /// Adds a pair (a JSON scalar).
    #[must_use]
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// What it may spend.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Adds a first event.
    #[must_use]
    pub fn event(mut self, event: NewEvent) -> Self {
        self.events.push(event);
        self
    }

    /// Starting twice with one key gives the same session.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }
}

/// How events are submitted.
#[derive(Debug, Clone, Default)]
pub struct SubmitOptions {
    /// Refuses when the log has grown past this position.
    pub expected_seq: Option<u64>,
    /// Submitting twice with one key writes once.
    pub idempotency_key: Option<String>,
}

/// Events as accepted: durable, not yet worked on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Accepted {
    /// One for each event submitted, in order.
    pub events: Vec<AcceptedEvent>,
}

/// One accepted event.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct AcceptedEvent {
    /// Its id.
    pub id: EventId,
    /// Its position.
    pub seq: u64,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
}

/// One session, for one caller.
#[derive(Clone)]
pub struct SessionHandle {
    runtime: Runtime,
    caller: Arc<Caller>,
    id: SessionId,
}

impl SessionHandle {
    pub(crate) fn new(runtime: Runtime, caller: Arc<Caller>, id: SessionId) -> Self {
        Self {
            runtime,
            caller,
            id,
        }
    }

    pub(crate) async fn start(
        runtime: Runtime,
        caller: Arc<Caller>,
        new: NewSession,
    ) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Created {
            id: SessionId,
        }
        let events = inputs(&new.events)?;
        let body = format!("{new:?}");
        let asked = asked(
            &runtime,
            &caller,
            "POST /v1/sessions",
            &new.idempotency_key,
            &body,
        );
        let create = CreateSession {
            deployment: new.deployment,
            revision: new.revision,
            principal: new.principal,
            metadata: new.metadata,
            budget: new.budget,
            events,
        };
        let answer = runtime.create_session(asked, create).await?;
        let Created { id } = read_answer(&answer.body)?;
        Ok(Self {
            runtime,
            caller,
            id,
        })
    }

    /// Its id.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Sends a message.
    ///
    /// # Errors
    /// `session.terminal`, `session.untaken_inputs_full`, `runtime.busy`…
    pub async fn send(&self, text: impl Into<String>) -> Result<Accepted, Error> {
        self.submit(&[NewEvent::message(text)], SubmitOptions::default())
            .await
    }

    /// Ends the current turn; the session stays usable.
    ///
    /// # Errors
    /// `session.terminal`, `runtime.busy`…
    pub async fn interrupt(&self) -> Result<Accepted, Error> {
        self.submit(&[NewEvent::interrupt()], SubmitOptions::default())
            .await
    }

    /// Submits events: all or none, durable when this returns.
    ///
    /// # Errors
    /// Those of `POST /v1/sessions/{id}/events`.
    pub async fn submit(
        &self,
        events: &[NewEvent],
        options: SubmitOptions,
    ) -> Result<Accepted, Error> {
        let submission = Submission {
            expected_seq: options.expected_seq,
            events: inputs(events)?,
        };
        let path = format!("POST /v1/sessions/{}/events", self.id);
        let body = format!("{events:?}");
        let asked = asked(
            &self.runtime,
            &self.caller,
            &path,
            &options.idempotency_key,
            &body,
        );
        let answer = self.runtime.submit(asked, self.id, submission).await?;
        read_answer(&answer.body)
    }

    /// The session as `GET /v1/sessions/{id}` shows it: where it is, and why.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`.
    pub async fn show(&self) -> Result<Value, Error> {
        self.runtime
            .engine()
            .show(self.caller.viewer(), self.id)
            .await
    }

    /// A page of events.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`.
    pub async fn events(&self, query: EventQuery) -> Result<EventPage, Error> {
        self.runtime
            .engine()
            .events(self.caller.viewer(), self.id, query)
            .await
    }

    /// A page of the conversation as a model sees it.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`.
    pub async fn transcript(&self, query: TranscriptQuery) -> Result<TranscriptPage, Error> {
        self.runtime
            .engine()
            .transcript(self.caller.viewer(), self.id, query)
            .await
    }

    /// Follows the log after a position (0 = from the start), history and live, without a gap.
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`, `request.cursor_invalid`, `stream.limit`.
    pub async fn follow(&self, after: u64) -> Result<Follow, Error> {
        let follower = self
            .runtime
            .engine()
            .follow(self.caller.viewer(), self.id, after, None)
            .await?;
        let events = stream::unfold(Some(follower), |follower| async move {
            let mut follower = follower?;
            match follower.next().await {
                Ok(Followed::Event {
                    seq,
                    kind,
                    boundary,
                    json,
                }) => Some((
                    Ok(Event {
                        seq,
                        kind,
                        boundary,
                        json,
                    }),
                    Some(follower),
                )),
                Ok(Followed::Ended(_)) => None,
                Ok(Followed::Erased) => Some((Err(Code::SessionErased.into()), None)),
                Ok(Followed::Closed) => Some((Err(Code::Stopped.into()), None)),
                Err(refused) => Some((Err(refused), None)),
            }
        });
        Ok(Follow {
            events: events.boxed(),
            until_boundary: false,
            done: false,
        })
    }

    /// Ends the session as done.
    ///
    /// # Errors
    /// `session.run_live`, `session.terminal`.
    pub async fn complete(&self) -> Result<(), Error> {
        self.runtime
            .complete(self.plain("complete"), self.id)
            .await
            .map(done)
    }

    /// Ends the session and whatever runs in it.
    ///
    /// # Errors
    /// `session.terminal`.
    pub async fn cancel(&self) -> Result<(), Error> {
        self.runtime
            .cancel(self.plain("cancel"), self.id)
            .await
            .map(done)
    }

    /// Sets what the session may spend; a run that waits for that goes on. Absent = unlimited.
    ///
    /// # Errors
    /// `session.terminal`.
    pub async fn set_budget(&self, budget: Budget) -> Result<(), Error> {
        let (cost, tokens) = (budget.cost_micros_max, budget.tokens_max);
        self.runtime
            .set_budget(self.plain("budget"), self.id, Some(cost), Some(tokens))
            .await
            .map(done)
    }

    /// Removes the session but for its tombstone.
    ///
    /// # Errors
    /// `session.not_found`.
    pub async fn erase(&self) -> Result<(), Error> {
        self.runtime
            .erase(self.plain("erase"), self.id)
            .await
            .map(done)
    }

    fn plain(&self, verb: &str) -> Asked {
        asked(&self.runtime, &self.caller, verb, &None, "")
    }
}

fn done(_: Answer) {}

fn asked(
    runtime: &Runtime,
    caller: &Arc<Caller>,
    path: &str,
    key: &Option<String>,
    body: &str,
) -> Asked {
    Asked {
        caller: Arc::clone(caller),
        request_id: runtime.new_request_id(),
        receipt: key
            .as_ref()
            .map(|k| receipt_key(caller, path, k, body.as_bytes())),
    }
}

/// The same checks of form as for events from outside.
fn inputs(events: &[NewEvent]) -> Result<Vec<Input>, Error> {
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let texts: Vec<String> = events.iter().map(|e| e.content.to_string()).collect();
    let raw = events.iter().zip(&texts).map(|(event, text)| {
        check_json(text.as_bytes())?;
        let content: &RawValue = serde_json::from_str(text)
            .map_err(|e| Rejection::new(Code::BodyInvalid, e.to_string()))?;
        Ok(RawEvent {
            kind: event.kind.as_str().into(),
            content: Some(content),
        })
    });
    let raw: Vec<RawEvent<'_>> = raw.collect::<Result<_, Error>>()?;
    parse_events(Origin::People, &raw)
}

/// Reads an answer that this program made.
pub(crate) fn read_answer<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|e| Rejection::new(Code::Internal, e.to_string()))
}

/// A committed event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its position.
    pub seq: u64,
    /// Its type.
    pub kind: EventType,
    /// Whether a turn settled or parked with it.
    pub boundary: bool,
    /// The envelope as JSON, shared by all followers.
    pub json: Bytes,
}

impl Event {
    /// The content.
    pub fn content(&self) -> Value {
        #[derive(Deserialize)]
        struct Envelope {
            content: Value,
        }
        serde_json::from_slice::<Envelope>(&self.json).map_or(Value::Null, |e| e.content)
    }
}

/// Events of one session, in order, as a [`Stream`]. Ends after the last event of a session that
/// has ended. Dropping it stops nothing but itself.
pub struct Follow {
    events: stream::BoxStream<'static, Result<Event, Error>>,
    until_boundary: bool,
    done: bool,
}

impl Follow {
    /// Ends after the next boundary: the event with which a turn settles or parks.
    #[must_use]
    pub fn until_boundary(mut self) -> Self {
        self.until_boundary = true;
        self
    }

    /// The next event; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Event, Error>> {
        StreamExt::next(self).await
    }
}

impl Stream for Follow {
    type Item = Result<Event, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.done {
            return Poll::Ready(None);
        }
        let next = self.events.poll_next_unpin(cx);
        if let Poll::Ready(item) = &next {
            let boundary = matches!(item, Some(Ok(event)) if event.boundary);
            self.done = item.is_none() || (boundary && self.until_boundary);
        }
        next
    }
}
