//! Codes of a storage that fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use longhaul::Runtime;
use longhaul_storage::{
    AppendError, Health, Log, MemoryLog, Pending, ReadError, StreamId, View, Write,
};
use serde_json::json;

use super::Seen;
use crate::http::kit::{Site, absent, config, id, runner};

const SOUND: u8 = 0;
const FULL: u8 = 1;
const BUSY: u8 = 2;
const UNKNOWN: u8 = 3;
const UNREADABLE: u8 = 4;
const BROKEN: u8 = 5;
const DAMAGED: u8 = 6;

/// A log that fails when told.
struct Moody {
    log: Arc<MemoryLog>,
    mood: AtomicU8,
}

impl Log for Moody {
    fn append(&self, write: Write) -> Pending {
        let failed = match self.mood.load(Ordering::SeqCst) {
            FULL => AppendError::Full {
                folder: "here".into(),
            },
            BUSY => AppendError::Busy,
            UNKNOWN => AppendError::Unknown {
                cause: "a test".into(),
            },
            _ => return self.log.append(write),
        };
        Pending::ready(Err(failed))
    }

    fn view(&self, f: &mut dyn FnMut(&dyn View)) -> Result<(), ReadError> {
        match self.mood.load(Ordering::SeqCst) {
            UNREADABLE => Err(ReadError::Closed),
            DAMAGED => Err(ReadError::Damaged {
                stream: StreamId([0; 16]),
                seq: 1,
                reason: "a test".into(),
            }),
            BROKEN => Err(ReadError::Engine("a test".into())),
            _ => self.log.view(f),
        }
    }

    fn purge(&self, stream: StreamId) -> Result<(), ReadError> {
        self.log.purge(stream)
    }

    fn health(&self) -> Health {
        self.log.health()
    }

    fn close(&self) {
        self.log.close();
    }
}

pub(super) async fn faults(seen: &mut Seen) {
    let log = Arc::new(Moody {
        log: MemoryLog::new(),
        mood: AtomicU8::new(SOUND),
    });
    let opened = Runtime::builder(config()).log(log.clone()).open().await;
    let site = Site::serve(opened.unwrap());
    let make = || site.post("/v1/runners", runner());
    let known = id(&make().await.must(201));
    let session = site.session().await;
    let say = |text: &str| {
        let content = json!({ "text": text });
        site.submit(&session, "user.message", content)
    };
    let before = site.last_seq(&session).await;
    for (mood, code) in [
        (FULL, "storage.full"),
        (BUSY, "runtime.busy"),
        (UNKNOWN, "storage.outcome_unknown"),
    ] {
        log.mood.store(mood, Ordering::SeqCst);
        seen.take(make().await, code);
        seen.take(say("lost").await, code);
    }
    for (mood, code) in [
        (UNREADABLE, "storage.unavailable"),
        (BROKEN, "runtime.internal"),
    ] {
        log.mood.store(mood, Ordering::SeqCst);
        let path = format!("/v1/deployments/{}", absent("dep_"));
        seen.take(site.get(&path).await, code);
        let events = format!("/v1/sessions/{session}/events");
        seen.take(site.get(&events).await, code);
    }
    log.mood.store(DAMAGED, Ordering::SeqCst);
    let events = format!("/v1/sessions/{session}/events");
    seen.take(site.get(&events).await, "session.damaged");
    log.mood.store(SOUND, Ordering::SeqCst);
    let seq = say("kept").await.must(202)["events"][0]["seq"].clone();
    assert_eq!(
        seq,
        before + 1,
        "what failed wrote nothing, and left nothing behind"
    );
    site.post(&format!("/v1/runners/{known}/claims"), json!({}))
        .await
        .must(200);
    site.runtime.engine().close().await;
    seen.take(site.get("/readyz").await, "runtime.stopped");
    site.close().await;
}
