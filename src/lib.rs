#![doc = include_str!("../README.md")]

pub mod agent;
pub mod api;
pub mod auth;
pub mod catalog;
pub mod cli;
pub mod config;
pub mod error;
pub mod handle;
pub mod journal;
pub mod load;
pub mod messages;
pub mod model;
pub mod runner;
pub mod runtime;
pub mod snapshots;
mod sse;
pub mod telemetry;
pub mod tool;

pub use agent::{Agent, AgentHandle, Answer, Outcome, Resume};
pub use config::Config;
pub use error::{Code, Error, Kind, OpenError};
pub use handle::{Follow, NewEvent, NewSession, SessionHandle};
pub use longhaul_actors::ids::SessionId;
pub use runtime::Runtime;
