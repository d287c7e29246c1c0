//! Offline verification of a data folder: reads every byte that matters, changes none.
//!
//! Three looks, because each sees what the others cannot: the files by themselves (checksums of
//! the manifest, the write-ahead log, and the table files' blocks), the rows through the engine
//! with its checksums on, and the records through the engine with its checksums off, so that a
//! frame that can still be read names its stream and position.
//!
//! Not looked at, because nothing depends on them: the engine's own text log (`LOG*`), its
//! `OPTIONS-*` and `IDENTITY` notes, its empty `LOCK`, this log's own lock file, and files that
//! the database no longer refers to.

mod rows;
mod streams;
mod tablefile;
mod wal;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use rocksdb::DB;

use crate::log::{OpenError, ReadError, Record, StreamId, View};
use crate::reader::Reader;
use crate::rocks::batch::FamilyIds;
use crate::rocks::folder::{self, FolderLock, Stamp};
use crate::rocks::logfile::{self, Part};
use crate::rocks::options::{self, Memory, Options, Recovery};
use crate::rocks::tables::DbTables;
use crate::rocks::{META_FORMAT, closed, prescan};

/// Findings that a report keeps; further ones are only counted.
pub const FINDINGS_MAX: usize = 10_000;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The stream it hits, where that can be told.
    pub stream: Option<StreamId>,
    /// The first position it hits (or may hit, where only a file's block can be told).
    pub first_seq: Option<u64>,
    /// The last position it hits; `None` with a first one = to the stream's end.
    pub last_seq: Option<u64>,
    /// The file it is in, where that can be told.
    pub file: Option<PathBuf>,
    /// What does not fit.
    pub reason: String,
}

impl Finding {
    fn of_file(file: &Path, reason: impl Into<String>) -> Self {
        Self {
            stream: None,
            first_seq: None,
            last_seq: None,
            file: Some(file.to_owned()),
            reason: reason.into(),
        }
    }

    fn of_table(reason: impl Into<String>) -> Self {
        Self {
            file: None,
            ..Self::of_file(Path::new(""), reason)
        }
    }

    fn of_stream(stream: StreamId, seq: u64, reason: impl Into<String>) -> Self {
        Self {
            stream: Some(stream),
            first_seq: Some(seq),
            last_seq: Some(seq),
            file: None,
            reason: reason.into(),
        }
    }

    fn in_file(self, file: &Path) -> Self {
        Self {
            file: Some(file.to_owned()),
            ..self
        }
    }
}

/// What was read, and what is wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Streams that were read.
    pub streams: u64,
    /// Records that were read and are in order.
    pub records: u64,
    /// What is wrong, in the order found; at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// Findings beyond those kept.
    pub findings_left_out: u64,
    /// The write-ahead log ends within a write that was never acknowledged, as after a crash;
    /// opening cuts it off. Not a fault.
    pub torn_tail: bool,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    fn add(&mut self, finding: Finding) {
        if self.findings.len() >= FINDINGS_MAX {
            self.findings_left_out += 1;
        } else if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }
}

/// Looks at a record that is in order; the error says what is wrong with it for the layer above.
pub type Visit<'a> = dyn FnMut(StreamId, &Record) -> Result<(), String> + 'a;

/// Looks at the rows for the layer above, and at what they name outside the log.
pub type Look<'a> = dyn FnMut(&dyn View) -> Result<Vec<Finding>, ReadError> + 'a;

/// Verifies the log in `folder`, which must not be open.
///
/// # Errors
/// The folder is in use, is written by a newer version, or cannot be read at all. Damage is not
/// an error but a finding.
pub fn verify(folder: &Path, visit: &mut Visit<'_>) -> Result<Report, OpenError> {
    verify_with(folder, visit, &mut |_| Ok(Vec::new()))
}

/// As [`verify`], and `look` is given the rows, after everything else.
///
/// # Errors
/// Those of [`verify`].
pub fn verify_with(
    folder: &Path,
    visit: &mut Visit<'_>,
    look: &mut Look<'_>,
) -> Result<Report, OpenError> {
    let mut report = Report::default();
    if !folder.is_dir() {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(folder::io_error(folder, source));
    }
    let _lock = FolderLock::take_existing(folder)?;
    for change in closed::changes(folder)? {
        report.add(Finding::of_file(&change.file, change.reason));
    }
    match folder::read_stamp(folder) {
        Ok(Stamp::New) => return Ok(report),
        Ok(Stamp::Lost) => {
            report.add(Finding::of_file(
                &folder.join(folder::FORMAT_FILE),
                "the file is missing",
            ));
        }
        Ok(Stamp::Format(_)) => {}
        Err(OpenError::Damaged { reason, .. }) => {
            report.add(Finding::of_file(&folder.join(folder::FORMAT_FILE), reason));
        }
        Err(other) => return Err(other),
    }
    let damaged_wals = scan_log_files(folder, &mut report)?;
    match open(folder) {
        Ok(db) => {
            look_inside(folder, &db, damaged_wals, visit, &mut report);
            let tables = DbTables::live(&db);
            match look(&Reader::new(&tables)) {
                Ok(found) => found.into_iter().for_each(|f| report.add(f)),
                Err(e) => report.add(Finding::of_file(folder, format!("rows: {e}"))),
            }
        }
        Err(error) => {
            // No names then: the files still say whether they are whole.
            for (path, damage) in damaged_wals {
                report.add(Finding::of_file(&path, damage.reason));
            }
            check_all_tables(folder, &mut report)?;
            let message = error.into_string();
            let file = file_in(folder, &message).unwrap_or_else(|| folder.to_owned());
            report.add(Finding::of_file(
                &file,
                format!("the database does not open: {message}"),
            ));
        }
    }
    Ok(report)
}

/// A damaged record of a write-ahead file.
struct WalDamage {
    reason: String,
    bytes: Vec<u8>,
}

/// Scans the manifest and the write-ahead files. Damage of the latter is named later, when the
/// database is open.
fn scan_log_files(
    folder: &Path,
    report: &mut Report,
) -> Result<Vec<(PathBuf, WalDamage)>, OpenError> {
    let io = |e| folder::io_error(folder, e);
    match prescan::manifest(folder) {
        Err(reason) => report.add(Finding::of_file(&folder.join("CURRENT"), reason)),
        Ok(None) => {
            report.add(Finding::of_file(
                &folder.join("CURRENT"),
                "the file is missing",
            ));
        }
        Ok(Some(path)) => {
            let file = BufReader::new(File::open(&path).map_err(io)?);
            let scanned = logfile::scan(file, &mut |part| match part {
                Part::Record(_) => {}
                Part::Damaged { offset, reason, .. } => {
                    report.add(Finding::of_file(&path, format!("{reason}, at {offset}")));
                }
                Part::Torn { offset } => {
                    report.add(Finding::of_file(&path, format!("cut short at {offset}")));
                }
            });
            scanned.map_err(io)?;
        }
    }
    let mut damaged = Vec::new();
    let files = prescan::write_ahead_files(folder).map_err(io)?;
    let last = files.last().cloned();
    for path in files {
        let file = BufReader::new(File::open(&path).map_err(io)?);
        let scanned = logfile::scan(file, &mut |part| match part {
            Part::Record(_) => {}
            Part::Damaged {
                offset,
                reason,
                bytes,
            } => {
                let reason = format!("{reason}, at {offset}");
                damaged.push((path.clone(), WalDamage { reason, bytes }));
            }
            Part::Torn { .. } if last.as_ref() == Some(&path) => report.torn_tail = true,
            Part::Torn { offset } => {
                report.add(Finding::of_file(&path, format!("cut short at {offset}")));
            }
        });
        scanned.map_err(io)?;
    }
    Ok(damaged)
}

/// Opens the database for reading, around damage.
fn open(folder: &Path) -> Result<DB, rocksdb::Error> {
    let options = Options::default();
    let memory = Memory::new(&options);
    let mut db = options::database(&options, Recovery::ReadAround);
    db.set_paranoid_checks(false);
    db.create_if_missing(false);
    db.create_missing_column_families(false);
    let families = options::families(&options, &memory);
    DB::open_cf_descriptors_read_only(&db, folder, families, false)
}

fn look_inside(
    folder: &Path,
    db: &DB,
    damaged_wals: Vec<(PathBuf, WalDamage)>,
    visit: &mut Visit<'_>,
    report: &mut Report,
) {
    match db.get(META_FORMAT) {
        Ok(Some(found)) if found == folder::FORMAT_VERSION.to_be_bytes() => {}
        Ok(_) => report.add(Finding::of_file(
            folder,
            "the format row is not as it was written",
        )),
        Err(e) => report.add(Finding::of_file(folder, format!("the format row: {e}"))),
    }
    match FamilyIds::learn(db) {
        Ok(ids) => {
            for (path, damage) in damaged_wals {
                wal::name(db, ids, &path, &damage, report);
            }
        }
        Err(e) => report.add(Finding::of_file(folder, e.to_string())),
    }
    let bad_blocks = rows::check(folder, db, report);
    streams::check(db, &bad_blocks, visit, report);
}

/// Checks all table files without knowing which the database refers to.
fn check_all_tables(folder: &Path, report: &mut Report) -> Result<(), OpenError> {
    let io = |e| folder::io_error(folder, e);
    let mut tables = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|e| e == "sst") {
            tables.insert(path);
        }
    }
    for path in tables {
        for fault in tablefile::check(&path).faults {
            report.add(Finding::of_file(&path, fault.reason));
        }
    }
    Ok(())
}

/// The file of the folder that an engine's message names.
fn file_in(folder: &Path, message: &str) -> Option<PathBuf> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    message
        .split(|c| !is_name(c))
        .filter(|word| {
            word.ends_with(".sst") || word.ends_with(".log") || word.starts_with("MANIFEST-")
        })
        .map(|word| folder.join(word.trim_end_matches('.')))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests;
