//! Keys are in the header and nowhere else; only an operator says where they go.

use std::io::Write;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tracing::instrument::WithSubscriber;
use tracing_subscriber::fmt::MakeWriter;

use super::provider::{Clock, Provider, Reply};
use super::{KEY, ModelError, ModelRoutes, config, hello, model, respond, routes, simple};

/// Everything that is logged.
#[derive(Debug, Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Logged {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn keys_are_shown_by_nothing() {
    let logged = Logged::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(logged.clone())
        .finish();
    let shown = async {
        let mut shown = String::new();
        for route in ["anthropic", "openai"] {
            let (provider, clock, model) = model(route).await;
            // A provider that repeats the key in all it says.
            let body = json!({"error": {"message": format!("bad key {KEY}")}}).to_string();
            let event =
                format!("data: {{\"error\": {{\"message\": \"{KEY}\"}}, \"type\": \"error\"}}\n\n");
            provider.will([
                Reply::Status(429, vec![], body.clone()),
                Reply::Stream(vec![event]),
                Reply::Status(401, vec![], body),
            ]);
            let (answer, _) = respond(&model, &hello()).await;
            let error = answer.expect_err("refused");
            let routes = routes(&config(&provider), &clock);
            shown += &format!("{error} {error:?} {model:?} {routes:?} {clock:?}");
        }
        shown
    };
    let shown = shown.with_subscriber(subscriber).await;
    assert!(shown.contains("bad key [key]"), "{shown}");
    assert!(!shown.contains(KEY), "{shown}");
    let logged = logged.0.lock().expect("lock").clone();
    let logged = String::from_utf8(logged).expect("text");
    assert!(logged.contains("a model is asked again"), "{logged}");
    assert!(!logged.contains(KEY), "{logged}");
}

#[tokio::test]
async fn the_key_is_in_the_providers_header() {
    for (route, name, value) in [
        ("anthropic", "x-api-key", KEY.to_owned()),
        ("openai", "authorization", format!("Bearer {KEY}")),
    ] {
        let (provider, _, model) = model(route).await;
        provider.will([Reply::Stream(simple(route, "hi"))]);
        let (answer, _) = respond(&model, &hello()).await;
        answer.expect("an answer");
        let asked = provider.asked().remove(0);
        assert_eq!(asked.headers[name], value);
        let with_key = asked
            .headers
            .values()
            .filter(|v| String::from_utf8_lossy(v.as_bytes()).contains(KEY));
        assert_eq!(with_key.count(), 1);
        assert!(!asked.body.to_string().contains(KEY));
        if route == "anthropic" {
            assert_eq!(asked.headers["anthropic-version"], "2023-06-01");
        }
    }
}

#[tokio::test]
async fn a_key_in_a_file_is_read_anew() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("key");
    let mut config = config(&provider);
    config.openai.api_key_file = Some(path.clone());
    let routes = routes(&config, &Clock::new());
    // A file that is not there is no reason to take the variable.
    let Err(ModelError::NotConfigured(text)) = routes.model("openai/m") else {
        panic!("has a key");
    };
    assert!(!text.contains(&*path.to_string_lossy()), "{text}");
    for key in ["first-key", "second-key"] {
        std::fs::write(&path, format!("{key}\n")).expect("write");
        provider.will([Reply::Stream(simple("openai", "hi"))]);
        let model = routes.model("openai/m").expect("a route");
        let (answer, _) = respond(&model, &hello()).await;
        answer.expect("an answer");
        let asked = provider.asked().pop().expect("asked");
        assert_eq!(asked.headers["authorization"], format!("Bearer {key}"));
    }
}

#[tokio::test]
async fn only_routes_of_the_operator_exist() {
    let provider = Provider::start().await;
    let mut config = config(&provider);
    config.openai.api_key_env = "NOT_SET".to_owned();
    let routes = routes(&config, &Clock::new());
    let long = format!("anthropic/{}", "m".repeat(201));
    for name in [
        "",
        "anthropic",
        "anthropic/",
        "anthropic/a b",
        "anthropic/\n",
        "https://evil.example/v1",
        "other/m",
        "ANTHROPIC/m",
        "openai/m",
        &long,
    ] {
        let refused = routes.model(name);
        let refused = matches!(refused, Err(ModelError::NotConfigured(_)));
        assert!(refused, "{name:?}");
    }
    let model = routes.model("anthropic/org/model:1").expect("a route");
    assert_eq!(model.name(), "anthropic/org/model:1");
    config.openai.base_url = "nowhere".to_owned();
    let door = longhaul_actors::env::Door::system();
    assert!(super::Routes::open(&config, door).is_err());
}
