//! Contents that expire.

use std::sync::Arc;

use super::kit::{
    all_records, append, assert_whole, at, begin, go_on, head, id, put, record, row, view, write,
};
use super::{Clause, Engine};
use crate::log::{
    AppendError, Appended, CHAIN_START, ContentState, Expect, Log, Order, Record, Write,
};
use crate::plan::EXPIRE_MAX;

pub(super) const CLAUSES: &[Clause] = &[
    Clause {
        name: "expired contents are gone, and nothing else is",
        run: gone,
    },
    Clause {
        name: "an expiry is part of its write, and can be repeated",
        run: one_write,
    },
    Clause {
        name: "what another living stream shares does not expire",
        run: shared,
    },
    Clause {
        name: "an expiry waits for the fork queued before it",
        run: behind_a_fork,
    },
    Clause {
        name: "an expiry is bounded, ordered and behind its stream's end",
        run: malformed,
    },
    Clause {
        name: "what has expired is so after reopening",
        run: reopened,
    },
];

fn expire(n: u8, end: Appended, ranges: &[(u64, u64)]) -> Write {
    let mut expire = write(id(n), at(end), vec![]);
    expire.stream.as_mut().unwrap().expire = ranges.to_vec();
    expire
}

/// The stream's records, whose contents at `gone` have expired, and no others.
fn assert_expired(log: &Arc<dyn Log>, n: u8, count: u64, gone: &[u64]) -> Vec<Record> {
    let up = all_records(log, id(n));
    let mut down = view(log, |v| {
        v.records(id(n), 0, u64::MAX, Order::Desc, super::kit::WIDE)
    })
    .unwrap();
    down.reverse();
    assert_eq!(up, down);
    assert_eq!(up.len() as u64, count);
    for record in &up {
        let expired = gone.contains(&record.seq);
        let (state, content) = match expired {
            true => (ContentState::Expired, String::new()),
            false => (ContentState::Present, format!("content {}", record.seq)),
        };
        assert_eq!(
            (record.content_state, &*record.content),
            (state, content.as_bytes())
        );
        assert_eq!(record.header, format!("header of content {}", record.seq));
    }
    assert_eq!(head(log, id(n)).unwrap().last_seq, count);
    up
}

fn gone(engine: &dyn Engine) {
    let log = engine.open();
    let end = append(&log, begin(id(1), 6)).unwrap();
    append(&log, begin(id(2), 6)).unwrap();
    let before: Vec<_> = assert_whole(&log, id(1), 6)
        .iter()
        .map(|r| r.hash)
        .collect();
    assert_eq!(append(&log, expire(1, end, &[(2, 3), (5, 5)])), Ok(end));
    let after = assert_expired(&log, 1, 6, &[2, 3, 5]);
    assert_eq!(after.iter().map(|r| r.hash).collect::<Vec<_>>(), before);
    assert_whole(&log, id(2), 6);
    log.purge(id(1)).unwrap();
    assert_expired(&log, 1, 6, &[2, 3, 5]);
    let end = append(&log, go_on(id(1), end, 1)).unwrap();
    assert_eq!(end.last_seq, 7);
    assert_expired(&log, 1, 7, &[2, 3, 5]);
}

fn one_write(engine: &dyn Engine) {
    let log = engine.open();
    let end = append(&log, begin(id(1), 3)).unwrap();
    let mut both = expire(1, end, &[(1, 2)]);
    both.stream.as_mut().unwrap().records = vec![record("content 4")];
    both.rows = vec![put("a", "1")];
    let mut stale = both.clone();
    stale.stream.as_mut().unwrap().expect = Expect::Last {
        seq: 2,
        hash: CHAIN_START,
    };
    assert_eq!(
        append(&log, stale),
        Err(AppendError::Conflict { actual: 3 })
    );
    assert_whole(&log, id(1), 3);
    assert_eq!(row(&log, "a"), None);
    let end = append(&log, both).unwrap();
    assert_expired(&log, 1, 4, &[1, 2]);
    assert_eq!(row(&log, "a").as_deref(), Some("1"));
    append(&log, expire(1, end, &[(1, 3)])).unwrap();
    append(&log, expire(1, end, &[(1, 3)])).unwrap();
    assert_expired(&log, 1, 4, &[1, 2, 3]);
}

fn shared_through(log: &Arc<dyn Log>, n: u8) -> u64 {
    view(log, |v| v.shared_through(id(n))).unwrap()
}

fn shared(engine: &dyn Engine) {
    let log = engine.open();
    let parent = append(&log, begin(id(1), 6)).unwrap();
    assert_eq!(shared_through(&log, 1), 0);
    let fork = |from, at| Expect::Fork { from: id(from), at };
    let child = append(&log, write(id(2), fork(1, 3), vec![record("content 4")])).unwrap();
    let deep = append(&log, write(id(3), fork(2, 4), vec![record("content 5")])).unwrap();
    let through: Vec<_> = (1..=3).map(|n| shared_through(&log, n)).collect();
    assert_eq!(through, [3, 4, 4]);
    for (n, end, last) in [(1, parent, 6), (2, child, 4), (3, deep, 5)] {
        let refused = append(&log, expire(n, end, &[(3, 4)]));
        assert_eq!(refused, Err(AppendError::Conflict { actual: last }));
    }
    append(&log, expire(1, parent, &[(4, 6)])).unwrap();
    append(&log, expire(3, deep, &[(5, 5)])).unwrap();
    assert_expired(&log, 1, 6, &[4, 5, 6]);
    assert_whole(&log, id(2), 4);
    assert_expired(&log, 3, 5, &[5]);
    // Whoever is left last has everything to itself, segments of the erased included.
    for (n, end) in [(2, child), (1, parent)] {
        let mut erase = write(id(n), at(end), vec![]);
        erase.stream.as_mut().unwrap().erase = true;
        append(&log, erase).unwrap();
        log.purge(id(n)).unwrap();
    }
    assert_eq!(shared_through(&log, 3), 0);
    append(&log, expire(3, deep, &[(1, 4)])).unwrap();
    log.purge(id(3)).unwrap();
    assert_expired(&log, 3, 5, &[1, 2, 3, 4, 5]);
}

fn behind_a_fork(engine: &dyn Engine) {
    let log = engine.open();
    let end = append(&log, begin(id(1), 4)).unwrap();
    let fork = Expect::Fork { from: id(1), at: 2 };
    let forked = log.append(write(id(2), fork, vec![]));
    let refused = log.append(expire(1, end, &[(1, 4)]));
    let taken = log.append(expire(1, end, &[(3, 4)]));
    forked.wait().unwrap();
    assert_eq!(refused.wait(), Err(AppendError::Conflict { actual: 4 }));
    taken.wait().unwrap();
    assert_expired(&log, 1, 4, &[3, 4]);
    assert_whole(&log, id(2), 2);
}

fn malformed(engine: &dyn Engine) {
    let log = engine.open();
    let end = append(&log, begin(id(1), 4)).unwrap();
    let many = [(1, EXPIRE_MAX + 1)];
    let ranges: [&[(u64, u64)]; 6] = [
        &[(0, 1)],
        &[(3, 2)],
        &[(1, 5)],
        &[(2, 3), (3, 4)],
        &[(3, 3), (1, 1)],
        &many,
    ];
    for ranges in ranges {
        let refused = append(&log, expire(1, end, ranges));
        assert!(
            matches!(refused, Err(AppendError::Malformed(_))),
            "{ranges:?}"
        );
    }
    let mut new = begin(id(2), 1);
    new.stream.as_mut().unwrap().expire = vec![(1, 1)];
    let mut erase = expire(1, end, &[(1, 1)]);
    erase.stream.as_mut().unwrap().erase = true;
    for refused in [new, erase] {
        assert!(matches!(
            append(&log, refused),
            Err(AppendError::Malformed(_))
        ));
    }
    assert_whole(&log, id(1), 4);
}

fn reopened(engine: &dyn Engine) {
    let log = engine.open();
    let end = append(&log, begin(id(1), 3)).unwrap();
    append(&log, expire(1, end, &[(1, 2)])).unwrap();
    let Some(log) = engine.reopen(log) else {
        return;
    };
    assert_expired(&log, 1, 3, &[1, 2]);
    append(&log, go_on(id(1), end, 1)).unwrap();
    assert_expired(&log, 1, 4, &[1, 2]);
}
