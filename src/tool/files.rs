//! `read_file` and `write_file`: whole text files of the sandbox.

use futures_util::future::{BoxFuture, FutureExt};
use serde::Deserialize;
use serde_json::json;

use super::arguments::read;
use super::bound::{Lines, binary_note, cut_line, is_binary};
use super::builtin::{Answer, BuiltIn, place};
use super::{ToolInput, ToolOutput};

/// Largest file that is read or edited, bytes.
pub(super) const FILE_BYTES_MAX: usize = 8 << 20;
/// Lines of one answer, where nothing else is asked for.
const LINES: usize = 2_000;
/// Most lines of one answer.
const LINES_MAX: usize = 10_000;
/// Longest line that is shown whole, characters.
const LINE_CHARS_MAX: usize = 2_000;

#[derive(Debug, Deserialize)]
struct Reading {
    path: String,
    offset: Option<usize>,
    limit: Option<usize>,
}

#[derive(Debug, Deserialize)]
struct Writing {
    path: String,
    text: String,
}

pub(super) fn path_property() -> serde_json::Value {
    json!({ "type": "string", "minLength": 1, "description": "Relative to the working folder." })
}

pub(super) fn read_tool() -> BuiltIn {
    let description = "Reads a text file. Each line is shown as its number, a tab, and the line. \
        Long files are shown in parts: a note says where to go on.";
    let properties = json!({
        "path": path_property(),
        "offset": { "type": "integer", "minimum": 1, "description": "The first line; 1 if absent." },
        "limit": { "type": "integer", "minimum": 1, "maximum": LINES_MAX,
            "description": "How many lines; 2000 if absent." },
    });
    BuiltIn::new("read_file", description, properties, &["path"], run_read).read_only()
}

pub(super) fn write_tool() -> BuiltIn {
    let description = "Writes a whole text file, in place of what is there; folders on the way are \
        made. Use `edit_file` to change a part.";
    let properties = json!({
        "path": path_property(),
        "text": { "type": "string", "description": "The whole content." },
    });
    BuiltIn::new(
        "write_file",
        description,
        properties,
        &["path", "text"],
        run_write,
    )
}

fn run_read(call: ToolInput<'_>) -> BoxFuture<'_, Answer> {
    async move {
        let asked: Reading = read(call.input)?;
        let path = place(&asked.path);
        let bytes = call.sandbox.read_file(path, FILE_BYTES_MAX).await?;
        if is_binary(&bytes) {
            return Ok(ToolOutput::text(binary_note(&asked.path, &bytes)));
        }
        let text = String::from_utf8_lossy(&bytes);
        let odd = matches!(text, std::borrow::Cow::Owned(_));
        Ok(numbered(&asked, &text, odd))
    }
    .boxed()
}

fn numbered(asked: &Reading, text: &str, odd: bool) -> ToolOutput {
    let total = text.lines().count();
    let first = asked.offset.unwrap_or(1);
    if total == 0 {
        return ToolOutput::text(format!("[{} is empty]\n", asked.path));
    }
    if first > total {
        let path = &asked.path;
        return ToolOutput::error(format!(
            "{path} has {total} lines; there is no line {first}"
        ));
    }
    let mut lines = Lines::default();
    let mut next = first;
    let limit = asked.limit.unwrap_or(LINES);
    for line in text.lines().skip(first - 1).take(limit) {
        if !lines.add(&format!("{next:>6}\t{}", cut_line(line, LINE_CHARS_MAX))) {
            break;
        }
        next += 1;
    }
    let mut notes = Vec::new();
    if next <= total {
        notes.push(format!(
            "lines {first} to {} of {total}; go on with offset {next}",
            next - 1
        ));
    }
    if odd {
        notes.push("not all of it is UTF-8; what is not is shown as \u{fffd}".to_owned());
    }
    ToolOutput::text(lines.with_note(&notes.join("; ")))
}

fn run_write(call: ToolInput<'_>) -> BoxFuture<'_, Answer> {
    async move {
        let asked: Writing = read(call.input)?;
        let (bytes, lines) = (asked.text.len(), asked.text.lines().count());
        let path = place(&asked.path);
        call.sandbox
            .write_file(path, asked.text.into_bytes())
            .await?;
        Ok(ToolOutput::text(format!(
            "wrote {} ({bytes} bytes, {lines} lines)",
            asked.path
        )))
    }
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, offset: Option<usize>, limit: Option<usize>) -> String {
        let asked = Reading {
            path: "f".to_owned(),
            offset,
            limit,
        };
        let told = numbered(&asked, text, false);
        told.output.as_str().unwrap().to_owned()
    }

    #[test]
    fn lines_are_numbered_and_parts_say_where_to_go_on() {
        assert_eq!(shown("a\nb", None, None), "     1\ta\n     2\tb\n");
        assert_eq!(
            shown("a\nb\nc\n", Some(2), Some(1)),
            "     2\tb\n[lines 2 to 2 of 3; go on with offset 3]\n"
        );
        assert_eq!(shown("a\nb\nc\n", Some(3), None), "     3\tc\n");
        assert_eq!(shown("", None, None), "[f is empty]\n");
        assert_eq!(
            shown("a\n", Some(2), None),
            "f has 1 lines; there is no line 2"
        );
    }

    #[test]
    fn a_flood_of_lines_is_read_in_parts_to_its_end() {
        let text = "x".repeat(99).repeat(3) + "\n";
        let text = text.repeat(1_000);
        let (mut at, mut seen) = (1, 0);
        loop {
            let part = shown(&text, Some(at), None);
            assert!(part.len() < 65 << 10);
            seen += part.lines().filter(|l| l.contains('\t')).count();
            match part.rsplit_once("offset ") {
                Some((_, next)) => at = next.trim_end_matches("]\n").parse().unwrap(),
                None => break,
            }
        }
        assert_eq!(seen, 1_000);
        assert!(shown(&"y".repeat(9_000), None, None).contains("[7000 more bytes in this line]"));
    }
}
