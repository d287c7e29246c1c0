//! `longhaul quickstart`: a session that survives kill -9, and a fork of it, shown live.

use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_actors::env::{Clock, SystemClock};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::args::{FollowArgs, QuickstartArgs, ServerArgs};
use super::client::Client;
use super::exit::{CliError, Exit};
use super::follow::{Followed, Follower, Then};
use super::output::Output;
use super::render;
use crate::load::server::{ServerProcess, ServerSpec};

mod another;
mod proof;

/// How long the agent works before it is killed: the second tool has just answered.
const RESULTS_BEFORE_KILL: usize = 2;
/// What is said to the agent.
const LINES: &str = "apples\npears\nplums";
/// How long the server stays dead, for people to see it.
const DEAD_FOR: Duration = Duration::from_millis(700);
/// A dead attempt is noticed after this many seconds instead of the default 30.
const SETTINGS: &[&str] = &["runs.lease_s=2", "runs.beat_s=1", "runs.backoff_ms_min=100"];

/// Shows it.
pub(crate) async fn run(args: QuickstartArgs, out: Output) -> Result<(), CliError> {
    let (data, temporary) = folder(args.data)?;
    let program = std::env::current_exe().map_err(|e| CliError::io(Path::new("longhaul"), &e))?;
    let settings = SETTINGS.iter().map(|s| (*s).to_owned()).collect();
    let spec = ServerSpec {
        program,
        data: data.clone(),
        settings,
        env: Vec::new(),
    };

    out.line("A server on an embedded RocksDB, in a process of its own:")?;
    let server = ServerProcess::start(spec).await?;
    out.line(format!(
        "  {} (pid {}), data in {}\n",
        server.url(),
        server.pid(),
        data.display()
    ))?;
    let at = ServerArgs {
        server: server.url(),
        token: None,
        workspace: None,
    };
    let client = Client::new(&at)?;

    let made = client.post("/v1/deployments", &agent()).await?;
    let deployment = id(&made)?;
    let session = id(&client
        .post("/v1/sessions", &json!({"agent_deployment": deployment}))
        .await?)?;
    out.line("An agent (a script: no model, no keys) and a session with it:")?;
    out.line(format!("  {deployment}\n  {session}\n"))?;
    say(&client, &session, LINES).await?;
    out.line("A message is sent; these are the session's events as they become durable:\n")?;

    let server = watch(&client, &session, server, out).await?;
    let proof = proof::check(&client, &session).await?;
    out.line(format!("\n{}", proof.to_text()))?;
    proof.verdict()?;
    let fork = another::go(&client, &session, out).await?;
    out.value(&json!({ "session": session, "proof": proof.to_json(), "fork": fork.to_json() }))?;
    server.stop().await?;
    fork.verdict()?;
    out.line("")?;
    out.line(what_next(temporary.is_none().then_some(data.as_path())))
}

fn folder(data: Option<PathBuf>) -> Result<(PathBuf, Option<tempfile::TempDir>), CliError> {
    if let Some(data) = data {
        return Ok((data, None));
    }
    let made = tempfile::Builder::new()
        .prefix("longhaul-quickstart-")
        .tempdir();
    let made = made.map_err(|e| CliError::io(&std::env::temp_dir(), &e))?;
    Ok((made.path().join("data"), Some(made)))
}

fn agent() -> Value {
    let steps = json!([
        { "say": "I'll write your lines to a file and count them." },
        { "write": { "path": "lines.txt", "text": "{{input}}\n" } },
        { "exec": "wc -l < lines.txt | tee -a counts.txt" },
        { "exec": "[ -e checked ] || sleep 2; echo twice | tee checked" },
        { "exec": "cat counts.txt" },
        { "say": "Done; the files stay for the next turn." },
    ]);
    json!({
        "name": "quickstart",
        "release": {
            "instructions": "Count lines.",
            "harness": { "kind": "script", "steps": steps },
        },
        "sandbox": { "provider": "dir", "max_duration_seconds": 60 },
    })
}

/// Sends a message.
async fn say(client: &Client, session: &str, text: &str) -> Result<(), CliError> {
    let message = json!({ "events": [{ "type": "user.message", "content": { "text": text } }] });
    client
        .post(&format!("/v1/sessions/{session}/events"), &message)
        .await?;
    Ok(())
}

fn id(answer: &Value) -> Result<String, CliError> {
    let id = answer.get("id").and_then(Value::as_str).map(str::to_owned);
    id.ok_or_else(|| CliError::failed("cli.answer", format!("an answer without an id: {answer}")))
}

/// Prints events until the boundary; kills the server in the middle and starts it again.
async fn watch(
    client: &Client,
    session: &str,
    mut server: ServerProcess,
    out: Output,
) -> Result<ServerProcess, CliError> {
    let how = FollowArgs {
        after: 0,
        until_boundary: true,
        types: Vec::new(),
        retries: 50,
    };
    let mut follower = Follower::new(client, session, how);
    let now = Notify::new();
    let mut results = 0;
    let each = |e: &Followed| {
        let shown: Value = serde_json::from_str(&e.json).unwrap_or_default();
        out.line(render::event(&shown))?;
        out.raw(&e.json)?;
        results += usize::from(e.kind == "agent.tool_result");
        if results == RESULTS_BEFORE_KILL {
            results += 1;
            now.notify_one();
        }
        Ok(Then::Go)
    };
    let lost = |_: &CliError, _: Duration| {};
    let kill = async {
        let clock = SystemClock::new();
        now.notified().await;
        clock.sleep_until(clock.mono() + DEAD_FOR).await;
        let pid = server.pid();
        server.kill9()?;
        out.line(format!(
            "\n        ✗ kill -9 {pid}: the server is gone, in the middle of a command"
        ))?;
        clock.sleep_until(clock.mono() + DEAD_FOR).await;
        server.restart().await?;
        out.line(format!(
            "        ✓ started again (pid {}) on the same data",
            server.pid()
        ))?;
        out.line("          the dead attempt's lease runs out in two seconds; then attempt 2\n")
    };
    let (followed, killed) = tokio::join!(follower.run(each, lost), kill);
    killed?;
    followed?;
    Ok(server)
}

fn what_next(kept: Option<&Path>) -> String {
    let mut out = String::from("What to try next:\n");
    let data = kept.unwrap_or_else(|| Path::new("./data"));
    let rows = [
        (
            format!("longhaul serve --data {}", data.display()),
            "a server for yourself",
        ),
        (
            "longhaul session list".to_owned(),
            "what it holds (also: show, follow, send, steer)",
        ),
        (
            "longhaul load".to_owned(),
            "how fast this machine is, checked",
        ),
        (
            "longhaul help".to_owned(),
            "everything else; the README has the HTTP and Rust examples",
        ),
    ];
    for (command, what) in rows {
        out.push_str(&format!("  {command:<32} {what}\n"));
    }
    out.trim_end().to_owned()
}

/// The error of a proof that fails.
fn refuted(what: String) -> CliError {
    CliError::new(
        Exit::Damaged,
        "quickstart.refuted",
        what,
        "This is a bug; please report it.",
    )
}
