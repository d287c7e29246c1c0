//! Models against a provider of our own, on this machine, that speaks both formats and fails as
//! told.

mod answers;
mod bodies;
mod faults;
mod provider;
mod secrets;

use std::sync::Arc;

use longhaul_actors::env::Door;
use longhaul_actors::transcript::{Message, Role};
use serde_json::{Value, json};

use super::{Model, ModelAnswer, ModelError, ModelRequest, ModelRoutes, Routes, ToolSpec};
use crate::config::ModelsConfig;
use provider::{Clock, Provider};

/// The key that no test may find anywhere but in the header.
const KEY: &str = "sk-test-0123456789abcdef";

/// Settings that lead to the provider.
fn config(provider: &Provider) -> ModelsConfig {
    let mut config = ModelsConfig::default();
    config.anthropic.base_url = provider.url.clone();
    config.openai.base_url = format!("{}/v1/", provider.url);
    config
}

fn env(name: &str) -> Option<String> {
    ["ANTHROPIC_API_KEY", "OPENAI_API_KEY"]
        .contains(&name)
        .then(|| KEY.to_owned())
}

fn routes(config: &ModelsConfig, clock: &Clock) -> Routes {
    let door = Door {
        clock: Arc::new(clock.clone()),
        ids: Door::system().ids,
    };
    Routes::with_env(config, door, &env).expect("routes")
}

/// A provider, a clock and the model `<route>/test-1`.
async fn model(route: &str) -> (Provider, Clock, Arc<dyn Model>) {
    let provider = Provider::start().await;
    let clock = Clock::new();
    let name = format!("{route}/test-1");
    let model = routes(&config(&provider), &clock).model(&name);
    let model = model.expect("a route");
    (provider, clock, model)
}

fn ask(messages: Vec<Message>) -> ModelRequest {
    ModelRequest {
        system: "Be brief.".to_owned(),
        messages: Arc::new(messages),
        tools: Arc::new(vec![]),
        output_tokens_max: None,
        schema: None,
        call_index: 0,
    }
}

fn hello() -> ModelRequest {
    ask(vec![Message::text(Role::User, "hello")])
}

fn tool() -> ToolSpec {
    ToolSpec {
        name: "bash".to_owned(),
        description: "A shell.".to_owned(),
        input_schema: json!({"type": "object", "properties": {"command": {"type": "string"}}}),
    }
}

/// Asks; the answer, and the parts of the text as they came.
async fn respond(
    model: &Arc<dyn Model>,
    request: &ModelRequest,
) -> (Result<ModelAnswer, ModelError>, Vec<String>) {
    let mut parts = Vec::new();
    let mut take = |part: &str| parts.push(part.to_owned());
    let answer = model.respond(request, &mut take).await;
    (answer, parts)
}

/// Server-sent events of these values, each with its `type` as its name where it has one.
fn events(values: &[Value]) -> Vec<String> {
    values
        .iter()
        .map(|value| match value["type"].as_str() {
            Some(kind) => format!("event: {kind}\ndata: {value}\n\n"),
            None => format!("data: {value}\n\n"),
        })
        .collect()
}

/// A short answer in the format of a route.
fn simple(route: &str, text: &str) -> Vec<String> {
    if route == "anthropic" {
        events(&[
            json!({"type": "message_start", "message": {"model": "test-1-2026", "usage": {
                "input_tokens": 10, "output_tokens": 1}}}),
            json!({"type": "content_block_start", "index": 0,
                "content_block": {"type": "text", "text": ""}}),
            json!({"type": "ping"}),
            json!({"type": "content_block_delta", "index": 0,
                "delta": {"type": "text_delta", "text": text}}),
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
                "usage": {"output_tokens": 5}}),
            json!({"type": "message_stop"}),
        ])
    } else {
        let mut events = events(&[
            json!({"model": "test-1-2026", "choices": [{"index": 0,
                "delta": {"role": "assistant", "content": ""}, "finish_reason": null}]}),
            json!({"model": "test-1-2026", "choices": [{"index": 0,
                "delta": {"content": text}, "finish_reason": null}]}),
            json!({"model": "test-1-2026", "choices": [{"index": 0, "delta": {},
                "finish_reason": "stop"}]}),
            json!({"model": "test-1-2026", "choices": [], "usage": {"prompt_tokens": 10,
                "completion_tokens": 5, "total_tokens": 15}}),
        ]);
        events.push("data: [DONE]\n\n".to_owned());
        events
    }
}
