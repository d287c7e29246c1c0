//! Random writes, queued all at once, against the engine in memory, which takes them one by one:
//! batching, sorting and concatenation must not show.

use proptest::prelude::*;

use super::*;
use crate::log::{Condition, HistoryRow};
use crate::memory::MemoryLog;

const STREAMS: u8 = 4;
const KEYS: u8 = 6;

/// A write, but for the fence, which depends on how those before it ended.
#[derive(Debug, Clone)]
struct Step {
    stream: u8,
    kind: Kind,
    records: usize,
    stale: bool,
    condition: Option<(u8, u8)>,
    rows: Vec<(u8, u8)>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Append,
    Fork(u8, u64),
    Erase,
    /// Contents from a position on, one of three.
    Expire(u64),
    RowsOnly,
}

fn any_step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        8 => Just(Kind::Append),
        2 => (0..STREAMS * 3, 1u64..6).prop_map(|(from, at)| Kind::Fork(from, at)),
        1 => Just(Kind::Erase),
        2 => (1u64..6).prop_map(Kind::Expire),
        3 => Just(Kind::RowsOnly),
    ];
    let rows = prop::collection::vec((0..KEYS, 0u8..4), 0..3);
    let condition = prop::option::weighted(0.4, (0..KEYS, 0u8..3));
    (
        0..STREAMS,
        kind,
        0usize..3,
        prop::bool::weighted(0.1),
        condition,
        rows,
    )
        .prop_map(|(stream, kind, records, stale, condition, rows)| {
            // Forks go to streams of their own, so that most of them are new.
            let stream = match kind {
                Kind::Fork(from, at) => STREAMS + (from + at as u8) % (STREAMS * 2),
                _ => stream,
            };
            Step {
                stream,
                kind,
                records,
                stale,
                condition,
                rows,
            }
        })
}

fn key(n: u8) -> Bytes {
    // Two prefixes, one inside the other's range.
    Bytes::from(format!(
        "{}/{n}",
        if n.is_multiple_of(2) { "a" } else { "a/b" }
    ))
}

/// The write that a step is after what the model has seen so far.
fn to_write(step: &Step, model: &MemoryLog, n: usize) -> Write {
    let rows = step.rows.iter().map(|(k, change)| match change {
        0 => RowChange::Delete(key(*k)),
        1 => RowChange::DeletePrefix(if k % 2 == 0 {
            "a/".into()
        } else {
            "a/b/".into()
        }),
        value => RowChange::Put(key(*k), format!("{value}").into()),
    });
    let conditions = step.condition.map(|(k, condition)| {
        let condition = match condition {
            0 => Condition::Absent,
            1 => Condition::Present,
            _ => Condition::Unchanged("2".into()),
        };
        (key(k), condition)
    });
    let base = Write {
        stream: None,
        conditions: conditions.into_iter().collect(),
        rows: rows.collect(),
    };
    if let Kind::RowsOnly = step.kind {
        return base;
    }
    let head = read(model, |v| v.head(id(step.stream))).ok().flatten();
    let expect = match (step.kind, head) {
        (Kind::Fork(from, at), _) => Expect::Fork { from: id(from), at },
        (_, None) => Expect::New,
        (_, Some(head)) => Expect::Last {
            seq: head.last_seq.saturating_sub(u64::from(step.stale)).max(1),
            hash: head.last_hash,
        },
    };
    let contents: Vec<_> = (0..step.records).map(|r| format!("{n} {r}")).collect();
    let contents: Vec<_> = contents.iter().map(String::as_str).collect();
    let after = match expect {
        Expect::New => 0,
        Expect::Fork { at, .. } => at,
        Expect::Last { seq, .. } => seq,
    };
    let mut write = Write {
        stream: write(id(step.stream), expect, &contents).stream,
        ..base
    };
    let stream = write.stream.as_mut().unwrap();
    stream.erase = matches!(step.kind, Kind::Erase);
    if let (Kind::Expire(from), Expect::Last { seq, .. }) = (step.kind, &stream.expect)
        && from <= *seq
    {
        let ranges = (from..=*seq).step_by(3);
        stream.expire = ranges.map(|at| (at, (at + 1).min(*seq))).collect();
    }
    stream.state = Some(format!("{n}").into());
    if step.records > 0 {
        let value = Bytes::from(format!("{n}"));
        stream.history.push(HistoryRow {
            kind: 1,
            key: [n as u8 % 3; 16],
            seq: after + 1,
            value,
        });
    }
    write
}

/// Everything that can be seen of a log.
fn seen(log: &dyn Log) -> Vec<String> {
    let all = PageLimit {
        items_max: usize::MAX,
        bytes_max: usize::MAX,
    };
    let mut seen = Vec::new();
    read(log, |v| {
        seen.push(format!("{:?}", v.rows(b"", None, Order::Asc, all)));
        seen.push(format!(
            "{:?}",
            v.rows(b"a/", Some(b"a/b/3"), Order::Desc, all)
        ));
        for n in 0..STREAMS * 3 {
            let stream = id(n);
            seen.push(format!("{:?}", v.head(stream)));
            seen.push(format!("{:?}", v.shared_through(stream)));
            seen.push(format!(
                "{:?}",
                v.records(stream, 0, u64::MAX, Order::Asc, all)
            ));
            seen.push(format!("{:?}", v.records(stream, 1, 4, Order::Desc, all)));
            for at in [2, u64::MAX] {
                seen.push(format!("{:?}", v.state(stream, at)));
                seen.push(format!(
                    "{:?}",
                    v.history(stream, 1, None, at, Order::Asc, all)
                ));
                seen.push(format!(
                    "{:?}",
                    v.history(stream, 1, None, at, Order::Desc, all)
                ));
            }
        }
        Ok(())
    })
    .unwrap();
    seen
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn queued_writes_end_as_if_taken_one_by_one(
        steps in prop::collection::vec(any_step(), 1..60),
        purge in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let model = MemoryLog::new();
        let mut writes = Vec::new();
        let mut expected = Vec::new();
        for (n, step) in steps.iter().enumerate() {
            let write = to_write(step, &model, n);
            expected.push(model.append(write.clone()).wait());
            writes.push(write);
        }
        let log = open(folder.path());
        let pending: Vec<_> = writes.into_iter().map(|w| log.append(w)).collect();
        for ((answer, expected), step) in pending.into_iter().zip(&expected).zip(&steps) {
            prop_assert_eq!(&answer.wait(), expected, "{:?}", step);
        }
        prop_assert_eq!(seen(log.as_ref()), seen(model.as_ref()));
        if purge {
            for n in 0..STREAMS * 3 {
                let erased = read(log.as_ref(), |v| v.head(id(n))) == Err(ReadError::Erased);
                if erased {
                    log.purge(id(n)).unwrap();
                    model.purge(id(n)).unwrap();
                }
            }
            prop_assert_eq!(seen(log.as_ref()), seen(model.as_ref()));
        }
        log.close();
        prop_assert!(crate::verify::verify(folder.path(), &mut |_, _| Ok(())).unwrap().is_clean());
        let log = open(folder.path());
        prop_assert_eq!(seen(log.as_ref()), seen(model.as_ref()));
        log.close();
    }
}
