//! Given events, when a command, then events: every rule of a session, without any I/O.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

#[path = "decide/kit.rs"]
mod kit;

#[path = "decide/claims.rs"]
mod claims;
#[path = "decide/input.rs"]
mod input;
#[path = "decide/limits.rs"]
mod limits;
#[path = "decide/parks.rs"]
mod parks;
#[path = "decide/people.rs"]
mod people;
#[path = "decide/random.rs"]
mod random;
#[path = "decide/turns.rs"]
mod turns;
