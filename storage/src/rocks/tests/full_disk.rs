//! A disk that is really full: a small one of its own, in a process of its own.

use std::process::Command;

use super::*;

const FOLDER: &str = "LONGHAUL_FULL_DISK_TEST_FOLDER";
const NAME: &str = "rocks::tests::full_disk::writes_come_back_when_there_is_room";

#[test]
fn writes_come_back_when_there_is_room() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return fill_and_free(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    // Mounting needs a user namespace, which not every machine gives: `faults` has the same
    // course of events with injected errors.
    let script = "mount -t tmpfs -o size=48m tmpfs \"$1\" || exit 77; exec \"$2\" --exact \"$3\"";
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(folder.path())
        .arg(std::env::current_exe().unwrap())
        .arg(NAME)
        .env(FOLDER, folder.path())
        .output();
    match output {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.contains("1 passed"), "{text}");
        }
        Ok(output) if output.status.code() == Some(101) => {
            panic!("{}", String::from_utf8_lossy(&output.stdout));
        }
        other => eprintln!("no disk can be mounted here, so none was filled: {other:?}"),
    }
}

fn fill_and_free(disk: &Path) {
    let folder = disk.join("log");
    let ballast = disk.join("ballast");
    let log = RocksLog::open(
        &folder,
        Options {
            probe_bytes: 16 << 20,
            ..small()
        },
    )
    .unwrap();
    let big = "x".repeat(100_000);
    let mut end = append(&log, write(id(1), Expect::New, &["first"])).unwrap();
    std::fs::write(&ballast, vec![1; 30 << 20]).unwrap();
    let mut acknowledged = 1;
    let refused = loop {
        match append(&log, write(id(1), at(end), &[&big])) {
            Ok(new) => {
                end = new;
                acknowledged += 1;
            }
            Err(refused) => break refused,
        }
    };
    assert!(acknowledged > 10);
    let full = AppendError::Full {
        folder: folder.display().to_string(),
    };
    assert_eq!(refused, full);
    for _ in 0..3 {
        assert_eq!(
            append(&log, write(id(2), Expect::New, &[&big])),
            Err(full.clone())
        );
        assert_eq!(contents(&log, id(1)).len(), acknowledged, "reads go on");
        assert_eq!(log.health(), Health::Full);
    }
    std::fs::remove_file(&ballast).unwrap();
    while log.health() != Health::Ok {
        std::thread::yield_now();
    }
    for _ in 0..3 {
        end = append(&log, write(id(1), at(end), &["after"])).unwrap();
    }
    assert_eq!(contents(&log, id(1)).len(), acknowledged + 3);
    log.close();
    let log = open(&folder);
    assert_eq!(contents(&log, id(1)).len(), acknowledged + 3);
    assert_eq!(read(log.as_ref(), |v| v.head(id(2))).unwrap(), None);
    log.close();
    assert!(
        crate::verify::verify(&folder, &mut |_, _| Ok(()))
            .unwrap()
            .is_clean()
    );
}
