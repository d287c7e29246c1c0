//! Stored forms, byte for byte: what was once written stays readable for ever.
//!
//! A new event type without its file fails. `UPDATE_GOLDEN=1` writes files that are missing or
//! differ: only for forms that were never released.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

#[path = "golden/samples.rs"]
mod samples;
#[path = "golden/states.rs"]
mod states;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use bytes::Bytes;
use longhaul_actors::codec;
use longhaul_actors::ids::*;
use longhaul_actors::rows;
use longhaul_actors::session::decision::SnapshotRow;
use longhaul_actors::session::event::*;
use longhaul_actors::session::facts::*;
use longhaul_actors::session::history::RunRow;
use longhaul_actors::session::journal::*;
use longhaul_actors::session::payload::*;
use longhaul_actors::session::projection::*;
use longhaul_actors::session::step::*;
use longhaul_actors::session::stored::{event_of, new_record};
use longhaul_storage::{ContentState, Record};
use samples::*;
use states::*;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for line in bytes.chunks(32) {
        line.iter()
            .for_each(|b| write!(out, "{b:02x}").expect("a string takes all"));
        out.push('\n');
    }
    out
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    let pairs = (0..digits.len()).step_by(2);
    pairs
        .map(|i| u8::from_str_radix(&digits[i..i + 2], 16).expect("hex"))
        .collect()
}

/// The golden bytes of `name`, which must be `bytes`.
fn golden(name: &str, bytes: &[u8]) -> Vec<u8> {
    let path = folder().join(format!("{name}.hex"));
    let found = std::fs::read_to_string(&path).map(|t| unhex(&t));
    if std::env::var_os("UPDATE_GOLDEN").is_some() && found.as_deref().ok() != Some(bytes) {
        std::fs::create_dir_all(folder()).expect("folder");
        std::fs::write(&path, hex(bytes)).expect("write");
        return bytes.to_vec();
    }
    let found = found.unwrap_or_else(|e| panic!("{name} has no golden file: {e}"));
    assert_eq!(hex(&found), hex(bytes), "the stored form of {name} changed");
    found
}

#[test]
fn every_event_type_has_a_golden_record() {
    let (mut tags, mut names) = (BTreeMap::new(), BTreeMap::new());
    for (kind, tag) in EventType::ALL {
        assert!(tags.insert(*tag, kind).is_none(), "tag {tag} twice");
        assert!(
            names.insert(kind.text(), *tag).is_none(),
            "{} twice",
            kind.text()
        );
        assert_eq!(EventType::from_tag(*tag), Some(*kind));
        let body = body(*kind);
        let content = match &body {
            Body::Opaque => Bytes::from_static(opaque(*kind)),
            known => known.to_json(),
        };
        let header = Header {
            kind: *kind,
            version: 1,
            id: event_id(4),
            created_at_ms: 1_000_000,
            author: Author::principal("ann"),
            cause: Cause::Event(event_id(3)),
            run: Some(RunRef {
                id: RunId([6; 16]),
                attempt: 2,
            }),
            boundary: true,
            refers: Some(event_id(2)),
            label: Some(match kind.text().starts_with("step.") {
                true => mark().label(),
                false => "go".into(),
            }),
        };
        let event = Event {
            seq: 4,
            header,
            body,
        };
        let record = new_record(
            &NewEvent {
                event: event.clone(),
                content: content.clone(),
            },
            false,
        );
        let name = kind.text();
        let record = Record {
            seq: 4,
            header: golden(&format!("{name}.header"), &record.header).into(),
            content: golden(&format!("{name}.content"), &content).into(),
            content_state: ContentState::Present,
            key_id: 0,
            hash: [0; 32],
        };
        assert_eq!(event_of(&record), Ok(event), "{name} reads back");
    }
    // Retired or renamed types keep their files, and so their tags.
    let files = std::fs::read_dir(folder()).expect("folder").filter(|f| {
        let name = f
            .as_ref()
            .expect("entry")
            .file_name()
            .to_string_lossy()
            .into_owned();
        name.ends_with(".header.hex")
    });
    assert_eq!(files.count(), EventType::ALL.len());
}

fn stored<T: bincode::Encode + bincode::Decode<()> + PartialEq + std::fmt::Debug>(
    name: &str,
    value: &T,
) {
    let bytes = golden(name, &codec::encode(value));
    assert_eq!(
        codec::decode::<T>(&bytes).as_ref(),
        Ok(value),
        "{name} reads back"
    );
    for cut in 0..bytes.len() {
        assert!(
            codec::decode::<T>(&bytes[..cut]).is_err(),
            "{name} cut at {cut}"
        );
    }
    let mut newer = bytes.clone();
    newer[0] += 1;
    assert!(
        codec::decode::<T>(&newer).is_err(),
        "{name} of a newer version"
    );
    let longer = [bytes, vec![0]].concat();
    assert!(
        codec::decode::<T>(&longer).is_err(),
        "{name} with a byte too many"
    );
}

#[test]
fn every_stored_row_has_a_golden_form() {
    stored("state", &state());
    stored(
        "row.run",
        &RunRow {
            id: RunId([6; 16]),
            state: "settled".into(),
            attempt: 2,
            trigger: trigger(),
            continues: None,
            outcome: Some(Outcome::Succeeded),
            error: Some(RunError {
                code: "a.b".into(),
                message: "c".into(),
            }),
            usage: usage(),
            queued_at_ms: 1,
            settled_at_ms: Some(2),
        },
    );
    stored(
        "row.item",
        &ItemFact {
            state: Some(ItemState::Denied),
            answer: Some(answer()),
        },
    );
    stored(
        "row.receipt",
        &Receipt {
            body: [1; 16],
            reply: reply(),
            at_ms: 3,
        },
    );
    stored(
        "row.created",
        &Created {
            body: [1; 16],
            session: SessionId([9; 16]),
            at_ms: 3,
        },
    );
    stored(
        "row.call",
        &StoredCall {
            verb: "events".into(),
            reply: reply(),
        },
    );
    stored(
        "row.ended",
        &EndedClaim {
            reason: LostReason::Settled,
            outcome: Some(Outcome::Failed),
            body: [2; 16],
            reply: Some(reply()),
        },
    );
    stored(
        "row.step",
        &StepRow {
            id: event_id(4),
            digest: "d1".into(),
            failed: true,
            done_seq: 5,
            effects: StepEffects::External,
            run: RunId([6; 16]),
            attempt: 2,
            failures: 1,
        },
    );
    stored("row.checkpoint", &checkpoint());
    stored(
        "row.snapshot",
        &SnapshotRow {
            snapshot: snapshot(),
            kept: Some(longhaul_actors::session::command::Kept {
                manifest: vec![1, 2, 3],
                packs: vec![[4; 16]],
            }),
        },
    );
    stored(
        "row.member",
        &Member {
            id: SessionId([9; 16]),
            forked: state().forked.expect("a fork"),
        },
    );
    for (name, due) in [
        ("hold", Due::Hold),
        ("wait", Due::Wait(1)),
        ("checkpoint", Due::Checkpoint),
        ("contents", Due::Contents),
    ] {
        stored(
            &format!("row.timer.{name}"),
            &TimerRow {
                due_ms: 7,
                session: SessionId([9; 16]),
                seq: 12,
                due,
            },
        );
    }
    let mut full = state();
    full.checkpoints.0.insert(12, checkpoint().into());
    let rows = Projection::of(&full).rows();
    let mut text = String::new();
    for (key, value) in rows {
        writeln!(text, "{}{}", hex(&key), hex(&value)).expect("a string takes all");
    }
    golden("rows.current", text.as_bytes());
}

#[test]
fn contents_of_steps_read_as_they_were_written() {
    let of = |kind| opaque(kind);
    let started: StepStarted<'_> =
        serde_json::from_slice(of(EventType::StepStarted)).expect("started");
    assert_eq!((started.name.as_str(), started.occurrence), ("pay", 1));
    let content = Bytes::from_static(of(EventType::StepCompleted));
    let completed: StepCompleted<'_> = serde_json::from_slice(&content).expect("completed");
    let value = completed.value(&content).expect("a value");
    assert_eq!(value, StepValue::Json(Bytes::from_static(b"null")));
    let failed: StepFailed<'_> = serde_json::from_slice(of(EventType::StepFailed)).expect("failed");
    assert_eq!((failed.failures, failed.error.code.as_str()), (2, "a.b"));
    let resolved: StepResolved =
        serde_json::from_slice(of(EventType::StepResolved)).expect("resolved");
    assert_eq!(resolved.verdict, ResolvedAs::Retry);
}

#[test]
fn keys_sort_as_numbers_do() {
    let due = |due_ms, seq, wait: Option<u32>| {
        rows::timer(&TimerRow {
            due_ms,
            session: SessionId([9; 16]),
            seq,
            due: wait.map_or(Due::Hold, Due::Wait),
        })
    };
    let ascending = [
        due(-5, 1, None),
        due(0, 2, None),
        due(99_999, 1, None),
        due(100_000, 1, None),
        due(100_000, 1, Some(0)),
        due(100_000, 1, Some(9)),
        due(100_000, 2, None),
        due(i64::from(i32::MAX), 1, None),
        due(i64::MAX, 1, None),
    ];
    assert!(ascending.windows(2).all(|w| w[0] < w[1]));
    let seqs = [
        1,
        9_999,
        10_000,
        99_999,
        100_000,
        (1 << 31) - 2,
        1 << 31,
        (1 << 32) - 2,
        1 << 32,
    ];
    assert!(seqs.windows(2).all(|w| rows::at(w[0]) < rows::at(w[1])));
    assert!(
        seqs.windows(2)
            .all(|w| rows::taken(w[0], u64::MAX) < rows::taken(w[1], 0))
    );
    let checkpoint = |seq| rows::checkpoint(SessionId([9; 16]), seq);
    assert!(seqs.windows(2).all(|w| checkpoint(w[0]) < checkpoint(w[1])));
    let token = TokenDigest([5; 16]);
    let call = |n| rows::call(SessionId([9; 16]), token, n);
    assert!(seqs.windows(2).all(|w| call(w[0]) < call(w[1])));
    assert!(call(1).starts_with(&rows::calls(SessionId([9; 16]), token)));
}
