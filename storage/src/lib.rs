//! Ordered streams of records, with the rows derived from them, in one durable commit.
//!
//! This crate knows streams, positions, bytes and rows; it knows no session, run or event type.
//! [`Log`] is the seam: nothing above it may know which engine it writes to, and one
//! [`Write`] is one message to that engine.

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
mod stream_row;
mod table;
mod unshared;
pub mod verify;
mod writer;

pub use faulty::{Fault, FaultyLog};
pub use log::*;
pub use memory::MemoryLog;
pub use plan::{KEY_BYTES_MAX, RECORDS_MAX, ROWS_MAX, VALUE_BYTES_MAX};
pub use rocks::RocksLog;
pub use rocks::folder::FORMAT_VERSION;
pub use rocks::options::Options;
