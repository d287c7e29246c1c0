//! What is beneath a folder of a sandbox, in order and bounded. Links are not followed.

use globset::{GlobBuilder, GlobMatcher};

use crate::runner::Sandbox;
use crate::runner::sandbox::{EntryKind, SandboxError};

/// Names that one walk looks at.
pub(super) const NAMES_MAX: usize = 20_000;
/// Names of one folder; a fuller one is passed over.
const FOLDER_NAMES_MAX: usize = 10_000;
/// Deepest walk.
pub(super) const DEPTH_MAX: usize = 32;
/// Folders that could not be listed and are named.
const NOTES_MAX: usize = 5;
/// Named, but not entered: thousands of files that nobody wrote.
const CLOSED: &str = ".git";

/// Something on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// From the root of the sandbox.
    pub(super) path: String,
    pub(super) kind: EntryKind,
    /// Of files.
    pub(super) bytes: u64,
    /// Whether `path` leads to it: a name that is not UTF-8 is only shown.
    pub(super) is_exact: bool,
}

/// What a walk found.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// Each folder before what is in it, names in order.
    pub(super) found: Vec<Found>,
    /// What it passed over.
    pub(super) notes: Vec<String>,
}

/// Walks what is beneath a folder, `depth_max` levels deep.
///
/// # Errors
/// Those of listing the folder itself.
pub(super) async fn walk(
    sandbox: &dyn Sandbox,
    root: &str,
    depth_max: usize,
) -> Result<Walk, SandboxError> {
    let mut walk = Walk::default();
    let mut seen = 0;
    let mut open = list(sandbox, root, 1).await?;
    while let Some((found, depth)) = open.pop() {
        seen += 1;
        if seen > NAMES_MAX {
            walk.notes.push(format!(
                "stopped after {NAMES_MAX} names; look at a folder further in"
            ));
            break;
        }
        let name = found.path.rsplit('/').next().unwrap_or_default();
        let enter = found.kind == EntryKind::Folder
            && found.is_exact
            && name != CLOSED
            && depth < depth_max.min(DEPTH_MAX);
        if enter {
            match list(sandbox, &found.path, depth + 1).await {
                Ok(inside) => open.extend(inside),
                // Gone since its name was read.
                Err(SandboxError::NotFound(_)) => {}
                Err(error) if walk.notes.len() < NOTES_MAX => walk
                    .notes
                    .push(format!("{}/ was passed over: {error}", found.path)),
                Err(_) => {}
            }
        }
        walk.found.push(found);
    }
    Ok(walk)
}

/// What is in a folder, last name first.
async fn list(
    sandbox: &dyn Sandbox,
    folder: &str,
    depth: usize,
) -> Result<Vec<(Found, usize)>, SandboxError> {
    let entries = sandbox.list(folder.to_owned(), FOLDER_NAMES_MAX).await?;
    let found = entries.into_iter().rev().map(|entry| {
        let name = String::from_utf8_lossy(&entry.name);
        let is_exact = name.as_bytes() == entry.name;
        let path = match folder {
            "." => name.into_owned(),
            _ => format!("{folder}/{name}"),
        };
        let found = Found {
            path,
            kind: entry.kind,
            bytes: entry.bytes,
            is_exact,
        };
        (found, depth)
    });
    Ok(found.collect())
}

/// A glob of paths beneath a folder. Without `/` it is one of names, at any depth.
#[derive(Debug)]
pub(super) struct PathGlob {
    matcher: GlobMatcher,
    of_names: bool,
}

impl PathGlob {
    /// Reads a glob: `*`, `?`, `[a-z]`, `{a,b}` within a name, `**` over folders.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn read(glob: &str) -> Result<Self, String> {
        let matcher = GlobBuilder::new(glob.trim_start_matches("./"))
            .literal_separator(true)
            .build()
            .map_err(|e| format!("`glob` is no glob: {e}"))?
            .compile_matcher();
        Ok(Self {
            matcher,
            of_names: !glob.contains('/'),
        })
    }

    /// Whether `path`, found beneath `root`, matches.
    pub(super) fn matches(&self, root: &str, path: &str) -> bool {
        let inside = path
            .strip_prefix(root)
            .and_then(|rest| rest.strip_prefix('/'))
            .unwrap_or(path);
        let part = if self.of_names {
            inside.rsplit('/').next().unwrap_or_default()
        } else {
            inside
        };
        self.matcher.is_match(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_are_of_names_or_of_paths() {
        for (glob, path, is) in [
            ("*.rs", "src/a/b.rs", true),
            ("*.rs", "src/a/b.rsx", false),
            ("src/*.rs", "src/b.rs", true),
            ("src/*.rs", "src/a/b.rs", false),
            ("./src/**/*.rs", "src/a/b.rs", true),
            ("src/**/*.rs", "src/b.rs", true),
            ("{a,b}?.[ch]", "x/b1.h", true),
            ("{a,b}?.[ch]", "x/c1.h", false),
        ] {
            let read = PathGlob::read(glob).unwrap();
            assert_eq!(read.matches(".", path), is, "{glob} {path}");
        }
        assert!(
            PathGlob::read("a/*.rs")
                .unwrap()
                .matches("x/y", "x/y/a/b.rs")
        );
        assert!(PathGlob::read("[a").unwrap_err().contains("no glob"));
    }
}
