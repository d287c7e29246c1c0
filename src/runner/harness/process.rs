//! The `process` harness: a program of the host's, speaking the claim protocol in JSON lines.
//!
//! In: `{"claim": {…}}`, then an answer for each call. Out: `{"id": 1, "verb": "events",
//! "body": {…}}`, optionally with `wait_ms`. The runner heartbeats and numbers the calls.
//! `settle` and `release` are the program's last words: it is ended and its sandbox removed
//! before they are sent. An end without either leaves the claim to its lease.

use std::time::Duration;

use futures_util::future::{BoxFuture, FusedFuture, FutureExt};
use longhaul_actors::code::Rejection;
use longhaul_actors::session::input::parse_attempt;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};

use super::{End, Failure, Harness, Settlement};
use crate::runner::attempt::Attempt;
use crate::runner::calls::CallError;
use crate::runner::history::text_at;
use crate::runner::keep::NotKept;
use crate::runner::sandbox::{Launch, Process};

/// How long the program has to end by itself after its last word.
const GRACE: Duration = Duration::from_secs(1);
/// Longest line of standard error that is logged, bytes; the rest is dropped.
const LOG_LINE_BYTES_MAX: usize = 4 << 10;
/// Most lines of standard error that are logged of one attempt.
const LOG_LINES_MAX: usize = 10_000;

/// The harness of kind `process`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessHarness;

#[derive(Deserialize)]
struct Profile {
    command: Vec<String>,
    #[serde(default)]
    env: std::collections::BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: Value,
    verb: String,
    #[serde(default)]
    body: Map<String, Value>,
    #[serde(default)]
    wait_ms: u64,
}

impl Harness for ProcessHarness {
    fn kind(&self) -> &str {
        "process"
    }

    fn run<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<End, Failure>> {
        converse(attempt).boxed()
    }
}

async fn converse(attempt: &Attempt) -> Result<End, Failure> {
    let profile = Profile::deserialize(attempt.claim().harness())
        .map_err(|e| Failure::run("harness.process_invalid", e.to_string()))?;
    let launch = Launch {
        argv: profile.command,
        env: profile.env.into_iter().collect(),
    };
    let Process {
        mut stdin,
        stdout,
        stderr,
        mut control,
    } = attempt.sandbox().launch(launch).await?;
    let mut lines = Lines::new(stdout, attempt.config().line_bytes_max);
    // What it says may quote the conversation.
    let quiet = attempt.claim().keeps_nothing;
    let log = log_stderr(stderr, quiet).fuse();
    tokio::pin!(log);
    let end = {
        let talk = talk(attempt, &mut stdin, &mut lines);
        tokio::pin!(talk);
        loop {
            tokio::select! {
                end = &mut talk => break end,
                () = &mut log, if !log.is_terminated() => {}
            }
        }
    };
    // Its input ends: a program that waits for an answer sees that there is none.
    drop(stdin);
    let clock = &attempt.door().clock;
    let (mut status, grace) = (None, clock.sleep_until(clock.mono() + GRACE));
    let ended = async {
        status = control.wait().await;
        if !log.is_terminated() {
            log.await;
        }
    };
    tokio::select! { () = ended => {} () = grace => {} }
    control.kill().await;
    match end? {
        Some(end) => Ok(end),
        None => {
            tracing::warn!(
                ?status,
                "the harness ended without settling; its claim is left to its lease"
            );
            Ok(End::Over)
        }
    }
}

/// Answers the program's calls until its last word; `None` = it has closed its output.
async fn talk(
    attempt: &Attempt,
    stdin: &mut (dyn AsyncWrite + Send + Unpin),
    lines: &mut Lines,
) -> Result<Option<End>, Failure> {
    send(stdin, &json!({"claim": attempt.claim().json})).await;
    while let Some(line) = lines.next().await? {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let call: Line = match serde_json::from_slice(&line) {
            Ok(call) => call,
            Err(error) => {
                let detail = format!("not a call: {error}");
                send(
                    stdin,
                    &refusal(&Value::Null, 400, "request.body_invalid", &detail),
                )
                .await;
                continue;
            }
        };
        match answer(attempt, call).await? {
            Reply::Line(reply) => send(stdin, &reply).await,
            Reply::Last(end, reply) => {
                if let Some(reply) = reply {
                    send(stdin, &reply).await;
                }
                return Ok(Some(end));
            }
        }
    }
    Ok(None)
}

enum Reply {
    Line(Value),
    Last(End, Option<Value>),
}

async fn answer(attempt: &Attempt, call: Line) -> Result<Reply, Failure> {
    let Line {
        id,
        verb,
        body,
        wait_ms,
    } = call;
    match verb.as_str() {
        "settle" => {
            return Ok(match check_settle(&id, &body) {
                Ok(()) => Reply::Last(End::Settle(Settlement(body)), None),
                Err(reply) => Reply::Line(reply),
            });
        }
        "release" => return Ok(Reply::Last(End::Release, None)),
        "ready" | "heartbeat" | "events" | "inputs" | "park" | "steps" | "checkpoint" => {}
        _ => {
            let detail = format!("there is no verb {verb:?}");
            return Ok(Reply::Line(refusal(
                &id,
                404,
                "request.route_unknown",
                &detail,
            )));
        }
    }
    // A program need not say that it is ready before its first real call.
    attempt.ready().await?;
    if verb == "ready" {
        return Ok(Reply::Line(json!({"id": id, "status": 200, "body": {}})));
    }
    let wait = Duration::from_millis(wait_ms).min(attempt.wait_max());
    let released =
        verb == "park" && body.get("compute").and_then(Value::as_str) == Some("released");
    let called = match verb.as_str() {
        // Its disk is this runner's to keep.
        "checkpoint" => match attempt.checkpoint_call(body).await {
            Ok(answer) => Ok(answer),
            Err(NotKept::Call(error)) => Err(error),
            Err(why @ NotKept::Unsupported) => {
                return Ok(Reply::Line(refusal(&id, 501, why.code(), &why.to_string())));
            }
            Err(why @ NotKept::Sandbox(_)) => {
                return Ok(Reply::Line(refusal(&id, 500, why.code(), &why.to_string())));
            }
        },
        _ => attempt.call(&verb, wait, body).await,
    };
    match called {
        Ok(answer) => {
            let over = released && text_at(&answer.body, "state") == Some("parked");
            let line = json!({"id": id, "status": answer.status, "body": answer.body});
            Ok(if over {
                Reply::Last(End::Over, Some(line))
            } else {
                Reply::Line(line)
            })
        }
        Err(CallError::Refused(problem)) => Ok(Reply::Line(
            json!({"id": id, "status": problem.status, "body": problem.to_json()}),
        )),
        Err(lost @ CallError::Lost(_)) => Err(lost.into()),
    }
}

/// The program is still there to hear of a mistake; after this only the server could refuse.
fn check_settle(id: &Value, body: &Map<String, Value>) -> Result<(), Value> {
    let mut body = body.clone();
    body.remove("n");
    let text = Value::Object(body).to_string();
    let wrong = |r: Rejection| {
        let info = r.code.info();
        refusal(id, info.status, info.code, &r.detail)
    };
    parse_attempt("settle", text.as_bytes())
        .map(drop)
        .map_err(wrong)
}

fn refusal(id: &Value, status: u16, code: &str, detail: &str) -> Value {
    let body = json!({"status": status, "code": code, "detail": detail, "retryable": false});
    json!({"id": id, "status": status, "body": body})
}

/// A program that no longer listens is told nothing; its end is seen on its output.
async fn send(stdin: &mut (dyn AsyncWrite + Send + Unpin), message: &Value) {
    let mut line = message.to_string();
    line.push('\n');
    if stdin.write_all(line.as_bytes()).await.is_ok() {
        let _ = stdin.flush().await;
    }
}

/// The program's output, line by line.
struct Lines {
    reader: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
    bytes_max: usize,
}

impl Lines {
    fn new(stdout: Box<dyn AsyncRead + Send + Unpin>, bytes_max: usize) -> Self {
        Self {
            reader: BufReader::new(stdout),
            bytes_max,
        }
    }

    /// The next line; `None` = the output has ended (an unfinished line was never said).
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let mut line = Vec::new();
        loop {
            // A read error ends the output as its end does.
            let chunk = self.reader.fill_buf().await.unwrap_or_default();
            if chunk.is_empty() {
                return Ok(None);
            }
            let end = chunk.iter().position(|b| *b == b'\n');
            let taken = end.map_or(chunk.len(), |at| at + 1);
            line.extend_from_slice(chunk.get(..taken).unwrap_or_default());
            self.reader.consume(taken);
            if line.len() > self.bytes_max {
                let text = format!("a line is longer than {} bytes", self.bytes_max);
                return Err(Failure::run("harness.line_too_long", text));
            }
            if end.is_some() {
                return Ok(Some(line));
            }
        }
    }
}

/// `quiet`: read, so that the program does not wait for room, and dropped.
async fn log_stderr(stderr: Box<dyn AsyncRead + Send + Unpin>, quiet: bool) {
    let mut reader = BufReader::new(stderr);
    let mut lines = 0;
    while let Some(line) = next_log_line(&mut reader).await {
        if quiet {
            continue;
        }
        lines += 1;
        match lines.cmp(&LOG_LINES_MAX) {
            std::cmp::Ordering::Less => tracing::info!(target: "longhaul::harness", "{line}"),
            std::cmp::Ordering::Equal => {
                tracing::warn!("the harness logs no more lines here: too many")
            }
            std::cmp::Ordering::Greater => {}
        }
    }
}

async fn next_log_line(reader: &mut (impl AsyncBufRead + Unpin)) -> Option<String> {
    let mut line = Vec::new();
    loop {
        let chunk = reader.fill_buf().await.unwrap_or_default();
        if chunk.is_empty() {
            return (!line.is_empty()).then(|| String::from_utf8_lossy(&line).into_owned());
        }
        let end = chunk.iter().position(|b| *b == b'\n');
        let text = chunk.get(..end.unwrap_or(chunk.len())).unwrap_or_default();
        let room = LOG_LINE_BYTES_MAX
            .saturating_sub(line.len())
            .min(text.len());
        line.extend_from_slice(text.get(..room).unwrap_or_default());
        let taken = end.map_or(chunk.len(), |at| at + 1);
        reader.consume(taken);
        if end.is_some() {
            return Some(String::from_utf8_lossy(&line).into_owned());
        }
    }
}

#[cfg(test)]
mod tests;
