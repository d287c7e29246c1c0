//! What the log's handle, its writer and its readers share.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rocksdb::{DB, WriteBatch, WriteOptions};

use crate::log::{AppendError, Health, OpenError};
use crate::writer::queue::Queue;

use super::batch::FamilyIds;
use super::closed;
use super::folder::{self, FolderLock};
use super::gate::Gate;
use super::options::{self, Memory, Options, Recovery};
use super::recover::{Failure, Probe};

pub(crate) struct Shared {
    pub(crate) folder: PathBuf,
    pub(crate) options: Options,
    pub(crate) memory: Memory,
    pub(crate) ids: FamilyIds,
    pub(crate) gate: Gate,
    pub(crate) queue: Queue,
    pub(crate) probe: Probe,
    /// Taken by one purge at a time.
    pub(crate) purging: Mutex<()>,
    health: Mutex<Health>,
    lock: Mutex<Option<FolderLock>>,
    #[cfg(test)]
    pub(crate) injected: Mutex<std::collections::VecDeque<super::tests::Injected>>,
}

impl Shared {
    pub(crate) fn new(
        folder: PathBuf,
        options: Options,
        memory: Memory,
        db: DB,
        ids: FamilyIds,
        lock: FolderLock,
    ) -> Self {
        Self {
            folder,
            queue: Queue::new(options.queue_len_max, options.queue_bytes_max),
            options,
            memory,
            ids,
            gate: Gate::new(db),
            probe: Probe::default(),
            purging: Mutex::default(),
            health: Mutex::new(Health::Ok),
            lock: Mutex::new(Some(lock)),
            #[cfg(test)]
            injected: Mutex::default(),
        }
    }

    pub(crate) fn folder_name(&self) -> String {
        folder::name(&self.folder)
    }

    pub(crate) fn health(&self) -> Health {
        self.health
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn set_health(&self, health: Health) {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner) = health;
    }

    /// Why no write is taken at all, if so.
    pub(crate) fn refusal(&self) -> Option<AppendError> {
        match self.health() {
            // While it is being reopened, writes wait in the queue.
            Health::Ok | Health::Recovering => None,
            Health::Full => Some(AppendError::Full {
                folder: self.folder_name(),
            }),
            Health::Failed(_) | Health::Closed => Some(AppendError::Closed),
        }
    }

    /// Writes one batch durably.
    pub(crate) fn write(&self, batch: WriteBatch) -> Result<(), Failure> {
        let db = match self.gate.enter() {
            Ok(db) => db,
            Err(error) => {
                return Err(Failure {
                    cause: error.to_string(),
                    before: u64::MAX,
                });
            }
        };
        let before = db.latest_sequence_number();
        let mut sync = WriteOptions::default();
        sync.set_sync(true);
        #[cfg(test)]
        let batch = super::tests::inject(self, &db, batch, before)?;
        db.write_opt(batch, &sync).map_err(|e| Failure {
            cause: e.into_string(),
            before,
        })
    }

    /// Opens the database for reading and writing.
    pub(crate) fn open_database(&self) -> Result<DB, OpenError> {
        open_database(&self.folder, &self.options, &self.memory)
    }

    /// Opens the database for reading only, which needs no room.
    pub(crate) fn open_for_reading(&self) -> Result<DB, OpenError> {
        let mut db = options::database(&self.options, Recovery::CutTail);
        self.memory.limit(&mut db);
        let families = options::families(&self.options, &self.memory);
        DB::open_cf_descriptors_read_only(&db, &self.folder, families, false)
            .map_err(|e| open_error(&self.folder, e))
    }

    /// Lets go of the database and the folder.
    pub(crate) fn shut(&self) {
        self.gate.close();
        self.set_health(Health::Closed);
        let lock = self
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(mut lock) = lock {
            if let Err(error) = closed::note(&self.folder) {
                // It only helps a later verification.
                tracing::warn!(folder = %self.folder_name(), %error, "no note of the close");
            }
            lock.unsign();
            tracing::info!(folder = %self.folder_name(), "log closed");
        }
    }
}

pub(crate) fn open_database(
    folder: &Path,
    options: &Options,
    memory: &Memory,
) -> Result<DB, OpenError> {
    let mut db = options::database(options, Recovery::CutTail);
    memory.limit(&mut db);
    DB::open_cf_descriptors(&db, folder, options::families(options, memory))
        .map_err(|e| open_error(folder, e))
}

/// Whether the engine says that there is no room.
pub(crate) fn is_full(message: &str) -> bool {
    message.contains("No space left on device") || message.contains("Disk quota exceeded")
}

/// What an engine error at opening is to a caller.
pub(crate) fn open_error(folder: &Path, error: rocksdb::Error) -> OpenError {
    let kind = error.kind();
    let reason = error.into_string();
    let folder = folder::name(folder);
    if is_full(&reason) {
        OpenError::Full { folder }
    } else if reason.contains("LOCK:") || reason.contains("lock hold by current process") {
        OpenError::Locked {
            folder,
            holder: None,
        }
    } else if kind == rocksdb::ErrorKind::Corruption {
        OpenError::Damaged { folder, reason }
    } else {
        OpenError::Io {
            folder,
            source: std::io::Error::other(reason),
        }
    }
}
