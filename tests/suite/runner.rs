//! The runner as users meet it: inside the server, and as `longhaul runner` elsewhere.

mod attached;
mod builtin;
mod checkpoints;
mod host;
mod remote;
mod tree;
