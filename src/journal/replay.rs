//! What earlier attempts of a run chain have completed, read from the log ahead of the code that
//! asks for it.
//!
//! It is a short cut: what is not found here is asked of the server, which knows it for sure. So
//! what may change after it was completed (steps of the sandbox) is never answered from here, and
//! the room for values is bounded.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use longhaul_actors::env::Door;
use longhaul_actors::ids::EventId;
use longhaul_actors::session::step::{StepPlace, StepValue};
use serde_json::Value;
use tokio::sync::Mutex;

use super::JournalError;
use super::core::known_as;
use super::signals;
use crate::runner::attempt::read_page;
use crate::runner::history::text_at;
use crate::runner::protocol::{Claim, ClaimApi, Cursor, EventsPage, EventsQuery};

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
    /// Whether everything was read.
    ended: bool,
    /// Steps begun and, so far, not ended.
    begun: HashMap<EventId, Begun>,
    done: HashMap<StepPlace, Done>,
    bytes: usize,
    signals: Signals,
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
        let query = EventsQuery {
            workspace: self.workspace.clone(),
            session_id: self.session_id.clone(),
            cursor,
            types,
            limit,
        };
        Ok(read_page(&*self.api, &self.door, query).await?)
    }

    async fn read_on(&self, past: &mut Past) -> Result<(), JournalError> {
        let after = match past.after {
            Some(after) => after,
            None => self.first_queued().await?,
        };
        let page = self.page(Cursor::After(after), TYPES, PAGE_LIMIT).await?;
        for event in page.events {
            let attempt = event.get("attempt").and_then(Value::as_u64);
            if attempt == Some(u64::from(self.attempt))
                && text_at(&event, "run_id") == Some(&self.run_id)
            {
                past.ended = true;
                break;
            }
            past.fold(event);
        }
        past.after = page.next.or(past.after).or(Some(after));
        past.ended |= page.next.is_none();
        Ok(())
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

impl Past {
    fn fold(&mut self, mut event: Value) {
        let id = text_at(&event, "id").and_then(|id| EventId::parse(id).ok());
        let kind = text_at(&event, "type").unwrap_or_default().to_owned();
        let Some(content) = event.get_mut("content") else {
            return;
        };
        match (kind.as_str(), id) {
            ("step.started", Some(id)) => {
                if let Some(begun) = begun(content) {
                    self.begun.insert(id, begun);
                }
            }
            ("step.completed", _) => {
                let begun = step_id(content).and_then(|id| Some((id, self.begun.remove(&id)?)));
                if let Some((id, begun)) = begun {
                    self.completed(id, begun, content);
                }
            }
            // It may be begun again; then the server tells.
            ("step.failed", _) => {
                if let Some(id) = step_id(content) {
                    self.begun.remove(&id);
                }
            }
            ("signal.consumed", Some(id)) => {
                let signal = text_at(content, "signal_id").and_then(|s| EventId::parse(s).ok());
                if let (Some(name), Some(signal)) = (text_at(content, "name"), signal) {
                    let taken = (name.to_owned(), signal);
                    self.signals.taken.insert(id.seq(), taken);
                }
            }
            ("item.closed", Some(id)) if text_at(content, "state") == Some("expired") => {
                if let Some(name) = text_at(content, "signal") {
                    let expired = (name.to_owned(), id);
                    self.signals.expired.insert(id.seq(), expired);
                }
            }
            _ => {}
        }
    }

    fn completed(&mut self, step_id: EventId, begun: Begun, content: &mut Value) {
        if signals::is_wait(&begun.place.name) {
            self.signals.used.extend(signals::used_by(content));
        }
        if !begun.is_external || self.bytes >= VALUES_BYTES_MAX {
            return;
        }
        // What is not to be had (erased, never kept) is the server's to say.
        let Some(value) = value(content) else { return };
        let ids = content.get("event_ids").and_then(Value::as_array);
        let ids = ids.into_iter().flatten().filter_map(Value::as_str);
        self.bytes += value.len();
        let done = Done {
            step_id,
            digest: begun.digest,
            value,
            event_ids: ids.filter_map(|id| EventId::parse(id).ok()).collect(),
        };
        self.done.insert(begun.place, done);
    }
}

fn step_id(content: &Value) -> Option<EventId> {
    EventId::parse(text_at(content, "step_id")?).ok()
}

fn begun(content: &Value) -> Option<Begun> {
    let occurrence = content.get("occurrence").and_then(Value::as_u64);
    let place = StepPlace {
        path: text_at(content, "path").unwrap_or_default().to_owned(),
        name: text_at(content, "name")?.to_owned(),
        occurrence: occurrence.and_then(|o| u32::try_from(o).ok())?,
        idempotency_key: text_at(content, "idempotency_key").map(str::to_owned),
    };
    Some(Begun {
        place: known_as(&place),
        digest: text_at(content, "input_digest")?.to_owned(),
        is_external: text_at(content, "effects") == Some("external"),
    })
}

fn value(content: &mut Value) -> Option<StepValue> {
    if let Some(base64) = text_at(content, "value_base64") {
        return Some(StepValue::Bytes {
            content_type: text_at(content, "content_type")?.to_owned(),
            bytes: STANDARD.decode(base64).ok()?.into(),
        });
    }
    let json = serde_json::to_vec(content.get("value")?).ok()?;
    Some(StepValue::Json(Bytes::from(json)))
}
