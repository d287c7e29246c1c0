//! Snapshots, pages, directions, cached folds, history rows.

use super::kit::{
    WIDE, all_records, append, assert_whole, begin, go_on, head, history, id, put, view,
};
use super::{Clause, Engine};
use crate::log::{Order, PageLimit, ReadError};

pub(super) const CLAUSES: &[Clause] = &[
    Clause {
        name: "a view is one snapshot, whatever is appended meanwhile",
        run: one_snapshot,
    },
    Clause {
        name: "readers see whole writes only",
        run: whole_writes,
    },
    Clause {
        name: "pages are bounded and always have their first item",
        run: pages,
    },
    Clause {
        name: "pages in descending order",
        run: pages_down,
    },
    Clause {
        name: "reading past the end is an empty page",
        run: past_the_end,
    },
    Clause {
        name: "unknown streams are not found",
        run: unknown,
    },
    Clause {
        name: "the cached fold is the newest at or before",
        run: state,
    },
    Clause {
        name: "the history row in force is the newest at or before",
        run: history_row,
    },
    Clause {
        name: "history rows are listed once per key, in order",
        run: history_list,
    },
];

fn one_snapshot(engine: &dyn Engine) {
    let log = engine.open();
    let end = append(&log, begin(id(1), 3)).unwrap();
    let mut more = go_on(id(1), end, 2);
    more.rows = vec![put("row", "new")];
    more.stream.as_mut().unwrap().state = Some("fold".into());
    view(&log, |v| {
        let before = v.records(id(1), 0, u64::MAX, Order::Asc, WIDE)?;
        append(&log, more).unwrap();
        append(&log, begin(id(2), 1)).unwrap();
        assert_eq!(v.records(id(1), 0, u64::MAX, Order::Asc, WIDE)?, before);
        assert_eq!(v.head(id(1))?.unwrap().last_seq, 3);
        assert_eq!(v.head(id(2))?, None);
        assert_eq!(v.row(b"row")?, None);
        assert_eq!(v.rows(b"r", None, Order::Asc, WIDE)?, []);
        assert_eq!(v.state(id(1), u64::MAX)?, None);
        Ok(())
    })
    .unwrap();
    assert_whole(&log, id(1), 5);
}

fn whole_writes(engine: &dyn Engine) {
    let log = engine.open();
    let mut end = append(&log, begin(id(1), 1)).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Each write takes three positions and puts its last one into a row.
            for _ in 0..50 {
                let mut write = go_on(id(1), end, 3);
                write.rows = vec![put("last", &(end.last_seq + 3).to_string())];
                end = append(&log, write).unwrap();
            }
            done.store(true, std::sync::atomic::Ordering::Release);
        });
        let mut seen = 0;
        loop {
            let last_round = done.load(std::sync::atomic::Ordering::Acquire);
            let (head, row, count) = view(&log, |v| {
                let records = v.records(id(1), 0, u64::MAX, Order::Asc, WIDE)?;
                Ok((
                    v.head(id(1))?.unwrap(),
                    v.row(b"last")?,
                    records.len() as u64,
                ))
            })
            .unwrap();
            assert_eq!(
                head.last_seq, count,
                "the head and the list are one snapshot"
            );
            assert_eq!(head.last_seq % 3, 1, "a write is there whole or not at all");
            if let Some(row) = row {
                assert_eq!(row, head.last_seq.to_string());
            }
            assert!(head.last_seq >= seen, "what was seen stays");
            seen = head.last_seq;
            if last_round {
                break;
            }
        }
        assert_eq!(seen, 151);
    });
}

fn pages(engine: &dyn Engine) {
    let log = engine.open();
    append(&log, begin(id(1), 9)).unwrap();
    let all = all_records(&log, id(1));
    let size = all[0].header.len() + all[0].content.len();
    let page = |after, through, items_max, bytes_max| {
        let limit = PageLimit {
            items_max,
            bytes_max,
        };
        let page = view(&log, |v| {
            v.records(id(1), after, through, Order::Asc, limit)
        })
        .unwrap();
        page.iter().map(|r| r.seq).collect::<Vec<_>>()
    };
    assert_eq!(page(0, u64::MAX, 4, usize::MAX), [1, 2, 3, 4]);
    assert_eq!(page(4, u64::MAX, 4, usize::MAX), [5, 6, 7, 8]);
    assert_eq!(page(8, u64::MAX, 4, usize::MAX), [9]);
    assert_eq!(page(2, 4, usize::MAX, usize::MAX), [3, 4]);
    assert_eq!(page(0, u64::MAX, usize::MAX, size), [1]);
    assert_eq!(page(0, u64::MAX, usize::MAX, 2 * size), [1, 2]);
    assert_eq!(page(0, u64::MAX, usize::MAX, 3 * size - 1), [1, 2]);
    assert_eq!(
        page(3, u64::MAX, usize::MAX, 0),
        [4],
        "the first item always fits"
    );
    assert_eq!(page(3, u64::MAX, 0, 0), [4]);
}

fn pages_down(engine: &dyn Engine) {
    let log = engine.open();
    append(&log, begin(id(1), 9)).unwrap();
    let page = |after, through, items_max| {
        let limit = PageLimit {
            items_max,
            bytes_max: usize::MAX,
        };
        let page = view(&log, |v| {
            v.records(id(1), after, through, Order::Desc, limit)
        })
        .unwrap();
        page.iter().map(|r| r.seq).collect::<Vec<_>>()
    };
    assert_eq!(page(0, u64::MAX, 3), [9, 8, 7]);
    assert_eq!(page(0, 6, 3), [6, 5, 4]);
    assert_eq!(page(1, 3, 9), [3, 2]);
    assert_eq!(page(0, 1, 9), [1]);
    assert_eq!(page(3, 3, 9), [0; 0]);
}

fn past_the_end(engine: &dyn Engine) {
    let log = engine.open();
    append(&log, begin(id(1), 2)).unwrap();
    for order in [Order::Asc, Order::Desc] {
        let read = |after, through| view(&log, |v| v.records(id(1), after, through, order, WIDE));
        assert_eq!(read(2, u64::MAX).unwrap(), []);
        assert_eq!(read(100, u64::MAX).unwrap(), []);
        assert_eq!(read(u64::MAX, u64::MAX).unwrap(), []);
        assert_eq!(read(2, 1).unwrap(), []);
        assert_eq!(read(1, 100).unwrap().len(), 1);
    }
}

fn unknown(engine: &dyn Engine) {
    let log = engine.open();
    assert_eq!(head(&log, id(9)), None);
    let records = view(&log, |v| v.records(id(9), 0, 1, Order::Asc, WIDE));
    assert_eq!(records, Err(ReadError::NotFound));
    assert_eq!(view(&log, |v| v.state(id(9), 1)), Err(ReadError::NotFound));
    let history = view(&log, |v| v.history(id(9), 1, None, 1, Order::Asc, WIDE));
    assert_eq!(history, Err(ReadError::NotFound));
}

fn state(engine: &dyn Engine) {
    let log = engine.open();
    let mut end = append(&log, begin(id(1), 2)).unwrap();
    for fold in ["a", "b"] {
        let mut write = go_on(id(1), end, 3);
        write.stream.as_mut().unwrap().state = Some(fold.into());
        end = append(&log, write).unwrap();
    }
    let at = |at_most| view(&log, |v| v.state(id(1), at_most)).unwrap();
    assert_eq!(at(4), None);
    assert_eq!(at(5), Some((5, "a".into())));
    assert_eq!(at(7), Some((5, "a".into())));
    assert_eq!(at(8), Some((8, "b".into())));
    assert_eq!(at(u64::MAX), Some((8, "b".into())));
}

fn history_row(engine: &dyn Engine) {
    let log = engine.open();
    let first = append(&log, begin(id(1), 1)).unwrap();
    let mut write = go_on(id(1), first, 9);
    write.stream.as_mut().unwrap().history = vec![
        history(1, 5, 3, "three"),
        history(1, 5, 7, "seven"),
        history(2, 5, 4, "other kind"),
    ];
    append(&log, write).unwrap();
    let at = |kind, key, at| {
        let row = view(&log, |v| v.history_row(id(1), kind, [key; 16], at)).unwrap();
        row.map(|r| (r.seq, r.value))
    };
    assert_eq!(at(1, 5, 2), None);
    assert_eq!(at(1, 5, 3), Some((3, "three".into())));
    assert_eq!(at(1, 5, 6), Some((3, "three".into())));
    assert_eq!(at(1, 5, u64::MAX), Some((7, "seven".into())));
    assert_eq!(at(2, 5, 9), Some((4, "other kind".into())));
    assert_eq!(at(1, 4, 9), None);
}

fn history_list(engine: &dyn Engine) {
    let log = engine.open();
    let first = append(&log, begin(id(1), 1)).unwrap();
    let mut write = go_on(id(1), first, 9);
    write.stream.as_mut().unwrap().history = vec![
        history(1, 0, 2, "zero"),
        history(1, 3, 2, "old"),
        history(1, 3, 8, "new"),
        history(1, 6, 9, "late"),
        history(1, 255, 2, "last"),
        history(2, 4, 2, "other kind"),
    ];
    append(&log, write).unwrap();
    // A stream whose rows lie beside it must not show.
    let beside = append(&log, begin(id(2), 1)).unwrap();
    let mut write = go_on(id(2), beside, 1);
    write.stream.as_mut().unwrap().history = vec![history(1, 3, 2, "beside")];
    append(&log, write).unwrap();

    let list = |after: Option<u8>, at, order, items_max| {
        let limit = PageLimit {
            items_max,
            bytes_max: usize::MAX,
        };
        let after = after.map(|k| [k; 16]);
        let rows = view(&log, |v| v.history(id(1), 1, after, at, order, limit)).unwrap();
        rows.iter().map(|r| (r.key[0], r.seq)).collect::<Vec<_>>()
    };
    assert_eq!(
        list(None, 10, Order::Asc, 9),
        [(0, 2), (3, 8), (6, 9), (255, 2)]
    );
    assert_eq!(list(None, 7, Order::Asc, 9), [(0, 2), (3, 2), (255, 2)]);
    assert_eq!(list(Some(0), 10, Order::Asc, 2), [(3, 8), (6, 9)]);
    assert_eq!(list(Some(4), 7, Order::Asc, 9), [(255, 2)]);
    assert_eq!(list(Some(255), 10, Order::Asc, 9), []);
    assert_eq!(list(None, 10, Order::Desc, 2), [(255, 2), (6, 9)]);
    assert_eq!(list(Some(6), 10, Order::Desc, 9), [(3, 8), (0, 2)]);
    assert_eq!(list(Some(0), 10, Order::Desc, 9), []);
    assert_eq!(list(None, 1, Order::Desc, 9), []);
}
