//! Agents: the loop, its tools, people, the journal. Numbers in names are those of the behaviours
//! that users of such a loop rely on.

mod approvals;
mod checkpoints;
mod handle;
mod hard;
mod journal;
mod kept;
mod kit;
mod loops;
mod restored;
mod resume;
mod subs;
