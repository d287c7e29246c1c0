//! Damage before the tail, found before the engine opens: the engine would not take every kind
//! for damage, and it leaves files behind even when it refuses.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use crate::log::OpenError;

use super::folder;
use super::logfile::{self, Part};

/// Refuses a folder whose manifest or write-ahead log is damaged before its tail.
pub(crate) fn check(folder: &Path) -> Result<(), OpenError> {
    let damaged = |reason| OpenError::Damaged {
        folder: folder::name(folder),
        reason,
    };
    let Some(manifest) = manifest(folder).map_err(damaged)? else {
        return Ok(());
    };
    let mut files = write_ahead_files(folder).map_err(|e| folder::io_error(folder, e))?;
    files.insert(0, manifest);
    for path in files {
        let file = File::open(&path).map_err(|e| folder::io_error(folder, e))?;
        let mut damage = None;
        let scanned = logfile::scan(BufReader::new(file), &mut |part| {
            if let Part::Damaged { offset, reason, .. } = part {
                damage.get_or_insert_with(|| format!("{} at {offset}: {reason}", path.display()));
            }
        });
        scanned.map_err(|e| folder::io_error(folder, e))?;
        if let Some(reason) = damage {
            return Err(damaged(reason));
        }
    }
    Ok(())
}

/// The manifest in force; `None` = there is no database yet.
pub(crate) fn manifest(folder: &Path) -> Result<Option<PathBuf>, String> {
    let current = match std::fs::read_to_string(folder.join("CURRENT")) {
        Ok(current) => current,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(format!("the file CURRENT cannot be read: {e}")),
    };
    let name = current.strip_suffix('\n').filter(|name| {
        let number = name.strip_prefix("MANIFEST-");
        number.is_some_and(|n| n.len() >= 6 && n.bytes().all(|b| b.is_ascii_digit()))
    });
    let path = name
        .map(|name| folder.join(name))
        .filter(|path| path.is_file());
    path.map(Some)
        .ok_or_else(|| "the file CURRENT names no manifest".into())
}

/// The write-ahead files, oldest first.
pub(crate) fn write_ahead_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let number = path
            .file_stem()
            .and_then(|s| s.to_str())
            .and_then(|s| s.parse::<u64>().ok());
        if let Some(number) = number
            && path.extension().is_some_and(|e| e == "log")
        {
            files.push((number, path));
        }
    }
    files.sort();
    Ok(files.into_iter().map(|(_, path)| path).collect())
}
