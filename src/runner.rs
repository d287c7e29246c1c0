//! Runners: they claim runs, make a sandbox, drive a harness, and settle.
//!
//! ```text
//! worker ── claims ──▶ attempt ── makes ──▶ sandbox::Sandbox   (dir, none, a host's own)
//!                        │  └──── runs ──▶ harness::Harness    (script, process, a host's own)
//!                        └─ calls ──▶ protocol::ClaimApi       (in process, or over HTTP)
//! ```
//!
//! The runner inside the server ([`builtin`]) and `longhaul runner` ([`remote`]) differ in one
//! thing: the [`protocol::ClaimApi`] behind which they find the server.

pub mod attached;
pub mod attempt;
pub mod builtin;
pub mod calls;
mod clones;
pub mod harness;
pub mod history;
pub mod http;
mod inprocess;
mod keep;
mod prepare;
pub mod protocol;
pub(crate) mod queue;
pub mod remote;
pub mod sandbox;
mod saying;
pub mod settings;
mod steps;
mod transcript;
pub mod worker;

#[cfg(test)]
pub(crate) mod testing;

pub use attempt::{Attempt, Compute, Parked};
pub use futures_util::future::BoxFuture;
pub use harness::{End, Failure, Harness, Settlement};
pub use protocol::{ApiError, Claim, ClaimApi, message_text};
pub use sandbox::{Sandbox, SandboxError, SandboxProvider, SandboxRequest};
pub use settings::{IsolationMode, RunnerConfig};
pub use worker::{Registry, Worker};

/// What a host adds to the built-in runner.
pub type Extensions = Registry;
