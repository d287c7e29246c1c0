//! Tests that see the whole: the command, the server behind it, the style of the code.

mod cli;
mod embed;
mod load;
mod support;
mod tidy;

#[cfg(feature = "failpoints")]
mod crash;
