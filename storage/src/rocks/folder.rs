//! The data folder: its format stamp, readable before the engine opens, and its lock.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::log::OpenError;

/// The storage format that this version writes, and the newest it reads.
pub const FORMAT_VERSION: u32 = 1;

/// The file with the format version.
pub(crate) const FORMAT_FILE: &str = "FORMAT";
/// The file whose lock says that the folder is in use; it holds the process id.
pub(crate) const LOCK_FILE: &str = "longhaul.lock";
/// A file that is made to see whether there is room, and removed at once.
const PROBE_FILE: &str = "probe.tmp";
const FORMAT_PREFIX: &str = "longhaul storage format ";

/// Names the folder in errors.
pub(crate) fn name(folder: &Path) -> String {
    folder.display().to_string()
}

/// An [`OpenError`] for a failed system call.
pub(crate) fn io_error(folder: &Path, source: std::io::Error) -> OpenError {
    if source.kind() == ErrorKind::StorageFull {
        return OpenError::Full {
            folder: name(folder),
        };
    }
    OpenError::Io {
        folder: name(folder),
        source,
    }
}

/// What the format stamp says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stamp {
    /// There is none, and no engine file either.
    New,
    /// There is none, but there is a database.
    Lost,
    /// This format.
    Format(u32),
}

/// Reads the format stamp, and refuses what this version cannot read.
pub(crate) fn read_stamp(folder: &Path) -> Result<Stamp, OpenError> {
    let text = match std::fs::read_to_string(folder.join(FORMAT_FILE)) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let database = folder.join("CURRENT").exists();
            return Ok(if database { Stamp::Lost } else { Stamp::New });
        }
        Err(e) if e.kind() == ErrorKind::InvalidData => String::new(),
        Err(e) => return Err(io_error(folder, e)),
    };
    let found = text
        .strip_prefix(FORMAT_PREFIX)
        .and_then(|rest| rest.strip_suffix('\n'))
        .and_then(|number| number.parse().ok())
        .filter(|number| stamp_text(*number) == text);
    match found {
        Some(found) => check_format(folder, found).map(|()| Stamp::Format(found)),
        None => Err(OpenError::Damaged {
            folder: name(folder),
            reason: format!("the file {FORMAT_FILE} is not a format stamp"),
        }),
    }
}

/// Refuses a format that is newer than this version.
pub(crate) fn check_format(folder: &Path, found: u32) -> Result<(), OpenError> {
    if found > FORMAT_VERSION {
        let folder = name(folder);
        return Err(OpenError::NewerFormat {
            folder,
            found,
            supported: FORMAT_VERSION,
        });
    }
    Ok(())
}

fn stamp_text(format: u32) -> String {
    format!("{FORMAT_PREFIX}{format}\n")
}

/// Writes the format stamp, durably, whole or not at all.
pub(crate) fn write_stamp(folder: &Path) -> Result<(), OpenError> {
    let write = || {
        let draft = folder.join(format!("{FORMAT_FILE}.tmp"));
        let mut file = File::create(&draft)?;
        file.write_all(stamp_text(FORMAT_VERSION).as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&draft, folder.join(FORMAT_FILE))?;
        File::open(folder)?.sync_all()
    };
    write().map_err(|e| io_error(folder, e))
}

/// The lock of a folder, held as long as the value lives.
#[derive(Debug)]
pub(crate) struct FolderLock {
    file: File,
    path: PathBuf,
}

impl FolderLock {
    /// Takes the lock. The engine has one of its own, but lets go of it while it is reopened.
    pub(crate) fn take(folder: &Path) -> Result<Self, OpenError> {
        let path = folder.join(LOCK_FILE);
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        Self::lock(folder, open.map_err(|e| io_error(folder, e))?, path)
    }

    /// Takes the lock without changing the folder; `None` = it was never locked.
    pub(crate) fn take_existing(folder: &Path) -> Result<Option<Self>, OpenError> {
        let path = folder.join(LOCK_FILE);
        match File::open(&path) {
            Ok(file) => Self::lock(folder, file, path).map(Some),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(io_error(folder, e)),
        }
    }

    fn lock(folder: &Path, mut file: File, path: PathBuf) -> Result<Self, OpenError> {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { file, path }),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let read = file.read_to_string(&mut holder);
                let holder = read.ok().and_then(|_| holder.trim().parse().ok());
                Err(OpenError::Locked {
                    folder: name(folder),
                    holder,
                })
            }
            Err(e) => Err(io_error(folder, e.into())),
        }
    }

    /// Says who holds it. Only a courtesy, so a disk without room is no reason to fail.
    pub(crate) fn sign(&mut self) {
        let pid = rustix::process::getpid().as_raw_nonzero();
        let sign = self
            .file
            .set_len(0)
            .and_then(|()| self.file.rewind())
            .and_then(|()| writeln!(self.file, "{pid}"));
        if let Err(error) = sign {
            tracing::warn!(file = %self.path.display(), %error, "the lock file has no process id");
        }
    }

    /// The name of the lock is taken back; the lock goes with the value.
    pub(crate) fn unsign(&mut self) {
        // Nothing depends on it: who finds the lock free does not read the name.
        let _ = self.file.set_len(0);
    }
}

/// Whether there is room for so many bytes: makes a file of that size and removes it.
pub(crate) fn has_room(folder: &Path, bytes: u64) -> bool {
    let path = folder.join(PROBE_FILE);
    let probe = File::create(&path).and_then(|file| {
        let flags = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(&file, flags, 0, bytes) {
            Ok(()) => file.sync_all(),
            Err(rustix::io::Errno::OPNOTSUPP) => fill(&file, bytes),
            Err(e) => Err(e.into()),
        }
    });
    let removed = std::fs::remove_file(&path);
    probe.is_ok() && removed.is_ok()
}

/// Removes what a probe left when the process died in it.
pub(crate) fn remove_probe(folder: &Path) {
    let _ = std::fs::remove_file(folder.join(PROBE_FILE));
}

fn fill(mut file: &File, bytes: u64) -> std::io::Result<()> {
    std::io::copy(&mut std::io::repeat(1).take(bytes), &mut file)?;
    file.sync_all()
}
