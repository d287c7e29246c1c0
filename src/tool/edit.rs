//! `edit_file`: one text of a file replaced by another.

use std::hash::{DefaultHasher, Hash, Hasher};

use futures_util::future::{BoxFuture, FutureExt};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;

use super::arguments::read;
use super::builtin::{Answer, BuiltIn, Fault, place};
use super::files::{FILE_BYTES_MAX, path_property};
use super::{ToolInput, ToolOutput};
use crate::runner::Sandbox;

/// Places that are named where a text is not unique.
const PLACES_MAX: usize = 10;
/// Locks of all sandboxes. Two that share one only wait for each other.
const LOCKS: usize = 64;

static EDITING: [Mutex<()>; LOCKS] = [const { Mutex::const_new(()) }; LOCKS];

#[derive(Debug, Deserialize)]
struct Arguments {
    path: String,
    old: String,
    new: String,
    #[serde(default)]
    replace_all: bool,
}

pub(super) fn tool() -> BuiltIn {
    let description = "Replaces a text of a file. `old` must stand there exactly once, byte for \
        byte with its white space (without the line numbers of `read_file`), unless `replace_all` \
        is true; take more of the lines around it to make it so.";
    let properties = json!({
        "path": path_property(),
        "old": { "type": "string", "minLength": 1, "description": "What is there." },
        "new": { "type": "string", "description": "What is to be there instead." },
        "replace_all": { "type": "boolean", "description": "Replaces every place; false if absent." },
    });
    BuiltIn::new(
        "edit_file",
        description,
        properties,
        &["path", "old", "new"],
        run,
    )
}

fn run(call: ToolInput<'_>) -> BoxFuture<'_, Answer> {
    async move {
        let asked: Arguments = read(call.input)?;
        let path = place(&asked.path);
        // Two edits at the same time would lose one: each writes the whole file.
        let _turn = lock(call.sandbox).lock().await;
        let bytes = call.sandbox.read_file(path.clone(), FILE_BYTES_MAX).await?;
        let text = String::from_utf8(bytes)
            .map_err(|_| format!("{} is not UTF-8 text; change it by a command", asked.path))?;
        let (text, places) = replace(&asked, &text)?;
        let line = places.first().copied().unwrap_or_default();
        call.sandbox.write_file(path, text.into_bytes()).await?;
        let done = match places.len() {
            1 => format!("replaced one place in {}, in line {line}", asked.path),
            n => format!(
                "replaced {n} places in {}, the first in line {line}",
                asked.path
            ),
        };
        Ok(ToolOutput::text(done))
    }
    .boxed()
}

fn lock(sandbox: &dyn Sandbox) -> &'static Mutex<()> {
    let mut hasher = DefaultHasher::new();
    std::ptr::from_ref(sandbox).cast::<()>().hash(&mut hasher);
    let [first, ..] = &EDITING;
    let at = usize::try_from(hasher.finish() % LOCKS as u64).unwrap_or_default();
    EDITING.get(at).unwrap_or(first)
}

/// The text after the edit, and the lines where it was made.
fn replace(asked: &Arguments, text: &str) -> Result<(String, Vec<usize>), Fault> {
    if asked.old == asked.new {
        return Err("`old` and `new` are the same".to_owned().into());
    }
    let path = &asked.path;
    let places = lines_of(text, &asked.old);
    match places.len() {
        0 => return Err(not_there(path, text, &asked.old).into()),
        1 => {}
        n if !asked.replace_all => {
            let lines: Vec<String> = places
                .iter()
                .take(PLACES_MAX)
                .map(usize::to_string)
                .collect();
            let more = if n > PLACES_MAX { "…" } else { "" };
            return Err(format!(
                "`old` stands in {path} {n} times (lines {}{more}): take more of the lines around it, or set `replace_all`",
                lines.join(", ")
            )
            .into());
        }
        _ => {}
    }
    let grown = asked.new.len().saturating_sub(asked.old.len());
    if text.len() + grown.saturating_mul(places.len()) > FILE_BYTES_MAX {
        return Err(format!("{path} would grow beyond {FILE_BYTES_MAX} bytes").into());
    }
    Ok((text.replace(&asked.old, &asked.new), places))
}

/// The lines in which the matches of `old` begin.
fn lines_of(text: &str, old: &str) -> Vec<usize> {
    let (mut line, mut from) = (1, 0);
    text.match_indices(old)
        .map(|(at, _)| {
            line += text.get(from..at).unwrap_or_default().matches('\n').count();
            from = at;
            line
        })
        .collect()
}

/// Says that `old` is not there, and where it nearly is.
fn not_there(path: &str, text: &str, old: &str) -> String {
    let bare = |text: &str| -> Vec<String> { text.lines().map(|l| l.trim().to_owned()).collect() };
    let wanted = bare(old.trim_matches('\n'));
    let near = bare(text)
        .windows(wanted.len().max(1))
        .position(|lines| *lines == *wanted && wanted.iter().any(|l| !l.is_empty()));
    match near {
        Some(at) => format!(
            "`old` is not in {path}; with other white space, or other line ends, it begins in line {}: read the file there and take it as it stands",
            at + 1
        ),
        None => format!("`old` is not in {path}; read the file and take the text as it stands"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(text: &str, old: &str, new: &str, replace_all: bool) -> Result<String, String> {
        let asked = Arguments {
            path: "f".to_owned(),
            old: old.to_owned(),
            new: new.to_owned(),
            replace_all,
        };
        match replace(&asked, text) {
            Ok((text, _)) => Ok(text),
            Err(Fault::Told(text)) => Err(text),
            Err(Fault::Sandbox(error)) => Err(error.to_string()),
        }
    }

    #[test]
    fn one_place_or_all() {
        assert_eq!(edit("a b c", "b", "", false).unwrap(), "a  c");
        assert_eq!(edit("a a", "a", "aa", true).unwrap(), "aa aa");
        assert_eq!(edit("x\r\ny", "x\r\n", "z\n", false).unwrap(), "z\ny");
    }

    #[test]
    fn refusals_say_where_to_look() {
        for (text, old, new, said) in [
            ("a", "a", "a", "are the same"),
            ("a\nb\na\na", "a", "x", "3 times (lines 1, 3, 4)"),
            ("a", "q", "x", "`old` is not in f; read"),
            (
                "fn x() {\n\ty\n}\n",
                "fn x() {\n    y",
                "",
                "begins in line 1",
            ),
            ("1\r\n2\r\n", "1\n2\n", "", "begins in line 1"),
            ("\n\n", " ", "x", "`old` is not in f; read"),
        ] {
            let told = edit(text, old, new, false).unwrap_err();
            assert!(told.contains(said), "{text:?} {old:?}: {told}");
        }
        let many = "a\n".repeat(20);
        assert!(
            edit(&many, "a", "b", false)
                .unwrap_err()
                .contains("9, 10…)")
        );
        let big = edit(&"a".repeat(1 << 20), "a", &"b".repeat(99), true);
        assert!(big.unwrap_err().contains("grow beyond"));
    }
}
