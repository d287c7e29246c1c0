//! Forks by reference.

use super::kit::{
    WIDE, all_records, append, assert_whole, begin, go_on, head, history, id, put, record, records,
    row, view, write,
};
use super::{Clause, Engine};
use crate::log::{AppendError, Appended, Expect, Order, PageLimit};

pub(super) const CLAUSES: &[Clause] = &[
    Clause {
        name: "a fork begins as its source, record by record",
        run: identical,
    },
    Clause {
        name: "a fork and its source go separate ways",
        run: separate,
    },
    Clause {
        name: "a fork can be the source of a fork, at every position",
        run: deep,
    },
    Clause {
        name: "a fork at an unknown position or source is refused",
        run: refused,
    },
    Clause {
        name: "a fork right behind the write it shares",
        run: right_behind,
    },
    Clause {
        name: "a fork inherits cached folds and history rows up to its position",
        run: rows,
    },
    Clause {
        name: "pages and cursors cross segments",
        run: pages,
    },
];

fn fork(from: u8, at: u64) -> Expect {
    Expect::Fork { from: id(from), at }
}

fn identical(engine: &dyn Engine) {
    let log = engine.open();
    let end = append(&log, begin(id(1), 5)).unwrap();
    let child = append(&log, write(id(2), fork(1, 5), vec![])).unwrap();
    assert_eq!(child, end);
    assert_eq!(assert_whole(&log, id(2), 5), assert_whole(&log, id(1), 5));
    let child = append(&log, write(id(3), fork(1, 3), records(3, 1))).unwrap();
    assert_eq!(child.last_seq, 4);
    assert_eq!(all_records(&log, id(3))[..3], all_records(&log, id(1))[..3]);
    assert_whole(&log, id(3), 4);
    let segments = head(&log, id(3)).unwrap().segments;
    assert_eq!(
        segments.iter().map(|s| s.through).collect::<Vec<_>>(),
        [3, u64::MAX]
    );
}

fn separate(engine: &dyn Engine) {
    let log = engine.open();
    let end = append(&log, begin(id(1), 4)).unwrap();
    let base = append(&log, write(id(2), fork(1, 2), vec![])).unwrap();
    assert_eq!(base.last_seq, 2);
    let other = write(
        id(2),
        super::kit::at(base),
        vec![record("content 3"), record("other")],
    );
    append(&log, other).unwrap();
    append(&log, go_on(id(1), end, 1)).unwrap();
    assert_whole(&log, id(1), 5);
    let child = all_records(&log, id(2));
    assert_eq!(
        child.iter().map(|r| r.seq).collect::<Vec<_>>(),
        [1, 2, 3, 4]
    );
    assert_eq!(child[3].content, "other");
    assert_eq!(child[1], all_records(&log, id(1))[1]);
    let stale = write(id(2), super::kit::at(end), records(4, 1));
    assert_eq!(
        append(&log, stale),
        Err(AppendError::Conflict { actual: 4 })
    );
}

fn deep(engine: &dyn Engine) {
    let log = engine.open();
    append(&log, begin(id(1), 3)).unwrap();
    for n in 2..=10 {
        let at = u64::from(n);
        append(&log, write(id(n), fork(n - 1, at), records(at, 2))).unwrap();
        assert_whole(&log, id(n), at + 2);
    }
    for at in 1..=12 {
        let child = 100 + at as u8;
        append(&log, write(id(child), fork(10, at), records(at, 1))).unwrap();
        let all = assert_whole(&log, id(child), at + 1);
        assert_eq!(all[..at as usize], all_records(&log, id(10))[..at as usize]);
    }
}

fn refused(engine: &dyn Engine) {
    let log = engine.open();
    append(&log, begin(id(1), 3)).unwrap();
    let ahead = append(&log, write(id(2), fork(1, 4), vec![]));
    assert_eq!(ahead, Err(AppendError::Conflict { actual: 3 }));
    let nowhere = append(&log, write(id(2), fork(9, 1), vec![]));
    assert_eq!(nowhere, Err(AppendError::Conflict { actual: 0 }));
    let itself = append(&log, write(id(2), fork(2, 1), vec![]));
    assert_eq!(itself, Err(AppendError::Conflict { actual: 0 }));
    assert_eq!(head(&log, id(2)), None);
    append(&log, write(id(2), fork(1, 3), vec![])).unwrap();
    let twice = append(&log, write(id(2), fork(1, 1), vec![]));
    assert_eq!(twice, Err(AppendError::Conflict { actual: 3 }));
}

fn right_behind(engine: &dyn Engine) {
    let log = engine.open();
    let first = append(&log, begin(id(1), 1)).unwrap();
    let mut pending = vec![
        log.append(begin(id(2), 2)),
        log.append(go_on(id(1), first, 3)),
    ];
    let mut with_row = write(id(3), fork(1, 3), records(3, 1));
    with_row.rows = vec![put("forked", "3")];
    pending.push(log.append(with_row));
    pending.push(log.append(write(id(4), fork(2, 1), vec![])));
    pending.push(log.append(write(id(5), fork(3, 4), records(4, 1))));
    let ends: Vec<Appended> = pending.into_iter().map(|p| p.wait().unwrap()).collect();
    assert_eq!(
        ends.iter().map(|e| e.last_seq).collect::<Vec<_>>(),
        [2, 4, 4, 1, 5]
    );
    for (n, count) in [(1, 4), (2, 2), (3, 4), (4, 1), (5, 5)] {
        assert_whole(&log, id(n), count);
    }
    assert_eq!(row(&log, "forked").as_deref(), Some("3"));
}

fn rows(engine: &dyn Engine) {
    let log = engine.open();
    let first = append(&log, begin(id(1), 1)).unwrap();
    let mut write_rows = go_on(id(1), first, 5);
    let stream = write_rows.stream.as_mut().unwrap();
    stream.state = Some("parent at 6".into());
    stream.history = vec![
        history(1, 1, 2, "shared"),
        history(1, 2, 3, "shared"),
        history(1, 2, 5, "too late"),
        history(1, 3, 6, "too late"),
    ];
    append(&log, write_rows).unwrap();
    let mut forked = write(id(2), fork(1, 4), records(4, 2));
    let stream = forked.stream.as_mut().unwrap();
    stream.history = vec![history(1, 1, 5, "own"), history(1, 9, 6, "own")];
    append(&log, forked).unwrap();

    let list = |n, at, order| {
        let rows = view(&log, |v| v.history(id(n), 1, None, at, order, WIDE)).unwrap();
        rows.into_iter()
            .map(|r| {
                (
                    r.key[0],
                    r.seq,
                    String::from_utf8(r.value.to_vec()).unwrap(),
                )
            })
            .collect::<Vec<_>>()
    };
    let row = |key, seq, value: &str| (key, seq, value.to_owned());
    let mut expected = vec![row(1, 5, "own"), row(2, 3, "shared"), row(9, 6, "own")];
    assert_eq!(list(2, u64::MAX, Order::Asc), expected);
    expected.reverse();
    assert_eq!(list(2, u64::MAX, Order::Desc), expected);
    assert_eq!(
        list(2, 4, Order::Asc),
        [row(1, 2, "shared"), row(2, 3, "shared")]
    );
    assert_eq!(list(2, 2, Order::Asc), [row(1, 2, "shared")]);
    assert_eq!(
        list(1, 4, Order::Asc),
        [row(1, 2, "shared"), row(2, 3, "shared")]
    );
    let one = view(&log, |v| v.history_row(id(2), 1, [2; 16], u64::MAX)).unwrap();
    assert_eq!(one.unwrap().seq, 3);
    assert_eq!(
        view(&log, |v| v.history_row(id(2), 1, [3; 16], u64::MAX)).unwrap(),
        None
    );

    let state = |n, at| view(&log, |v| v.state(id(n), at)).unwrap();
    assert_eq!(
        state(2, u64::MAX),
        None,
        "the parent's fold is beyond the fork"
    );
    append(&log, write(id(3), fork(1, 6), vec![])).unwrap();
    assert_eq!(state(3, u64::MAX), Some((6, "parent at 6".into())));
}

fn pages(engine: &dyn Engine) {
    let log = engine.open();
    append(&log, begin(id(1), 3)).unwrap();
    append(&log, write(id(2), fork(1, 3), records(3, 3))).unwrap();
    append(&log, write(id(3), fork(2, 5), records(5, 3))).unwrap();
    let page = |after, through, order, items_max| {
        let limit = PageLimit {
            items_max,
            bytes_max: usize::MAX,
        };
        let page = view(&log, |v| v.records(id(3), after, through, order, limit)).unwrap();
        page.iter().map(|r| r.seq).collect::<Vec<_>>()
    };
    assert_eq!(page(1, u64::MAX, Order::Asc, 4), [2, 3, 4, 5]);
    assert_eq!(page(4, 7, Order::Asc, 9), [5, 6, 7]);
    assert_eq!(page(2, 6, Order::Desc, 9), [6, 5, 4, 3]);
    assert_eq!(page(0, u64::MAX, Order::Desc, 6), [8, 7, 6, 5, 4, 3]);
    assert_eq!(page(0, 3, Order::Desc, 9), [3, 2, 1]);
    assert_eq!(page(5, u64::MAX, Order::Asc, 1), [6]);
}
