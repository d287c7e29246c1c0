//! Sub-agents: the same loop on a branch of the journal. Their conversation is made again from
//! the journal, not from the log: a step that is complete gives what it gave.

use std::sync::Arc;

use futures_util::future::FutureExt;
use futures_util::stream::{self, StreamExt};
use longhaul_actors::transcript::{Block, Message, Role};

use super::answer::{cut, digest, kept, priced, tool_specs};
use super::drive::{Halt, unexpected};
use super::past::{MODEL, TOOL, Use};
use super::tools::{Call, Hands, unlogged};
use super::{AgentSpec, AgentTool, ApprovalMode, CALLS_MAX};
use crate::journal::{Begun, Extra, Journal, OnDoubt, OnFailure, Step, StepError, StepValue};
use crate::model::{ModelAnswer, ModelRequest};
use crate::runner::Attempt;
use crate::tool::ToolOutput;

/// Runs an agent on a prompt; its last words.
pub(super) async fn run(
    attempt: &Attempt,
    journal: &Journal,
    spec: &AgentSpec,
    prompt: &str,
) -> Result<ToolOutput, Halt> {
    let hands = Hands {
        attempt,
        spec,
        journal,
    };
    let digest = digest(spec);
    let tools = Arc::new(tool_specs(spec));
    let mut messages = vec![Message::text(Role::User, prompt)];
    for turn in 0..spec.limits.turns_max {
        let request = ModelRequest {
            system: spec.instructions.clone(),
            messages: Arc::new(messages.clone()),
            tools: Arc::clone(&tools),
            output_tokens_max: spec.limits.output_tokens_max,
            schema: spec.output_schema.clone(),
            call_index: u64::from(turn),
        };
        let answer = match answered(&hands, &digest, turn, &request).await? {
            Ok(answer) => answer,
            Err(why) => return Ok(ToolOutput::error(why)),
        };
        let calls = calls_of(turn, &answer);
        if calls.is_empty() {
            return Ok(ToolOutput::text(answer.text));
        }
        messages.push(said(&answer, &calls));
        messages.push(results(&hands, calls).await?);
    }
    let text = format!(
        "it was asked {} times and has not come to an end",
        spec.limits.turns_max
    );
    Ok(ToolOutput::error(text))
}

/// One answer; from the journal where it is there. The inner error is the model's.
async fn answered(
    hands: &Hands<'_>,
    digest: &str,
    turn: u32,
    request: &ModelRequest,
) -> Result<Result<ModelAnswer, String>, Halt> {
    let step = Step::named(MODEL)
        .at(turn)
        .on_doubt(OnDoubt::Retry)
        .on_failure(OnFailure::Surface);
    let begun = hands.journal.begin(step, digest).await;
    let open = match begun.map_err(Halt::of)? {
        Begun::Execute(open) => open,
        Begun::Completed {
            value: StepValue::Json(json),
            ..
        } => {
            let answer = serde_json::from_slice(&json).map_err(|_| unexpected(MODEL))?;
            return Ok(Ok(answer));
        }
        Begun::Failed { error, .. } => return Ok(Err(error.to_string())),
        _ => return Err(unexpected(MODEL)),
    };
    match hands.spec.model.respond(request, &mut |_| {}).await {
        Ok(mut answer) => {
            answer.text = cut(&answer.text);
            answer.tool_calls.truncate(CALLS_MAX);
            let value = serde_json::to_value(&answer).map_err(|_| unexpected(MODEL))?;
            let extra = Extra {
                usage: Some(priced(&answer, hands.spec.prices)),
                events: Vec::new(),
            };
            let ended = hands.journal.complete(open, kept(&value), extra).await;
            ended.map_err(Halt::of)?;
            Ok(Ok(answer))
        }
        Err(error) => {
            let told = StepError::new(error.code(), error.to_string());
            let why = told.to_string();
            let ended = hands.journal.fail(open, told, None, Extra::default()).await;
            ended.map_err(Halt::of)?;
            Ok(Err(why))
        }
    }
}

/// The calls of an answer, under ids of their own: a model's may be repeated.
fn calls_of(turn: u32, answer: &ModelAnswer) -> Vec<Use> {
    (0..)
        .zip(&answer.tool_calls)
        .map(|(i, call): (u32, _)| Use {
            id: format!("{turn}.{i}"),
            name: call.name.clone(),
            input: call.input.clone(),
            malformed: call.malformed.clone(),
            custom: false,
        })
        .collect()
}

fn said(answer: &ModelAnswer, calls: &[Use]) -> Message {
    let text = (!answer.text.is_empty()).then(|| Block::Text {
        text: answer.text.clone(),
    });
    let calls = calls.iter().map(|call| Block::ToolUse {
        id: call.id.clone(),
        name: call.name.clone(),
        input: call.input.clone(),
    });
    Message {
        content: text.into_iter().chain(calls).collect(),
        ..Message::text(Role::Assistant, "")
    }
}

/// Makes the calls, in parallel; their results in the order of the calls.
async fn results(hands: &Hands<'_>, calls: Vec<Use>) -> Result<Message, Halt> {
    let calls: Vec<Call> = calls.into_iter().map(|c| call_of(hands.spec, c)).collect();
    let parallel = hands.spec.limits.calls_parallel_max.max(1);
    let made = |call| unlogged(hands, call, format!("{TOOL}{}", call.asked.id)).boxed();
    let all: Vec<_> = calls.iter().map(made).collect();
    let mut running = stream::iter(all).buffered(parallel);
    let (mut content, mut ids) = (Vec::new(), calls.iter().map(|c| &c.asked.id));
    while let (Some(output), Some(id)) = (running.next().await, ids.next()) {
        let output = output?;
        content.push(Block::ToolResult {
            tool_use_id: id.clone(),
            output: output.output,
            is_error: output.is_error,
        });
    }
    Ok(Message {
        content,
        ..Message::text(Role::Tool, "")
    })
}

/// A call as it is made: one that people would have to be asked for is not.
fn call_of(spec: &AgentSpec, asked: Use) -> Call {
    let asks = |t: &AgentTool| t.approval() == ApprovalMode::Ask;
    let denied = spec.find(&asked.name).is_some_and(asks);
    Call {
        asked,
        is_edited: false,
        denied: denied.then(|| "the call was denied: nobody can be asked here".to_owned()),
    }
}
