//! Longhaul inside other programs: the examples.

use std::process::{Command, Output};

use crate::support::{stderr, stdout};

/// Cargo builds the examples with the tests, beside the program.
fn example(name: &str, arguments: &[&str]) -> Output {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_longhaul"));
    let program = program.parent().unwrap().join("examples").join(name);
    let out = Command::new(program).args(arguments).output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
    out
}

#[test]
fn an_axum_host_opens_and_closes_a_hundred_times() {
    example("embed_axum", &["100"]);
}

#[test]
fn a_research_agent_is_killed_and_nothing_runs_twice() {
    let out = stdout(&example("research_agent", &[]));
    for line in [
        "killed with -9",
        "answer: The moon and the sun raise the tides.",
        "looked up: the tides, the moon, the sun",
        "model answers: 4, paid: 1200 micros",
        "answer: Because it is closer.",
        "checkpoints: 2",
    ] {
        assert!(out.lines().any(|l| l == line), "{line:?} in {out}");
    }
    let looked = out.lines().filter(|l| l.starts_with("  looking up"));
    assert_eq!(looked.count(), 4, "the last one twice: {out}");
}
