//! Opening and closing: locks, formats, torn tails, damage.

use std::collections::BTreeMap;

use super::*;
use crate::log::OpenError;
use crate::rocks::folder::{FORMAT_FILE, LOCK_FILE};

#[test]
fn a_folder_opens_and_closes_a_hundred_times_without_a_lock_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut end = None;
    for n in 1..=100 {
        let log = open(folder.path());
        let expect = end.map_or(Expect::New, at);
        // A reader that is inside when the log is closed.
        std::thread::scope(|scope| {
            let (entered, wait) = std::sync::mpsc::channel();
            let reader = &log;
            scope.spawn(move || {
                read(reader.as_ref(), |v| {
                    entered.send(()).unwrap();
                    v.head(id(1))
                })
            });
            wait.recv().unwrap();
            end = Some(append(&log, write(id(1), expect, &["x"])).unwrap());
            log.close();
        });
        assert_eq!(end.unwrap().last_seq, n);
    }
    let info_logs = bytes_of(folder.path())
        .keys()
        .filter(|p| p.file_name().unwrap().to_str().unwrap().starts_with("LOG"))
        .count();
    assert!(
        info_logs <= small().info_log_files_max + 1,
        "{info_logs} info logs are left"
    );
    assert_eq!(contents(&open(folder.path()), id(1)).len(), 100);
}

#[test]
fn a_dropped_log_lets_go_of_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let log = open(folder.path());
        let shared = Arc::clone(&log.shared);
        drop(log);
        // The writer ends by itself; closing again waits for it.
        while shared.health() != Health::Closed {
            std::thread::yield_now();
        }
        while Arc::strong_count(&shared) > 1 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_second_opening_names_the_holder_and_harms_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    let refused = RocksLog::open(folder.path(), small()).unwrap_err();
    let OpenError::Locked {
        folder: named,
        holder,
    } = &refused
    else {
        panic!("{refused}")
    };
    assert_eq!(named, &folder.path().display().to_string());
    assert_eq!(*holder, Some(std::process::id()));
    append(&log, write(id(1), Expect::New, &["fine"])).unwrap();
    let refused = crate::verify::verify(folder.path(), &mut |_, _| Ok(()));
    assert!(matches!(refused, Err(OpenError::Locked { .. })));
    log.close();
    open(folder.path()).close();
}

fn assert_refused_untouched(folder: &Path) -> OpenError {
    let before = bytes_of(folder);
    let refused = RocksLog::open(folder, small()).unwrap_err();
    let named = folder.display().to_string();
    assert!(
        refused.to_string().contains(&named),
        "{refused} names the folder"
    );
    assert_eq!(
        bytes_of(folder),
        before,
        "{refused}: files are left untouched"
    );
    refused
}

#[test]
fn a_newer_format_is_refused_before_the_engine_opens() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).close();
    std::fs::write(
        folder.path().join(FORMAT_FILE),
        "longhaul storage format 7\n",
    )
    .unwrap();
    // Without the lock file it would have to be made.
    std::fs::remove_file(folder.path().join(LOCK_FILE)).unwrap();
    let refused = assert_refused_untouched(folder.path());
    assert!(
        matches!(
            refused,
            OpenError::NewerFormat {
                found: 7,
                supported: 1,
                ..
            }
        ),
        "{refused}"
    );
    std::fs::write(
        folder.path().join(FORMAT_FILE),
        "longhaul storage format x\n",
    )
    .unwrap();
    let refused = assert_refused_untouched(folder.path());
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
}

#[test]
fn a_newer_format_inside_the_database_is_refused_too() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    let newer = log
        .shared
        .gate
        .enter()
        .unwrap()
        .put(META_FORMAT, 9u32.to_be_bytes());
    newer.unwrap();
    log.close();
    for with_stamp in [true, false] {
        if !with_stamp {
            std::fs::remove_file(folder.path().join(FORMAT_FILE)).unwrap();
        }
        let refused = RocksLog::open(folder.path(), small()).unwrap_err();
        assert!(
            matches!(refused, OpenError::NewerFormat { found: 9, .. }),
            "{refused}"
        );
    }
}

#[test]
fn a_lost_stamp_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).close();
    std::fs::remove_file(folder.path().join(FORMAT_FILE)).unwrap();
    open(folder.path()).close();
    let stamp = std::fs::read_to_string(folder.path().join(FORMAT_FILE)).unwrap();
    assert_eq!(stamp, "longhaul storage format 1\n");
}

/// A folder with twenty acknowledged records, all of them in one write-ahead file.
fn in_write_ahead_log() -> (tempfile::TempDir, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    let mut expect = Expect::New;
    for n in 0..20 {
        expect = at(append(&log, write(id(1), expect, &[&format!("content {n}")])).unwrap());
    }
    let contents = contents(&log, id(1));
    log.close();
    (folder, contents)
}

#[test]
fn a_torn_tail_is_cut() {
    let (folder, all) = in_write_ahead_log();
    let original = std::fs::read(write_ahead_file(folder.path())).unwrap();
    let record = original.len() / 20;
    for cut in [1, 5, record / 2, record, 3 * record + 11] {
        let copy = tempfile::tempdir().unwrap();
        for (path, bytes) in bytes_of(folder.path()) {
            if path.ends_with(closed::CLOSED_FILE) {
                // As after a crash.
                continue;
            }
            std::fs::write(copy.path().join(path.file_name().unwrap()), bytes).unwrap();
        }
        let wal = write_ahead_file(copy.path());
        std::fs::write(&wal, &original[..original.len() - cut]).unwrap();
        let log = open(copy.path());
        let kept = contents(&log, id(1));
        assert_eq!(kept, all[..kept.len()]);
        assert!(
            kept.len() < 20 && kept.len() >= 19 - cut / (record - 5),
            "{} kept",
            kept.len()
        );
        let last = records(&log, id(1)).pop().unwrap();
        let end = Appended {
            last_seq: last.seq,
            last_hash: last.hash,
        };
        append(&log, write(id(1), at(end), &["goes on"])).unwrap();
        log.close();
        assert_eq!(contents(&open(copy.path()), id(1)).len(), kept.len() + 1);
    }
}

#[test]
fn damage_before_the_tail_is_refused_with_all_files_untouched() {
    let (folder, _) = in_write_ahead_log();
    let files = bytes_of(folder.path());
    let manifest = prescan::manifest(folder.path()).unwrap().unwrap();
    let wal = write_ahead_file(folder.path());
    for (path, offsets) in [
        (
            wal.clone(),
            (0..files[&wal].len()).step_by(101).collect::<Vec<_>>(),
        ),
        (
            manifest.clone(),
            (0..files[&manifest].len()).step_by(53).collect(),
        ),
        (folder.path().join("CURRENT"), vec![0, 8, 14]),
    ] {
        for offset in offsets {
            let mut flipped: BTreeMap<_, _> = files.clone();
            flipped.get_mut(&path).unwrap()[offset] ^= 0x40;
            std::fs::write(&path, &flipped[&path]).unwrap();
            let refused = assert_refused_untouched(folder.path());
            assert!(
                matches!(refused, OpenError::Damaged { .. }),
                "{}: {refused}",
                path.display()
            );
            std::fs::write(&path, &files[&path]).unwrap();
        }
    }
    assert_eq!(contents(&open(folder.path()), id(1)).len(), 20);
}

#[test]
fn a_write_ahead_file_that_is_not_as_it_was_closed_is_refused() {
    let (folder, _) = in_write_ahead_log();
    let wal = write_ahead_file(folder.path());
    let bytes = std::fs::read(&wal).unwrap();
    let name = wal.display().to_string();
    let refused = || {
        let refused = assert_refused_untouched(folder.path());
        assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
        assert!(refused.to_string().contains(&name), "{refused}");
    };
    std::fs::remove_file(&wal).unwrap();
    refused();
    std::fs::write(&wal, &bytes[..bytes.len() / 2]).unwrap();
    refused();
    std::fs::write(&wal, &bytes).unwrap();
    assert_eq!(contents(&open(folder.path()), id(1)).len(), 20);
}

#[test]
fn a_damaged_record_is_an_error_of_its_stream_and_not_a_shorter_one() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    let marker = "the record that will be damaged";
    append(&log, write(id(1), Expect::New, &["a", marker, "c"])).unwrap();
    append(&log, write(id(2), Expect::New, &["fine"])).unwrap();
    log.flush();
    log.close();
    let mut hit = 0;
    for (path, mut bytes) in bytes_of(folder.path()) {
        let found = bytes
            .windows(marker.len())
            .position(|w| w == marker.as_bytes());
        if let Some(at) = found
            && path.extension().is_some_and(|e| e == "sst")
        {
            bytes[at] ^= 1;
            std::fs::write(path, bytes).unwrap();
            hit += 1;
        }
    }
    assert_eq!(hit, 1);
    let log = open(folder.path());
    let all = PageLimit {
        items_max: usize::MAX,
        bytes_max: usize::MAX,
    };
    for order in [Order::Asc, Order::Desc] {
        let damaged = read(log.as_ref(), |v| v.records(id(1), 0, u64::MAX, order, all));
        let Err(ReadError::Damaged { stream, .. }) = damaged else {
            panic!("{damaged:?}")
        };
        assert_eq!(stream, id(1));
    }
    let refused = append(
        &log,
        write(
            id(1),
            Expect::Last {
                seq: 3,
                hash: [0; 32],
            },
            &["d"],
        ),
    );
    assert!(
        matches!(refused, Err(AppendError::Unreadable(_))),
        "{refused:?}"
    );
    assert_eq!(log.health(), Health::Ok);
}
