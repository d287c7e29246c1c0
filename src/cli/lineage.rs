//! `longhaul session resume | fork | diff | tree | transcript | checkpoints`.

use serde_json::{Value, json};

use super::args::{DiffArgs, ForkArgs, OneArgs, PlaceArgs, ResumeArgs, TranscriptArgs};
use super::client::Client;
use super::exit::CliError;
use super::output::Output;
use super::render::lineage as render;
use super::session::{path, put, safe, say_if_paused};

/// Checkpoints, or messages, asked for at once.
const PAGE: usize = 100;

/// Forks a session and prints the child's id.
pub(crate) async fn fork(args: ForkArgs, out: Output) -> Result<(), CliError> {
    let mut body = json!({ "from": place(args.place) });
    if let Some(principal) = args.principal {
        put(&mut body, "principal", principal);
    }
    let client = Client::new(&args.at)?;
    let child = client.post(&path(&args.session, "/fork"), &body).await?;
    out.result(
        child.get("id").and_then(Value::as_str).unwrap_or(""),
        &child,
    )
}

fn place(place: PlaceArgs) -> Value {
    match (place.event, place.seq, place.checkpoint) {
        (Some(id), _, _) => json!({ "event_id": id }),
        (_, Some(seq), _) => json!({ "seq": seq }),
        (_, _, Some(id)) => json!({ "checkpoint_id": id }),
        (None, None, None) => json!({ "head": true }),
    }
}

/// Prints what two sessions share, and what each has of its own.
pub(crate) async fn diff(args: DiffArgs, out: Output) -> Result<(), CliError> {
    let mut query = format!("/diff?against={}&limit={}", safe(&args.against), args.limit);
    for (name, after) in [
        ("left_after", args.left_after),
        ("right_after", args.right_after),
    ] {
        if let Some(seq) = after {
            query.push_str(&format!("&{name}={seq}"));
        }
    }
    let client = Client::new(&args.at)?;
    let diff = client.get(&path(&args.session, &query)).await?;
    out.result(render::diff(&diff), &diff)
}

/// Draws the family of a session.
pub(crate) async fn tree(args: OneArgs, out: Output) -> Result<(), CliError> {
    let client = Client::new(&args.at)?;
    let tree = client.get(&path(&args.session, "/tree")).await?;
    out.result(render::tree(&tree), &tree)
}

/// Goes on with a conversation and prints the id of the session that it goes on in.
pub(crate) async fn resume(args: ResumeArgs, out: Output) -> Result<(), CliError> {
    let prompt = (!args.prompt.is_empty()).then(|| args.prompt.join(" "));
    let mut body = json!({ "prompt": prompt });
    for (key, value) in [("from", args.from), ("user", args.user)] {
        if let Some(value) = value {
            put(&mut body, key, value);
        }
    }
    let client = Client::new(&args.at)?;
    let resumed = client.post(&path(&args.session, "/resume"), &body).await?;
    let id = resumed.get("session_id").and_then(Value::as_str);
    let id = id.unwrap_or("");
    match resumed.get("forked").and_then(Value::as_bool) {
        Some(true) => out.note(format!("forked from {}: goes on in {id}", args.session)),
        _ => out.note(format!("goes on in place, in {id}")),
    }
    say_if_paused(&client, id, out).await?;
    out.result(id, &resumed)
}

/// Prints the conversation as a model sees it, a message at a time.
pub(crate) async fn transcript(args: TranscriptArgs, out: Output) -> Result<(), CliError> {
    let client = Client::new(&args.at)?;
    let (mut after, compacted) = (0, !args.full);
    loop {
        let rest = format!("/transcript?limit={PAGE}&compacted={compacted}&after={after}");
        let page = client.get(&path(&args.session, &rest)).await?;
        let messages = page.get("messages").and_then(Value::as_array);
        for message in messages.into_iter().flatten() {
            out.result(render::message(message), message)?;
        }
        match page.get("next_after").and_then(Value::as_u64) {
            Some(next) => after = next,
            None => return Ok(()),
        }
    }
}

/// Lists the checkpoints of a session, newest first.
pub(crate) async fn checkpoints(args: OneArgs, out: Output) -> Result<(), CliError> {
    let client = Client::new(&args.at)?;
    let mut page = String::new();
    loop {
        let rest = format!("/checkpoints?limit={PAGE}{page}");
        let answer = client.get(&path(&args.session, &rest)).await?;
        let listed = answer.get("checkpoints").and_then(Value::as_array);
        for checkpoint in listed.into_iter().flatten() {
            out.result(render::checkpoint(checkpoint), checkpoint)?;
        }
        match answer.get("next_page").and_then(Value::as_str) {
            Some(next) => page = format!("&page={}", safe(next)),
            None => return Ok(()),
        }
    }
}
