//! Sandboxes that operations left, found again after a restart of the process: a note in the
//! folder says whose it is. A restart of the machine is another matter: nothing of the files was
//! synced, so they count for nothing then.

use std::io::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::DirSandbox;
use super::tools::Place;
use crate::runner::sandbox::leftovers::boot_id;

/// Name of the note.
const NOTE: &str = "attached";
/// Most sandboxes that are taken up again.
pub(super) const LEFT_MAX: usize = 1_000;

/// A sandbox that an operation of an earlier process left.
#[derive(Debug)]
pub struct Left {
    pub(super) place: Place,
    /// The session.
    pub session_id: String,
    /// Its workspace, where it is known.
    pub workspace: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Note {
    session_id: String,
    workspace: Option<String>,
    boot: String,
}

/// What was left in a folder, if anything is to be taken up.
pub(super) fn read(root: &Path, name: &str) -> Option<Left> {
    let folder = root.join(name);
    let note = std::fs::read(folder.join(NOTE)).ok()?;
    let note: Note = serde_json::from_slice(&note).ok()?;
    let place = Place {
        name: name.to_owned(),
        folder,
    };
    let whole = note.boot == boot_id() && place.work().is_dir() && place.tmp().is_dir();
    whole.then_some(Left {
        place,
        session_id: note.session_id,
        workspace: note.workspace,
    })
}

impl DirSandbox {
    /// Notes whose it is. Blocking.
    pub(super) fn write_note(&self) -> std::io::Result<()> {
        let note = Note {
            session_id: self.session_id.clone(),
            workspace: self.workspace.clone(),
            boot: boot_id(),
        };
        let file = self.place.folder.join(NOTE);
        let unfinished = file.with_extension("new");
        std::fs::File::create(&unfinished)?.write_all(&serde_json::to_vec(&note)?)?;
        std::fs::rename(&unfinished, &file)
    }

    /// Takes the note away. Blocking.
    pub(super) fn remove_note(&self) {
        let file = self.place.folder.join(NOTE);
        match std::fs::remove_file(&file) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(error = %e, "a sandbox may be taken up again after a restart");
            }
            _ => {}
        }
    }
}
