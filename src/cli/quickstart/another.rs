//! The other way: a fork of the finished session from its checkpoint, and how the two compare.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use reqwest::Method;
use serde_json::{Value, json};

use super::{id, refuted, say};
use crate::cli::args::FollowArgs;
use crate::cli::client::{Client, answer, cause};
use crate::cli::exit::CliError;
use crate::cli::follow::{Followed, Follower, Then};
use crate::cli::output::Output;
use crate::cli::render;

/// What is said in the fork.
const OTHER_LINES: &str = "apples\nquinces";

/// What came of it.
#[derive(Debug)]
pub(super) struct Fork {
    session: String,
    checkpoint: String,
    /// Last position of the source before, and of the shared past.
    source_seq: u64,
    common_seq: u64,
    /// `lines.txt` and `counts.txt`, of the source and of the fork.
    files: [[String; 2]; 2],
}

/// Forks the session from its newest checkpoint, lets the fork work, and shows both.
pub(super) async fn go(client: &Client, source: &str, out: Output) -> Result<Fork, CliError> {
    let listed = client
        .get(&format!("/v1/sessions/{source}/checkpoints?limit=1"))
        .await?;
    let newest = listed.pointer("/checkpoints/0").cloned();
    let newest = newest.ok_or_else(|| refuted("the turn left no checkpoint".to_owned()))?;
    let checkpoint = id(&newest)?;
    out.line(
        "The turn ended with a checkpoint of its files. A fork from it is a session with the",
    )?;
    out.line("same past and the same disk; another message takes it another way:")?;
    out.line(format!("  {checkpoint}"))?;
    let body = json!({ "from": { "checkpoint_id": checkpoint } });
    let child = client
        .post(&format!("/v1/sessions/{source}/fork"), &body)
        .await?;
    let session = id(&child)?;
    out.line(format!("  {session}\n"))?;
    let after = child.get("last_seq").and_then(Value::as_u64).unwrap_or(0);
    say(client, &session, OTHER_LINES).await?;
    watch(client, &session, after, out).await?;

    let files = [files(client, source).await?, files(client, &session).await?];
    let diff = client
        .get(&format!("/v1/sessions/{source}/diff?against={session}"))
        .await?;
    let fork = Fork {
        source_seq: seq(
            &client.get(&format!("/v1/sessions/{source}")).await?,
            "/last_seq",
        ),
        common_seq: seq(&diff, "/common/through_seq"),
        session,
        checkpoint,
        files,
    };
    out.line(fork.to_text())?;
    out.line("And what each has of its own (`longhaul session diff`):\n")?;
    out.line(render::lineage::diff(&diff))?;
    Ok(fork)
}

async fn watch(client: &Client, session: &str, after: u64, out: Output) -> Result<(), CliError> {
    let how = FollowArgs {
        after,
        until_boundary: true,
        types: Vec::new(),
        retries: 5,
    };
    let each = |e: &Followed| {
        let shown: Value = serde_json::from_str(&e.json).unwrap_or_default();
        out.line(render::event(&shown))?;
        Ok(Then::Go)
    };
    let mut follower = Follower::new(client, session, how);
    follower.run(each, |_: &CliError, _: Duration| {}).await?;
    Ok(())
}

fn seq(answer: &Value, pointer: &str) -> u64 {
    answer.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

async fn files(client: &Client, session: &str) -> Result<[String; 2], CliError> {
    Ok([
        file(client, session, "lines.txt").await?,
        file(client, session, "counts.txt").await?,
    ])
}

async fn file(client: &Client, session: &str, path: &str) -> Result<String, CliError> {
    let body = json!({ "runtime_id": session, "path": path });
    // Reading takes no Idempotency-Key.
    let request = client.request(Method::POST, "/api/v1/runtimes/read-file");
    let sent = request.json(&body).send().await;
    let sent = sent.map_err(|e| CliError::unreachable(client.base(), cause(&e)))?;
    let read = answer(sent).await?;
    let bytes = read.get("content_base64").and_then(Value::as_str);
    let bytes = BASE64.decode(bytes.unwrap_or_default());
    let text = bytes.map(|b| String::from_utf8_lossy(&b).into_owned());
    text.map_err(|e| refuted(format!("{path} cannot be read: {e}")))
}

impl Fork {
    pub(super) fn to_json(&self) -> Value {
        let [source, fork] = &self.files;
        json!({ "session": self.session, "checkpoint": self.checkpoint,
            "common_through_seq": self.common_seq, "source_last_seq": self.source_seq,
            "files": { "source": source, "fork": fork } })
    }

    fn to_text(&self) -> String {
        let [source, fork] = &self.files;
        let mut out = String::from("\nThe same files in the session, and in its fork:\n");
        let names = ["lines.txt", "counts.txt"];
        for (name, (left, right)) in names.iter().zip(source.iter().zip(fork)) {
            let (left, right) = (one_line(left), one_line(right));
            out.push_str(&format!("  {name:<11} {left:<24} {right}\n"));
        }
        out
    }

    pub(super) fn verdict(&self) -> Result<(), CliError> {
        let [source, fork] = &self.files;
        let own = source == &["apples\npears\nplums\n", "3\n"];
        let other = fork == &["apples\nquinces\n", "3\n2\n"];
        if own && other && self.common_seq == self.source_seq {
            Ok(())
        } else {
            let what = self.to_json();
            Err(refuted(format!("the fork is not as it should be: {what}")))
        }
    }
}

fn one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join(", ")
}
