//! What is sent, byte for byte.

use longhaul_actors::transcript::{Block, Message, Role};
use serde_json::{Value, json};

use super::provider::Reply;
use super::{ModelRequest, ask, hello, model, respond, simple, tool};

fn message(role: Role, content: Vec<Block>) -> Message {
    Message {
        role,
        content,
        seq: 0,
        through_seq: 0,
    }
}

fn text(text: &str) -> Block {
    let text = text.to_owned();
    Block::Text { text }
}

fn call(id: &str, name: &str, input: Value) -> Block {
    Block::ToolUse {
        id: id.to_owned(),
        name: name.to_owned(),
        input,
    }
}

fn result(of: &str, output: Value, is_error: bool) -> Block {
    Block::ToolResult {
        tool_use_id: of.to_owned(),
        output,
        is_error,
    }
}

/// Everything at once: a summary, neighbours of one role, parallel calls with steering between
/// them and their results, an unreadable part.
fn conversation() -> Vec<Message> {
    vec![
        message(
            Role::User,
            vec![Block::Summary {
                text: "They met.".to_owned(),
                through_seq: 40,
            }],
        ),
        Message::text(Role::User, "list it"),
        message(
            Role::Assistant,
            vec![
                text("Looking."),
                call("evt_1", "bash", json!({"command": "ls"})),
                call("evt_2", "bash", json!({"command": "pwd"})),
            ],
        ),
        Message::text(Role::User, "quickly"),
        message(Role::Tool, vec![result("evt_2", json!("/work"), false)]),
        message(Role::Tool, vec![result("evt_1", json!({"code": 1}), true)]),
        message(
            Role::User,
            vec![Block::Unreadable {
                event_type: "user.message".to_owned(),
                content_state: "erased".to_owned(),
            }],
        ),
    ]
}

/// The body that is sent for this request.
async fn sent(route: &str, request: &ModelRequest) -> Value {
    let (provider, _, model) = model(route).await;
    provider.will([Reply::Stream(simple(route, "hi"))]);
    let (answer, _) = respond(&model, request).await;
    answer.expect("an answer");
    let asked = provider.asked().remove(0);
    let path = if route == "anthropic" {
        "/v1/messages"
    } else {
        "/v1/chat/completions"
    };
    assert_eq!(asked.path, path);
    asked.body
}

#[tokio::test]
async fn anthropic_gets_turns_with_the_results_first() {
    let mut request = ask(conversation());
    request.tools = std::sync::Arc::new(vec![tool()]);
    let expected = json!({
        "model": "test-1",
        "max_tokens": 16384,
        "stream": true,
        "system": [{"type": "text", "text": "Be brief.",
            "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "bash", "description": "A shell.", "input_schema":
            {"type": "object", "properties": {"command": {"type": "string"}}}}],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "Summary of the conversation until here:\nThey met."},
                {"type": "text", "text": "list it"},
            ]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "evt_1", "name": "bash", "input": {"command": "ls"}},
                {"type": "tool_use", "id": "evt_2", "name": "bash", "input": {"command": "pwd"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "evt_1", "content": "{\"code\":1}",
                    "is_error": true},
                {"type": "tool_result", "tool_use_id": "evt_2", "content": "/work"},
                {"type": "text", "text": "quickly"},
                {"type": "text", "text": "[user.message: its content is erased]",
                    "cache_control": {"type": "ephemeral"}},
            ]},
        ],
    });
    assert_eq!(sent("anthropic", &request).await, expected);
}

#[tokio::test]
async fn openai_gets_one_message_for_each_result() {
    let mut request = ask(conversation());
    request.tools = std::sync::Arc::new(vec![tool()]);
    request.output_tokens_max = Some(100);
    let expected = json!({
        "model": "test-1",
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_completion_tokens": 100,
        "tools": [{"type": "function", "function": {"name": "bash", "description": "A shell.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user",
                "content": "Summary of the conversation until here:\nThey met.\n\nlist it"},
            {"role": "assistant", "content": "Looking.", "tool_calls": [
                {"id": "evt_1", "type": "function", "function":
                    {"name": "bash", "arguments": "{\"command\":\"ls\"}"}},
                {"id": "evt_2", "type": "function", "function":
                    {"name": "bash", "arguments": "{\"command\":\"pwd\"}"}},
            ]},
            {"role": "tool", "tool_call_id": "evt_1", "content": "Error: {\"code\":1}"},
            {"role": "tool", "tool_call_id": "evt_2", "content": "/work"},
            {"role": "user", "content": "quickly\n\n[user.message: its content is erased]"},
        ],
    });
    assert_eq!(sent("openai", &request).await, expected);
}

#[tokio::test]
async fn a_bad_models_past_is_made_acceptable() {
    // Repeated ids, ids and names that no provider takes, arguments that are no object, blank
    // words, a call without a result, a result without a call, an agent that speaks first.
    let request = ask(vec![
        message(
            Role::Assistant,
            vec![
                text("  "),
                call("x", "ba sh!", json!("{\"half\": ")),
                call("x", "", json!({})),
            ],
        ),
        message(
            Role::Tool,
            vec![
                result("x", json!(""), false),
                result("x", json!("second"), false),
                result("x", json!("third"), false),
            ],
        ),
        message(Role::Assistant, vec![call("é:1", "t", json!({}))]),
    ]);
    let body = sent("anthropic", &request).await;
    let opening = "The conversation starts with the agent's own words.";
    assert_eq!(
        body["messages"],
        json!([
            {"role": "user", "content": [{"type": "text", "text": opening}]},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "x", "name": "ba_sh_",
                    "input": {"unreadable_arguments": "{\"half\": "}},
                {"type": "tool_use", "id": "x-2", "name": "unknown", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "x", "content": "(no output)"},
                {"type": "tool_result", "tool_use_id": "x-2", "content": "second"},
                {"type": "text", "text": "Result of a call that is gone: third"},
            ]},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "__1", "name": "t", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "__1", "is_error": true,
                    "content": "There is no result: it is gone, or was never recorded.",
                    "cache_control": {"type": "ephemeral"}},
            ]},
        ])
    );
}

#[tokio::test]
async fn rounds_of_calls_stay_apart() {
    let request = ask(vec![
        Message::text(Role::User, "go"),
        message(Role::Assistant, vec![call("a", "t", json!({}))]),
        message(Role::Tool, vec![result("a", json!("1"), false)]),
        message(Role::Assistant, vec![call("b", "t", json!({}))]),
        message(Role::Tool, vec![result("b", json!("2"), false)]),
        Message::text(Role::Assistant, "done"),
        message(Role::Assistant, vec![call("c", "t", json!({}))]),
        message(Role::Tool, vec![result("c", json!("3"), false)]),
    ]);
    let use_of = |id: &str| json!({"type": "tool_use", "id": id, "name": "t", "input": {}});
    let result_of = |id: &str, output: &str| json!({"type": "tool_result", "tool_use_id": id, "content": output});
    let mut last = result_of("c", "3");
    last["cache_control"] = json!({"type": "ephemeral"});
    let body = sent("anthropic", &request).await;
    assert_eq!(
        body["messages"],
        json!([
            {"role": "user", "content": [{"type": "text", "text": "go"}]},
            {"role": "assistant", "content": [use_of("a")]},
            {"role": "user", "content": [result_of("a", "1")]},
            {"role": "assistant", "content": [use_of("b")]},
            {"role": "user", "content": [result_of("b", "2")]},
            {"role": "assistant", "content": [{"type": "text", "text": "done"}, use_of("c")]},
            {"role": "user", "content": [last]},
        ])
    );
    let body = sent("openai", &request).await;
    let roles: Vec<&str> = body["messages"]
        .as_array()
        .expect("messages")
        .iter()
        .filter_map(|m| m["role"].as_str())
        .collect();
    let expected = [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ];
    assert_eq!(roles, expected);
}

#[tokio::test]
async fn a_result_that_comes_late_stands_behind_its_call() {
    let request = ask(vec![
        Message::text(Role::User, "go"),
        message(Role::Assistant, vec![call("a", "t", json!({}))]),
        Message::text(Role::User, "wait"),
        Message::text(Role::Assistant, "waiting"),
        message(Role::Tool, vec![result("a", json!("late"), false)]),
        Message::text(Role::User, "and?"),
    ]);
    let body = sent("openai", &request).await;
    assert_eq!(
        body["messages"],
        json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "t", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "late"},
            {"role": "user", "content": "wait"},
            {"role": "assistant", "content": "waiting"},
            {"role": "user", "content": "and?"},
        ])
    );
}

#[tokio::test]
async fn no_instructions_are_no_field() {
    let mut request = hello();
    request.system = " ".to_owned();
    request.tools = std::sync::Arc::new(vec![tool()]);
    request.output_tokens_max = Some(7);
    let body = sent("anthropic", &request).await;
    assert!(body.get("system").is_none());
    assert_eq!(body["max_tokens"], 7);
    // Without instructions the tools are what can be cached.
    assert_eq!(body["tools"][0]["cache_control"]["type"], "ephemeral");
    let body = sent("openai", &request).await;
    let words = json!([{"role": "user", "content": "hello"}]);
    assert_eq!(body["messages"], words);
}

#[tokio::test]
async fn a_schema_is_sent_in_each_providers_way() {
    let strict = json!({"type": "object", "additionalProperties": false, "required": ["a"],
        "properties": {"a": {"type": ["object", "null"], "additionalProperties": false,
            "required": ["properties"], "properties": {"properties": {"type": "string"}}}}});
    let mut request = hello();
    request.schema = Some(strict.clone());
    let body = sent("anthropic", &request).await;
    let format = json!({"format": {"type": "json_schema", "schema": strict}});
    assert_eq!(body["output_config"], format);
    let of = |schema: &Value, is: bool| {
        json!({"type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": is}})
    };
    let body = sent("openai", &request).await;
    assert_eq!(body["response_format"], of(&strict, true));
    // What `strict` would refuse is sent without it.
    for path in ["/required", "/properties/a/additionalProperties"] {
        let mut open = strict.clone();
        *open.pointer_mut(path).expect("there") = Value::Null;
        request.schema = Some(open.clone());
        let body = sent("openai", &request).await;
        assert_eq!(body["response_format"], of(&open, false));
    }
}
