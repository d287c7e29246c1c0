//! An agent with a tool of its own, killed in the middle of its work and gone on with.
//!
//! ```sh
//! cargo run --example research_agent
//! ```
//!
//! A child process lets the agent look three things up. While it looks up the third, the child is
//! killed with -9. This process opens the same folder, and the run goes on: what was looked up is
//! in the journal and is not looked up again, and no answer of the model is paid for twice. The
//! model is recorded, so that this needs no key; `.model("anthropic/…")` asks a real one.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use longhaul::tool::{Tool, ToolOutput, from_fn};
use longhaul::{Agent, AgentHandle, Config, Resume, SessionId};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The last topic takes longer than the process that looks it up first lives.
const SLOW: &str = "the sun";

/// Looks a topic up, and writes down that it did.
fn look_up(folder: &Path, is_first: bool) -> impl Tool {
    let folder = folder.to_owned();
    let schema = json!({
        "type": "object",
        "properties": {"topic": {"type": "string"}},
        "required": ["topic"],
    });
    let tool = from_fn(
        "look_up",
        "Looks a topic up.",
        schema,
        move |input: Value| {
            let folder = folder.clone();
            async move {
                let topic = input.get("topic").and_then(Value::as_str);
                let topic = topic.unwrap_or_default().to_owned();
                say(&format!("  looking up {topic}"));
                if is_first && topic == SLOW {
                    std::future::pending::<()>().await;
                }
                match note(&folder, &topic) {
                    Ok(()) => Ok(ToolOutput::text(format!("{topic} pulls at the sea"))),
                    Err(error) => Ok(ToolOutput::error(error.to_string())),
                }
            }
        },
    );
    // A call that was cut off may be made again. Without this it would be in doubt, and the agent
    // would be told so.
    tool.idempotent()
}

fn note(folder: &Path, topic: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new();
    let mut file = file.create(true).append(true).open(notes(folder))?;
    writeln!(file, "{topic}")
}

fn notes(folder: &Path) -> PathBuf {
    folder.join("notes.txt")
}

/// The agent; `is_first` in the process that will be killed.
async fn open(folder: &Path, is_first: bool) -> Outcome<AgentHandle> {
    let usage = json!({"input_tokens": 100, "output_tokens": 10, "cost_micros": 300});
    let look = |topic: &str| {
        let call = json!({"name": "look_up", "input": {"topic": topic}});
        json!({"tool_calls": [call], "usage": usage})
    };
    let answers = json!([
        look("the tides"),
        look("the moon"),
        look(SLOW),
        {"text": "The moon and the sun raise the tides.", "usage": usage},
        {"text": "Because it is closer.", "usage": usage},
    ]);
    let mut config = Config::in_folder(folder.join("data"));
    // How soon it shows that a process is gone; 30 s otherwise.
    config.runs.lease_s = 1;
    config.runs.beat_s = 1;
    let agent = Agent::new("researcher")
        .instructions("You find things out.")
        .scripted(answers)
        .tool(look_up(folder, is_first));
    Ok(agent.open_with(config).await?)
}

/// The process that is killed: it says in which session it works, and works.
async fn work(folder: &Path) -> Outcome<()> {
    let agent = open(folder, true).await?;
    let turn = agent.stream("What makes the tides?").await?;
    say(&format!("session {}", turn.session_id()));
    turn.answer().await?;
    Ok(())
}

/// Starts the other process, and kills it while it looks the last topic up.
async fn start_and_kill(folder: &Path) -> Outcome<SessionId> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg(folder)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let output = child.stdout.take().ok_or("it has no output")?;
    let mut lines = BufReader::new(output).lines();
    let mut session = None;
    while let Some(line) = lines.next_line().await? {
        say(&line);
        if let Some(id) = line.strip_prefix("session ") {
            session = Some(SessionId::parse(id)?);
        }
        if line.ends_with(SLOW) {
            child.kill().await?;
            say("killed with -9");
        }
    }
    session.ok_or_else(|| "it did not come to a session".into())
}

async fn show(folder: &Path) -> Outcome<()> {
    let session = start_and_kill(folder).await?;
    let agent = open(folder, false).await?;
    let answer = agent.wait(session).await?.succeeded()?;
    say(&format!("answer: {}", answer.text));
    let looked_up = std::fs::read_to_string(notes(folder))?;
    say(&format!(
        "looked up: {}",
        looked_up.trim().replace('\n', ", ")
    ));
    say(&format!(
        "model answers: {}, paid: {} micros",
        answer.turns, answer.session_usage.cost_micros
    ));
    if looked_up.lines().count() != 3 || answer.session_usage.cost_micros != 4 * 300 {
        return Err("something ran twice".into());
    }

    // The conversation goes on whenever somebody has a question.
    let resume = Resume::of(session).prompt("Why the moon more than the sun?");
    let more = agent.resume(resume).await?.succeeded()?;
    say(&format!("answer: {}", more.text));
    let checkpoints = agent.list_checkpoints(session, None).await?;
    say(&format!("checkpoints: {}", checkpoints.len()));
    agent.close().await;
    Ok(())
}

fn say(text: &str) {
    // Whoever does not listen any more misses nothing that counts.
    let _ = writeln!(std::io::stdout(), "{text}");
}

#[tokio::main]
async fn main() -> Outcome<()> {
    match std::env::args_os().nth(1) {
        Some(folder) => work(Path::new(&folder)).await,
        None => {
            let folder = tempfile::tempdir()?;
            show(folder.path()).await
        }
    }
}
