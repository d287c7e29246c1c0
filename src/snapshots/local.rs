//! Snapshots of a runner elsewhere: its own store, and a note for each of them.
//!
//! The server does not say which of them its checkpoints still name, so a snapshot stays for as
//! long as any checkpoint can live, counted from when it was last taken.

use std::collections::HashSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use longhaul_actors::env::Door;
use longhaul_actors::session::command::Kept;
use longhaul_actors::session::payload::{Retention, SnapshotRef, WorkspaceRef};
use longhaul_storage::snapshots::{Manifest, PackId, SnapshotOptions, SnapshotStore};
use serde::{Deserialize, Serialize};

use super::{Base, EMPTY, ID_PREFIX, Taking, Vault, VaultError, restored};

/// How long a snapshot stays after it was last taken, milliseconds: no checkpoint lives longer
/// than 30 days, and clocks of two machines may differ by a day.
pub const KEPT_MS: i64 = 31 * 24 * 60 * 60 * 1_000;
/// Ending of a note's name.
const NOTE: &str = "json";

/// What is noted of a snapshot.
#[derive(Serialize, Deserialize)]
struct Note {
    /// The session it was last taken for.
    session_id: String,
    /// When that was, milliseconds of wall time.
    taken_at_ms: i64,
    /// The store's description, base64.
    manifest: String,
}

/// A store on this machine alone.
pub struct LocalSnapshots {
    store: SnapshotStore,
    notes: PathBuf,
    door: Door,
}

impl std::fmt::Debug for LocalSnapshots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalSnapshots").finish_non_exhaustive()
    }
}

impl LocalSnapshots {
    /// Opens the store in `folder`. Blocking.
    ///
    /// # Errors
    /// What the file system says.
    pub fn open(folder: &Path, door: Door) -> Result<Self, String> {
        let notes = folder.join("notes");
        std::fs::create_dir_all(&notes).map_err(|e| format!("{}: {e}", notes.display()))?;
        let packs = folder.join("packs");
        let store =
            SnapshotStore::open(&packs, SnapshotOptions::default()).map_err(|e| e.to_string())?;
        Ok(Self { store, notes, door })
    }

    /// Removes snapshots whose time is over, and what only they need. Blocking.
    ///
    /// # Errors
    /// See [`VaultError`]; what was removed stays removed.
    pub fn sweep(&self) -> Result<usize, VaultError> {
        // Before the notes are read, so that what is taken meanwhile counts as needed.
        let collection = self.store.collection()?;
        let before_ms = self.door.clock.wall_ms().saturating_sub(KEPT_MS);
        let (mut live, mut removed) = (HashSet::new(), 0);
        for entry in std::fs::read_dir(&self.notes).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|e| e != NOTE) {
                // Cut off while it was written.
                let _ = std::fs::remove_file(&path);
                continue;
            }
            let (note, kept) = match read(&path) {
                Ok(noted) => noted,
                Err(VaultError::Unusable(_)) => {
                    // It gives nothing back.
                    let _ = std::fs::remove_file(&path);
                    continue;
                }
                // What it needs is not known: nothing may go.
                Err(why) => return Err(why),
            };
            if note.taken_at_ms < before_ms {
                std::fs::remove_file(&path).map_err(failed)?;
                removed += 1;
            } else {
                live.extend(kept.packs.into_iter().map(PackId));
            }
        }
        collection.remove_unlisted(&live, usize::MAX)?;
        Ok(removed)
    }

    fn path(&self, id: &str) -> Option<PathBuf> {
        let digits = id.strip_prefix(ID_PREFIX)?;
        let ours = digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        ours.then(|| self.notes.join(format!("{id}.{NOTE}")))
    }

    /// Durable when it returns.
    fn note(&self, session: &str, base: &Base) -> Result<(), VaultError> {
        let id = &base.reference.id;
        let path = self
            .path(id)
            .ok_or_else(|| VaultError::Failed(format!("{id} is no snapshot of this store")))?;
        let note = Note {
            session_id: session.to_owned(),
            taken_at_ms: self.door.clock.wall_ms(),
            manifest: STANDARD.encode(&base.kept.manifest),
        };
        let text = serde_json::to_vec(&note).map_err(|e| VaultError::Failed(e.to_string()))?;
        let unfinished = path.with_extension("new");
        let mut file = std::fs::File::create(&unfinished).map_err(failed)?;
        file.write_all(&text).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        std::fs::rename(&unfinished, &path).map_err(failed)?;
        let folder = std::fs::File::open(&self.notes).map_err(failed)?;
        folder.sync_all().map_err(failed)
    }

    fn reference(&self, bytes: u64) -> SnapshotRef {
        super::new_reference(&self.door, Retention::HostLocal, bytes)
    }
}

/// Reads a note; what is no file is none, and not waited for.
fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
    let mut options = std::fs::File::options();
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let mut file = options.read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(text)
}

fn failed(e: std::io::Error) -> VaultError {
    VaultError::io(&e)
}

fn read(path: &Path) -> Result<(Note, Kept), VaultError> {
    let unusable = |why: String| VaultError::Unusable(format!("{}: {why}", path.display()));
    let text = match read_file(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(VaultError::Unusable("the snapshot is gone".to_owned()));
        }
        Err(e) => return Err(VaultError::Unreadable(format!("{}: {e}", path.display()))),
    };
    let note: Note = serde_json::from_slice(&text).map_err(|e| unusable(e.to_string()))?;
    let manifest = STANDARD
        .decode(&note.manifest)
        .map_err(|e| unusable(e.to_string()))?;
    let packs = match manifest == EMPTY {
        true => Vec::new(),
        false => Manifest::decode(&manifest)?.packs,
    };
    let packs = packs.iter().map(|p| p.0).collect();
    Ok((note, Kept { manifest, packs }))
}

impl Vault for LocalSnapshots {
    fn take(
        &self,
        session: &str,
        folder: &Path,
        base: &mut Option<Base>,
        fresh: bool,
    ) -> Result<(), VaultError> {
        let taking = Taking {
            store: &self.store,
            door: &self.door,
            fresh,
        };
        taking.take(folder, base, |bytes| self.reference(bytes))?;
        let noted = base.as_ref().map_or(Ok(()), |b| self.note(session, b));
        if noted.is_err() {
            // The next one builds upon nothing: this one may not last.
            *base = None;
        }
        noted
    }

    fn empty(&self, session: &str) -> Result<Base, VaultError> {
        let base = Base::empty(self.reference(0));
        self.note(session, &base)?;
        Ok(base)
    }

    fn restore(
        &self,
        _: WorkspaceRef,
        reference: SnapshotRef,
        into: &Path,
    ) -> Result<Base, VaultError> {
        let gone = || VaultError::Unusable(format!("there is no snapshot {} here", reference.id));
        let path = self.path(&reference.id).ok_or_else(gone)?;
        let (_, kept) = read(&path).or_else(|why| {
            // Without its folder, a note is not there either.
            self.store.check_in_place()?;
            Err(why)
        })?;
        restored(&self.store, reference, kept, into)
    }
}

#[cfg(test)]
mod tests {
    use longhaul_actors::env::ManualWorld;

    use super::*;

    #[test]
    fn snapshots_outlive_the_process_and_go_in_their_time() {
        let dir = tempfile::tempdir().unwrap();
        let world = ManualWorld::new(1_000_000);
        let open = || LocalSnapshots::open(&dir.path().join("store"), world.door()).unwrap();
        let work = dir.path().join("work");
        std::fs::create_dir(&work).unwrap();
        std::fs::write(work.join("f"), vec![7; 100_000]).unwrap();
        let store = open();
        let mut base = None;
        store.take("sess_1", &work, &mut base, false).unwrap();
        let reference = base.as_ref().unwrap().reference.clone();
        assert_eq!(reference.retention, Retention::HostLocal);
        world.advance_ms(KEPT_MS as u64 / 2);
        store.take("sess_1", &work, &mut base, false).unwrap();
        assert_eq!(base.as_ref().unwrap().reference, reference, "unchanged");
        let nothing = store.empty("sess_2").unwrap().reference;
        drop((store, base));

        let store = open();
        world.advance_ms(KEPT_MS as u64 - 1);
        assert_eq!(
            store.sweep().unwrap(),
            0,
            "counted from when it was last taken"
        );
        let back = dir.path().join("back");
        store
            .restore(WorkspaceRef::DEFAULT, reference.clone(), &back)
            .unwrap();
        assert_eq!(std::fs::read(back.join("f")).unwrap(), vec![7; 100_000]);
        store
            .restore(WorkspaceRef::DEFAULT, nothing, &dir.path().join("empty"))
            .unwrap();
        world.advance_ms(2);
        assert_eq!(store.sweep().unwrap(), 2);
        let again = store.restore(WorkspaceRef::DEFAULT, reference, &dir.path().join("again"));
        assert!(matches!(again, Err(VaultError::Unusable(_))), "{again:?}");
        assert!(store.store.packs().unwrap().is_empty());
    }

    #[test]
    fn names_lead_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalSnapshots::open(dir.path(), Door::system()).unwrap();
        for id in [
            "snap_../../x",
            "snap_",
            "x",
            "snap_0000000000000000000000000000000g",
        ] {
            assert_eq!(store.path(id), None, "{id}");
        }
    }
}
