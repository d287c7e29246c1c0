//! Checkpoints and runtime control as users meet them: a real server, its folders, kills.

mod again;
mod clones;
mod control;
mod disks;
mod full;
mod kit;
mod older;
mod refused;
mod settings;
mod states;
mod truth;
mod verify;
