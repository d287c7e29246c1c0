//! Checkpoints: how a run gets back its disk and its past.

pub mod plan;
pub(crate) mod supervisor;
