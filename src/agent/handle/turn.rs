//! One turn: its events as they become durable, and the answer at their end.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::stream::{Stream, StreamExt};
use longhaul_actors::ids::SessionId;
use longhaul_actors::session::payload::Usage;
use serde::Deserialize;
use serde_json::{Value, json};

use super::place::{Events, LastRun, Place, Said};
use super::{AgentError, Answer, Outcome};

/// A committed event of a session.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct AgentEvent {
    /// Its position.
    pub seq: u64,
    /// Its id.
    pub id: String,
    /// Its type: `agent.message`, `agent.tool_use`… (docs/events.md).
    #[serde(rename = "type")]
    pub kind: String,
    /// The run that it belongs to.
    #[serde(default)]
    pub run_id: Option<String>,
    /// The attempt that wrote it.
    #[serde(default)]
    pub attempt: Option<u32>,
    /// The content; null where it is gone.
    #[serde(default)]
    pub content: Value,
}

/// A turn under way: a [`Stream`] of its events, which ends with it. Dropping it stops nothing
/// but itself.
pub struct Turn {
    session: SessionId,
    place: Place,
    events: Events,
    watch: Watch,
    is_over: bool,
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turn")
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

impl Turn {
    /// The turn that takes this input.
    pub(super) async fn of_input(
        place: Place,
        session: SessionId,
        said: Said,
    ) -> Result<Self, AgentError> {
        let watch = Watch {
            input: Some(said.id.to_string()),
            ..Watch::default()
        };
        Self::new(place, session, said.seq, watch).await
    }

    /// The turn of this run, from its start.
    pub(super) async fn of_run(
        place: Place,
        session: SessionId,
        run: LastRun,
    ) -> Result<Self, AgentError> {
        let watch = Watch {
            run: Some(run.run_id),
            ..Watch::default()
        };
        Self::new(place, session, run.seq, watch).await
    }

    async fn new(
        place: Place,
        session: SessionId,
        after: u64,
        watch: Watch,
    ) -> Result<Self, AgentError> {
        let events = place.follow(session, after).await?;
        Ok(Self {
            session,
            place,
            events,
            watch: Watch {
                seq: after,
                ..watch
            },
            is_over: false,
        })
    }

    /// The session in which it is; known before anything happens.
    pub fn session_id(&self) -> SessionId {
        self.session
    }

    /// The next event; `None` at the end of the turn.
    pub async fn next(&mut self) -> Option<Result<AgentEvent, AgentError>> {
        StreamExt::next(self).await
    }

    /// The answer, once the turn is over.
    ///
    /// # Errors
    /// See [`AgentError`]; [`AgentError::Ended`] if the session ended first.
    pub async fn answer(mut self) -> Result<Answer, AgentError> {
        while let Some(event) = self.next().await {
            event?;
        }
        let watch = self.watch;
        let (Some(outcome), Some(run_id)) = (watch.outcome, watch.run) else {
            return Err(AgentError::Ended);
        };
        let shown = self.place.show(self.session).await?;
        let usage = |key| {
            let usage = shown.get(key).cloned().unwrap_or_default();
            Usage::deserialize(usage).unwrap_or_default()
        };
        let revision = shown.pointer("/agent/agent_deployment_revision_number");
        let revision = revision.or_else(|| shown.get("agent_deployment_revision_number"));
        let revision = revision.and_then(Value::as_u64);
        Ok(Answer {
            text: watch.text,
            session_id: self.session,
            run_id,
            outcome,
            usage: watch.usage,
            session_usage: usage("usage"),
            inherited_usage: usage("inherited_usage"),
            turns: watch.turns,
            revision: revision.and_then(|n| n.try_into().ok()).unwrap_or(0),
            seq: watch.seq,
        })
    }
}

impl Stream for Turn {
    type Item = Result<AgentEvent, AgentError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let next = ready!(self.events.poll_next_unpin(cx));
        if let Some(Ok(event)) = &next {
            self.watch.see(event);
        }
        self.is_over = self.watch.outcome.is_some() || !matches!(next, Some(Ok(_)));
        Poll::Ready(next)
    }
}

/// What of a turn was seen so far.
#[derive(Debug, Default)]
struct Watch {
    /// The input whose run it is, until one has taken it.
    input: Option<String>,
    /// Its run; of those that went on from each other, the last.
    run: Option<String>,
    text: String,
    usage: Usage,
    turns: u32,
    outcome: Option<Outcome>,
    seq: u64,
}

impl Watch {
    fn see(&mut self, event: &AgentEvent) {
        self.seq = event.seq;
        let content = &event.content;
        let text = |key: &str| content.get(key).and_then(Value::as_str);
        if let Some(input) = &self.input {
            let ids = content.get("event_ids").and_then(Value::as_array);
            let takes = ids.is_some_and(|ids| ids.contains(&json!(input)));
            if event.kind == "run.inputs_taken" && takes {
                self.run.clone_from(&event.run_id);
                self.input = None;
            }
            return;
        }
        if event.kind == "run.queued" && text("continues").is_some_and(|c| self.is_run(c)) {
            self.run.clone_from(&event.run_id);
        }
        if !event.run_id.as_deref().is_some_and(|r| self.is_run(r)) {
            return;
        }
        match event.kind.as_str() {
            "agent.message" if text("role") != Some("user") => {
                text("text").unwrap_or_default().clone_into(&mut self.text);
            }
            "usage.recorded" => {
                let spent = Usage::deserialize(content).unwrap_or_default();
                self.usage = self.usage.plus(spent);
            }
            // Summaries have no `stop`, answers of sub-agents no `call_index`.
            "step.completed" => {
                let has = |key: &str| content.pointer(key).is_some();
                self.turns += u32::from(has("/value/call_index") && has("/value/stop"));
            }
            "run.parked" if content.get("already_in").is_none() => {
                let waiting = content.get("waiting_on").and_then(Value::as_array);
                self.outcome = Some(Outcome::Waiting(waiting.cloned().unwrap_or_default()));
            }
            "run.settled" => self.outcome = settled(content),
            _ => {}
        }
    }

    fn is_run(&self, id: &str) -> bool {
        self.run.as_deref() == Some(id)
    }
}

/// `None` = another run goes on from it.
fn settled(content: &Value) -> Option<Outcome> {
    let text = |pointer: &str| content.pointer(pointer).and_then(Value::as_str);
    match text("/outcome")? {
        "continued" => None,
        "succeeded" => Some(Outcome::Succeeded),
        "interrupted" => Some(Outcome::Interrupted),
        "canceled" => Some(Outcome::Canceled),
        other => Some(Outcome::Failed {
            code: text("/error/code").unwrap_or(other).to_owned(),
            message: text("/error/message").unwrap_or_default().to_owned(),
        }),
    }
}
