//! The durable engine: RocksDB in one folder.

pub(crate) mod batch;
pub(crate) mod closed;
pub(crate) mod crc;
pub(crate) mod folder;
mod gate;
pub(crate) mod logfile;
pub(crate) mod options;
pub(crate) mod prescan;
mod purge;
pub(crate) mod recover;
pub(crate) mod shared;
pub(crate) mod tables;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rocksdb::{DB, WriteOptions};

use crate::fault;
use crate::log::{Health, Log, OpenError, Pending, ReadError, StreamId, View, Write};
use crate::reader::Reader;
use crate::writer::{Submission, Writer};

use batch::FamilyIds;
use folder::{FORMAT_VERSION, FolderLock, Stamp};
use options::{Memory, Options};
use shared::{Shared, open_database};
use tables::DbTables;

/// The key of the `meta` row that repeats the format stamp inside the database.
pub(crate) const META_FORMAT: &[u8] = b"format";

/// A durable log in one folder.
///
/// Dropping it without [`Log::close`] does not wait: the writer finishes what is queued and lets
/// go of the folder by itself.
pub struct RocksLog {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for RocksLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RocksLog")
            .field("folder", &self.shared.folder)
            .finish_non_exhaustive()
    }
}

impl RocksLog {
    /// Opens the log in `folder`, which is made if it is not there.
    ///
    /// # Errors
    /// The folder is in use, written by a newer version, damaged before its tail, not as it was
    /// closed, without room, or not usable. Except for a new folder, nothing in it is changed then.
    pub fn open(folder: impl AsRef<Path>, options: Options) -> Result<Arc<Self>, OpenError> {
        let folder = folder.as_ref();
        std::fs::create_dir_all(folder).map_err(|e| folder::io_error(folder, e))?;
        // Before anything else: a newer version may lock, or lay things out, in another way.
        folder::read_stamp(folder)?;
        let mut lock = FolderLock::take(folder)?;
        // Again under the lock: another process may have made it in between.
        let stamp = folder::read_stamp(folder)?;
        fault::point("open::locked");
        closed::check(folder)?;
        prescan::check(folder)?;
        // Before anything else changes: what follows may end at any point.
        closed::forget(folder)?;
        fault::point("open::note_removed");
        lock.sign();
        folder::remove_probe(folder);
        if stamp == Stamp::New {
            folder::write_stamp(folder)?;
        }
        fault::point("open::stamped");
        let memory = Memory::new(&options);
        let db = open_database(folder, &options, &memory)?;
        check_meta(folder, &db)?;
        if stamp == Stamp::Lost {
            folder::write_stamp(folder)?;
        }
        fault::point("open::opened");
        let ids = FamilyIds::learn(&db).map_err(|e| OpenError::Damaged {
            folder: folder::name(folder),
            reason: e.to_string(),
        })?;
        let shared = Shared::new(folder.to_owned(), options, memory, db, ids, lock);
        Self::start(Arc::new(shared))
    }

    fn start(shared: Arc<Shared>) -> Result<Arc<Self>, OpenError> {
        let of_writer = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("longhaul-writer".into())
            .spawn(move || {
                let writer = Writer::new(Arc::clone(&of_writer));
                let run = std::panic::AssertUnwindSafe(|| writer.run());
                if std::panic::catch_unwind(run).is_ok() {
                    of_writer.shut();
                    return;
                }
                // Nobody writes any more; the writes in the queue are answered as unknown by being
                // dropped, and reads go on until the log is closed.
                tracing::error!(folder = %of_writer.folder_name(), "the writer panicked");
                of_writer.set_health(Health::Failed("the writer panicked".into()));
                of_writer.gate.give_up_exchange();
                of_writer.queue.close();
                of_writer.queue.take(&mut Vec::new());
            });
        let writer = thread.map_err(|e| folder::io_error(&shared.folder, e))?;
        tracing::info!(folder = %shared.folder_name(), "log opened");
        Ok(Arc::new(Self {
            shared,
            writer: Mutex::new(Some(writer)),
        }))
    }
}

/// Checks the format inside the database, or writes it into a new one.
fn check_meta(folder: &Path, db: &DB) -> Result<(), OpenError> {
    let failed = |e| shared::open_error(folder, e);
    match db.get(META_FORMAT).map_err(failed)? {
        Some(found) => match <[u8; 4]>::try_from(found) {
            Ok(found) => folder::check_format(folder, u32::from_be_bytes(found)),
            Err(_) => Err(OpenError::Damaged {
                folder: folder::name(folder),
                reason: "the format row has the wrong length".into(),
            }),
        },
        None => {
            let mut sync = WriteOptions::default();
            sync.set_sync(true);
            db.put_opt(META_FORMAT, FORMAT_VERSION.to_be_bytes(), &sync)
                .map_err(failed)
        }
    }
}

#[cfg(test)]
impl RocksLog {
    /// Moves everything from memory into table files.
    pub(crate) fn flush(&self) {
        purge::flush_all(&self.shared.gate.enter().unwrap()).unwrap();
    }
}

impl Log for RocksLog {
    fn append(&self, write: Write) -> Pending {
        if let Some(error) = self.shared.refusal() {
            return Pending::ready(Err(error));
        }
        let (submission, pending) = match Submission::new(write, self.shared.ids) {
            Ok(made) => made,
            Err(error) => return Pending::ready(Err(error)),
        };
        fault::point("append::laid");
        match self.shared.queue.push(submission) {
            Ok(()) => pending,
            Err(error) => Pending::ready(Err(error)),
        }
    }

    fn view(&self, f: &mut dyn FnMut(&dyn View)) -> Result<(), ReadError> {
        if self.shared.queue.is_closed() {
            return Err(ReadError::Closed);
        }
        let db = self.shared.gate.enter()?;
        f(&Reader::new(&DbTables::snapshot(&db)));
        Ok(())
    }

    fn purge(&self, stream: StreamId) -> Result<(), ReadError> {
        self.shared.purge(stream)
    }

    fn health(&self) -> Health {
        match self.shared.health() {
            failed @ Health::Failed(_) => failed,
            _ if self.shared.queue.is_closed() => Health::Closed,
            health => health,
        }
    }

    fn close(&self) {
        self.shared.queue.close();
        self.shared.probe.stop();
        // Held over the join: a second caller waits as well.
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(writer) = writer.take() {
            // A panic of the writer is already in the health.
            let _ = writer.join();
        }
        self.shared.shut();
    }
}

impl Drop for RocksLog {
    fn drop(&mut self) {
        self.shared.queue.close();
        self.shared.probe.stop();
    }
}
