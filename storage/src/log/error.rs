//! What a log answers when it cannot do what it was asked.

use super::StreamId;

/// Why a write was not taken. Only `Unknown` leaves it open whether the bytes are there.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum AppendError {
    /// The stream's end, or what it shares with others, is not what was expected; nothing was
    /// written.
    #[error("the stream ends at {actual}, not where the write expected it")]
    Conflict {
        /// The real last position (0 = no such stream).
        actual: u64,
    },
    /// A row condition does not hold; nothing was written.
    #[error("row condition {index} does not hold")]
    Condition {
        /// Index into [`Write::conditions`](super::Write::conditions).
        index: usize,
    },
    /// The stream is erased; nothing was written.
    #[error("the stream is erased")]
    Erased,
    /// The writer's queue is full; nothing was written; try again.
    #[error("the write queue is full")]
    Busy,
    /// No room on the disk; nothing was written; reads go on.
    #[error("no space left on the device that holds {folder}")]
    Full {
        /// The data folder.
        folder: String,
    },
    /// The log is closed or being closed; nothing was written.
    #[error("the log is closed")]
    Closed,
    /// The outcome is not known: the log must be read again before anything else is decided.
    #[error("the outcome of the write is not known: {cause}")]
    Unknown {
        /// What the engine said.
        cause: String,
    },
    /// The stream's end, or a row of a condition, could not be read; nothing was written.
    #[error("the write could not be checked: {0}")]
    Unreadable(#[source] ReadError),
    /// A write that breaks the log's own rules (a bug of the caller); nothing was written.
    #[error("malformed write: {0}")]
    Malformed(&'static str),
}

/// Why a read failed.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum ReadError {
    /// A record is missing, swapped or damaged.
    #[error("stream {stream:?} is damaged at {seq}: {reason}")]
    Damaged {
        /// The stream.
        stream: StreamId,
        /// The first position that does not verify.
        seq: u64,
        /// What does not fit.
        reason: String,
    },
    /// The stream is erased.
    #[error("the stream is erased")]
    Erased,
    /// No such stream.
    #[error("no such stream")]
    NotFound,
    /// The log is closed, or being reopened after a fault (try again).
    #[error("the log is closed")]
    Closed,
    /// The engine failed.
    #[error("the storage engine failed: {0}")]
    Engine(String),
}

/// Why a log could not be opened. The files are left untouched.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process (or another open handle here) holds the folder.
    #[error("{folder} is in use by another process{}", holder.map(|p| format!(" (pid {p})")).unwrap_or_default())]
    Locked {
        /// The data folder.
        folder: String,
        /// Its process id, where known.
        holder: Option<u32>,
    },
    /// Written by a newer version.
    #[error("{folder} has storage format {found}; this version reads up to {supported}")]
    NewerFormat {
        /// The data folder.
        folder: String,
        /// Format found.
        found: u32,
        /// Newest format this version reads.
        supported: u32,
    },
    /// Damage before the tail.
    #[error("{folder} is damaged: {reason}")]
    Damaged {
        /// The data folder.
        folder: String,
        /// What the engine said.
        reason: String,
    },
    /// No room to open.
    #[error("no space left on the device that holds {folder}")]
    Full {
        /// The data folder.
        folder: String,
    },
    /// The folder cannot be made, read or written.
    #[error("{folder} cannot be used: {source}")]
    Io {
        /// The data folder.
        folder: String,
        /// The system's error.
        source: std::io::Error,
    },
}
