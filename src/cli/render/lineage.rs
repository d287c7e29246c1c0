//! Families, comparisons and checkpoints as people read them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{event, plain, printable, short, text};

/// A comparison: what is shared, then each side's own events.
pub(crate) fn diff(d: &Value) -> String {
    let empty = Value::Null;
    let common = d.get("common").unwrap_or(&empty);
    let mut out = vec![match common.get("through_seq").and_then(Value::as_u64) {
        None | Some(0) => "common  nothing".to_owned(),
        Some(seq) => format!(
            "common  through {seq}  {}",
            text(common, "through_event_id")
        ),
    }];
    for name in ["left", "right"] {
        let side = d.get(name).unwrap_or(&empty);
        let (id, status) = (text(side, "session_id"), text(side, "status"));
        out.push(String::new());
        out.push(format!("{name:<6}  {id}  {status}"));
        let events = side.get("events").and_then(Value::as_array);
        let events = events.map_or(&[][..], Vec::as_slice);
        if events.is_empty() {
            out.push("        nothing more".to_owned());
        }
        out.extend(events.iter().map(event));
        if let Some(next) = side.get("next_after").and_then(Value::as_u64) {
            out.push(format!("        more after {next}: --{name}-after {next}"));
        }
    }
    out.join("\n")
}

/// A message: its place and role, then each part on a line of its own.
pub(crate) fn message(m: &Value) -> String {
    let seq = m.get("seq").and_then(Value::as_u64).unwrap_or(0);
    let blocks = m.get("content").and_then(Value::as_array);
    let mut out = vec![format!("{seq:>6}  {}", text(m, "role"))];
    for block in blocks.into_iter().flatten() {
        let value = |key: &str| printable(&plain(block.get(key)));
        out.push(match text(block, "type") {
            "text" => value("text"),
            "summary" => format!("[summary] {}", value("text")),
            "tool_use" => format!("-> {} {}", text(block, "name"), value("input")),
            "tool_result" => {
                let failed = block.get("is_error") == Some(&Value::Bool(true));
                format!(
                    "<- {}{}",
                    if failed { "error: " } else { "" },
                    value("output")
                )
            }
            _ => format!(
                "[{} {}]",
                text(block, "event_type"),
                text(block, "content_state")
            ),
        });
    }
    out.join("\n        ")
}

/// A family as a tree; the session that was asked for is marked.
pub(crate) fn tree(t: &Value) -> String {
    let members = t.get("sessions").and_then(Value::as_array);
    let members = members.map_or(&[][..], Vec::as_slice);
    let known: BTreeSet<&str> = members.iter().map(|m| text(m, "id")).collect();
    let mut children: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for member in members {
        let parent = member
            .get("forked_from")
            .map_or("", |f| text(f, "session_id"));
        // What was forked from a session that is not shown stands by itself.
        let parent = if known.contains(parent) { parent } else { "" };
        children.entry(parent).or_default().push(member);
    }
    let mut out = Vec::new();
    // Each member: its line's beginning, that of its children, itself.
    let roots = children.remove("").unwrap_or_default();
    let mut todo: Vec<(String, String, &Value)> = roots
        .into_iter()
        .rev()
        .map(|m| (String::new(), String::new(), m))
        .collect();
    while let Some((before, below, member)) = todo.pop() {
        out.push(format!("{before}{}", line(member, text(t, "session_id"))));
        // Taken out, so that each is drawn once whatever the server says.
        let own = children.remove(text(member, "id")).unwrap_or_default();
        for (i, child) in own.iter().enumerate().rev() {
            let (branch, beneath) = if i + 1 == own.len() {
                ("└─ ", "   ")
            } else {
                ("├─ ", "│  ")
            };
            todo.push((
                format!("{below}{branch}"),
                format!("{below}{beneath}"),
                child,
            ));
        }
    }
    if t.get("truncated").and_then(Value::as_bool) == Some(true) {
        out.push("… and more".to_owned());
    }
    out.join("\n")
}

fn line(member: &Value, asked: &str) -> String {
    let id = text(member, "id");
    let erased = member.get("erased").and_then(Value::as_bool) == Some(true);
    let status = if erased {
        "(erased)"
    } else {
        text(member, "status")
    };
    let mut out = format!("{id}  {status}");
    let seq = member
        .get("forked_from")
        .and_then(|f| f.get("boundary_seq"));
    if let Some(seq) = seq.and_then(Value::as_u64) {
        out.push_str(&format!("  forked at {seq}"));
    }
    if id == asked {
        out.push_str("  *");
    }
    out
}

/// A checkpoint as one line of a list.
pub(crate) fn checkpoint(c: &Value) -> String {
    let empty = Value::Null;
    let snapshot = c.get("snapshot").unwrap_or(&empty);
    let mut out = format!(
        "{}  {:<8}  {}  turn {:<4}  through {:<6}  {:<7}  {} bytes  until {}",
        text(c, "id"),
        text(c, "kind"),
        text(c, "created_at"),
        plain(c.get("turn")),
        plain(c.get("through_sequence")),
        text(snapshot, "state"),
        plain(snapshot.get("bytes")),
        text(c, "expires_at"),
    );
    if c.get("pinned").and_then(Value::as_bool) == Some(true) {
        out.push_str("  pinned");
    }
    for (label, key) in [("name", "name"), ("rejected", "rejected")] {
        if let Some(said) = c.get(key).and_then(Value::as_str) {
            out.push_str(&format!("  {label}: {}", short(said)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_family_is_drawn_with_lines() {
        let member = |id: &str, from: Option<(&str, u64)>, erased: bool| {
            json!({ "id": id, "erased": erased, "status": if erased { None } else { Some("idle") },
                "forked_from": from.map(|(id, seq)| json!({ "session_id": id, "boundary_seq": seq })) })
        };
        let family = json!({ "session_id": "c", "root": "a", "truncated": true, "sessions": [
            member("a", None, true),
            member("b", Some(("a", 4)), false),
            member("c", Some(("b", 7)), false),
            member("d", Some(("b", 2)), true),
            member("e", Some(("a", 9)), false),
            member("x", Some(("gone", 3)), false),
        ]});
        let wanted = "a  (erased)\n\
                      ├─ b  idle  forked at 4\n\
                      │  ├─ c  idle  forked at 7  *\n\
                      │  └─ d  (erased)  forked at 2\n\
                      └─ e  idle  forked at 9\n\
                      x  idle  forked at 3\n\
                      … and more";
        assert_eq!(tree(&family), wanted);
    }

    #[test]
    fn a_circle_is_no_endless_tree() {
        let member =
            |id: &str, from: &str| json!({ "id": id, "forked_from": { "session_id": from } });
        assert_eq!(
            tree(&json!({ "sessions": [member("a", "b"), member("b", "a")] })),
            ""
        );
    }

    #[test]
    fn a_comparison_has_two_labelled_blocks() {
        let said = |seq: u64, text: &str| {
            json!({ "seq": seq, "type": "user.message", "content": { "text": text },
            "content_state": "present" })
        };
        let gone =
            json!({ "seq": 4, "type": "user.message", "content": null, "content_state": "erased" });
        let d = json!({ "common": { "through_seq": 2, "through_event_id": "evt_2" },
            "left": { "session_id": "a", "status": "idle", "events": [said(3, "one"), gone], "next_after": 4 },
            "right": { "session_id": "b", "status": "paused", "events": [], "next_after": null } });
        let wanted = "common  through 2  evt_2\n\
                      \n\
                      left    a  idle\n     \
                      3  user.message                   one\n     \
                      4  user.message                   (erased)\n        \
                      more after 4: --left-after 4\n\
                      \n\
                      right   b  paused\n        \
                      nothing more";
        assert_eq!(diff(&d), wanted);
        assert!(diff(&json!({ "common": { "through_seq": 0 } })).starts_with("common  nothing\n"));
    }

    #[test]
    fn a_checkpoint_is_one_line() {
        let line = checkpoint(
            &json!({ "id": "ckpt_1", "kind": "explicit", "through_sequence": 12,
            "created_at": "2025-12-01T00:00:00.000Z", "turn": 3,
            "snapshot": { "state": "live", "bytes": 30 }, "expires_at": "2026-01-01T00:00:00.000Z",
            "pinned": true, "name": "a\u{1b}b", "rejected": null }),
        );
        assert_eq!(
            line,
            "ckpt_1  explicit  2025-12-01T00:00:00.000Z  turn 3     through 12      live     30 bytes  \
             until 2026-01-01T00:00:00.000Z  pinned  name: ab"
        );
    }
}
