//! Providers that fail.

use std::time::Duration;

use longhaul_actors::transcript::{Message, Role};
use serde_json::{Value, json};

use super::provider::{Clock, Provider, Reply};
use super::{ModelError, ModelRoutes, ask, config, events, hello, model, respond, routes, simple};
use crate::model::client::ENDING_MAX;

fn status(status: u16, headers: &[(&'static str, &'static str)], body: Value) -> Reply {
    Reply::Status(status, headers.to_vec(), body.to_string())
}

#[tokio::test]
async fn overload_is_waited_out() {
    for route in ["anthropic", "openai"] {
        let (provider, clock, model) = model(route).await;
        provider.will([
            status(
                429,
                &[("retry-after", "7")],
                json!({"error": {"message": "slow down"}}),
            ),
            status(
                529,
                &[],
                json!({"type": "error", "error": {"type": "overloaded_error"}}),
            ),
            status(503, &[("retry-after-ms", "1500")], json!({})),
            Reply::Stream(simple(route, "at last")),
        ]);
        let (answer, _) = respond(&model, &hello()).await;
        assert_eq!(answer.expect("an answer").text, "at last");
        let waits = clock.waits();
        assert_eq!(waits[0], Duration::from_secs(7));
        assert!((500..=1_000).contains(&waits[1].as_millis()), "{waits:?}");
        assert_eq!(waits[2], Duration::from_millis(1_500));
        let asked = provider.asked();
        assert!(asked.iter().all(|a| a.body == asked[0].body));
    }
}

#[tokio::test]
async fn tries_are_counted_and_the_providers_wish_is_told() {
    let (provider, clock, model) = model("openai").await;
    let busy = status(
        429,
        &[("retry-after", "2")],
        json!({"error": {"message": "busy"}}),
    );
    provider.will(std::iter::repeat_n(busy, 10));
    let (answer, _) = respond(&model, &hello()).await;
    let expected = ModelError::Unavailable {
        tries: 6,
        message: "status 429: busy".to_owned(),
        retry_after: Some(Duration::from_secs(2)),
    };
    assert_eq!(answer, Err(expected));
    assert_eq!(provider.asked().len(), 6);
    assert_eq!(clock.waits().len(), 5);
}

#[tokio::test]
async fn no_wait_is_begun_that_would_outlast_the_request() {
    let (provider, clock, model) = model("anthropic").await;
    for after in ["601", "99999999999999999999", "18446744073709551615"] {
        let asked = provider.asked().len();
        provider.will([
            status(429, &[("retry-after", after)], json!({})),
            Reply::Stream(simple("anthropic", "hi")),
        ]);
        let (answer, _) = respond(&model, &hello()).await;
        if after == "99999999999999999999" {
            // No number that fits is no wish.
            assert_eq!(answer.expect("an answer").text, "hi");
            continue;
        }
        let Err(ModelError::Unavailable {
            tries: 1,
            retry_after: Some(_),
            ..
        }) = answer
        else {
            panic!("{after}: {answer:?}");
        };
        assert_eq!(provider.asked().len(), asked + 1);
        // The answer that was not fetched.
        let (answer, _) = respond(&model, &hello()).await;
        assert_eq!(answer.expect("an answer").text, "hi");
    }
    assert_eq!(clock.waits().len(), 1);
}

#[tokio::test]
async fn refusals_are_not_repeated() {
    for (code, body) in [
        (
            400,
            json!({"type": "error", "error": {"type": "invalid_request_error", "message": "m"}}),
        ),
        (401, json!({"error": {"message": "m"}})),
        (403, json!({"error": "m"})),
        (404, json!({"message": "m"})),
        (413, json!("m")),
        (302, json!({"error": {"message": "m"}})),
        (
            429,
            json!({"error": {"message": "m", "code": "insufficient_quota"}}),
        ),
    ] {
        let (provider, clock, model) = model("openai").await;
        provider.will([status(code, &[("location", "http://127.0.0.1:1/")], body)]);
        let (answer, _) = respond(&model, &hello()).await;
        let Err(ModelError::Refused { status, message }) = answer else {
            panic!("{code}: {answer:?}");
        };
        assert_eq!(status, code);
        assert!(message == "m" || message == "\"m\"", "{message}");
        assert_eq!((provider.asked().len(), clock.waits().len()), (1, 0));
    }
}

#[tokio::test]
async fn a_cut_stream_is_asked_for_again_as_a_whole() {
    for route in ["anthropic", "openai"] {
        let (provider, _, model) = model(route).await;
        let whole = simple(route, "one");
        let part = |n: usize| whole[..n].to_vec();
        // Before any word; amid an event; after words, broken; after words, properly ended.
        let half = vec![whole.concat()[..40].to_owned()];
        let spoken = if route == "anthropic" { 4 } else { 2 };
        provider.will([
            Reply::Cut(part(1)),
            Reply::Cut(half),
            Reply::Cut(part(spoken)),
            Reply::Stream(part(spoken)),
            Reply::Stream(simple(route, "two")),
        ]);
        let (answer, parts) = respond(&model, &hello()).await;
        assert_eq!(answer.expect("an answer").text, "two", "{route}");
        assert_eq!(parts, ["one"], "one try is heard");
        assert_eq!(provider.asked().len(), 5);
    }
}

#[tokio::test]
async fn a_stream_that_is_always_cut_is_a_provider_away() {
    let (provider, _, model) = model("anthropic").await;
    let part = simple("anthropic", "x")[..6].to_vec();
    provider.will(std::iter::repeat_n(Reply::Stream(part), 6));
    let (answer, _) = respond(&model, &hello()).await;
    let expected = ModelError::Unavailable {
        tries: 6,
        message: "the answer was cut short".to_owned(),
        retry_after: None,
    };
    assert_eq!(answer, Err(expected));
}

#[tokio::test]
async fn errors_amid_a_stream_are_told_apart() {
    let start = json!({"type": "message_start", "message": {}});
    let error = |kind: &str| json!({"type": "error", "error": {"type": kind, "message": "m"}});
    let (provider, _, anthropic) = model("anthropic").await;
    provider.will([
        Reply::Stream(events(&[start.clone(), error("overloaded_error")])),
        Reply::Stream(events(&[start, error("invalid_request_error")])),
    ]);
    let (answer, _) = respond(&anthropic, &hello()).await;
    let message = "invalid_request_error: m".to_owned();
    assert_eq!(
        answer,
        Err(ModelError::Refused {
            status: 400,
            message
        })
    );
    assert_eq!(provider.asked().len(), 2);

    let (provider, _, openai) = model("openai").await;
    provider.will([
        Reply::Stream(events(&[
            json!({"error": {"message": "oops", "type": "server_error"}}),
        ])),
        Reply::Stream(events(&[
            json!({"error": {"message": "wait", "code": 429}}),
        ])),
        Reply::Stream(events(&[json!({"error": {"message": "no", "code": 400}})])),
    ]);
    let (answer, _) = respond(&openai, &hello()).await;
    let message = "no".to_owned();
    assert_eq!(
        answer,
        Err(ModelError::Refused {
            status: 400,
            message
        })
    );
    assert_eq!(provider.asked().len(), 3);
}

#[tokio::test]
async fn nonsense_is_typed_and_not_repeated() {
    let event = |text: &str| Reply::Stream(vec![format!("data: {text}\n\n")]);
    let ended = |value: Value| Reply::Stream(events(&[value, json!({"type": "message_stop"})]));
    let anthropic = vec![
        event("{"),
        event("\"\\ud800\""),
        Reply::Stream(vec!["data: \u{0}\n\n".to_owned()]),
        ended(json!({"type": "ping"})),
        ended(json!({"type": "content_block_start", "content_block": {"type": "text"}})),
        ended(json!({"type": "content_block_delta", "index": 9,
            "delta": {"type": "input_json_delta", "partial_json": "{}"}})),
        Reply::Other("application/json", "{\"content\": []}"),
        Reply::Other("text/html; charset=utf-8", "<h1>Sign in</h1>"),
    ];
    let openai = vec![
        event("{"),
        event("[DONE]"),
        Reply::Other("text/html", "<p>"),
    ];
    for (route, replies) in [("anthropic", anthropic), ("openai", openai)] {
        for reply in replies {
            let (provider, clock, model) = model(route).await;
            provider.will([reply.clone()]);
            let (answer, _) = respond(&model, &hello()).await;
            let nonsense = matches!(answer, Err(ModelError::Nonsense(_)));
            assert!(nonsense, "{route} {reply:?}: {answer:?}");
            assert_eq!((provider.asked().len(), clock.waits().len()), (1, 0));
        }
    }
}

#[tokio::test]
async fn what_is_too_much_ends() {
    let text = "x".repeat(600 << 10);
    let word = json!({"choices": [{"delta": {"content": text}, "finish_reason": null}]});
    let far = json!({"choices": [{"delta": {"tool_calls": [
        {"index": u64::MAX, "id": "a", "function": {"name": "t", "arguments": text}},
        {"index": 4_000_000_000_u64, "id": "b", "function": {"name": "t", "arguments": text}},
    ]}, "finish_reason": "tool_calls"}]});
    let call = |n: usize| json!({"index": n, "id": n.to_string(), "function": {"name": "t"}});
    let calls: Vec<Value> = (0..200).map(call).collect();
    let calls = json!({"choices": [{"delta": {"tool_calls": calls}, "finish_reason": null}]});
    let line = "data: ".to_owned() + &"y".repeat(17 << 20);
    for reply in [
        Reply::Stream(events(&[word.clone(), word])),
        Reply::Stream(events(&[far])),
        Reply::Stream(events(&[calls])),
        Reply::Hang(vec![line]),
    ] {
        let (provider, _, model) = model("openai").await;
        provider.will([reply]);
        let (answer, _) = respond(&model, &hello()).await;
        assert!(matches!(answer, Err(ModelError::Nonsense(_))), "{answer:?}");
    }
}

#[tokio::test]
async fn a_large_conversation_is_sent() {
    let (provider, _, model) = model("anthropic").await;
    provider.will([Reply::Stream(simple("anthropic", "read"))]);
    let long = "word ".repeat(800_000);
    let request = ask(vec![Message::text(Role::User, long.clone())]);
    let (answer, _) = respond(&model, &request).await;
    assert_eq!(answer.expect("an answer").text, "read");
    let body = provider.asked().remove(0).body;
    assert_eq!(body["messages"][0]["content"][0]["text"], json!(long));
}

#[tokio::test]
async fn a_slow_provider_is_given_up() {
    for reply in [
        Reply::Hang(vec![]),
        Reply::Hang(simple("anthropic", "x")[..4].to_vec()),
    ] {
        let (provider, clock, model) = model("anthropic").await;
        provider.will([reply]);
        let request = hello();
        let given_up = async {
            provider.was_asked(1).await;
            clock.advance(Duration::from_secs(600));
        };
        let ((answer, _), ()) = tokio::join!(respond(&model, &request), given_up);
        let expected = ModelError::Unavailable {
            tries: 1,
            message: "no answer within 600 s".to_owned(),
            retry_after: None,
        };
        assert_eq!(answer, Err(expected));
    }
}

#[tokio::test]
async fn an_answer_is_whole_without_the_end_of_its_body() {
    for route in ["anthropic", "openai"] {
        let (provider, clock, model) = model(route).await;
        provider.will([Reply::Hang(simple(route, "whole"))]);
        let request = hello();
        let moved = async {
            // The limit of the request, and that of the end.
            while clock.sleepers() < 2 {
                tokio::task::yield_now().await;
            }
            clock.advance(ENDING_MAX);
        };
        let ((answer, _), ()) = tokio::join!(respond(&model, &request), moved);
        assert_eq!(answer.expect("an answer").text, "whole");
    }
}

#[tokio::test]
async fn requests_wait_for_their_turn() {
    let provider = Provider::start().await;
    let clock = Clock::new();
    let mut config = config(&provider);
    config.concurrency_max = 1;
    let routes = routes(&config, &clock);
    // The limit is one for all routes.
    let first = routes.model("anthropic/a").expect("a route");
    let second = routes.model("openai/b").expect("a route");
    provider.will([Reply::Hang(vec![])]);
    provider.will(std::iter::repeat_n(Reply::Other("text/plain", "hi"), 20));
    let task = tokio::spawn(async move { respond(&first, &hello()).await.0 });
    provider.was_asked(1).await;
    let request = hello();
    let waiting = respond(&second, &request);
    tokio::pin!(waiting);
    // Others are answered meanwhile, again and again: one that were not waiting would be, too.
    let others = async {
        let http = reqwest::Client::builder().no_proxy().build();
        let http = http.expect("a client");
        for _ in 0..20 {
            let url = format!("{}/other", provider.url);
            let other = http.post(url).body("{}").send().await;
            assert_eq!(other.expect("an answer").status(), 200);
        }
    };
    let early = tokio::select! {
        answer = &mut waiting => Some(answer),
        () = others => None,
    };
    assert!(early.is_none());
    let asked = provider.asked();
    assert!(asked.iter().all(|a| a.path != "/v1/chat/completions"));
    provider.will([Reply::Stream(simple("openai", "mine"))]);
    // Dropping the first ends its call, and makes room.
    task.abort();
    let (answer, _) = waiting.await;
    assert_eq!(answer.expect("an answer").text, "mine");
}

#[tokio::test]
async fn nobody_there_is_tried_again() {
    let provider = Provider::start().await;
    let clock = Clock::new();
    let mut config = config(&provider);
    // A port that was free a moment ago.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = gone.local_addr().expect("an address");
    drop(gone);
    config.openai.base_url = format!("http://{at}/v1");
    config.retries_max = 2;
    let model = routes(&config, &clock).model("openai/m").expect("a route");
    let (answer, _) = respond(&model, &hello()).await;
    let Err(ModelError::Unavailable {
        tries: 3, message, ..
    }) = answer
    else {
        panic!("{answer:?}");
    };
    assert!(!message.contains(&at.to_string()), "{message}");
    assert_eq!(clock.waits().len(), 2);
}
