//! Sessions, runs and checkpoints: pure decisions, and the actors around them.

pub mod checkpoint;
pub mod code;
pub mod codec;
pub mod dispatch;
pub mod engine;
pub mod env;
pub mod feed;
pub mod ids;
pub mod limits;
pub mod reader;
pub mod rows;
pub mod run;
pub mod session;
pub(crate) mod shard;
mod sync;
pub mod time;
pub mod timer;
pub mod transcript;
