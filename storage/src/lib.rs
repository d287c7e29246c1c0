//! Ordered streams of records, with the rows derived from them, in one durable commit.
//!
//! This crate knows streams, positions, bytes and rows; it knows no session, run or event type.
//! [`Log`] is the seam: nothing above it may know which engine it writes to, and one
//! [`Write`] is one message to that engine.

pub mod fault;
pub mod log;

pub use log::*;
