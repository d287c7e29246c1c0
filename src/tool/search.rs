//! `search`: a regular expression over the files of the sandbox.
//!
//! The matching is done here, over the sandbox's own listing and reading, not by a program inside:
//! it works in every sandbox whatever is installed there, no argument can become a part of a
//! command, no link leads out, and every bound is ours. It takes no process start, so a small
//! tree is searched faster than a command begins. The engine is linear in pattern and text.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream;
use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize;
use serde_json::json;

use super::arguments::read;
use super::bound::{Lines, cut_line, is_binary};
use super::builtin::{Answer, BuiltIn, place};
use super::walk::{DEPTH_MAX, PathGlob, Walk, walk};
use super::{ToolInput, ToolOutput};
use crate::runner::Sandbox;
use crate::runner::sandbox::{EntryKind, SandboxError};

/// Matching lines of one answer, where nothing else is asked for.
const MATCHES: usize = 100;
/// Most of them.
const MATCHES_MAX: usize = 1_000;
/// Largest file that is searched, bytes.
const FILE_BYTES_MAX: usize = 2 << 20;
/// Bytes of one search.
const BYTES_MAX: u64 = 128 << 20;
/// So much of a line is searched, bytes.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Longest line that is shown whole, characters.
const LINE_CHARS_MAX: usize = 300;
/// Size of a compiled pattern, bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// Files that are read at the same time.
const READS: usize = 4;

#[derive(Debug, Deserialize)]
struct Arguments {
    pattern: String,
    path: Option<String>,
    glob: Option<String>,
    limit: Option<usize>,
}

pub(super) fn tool() -> BuiltIn {
    let description = "Searches files for a regular expression (Rust `regex` syntax: no \
        look-around, no back-references; `(?i)` ignores case), line by line. Each match is shown \
        as path:line: text. Binary files, files over 2 MiB, links and `.git` are left out.";
    let properties = json!({
        "pattern": { "type": "string", "minLength": 1, "maxLength": 1000,
            "description": "The regular expression." },
        "path": { "type": "string", "minLength": 1,
            "description": "A folder or a file, relative to the working folder; all of that if absent." },
        "glob": { "type": "string", "minLength": 1, "maxLength": 500,
            "description": "Only in files that match: of names (`*.rs`), or with a `/` of paths beneath the folder (`src/**/*.rs`)." },
        "limit": { "type": "integer", "minimum": 1, "maximum": MATCHES_MAX,
            "description": "Matching lines at most; 100 if absent." },
    });
    BuiltIn::new("search", description, properties, &["pattern"], run).read_only()
}

fn run(call: ToolInput<'_>) -> BoxFuture<'_, Answer> {
    async move {
        let asked: Arguments = read(call.input)?;
        let pattern = RegexBuilder::new(&asked.pattern)
            .size_limit(PATTERN_BYTES_MAX)
            .build()
            .map_err(|e| format!("`pattern` cannot be used: {e}"))?;
        let glob = asked.glob.as_deref().map(PathGlob::read).transpose()?;
        let root = place(asked.path.as_deref().unwrap_or("."));
        let (files, walked) = files(call.sandbox, &root, glob.as_ref()).await?;
        let limit = asked.limit.unwrap_or(MATCHES);
        let mut told = Told::new(limit, walked.notes);
        told.search(call.sandbox, files, &pattern).await?;
        Ok(told.output())
    }
    .boxed()
}

/// The files to search.
async fn files(
    sandbox: &dyn Sandbox,
    root: &str,
    glob: Option<&PathGlob>,
) -> Result<(Vec<(String, u64)>, Walk), SandboxError> {
    let mut walked = match walk(sandbox, root, DEPTH_MAX).await {
        Ok(walked) => walked,
        // A file, perhaps: reading it will tell.
        Err(SandboxError::PathInvalid(_)) => {
            return Ok((vec![(root.to_owned(), 0)], Walk::default()));
        }
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    let mut large = 0;
    for found in walked.found.drain(..) {
        let wanted = found.kind == EntryKind::File
            && found.is_exact
            && glob.is_none_or(|g| g.matches(root, &found.path));
        if wanted && found.bytes > FILE_BYTES_MAX as u64 {
            large += 1;
        } else if wanted {
            files.push((found.path, found.bytes));
        }
    }
    if large > 0 {
        walked
            .notes
            .push(format!("{large} files over 2 MiB were left out"));
    }
    Ok((files, walked))
}

/// What is told of a search.
#[derive(Debug)]
struct Told {
    lines: Lines,
    limit: usize,
    matches: usize,
    matched_files: usize,
    searched: usize,
    binary: usize,
    notes: Vec<String>,
}

impl Told {
    fn new(limit: usize, notes: Vec<String>) -> Self {
        Self {
            lines: Lines::default(),
            limit,
            matches: 0,
            matched_files: 0,
            searched: 0,
            binary: 0,
            notes,
        }
    }

    async fn search(
        &mut self,
        sandbox: &dyn Sandbox,
        files: Vec<(String, u64)>,
        pattern: &Regex,
    ) -> Result<(), SandboxError> {
        let only = files.len() == 1;
        let mut reads = stream::iter(files)
            .map(|(path, bytes)| async move {
                let read = sandbox.read_file(path.clone(), FILE_BYTES_MAX).await;
                (path, bytes, read)
            })
            .buffered(READS);
        let mut total = 0;
        while let Some((path, bytes, read)) = reads.next().await {
            total += bytes;
            if total > BYTES_MAX {
                self.notes.push("stopped after 128 MiB of files".to_owned());
                break;
            }
            match read {
                Ok(bytes) if is_binary(&bytes) => self.binary += 1,
                Ok(bytes) => {
                    self.searched += 1;
                    let found =
                        matches(bytes, pattern.clone(), self.limit - self.matches + 1).await;
                    if !self.add(&path, &found) {
                        break;
                    }
                }
                Err(error) if only => return Err(error),
                // Gone, or grown, since it was listed.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Adds the matches of one file; false when that is enough.
    fn add(&mut self, path: &str, found: &[(usize, String)]) -> bool {
        self.matched_files += usize::from(!found.is_empty());
        for (line, text) in found {
            if self.matches == self.limit {
                self.notes.insert(
                    0,
                    format!("only the first {} matches: narrow it down", self.limit),
                );
                return false;
            }
            if !self.lines.add(&format!("{path}:{line}: {text}")) {
                self.notes
                    .insert(0, "too much to show: narrow it down".to_owned());
                return false;
            }
            self.matches += 1;
        }
        true
    }

    fn output(mut self) -> ToolOutput {
        if self.binary > 0 {
            self.notes
                .push(format!("{} binary files were left out", self.binary));
        }
        let summary = match self.matches {
            0 => format!("no match in {} files", self.searched),
            n => format!("{n} matching lines in {} files", self.matched_files),
        };
        self.notes.insert(0, summary);
        ToolOutput::text(self.lines.with_note(&self.notes.join("; ")))
    }
}

/// The first matching lines of a file, with their numbers. Off the async threads; it stops soon
/// after nobody waits for it.
async fn matches(bytes: Vec<u8>, pattern: Regex, most: usize) -> Vec<(usize, String)> {
    let wanted = Wanted(Arc::new(AtomicBool::new(true)));
    let still = Arc::clone(&wanted.0);
    let work = move || {
        bytes
            .split(|b| *b == b'\n')
            .zip(1..)
            .take_while(|_| still.load(Ordering::Relaxed))
            .filter(|(line, _)| pattern.is_match(line.get(..LINE_BYTES_MAX).unwrap_or(line)))
            .take(most)
            .map(|(line, number)| {
                let text = String::from_utf8_lossy(line);
                (number, cut_line(text.trim_end(), LINE_CHARS_MAX))
            })
            .collect()
    };
    // Matching does not panic; a runtime that shuts down has no more use for it.
    tokio::task::spawn_blocking(work).await.unwrap_or_default()
}

/// Dropped with the search.
#[derive(Debug)]
struct Wanted(Arc<AtomicBool>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_matched_one_by_one() {
        let text = b"one\ntwo\r\n\xff two\nthree".to_vec();
        let found = matches(text.clone(), Regex::new("t(w|h)").unwrap(), 9).await;
        let want = [(2, "two"), (3, "\u{fffd} two"), (4, "three")];
        assert_eq!(found, want.map(|(n, t)| (n, t.to_owned())));
        let found = matches(text, Regex::new("^t").unwrap(), 1).await;
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn the_limit_is_said_only_when_there_is_more() {
        let found = vec![(1, "x".to_owned()), (2, "x".to_owned())];
        let mut exact = Told::new(2, Vec::new());
        assert!(exact.add("f", &found));
        let text = exact.output().output;
        assert_eq!(text, "f:1: x\nf:2: x\n[2 matching lines in 1 files]\n");
        let mut more = Told::new(1, Vec::new());
        assert!(!more.add("f", &found));
        assert!(
            more.output()
                .output
                .as_str()
                .unwrap()
                .contains("only the first 1 matches")
        );
    }
}
