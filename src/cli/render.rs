//! Events and sessions as people read them.

pub(crate) mod lineage;

use serde_json::Value;

/// Longest text shown of one event, characters.
const TEXT_CHARS_MAX: usize = 160;

/// One event as one line: position, type, attempt where there is one, and what matters of it.
pub(crate) fn event(e: &Value) -> String {
    let seq = e.get("seq").and_then(Value::as_u64).unwrap_or(0);
    let kind = text(e, "type");
    let what = match e.get("content_state").and_then(Value::as_str) {
        Some("present") | None => content(kind, e.get("content").unwrap_or(&Value::Null)),
        Some(state) => format!("({state})"),
    };
    let attempt = match e.get("attempt").and_then(Value::as_u64) {
        Some(n) if n > 0 => format!("#{n}"),
        _ => String::new(),
    };
    format!("{seq:>6}  {kind:<26} {attempt:<3} {}", short(&what))
        .trim_end()
        .to_owned()
}

fn content(kind: &str, c: &Value) -> String {
    match kind {
        "user.message" | "agent.message" => message(c),
        "agent.tool_use" | "agent.custom_tool_use" => {
            format!("{} {}", text(c, "name"), plain(c.get("input")))
        }
        "agent.tool_result" | "user.custom_tool_result" => match c.get("exit_code") {
            Some(code) if code.as_i64() != Some(0) => {
                format!("exit {code}: {}", plain(c.get("output")))
            }
            _ => plain(c.get("output")),
        },
        "session.status" => {
            format!(
                "{} → {}  {}",
                text(c, "from"),
                text(c, "to"),
                text(c, "reason")
            )
        }
        "run.settled" => match c.get("error") {
            Some(Value::Object(error)) => format!(
                "{}: {} ({})",
                text(c, "outcome"),
                plain(error.get("message")),
                plain(error.get("code"))
            ),
            _ => text(c, "outcome").to_owned(),
        },
        "run.requeued" => text(c, "reason").to_owned(),
        "run.queued" => c.get("trigger").map_or("", |t| text(t, "kind")).to_owned(),
        "run.inputs_taken" => {
            let n = c
                .get("event_ids")
                .and_then(Value::as_array)
                .map_or(0, Vec::len);
            format!("{n} taken")
        }
        "run.started" => match c.get("resume") {
            Some(resume) => format!("{} {}", text(resume, "kind"), text(resume, "reason")),
            None => String::new(),
        },
        "agent.question" => questions(c),
        "agent.action_approval_requested" => {
            format!("{} {}", text(c, "tool"), plain(c.get("input")))
        }
        "run.parked" => {
            let items = c
                .get("waiting_on")
                .and_then(Value::as_array)
                .map_or(0, Vec::len);
            format!("compute {}, waiting on {items}", text(c, "compute"))
        }
        "user.question_answer" => plain(c.get("answers").or(c.get("dismissed"))),
        "user.action_approval" => text(c, "decision").to_owned(),
        "item.closed" => text(c, "state").to_owned(),
        "session.forked" => format!(
            "from {} at {}",
            text(c, "source_session_id"),
            plain(c.get("boundary_seq"))
        ),
        "checkpoint.created" => {
            let through = plain(c.get("through_sequence"));
            let (id, kind) = (text(c, "checkpoint_id"), text(c, "kind"));
            format!("{id} {kind}, through {through}")
        }
        "checkpoint.failed" => format!("{}: {}", text(c, "kind"), text(c, "reason")),
        "checkpoint.rejected" => format!("{}: {}", text(c, "checkpoint_id"), text(c, "reason")),
        "checkpoint.pinned" => {
            let pinned = c.get("pinned").and_then(Value::as_bool) == Some(true);
            let what = if pinned { "pinned" } else { "no longer pinned" };
            format!("{} {what}", text(c, "checkpoint_id"))
        }
        "content.erased" => format!("{} through {}", text(c, "reason"), c["through_seq"]),
        "checkpoint.expired" => text(c, "checkpoint_id").to_owned(),
        "checkpoint.deleted" => format!("{} {}", text(c, "checkpoint_id"), text(c, "what")),
        "session.created" | "run.claimed" => String::new(),
        _ => plain(Some(c)),
    }
}

fn questions(c: &Value) -> String {
    let all = c
        .get("questions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let all: Vec<&str> = all.map(|q| text(q, "question")).collect();
    if all.is_empty() {
        plain(Some(c))
    } else {
        all.join(" / ")
    }
}

fn message(c: &Value) -> String {
    match c.get("text").and_then(Value::as_str) {
        Some(text) => text.to_owned(),
        None => plain(c.get("blocks").or(Some(c))),
    }
}

fn text<'a>(v: &'a Value, key: &str) -> &'a str {
    v.get(key).and_then(Value::as_str).unwrap_or("")
}

fn plain(v: Option<&Value>) -> String {
    match v {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(s)) => s.clone(),
        Some(Value::Object(map)) if map.len() == 1 => map
            .iter()
            .map(|(k, v)| format!("{k}: {}", plain(Some(v))))
            .collect(),
        Some(v) => v.to_string(),
    }
}

/// Text of any length without control characters, its further lines indented.
fn printable(s: &str) -> String {
    let lines = s.trim_end().lines();
    let clean = lines.map(|l| l.chars().filter(|c| !c.is_control()).collect());
    clean.collect::<Vec<String>>().join("\n        ")
}

/// One line of printable text, cut to a readable length. Control characters would let a log
/// rewrite the reader's terminal.
fn short(s: &str) -> String {
    let clean = s.trim_end().replace('\n', " ⏎ ");
    let mut out: String = clean
        .chars()
        .filter(|c| !c.is_control())
        .take(TEXT_CHARS_MAX)
        .collect();
    if clean.chars().count() > TEXT_CHARS_MAX {
        out.push('…');
    }
    out
}

/// A session as a block: where it is and why.
pub(crate) fn session(s: &Value) -> String {
    let mut out = vec![format!("{}  {}", text(s, "id"), text(s, "status"))];
    let mut row = |key: &str, value: String| {
        if !value.is_empty() {
            out.push(format!("  {key:<12} {value}"));
        }
    };
    let revision = plain(s.get("agent_deployment_revision_number"));
    row(
        "deployment",
        format!("{} revision {revision}", text(s, "agent_deployment")),
    );
    row("principal", text(s, "principal").to_owned());
    row("last seq", plain(s.get("last_seq")));
    if let Some(run) = s.get("run").filter(|r| r.is_object()) {
        let tries = format!(
            "{} of {}",
            plain(run.get("attempt")),
            plain(run.get("attempts_max"))
        );
        row(
            "run",
            format!(
                "{} {}, attempt {tries}",
                text(run, "id"),
                text(run, "state")
            ),
        );
        for key in [
            "blocked_by",
            "target",
            "next_retry_at",
            "startup_deadline",
            "deadline",
        ] {
            row(key, plain(run.get(key)));
        }
    }
    if let Some(last) = s.get("last_run").filter(|r| r.is_object()) {
        let error = last.get("error").filter(|e| !e.is_null());
        let error = error.map(|e| format!(": {} ({})", text(e, "message"), text(e, "code")));
        let outcome = text(last, "outcome");
        row(
            "last run",
            format!(
                "{} {outcome}{}",
                text(last, "id"),
                error.unwrap_or_default()
            ),
        );
    }
    for item in s
        .get("waiting_on")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        row("waiting on", plain(Some(item)));
    }
    row("paused by", text(s, "paused_by").to_owned());
    row("to go on", way_on(s).unwrap_or_default());
    if s.get("untaken_inputs").and_then(Value::as_u64).unwrap_or(0) > 0 {
        row(
            "untaken",
            format!("{} messages", plain(s.get("untaken_inputs"))),
        );
    }
    for key in ["usage", "budget", "metadata"] {
        if s.get(key)
            .and_then(Value::as_object)
            .is_some_and(|m| !m.is_empty())
        {
            row(key, s.get(key).map(Value::to_string).unwrap_or_default());
        }
    }
    row("created", text(s, "created_at").to_owned());
    row("updated", text(s, "updated_at").to_owned());
    out.join("\n")
}

/// How a session that an operation paused goes on; `None` = it is not paused so.
pub(crate) fn way_on(s: &Value) -> Option<String> {
    let id = text(s, "id");
    (text(s, "paused_by") == "runtime").then(|| {
        format!(
            "POST /api/v1/runtimes/resume {{\"runtime_id\": \"{id}\"}}; \
             or end the pause: longhaul session interrupt {id}"
        )
    })
}

/// A session as one line of a list.
pub(crate) fn session_line(s: &Value) -> String {
    let (id, status) = (text(s, "id"), text(s, "status"));
    format!(
        "{id}  {status:<12} {}  {}",
        text(s, "created_at"),
        text(s, "principal")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_is_one_printable_line() {
        let line = event(&json!({"seq": 3, "type": "agent.message", "attempt": 2,
            "content_state": "present", "content": {"text": "a\nb\u{1b}[2Jc"}}));
        assert!(line.contains("#2") && line.contains("a ⏎ b[2Jc"), "{line}");
        assert!(!line.chars().any(char::is_control));
    }

    #[test]
    fn erased_content_is_named_as_such() {
        let line = event(&json!({"seq": 3, "type": "user.message", "content": null,
            "content_state": "erased"}));
        assert!(line.ends_with("(erased)"), "{line}");
    }

    #[test]
    fn long_text_is_cut() {
        let text = "x".repeat(1000);
        let line = event(&json!({"seq": 1, "type": "user.message", "content": {"text": text}}));
        assert!(line.chars().count() < 250 && line.ends_with('…'));
    }
}
