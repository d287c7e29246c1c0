//! What earlier attempts of a run chain have completed, read from the log ahead of the code that
//! asks for it.
//!
//! It is a short cut: what is not found here is asked of the server, which knows it for sure. So
//! what may change after it was completed (steps of the sandbox) is never answered from here, and
//! the room for values is bounded.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt, ready};
use longhaul_actors::env::Door;
use longhaul_actors::ids::EventId;
use longhaul_actors::session::payload::{StepCompleted, StepStarted};
use longhaul_actors::session::step::{StepEffects, StepPlace, StepValue};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::Mutex;

use super::JournalError;
use super::core::known_as;
use super::signals;
use crate::runner::attempt::{read_page, read_text_page};
use crate::runner::calls::CallError;
use crate::runner::history::text_at;
use crate::runner::protocol::{Claim, ClaimApi, Cursor, EventsPage, EventsQuery, TextPage};

/// Events on one page of the log.
const PAGE_LIMIT: usize = 1_000;
/// Bytes of values that wait to be asked for.
const VALUES_BYTES_MAX: usize = 16 << 20;

const TYPES: &[&str] = &[
    "step.started",
    "step.completed",
    "step.failed",
    "signal.consumed",
    "item.closed",
];

/// A completed step.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) step_id: EventId,
    pub(super) digest: String,
    pub(super) value: StepValue,
    pub(super) event_ids: Vec<EventId>,
}

/// The chain's past.
#[derive(Debug)]
pub(super) struct Replay {
    api: Arc<dyn ClaimApi>,
    door: Door,
    session_id: String,
    workspace: Option<String>,
    run_id: String,
    attempt: u32,
    continues: Option<String>,
    past: Mutex<Past>,
}

#[derive(Debug, Default)]
struct Past {
    /// The position after which to read on; `None` = the chain's first is not known yet.
    after: Option<u64>,
    /// The page after the last one, if it is being read already.
    ahead: Option<Ahead>,
    /// Whether everything was read.
    ended: bool,
    /// Steps begun and, so far, not ended.
    begun: HashMap<EventId, Begun>,
    done: HashMap<StepPlace, Done>,
    bytes: usize,
    signals: Signals,
}

/// A page that is being read while the one before it is used.
struct Ahead(BoxFuture<'static, Result<TextPage, CallError>>);

impl std::fmt::Debug for Ahead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ahead")
    }
}

#[derive(Debug)]
struct Begun {
    place: StepPlace,
    digest: String,
    is_external: bool,
}

/// Signals that the chain has taken and waits that have run out, and which of them are part of a
/// completed step.
#[derive(Debug, Default)]
struct Signals {
    taken: BTreeMap<u64, (String, EventId)>,
    expired: BTreeMap<u64, (String, EventId)>,
    used: HashSet<EventId>,
}

/// What came for a wait.
#[derive(Debug)]
pub(super) enum Came {
    /// A signal; its envelope.
    Signal(Value),
    /// The end of its time; the event that says so.
    TooLate(EventId),
}

impl Replay {
    pub(super) fn of(claim: &Claim, api: Arc<dyn ClaimApi>, door: Door) -> Self {
        let past = Past {
            ended: claim.is_first(),
            ..Past::default()
        };
        Self {
            api,
            door,
            session_id: claim.session_id.clone(),
            workspace: claim.workspace.clone(),
            run_id: claim.run_id.clone(),
            attempt: claim.attempt,
            continues: claim.continues.clone(),
            past: Mutex::new(past),
        }
    }

    /// Takes out what the step gave. `None` = ask the server.
    pub(super) async fn find(&self, place: &StepPlace) -> Result<Option<Done>, JournalError> {
        let mut past = self.past.lock().await;
        loop {
            if let Some(done) = past.done.remove(place) {
                past.bytes = past.bytes.saturating_sub(done.value.len());
                return Ok(Some(done));
            }
            if past.ended || past.bytes >= VALUES_BYTES_MAX {
                return Ok(None);
            }
            self.read_on(&mut past).await?;
        }
    }

    /// What came for `name` in an earlier attempt, which did not get to record it: a signal, or
    /// the end of a wait that the step `waiting` began.
    pub(super) async fn came(
        &self,
        name: &str,
        waiting: Option<EventId>,
    ) -> Result<Option<Came>, JournalError> {
        let mut past = self.past.lock().await;
        while !past.ended {
            self.read_on(&mut past).await?;
        }
        let Signals {
            taken,
            expired,
            used,
        } = &mut past.signals;
        let open = |events: &BTreeMap<u64, (String, EventId)>, after: u64| {
            let mut events = events.range(after..);
            let found = events.find(|(_, (n, id))| n == name && !used.contains(id));
            found.map(|(seq, (_, id))| (*seq, *id))
        };
        if let Some((seq, id)) = open(taken, 0) {
            taken.remove(&seq);
            drop(past);
            return Ok(Some(Came::Signal(self.event(id).await?)));
        }
        let over = waiting.and_then(|since| open(expired, since.seq()));
        let Some((seq, id)) = over else {
            return Ok(None);
        };
        expired.remove(&seq);
        Ok(Some(Came::TooLate(id)))
    }

    /// One event of the log.
    async fn event(&self, id: EventId) -> Result<Value, JournalError> {
        let cursor = Cursor::After(id.seq().saturating_sub(1));
        let page = self.page(cursor, &[], 1).await?;
        let found = page.events.into_iter().next();
        found.ok_or_else(|| JournalError::Invalid(format!("{id} is not in the log")))
    }

    async fn page(
        &self,
        cursor: Cursor,
        types: &'static [&'static str],
        limit: usize,
    ) -> Result<EventsPage, JournalError> {
        let query = self.query(cursor, types, limit);
        Ok(read_page(&*self.api, &self.door, query).await?)
    }

    fn query(&self, cursor: Cursor, types: &'static [&'static str], limit: usize) -> EventsQuery {
        EventsQuery {
            workspace: self.workspace.clone(),
            session_id: self.session_id.clone(),
            cursor,
            types,
            limit,
        }
    }

    async fn read_on(&self, past: &mut Past) -> Result<(), JournalError> {
        let after = match past.after {
            Some(after) => after,
            None => self.first_queued().await?,
        };
        let reading = match past.ahead.take() {
            Some(Ahead(reading)) => reading,
            None => self.text_page(after),
        };
        let page = reading.await?;
        past.ahead = page.next.map(|next| {
            let mut reading = self.text_page(next);
            // Asked once, it is on its way: the server reads while this page is used.
            match (&mut reading).now_or_never() {
                Some(page) => Ahead(ready(page).boxed()),
                None => Ahead(reading),
            }
        });
        for text in &page.events {
            let Ok(event) = serde_json::from_slice::<Envelope<'_>>(text) else {
                // Nothing that the server writes; it is asked for what is not found here.
                continue;
            };
            if event.attempt == Some(self.attempt) && event.run_id == Some(&*self.run_id) {
                past.ended = true;
                break;
            }
            past.fold(&event, text);
        }
        past.after = page.next.or(past.after).or(Some(after));
        past.ended |= page.next.is_none();
        if past.ended {
            past.ahead = None;
        }
        Ok(())
    }

    fn text_page(&self, after: u64) -> BoxFuture<'static, Result<TextPage, CallError>> {
        let query = self.query(Cursor::After(after), TYPES, PAGE_LIMIT);
        let (api, door) = (Arc::clone(&self.api), self.door.clone());
        async move { read_text_page(&*api, &door, query).await }.boxed()
    }

    /// The position of the `run.queued` that the chain began with.
    async fn first_queued(&self) -> Result<u64, JournalError> {
        let mut runs = HashSet::from([self.run_id.clone()]);
        runs.extend(self.continues.clone());
        let mut cursor = Cursor::Before(None);
        let mut first = 0;
        loop {
            let page = self.page(cursor, &["run.queued"], PAGE_LIMIT).await?;
            for event in &page.events {
                if !text_at(event, "run_id").is_some_and(|run| runs.contains(run)) {
                    continue;
                }
                first = event.get("seq").and_then(Value::as_u64).unwrap_or(0);
                match event.pointer("/content/continues").and_then(Value::as_str) {
                    Some(earlier) => drop(runs.insert(earlier.to_owned())),
                    None => return Ok(first),
                }
            }
            match page.next {
                Some(next) => cursor = Cursor::Before(Some(next)),
                None => return Ok(first),
            }
        }
    }
}

/// What is read of an envelope; the content only where its type is known.
#[derive(Deserialize)]
struct Envelope<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(default)]
    run_id: Option<&'a str>,
    #[serde(default)]
    attempt: Option<u32>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

/// Of `step.failed`.
#[derive(Deserialize)]
struct FailedStep {
    step_id: EventId,
}

/// Of `signal.consumed`.
#[derive(Deserialize)]
struct Consumed {
    name: String,
    signal_id: EventId,
}

/// Of `item.closed`.
#[derive(Deserialize)]
struct Closed {
    state: String,
    #[serde(default)]
    signal: Option<String>,
}

impl Past {
    /// Notes an event; `text` is what it was read from. Contents that are gone, or that say
    /// nothing, are passed over: what is missing here is asked of the server.
    fn fold(&mut self, event: &Envelope<'_>, text: &Bytes) {
        let Some(content) = event.content.map(RawValue::get) else {
            return;
        };
        match event.kind {
            "step.started" => {
                let started = serde_json::from_str::<StepStarted<'_>>(content);
                if let (Ok(id), Ok(started)) = (EventId::parse(event.id), started) {
                    self.begun.insert(id, started.into());
                }
            }
            "step.completed" => {
                if let Ok(completed) = serde_json::from_str::<StepCompleted<'_>>(content)
                    && let Some(begun) = self.begun.remove(&completed.step_id)
                    && let Ok(value) = completed.value(text)
                {
                    self.completed(completed.step_id, begun, value, completed.event_ids);
                }
            }
            // It may be begun again; then the server tells.
            "step.failed" => {
                if let Ok(failed) = serde_json::from_str::<FailedStep>(content) {
                    self.begun.remove(&failed.step_id);
                }
            }
            "signal.consumed" => {
                let consumed = serde_json::from_str::<Consumed>(content);
                if let (Ok(id), Ok(c)) = (EventId::parse(event.id), consumed) {
                    self.signals.taken.insert(id.seq(), (c.name, c.signal_id));
                }
            }
            "item.closed" => {
                let closed = serde_json::from_str::<Closed>(content);
                if let (Ok(id), Ok(closed)) = (EventId::parse(event.id), closed)
                    && closed.state == "expired"
                    && let Some(name) = closed.signal
                {
                    self.signals.expired.insert(id.seq(), (name, id));
                }
            }
            _ => {}
        }
    }

    fn completed(
        &mut self,
        step_id: EventId,
        begun: Begun,
        value: StepValue,
        event_ids: Vec<EventId>,
    ) {
        if signals::is_wait(&begun.place.name) {
            self.signals.used.extend(signals::used_by(&value));
        }
        if !begun.is_external || self.bytes >= VALUES_BYTES_MAX {
            return;
        }
        self.bytes += value.len();
        let done = Done {
            step_id,
            digest: begun.digest,
            value,
            event_ids,
        };
        self.done.insert(begun.place, done);
    }
}

impl From<StepStarted<'_>> for Begun {
    fn from(started: StepStarted<'_>) -> Self {
        let place = StepPlace {
            path: started.path,
            name: started.name,
            occurrence: started.occurrence,
            idempotency_key: started.idempotency_key,
        };
        Self {
            place: known_as(place),
            digest: started.input_digest,
            is_external: started.effects == StepEffects::External,
        }
    }
}
