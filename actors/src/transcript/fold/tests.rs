use serde_json::{Value, json};

use super::{Fold, summary};
use crate::ids::EventId;
use crate::transcript::{Block, Message, Role};

fn fold(events: &[Value]) -> Vec<Message> {
    let mut fold = Fold::default();
    for event in events {
        fold.push(event, &mut |id| {
            events.iter().find(|e| e["id"] == id).cloned()
        });
    }
    fold.into_messages()
}

fn event(seq: u64, kind: &str, content: Value) -> Value {
    json!({"seq": seq, "id": format!("evt_{seq}"), "type": kind, "content": content, "content_state": "present"})
}

fn shown(messages: &[Message]) -> Vec<String> {
    messages
        .iter()
        .map(|m| {
            let blocks: Vec<String> = m
                .content
                .iter()
                .map(|b| match b {
                    Block::Text { text } => text.clone(),
                    Block::Summary { text, through_seq } => format!("[{text} ..{through_seq}]"),
                    Block::ToolUse { id, name, .. } => format!("{name}({id})"),
                    Block::ToolResult {
                        tool_use_id,
                        output,
                        is_error,
                    } => {
                        format!("{tool_use_id}={output}{}", if *is_error { "!" } else { "" })
                    }
                    Block::Unreadable {
                        event_type,
                        content_state,
                    } => format!("{event_type} {content_state}"),
                })
                .collect();
            format!(
                "{:?} {}..{} {}",
                m.role,
                m.seq,
                m.through_seq,
                blocks.join(" | ")
            )
        })
        .collect()
}

#[test]
fn a_message_stands_where_it_was_taken() {
    let log = [
        event(1, "user.message", json!({"text": "one"})),
        event(2, "run.inputs_taken", json!({"event_ids": ["evt_1"]})),
        event(
            3,
            "user.message",
            json!({"blocks": [{"text": "two"}, {"text": "three"}]}),
        ),
        event(4, "agent.message", json!({"text": "first"})),
        event(5, "run.inputs_taken", json!({"event_ids": ["evt_3"]})),
        event(6, "user.message", json!({"text": "nobody took this"})),
    ];
    let expected = [
        "User 2..2 one",
        "Assistant 4..4 first",
        "User 5..5 two | three",
    ];
    assert_eq!(shown(&fold(&log)), expected);
}

#[test]
fn words_and_calls_of_one_answer_are_one_message_and_so_are_their_results() {
    let log = [
        event(1, "agent.message", json!({"text": "look"})),
        event(
            2,
            "agent.tool_use",
            json!({"name": "bash", "input": {"command": "ls"}}),
        ),
        event(
            3,
            "agent.custom_tool_use",
            json!({"name": "page", "input": {}}),
        ),
        event(
            4,
            "user.custom_tool_result",
            json!({"tool_use_id": "evt_3", "output": "b"}),
        ),
        event(
            5,
            "agent.tool_result",
            json!({"tool_use_id": "evt_2", "output": "a", "is_error": true}),
        ),
        event(6, "agent.message", json!({"text": "done"})),
    ];
    let expected = [
        "Assistant 1..3 look | bash(evt_2) | page(evt_3)",
        "Tool 4..5 evt_3=\"b\" | evt_2=\"a\"!",
        "Assistant 6..6 done",
    ];
    assert_eq!(shown(&fold(&log)), expected);
}

#[test]
fn a_cancelled_call_has_a_result() {
    let log = [
        event(1, "agent.tool_use", json!({"name": "bash", "input": {}})),
        event(2, "agent.question", json!({"text": "sure?"})),
        event(
            3,
            "item.closed",
            json!({"item_id": "evt_1", "state": "cancelled"}),
        ),
        event(
            4,
            "item.closed",
            json!({"item_id": "evt_2", "state": "answered"}),
        ),
        event(
            5,
            "item.closed",
            json!({"item_id": "evt_9", "state": "cancelled"}),
        ),
    ];
    let expected = [
        "Assistant 1..2 bash(evt_1) | question(evt_2)",
        "Tool 3..3 evt_1=\"cancelled\"!",
    ];
    assert_eq!(shown(&fold(&log)), expected);
}

#[test]
fn an_answered_question_is_a_result() {
    let log = [
        event(1, "agent.question", json!({"text": "which?"})),
        event(
            2,
            "user.question_answer",
            json!({"question_id": "evt_1", "answers": [["a"]]}),
        ),
        event(3, "agent.question", json!({"text": "sure?"})),
        event(
            4,
            "user.question_answer",
            json!({"question_id": "evt_3", "dismissed": true}),
        ),
    ];
    let expected = [
        "Assistant 1..1 question(evt_1)",
        "Tool 2..2 evt_1=[[\"a\"]]",
        "Assistant 3..3 question(evt_3)",
        "Tool 4..4 evt_3=\"dismissed\"",
    ];
    assert_eq!(shown(&fold(&log)), expected);
}

#[test]
fn what_cannot_be_read_is_said() {
    let mut gone = event(1, "user.message", Value::Null);
    gone["content_state"] = json!("erased");
    let mut call = event(3, "agent.tool_use", Value::Null);
    call["content_state"] = json!("expired");
    let log = [
        gone,
        event(
            2,
            "run.inputs_taken",
            json!({"event_ids": ["evt_1", "evt_77"]}),
        ),
        call,
    ];
    let expected = [
        "User 2..2 user.message erased | user.message missing",
        "Assistant 3..3 agent.tool_use expired",
    ];
    assert_eq!(shown(&fold(&log)), expected);
}

#[test]
fn a_hook_speaks_as_a_person_and_empty_words_are_none() {
    let log = [
        event(1, "agent.message", json!({"text": ""})),
        event(
            2,
            "agent.message",
            json!({"text": "tests fail", "role": "user"}),
        ),
    ];
    assert_eq!(shown(&fold(&log)), ["User 2..2 tests fail"]);
}

#[test]
fn a_summary_stands_for_what_was_before_it() {
    let compacted = event(
        9,
        "agent.context_compacted",
        json!({"summary": "so far", "through_seq": 7}),
    );
    let message = summary(&compacted);
    assert_eq!(message.role, Role::User);
    assert_eq!(shown(&[message]), ["User 7..7 [so far ..7]"]);
}

#[test]
fn a_result_of_a_call_that_is_summed_up_went_with_it() {
    let id = |seq| EventId::with_seq([7; 16], seq).to_string();
    let log = [
        event(20, "user.message", json!({"text": "meanwhile"})),
        event(21, "run.inputs_taken", json!({"event_ids": ["evt_20"]})),
        event(
            24,
            "agent.tool_result",
            json!({"tool_use_id": id(19), "output": "a"}),
        ),
        event(
            25,
            "item.closed",
            json!({"item_id": id(18), "state": "cancelled"}),
        ),
    ];
    let mut fold = Fold::after_summary(20);
    for event in &log {
        fold.push(event, &mut |id| log.iter().find(|e| e["id"] == id).cloned());
    }
    assert_eq!(shown(fold.messages()), ["User 21..21 meanwhile"]);
}
