//! A time has come. Each expiry names what it is about, so that a late one changes nothing.

use super::draft::{Draft, Emit};
use super::{checkpoint, contents, turn};
use crate::code::{Code, Rejection};
use crate::ids::TokenDigest;
use crate::session::command::Expiry;
use crate::session::decision::{Decision, Reply};
use crate::session::event::{Author, EventType};
use crate::session::facts::{Facts, LostReason};
use crate::session::payload::{
    Body, ItemClosed, ItemState, Outcome, RequeueReason, RunError, WaitingOn,
};
use crate::session::state::{LiveRun, Phase};

/// Decides one expiry; one that is out of date is answered and writes nothing.
pub(super) fn expire(
    mut draft: Draft<'_>,
    facts: &Facts,
    expiry: Expiry,
) -> Result<Decision, Rejection> {
    match expiry {
        Expiry::Lease(token) => lease(&mut draft, token)?,
        Expiry::Startup(token) => {
            if claimed(&draft, token).is_some_and(|r| r.phase == Phase::Claimed) {
                turn::lose(&mut draft, RequeueReason::Startup)?;
            }
        }
        Expiry::Deadline(token) => deadline(&mut draft, token)?,
        Expiry::Hold { parked_seq } => {
            let run = draft.base().run.as_ref();
            if run.is_some_and(|r| r.parked_seq == parked_seq && r.phase == Phase::Waiting) {
                turn::let_go(&mut draft, "held too long", LostReason::Parked, None)?;
            }
        }
        Expiry::Wait { parked_seq, index } => wait(&mut draft, parked_seq, index)?,
        // The timer counts elapsed time: a wall clock that went back delays nothing.
        Expiry::Checkpoint { seq } => checkpoint::expire(&mut draft, Some(seq)),
        Expiry::Contents { since_seq } => return Ok(contents::expire(draft, facts, since_seq)),
    }
    Ok(draft.done(Reply::ok()))
}

fn claimed<'a>(draft: &Draft<'a>, token: TokenDigest) -> Option<&'a LiveRun> {
    let run = draft.base().run.as_ref()?;
    run.claim.as_ref().filter(|c| c.token == token).map(|_| run)
}

fn lease(draft: &mut Draft<'_>, token: TokenDigest) -> Result<(), Rejection> {
    match claimed(draft, token).map(|r| r.phase) {
        Some(Phase::Waiting) => turn::let_go(draft, "claim lost", LostReason::Lease, None),
        Some(_) => turn::lose(draft, RequeueReason::Lease),
        None => Ok(()),
    }
}

fn deadline(draft: &mut Draft<'_>, token: TokenDigest) -> Result<(), Rejection> {
    if claimed(draft, token).is_none() {
        return Ok(());
    }
    let seconds = draft
        .base()
        .about
        .as_ref()
        .map_or(0, |a| a.pin.max_duration_seconds);
    let error = RunError {
        code: Code::TurnDeadline.text().to_owned(),
        message: format!("the attempt ran past start-up plus {seconds} s"),
    };
    let end = turn::End {
        error: Some(error),
        ..turn::End::new(Outcome::Failed, "deadline", LostReason::Deadline)
    };
    turn::end(draft, end, &Author::system())
}

fn wait(draft: &mut Draft<'_>, parked_seq: u64, index: u32) -> Result<(), Rejection> {
    let Some(run) = draft
        .base()
        .run
        .as_ref()
        .filter(|r| r.parked_seq == parked_seq)
    else {
        return Ok(());
    };
    let at = usize::try_from(index).ok();
    let Some(wait) = at.and_then(|i| run.waits.get(i)).filter(|w| !w.done) else {
        return Ok(());
    };
    let WaitingOn::Signal { signal, .. } = &wait.on else {
        return Ok(());
    };
    let body = ItemClosed {
        item_id: run.parked_id,
        state: ItemState::Expired,
        by: Author::system().id,
        answer_id: None,
        signal: Some(signal.clone()),
    };
    let run_ref = draft.run_ref();
    let id = draft.emit(
        EventType::ItemClosed,
        Emit::system(run_ref),
        Body::ItemClosed(body),
    );
    turn::go_on(draft, id)
}
