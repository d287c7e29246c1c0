//! Every rule of a session: a plain function from state, facts and command to events.

mod attempt;
mod checkpoint;
mod claim;
mod contents;
mod draft;
mod expire;
mod fork;
mod operate;
mod park;
mod people;
mod prune;
mod resume;
mod step;
mod turn;

use super::command::{Command, Request};
use super::decision::{Decision, Reply};
use super::facts::Facts;
use super::state::{About, State};
use crate::code::{Code, Rejection};
use crate::env::Env;
use draft::Draft;

pub use fork::base_of;
pub use operate::{is_paused, record};
pub use people::{check_metadata, erased_reply};
pub use resume::OLDER;

/// Decides one command.
///
/// # Errors
/// The refusals of each command, by code. A refused command changes nothing.
pub fn decide(
    state: &State,
    facts: &Facts,
    command: &Command,
    env: &Env<'_>,
) -> Result<Decision, Rejection> {
    let draft = Draft::new(state, env);
    match command {
        Command::Create(c) => people::create(draft, facts, c),
        Command::Fork(f) => fork::fork(draft, facts, f),
        Command::Operate(o) => operate::operate(draft, facts, o),
        Command::Pin(p) => checkpoint::pin(draft, facts, p),
        Command::Prune(p) => prune::prune(draft, facts, p),
        Command::Submit(s) => people::submit(draft, facts, s),
        Command::Budget(b) => people::budget(draft, facts, b),
        Command::Resume(r) => resume::resume(draft, facts, r),
        Command::Complete(r) => people::complete(draft, facts, r),
        Command::Cancel(r) => people::cancel(draft, facts, r),
        Command::Erase(r) => people::erase(draft, r),
        Command::Claim(c) => claim::claim(draft, facts, c),
        Command::Attempt(call) => attempt::call(draft, facts, call),
        Command::Expire(e) => expire::expire(draft, facts, *e),
    }
}

/// The session must exist for this caller: foreign and absent look alike.
fn visible<'a>(state: &'a State, request: &Request) -> Result<&'a About, Rejection> {
    let about = state
        .about
        .as_ref()
        .filter(|a| request.viewer.sees(a.workspace, &a.principal));
    about.ok_or_else(|| not_found(state))
}

fn not_found(state: &State) -> Rejection {
    Rejection::new(
        Code::SessionNotFound,
        format!("there is no session {} here", state.id),
    )
}

/// The kept answer to this very request, if there is one.
fn repeated(
    facts: &Facts,
    request: &Request,
    env: &Env<'_>,
) -> Result<Option<Decision>, Rejection> {
    let Some(key) = request.receipt else {
        return Ok(None);
    };
    match facts.receipt.as_ref().filter(|r| is_kept(r.at_ms, env)) {
        None => Ok(None),
        Some(r) if r.body == key.body => Ok(Some(Decision::answer(r.reply.clone()))),
        Some(_) => Err(Code::IdempotencyConflict.into()),
    }
}

fn is_kept(at_ms: i64, env: &Env<'_>) -> bool {
    env.now_ms.saturating_sub(at_ms) <= RECEIPT_MS_MAX
}

/// How long the answer to an Idempotency-Key is kept: 7 days.
pub const RECEIPT_MS_MAX: i64 = 7 * 24 * 3_600 * 1_000;

impl Decision {
    /// An answer that changes nothing.
    pub(crate) fn answer(reply: Reply) -> Self {
        Self {
            events: Vec::new(),
            rows: Vec::new(),
            reply,
            granted: None,
            begun: None,
            refused: None,
            erase: false,
            expire: Vec::new(),
            again_ms: None,
        }
    }
}
