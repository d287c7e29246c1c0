//! Rows of now, and the conditions on them.

use super::kit::{WIDE, append, put, row, rows, view};
use super::{Clause, Engine};
use crate::log::{AppendError, Condition, Order, PageLimit, RowChange};

pub(super) const CLAUSES: &[Clause] = &[
    Clause {
        name: "conditions are checked inside the commit",
        run: conditions,
    },
    Clause {
        name: "of two that need a row absent one wins",
        run: one_wins,
    },
    Clause {
        name: "conditions see the writes queued before them",
        run: queued,
    },
    Clause {
        name: "changes of rows apply in order",
        run: in_order,
    },
    Clause {
        name: "removing a prefix removes exactly its rows",
        run: prefix,
    },
    Clause {
        name: "rows are listed by prefix in both directions",
        run: list,
    },
];

fn conditions(engine: &dyn Engine) {
    let log = engine.open();
    append(
        &log,
        rows(vec![("a", Condition::Absent)], vec![put("a", "1")]),
    )
    .unwrap();
    let check = |condition: Condition| {
        append(&log, rows(vec![("a", condition)], vec![put("seen", "1")])).is_ok()
    };
    assert!(!check(Condition::Absent));
    assert!(check(Condition::Present));
    assert!(check(Condition::Unchanged("1".into())));
    assert!(!check(Condition::Unchanged("2".into())));
    assert!(!check(Condition::Unchanged("".into())));
    append(&log, rows(vec![], vec![RowChange::Delete("a".into())])).unwrap();
    assert!(check(Condition::Absent));
    assert!(!check(Condition::Present));
    assert!(!check(Condition::Unchanged("1".into())));
    let second = rows(
        vec![("a", Condition::Absent), ("a", Condition::Present)],
        vec![],
    );
    assert_eq!(
        append(&log, second),
        Err(AppendError::Condition { index: 1 })
    );
}

fn one_wins(engine: &dyn Engine) {
    let log = engine.open();
    for round in 0..20 {
        let key = format!("claim/{round}");
        let won = std::thread::scope(|scope| {
            let claims: Vec<_> = (0..4)
                .map(|who: u32| {
                    let (log, key) = (&log, &key);
                    scope.spawn(move || {
                        let mine = put(key, &who.to_string());
                        append(log, rows(vec![(key, Condition::Absent)], vec![mine])).is_ok()
                    })
                })
                .collect();
            claims
                .into_iter()
                .map(|c| c.join().unwrap())
                .collect::<Vec<_>>()
        });
        assert_eq!(won.iter().filter(|w| **w).count(), 1);
        let who: usize = row(&log, &key).unwrap().parse().unwrap();
        assert!(won[who]);
    }
}

fn queued(engine: &dyn Engine) {
    let log = engine.open();
    append(&log, rows(vec![], vec![put("dir/old", "1")])).unwrap();
    let unchanged = |v: &'static str| Condition::Unchanged(v.into());
    let writes = vec![
        (
            rows(vec![("n", Condition::Absent)], vec![put("n", "1")]),
            true,
        ),
        (
            rows(vec![("n", Condition::Absent)], vec![put("n", "x")]),
            false,
        ),
        (rows(vec![("n", unchanged("1"))], vec![put("n", "2")]), true),
        (
            rows(vec![("n", unchanged("1"))], vec![put("n", "x")]),
            false,
        ),
        (
            rows(
                vec![("n", unchanged("2"))],
                vec![RowChange::Delete("n".into())],
            ),
            true,
        ),
        (
            rows(vec![("n", Condition::Present)], vec![put("n", "x")]),
            false,
        ),
        (
            rows(
                vec![("dir/old", Condition::Present)],
                vec![put("dir/new", "1")],
            ),
            true,
        ),
        (
            rows(vec![], vec![RowChange::DeletePrefix("dir/".into())]),
            true,
        ),
        (rows(vec![("dir/old", Condition::Present)], vec![]), false),
        (rows(vec![("dir/new", Condition::Present)], vec![]), false),
        (
            rows(
                vec![("dir/old", Condition::Absent)],
                vec![put("dir/old", "2")],
            ),
            true,
        ),
        (
            rows(vec![("dir/old", unchanged("2"))], vec![put("end", "1")]),
            true,
        ),
    ];
    let pending: Vec<_> = writes
        .into_iter()
        .map(|(w, ok)| (log.append(w), ok))
        .collect();
    for (n, (answer, ok)) in pending.into_iter().enumerate() {
        assert_eq!(answer.wait().is_ok(), ok, "write {n}");
    }
    let value = |key| row(&log, key);
    assert_eq!((value("n"), value("dir/new")), (None, None));
    assert_eq!(value("dir/old").as_deref(), Some("2"));
    assert_eq!(value("end").as_deref(), Some("1"));
}

fn in_order(engine: &dyn Engine) {
    let log = engine.open();
    let changes = vec![
        put("a/1", "first"),
        put("a/1", "second"),
        put("a/2", "gone"),
        RowChange::DeletePrefix("a/".into()),
        put("a/3", "kept"),
        put("b", "x"),
        RowChange::Delete("b".into()),
        RowChange::Delete("never".into()),
    ];
    append(&log, rows(vec![], changes)).unwrap();
    let all = view(&log, |v| v.rows(b"", None, Order::Asc, WIDE)).unwrap();
    assert_eq!(all, [("a/3".into(), "kept".into())]);
    // The same over writes that are queued together, whatever streams they belong to.
    let pending: Vec<_> = (0..50)
        .map(|n| {
            let last = if n % 2 == 0 {
                put("c", &n.to_string())
            } else {
                put("d", "x")
            };
            let wipe = RowChange::DeletePrefix("c".into());
            log.append(rows(vec![], vec![wipe, last]))
        })
        .collect();
    pending.into_iter().for_each(|p| {
        p.wait().unwrap();
    });
    assert_eq!(row(&log, "c"), None);
    assert_eq!(row(&log, "d").as_deref(), Some("x"));
}

fn prefix(engine: &dyn Engine) {
    let log = engine.open();
    let keys: [&[u8]; 7] = [b"a", b"b", b"b/", b"b/1", b"b/\xff\xff", b"b0", b"c"];
    let puts = |keys: &[&[u8]]| {
        keys.iter()
            .map(|k| RowChange::Put(k.to_vec().into(), "v".into()))
            .collect()
    };
    append(&log, rows(vec![], puts(&keys))).unwrap();
    append(
        &log,
        rows(vec![], vec![RowChange::DeletePrefix("b/".into())]),
    )
    .unwrap();
    let left = view(&log, |v| v.rows(b"", None, Order::Asc, WIDE)).unwrap();
    let left: Vec<_> = left.iter().map(|(k, _)| k.as_ref()).collect();
    assert_eq!(left, [b"a".as_ref(), b"b", b"b0", b"c"]);
    append(&log, rows(vec![], puts(&[b"b/2"]))).unwrap();
    assert_eq!(
        row(&log, "b/2").as_deref(),
        Some("v"),
        "the prefix takes rows again"
    );
}

fn list(engine: &dyn Engine) {
    let log = engine.open();
    let puts = ["p/1", "p/2", "p/3", "p/4", "q/1", "o/9"].map(|k| put(k, "value"));
    append(&log, rows(vec![], puts.to_vec())).unwrap();
    let list = |after: Option<&str>, order, items_max, bytes_max| {
        let limit = PageLimit {
            items_max,
            bytes_max,
        };
        let after = after.map(str::as_bytes);
        let rows = view(&log, |v| v.rows(b"p/", after, order, limit)).unwrap();
        rows.iter().map(|(k, _)| k[2] - b'0').collect::<Vec<_>>()
    };
    let max = usize::MAX;
    assert_eq!(list(None, Order::Asc, max, max), [1, 2, 3, 4]);
    assert_eq!(list(None, Order::Desc, max, max), [4, 3, 2, 1]);
    assert_eq!(list(Some("p/2"), Order::Asc, 1, max), [3]);
    assert_eq!(list(Some("p/3"), Order::Desc, 1, max), [2]);
    assert_eq!(list(None, Order::Asc, max, 16), [1, 2]);
    assert_eq!(list(None, Order::Asc, max, 0), [1]);
    assert_eq!(list(Some("p/4"), Order::Asc, max, max), []);
    assert_eq!(list(Some("p/1"), Order::Desc, max, max), []);
    // Cursors outside the prefix do not lead out of it.
    assert_eq!(list(Some("a"), Order::Asc, max, max), [1, 2, 3, 4]);
    assert_eq!(list(Some("z"), Order::Desc, max, max), [4, 3, 2, 1]);
    assert_eq!(list(Some("z"), Order::Asc, max, max), []);
    assert_eq!(list(Some("a"), Order::Desc, max, max), []);
}
