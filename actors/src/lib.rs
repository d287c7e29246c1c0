//! Sessions, runs and checkpoints: pure decisions, and the actors around them.

pub mod checkpoint;
pub mod code;
pub mod codec;
pub mod env;
pub mod ids;
pub mod limits;
pub mod rows;
pub mod session;
pub mod time;
