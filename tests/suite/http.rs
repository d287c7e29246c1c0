//! The HTTP surface, over real sockets: a server in this process, on a port of its own.

mod auth;
mod checkpoints;
mod claims;
mod codes;
mod forks;
mod forms;
mod idempotency;
mod kit;
mod lists;
mod open;
mod principals;
mod prune;
mod resume;
mod retention;
mod shutdown;
mod streams;
