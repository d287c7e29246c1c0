//! A session: one durable conversation, one ordered log.
//!
//! Read in this order: [`status`] (the table), [`event`] and [`payload`] (what is stored),
//! [`state`] (what is folded), [`command`] (what can be asked), [`facts`] (what is looked up),
//! [`decision`] (what comes out), [`projection`] (rows and effects that follow). The shell around
//! all of it is in `actor`.

pub(crate) mod actor;
pub mod aging;
pub mod blob;
pub mod checkpoints;
pub mod command;
pub mod decide;
pub mod decision;
pub mod envelope;
pub mod event;
pub mod evolve;
pub mod facts;
pub mod history;
pub mod input;
pub mod journal;
pub mod operation;
pub mod payload;
pub mod projection;
pub mod prune;
pub mod show;
pub mod state;
pub mod status;
pub mod step;
pub mod stored;
pub mod viewer;
