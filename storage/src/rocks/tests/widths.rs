//! Positions go on where their width changes.

use super::*;
use crate::log::SegmentRef;
use crate::rocks::batch::Batch;
use crate::stream_row::StreamRow;
use crate::table::{Sink, Table};

/// A stream that stands at `seq`, as if all before it were shared.
fn seed(log: &RocksLog, stream: StreamId, seq: u64) {
    let shared = vec![SegmentRef {
        id: crate::log::SegmentId([0xee; 16]),
        through: seq,
    }];
    let row = StreamRow::with_shared(stream, shared, [7; 32]);
    let mut batch = Batch::new(log.shared.ids, 0);
    batch.put(Table::Streams, &stream.0, &[&row.encode()]);
    let (submission, pending) = Submission::unconditional(batch);
    log.shared.queue.push(submission).unwrap();
    pending.wait().unwrap();
}

#[test]
fn four_appends_at_every_edge_survive_a_restart_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let edges = [9_999, 99_999, (1 << 31) - 2, (1 << 32) - 2];
    let log = open(folder.path());
    for (n, edge) in (1..).zip(edges) {
        seed(&log, id(n), edge);
        let mut end = Appended {
            last_seq: edge,
            last_hash: [7; 32],
        };
        for count in 1..=4 {
            end = append(&log, write(id(n), at(end), &[&format!("{count}")])).unwrap();
            assert_eq!(end.last_seq, edge + count);
        }
    }
    log.flush();
    log.close();
    let log = open(folder.path());
    let all = PageLimit {
        items_max: usize::MAX,
        bytes_max: usize::MAX,
    };
    for (n, edge) in (1..).zip(edges) {
        let expected: Vec<_> = (edge + 1..=edge + 4).collect();
        for order in [Order::Asc, Order::Desc] {
            let page = read(log.as_ref(), |v| {
                v.records(id(n), edge, u64::MAX, order, all)
            });
            let mut seqs: Vec<_> = page.unwrap().iter().map(|r| r.seq).collect();
            seqs.sort_unstable();
            assert_eq!(seqs, expected);
        }
        let head = read(log.as_ref(), |v| v.head(id(n))).unwrap().unwrap();
        assert_eq!(head.last_seq, edge + 4);
    }
}
