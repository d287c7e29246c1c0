//! The process is really stopped at every fault point; what was acknowledged is there, what was
//! not is there whole or not at all, and the folder opens and verifies.
//!
//! `cargo test -p longhaul-storage --features failpoints --test crash`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

#[path = "kit/stopped.rs"]
mod stopped;

use std::path::Path;

use longhaul_storage::{
    AppendError, ContentState, Expect, Log, NewRecord, Options, Order, PageLimit, RocksLog,
    RowChange, StreamId, StreamWrite, Write, fault, read, verify,
};

use stopped::stopped_at;

const FOLDER: &str = "LONGHAUL_CRASH_TEST_FOLDER";
const STREAMS: u8 = 4;
/// This one is erased and purged in the middle.
const GONE: u8 = 9;
const WRITES: u64 = 12;

fn id(n: u8) -> StreamId {
    StreamId([n; 16])
}

fn options() -> Options {
    Options {
        memory_bytes_max: 8 << 20,
        ..Options::default()
    }
}

/// Three records and a row that names the last of them.
fn write(n: u8, expect: Expect, after: u64) -> Write {
    let record = |seq: u64| NewRecord {
        header: format!("{n}").into(),
        content: format!("{n} {seq}").into(),
        content_state: ContentState::Present,
        key_id: 0,
    };
    let stream = StreamWrite {
        id: id(n),
        expect,
        records: (after + 1..=after + 3).map(record).collect(),
        history: Vec::new(),
        state: Some(format!("{}", after + 3).into()),
        erase: false,
        expire: Vec::new(),
    };
    let row = RowChange::Put(format!("last/{n}").into(), format!("{}", after + 3).into());
    Write {
        stream: Some(stream),
        conditions: Vec::new(),
        rows: vec![row],
    }
}

/// Runs in a process of its own: appends, and prints what was acknowledged.
fn work(folder: &Path) {
    fault::arm();
    let log = RocksLog::open(folder, options()).unwrap();
    let mut ends = Vec::new();
    for n in (1..=STREAMS).chain([GONE]) {
        ends.push((n, Expect::New, 0));
    }
    for round in 0..WRITES {
        let pending: Vec<_> = ends
            .iter()
            .map(|(n, expect, after)| log.append(write(*n, expect.clone(), *after)))
            .collect();
        for ((n, expect, after), answer) in ends.iter_mut().zip(pending) {
            let end = answer.wait().unwrap();
            println!("acknowledged {n} {}", end.last_seq);
            (*expect, *after) = (
                Expect::Last {
                    seq: end.last_seq,
                    hash: end.last_hash,
                },
                end.last_seq,
            );
        }
        if round == WRITES / 2 {
            let (n, expect, _) = ends.pop().unwrap();
            let mut erase = write(n, expect, 0);
            let stream = erase.stream.as_mut().unwrap();
            (stream.records, stream.state, stream.erase) = (Vec::new(), None, true);
            erase.rows = vec![RowChange::DeletePrefix(format!("last/{n}").into())];
            log.append(erase).wait().unwrap();
            println!("acknowledged erased 0");
            log.purge(id(n)).unwrap();
        }
    }
    log.close();
}

fn acknowledged(output: &str, who: &str) -> u64 {
    let of = output
        .lines()
        .filter_map(|l| l.strip_prefix("acknowledged ")?.strip_prefix(who));
    of.filter_map(|seq| seq.trim().parse().ok())
        .max()
        .unwrap_or(0)
}

fn check(point: &str, folder: &Path, output: &str) {
    let log = RocksLog::open(folder, options()).unwrap_or_else(|e| panic!("{point}: {e}"));
    let all = PageLimit {
        items_max: usize::MAX,
        bytes_max: usize::MAX,
    };
    for n in 1..=STREAMS {
        let acknowledged = acknowledged(output, &format!("{n} "));
        let head = read(log.as_ref(), |v| v.head(id(n))).unwrap();
        let last = head.as_ref().map_or(0, |h| h.last_seq);
        assert!(
            last == acknowledged || last == acknowledged + 3,
            "{point}: {n} ends at {last}"
        );
        if last == 0 {
            continue;
        }
        let records = read(log.as_ref(), |v| {
            v.records(id(n), 0, u64::MAX, Order::Asc, all)
        })
        .unwrap();
        for (record, seq) in records.iter().zip(1..) {
            assert_eq!(
                (record.seq, record.content.as_ref()),
                (seq, format!("{n} {seq}").as_bytes())
            );
        }
        let row = read(log.as_ref(), |v| v.row(format!("last/{n}").as_bytes())).unwrap();
        assert_eq!(
            row.unwrap(),
            last.to_string(),
            "{point}: the row is as new as the records"
        );
        let state = read(log.as_ref(), |v| v.state(id(n), u64::MAX))
            .unwrap()
            .unwrap();
        assert_eq!(
            (state.0, state.1.as_ref()),
            (last, last.to_string().as_bytes())
        );
        let head = head.unwrap();
        let expect = Expect::Last {
            seq: last,
            hash: head.last_hash,
        };
        log.append(write(n, expect, last)).wait().unwrap();
    }
    if output.contains("acknowledged erased") {
        let refused = log.append(write(GONE, Expect::New, 0)).wait();
        assert_eq!(refused, Err(AppendError::Erased), "{point}");
        log.purge(id(GONE)).unwrap();
    }
    log.close();
    let report = verify::verify(folder, &mut |_, _| Ok(())).unwrap();
    assert!(report.is_clean(), "{point}: {:#?}", report.findings);
}

#[test]
fn stopped_at_every_point() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return work(Path::new(&folder));
    }
    let mut reached = Vec::new();
    for point in fault::POINTS {
        for passes in [0, 5] {
            let folder = tempfile::tempdir().unwrap();
            let place = (FOLDER, folder.path());
            let stopped = stopped_at(point, passes, "stopped_at_every_point", place);
            if stopped.reached {
                reached.push(*point);
            }
            check(point, folder.path(), &stopped.said);
        }
    }
    // These are passed only after a fault of the disk.
    let expected = fault::POINTS.iter().filter(|p| !p.starts_with("recover::"));
    for point in expected {
        assert!(reached.contains(point), "{point} was never reached");
    }
}
