//! The `longhaul` command.

fn main() -> std::process::ExitCode {
    // Test builds take the fault points to stop at from the environment.
    #[cfg(feature = "failpoints")]
    let _armed = fail::FailScenario::setup();
    longhaul::cli::main()
}
