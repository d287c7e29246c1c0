//! The `longhaul` command: what it understands, and how it ends. See `docs/cli.md`.

use std::process::ExitCode;

use clap::Parser;
use serde_json::json;

pub mod args;
mod client;
mod deployment;
pub mod exit;
mod follow;
mod lineage;
pub mod output;
mod prune;
mod quickstart;
mod render;
mod runner;
mod serve;
mod session;
mod token;
mod verify;

use args::{Cli, Command, LoadArgs};
use exit::{CliError, Exit};
use longhaul_actors::session::status::TRANSITIONS;
use output::Output;

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return code(output::usage(&e)),
    };
    let out = Output::new(cli.json);
    match run(cli.command, out) {
        Ok(()) => code(Exit::Done),
        Err(e) => {
            out.error(&e);
            code(e.exit)
        }
    }
}

fn code(exit: Exit) -> ExitCode {
    ExitCode::from(exit as u8)
}

fn run(command: Command, out: Output) -> Result<(), CliError> {
    match command {
        Command::Transitions => transitions(out),
        Command::Token(command) => token::run(command, out),
        Command::Verify(args) => verify::run(&args, out),
        Command::Serve(args) => on_threads(2, serve::run(args, out)),
        Command::Quickstart(args) => on_threads(2, quickstart::run(args, out)),
        Command::Session(command) => on_threads(1, session::run(command, out)),
        Command::Deployment(command) => on_threads(1, deployment::run(command, out)),
        Command::Prune(args) => on_threads(1, prune::run(args, out)),
        Command::Runner(args) => on_threads(2, runner::run(args, out)),
        // Over HTTP one thread drives all connections: the cores belong to the server.
        Command::Load(args) => {
            let there = args.url.is_some() || args.serve || args.chaos_kill_s.is_some();
            on_threads(if there { 1 } else { 2 }, load(args, out))
        }
    }
}

fn on_threads(
    threads: usize,
    work: impl Future<Output = Result<(), CliError>>,
) -> Result<(), CliError> {
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    let runtime = builder.enable_all().build();
    let runtime = runtime.map_err(|e| CliError::failed("cli.runtime", e.to_string()))?;
    runtime.block_on(Box::pin(work))
}

async fn load(args: LoadArgs, out: Output) -> Result<(), CliError> {
    let report = crate::load::run(&args, out).await?;
    out.result(report.to_text(), &report.to_json())?;
    crate::load::verdict(&report)
}

fn transitions(out: Output) -> Result<(), CliError> {
    for t in TRANSITIONS {
        let (from, to) = (t.from.text(), t.to.text());
        let shown = format!("{from:<13} → {to:<13} {}", t.cause);
        out.result(shown, &json!({ "from": from, "to": to, "cause": t.cause }))?;
    }
    Ok(())
}
