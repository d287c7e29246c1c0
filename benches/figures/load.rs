//! Throughput, by `longhaul load` in a process of its own.

use std::process::Command;

use serde_json::Value;

use crate::Row;

fn load(args: &[&str]) -> Value {
    let out = Command::new(env!("CARGO_BIN_EXE_longhaul"))
        .args(["load", "--json"])
        .args(args)
        .output()
        .expect("longhaul runs");
    assert!(
        out.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    serde_json::from_slice(&out.stdout).expect("one object")
}

fn of(report: &Value, key: &str) -> f64 {
    key.split('.')
        .fold(report, |v, k| &v[k])
        .as_f64()
        .unwrap_or(f64::NAN)
}

fn rate(report: &Value) -> String {
    let (ours, raw) = (of(report, "appends_per_s"), of(report, "raw.appends_per_s"));
    format!(
        "{ours:.0}/s, p99 {:.1} ms; raw {raw:.0}/s: {:.2} ×",
        of(report, "p99_ms"),
        of(report, "ratio_to_raw")
    )
}

pub(crate) fn in_process() -> Vec<Row> {
    let many = load(&["--sessions", "256", "--clients", "256", "--seconds", "15"]);
    let live = load(&[
        "--sessions",
        "10000",
        "--clients",
        "256",
        "--seconds",
        "15",
        "--no-intake",
    ]);
    let one = load(&[
        "--sessions",
        "1",
        "--clients",
        "256",
        "--seconds",
        "10",
        "--no-intake",
    ]);
    let caller = load(&[
        "--sessions",
        "1",
        "--clients",
        "1",
        "--seconds",
        "10",
        "--no-intake",
    ]);
    let (ours, bare) = (of(&caller, "p50_ms"), of(&caller, "fdatasync.p50_ms"));
    let intake = format!(
        "{:.0}/s, p99 {:.1} ms",
        of(&many, "intake.messages_per_s"),
        of(&many, "intake.p99_ms")
    );
    let (a, b) = (of(&one, "appends_per_s"), of(&many, "appends_per_s"));
    vec![
        Row::new(
            "in process, 256 sessions, 256 callers",
            rate(&many),
            "≥ 0.65 × raw",
            of(&many, "ratio_to_raw") >= 0.65,
        ),
        Row::new(
            "in process, 10,000 live sessions",
            rate(&live),
            "≥ 0.5 × raw",
            of(&live, "ratio_to_raw") >= 0.5,
        ),
        Row::new(
            "in process, one session, 256 callers",
            rate(&one),
            "≥ the 256-session rate",
            a >= b,
        ),
        Row::new(
            "in process, one caller",
            format!("p50 {ours:.3} ms; bare {bare:.3} ms: {:.1} ×", ours / bare),
            "p50 ≤ 2 × bare append + fdatasync",
            ours <= 2.0 * bare,
        ),
        Row::new("message intake, 256 sessions", intake, "-", true),
    ]
}

pub(crate) fn http() -> Vec<Row> {
    let many = load(&[
        "--serve",
        "--sessions",
        "256",
        "--clients",
        "256",
        "--seconds",
        "15",
    ]);
    let one = load(&[
        "--serve",
        "--sessions",
        "1",
        "--clients",
        "1",
        "--seconds",
        "10",
        "--no-intake",
    ]);
    let (rate, p99) = (of(&many, "appends_per_s"), of(&many, "p99_ms"));
    let (alone, p50) = (of(&one, "appends_per_s"), of(&one, "p50_ms"));
    vec![
        Row::new(
            "HTTP, 256 connections",
            format!("{rate:.0}/s, p99 {p99:.1} ms"),
            "≥ 25,000/s, p99 < 50 ms",
            rate >= 25_000.0 && p99 < 50.0,
        ),
        Row::new(
            "HTTP, one connection",
            format!("{alone:.0}/s, p50 {p50:.3} ms"),
            "p50 < 0.3 ms",
            p50 < 0.3,
        ),
    ]
}
