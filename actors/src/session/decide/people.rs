//! What people and services ask: admission, input, and the ends of a session.

use serde_json::{Map, Value, json};

use super::draft::{Draft, Emit};
use super::{is_kept, repeated, turn, visible};
use crate::code::{Code, Rejection};
use crate::ids::{EventId, SessionId};
use crate::limits::Limits;
use crate::session::command::{Ask, Create, Input, Request, SetBudget, Submit};
use crate::session::decision::{Decision, Reply, RowOp};
use crate::session::event::{Cause, EventType};
use crate::session::facts::{Created, Facts, LostReason};
use crate::session::payload::{
    Body, Budget, ItemClosed, ItemState, Outcome, SessionCreated, SessionUpdated, SignalConsumed,
    WaitingOn,
};
use crate::session::show::{ShowExtras, show};
use crate::session::state::{ItemKind, Phase};
use crate::session::status::Status;

/// Admits a session.
pub(super) fn create(
    mut draft: Draft<'_>,
    facts: &Facts,
    c: &Create,
) -> Result<Decision, Rejection> {
    if let Some(decision) = created_before(&draft, facts, &c.request)? {
        return Ok(decision);
    }
    if draft.base().about.is_some() {
        // Ids are minted here and never reused: only a repeated internal call gets this far.
        return Err(Rejection::new(
            Code::SequenceConflict,
            "the session exists already",
        ));
    }
    check_metadata(&c.metadata, draft.env.limits)?;
    draft.caused_by(Cause::Request(c.request.request_id.to_string()));
    let created = SessionCreated {
        workspace: c.request.viewer.workspace,
        principal: c.principal.clone(),
        pin: c.pin.clone(),
        metadata: c.metadata.clone(),
        budget: c.budget,
        retention: c.retention,
    };
    let emit = Emit::by(c.request.author.clone(), None);
    draft.emit(
        EventType::SessionCreated,
        emit,
        Body::SessionCreated(Box::new(created)),
    );
    accept_all(&mut draft, facts, &c.request, &c.events)?;
    note_creation(&mut draft, &c.request);
    let reply = shown(&mut draft, 201);
    Ok(draft.done_for(&c.request, reply))
}

/// Accepts events of people: all or none.
pub(super) fn submit(
    mut draft: Draft<'_>,
    facts: &Facts,
    s: &Submit,
) -> Result<Decision, Rejection> {
    if let Some(decision) = first_answer(&draft, facts, &s.request)? {
        return Ok(decision);
    }
    open(&draft)?;
    let last = draft.base().last_seq;
    if let Some(expected) = s.expected_seq.filter(|e| *e != last) {
        let detail = format!("the log ends at {last}, not at {expected}");
        return Err(Rejection::new(Code::SequenceConflict, detail).with("last_seq", last));
    }
    if s.events.is_empty() {
        return Err(Code::BatchEmpty.into());
    }
    let ids = accept_all(&mut draft, facts, &s.request, &s.events)?;
    let reply = Reply::json(202, &draft.accepted(&ids).into());
    Ok(draft.done_for(&s.request, reply))
}

/// Ends the session as done.
pub(super) fn complete(
    mut draft: Draft<'_>,
    facts: &Facts,
    request: &Request,
) -> Result<Decision, Rejection> {
    if let Some(decision) = first_answer(&draft, facts, request)? {
        return Ok(decision);
    }
    if draft.base().status != Status::Completed {
        open(&draft)?;
        if let Some(run) = &draft.base().run {
            let r = Rejection::new(
                Code::SessionRunLive,
                format!("{} is {}", run.id, run.phase.text()),
            );
            return Err(r.with("run_id", run.id.to_string()));
        }
        draft.caused_by(Cause::Request(request.request_id.to_string()));
        draft.set_status(Status::Completed, "complete")?;
    }
    let reply = shown(&mut draft, 200);
    Ok(draft.done_for(request, reply))
}

/// Ends the session and whatever runs in it.
pub(super) fn cancel(
    mut draft: Draft<'_>,
    facts: &Facts,
    request: &Request,
) -> Result<Decision, Rejection> {
    if let Some(decision) = first_answer(&draft, facts, request)? {
        return Ok(decision);
    }
    if draft.base().status != Status::Canceled {
        open(&draft)?;
        draft.caused_by(Cause::Request(request.request_id.to_string()));
        if draft.base().run.is_some() {
            let end = turn::End {
                to: Some(Status::Canceled),
                ..turn::End::new(Outcome::Canceled, "cancel", LostReason::Canceled)
            };
            turn::end(&mut draft, end, &request.author)?;
        } else {
            draft.set_status(Status::Canceled, "cancel")?;
        }
    }
    let reply = shown(&mut draft, 200);
    Ok(draft.done_for(request, reply))
}

/// Changes what the session may spend; a run that waits for that goes on.
pub(super) fn budget(
    mut draft: Draft<'_>,
    facts: &Facts,
    b: &SetBudget,
) -> Result<Decision, Rejection> {
    if let Some(decision) = first_answer(&draft, facts, &b.request)? {
        return Ok(decision);
    }
    open(&draft)?;
    let about = draft.base().about.as_ref();
    let before = about.and_then(|a| a.budget).unwrap_or_default();
    let budget = Budget {
        cost_micros_max: b.cost_micros_max.unwrap_or(before.cost_micros_max),
        tokens_max: b.tokens_max.unwrap_or(before.tokens_max),
    };
    if budget != before {
        draft.room_for(1)?;
        draft.caused_by(Cause::Request(b.request.request_id.to_string()));
        let updated = SessionUpdated {
            metadata: None,
            budget: Some(budget),
        };
        let emit = Emit::by(b.request.author.clone(), None);
        let id = draft.emit(
            EventType::SessionUpdated,
            emit,
            Body::SessionUpdated(updated),
        );
        draft.caused_by(Cause::Event(id));
        turn::go_on(&mut draft, id)?;
    }
    let reply = shown(&mut draft, 200);
    Ok(draft.done_for(&b.request, reply))
}

/// Removes everything but a tombstone, whatever the session does.
pub(super) fn erase(draft: Draft<'_>, request: &Request) -> Result<Decision, Rejection> {
    visible(draft.base(), request)?;
    let id = draft.base().id;
    // No receipt: an erased session gives this answer to everyone who may erase it.
    let mut decision = draft.done(erased_reply(id));
    decision.erase = true;
    Ok(decision)
}

/// The answer to erasing a session, also when it is erased already.
pub fn erased_reply(id: SessionId) -> Reply {
    Reply::json(200, &json!({"id": id, "erased": true}))
}

/// What every request to an existing session meets first: a foreign session looks absent, and a
/// request that was answered gets that answer again.
pub(super) fn first_answer(
    draft: &Draft<'_>,
    facts: &Facts,
    request: &Request,
) -> Result<Option<Decision>, Rejection> {
    visible(draft.base(), request)?;
    repeated(facts, request, draft.env)
}

/// Keeps which session was made under the caller's key.
pub(super) fn note_creation(draft: &mut Draft<'_>, request: &Request) {
    if let Some(key) = request.receipt {
        let created = Created {
            body: key.body,
            session: draft.base().id,
            at_ms: draft.env.now_ms,
        };
        draft.row(RowOp::Created(key.scope, created));
    }
}

/// The answer of an earlier creation under the same key; what it made may be erased since.
pub(super) fn created_before(
    draft: &Draft<'_>,
    facts: &Facts,
    request: &Request,
) -> Result<Option<Decision>, Rejection> {
    if let (Some(key), Some(earlier)) = (request.receipt, &facts.created)
        && earlier.erased
        && is_kept(earlier.made.at_ms, draft.env)
    {
        return Err(if earlier.made.body == key.body {
            Code::SessionErased.into()
        } else {
            Code::IdempotencyConflict.into()
        });
    }
    repeated(facts, request, draft.env)
}

pub(super) fn open(draft: &Draft<'_>) -> Result<(), Rejection> {
    let status = draft.base().status;
    if status.is_terminal() {
        let r = Rejection::new(
            Code::SessionTerminal,
            format!("the session is {}", status.text()),
        );
        return Err(r.with("status", status.text()));
    }
    Ok(())
}

pub(super) fn shown(draft: &mut Draft<'_>, status: u16) -> Reply {
    let attempts_max = draft.env.limits.attempts_max;
    let value = show(
        draft.state(),
        ShowExtras {
            blocked_by: None,
            attempts_max,
        },
    );
    Reply::json(status, &value)
}

fn accept_all(
    draft: &mut Draft<'_>,
    facts: &Facts,
    request: &Request,
    events: &[Input],
) -> Result<Vec<EventId>, Rejection> {
    let mut ids = Vec::with_capacity(events.len());
    for input in events {
        draft.caused_by(Cause::Request(request.request_id.to_string()));
        // An interrupt ends things, so it is taken at the limit too.
        if input.ask != Ask::Interrupt {
            draft.room_for(1)?;
        }
        ids.push(accept(draft, facts, request, input)?);
    }
    Ok(ids)
}

fn accept(
    draft: &mut Draft<'_>,
    facts: &Facts,
    request: &Request,
    input: &Input,
) -> Result<EventId, Rejection> {
    let emit = Emit::by(request.author.clone(), None);
    match &input.ask {
        Ask::Message => {
            room_for_message(draft)?;
            let id = draft.emit_input(input, emit, Body::Opaque);
            draft.caused_by(Cause::Event(id));
            turn::start_for(draft, id, None)?;
            Ok(id)
        }
        Ask::Interrupt => {
            let id = draft.emit_input(input, emit, Body::Opaque);
            draft.caused_by(Cause::Event(id));
            interrupt(draft, request)?;
            Ok(id)
        }
        Ask::Signal { name } => signal(draft, input, emit, name),
        Ask::Answer {
            item,
            granted,
            remember,
        } => {
            let said = Said {
                item: *item,
                granted: *granted,
                remember: *remember,
            };
            answer(draft, facts, request, input, said)
        }
        Ask::Record | Ask::Open | Ask::ToolResult { .. } | Ask::Usage(_) | Ask::Compact { .. } => {
            Ok(draft.emit_input(input, emit, Body::Opaque))
        }
    }
}

/// Refuses more messages than may wait.
pub(super) fn room_for_message(draft: &mut Draft<'_>) -> Result<(), Rejection> {
    let max = draft.env.limits.untaken_inputs_max;
    if draft.state().untaken_count() >= max {
        let r = Rejection::new(Code::UntakenInputs, format!("{max} messages wait"));
        return Err(r.with("inputs_max", max));
    }
    Ok(())
}

fn interrupt(draft: &mut Draft<'_>, request: &Request) -> Result<(), Rejection> {
    if super::operate::is_paused(draft.state()) {
        return draft.set_status(Status::Idle, "interrupt");
    }
    let run = draft.state().run.as_ref();
    if run.is_none_or(|r| r.phase == Phase::Reconciling) {
        return Ok(());
    }
    let end = turn::End {
        to: Some(Status::Idle),
        ..turn::End::new(Outcome::Interrupted, "interrupt", LostReason::Interrupted)
    };
    turn::end(draft, end, &request.author)
}

fn signal(
    draft: &mut Draft<'_>,
    input: &Input,
    mut emit: Emit,
    name: &str,
) -> Result<EventId, Rejection> {
    let max = draft.env.limits.signals_max;
    if draft
        .state()
        .signals
        .iter()
        .filter(|s| s.name == name)
        .count()
        >= max
    {
        let r = Rejection::new(Code::SignalsFull, format!("{max} signals `{name}` wait"));
        return Err(r.with("signals_max", max));
    }
    emit.label = Some(name.to_owned());
    let id = draft.emit_input(input, emit, Body::Opaque);
    let waited_for = draft.state().run.as_ref().is_some_and(|r| {
        r.waits
            .iter()
            .any(|w| !w.done && matches!(&w.on, WaitingOn::Signal { signal, .. } if signal == name))
    });
    if waited_for {
        draft.caused_by(Cause::Event(id));
        let run = draft.run_ref();
        let body = SignalConsumed {
            signal_id: id,
            name: name.to_owned(),
        };
        draft.emit(
            EventType::SignalConsumed,
            Emit::system(run),
            Body::SignalConsumed(body),
        );
        turn::go_on(draft, id)?;
    }
    Ok(id)
}

/// What an answer says.
struct Said {
    item: Option<EventId>,
    granted: Option<bool>,
    remember: bool,
}

fn answer(
    draft: &mut Draft<'_>,
    facts: &Facts,
    request: &Request,
    input: &Input,
    said: Said,
) -> Result<EventId, Rejection> {
    let kind = match input.kind {
        EventType::UserQuestionAnswer => ItemKind::Question,
        EventType::UserActionApproval => ItemKind::Approval,
        _ => ItemKind::CustomTool,
    };
    let item = match said.item {
        Some(id) => id,
        None => only_open(draft, kind)?,
    };
    let open = draft
        .state()
        .items
        .get(&item.seq())
        .filter(|i| i.id == item && i.kind == kind);
    let Some(open) = open else {
        return Err(not_open(facts, item, kind));
    };
    let state = match said.granted {
        None => ItemState::Answered,
        Some(true) => ItemState::Granted,
        Some(false) => ItemState::Denied,
    };
    let tool = open.tool.as_ref().filter(|_| said.remember);
    let label = tool.map(|tool| format!("{} {tool}", state.text()));
    let mut emit = Emit::by(request.author.clone(), None).refers(item);
    emit.label = label;
    let id = draft.emit_input(input, emit, Body::Opaque);
    draft.caused_by(Cause::Event(id));
    let by = request.author.id.clone();
    let body = ItemClosed {
        item_id: item,
        state,
        by,
        answer_id: Some(id),
        signal: None,
    };
    let run = draft.run_ref();
    draft.emit(
        EventType::ItemClosed,
        Emit::system(run),
        Body::ItemClosed(body),
    );
    turn::go_on(draft, id)?;
    Ok(id)
}

/// The item meant by an answer that names none: the only open one of its kind.
fn only_open(draft: &mut Draft<'_>, kind: ItemKind) -> Result<EventId, Rejection> {
    let items = draft.state().items.values().filter(|i| i.kind == kind);
    let open: Vec<EventId> = items.map(|i| i.id).collect();
    match open.as_slice() {
        [only] => Ok(*only),
        [] => Err(Rejection::new(
            Code::ItemNotOpen,
            format!("no {} is open", kind.text()),
        )),
        several => {
            let ids: Vec<Value> = several.iter().map(|id| json!(id)).collect();
            Err(Rejection::plain(Code::ItemAmbiguous).with("open_item_ids", ids))
        }
    }
}

fn not_open(facts: &Facts, item: EventId, kind: ItemKind) -> Rejection {
    let known = facts.items.get(&item).and_then(|f| f.state);
    match known {
        Some(state) => {
            let r = Rejection::new(Code::ItemNotOpen, format!("{item} is {}", state.text()));
            r.with("state", state.text())
        }
        None => Rejection::new(
            Code::ItemNotOpen,
            format!("{item} is no open {}", kind.text()),
        ),
    }
}

/// Holds a caller's pairs to their limits.
///
/// # Errors
/// `session.metadata_invalid`.
pub fn check_metadata(metadata: &Map<String, Value>, limits: &Limits) -> Result<(), Rejection> {
    let bad = |detail: String| Err(Rejection::new(Code::MetadataInvalid, detail));
    if metadata.len() > limits.metadata_pairs_max {
        return bad(format!(
            "{} pairs; at most {}",
            metadata.len(),
            limits.metadata_pairs_max
        ));
    }
    for (key, value) in metadata {
        if key.is_empty() || key.len() > limits.metadata_key_bytes_max {
            return bad(format!(
                "a key has 1 to {} bytes",
                limits.metadata_key_bytes_max
            ));
        }
        if value.is_object() || value.is_array() {
            return bad(format!("`{key}` is not a scalar"));
        }
        if value.to_string().len() > limits.metadata_value_bytes_max {
            return bad(format!(
                "`{key}` is over {} bytes",
                limits.metadata_value_bytes_max
            ));
        }
    }
    Ok(())
}
