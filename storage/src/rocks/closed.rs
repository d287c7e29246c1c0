//! The note of a clean close: which write-ahead files there were, and how long. Without it nobody
//! could tell a lost or shortened newest file from a log that simply ends there.
//!
//! It is removed, durably, before an opening changes anything: after a crash there is none, and
//! nothing to compare with.
//!
//! ```text
//! longhaul closed
//! <file name> <bytes>      for each write-ahead file, oldest first
//! end <masked CRC-32C of everything before, 8 hexadecimal digits>
//! ```

use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::log::OpenError;

use super::{crc, folder, prescan};

/// The file with the note.
pub(crate) const CLOSED_FILE: &str = "CLOSED";
const FIRST_LINE: &str = "longhaul closed\n";

/// A file that is not as it was at the close.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The file.
    pub(crate) file: PathBuf,
    /// What does not fit.
    pub(crate) reason: String,
}

/// Leaves the note, durably, whole or not at all; the database must be closed.
pub(crate) fn note(folder: &Path) -> std::io::Result<()> {
    let mut text = FIRST_LINE.to_owned();
    for path in prescan::write_ahead_files(folder)? {
        let len = std::fs::metadata(&path)?.len();
        if let Some(name) = path.file_name().and_then(|n| n.to_str()) {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name} {len}");
        }
    }
    let sum = crc::masked(&[text.as_bytes()]);
    let _ = writeln!(text, "end {sum:08x}");
    let draft = folder.join(format!("{CLOSED_FILE}.tmp"));
    let written = File::create(&draft).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&draft, folder.join(CLOSED_FILE))?;
        File::open(folder)?.sync_all()
    });
    if written.is_err() {
        // Half a draft is of no use to anyone.
        let _ = std::fs::remove_file(&draft);
    }
    written
}

/// Removes the note, durably.
pub(crate) fn forget(folder: &Path) -> Result<(), OpenError> {
    let removed = match std::fs::remove_file(folder.join(CLOSED_FILE)) {
        Ok(()) => File::open(folder).and_then(|dir| dir.sync_all()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    };
    removed.map_err(|e| folder::io_error(folder, e))
}

/// What has changed since the close; nothing where there is no note.
pub(crate) fn changes(folder: &Path) -> Result<Vec<Change>, OpenError> {
    let note = folder.join(CLOSED_FILE);
    let bytes = match std::fs::read(&note) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(folder::io_error(folder, e)),
    };
    let Some(files) = parse(&bytes) else {
        let reason = "the note of the last close is not as it was written".to_owned();
        return Ok(vec![Change { file: note, reason }]);
    };
    let mut changes = Vec::new();
    for (name, closed) in files {
        let file = folder.join(name);
        let reason = match std::fs::metadata(&file) {
            Ok(found) if found.len() == closed => continue,
            Ok(found) => format!("has {} bytes; {closed} when it was closed", found.len()),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                "is missing; it was there when the log was closed".to_owned()
            }
            Err(e) => return Err(folder::io_error(folder, e)),
        };
        changes.push(Change { file, reason });
    }
    Ok(changes)
}

/// Refuses a folder whose write-ahead files are not those of the last close.
pub(crate) fn check(folder: &Path) -> Result<(), OpenError> {
    match changes(folder)?.first() {
        None => Ok(()),
        Some(change) => Err(OpenError::Damaged {
            folder: folder::name(folder),
            reason: format!("{}: {}", change.file.display(), change.reason),
        }),
    }
}

/// The files of a note; `None` = it is not one.
fn parse(bytes: &[u8]) -> Option<Vec<(&str, u64)>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let end = text.rfind("end ")?;
    let (noted, sum) = text.split_at_checked(end)?;
    if sum != format!("end {:08x}\n", crc::masked(&[noted.as_bytes()])) {
        return None;
    }
    let lines = noted.strip_prefix(FIRST_LINE)?.lines();
    lines.map(file_of).collect()
}

fn file_of(line: &str) -> Option<(&str, u64)> {
    let (name, len) = line.split_once(' ')?;
    Some((name, len.parse().ok()?))
}
