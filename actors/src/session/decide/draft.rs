//! A decision in the making: events numbered as they will be stored, the state after them.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::code::{Code, Rejection};
use crate::env::Env;
use crate::ids::EventId;
use crate::session::command::{Input, Request};
use crate::session::decision::{Decision, Granted, Reply, RowOp};
use crate::session::event::{
    Author, AuthorKind, Cause, Event, EventType, Header, NewEvent, RunRef,
};
use crate::session::evolve::evolve;
use crate::session::facts::Receipt;
use crate::session::payload::{Body, SessionLimitWarning, SessionStatus};
use crate::session::state::State;
use crate::session::status::{Status, allowed};

/// Percentages of the event limit at which a session is warned.
const WARN_PERCENTS: [u8; 3] = [95, 80, 50];

pub(super) struct Draft<'a> {
    pub(super) env: &'a Env<'a>,
    base: &'a State,
    /// `base` with the first `folded` events in; made when first asked for.
    work: Option<Box<State>>,
    folded: usize,
    events: Vec<NewEvent>,
    rows: Vec<RowOp>,
    /// Used for every event emitted from here on.
    cause: Cause,
    granted: Option<Granted>,
    /// The id that the event at its position will have.
    promised: Option<EventId>,
}

/// What varies between the events of one decision.
pub(super) struct Emit {
    pub(super) author: Author,
    pub(super) run: Option<RunRef>,
    pub(super) boundary: bool,
    pub(super) refers: Option<EventId>,
    pub(super) label: Option<String>,
}

impl Emit {
    /// An event of the runtime's own.
    pub(super) fn system(run: Option<RunRef>) -> Self {
        Self::by(Author::system(), run)
    }

    /// An event of the given author.
    pub(super) fn by(author: Author, run: Option<RunRef>) -> Self {
        Self {
            author,
            run,
            boundary: false,
            refers: None,
            label: None,
        }
    }

    /// A turn settles or parks with it.
    pub(super) fn boundary(mut self, is: bool) -> Self {
        self.boundary = is;
        self
    }

    /// It belongs to an earlier event.
    pub(super) fn refers(mut self, id: EventId) -> Self {
        self.refers = Some(id);
        self
    }
}

impl<'a> Draft<'a> {
    pub(super) fn new(base: &'a State, env: &'a Env<'a>) -> Self {
        Self {
            env,
            base,
            work: None,
            folded: 0,
            events: Vec::new(),
            rows: Vec::new(),
            cause: Cause::None,
            granted: None,
            promised: None,
        }
    }

    /// The event at this id's position, still to come, will have this id.
    pub(super) fn promise(&mut self, id: EventId) {
        self.promised = Some(id);
    }

    /// The state before this decision.
    pub(super) fn base(&self) -> &'a State {
        self.base
    }

    /// The state with everything emitted so far.
    pub(super) fn state(&mut self) -> &State {
        if self.events.is_empty() {
            return self.base;
        }
        let work = self.work.get_or_insert_with(|| Box::new(self.base.clone()));
        for new in self.events.iter().skip(self.folded) {
            evolve(work, &new.event);
        }
        self.folded = self.events.len();
        work
    }

    /// The attempt that is live now.
    pub(super) fn run_ref(&mut self) -> Option<RunRef> {
        self.state().run.as_ref().map(|r| RunRef {
            id: r.id,
            attempt: r.attempt,
        })
    }

    /// What the events from here on are caused by.
    pub(super) fn caused_by(&mut self, cause: Cause) {
        self.cause = cause;
    }

    /// How many events there will be after this decision so far.
    pub(super) fn last_seq(&self) -> u64 {
        self.base.last_seq + self.events.len() as u64
    }

    /// Emits an event of the runtime.
    pub(super) fn emit(&mut self, kind: EventType, emit: Emit, body: Body) -> EventId {
        let content = body.to_json();
        self.push(kind, emit, body, content)
    }

    /// Emits an event from outside, its content as received.
    pub(super) fn emit_input(&mut self, input: &Input, emit: Emit, body: Body) -> EventId {
        self.push(input.kind, emit, body, input.content.clone())
    }

    /// Emits an event whose content folding does not read.
    pub(super) fn emit_as(&mut self, kind: EventType, emit: Emit, content: Bytes) -> EventId {
        self.push(kind, emit, Body::Opaque, content)
    }

    fn push(&mut self, kind: EventType, emit: Emit, body: Body, content: Bytes) -> EventId {
        let seq = self.last_seq() + 1;
        let promised = self.promised.filter(|p| p.seq() == seq);
        let id = promised.unwrap_or_else(|| EventId::with_seq(self.env.uuid(), seq));
        let header = Header {
            kind,
            version: 1,
            id,
            created_at_ms: self.env.now_ms,
            author: emit.author,
            cause: self.cause.clone(),
            run: emit.run,
            boundary: emit.boundary,
            refers: emit.refers,
            label: emit.label,
        };
        self.events.push(NewEvent {
            event: Event { seq, header, body },
            content,
        });
        id
    }

    /// Changes the status, if it is another one; only as the table allows.
    pub(super) fn set_status(&mut self, to: Status, reason: &str) -> Result<(), Rejection> {
        let from = self.state().status;
        if from == to {
            return Ok(());
        }
        if !allowed(from, to) {
            let detail = format!("a session cannot go from {} to {}", from.text(), to.text());
            let r = Rejection::new(Code::SessionTransition, detail);
            return Err(r.with("from", from.text()).with("to", to.text()));
        }
        self.become_status(to, reason);
        Ok(())
    }

    /// Changes the status, if it is another one, whatever the table says: for a fork, whose past
    /// may have been cut anywhere.
    pub(super) fn become_status(&mut self, to: Status, reason: &str) {
        let from = self.state().status;
        if from == to {
            return;
        }
        let run = self.run_ref();
        let body = SessionStatus {
            from,
            to,
            reason: reason.to_owned(),
        };
        self.emit(
            EventType::SessionStatus,
            Emit::system(run),
            Body::SessionStatus(body),
        );
    }

    pub(super) fn row(&mut self, row: RowOp) {
        self.rows.push(row);
    }

    pub(super) fn grant(&mut self, granted: Granted) {
        self.granted = Some(granted);
    }

    /// The decision, without a kept answer.
    pub(super) fn done(mut self, reply: Reply) -> Decision {
        self.warn();
        Decision {
            events: self.events,
            rows: self.rows,
            reply,
            granted: self.granted,
            begun: None,
            refused: None,
            erase: false,
            expire: Vec::new(),
            again_ms: None,
        }
    }

    /// The decision, its answer kept where the caller gave a key.
    pub(super) fn done_for(mut self, request: &Request, reply: Reply) -> Decision {
        if let Some(key) = request.receipt {
            let at_ms = self.env.now_ms;
            let receipt = Receipt {
                body: key.body,
                reply: reply.clone(),
                at_ms,
            };
            self.row(RowOp::Receipt(key.scope, receipt));
        }
        self.done(reply)
    }

    /// Refuses more events than the session may have; what ends things is not asked.
    pub(super) fn room_for(&self, events: usize) -> Result<(), Rejection> {
        let max = self.env.limits.session_events_max;
        if self.last_seq() + events as u64 > max {
            let detail = format!("the log has {} of at most {max} events", self.last_seq());
            return Err(Rejection::new(Code::EventLimit, detail).with("events_max", max));
        }
        Ok(())
    }

    fn warn(&mut self) {
        let max = self.env.limits.session_events_max.max(1);
        let events = self.last_seq();
        // Cheap for the common case: far below the first mark.
        if events.saturating_mul(2) < max || self.events.is_empty() {
            return;
        }
        let crossed = |p: &u8| events.saturating_mul(100) >= max.saturating_mul(u64::from(*p));
        let Some(percent) = WARN_PERCENTS.into_iter().find(crossed) else {
            return;
        };
        if percent > self.state().warned_percent {
            let body = SessionLimitWarning {
                events,
                events_max: max,
                percent,
            };
            let emit = Emit::system(None);
            self.emit(
                EventType::SessionLimitWarning,
                emit,
                Body::SessionLimitWarning(body),
            );
        }
    }

    /// `{events: [{id, seq, type}]}` for the events with these ids.
    pub(super) fn accepted(&self, ids: &[EventId]) -> Map<String, Value> {
        let first = self.base.last_seq + 1;
        let event = |id: &EventId| {
            let at = usize::try_from(id.seq().saturating_sub(first)).ok();
            let kind = at
                .and_then(|at| self.events.get(at))
                .map(|e| e.event.header.kind.text());
            json!({"id": id, "seq": id.seq(), "type": kind})
        };
        Map::from_iter([("events".to_owned(), ids.iter().map(event).collect())])
    }
}

/// The author of what an agent says.
pub(super) fn agent(state: &State) -> Author {
    let id = state
        .about
        .as_ref()
        .map(|a| a.pin.agent_deployment.to_string());
    Author {
        kind: AuthorKind::Agent,
        id: id.unwrap_or_default(),
    }
}

/// The author of what a runner reports.
pub(super) fn runner(state: &State) -> Author {
    let id = state
        .claim()
        .map(|c| c.runner.to_string())
        .unwrap_or_default();
    Author {
        kind: AuthorKind::Runner,
        id,
    }
}
