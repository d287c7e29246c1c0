//! Whether a call may be made: decided by its settings, by what is remembered, by the program, or
//! by people, for whom the run is parked.

use serde_json::{Value, json};

use super::answer::kept;
use super::drive::{Driver, Halt, unexpected};
use super::past::{Asked, Use};
use super::tools::Call;
use super::{Approval, ApprovalAsk, ApprovalMode, Approver};
use crate::journal::{Begun, Extra, OnDoubt, OnFailure, Step, StepValue};
use crate::runner::Failure;
use crate::runner::history::{event_by_id, text_at};

/// What the model is told of a call that was denied.
const DENIED: &str = "the call was denied";

/// Whether a call goes on now.
pub(super) enum Gate {
    /// It is made, or answered without being made.
    Open(Call),
    /// It waits for this.
    Wait(Value),
}

impl Driver<'_> {
    /// Whether a call may be made; asks people where it must.
    pub(super) async fn gate(&mut self, asked: &Use) -> Result<Gate, Halt> {
        if asked.custom {
            return Ok(Gate::Wait(json!({"tool_use_id": asked.id})));
        }
        let tool = self.spec.find(&asked.name);
        let asks = tool.is_some_and(|t| t.approval() == ApprovalMode::Ask);
        if !asks || asked.malformed.is_some() {
            return Ok(Gate::Open(granted(asked, None)));
        }
        if let Some(known) = self.past.asked.get(&asked.id).cloned() {
            return self.people_said(asked, &known).await;
        }
        if let Some(granted_before) = self.remembered.get(&asked.name) {
            return Ok(Gate::Open(match granted_before {
                true => granted(asked, None),
                false => denied(asked, None),
            }));
        }
        if let Some(approver) = self.spec.approver.clone() {
            let decision = self.decide_here(&*approver, asked).await?;
            return Ok(Gate::Open(decided(asked, &decision)));
        }
        let known = self.ask_people(asked).await?;
        Ok(Gate::Wait(json!({"approval_id": known.id})))
    }

    /// What people said to an approval, if they did.
    async fn people_said(&mut self, asked: &Use, known: &Asked) -> Result<Gate, Halt> {
        let Some((state, answer_id)) = &known.closed else {
            return Ok(Gate::Wait(json!({"approval_id": known.id})));
        };
        let answer = match answer_id {
            Some(id) => self.find(id).await?,
            None => None,
        };
        Ok(Gate::Open(match answer {
            Some(answer) => {
                if answer.get("remember") == Some(&Value::Bool(true)) {
                    let granted = text_at(&answer, "decision") == Some("granted");
                    self.remembered.insert(asked.name.clone(), granted);
                }
                decided(asked, &answer)
            }
            // The answer itself is gone, or there was none: how it ended says enough.
            None if state == "granted" => granted(asked, None),
            None => denied(asked, Some(state)),
        }))
    }

    /// Opens an approval, once.
    async fn ask_people(&mut self, asked: &Use) -> Result<Asked, Halt> {
        let step = Step::named(format!("approval:{}", asked.id))
            .at(0)
            .on_doubt(OnDoubt::Retry)
            .on_failure(OnFailure::Retry);
        let about = json!({"tool": asked.name, "input": asked.input, "tool_use_id": asked.id});
        let begun = self.journal.begin(step, &about).await;
        let id = match begun.map_err(Halt::of)? {
            Begun::Execute(open) => {
                let extra = Extra {
                    usage: None,
                    events: vec![("agent.action_approval_requested".to_owned(), about)],
                };
                let ended = self.journal.complete(open, kept(&Value::Null), extra).await;
                ended.map_err(Halt::of)?.event_ids.first().copied()
            }
            Begun::Completed { event_ids, .. } => event_ids.first().copied(),
            _ => None,
        };
        let id = id.ok_or_else(|| unexpected("approval"))?.to_string();
        let known = Asked { id, closed: None };
        self.past.asked.insert(asked.id.clone(), known.clone());
        Ok(known)
    }

    /// Asks the program's own approver, once; what it says is kept.
    async fn decide_here(&self, approver: &dyn Approver, asked: &Use) -> Result<Value, Halt> {
        let step = Step::named(format!("decision:{}", asked.id))
            .at(0)
            .on_doubt(OnDoubt::Retry)
            .on_failure(OnFailure::Retry);
        let about = json!({"tool": asked.name, "input": asked.input});
        let begun = self.journal.begin(step, &about).await;
        let open = match begun.map_err(Halt::of)? {
            Begun::Execute(open) => open,
            Begun::Completed {
                value: StepValue::Json(json),
                ..
            } => {
                return serde_json::from_slice(&json).map_err(|_| unexpected("decision"));
            }
            _ => return Err(unexpected("decision")),
        };
        let ask = ApprovalAsk {
            session_id: &self.attempt.claim().session_id,
            tool_use_id: &asked.id,
            tool: &asked.name,
            input: &asked.input,
        };
        let decision = match approver.approve(ask).await {
            Ok(Approval::Granted { edited_input: None }) => json!({"decision": "granted"}),
            Ok(Approval::Granted {
                edited_input: Some(input),
            }) => json!({"decision": "granted", "edited_input": input}),
            Ok(Approval::Denied { reason }) => json!({"decision": "denied", "reason": reason}),
            Err(why) => {
                let reason = format!("nobody could be asked: {why}");
                json!({"decision": "denied", "reason": reason})
            }
        };
        let ended = self
            .journal
            .complete(open, kept(&decision), Extra::default());
        ended.await.map_err(Halt::of)?;
        Ok(decision)
    }

    /// The content of an answer, from the claim or the log.
    async fn find(&self, id: &str) -> Result<Option<Value>, Failure> {
        let inputs = &self.attempt.claim().inputs;
        let found = inputs.iter().find(|e| text_at(e, "id") == Some(id));
        let found = match found {
            Some(event) => Some(event.clone()),
            None => event_by_id(self.attempt, id).await?,
        };
        let content = found.and_then(|e| e.get("content").cloned());
        Ok(content.filter(|c| !c.is_null()))
    }
}

fn granted(asked: &Use, edited: Option<&Value>) -> Call {
    let mut call = Call {
        asked: asked.clone(),
        is_edited: edited.is_some(),
        denied: None,
    };
    if let Some(input) = edited {
        call.asked.input = input.clone();
    }
    call
}

fn denied(asked: &Use, reason: Option<&str>) -> Call {
    Call {
        asked: asked.clone(),
        is_edited: false,
        denied: Some(match reason.filter(|r| !r.is_empty()) {
            Some(reason) => format!("{DENIED}: {reason}"),
            None => DENIED.to_owned(),
        }),
    }
}

/// What an answer makes of a call.
fn decided(asked: &Use, answer: &Value) -> Call {
    match text_at(answer, "decision") {
        Some("granted") => granted(asked, answer.get("edited_input")),
        _ => denied(asked, text_at(answer, "reason")),
    }
}
