//! Tests of the snapshots: whole trees there and back, odd files, deletion, damage, crashes.

mod collect;
mod format;
mod history;
mod hostile;
mod kit;
mod moving;
mod rights;
mod store;
mod trees;
