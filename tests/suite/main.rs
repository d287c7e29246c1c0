//! Tests that see the whole: the command, the server behind it, the style of the code.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may panic"
)]

mod agent;
mod checkpoints;
mod cli;
mod embed;
mod forks;
mod host;
mod http;
mod journal;
mod load;
mod runner;
mod support;
mod tidy;
mod tools;
mod trajectories;
mod transcript;

#[cfg(feature = "failpoints")]
mod crash;
