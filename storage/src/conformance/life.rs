//! Erasure, purge, close, reopen.

use std::sync::Arc;

use super::kit::{
    WIDE, append, assert_whole, at, begin, go_on, head, history, id, put, record, records, row,
    rows, view, write,
};
use super::{Clause, Engine};
use crate::log::{AppendError, Appended, Expect, Health, Log, Order, ReadError, RowChange, Write};

pub(super) const CLAUSES: &[Clause] = &[
    Clause {
        name: "an erased stream takes no write and gives no record",
        run: erased,
    },
    Clause {
        name: "erasing is fenced and takes rows with it",
        run: erase_is_a_write,
    },
    Clause {
        name: "a purge keeps what living forks share",
        run: purge_keeps_shared,
    },
    Clause {
        name: "a purge can be repeated, and takes nothing from a living stream",
        run: purge_repeats,
    },
    Clause {
        name: "a closed log answers closed",
        run: closed,
    },
    Clause {
        name: "what was acknowledged is there after reopening",
        run: reopened,
    },
];

fn erase(stream: crate::log::StreamId, end: Appended) -> Write {
    let mut erase = write(stream, at(end), vec![]);
    erase.stream.as_mut().unwrap().erase = true;
    erase
}

fn assert_erased(log: &Arc<dyn Log>, n: u8) {
    let stream = id(n);
    assert_eq!(view(log, |v| v.head(stream)), Err(ReadError::Erased));
    for order in [Order::Asc, Order::Desc] {
        let read = view(log, |v| v.records(stream, 0, u64::MAX, order, WIDE));
        assert_eq!(read, Err(ReadError::Erased));
        let read = view(log, |v| v.history(stream, 1, None, u64::MAX, order, WIDE));
        assert_eq!(read, Err(ReadError::Erased));
    }
    assert_eq!(
        view(log, |v| v.state(stream, u64::MAX)),
        Err(ReadError::Erased)
    );
    let read = view(log, |v| v.history_row(stream, 1, [1; 16], u64::MAX));
    assert_eq!(read, Err(ReadError::Erased));
    assert_eq!(append(log, begin(stream, 1)), Err(AppendError::Erased));
    let fork = Expect::Fork {
        from: stream,
        at: 1,
    };
    assert_eq!(
        append(log, write(id(200), fork, vec![])),
        Err(AppendError::Erased)
    );
}

fn erased(engine: &dyn Engine) {
    let log = engine.open();
    let end = append(&log, begin(id(1), 3)).unwrap();
    append(&log, begin(id(2), 3)).unwrap();
    assert_eq!(append(&log, erase(id(1), end)), Ok(end));
    assert_erased(&log, 1);
    assert_eq!(append(&log, go_on(id(1), end, 1)), Err(AppendError::Erased));
    assert_eq!(append(&log, erase(id(1), end)), Err(AppendError::Erased));
    log.purge(id(1)).unwrap();
    assert_erased(&log, 1);
    assert_whole(&log, id(2), 3);
    assert_eq!(head(&log, id(200)), None);
}

fn erase_is_a_write(engine: &dyn Engine) {
    let log = engine.open();
    let first = append(&log, begin(id(1), 1)).unwrap();
    append(
        &log,
        rows(
            vec![],
            vec![put("s1/a", "1"), put("s1/b", "1"), put("s2/a", "1")],
        ),
    )
    .unwrap();
    // An append and the erasure behind it, queued together; then one more that comes too late.
    let end = {
        let twin = engine.open();
        let first = append(&twin, begin(id(1), 1)).unwrap();
        append(&twin, go_on(id(1), first, 1)).unwrap()
    };
    let mut erase_all = erase(id(1), end);
    erase_all.stream.as_mut().unwrap().records = vec![record("erased")];
    erase_all.rows = vec![
        RowChange::DeletePrefix("s1/".into()),
        put("gone/1", "tombstone"),
    ];
    let stale = append(&log, erase_all.clone());
    assert_eq!(stale, Err(AppendError::Conflict { actual: 1 }));
    let append_first = log.append(go_on(id(1), first, 1));
    let then_erase = log.append(erase_all);
    let too_late = log.append(go_on(id(1), end, 1));
    assert_eq!(append_first.wait().unwrap(), end);
    assert_eq!(then_erase.wait().unwrap().last_seq, 3);
    assert_eq!(too_late.wait(), Err(AppendError::Erased));
    assert_erased(&log, 1);
    assert_eq!(row(&log, "s1/a"), None);
    assert_eq!(row(&log, "gone/1").as_deref(), Some("tombstone"));
    assert_eq!(row(&log, "s2/a").as_deref(), Some("1"));
}

fn purge_keeps_shared(engine: &dyn Engine) {
    let log = engine.open();
    let first = append(&log, begin(id(1), 1)).unwrap();
    let mut more = go_on(id(1), first, 5);
    more.stream.as_mut().unwrap().history =
        vec![history(1, 1, 2, "shared"), history(1, 2, 6, "parent's")];
    let parent = append(&log, more).unwrap();
    let fork = |from, at| Expect::Fork { from: id(from), at };
    let child = append(&log, write(id(2), fork(1, 4), records(4, 1))).unwrap();
    append(&log, write(id(3), fork(1, 2), vec![])).unwrap();
    append(&log, write(id(5), fork(1, 1), vec![])).unwrap();
    let grandchild = append(&log, write(id(4), fork(2, 5), records(5, 1))).unwrap();

    append(&log, erase(id(1), parent)).unwrap();
    log.purge(id(1)).unwrap();
    assert_erased(&log, 1);
    assert_whole(&log, id(2), 5);
    assert_whole(&log, id(3), 2);
    assert_whole(&log, id(5), 1);
    let shared = view(&log, |v| v.history_row(id(2), 1, [1; 16], u64::MAX)).unwrap();
    assert_eq!(shared.unwrap().value, "shared");

    append(&log, erase(id(2), child)).unwrap();
    log.purge(id(2)).unwrap();
    log.purge(id(1)).unwrap();
    assert_whole(&log, id(3), 2);
    assert_whole(&log, id(4), 6);
    append(&log, erase(id(4), grandchild)).unwrap();
    log.purge(id(4)).unwrap();
    assert_whole(&log, id(3), 2);
}

fn purge_repeats(engine: &dyn Engine) {
    let log = engine.open();
    let end = append(&log, begin(id(1), 2)).unwrap();
    log.purge(id(1)).unwrap();
    assert_whole(&log, id(1), 2);
    append(&log, erase(id(1), end)).unwrap();
    log.purge(id(1)).unwrap();
    log.purge(id(1)).unwrap();
    log.purge(id(9)).unwrap();
    assert_erased(&log, 1);
}

fn closed(engine: &dyn Engine) {
    let log = engine.open();
    append(&log, begin(id(1), 1)).unwrap();
    assert_eq!(log.health(), Health::Ok);
    log.close();
    log.close();
    assert_eq!(log.health(), Health::Closed);
    assert_eq!(append(&log, begin(id(2), 1)), Err(AppendError::Closed));
    assert_eq!(view(&log, |v| v.head(id(1))), Err(ReadError::Closed));
    assert_eq!(log.purge(id(1)), Err(ReadError::Closed));
}

fn reopened(engine: &dyn Engine) {
    let log = engine.open();
    let mut first = begin(id(1), 3);
    first.rows = vec![put("row", "1")];
    let stream = first.stream.as_mut().unwrap();
    stream.state = Some("fold".into());
    stream.history = vec![history(1, 1, 2, "history")];
    let end = append(&log, first).unwrap();
    append(
        &log,
        write(id(2), Expect::Fork { from: id(1), at: 2 }, records(2, 1)),
    )
    .unwrap();
    let gone = append(&log, begin(id(3), 1)).unwrap();
    append(&log, erase(id(3), gone)).unwrap();
    let queued: Vec<_> = (10..20).map(|n| log.append(begin(id(n), 2))).collect();
    let Some(log) = engine.reopen(log) else {
        return;
    };

    for (n, answer) in queued.into_iter().enumerate() {
        answer.wait().unwrap();
        assert_whole(&log, id(10 + n as u8), 2);
    }
    assert_whole(&log, id(1), 3);
    assert_whole(&log, id(2), 3);
    assert_erased(&log, 3);
    assert_eq!(row(&log, "row").as_deref(), Some("1"));
    assert_eq!(
        view(&log, |v| v.state(id(1), 3)).unwrap(),
        Some((3, "fold".into()))
    );
    let kept = view(&log, |v| v.history_row(id(1), 1, [1; 16], 3)).unwrap();
    assert_eq!(kept.unwrap().value, "history");
    append(&log, go_on(id(1), end, 2)).unwrap();
    assert_whole(&log, id(1), 5);
    log.purge(id(3)).unwrap();
    let Some(log) = engine.reopen(log) else {
        return;
    };
    assert_whole(&log, id(1), 5);
    assert_erased(&log, 3);
}
