//! The load harness, and what it is for: nothing acknowledged is lost, also under kill -9.
//!
//! The long run of the same: `longhaul load --clients 256 --seconds 60 --chaos-kill-s 5`.

use serde_json::Value;

use crate::support::{Server, json_lines, longhaul, stderr, stdout};

fn report(out: &std::process::Output) -> Value {
    assert!(out.status.success(), "{}{}", stdout(out), stderr(out));
    let mut lines = json_lines(out);
    assert_eq!(lines.len(), 1, "one object");
    lines.remove(0)
}

fn assert_clean(report: &Value) {
    let checked = &report["checked"];
    for fault in ["lost", "doubled", "out_of_order", "gaps", "foreign"] {
        assert_eq!(checked[fault], 0, "{fault}: {checked}");
    }
    assert!(checked["acknowledged"].as_u64().unwrap() > 100, "{checked}");
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_when_the_server_is_killed_again_and_again() {
    let args = [
        "load",
        "--json",
        "--sessions",
        "64",
        "--clients",
        "64",
        "--seconds",
        "10",
    ];
    let out = longhaul(&[&args[..], &["--chaos-kill-s", "2", "--no-intake"]].concat()).await;
    let report = report(&out);
    assert_clean(&report);
    assert!(report["kills"].as_u64().unwrap() >= 3, "{report}");
    assert_eq!(
        report["checked"]["unknown"], 0,
        "numbered calls are repeated: {report}"
    );
}

#[tokio::test]
async fn in_process_with_the_physical_limits_beside_it() {
    let args = [
        "load",
        "--json",
        "--sessions",
        "8",
        "--clients",
        "16",
        "--seconds",
        "1",
    ];
    let report = report(&longhaul(&[&args[..], &["--rounds", "2"]].concat()).await);
    assert_clean(&report);
    assert_eq!(report["mode"], "in_process");
    for (a, b) in [
        ("raw", "appends_per_s"),
        ("fdatasync", "per_s"),
        ("fdatasync", "p50_ms"),
    ] {
        assert!(report[a][b].as_f64().unwrap() > 0.0, "{a}.{b}: {report}");
    }
    for key in ["appends_per_s", "p50_ms", "p99_ms", "ratio_to_raw"] {
        assert!(report[key].as_f64().unwrap() > 0.0, "{key}: {report}");
    }
    assert!(report["intake"]["messages"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn a_server_elsewhere_at_a_given_rate() {
    let server = Server::start(&["runner.enabled=false"]).await;
    let url = server.url();
    let args = [
        "load",
        "--json",
        "--sessions",
        "4",
        "--clients",
        "4",
        "--seconds",
        "2",
    ];
    let more = [
        "--url",
        &url,
        "--rate",
        "200",
        "--no-physical",
        "--rounds",
        "1",
        "--numbered",
    ];
    let report = report(&longhaul(&[&args[..], &more[..]].concat()).await);
    assert_clean(&report);
    let rate = report["appends_per_s"].as_f64().unwrap();
    assert!(rate < 230.0, "an open loop does not run ahead: {rate}");
    let live = server.get("/v1/sessions?status=running").await;
    assert_eq!(
        live["sessions"].as_array().unwrap().len(),
        0,
        "the load cleans up: {live}"
    );
}
