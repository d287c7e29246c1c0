//! What streams become.

use longhaul_actors::session::payload::Usage;
use serde_json::{Value, json};

use super::provider::Reply;
use super::{ModelAnswer, ModelError, events, hello, model, respond, simple};
use crate::model::StopReason;

/// The answer that these events make.
async fn answer(route: &str, values: &[Value]) -> Result<ModelAnswer, ModelError> {
    let (provider, _, model) = model(route).await;
    provider.will([Reply::Stream(events(values))]);
    let (answer, _) = respond(&model, &hello()).await;
    assert_eq!(provider.asked().len(), 1, "asked once");
    answer
}

#[tokio::test]
async fn text_comes_in_parts_and_as_a_whole() {
    for route in ["anthropic", "openai"] {
        let (provider, _, model) = model(route).await;
        // One byte at a time: no event comes whole.
        let whole = simple(route, "h\u{e9}!").concat();
        let bytes = whole.chars().map(String::from).collect();
        provider.will([Reply::Stream(bytes)]);
        let (answer, parts) = respond(&model, &hello()).await;
        let expected = ModelAnswer {
            text: "h\u{e9}!".to_owned(),
            tool_calls: vec![],
            stop: StopReason::End,
            usage: Usage {
                input_tokens: 10,
                output_tokens: 5,
                ..Usage::default()
            },
            model: "test-1-2026".to_owned(),
        };
        assert_eq!(answer.expect("an answer"), expected, "{route}");
        assert_eq!(parts, ["h\u{e9}!"]);
        assert_eq!(model.name(), format!("{route}/test-1"));
    }
}

#[tokio::test]
async fn connections_are_used_again() {
    for route in ["anthropic", "openai"] {
        let (provider, _, model) = model(route).await;
        // The last event and the end of the body come at once here, so the client has seen both.
        let whole = vec![simple(route, "x").concat()];
        provider.will(std::iter::repeat_n(Reply::Stream(whole), 3));
        for _ in 0..3 {
            let (answer, _) = respond(&model, &hello()).await;
            assert_eq!(answer.expect("an answer").text, "x");
        }
        let asked = provider.asked();
        assert_eq!(asked.len(), 3);
        assert!(asked.iter().all(|a| a.peer == asked[0].peer), "{route}");
    }
}

fn anthropic_calls(deltas: &[(u64, &str)], stop: &str) -> Vec<Value> {
    let mut all = vec![
        json!({"type": "message_start", "message": {"model": "m", "usage": {
            "input_tokens": 3, "output_tokens": 1,
            "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}}}),
        json!({"type": "content_block_start", "index": 0,
            "content_block": {"type": "thinking", "thinking": "hm"}}),
        json!({"type": "content_block_start", "index": 1,
            "content_block": {"type": "tool_use", "id": "t1", "name": "bash", "input": {}}}),
        json!({"type": "content_block_start", "index": 2,
            "content_block": {"type": "tool_use", "id": "t1", "name": "bash", "input": {}}}),
    ];
    all.extend(deltas.iter().map(|(index, piece)| {
        json!({"type": "content_block_delta", "index": index,
            "delta": {"type": "input_json_delta", "partial_json": piece}})
    }));
    all.push(
        json!({"type": "message_delta", "delta": {"stop_reason": stop},
        "usage": {"output_tokens": 50}}),
    );
    all.push(json!({"type": "message_stop"}));
    all
}

#[tokio::test]
async fn anthropic_calls_are_put_together() {
    let pieces = [(1, "{\"a\":"), (2, "{\"b\": [1"), (1, " 1}")];
    let got = answer("anthropic", &anthropic_calls(&pieces, "tool_use")).await;
    let got = got.expect("an answer");
    assert_eq!(got.stop, StopReason::ToolUse);
    assert_eq!(got.tool_calls[0].input, json!({"a": 1}));
    assert_eq!(got.tool_calls[0].malformed, None);
    // Half JSON is kept as it is, with what is wrong; a repeated id stays repeated.
    assert_eq!(got.tool_calls[1].input, json!("{\"b\": [1"));
    assert!(got.tool_calls[1].malformed.is_some());
    assert_eq!(got.tool_calls[1].id, got.tool_calls[0].id);
    let usage = Usage {
        input_tokens: 3,
        output_tokens: 50,
        cache_read_tokens: 100,
        cache_write_tokens: 20,
        cost_micros: 0,
    };
    assert_eq!(got.usage, usage);
    let none = answer("anthropic", &anthropic_calls(&[], "max_tokens")).await;
    let none = none.expect("an answer");
    assert_eq!(none.stop, StopReason::Length);
    assert_eq!(none.tool_calls[0].input, json!({}));
}

fn openai_chunk(calls: Value, stop: Value) -> Value {
    json!({"model": "m", "choices": [{"index": 0, "delta": {"tool_calls": calls},
        "finish_reason": stop}]})
}

#[tokio::test]
async fn openai_calls_are_put_together() {
    let chunks = [
        openai_chunk(
            json!([{"index": 0, "id": "c1", "function": {"name": "bash", "arguments": ""}}]),
            Value::Null,
        ),
        openai_chunk(
            json!([{"index": 0, "function": {"arguments": "{\"a\":"}}]),
            Value::Null,
        ),
        openai_chunk(
            json!([{"index": 1, "id": "c1", "function": {"name": "bash", "arguments": "{\"b\""}},
                {"index": 0, "function": {"arguments": "1}"}}]),
            Value::Null,
        ),
        openai_chunk(json!([]), json!("tool_calls")),
        json!({"choices": [], "usage": {"prompt_tokens": 120, "completion_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 100}}}),
    ];
    let got = answer("openai", &chunks).await.expect("an answer");
    assert_eq!(got.tool_calls.len(), 2);
    assert_eq!(got.tool_calls[0].input, json!({"a": 1}));
    assert_eq!(got.tool_calls[1].input, json!("{\"b\""));
    assert!(got.tool_calls[1].malformed.is_some());
    assert_eq!(got.tool_calls[1].id, "c1");
    assert_eq!(got.stop, StopReason::ToolUse);
    assert_eq!(
        (got.usage.input_tokens, got.usage.cache_read_tokens),
        (20, 100)
    );
    assert_eq!(got.model, "m");
}

#[tokio::test]
async fn other_servers_of_the_openai_format_are_understood() {
    // Whole calls without numbers, or all with the same one; a call without an id; no last line.
    let whole = |index: Value, id: &str| {
        let mut call = json!({"function": {"name": "t", "arguments": "{}"}});
        if !id.is_empty() {
            call["id"] = id.into();
        }
        if !index.is_null() {
            call["index"] = index;
        }
        call
    };
    for calls in [
        json!([whole(Value::Null, "a"), whole(Value::Null, "b")]),
        json!([whole(json!(0), "a"), whole(json!(0), "b")]),
    ] {
        let got = answer("openai", &[openai_chunk(calls, json!("stop"))]).await;
        let got = got.expect("an answer");
        let ids: Vec<&str> = got.tool_calls.iter().map(|c| c.id.as_str()).collect();
        assert_eq!(ids, ["a", "b"]);
        assert!(got.tool_calls.iter().all(|c| c.input == json!({})));
        assert_eq!(
            got.stop,
            StopReason::ToolUse,
            "calls are what it stopped for"
        );
    }
    let nameless = openai_chunk(json!([whole(json!(0), "")]), json!("tool_calls"));
    let got = answer("openai", &[nameless]).await.expect("an answer");
    assert_eq!(got.tool_calls[0].id, "call_0");
}

#[tokio::test]
async fn refusals_and_lengths_are_told() {
    let of = |stop: &str| {
        vec![
            json!({"type": "message_delta", "delta": {"stop_reason": stop}}),
            json!({"type": "message_stop"}),
        ]
    };
    for (word, stop) in [
        ("refusal", StopReason::Refusal),
        ("max_tokens", StopReason::Length),
        ("model_context_window_exceeded", StopReason::Length),
        ("stop_sequence", StopReason::End),
        ("tool_use", StopReason::End),
    ] {
        let got = answer("anthropic", &of(word)).await.expect("an answer");
        assert_eq!(got.stop, stop, "{word}");
        assert_eq!(got.model, "test-1", "the asked one");
    }
    let refused = json!({"choices": [{"delta": {"refusal": "no"}, "finish_reason": "stop"}]});
    let got = answer("openai", &[refused]).await.expect("an answer");
    assert_eq!((got.stop, got.text.as_str()), (StopReason::Refusal, "no"));
    let cut = json!({"choices": [{"delta": {"content": "x"}, "finish_reason": "length"}]});
    let got = answer("openai", &[cut]).await.expect("an answer");
    assert_eq!(got.stop, StopReason::Length);
}
