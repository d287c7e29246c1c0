//! Fences, positions, all or nothing.

use std::sync::Barrier;

use super::kit::{
    all_records, append, assert_whole, at, begin, go_on, head, id, put, record, records, row, rows,
    write,
};
use super::{Clause, Engine};
use crate::log::{AppendError, Condition, ContentState, Expect, HistoryRow, NewRecord, RowChange};

pub(super) const CLAUSES: &[Clause] = &[
    Clause {
        name: "positions start at 1 and grow by 1",
        run: positions,
    },
    Clause {
        name: "a failed append consumes no position",
        run: no_gap_after_failure,
    },
    Clause {
        name: "a stream begins once",
        run: begins_once,
    },
    Clause {
        name: "a fence is a position and its chain value",
        run: fence,
    },
    Clause {
        name: "of two writers at one position one wins",
        run: two_writers,
    },
    Clause {
        name: "many writers racing on one stream leave no gap",
        run: many_writers,
    },
    Clause {
        name: "many streams at once do not mix",
        run: many_streams,
    },
    Clause {
        name: "queued writes that build on each other are taken in order",
        run: pipelined,
    },
    Clause {
        name: "a refused write leaves nothing, of any part",
        run: all_or_nothing,
    },
    Clause {
        name: "a write without records is still fenced",
        run: fenced_rows,
    },
    Clause {
        name: "records carry their content state and key id",
        run: content_states,
    },
    Clause {
        name: "malformed writes are refused",
        run: malformed,
    },
];

fn positions(engine: &dyn Engine) {
    let log = engine.open();
    let first = append(&log, begin(id(1), 1)).unwrap();
    assert_eq!(first.last_seq, 1);
    let second = append(&log, go_on(id(1), first, 5)).unwrap();
    assert_eq!(second.last_seq, 6);
    let all = assert_whole(&log, id(1), 6);
    assert_eq!(all[5].hash, second.last_hash);
    assert_eq!(all[0].header, "header of content 1");
}

fn no_gap_after_failure(engine: &dyn Engine) {
    let log = engine.open();
    let mut end = append(&log, begin(id(1), 2)).unwrap();
    for _ in 0..5 {
        let mut refused = go_on(id(1), end, 3);
        refused.conditions = vec![("absent".into(), Condition::Present)];
        assert_eq!(
            append(&log, refused),
            Err(AppendError::Condition { index: 0 })
        );
        end = append(&log, go_on(id(1), end, 1)).unwrap();
    }
    assert_whole(&log, id(1), 7);
}

fn begins_once(engine: &dyn Engine) {
    let log = engine.open();
    append(&log, begin(id(1), 3)).unwrap();
    assert_eq!(
        append(&log, begin(id(1), 1)),
        Err(AppendError::Conflict { actual: 3 })
    );
    let nowhere = Expect::Last {
        seq: 1,
        hash: [1; 32],
    };
    let refused = append(&log, write(id(2), nowhere, records(1, 1)));
    assert_eq!(refused, Err(AppendError::Conflict { actual: 0 }));
    assert_eq!(head(&log, id(2)), None);
    assert_whole(&log, id(1), 3);
}

fn fence(engine: &dyn Engine) {
    let log = engine.open();
    let first = append(&log, begin(id(1), 1)).unwrap();
    let second = append(&log, go_on(id(1), first, 1)).unwrap();
    let stale = append(&log, go_on(id(1), first, 1));
    assert_eq!(stale, Err(AppendError::Conflict { actual: 2 }));
    let forged = Expect::Last {
        seq: 2,
        hash: first.last_hash,
    };
    let refused = append(&log, write(id(1), forged, records(2, 1)));
    assert_eq!(refused, Err(AppendError::Conflict { actual: 2 }));
    let ahead = Expect::Last {
        seq: 3,
        hash: second.last_hash,
    };
    let refused = append(&log, write(id(1), ahead, records(3, 1)));
    assert_eq!(refused, Err(AppendError::Conflict { actual: 2 }));
    append(&log, go_on(id(1), second, 1)).unwrap();
    assert_whole(&log, id(1), 3);
}

fn two_writers(engine: &dyn Engine) {
    let log = engine.open();
    let mut end = append(&log, begin(id(1), 1)).unwrap();
    for round in 0..20 {
        let barrier = Barrier::new(2);
        let race = |name: &str| {
            barrier.wait();
            let record = record(&format!("{name} {round}"));
            append(&log, write(id(1), at(end), vec![record]))
        };
        let (a, b) = std::thread::scope(|scope| {
            let a = scope.spawn(|| race("a"));
            let b = scope.spawn(|| race("b"));
            (a.join().unwrap(), b.join().unwrap())
        });
        let conflict = Err(AppendError::Conflict {
            actual: end.last_seq + 1,
        });
        let (winner, won) = match (a, b) {
            (Ok(won), lost) if lost == conflict => ("a", won),
            (lost, Ok(won)) if lost == conflict => ("b", won),
            other => panic!("exactly one must win: {other:?}"),
        };
        let all = all_records(&log, id(1));
        assert_eq!(all.len() as u64, end.last_seq + 1);
        assert_eq!(all.last().unwrap().content, format!("{winner} {round}"));
        end = won;
    }
}

fn many_writers(engine: &dyn Engine) {
    let log = engine.open();
    append(&log, begin(id(1), 1)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut written = 0;
                while written < 25 {
                    let head = head(&log, id(1)).unwrap();
                    let expect = Expect::Last {
                        seq: head.last_seq,
                        hash: head.last_hash,
                    };
                    match append(&log, write(id(1), expect, records(head.last_seq, 1))) {
                        Ok(_) => written += 1,
                        Err(AppendError::Conflict { .. }) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    assert_whole(&log, id(1), 101);
}

fn many_streams(engine: &dyn Engine) {
    let log = engine.open();
    std::thread::scope(|scope| {
        for n in 1..=16 {
            let log = &log;
            scope.spawn(move || {
                let mut end = append(log, begin(id(n), 1)).unwrap();
                for count in 1..=5 {
                    end = append(log, go_on(id(n), end, count)).unwrap();
                }
            });
        }
    });
    for n in 1..=16 {
        assert_whole(&log, id(n), 16);
    }
}

fn pipelined(engine: &dyn Engine) {
    // The chain values are known before the writes are durable: they come from a twin.
    let twin = engine.open();
    let mut writes = vec![begin(id(1), 2)];
    let mut end = append(&twin, begin(id(1), 2)).unwrap();
    for _ in 0..10 {
        writes.push(go_on(id(1), end, 1));
        end = append(&twin, go_on(id(1), end, 1)).unwrap();
    }
    twin.close();
    let log = engine.open();
    let pending: Vec<_> = writes.into_iter().map(|w| log.append(w)).collect();
    for (n, answer) in pending.into_iter().enumerate() {
        assert_eq!(answer.wait().unwrap().last_seq, n as u64 + 2);
    }
    assert_whole(&log, id(1), 12);
}

fn all_or_nothing(engine: &dyn Engine) {
    let log = engine.open();
    let end = append(&log, begin(id(1), 1)).unwrap();
    append(
        &log,
        rows(vec![], vec![put("kept", "1"), put("dir/a", "1")]),
    )
    .unwrap();
    let mut refused = go_on(id(1), end, 2);
    refused.conditions = vec![
        ("kept".into(), Condition::Present),
        ("other".into(), Condition::Absent),
        ("kept".into(), Condition::Unchanged("2".into())),
    ];
    refused.rows = vec![
        put("new", "1"),
        RowChange::Delete("kept".into()),
        RowChange::DeletePrefix("dir/".into()),
    ];
    let stream = refused.stream.as_mut().unwrap();
    stream.history = vec![HistoryRow {
        kind: 1,
        key: [1; 16],
        seq: 2,
        value: "x".into(),
    }];
    stream.state = Some("state".into());
    assert_eq!(
        append(&log, refused.clone()),
        Err(AppendError::Condition { index: 2 })
    );
    assert_eq!(row(&log, "new"), None);
    assert_eq!(row(&log, "kept").as_deref(), Some("1"));
    assert_eq!(row(&log, "dir/a").as_deref(), Some("1"));
    assert_whole(&log, id(1), 1);
    let of_stream = |log| {
        super::kit::view(log, |v| {
            Ok((
                v.state(id(1), u64::MAX)?,
                v.history_row(id(1), 1, [1; 16], u64::MAX)?,
            ))
        })
    };
    assert_eq!(of_stream(&log).unwrap(), (None, None));

    refused.conditions.pop();
    append(&log, refused).unwrap();
    assert_eq!(row(&log, "new").as_deref(), Some("1"));
    assert_eq!(row(&log, "kept"), None);
    assert_eq!(row(&log, "dir/a"), None);
    assert_whole(&log, id(1), 3);
    let (state, history) = of_stream(&log).unwrap();
    assert_eq!(state, Some((3, "state".into())));
    assert_eq!(history.unwrap().seq, 2);
}

fn fenced_rows(engine: &dyn Engine) {
    let log = engine.open();
    let first = append(&log, begin(id(1), 1)).unwrap();
    let second = append(&log, go_on(id(1), first, 1)).unwrap();
    let mut stale = write(id(1), at(first), vec![]);
    stale.rows = vec![put("row", "stale")];
    assert_eq!(
        append(&log, stale),
        Err(AppendError::Conflict { actual: 2 })
    );
    let mut fresh = write(id(1), at(second), vec![]);
    fresh.rows = vec![put("row", "fresh")];
    assert_eq!(append(&log, fresh), Ok(second));
    assert_eq!(row(&log, "row").as_deref(), Some("fresh"));
    assert_whole(&log, id(1), 2);
}

fn content_states(engine: &dyn Engine) {
    let log = engine.open();
    let omitted = NewRecord {
        content: Vec::new().into(),
        content_state: ContentState::Omitted,
        ..record("secret")
    };
    let keyed = NewRecord {
        key_id: u32::MAX,
        ..record("sealed")
    };
    append(&log, write(id(1), Expect::New, vec![omitted, keyed])).unwrap();
    let all = all_records(&log, id(1));
    assert_eq!(
        (all[0].content_state, all[0].content.len()),
        (ContentState::Omitted, 0)
    );
    assert_eq!(
        (all[1].content_state, all[1].key_id),
        (ContentState::Present, u32::MAX)
    );
    assert_eq!(all[1].content, "sealed");
}

fn malformed(engine: &dyn Engine) {
    let log = engine.open();
    let end = append(&log, begin(id(1), 1)).unwrap();
    let with = |change: &dyn Fn(&mut crate::log::StreamWrite)| {
        let mut write = go_on(id(1), end, 1);
        change(write.stream.as_mut().unwrap());
        write
    };
    let old = HistoryRow {
        kind: 1,
        key: [1; 16],
        seq: 1,
        value: "x".into(),
    };
    let later = HistoryRow {
        seq: 3,
        ..old.clone()
    };
    let writes = [
        write(id(2), Expect::New, vec![]),
        write(id(2), Expect::Fork { from: id(1), at: 0 }, vec![]),
        write(
            id(1),
            Expect::Last {
                seq: 0,
                hash: end.last_hash,
            },
            records(0, 1),
        ),
        write(
            id(1),
            Expect::Last {
                seq: u64::MAX - 1,
                hash: end.last_hash,
            },
            records(0, 1),
        ),
        with(&|s| s.records[0].content_state = ContentState::Omitted),
        with(&|s| s.records[0].content_state = ContentState::Erased),
        with(&|s| s.history = vec![old.clone()]),
        with(&|s| s.history = vec![later.clone()]),
        rows(vec![], vec![put("", "no key")]),
        rows(vec![], vec![RowChange::DeletePrefix(vec![].into())]),
        rows(vec![], vec![RowChange::DeletePrefix(vec![0xff].into())]),
    ];
    for (n, write) in writes.into_iter().enumerate() {
        let answer = append(&log, write);
        assert!(
            matches!(answer, Err(AppendError::Malformed(_))),
            "write {n}: {answer:?}"
        );
    }
    assert_whole(&log, id(1), 1);
    assert_eq!(head(&log, id(2)), None);
}
