//! The engine as a whole, on the log in memory and a clock by hand.

mod batches;
mod blobs;
mod checkpoints;
mod claims;
mod contents;
mod faults;
mod following;
mod forks;
mod kit;
mod life;
mod random;
mod snapshots;
mod steps;
