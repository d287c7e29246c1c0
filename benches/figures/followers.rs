//! A thousand followers of one session.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::server::{Server, id};
use crate::{Row, quantile};

const FOLLOWERS: usize = 1_000;
const EVENTS: usize = 100;

/// From the answer of the commit to the last byte at each follower. Both ends share the cores.
pub(crate) fn rows() -> Vec<Row> {
    let mut server = Server::start(&["runner.enabled=false"]);
    let deployment = server.external();
    let session = id(&server.post("/v1/sessions", &json!({ "agent_deployment": deployment })));
    let authority = server.process.url().replace("http://", "");
    let request = format!(
        "GET /v1/sessions/{session}/events/stream?after=0&types=user.message HTTP/1.1\r\n\
         host: {authority}\r\n\r\n"
    );
    let (seen, mut arrivals) = mpsc::channel::<Instant>(FOLLOWERS * 2);
    let request: Arc<str> = request.into();
    for _ in 0..FOLLOWERS {
        let (seen, request, authority) = (seen.clone(), Arc::clone(&request), authority.clone());
        server.tokio.spawn(async move {
            let mut stream = TcpStream::connect(authority).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let (mut buffer, mut text) = (vec![0; 16 << 10], Vec::new());
            let mut there = false;
            loop {
                let n = stream.read(&mut buffer).await.unwrap();
                let now = Instant::now();
                text.extend_from_slice(&buffer[..n]);
                let mut found = 0;
                if !there && take(&mut text, b"\r\n\r\n") {
                    there = true;
                    found += 1;
                }
                while take(&mut text, b"\"number-") {
                    found += 1;
                }
                for _ in 0..found {
                    if seen.send(now).await.is_err() {
                        return;
                    }
                }
                if n == 0 {
                    return;
                }
            }
        });
    }
    let wait = |arrivals: &mut mpsc::Receiver<Instant>, server: &Server| {
        server.tokio.block_on(async {
            let mut all = Vec::with_capacity(FOLLOWERS);
            for _ in 0..FOLLOWERS {
                let next = tokio::time::timeout(Duration::from_secs(20), arrivals.recv()).await;
                all.push(next.unwrap().unwrap());
            }
            all
        })
    };
    wait(&mut arrivals, &server);
    let mut times = Vec::new();
    for n in 0..EVENTS {
        let text = format!("number-{n}");
        let body = json!({ "events": [{ "type": "user.message", "content": { "text": text } }] });
        server.post(&format!("/v1/sessions/{session}/events"), &body);
        let committed = Instant::now();
        for at in wait(&mut arrivals, &server) {
            times.push(at.saturating_duration_since(committed).as_secs_f64() * 1000.0);
        }
    }
    let (p50, p99) = (quantile(&mut times, 0.5), quantile(&mut times, 0.99));
    vec![Row::new(
        "1,000 followers of one session, commit to socket",
        format!("p50 {p50:.1} ms, p99 {p99:.1} ms"),
        "p99 < 10 ms",
        p99 < 10.0,
    )]
}

/// Drops everything up to and with the first `mark`; whether there was one.
fn take(text: &mut Vec<u8>, mark: &[u8]) -> bool {
    match text.windows(mark.len()).position(|w| w == mark) {
        Some(at) => {
            text.drain(..at + mark.len());
            true
        }
        None => {
            let keep = text.len().saturating_sub(mark.len());
            // What cannot be the start of a mark is not kept, once the head is through.
            if text.len() > 64 << 10 {
                text.drain(..keep);
            }
            false
        }
    }
}
