//! The figures of the README, measured and printed as its table: `make bench`.
//!
//! Every figure comes from the real program in a process of its own. Throughput rows take turns
//! with the machine's own limits and quote medians; see `longhaul load`. `cargo bench --bench
//! figures -- NAME…` measures only the rows whose name contains one of the words.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a bench may panic, prints, and reads the clock"
)]

mod agent;
mod claims;
mod cold;
mod followers;
mod forks;
mod growth;
mod journal;
mod load;
mod memory;
mod server;
mod snapshots;

/// The allocator of the `longhaul` program, for what is measured in this process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One row: what, how much, what was to be reached.
struct Row {
    what: String,
    figure: String,
    goal: &'static str,
    reached: bool,
}

impl Row {
    fn new(what: impl Into<String>, figure: String, goal: &'static str, reached: bool) -> Self {
        Self {
            what: what.into(),
            figure,
            goal,
            reached,
        }
    }
}

/// A name and what measures it.
type Bench = (&'static str, fn() -> Vec<Row>);

const ALL: &[Bench] = &[
    ("in-process", load::in_process),
    ("http", load::http),
    ("cold", cold::wake),
    ("restart", cold::restart),
    ("memory", memory::rows),
    ("followers", followers::rows),
    ("growth", growth::rows),
    ("journal-in-process", journal::many),
    ("journal-http", journal::http),
    ("journal-alone", journal::one),
    ("agent", agent::rows),
    ("forks", forks::forks),
    ("checkpoints", forks::checkpoints),
    ("resume", claims::resume),
    ("expiry", claims::expiry),
    ("snapshots-many", snapshots::many),
    ("snapshots-large", snapshots::large),
];

fn main() {
    // Cargo adds `--bench`.
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let mut rows = Vec::new();
    for (name, measure) in ALL {
        if words.is_empty() || words.iter().any(|w| name.contains(w.as_str())) {
            eprintln!("… {name}");
            rows.extend(measure());
        }
    }
    println!("| figure | measured | goal | |\n|---|---|---|---|");
    for row in rows {
        let mark = if row.reached { "reached" } else { "missed" };
        println!("| {} | {} | {} | {mark} |", row.what, row.figure, row.goal);
    }
}

/// The value at a quantile of unsorted times, milliseconds.
fn quantile(times: &mut [f64], q: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times[((times.len() - 1) as f64 * q).round() as usize]
}
