//! `list_files`: what is in the sandbox.

use futures_util::future::{BoxFuture, FutureExt};
use serde::Deserialize;
use serde_json::json;

use super::arguments::read;
use super::bound::Lines;
use super::builtin::{Answer, BuiltIn, place};
use super::walk::{DEPTH_MAX, Found, PathGlob, walk};
use super::{ToolInput, ToolOutput};
use crate::runner::sandbox::EntryKind;

/// Names of one answer.
const SHOWN_MAX: usize = 1_000;
/// Levels, where neither a depth nor a glob is asked for.
const DEPTH: usize = 2;

#[derive(Debug, Deserialize)]
struct Arguments {
    path: Option<String>,
    depth: Option<usize>,
    glob: Option<String>,
}

pub(super) fn tool() -> BuiltIn {
    let description = "Lists the files and folders beneath a folder, in order, with the sizes of \
        files. Folders end with `/`. Links are not followed, `.git` is not entered.";
    let properties = json!({
        "path": { "type": "string", "minLength": 1,
            "description": "The folder, relative to the working folder; that itself if absent." },
        "depth": { "type": "integer", "minimum": 1, "maximum": DEPTH_MAX,
            "description": "How many levels; 2 if absent, all with a `glob`." },
        "glob": { "type": "string", "minLength": 1, "maxLength": 500,
            "description": "Only what matches: of names (`*.rs`), or with a `/` of paths beneath the folder (`src/**/*.rs`)." },
    });
    BuiltIn::new("list_files", description, properties, &[], run).read_only()
}

fn run(call: ToolInput<'_>) -> BoxFuture<'_, Answer> {
    async move {
        let asked: Arguments = read(call.input)?;
        let root = place(asked.path.as_deref().unwrap_or("."));
        let glob = asked.glob.as_deref().map(PathGlob::read).transpose()?;
        let depth = match (asked.depth, &glob) {
            (Some(depth), _) => depth,
            (None, Some(_)) => DEPTH_MAX,
            (None, None) => DEPTH,
        };
        let mut walked = walk(call.sandbox, &root, depth).await?;
        if let Some(glob) = &glob {
            walked.found.retain(|f| glob.matches(&root, &f.path));
        }
        let mut lines = Lines::default();
        let shown = walked
            .found
            .iter()
            .take(SHOWN_MAX)
            .take_while(|found| lines.add(&line(found)))
            .count();
        let total = walked.found.len();
        if total == 0 {
            walked.notes.insert(0, "nothing found".to_owned());
        } else if shown < total {
            walked.notes.insert(0, format!("{shown} of {total} shown"));
        }
        Ok(ToolOutput::text(lines.with_note(&walked.notes.join("; "))))
    }
    .boxed()
}

fn line(found: &Found) -> String {
    match found.kind {
        EntryKind::Folder => format!("{}/", found.path),
        EntryKind::File => format!("{} ({} bytes)", found.path, found.bytes),
        EntryKind::Link => format!("{} (link)", found.path),
        EntryKind::Other => format!("{} (neither file nor folder)", found.path),
    }
}
