//! The `longhaul` command.

fn main() -> std::process::ExitCode {
    // Test builds stop at the fault points that the environment names.
    longhaul_storage::fault::arm();
    longhaul::cli::main()
}
