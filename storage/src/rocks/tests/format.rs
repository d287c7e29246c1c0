//! Hand-laid batches against the engine's own.

use proptest::prelude::*;

use super::*;
use crate::rocks::batch::{Batch, Concatenation};
use crate::rocks::tables::family;
use crate::table::{KeyRange, Sink, Table, Tables};

#[derive(Debug, Clone)]
enum Change {
    Put(usize, Vec<u8>, Vec<Vec<u8>>),
    Delete(usize, Vec<u8>),
    DeleteRange(usize, Vec<u8>, Vec<u8>),
}

fn any_change() -> impl Strategy<Value = Change> {
    let bytes = |max| prop::collection::vec(any::<u8>(), 0..max);
    let table = 0..Table::ALL.len();
    prop_oneof![
        (
            table.clone(),
            bytes(200),
            prop::collection::vec(bytes(20_000), 0..3)
        )
            .prop_map(|(t, k, v)| Change::Put(t, k, v)),
        (table.clone(), bytes(200)).prop_map(|(t, k)| Change::Delete(t, k)),
        (table, bytes(200), bytes(200)).prop_map(|(t, f, e)| Change::DeleteRange(t, f, e)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn joined_batches_are_what_the_engine_would_write(
        writes in prop::collection::vec(prop::collection::vec(any_change(), 0..5), 0..5),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let log = open(folder.path());
        let db = log.shared.gate.enter().unwrap();
        let ids = FamilyIds::learn(&db).unwrap();
        let mut theirs = WriteBatch::new();
        let mut ours = Vec::new();
        for changes in &writes {
            let mut batch = Batch::new(ids, 0);
            for change in changes {
                match change {
                    Change::Put(t, key, value) => {
                        let parts: Vec<_> = value.iter().map(Vec::as_slice).collect();
                        batch.put(Table::ALL[*t], key, &parts);
                        theirs.put_cf(family(&db, Table::ALL[*t]).unwrap(), key, value.concat());
                    }
                    Change::Delete(t, key) => {
                        batch.delete(Table::ALL[*t], key);
                        theirs.delete_cf(family(&db, Table::ALL[*t]).unwrap(), key);
                    }
                    Change::DeleteRange(t, from, to) => {
                        batch.delete_range(Table::ALL[*t], from, to);
                        theirs.delete_range_cf(family(&db, Table::ALL[*t]).unwrap(), from, to);
                    }
                }
            }
            ours.push(batch);
        }
        let joined = Concatenation::default().join(ours.iter());
        prop_assert_eq!(joined.data(), theirs.data());
        prop_assert_eq!(joined.len(), theirs.len());
    }
}

#[test]
fn joined_batches_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    {
        let db = log.shared.gate.enter().unwrap();
        let ids = FamilyIds::learn(&db).unwrap();
        let mut first = Batch::new(ids, 0);
        let mut second = Batch::new(ids, 0);
        let long = vec![7; 70_000];
        for (n, table) in Table::ALL.into_iter().enumerate() {
            first.put(table, b"gone", &[b"x"]);
            first.put(table, b"p1", &[b"x"]);
            second.put(table, b"kept", &[b"va", &[n as u8], b"lue"]);
            second.put(table, b"long", &[&long]);
            second.delete(table, b"gone");
            second.delete_range(table, b"p", b"q");
        }
        let joined = Concatenation::default().join([&first, &second].into_iter());
        db.write(joined).unwrap();
        let tables = DbTables::snapshot(&db);
        for (n, table) in Table::ALL.into_iter().enumerate() {
            let kept = tables.get(table, b"kept").unwrap().unwrap();
            assert_eq!(kept, [b"va".as_slice(), &[n as u8], b"lue"].concat());
            assert_eq!(tables.get(table, b"long").unwrap().unwrap(), long);
            assert_eq!(tables.get(table, b"gone").unwrap(), None);
            let range = KeyRange::prefix(b"p");
            assert_eq!(
                tables.first(table, range, crate::log::Order::Asc).unwrap(),
                None
            );
        }
    }
    log.close();
}
