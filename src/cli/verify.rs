//! `longhaul verify`.

use longhaul_actors::ids::SessionId;
use longhaul_actors::session::stored::event_of;
use longhaul_storage::verify::{Finding, verify_with};
use longhaul_storage::{Record, StreamId, View};
use serde_json::{Value, json};

use super::args::VerifyArgs;
use super::exit::{CliError, Exit};
use super::output::Output;
use crate::config::SNAPSHOTS;
use crate::snapshots::check::check;

/// Records between two looks of the progress.
const DRAW_EVERY: u64 = 4_096;

/// Reads everything; prints what is wrong.
pub(crate) fn run(args: &VerifyArgs, out: Output) -> Result<(), CliError> {
    let bar = out.progress(None, "verifying");
    let mut seen = 0_u64;
    let mut visit = |_: StreamId, record: &Record| {
        seen += 1;
        if seen.is_multiple_of(DRAW_EVERY) {
            bar.message(format!("{seen} records"));
        }
        event_of(record).map(drop).map_err(|e| e.to_string())
    };
    let packs = args.data.join(SNAPSHOTS);
    let mut snapshots = 0;
    let mut look = |view: &dyn View| {
        let checked = check(view, &packs)?;
        snapshots = checked.snapshots;
        Ok(checked.findings)
    };
    let report = verify_with(&args.data, &mut visit, &mut look)?;
    bar.done();
    for finding in &report.findings {
        out.result(text(finding), &value(finding))?;
    }
    if report.findings_left_out > 0 {
        out.line(format!("… and {} more", report.findings_left_out))?;
    }
    let torn = if report.torn_tail {
        "; a torn tail, never acknowledged, will be cut"
    } else {
        ""
    };
    let found = report.findings.len() as u64 + report.findings_left_out;
    let summary = format!(
        "{} sessions, {} records in order, {snapshots} snapshots read, {found} faults{torn}",
        report.streams, report.records
    );
    let counts = json!({ "sessions": report.streams, "records": report.records,
        "snapshots": snapshots,
        "faults": found, "torn_tail": report.torn_tail });
    out.result(summary, &counts)?;
    if report.is_clean() {
        return Ok(());
    }
    let detail = format!("{} is damaged", args.data.display());
    let next = "Keep the folder as it is and restore from a backup.";
    Err(CliError::new(
        Exit::Damaged,
        "storage.damaged",
        detail,
        next,
    ))
}

fn session(finding: &Finding) -> Option<SessionId> {
    finding.stream.map(|s| SessionId(s.0))
}

fn value(f: &Finding) -> Value {
    json!({ "session": session(f), "first_seq": f.first_seq, "last_seq": f.last_seq,
        "file": f.file, "reason": f.reason })
}

fn text(f: &Finding) -> String {
    let mut parts = Vec::new();
    if let Some(session) = session(f) {
        parts.push(session.to_string());
    }
    match (f.first_seq, f.last_seq) {
        (Some(first), Some(last)) if first == last => parts.push(format!("seq {first}")),
        (Some(first), Some(last)) => parts.push(format!("seq {first} to {last}")),
        (Some(first), None) => parts.push(format!("seq {first} to its end")),
        _ => {}
    }
    if let Some(file) = &f.file {
        parts.push(file.display().to_string());
    }
    format!("{}: {}", parts.join(", "), f.reason)
}
