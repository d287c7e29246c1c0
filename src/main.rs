//! The `longhaul` command.

/// Many small pieces are made on one thread and freed on another: what this allocator is for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    // Test builds stop at the fault points that the environment names.
    longhaul_storage::fault::arm();
    longhaul::cli::main()
}
