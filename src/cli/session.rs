//! `longhaul session …`: one HTTP call each, and following.

use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::args::{FollowArgs, SessionCommand};
use super::client::Client;
use super::exit::{CliError, Exit};
use super::follow::{Ended, Followed, Follower, Then};
use super::lineage;
use super::output::Output;
use super::render;

/// Sessions asked for at once.
const PAGE: usize = 100;
/// Most bytes taken from stdin: a little over what one event may hold.
const STDIN_BYTES_MAX: u64 = 5 << 20;

/// Runs one of the session commands.
pub(crate) async fn run(command: SessionCommand, out: Output) -> Result<(), CliError> {
    use SessionCommand as S;
    match command {
        S::Create {
            deployment,
            revision,
            message,
            metadata,
            at,
        } => {
            let body = creation(&deployment, revision, message, &metadata)?;
            let made = Client::new(&at)?.post("/v1/sessions", &body).await?;
            out.result(made.get("id").and_then(Value::as_str).unwrap_or(""), &made)
        }
        S::Send {
            session,
            text,
            follow,
            at,
        } => {
            let events = json!([{ "type": "user.message", "content": { "text": words(text)? } }]);
            submit(&Client::new(&at)?, &session, events, follow, out).await
        }
        S::Steer {
            session,
            text,
            follow,
            at,
        } => {
            let events = json!([
                { "type": "user.interrupt", "content": {} },
                { "type": "user.message", "content": { "text": words(text)? } },
            ]);
            submit(&Client::new(&at)?, &session, events, follow, out).await
        }
        S::Follow { session, how, at } => follow(&Client::new(&at)?, &session, how, out).await,
        S::Show { session, at } => {
            let shown = Client::new(&at)?.get(&path(&session, "")).await?;
            out.result(render::session(&shown), &shown)
        }
        S::List { status, limit, at } => list(&Client::new(&at)?, status, limit, out).await,
        S::Interrupt {
            session,
            reason,
            at,
        } => {
            let mut content = Map::new();
            if let Some(reason) = reason {
                content.insert("reason".into(), reason.into());
            }
            let events = json!([{ "type": "user.interrupt", "content": content }]);
            submit(&Client::new(&at)?, &session, events, false, out).await
        }
        S::Answer {
            session,
            item,
            answers,
            dismiss,
            output,
            at,
        } => {
            let client = Client::new(&at)?;
            let event = answer(&client, &session, item, answers, dismiss, output).await?;
            submit(&client, &session, json!([event]), false, out).await
        }
        S::Approve {
            session,
            item,
            deny,
            edited_input,
            remember,
            reason,
            at,
        } => {
            let client = Client::new(&at)?;
            let id = the_item(&client, &session, item, "approval_id").await?;
            let decision = if deny { "denied" } else { "granted" };
            let mut content = json!({ "approval_id": id, "decision": decision });
            if let Some(input) = edited_input {
                let input: Value = serde_json::from_str(&input)
                    .map_err(|e| CliError::usage(format!("--edited-input is not JSON: {e}")))?;
                put(&mut content, "edited_input", input);
            }
            if remember {
                put(&mut content, "remember", true);
            }
            if let Some(reason) = reason {
                put(&mut content, "reason", reason);
            }
            let event = json!({ "type": "user.action_approval", "content": content });
            submit(&client, &session, json!([event]), false, out).await
        }
        S::Fork(args) => lineage::fork(args, out).await,
        S::Diff(args) => lineage::diff(args, out).await,
        S::Tree(args) => lineage::tree(args, out).await,
        S::Resume(args) => lineage::resume(args, out).await,
        S::Transcript(args) => lineage::transcript(args, out).await,
        S::Checkpoints(args) => lineage::checkpoints(args, out).await,
        S::Complete { session, at } => end(&Client::new(&at)?, &session, "complete", out).await,
        S::Cancel { session, at } => end(&Client::new(&at)?, &session, "cancel", out).await,
        S::Budget {
            session,
            cost_micros_max,
            tokens_max,
            at,
        } => {
            let body = budget(cost_micros_max, tokens_max)?;
            let path = path(&session, "/budget");
            let shown = Client::new(&at)?.post(&path, &body).await?;
            let now = shown.get("budget").unwrap_or(&Value::Null);
            out.result(format!("{session}  {now}"), &shown)
        }
        S::Erase { session, yes, at } => {
            if !yes {
                let detail = format!("erasing {session} removes its content for good");
                let next = "Add --yes when you mean it.";
                return Err(CliError::new(Exit::Usage, "cli.unconfirmed", detail, next));
            }
            let answer = Client::new(&at)?.delete(&path(&session, "")).await?;
            out.result(format!("{session} erased"), &answer)
        }
    }
}

/// The path of a session's route. Ids are the only user text in paths, so they are checked
/// here: a slash or a dot must not lead elsewhere.
pub(super) fn path(session: &str, rest: &str) -> String {
    format!("/v1/sessions/{}{rest}", safe(session))
}

/// An id that stays one part of a path or query.
pub(super) fn safe(id: &str) -> String {
    let kept = |c: char| c.is_ascii_alphanumeric() || c == '_';
    id.chars().map(|c| if kept(c) { c } else { '-' }).collect()
}

/// Adds a field to an object.
pub(super) fn put(object: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(map) = object.as_object_mut() {
        map.insert(key.to_owned(), value.into());
    }
}

fn budget(cost: Option<String>, tokens: Option<String>) -> Result<Value, CliError> {
    let mut body = json!({});
    for (key, text) in [("cost_micros_max", cost), ("tokens_max", tokens)] {
        match text.as_deref() {
            None => {}
            Some("none") => put(&mut body, key, Value::Null),
            Some(text) => {
                let number: u64 = text.parse().map_err(|_| {
                    CliError::usage(format!("{key} {text:?} is neither a number nor `none`"))
                })?;
                put(&mut body, key, number);
            }
        }
    }
    Ok(body)
}

fn creation(
    deployment: &str,
    revision: Option<u32>,
    message: Option<String>,
    metadata: &[String],
) -> Result<Value, CliError> {
    let mut body = json!({ "agent_deployment": deployment });
    if let Some(n) = revision {
        put(&mut body, "agent_deployment_revision_number", n);
    }
    if let Some(text) = message {
        let event = json!({ "type": "user.message", "content": { "text": words(text)? } });
        put(&mut body, "events", vec![event]);
    }
    if !metadata.is_empty() {
        let mut pairs = Map::new();
        for pair in metadata {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(CliError::usage(format!(
                    "--metadata {pair:?} is not KEY=VALUE"
                )));
            };
            pairs.insert(key.to_owned(), value.into());
        }
        put(&mut body, "metadata", pairs);
    }
    Ok(body)
}

/// The text itself, or stdin for `-`.
fn words(text: String) -> Result<String, CliError> {
    if text == "-" {
        read_text(Path::new("-"))
    } else {
        Ok(text)
    }
}

/// A file's text, or stdin for `-`; bounded.
pub(crate) fn read_text(from: &Path) -> Result<String, CliError> {
    let mut text = String::new();
    let read = if from == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(STDIN_BYTES_MAX)
            .read_to_string(&mut text)
    } else {
        std::fs::File::open(from).and_then(|f| f.take(STDIN_BYTES_MAX).read_to_string(&mut text))
    };
    read.map_err(|e| CliError::usage(format!("cannot read {}: {e}", from.display())))?;
    Ok(text)
}

async fn submit(
    client: &Client,
    session: &str,
    events: Value,
    then_follow: bool,
    out: Output,
) -> Result<(), CliError> {
    let answer = client
        .post(&path(session, "/events"), &json!({ "events": events }))
        .await?;
    let accepted = answer
        .get("events")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let first = accepted
        .first()
        .and_then(|e| e.get("seq"))
        .and_then(Value::as_u64)
        .unwrap_or(0);
    if then_follow {
        say_if_paused(client, session, out).await?;
        let how = FollowArgs {
            after: first.saturating_sub(1),
            until_boundary: true,
            types: Vec::new(),
            retries: 30,
        };
        return follow(client, session, how, out).await;
    }
    let text = |e: &Value, key: &str| e.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
    for e in &accepted {
        let seq = e.get("seq").and_then(Value::as_u64).unwrap_or(0);
        out.line(format!("accepted as {seq}  {}", text(e, "id")))?;
    }
    out.value(&answer)
}

/// Nothing happens in a session that an operation paused: that is said, and how it goes on.
pub(super) async fn say_if_paused(
    client: &Client,
    session: &str,
    out: Output,
) -> Result<(), CliError> {
    let shown = client.get(&path(session, "")).await?;
    if let Some(way) = render::way_on(&shown) {
        out.note(format!("{session} is paused, and the message waits"));
        out.note(format!("to go on: {way}"));
    }
    Ok(())
}

async fn end(client: &Client, session: &str, verb: &str, out: Output) -> Result<(), CliError> {
    let answer = client
        .post(&path(session, &format!("/{verb}")), &json!({}))
        .await?;
    let status = answer
        .get("status")
        .and_then(Value::as_str)
        .unwrap_or("done");
    out.result(format!("{session}  {status}"), &answer)
}

async fn list(
    client: &Client,
    status: Option<String>,
    limit: usize,
    out: Output,
) -> Result<(), CliError> {
    let mut page: Option<String> = None;
    let mut left = limit;
    while left > 0 {
        let mut path = format!("/v1/sessions?limit={}", left.min(PAGE));
        if let Some(status) = &status {
            path.push_str(&format!("&status={status}"));
        }
        if let Some(page) = &page {
            path.push_str(&format!("&page={page}"));
        }
        let answer = client.get(&path).await?;
        let sessions = answer.get("sessions").and_then(Value::as_array);
        for s in sessions.into_iter().flatten().take(left) {
            out.result(render::session_line(s), s)?;
        }
        left = left.saturating_sub(sessions.map_or(0, Vec::len));
        page = answer
            .get("next_page")
            .and_then(Value::as_str)
            .map(str::to_owned);
        if page.is_none() {
            break;
        }
    }
    Ok(())
}

/// Follows and prints.
pub(crate) async fn follow(
    client: &Client,
    session: &str,
    how: FollowArgs,
    out: Output,
) -> Result<(), CliError> {
    let safe = path(session, "");
    let id = safe.rsplit('/').next().unwrap_or_default();
    let mut follower = Follower::new(client, id, how);
    let each = |e: &Followed| {
        let shown = serde_json::from_str(&e.json).map(|e| render::event(&e));
        out.line(shown.unwrap_or_else(|_| format!("{:>6}  {}", e.seq, e.kind)))?;
        out.raw(&e.json)?;
        Ok(Then::Go)
    };
    let lost = |e: &CliError, wait: std::time::Duration| {
        out.note(format!(
            "… {}; trying again in {} ms",
            e.detail,
            wait.as_millis()
        ));
    };
    if follower.run(each, lost).await? == Ended::Terminal {
        out.line("        the session has ended")?;
    }
    Ok(())
}

async fn answer(
    client: &Client,
    session: &str,
    item: Option<String>,
    answers: Vec<String>,
    dismiss: bool,
    output: Option<String>,
) -> Result<Value, CliError> {
    if let Some(output) = output {
        let id = the_item(client, session, item, "tool_use_id").await?;
        let output: Value = serde_json::from_str(&output).unwrap_or(Value::String(output));
        let content = json!({ "tool_use_id": id, "output": output });
        return Ok(json!({ "type": "user.custom_tool_result", "content": content }));
    }
    let id = the_item(client, session, item, "question_id").await?;
    let content = if dismiss {
        json!({ "question_id": id, "dismissed": true })
    } else {
        let answers: Vec<[String; 1]> = answers.into_iter().map(|a| [a]).collect();
        json!({ "question_id": id, "answers": answers })
    };
    Ok(json!({ "type": "user.question_answer", "content": content }))
}

/// The item given, or the only one of its kind that the session waits for.
async fn the_item(
    client: &Client,
    session: &str,
    item: Option<String>,
    kind: &str,
) -> Result<String, CliError> {
    if let Some(item) = item {
        return Ok(item);
    }
    let shown = client.get(&path(session, "")).await?;
    let waits = shown.get("waiting_on").and_then(Value::as_array);
    let mut ids = waits
        .into_iter()
        .flatten()
        .filter_map(|w| w.get(kind)?.as_str());
    match (ids.next(), ids.next()) {
        (Some(only), None) => Ok(only.to_owned()),
        (None, _) => {
            let detail = format!("{session} waits for no {kind}");
            let next = "See `longhaul session show`; name an item with --item.";
            Err(CliError::new(
                Exit::Conflict,
                "cli.nothing_open",
                detail,
                next,
            ))
        }
        (Some(_), Some(_)) => {
            let detail = format!("{session} waits for several items");
            let next = "Name one with --item; `longhaul session show` lists them.";
            Err(CliError::new(Exit::Usage, "cli.ambiguous", detail, next))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_cannot_lead_to_another_route() {
        assert_eq!(path("../x?y", "/cancel"), "/v1/sessions/---x-y/cancel");
        assert_eq!(path("sess_0a", ""), "/v1/sessions/sess_0a");
    }

    #[test]
    fn a_budget_is_numbers_or_none() {
        let body = budget(Some("none".into()), Some("7".into())).unwrap();
        assert_eq!(body, json!({"cost_micros_max": null, "tokens_max": 7}));
        assert_eq!(
            budget(None, Some("7".into())).unwrap(),
            json!({"tokens_max": 7})
        );
        assert!(budget(Some("much".into()), None).is_err());
    }

    #[test]
    fn metadata_must_be_pairs() {
        assert!(creation("dep_1", None, None, &["a".into()]).is_err());
        let body = creation("dep_1", Some(2), Some("hi".into()), &["a=b=c".into()]).unwrap();
        assert_eq!(body["metadata"]["a"], "b=c");
        assert_eq!(body["events"][0]["content"]["text"], "hi");
    }
}
