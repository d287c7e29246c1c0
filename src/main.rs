//! The `longhaul` command.

fn main() -> std::process::ExitCode {
    longhaul::cli::main()
}
