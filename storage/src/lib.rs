//! Ordered streams of records, with the rows derived from them, in one durable commit.
//!
//! This crate knows streams, positions, bytes and rows; it knows no session, run or event type.
//! [`Log`] is the seam: nothing above it may know which engine it writes to, and one
//! [`Write`] is one message to that engine.
//!
//! # Guaranteed
//!
//! * A write is there whole or not at all: records, history rows, cached fold, rows of now.
//! * Acknowledged means synced to the disk (`fdatasync`). There is no weaker level.
//! * Positions of a stream are 1, 2, 3…; a refused or failed write consumes none.
//! * A view is one snapshot of what is committed.
//! * A hole, a swap or a changed byte in a stream is an error when it is read, by the chain of
//!   digests over its records, and is named by [`verify`](verify::verify).
//! * A torn, never acknowledged tail is cut at opening. Damage before it, a newer format and a
//!   folder in use refuse the opening and leave the files as they are.
//!
//! # Not guaranteed
//!
//! * A lost *end* of a stream that leaves the engine's own files consistent is not noticed: the
//!   chain ties a record to the one before it.
//! * [`AppendError::Unknown`] says that a write may or may not be there; a reader can tell.
//!
//! # Map
//!
//! * `log` the contract, `conformance` the suite that every engine keeps, `faulty` faults on
//!   demand;
//! * `frame`, `keys`, `stream_row`: what is stored, byte by byte, with golden files;
//! * `plan`, `check`, `reader`, `unshared`: what writes, fences, reads and purges mean, once for
//!   all engines, over the few operations in `table`;
//! * `memory` and `rocks`: the engines; `writer`: the group commit of the durable one;
//! * `verify`: offline verification;
//! * `snapshots`: working directories as immutable packs of files, beside the log and independent
//!   of it.

mod check;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod fault;
pub mod faulty;
pub mod frame;
mod keys;
pub mod log;
mod memory;
mod plan;
mod reader;
mod rocks;
pub mod snapshots;
mod stream_row;
mod table;
mod unshared;
pub mod verify;
mod writer;

pub use faulty::{Fault, FaultyLog};
pub use log::*;
pub use memory::MemoryLog;
pub use plan::{EXPIRE_MAX, KEY_BYTES_MAX, RECORDS_MAX, ROWS_MAX, VALUE_BYTES_MAX};
pub use rocks::RocksLog;
pub use rocks::folder::FORMAT_VERSION;
pub use rocks::options::Options;
