//! Longhaul inside a host that runs on another framework.

use std::process::Command;

/// Cargo builds the examples with the tests, beside the program.
fn example(name: &str) -> std::path::PathBuf {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_longhaul"));
    program.parent().unwrap().join("examples").join(name)
}

#[test]
fn an_axum_host_opens_and_closes_a_hundred_times() {
    let out = Command::new(example("embed_axum"))
        .arg("100")
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
}
