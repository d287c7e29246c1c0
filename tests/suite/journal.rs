//! The journal of a run, by harnesses of the host's own in a whole runtime.

mod kit;
mod money;
mod process;
mod remote;

mod signals;
mod steps;
mod values;
