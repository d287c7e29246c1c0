//! The suite, on real folders.

use std::path::PathBuf;
use std::sync::Mutex;

use super::*;
use crate::conformance::{self, Engine};

/// Opens each log in a folder of its own, all below one.
struct Folders {
    root: tempfile::TempDir,
    /// Folders of the logs that are open, newest last.
    opened: Mutex<Vec<(Arc<RocksLog>, PathBuf)>>,
}

impl Engine for Folders {
    fn open(&self) -> Arc<dyn Log> {
        let mut opened = self.opened.lock().unwrap();
        let folder = self.root.path().join(opened.len().to_string());
        let log = super::open(&folder);
        opened.push((Arc::clone(&log), folder));
        log
    }

    fn reopen(&self, log: Arc<dyn Log>) -> Option<Arc<dyn Log>> {
        log.close();
        let mut opened = self.opened.lock().unwrap();
        let (last, folder) = opened.last_mut().unwrap();
        assert!(
            std::ptr::addr_eq(Arc::as_ptr(last), Arc::as_ptr(&log)),
            "the newest is reopened"
        );
        *last = super::open(folder);
        Some(Arc::clone(last) as Arc<dyn Log>)
    }
}

#[test]
fn keeps_every_clause() {
    let folders = Folders {
        root: tempfile::tempdir().unwrap(),
        opened: Mutex::default(),
    };
    conformance::run(&folders);
}
