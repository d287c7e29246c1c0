//! A runner gets the queued run.

use bytes::Bytes;

use super::draft::{Draft, Emit};
use super::{checkpoint, not_found, turn};
use crate::checkpoint::plan;
use crate::code::{Code, Rejection};
use crate::ids::RunnerId;
use crate::session::command::ClaimRun;
use crate::session::decision::{Decision, Granted, Reply, RowOp};
use crate::session::event::{Author, AuthorKind, Cause, EventType, RunRef};
use crate::session::facts::{Facts, LostReason};
use crate::session::payload::{
    Body, Outcome, ResumeFrom, ResumePlan, RunClaimed, RunError, RunInputsTaken,
};
use crate::session::state::{Answer, Phase, State};
use crate::session::status::Status;

/// Gives the offered run to the runner, and with it everything not yet taken.
pub(super) fn claim(
    mut draft: Draft<'_>,
    facts: &Facts,
    command: &ClaimRun,
) -> Result<Decision, Rejection> {
    let base = draft.base();
    let about = base.about.as_ref().ok_or_else(|| not_found(base))?;
    let queued =
        |r: &&crate::session::state::LiveRun| r.id == command.run && r.phase == Phase::Queued;
    let Some(run) = base.run.as_ref().filter(queued) else {
        return Err(Rejection::new(
            Code::ClaimNotFound,
            "the run is no longer queued",
        ));
    };
    if let Some(seq) = lost_input(base, facts) {
        return lost(draft, facts, seq);
    }
    let (now, limits, mono) = (draft.env.now_ms, draft.env.limits, draft.env.mono);
    if base.now.operation.is_some_and(|o| o.is_held(mono)) {
        // The dispatcher offers it again.
        return Err(Rejection::new(
            Code::SessionBusy,
            "an operation is under way",
        ));
    }
    let startup_deadline = after_s(now, limits.startup_s_max);
    let deadline = after_s(startup_deadline, about.pin.max_duration_seconds);
    let attempt = run.attempt + 1;
    let run_ref = Some(RunRef {
        id: run.id,
        attempt,
    });
    let author = Author {
        kind: AuthorKind::Runner,
        id: command.runner.to_string(),
    };
    if let Some(attached) = base.now.attached {
        if attached.runner != command.runner {
            return Err(Rejection::new(
                Code::SessionBusy,
                "another runner has the session's sandbox",
            ));
        }
        // From here on it is this attempt's.
        draft.row(RowOp::Attached(None));
    }
    // Whoever sees first that a checkpoint's time is over says so.
    checkpoint::expire(&mut draft, None);
    let (resume, blob) = resume(&mut draft, facts, command.runner)?;
    let claimed = RunClaimed {
        runner_id: command.runner,
        claim_digest: command.token,
        startup_deadline,
        deadline,
        resume: resume.clone(),
    };
    let id = draft.emit(
        EventType::RunClaimed,
        Emit::by(author, run_ref),
        Body::RunClaimed(claimed),
    );
    draft.caused_by(Cause::Event(id));
    draft.set_status(Status::Provisioning, "claim")?;
    let new = take(&mut draft, facts);
    draft.grant(Granted {
        run: run.id,
        attempt,
        continues: run.continues,
        startup_deadline_ms: startup_deadline,
        deadline_ms: deadline,
        resume,
        blob,
        pin: about.pin.clone(),
        remembered: base.remembered.clone(),
    });
    let mut inputs = facts.taken.clone();
    inputs.extend(new);
    inputs.sort_unstable_by_key(|a| a.seq);
    inputs.dedup_by_key(|a| a.seq);
    let mut reply = Reply::ok();
    reply.inputs = Some(inputs);
    Ok(draft.done(reply))
}

/// The plan, and the resume blob of its checkpoint. One whose blob is not what was said of it is
/// rejected, and the next is looked at.
fn resume(
    draft: &mut Draft<'_>,
    facts: &Facts,
    runner: RunnerId,
) -> Result<(ResumePlan, Option<Bytes>), Rejection> {
    let now_ms = draft.env.now_ms;
    loop {
        let plan = plan::plan(draft.state(), runner, now_ms);
        let id = match &plan {
            ResumePlan::Checkpoint {
                id,
                resume: ResumeFrom::Blob { .. },
                ..
            } => *id,
            _ => return Ok((plan, None)),
        };
        let seq = draft.state().checkpoints.find(id).map(|c| c.seq);
        match seq.and_then(|seq| facts.blobs.get(&seq)) {
            Some(Ok(bytes)) => return Ok((plan, Some(bytes.clone()))),
            Some(Err(why)) => checkpoint::reject(draft, id, why),
            // The dispatcher offers the run again.
            None => {
                let why = "the checkpoints changed meanwhile";
                return Err(Rejection::new(Code::Busy, why));
            }
        }
    }
}

/// The first input of the run whose content is gone for good, if any is.
fn lost_input(base: &State, facts: &Facts) -> Option<u64> {
    let never_kept = base.keeps_nothing();
    if !never_kept && base.aging.through_seq == 0 {
        return None;
    }
    let inputs = facts.taken.iter().copied().chain(untaken(base, facts));
    let from = base.now.contents_from;
    let gone = |seq: &u64| (never_kept && *seq < from) || base.aging.has_expired(*seq);
    inputs.map(|a| a.seq).filter(gone).min()
}

/// A run that cannot read its own input fails; the conversation goes on without it.
fn lost(mut draft: Draft<'_>, facts: &Facts, seq: u64) -> Result<Decision, Rejection> {
    let why = match draft.base().keeps_nothing() {
        true => "was never written, and is gone with the process",
        false => "has expired",
    };
    let error = RunError {
        code: Code::HistoryUnavailable.text().to_owned(),
        message: format!("the input at {seq} {why}"),
    };
    let end = turn::End {
        error: Some(error),
        to: Some(Status::Idle),
        ..turn::End::new(Outcome::Failed, "input unreadable", LostReason::Released)
    };
    take(&mut draft, facts);
    turn::end(&mut draft, end, &Author::system())?;
    let mut decision = draft.done(Reply::ok());
    decision.refused = Some(Rejection::new(
        Code::ClaimNotFound,
        "the run has failed: its input cannot be read",
    ));
    Ok(decision)
}

/// Takes everything untaken for the live run, visibly. Ascending; empty if there was nothing.
pub(super) fn take(draft: &mut Draft<'_>, facts: &Facts) -> Vec<Answer> {
    let new = untaken(draft.state(), facts);
    if !new.is_empty() {
        let run = draft.run_ref();
        let event_ids = new.iter().map(|a| a.id).collect();
        let body = Body::RunInputsTaken(RunInputsTaken { event_ids });
        draft.emit(EventType::RunInputsTaken, Emit::system(run), body);
    }
    new
}

/// The messages and the waited-for answers that the live run has not taken.
fn untaken(state: &State, facts: &Facts) -> Vec<Answer> {
    let messages = state.untaken.into_iter().flat_map(|u| {
        facts
            .inputs
            .iter()
            .filter(move |a| a.seq >= u.first_seq)
            .copied()
    });
    let answers = state.run.iter().flat_map(|r| r.answers.iter().copied());
    let mut new: Vec<Answer> = messages.chain(answers).collect();
    new.sort_unstable_by_key(|a| a.seq);
    new.dedup_by_key(|a| a.seq);
    new
}

fn after_s(ms: i64, seconds: u64) -> i64 {
    let more = i64::try_from(seconds)
        .unwrap_or(i64::MAX)
        .saturating_mul(1_000);
    ms.saturating_add(more)
}
