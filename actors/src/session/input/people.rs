//! Contents of `user.*` events.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::RECORD;
use super::json::typed;
use crate::code::{Code, Rejection};
use crate::ids::EventId;
use crate::session::command::Ask;
use crate::session::event::EventType;

/// Longest signal name, bytes.
pub(super) const SIGNAL_NAME_BYTES_MAX: usize = 128;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message<'a> {
    #[serde(default)]
    text: Option<String>,
    #[serde(borrow, default)]
    blocks: Option<Vec<&'a RawValue>>,
    /// A label of the sender's; it never changes who acts.
    #[serde(default, rename = "sender_id")]
    _sender_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Interrupt {
    #[serde(default, rename = "reason")]
    _reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolResult<'a> {
    #[serde(default)]
    tool_use_id: Option<EventId>,
    #[serde(borrow, rename = "output")]
    _output: &'a RawValue,
    #[serde(default, rename = "is_error")]
    _is_error: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QuestionAnswer {
    #[serde(default)]
    question_id: Option<EventId>,
    #[serde(default)]
    answers: Option<Vec<Vec<String>>>,
    #[serde(default)]
    dismissed: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Approval<'a> {
    #[serde(default)]
    approval_id: Option<EventId>,
    decision: ApprovalDecision,
    #[serde(borrow, default)]
    edited_input: Option<&'a RawValue>,
    #[serde(default, rename = "reason")]
    _reason: Option<String>,
    #[serde(default)]
    remember: bool,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum ApprovalDecision {
    Granted,
    Denied,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignalContent<'a> {
    name: String,
    #[serde(borrow, default, rename = "payload")]
    _payload: Option<&'a RawValue>,
}

/// What an event of people asks for.
pub(super) fn ask(kind: EventType, content: &str) -> Result<Ask, Rejection> {
    let json = content.as_bytes();
    let invalid = |detail: &str| Err(Rejection::new(Code::FieldInvalid, detail));
    match kind {
        EventType::UserMessage => {
            let m: Message<'_> = typed(json)?;
            match (m.text, m.blocks) {
                (Some(_), None) => Ok(Ask::Message),
                (None, Some(blocks)) if !blocks.is_empty() => Ok(Ask::Message),
                _ => invalid("a message has either `text` or a non-empty `blocks`"),
            }
        }
        EventType::UserInterrupt => typed::<Interrupt>(json).map(|_| Ask::Interrupt),
        EventType::UserCustomToolResult => {
            let r: ToolResult<'_> = typed(json)?;
            Ok(Ask::Answer {
                item: r.tool_use_id,
                granted: None,
                remember: false,
            })
        }
        EventType::UserQuestionAnswer => {
            let a: QuestionAnswer = typed(json)?;
            match (a.answers, a.dismissed) {
                (Some(_), None | Some(false)) | (None, Some(true)) => Ok(Ask::Answer {
                    item: a.question_id,
                    granted: None,
                    remember: false,
                }),
                _ => invalid("an answer has either `answers` or `dismissed: true`"),
            }
        }
        EventType::UserActionApproval => {
            let a: Approval<'_> = typed(json)?;
            let granted = a.decision == ApprovalDecision::Granted;
            if a.edited_input.is_some() && !granted {
                return invalid("`edited_input` goes with `granted`");
            }
            Ok(Ask::Answer {
                item: a.approval_id,
                granted: Some(granted),
                remember: a.remember,
            })
        }
        EventType::UserSignal => {
            let s: SignalContent<'_> = typed(json)?;
            check_signal_name(&s.name)?;
            Ok(Ask::Signal { name: s.name })
        }
        _ => Ok(RECORD),
    }
}

/// Signal names: 1 to 128 bytes, no control characters, no surrounding white space.
pub(super) fn check_signal_name(name: &str) -> Result<(), Rejection> {
    let fits = !name.is_empty() && name.len() <= SIGNAL_NAME_BYTES_MAX;
    if fits && name.trim() == name && !name.chars().any(char::is_control) {
        return Ok(());
    }
    let detail = format!("a signal name has 1 to {SIGNAL_NAME_BYTES_MAX} printable bytes");
    Err(Rejection::new(Code::FieldInvalid, detail))
}
