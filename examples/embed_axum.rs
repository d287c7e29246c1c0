//! Longhaul inside another program: an axum server with one route that starts a session and
//! streams what its agent says.
//!
//! ```sh
//! cargo run --example embed_axum            # serves on 127.0.0.1:8080
//! curl -N 'http://127.0.0.1:8080/ask?text=hello'
//! cargo run --example embed_axum -- 100     # opens and closes the runtime 100 times, then ends
//! ```

use std::error::Error;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::response::IntoResponse;
use axum::routing::get;
use futures_util::StreamExt;
use longhaul::{Config, NewSession, Runtime};
use serde_json::{Value, json};

#[derive(Clone)]
struct App {
    runtime: Runtime,
    agent: Arc<Value>,
}

#[derive(serde::Deserialize)]
struct Ask {
    text: String,
}

/// The events of one turn, one JSON envelope per line, as they become durable.
async fn ask(State(app): State<App>, Query(ask): Query<Ask>) -> axum::response::Response {
    match turn(&app, &ask.text).await {
        Ok(events) => events.into_response(),
        Err(e) => (axum::http::StatusCode::BAD_GATEWAY, e.to_string()).into_response(),
    }
}

async fn turn(app: &App, text: &str) -> Result<Body, Box<dyn Error>> {
    let deployment = app
        .runtime
        .deploy(&serde_json::from_value((*app.agent).clone())?)
        .await?;
    let session = app.runtime.start(NewSession::of(deployment.id)).await?;
    session.send(text).await?;
    let events = session.follow(0).await?.until_boundary();
    let lines = events.map(|event| event.map(|e| Bytes::from([&e.json[..], b"\n"].concat())));
    Ok(Body::from_stream(lines))
}

async fn open(data: &std::path::Path) -> Result<App, Box<dyn Error>> {
    let agent = json!({
        "name": "echo",
        "release": { "instructions": "", "harness": { "kind": "script",
            "steps": [{ "say": "you said: {{input}}" }] } },
        "sandbox": { "provider": "none", "max_duration_seconds": 60 },
    });
    Ok(App {
        runtime: Runtime::open(Config::in_folder(data)).await?,
        agent: Arc::new(agent),
    })
}

/// One life of the server: up, one request over a socket, down.
async fn life(data: &std::path::Path, listen: &str, forever: bool) -> Result<(), Box<dyn Error>> {
    let app = open(data).await?;
    let listener = tokio::net::TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    let router = Router::new()
        .route("/ask", get(ask))
        .with_state(app.clone());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = axum::serve(listener, router).with_graceful_shutdown(async {
        // A dropped sender means the same.
        let _ = stopped.await;
    });
    let server = tokio::spawn(server.into_future());
    if forever {
        tokio::signal::ctrl_c().await?;
    } else {
        let said = reqwest::get(format!("http://{address}/ask?text=hello"))
            .await?
            .text()
            .await?;
        if !said.contains("you said: hello") {
            return Err(format!("the agent said something else: {said}").into());
        }
    }
    drop(stop);
    server.await??;
    // Waits until the engine has let go of its folder.
    app.runtime.close().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    match std::env::args().nth(1) {
        None => life(folder.path(), "127.0.0.1:8080", true).await,
        Some(times) => {
            for _ in 0..times.parse::<u32>()? {
                life(folder.path(), "127.0.0.1:0", false).await?;
            }
            Ok(())
        }
    }
}
