//! Given events, when a command, then events: every rule of a session, without any I/O.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

#[path = "decide/kit.rs"]
mod kit;

#[path = "decide/checkpoints.rs"]
mod checkpoints;
#[path = "decide/checks.rs"]
mod checks;
#[path = "decide/claims.rs"]
mod claims;
#[path = "decide/contents.rs"]
mod contents;
#[path = "decide/families.rs"]
mod families;
#[path = "decide/forks.rs"]
mod forks;
#[path = "decide/input.rs"]
mod input;
#[path = "decide/journals.rs"]
mod journals;
#[path = "decide/limits.rs"]
mod limits;
#[path = "decide/lineage.rs"]
mod lineage;
#[path = "decide/operations.rs"]
mod operations;
#[path = "decide/parks.rs"]
mod parks;
#[path = "decide/people.rs"]
mod people;
#[path = "decide/plans.rs"]
mod plans;
#[path = "decide/random.rs"]
mod random;
#[path = "decide/resume.rs"]
mod resume;
#[path = "decide/steps.rs"]
mod steps;
#[path = "decide/turns.rs"]
mod turns;
