//! Resume blobs: kept beside the log, given to the attempt that goes on from them, gone with
//! their checkpoint.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use longhaul_storage::{Order, PageLimit, RowChange, Write};
use serde_json::{Value, json};

use super::kit::{Boxed, WS, check, config, count, now, request, run};
use crate::code::Code;
use crate::engine::{EngineConfig, ForkRequest};
use crate::ids::{ClaimToken, SessionId};
use crate::limits::Limits;
use crate::rows;
use crate::session::blob::BLOB_BYTES_MAX;
use crate::session::command::Command;
use crate::session::payload::{ResumePlan, Selector};

/// A checkpoint with a blob (empty = with none).
async fn keep(b: &Boxed, token: ClaimToken, name: &str, blob: &[u8]) -> String {
    let snapshot = json!({"id": name, "provider": "ext", "retention": "platform", "bytes": 1});
    let mut body = json!({"snapshot": snapshot});
    if !blob.is_empty() {
        let text = STANDARD.encode(blob);
        body["resume"] = json!({"kind": "blob", "data_base64": text, "schema": "v1"});
    }
    let made = b.call(token, "checkpoint", body).await.expect("made");
    made["checkpoint_id"].as_str().expect("an id").to_owned()
}

/// The blobs that are stored, all sessions.
fn blobs(b: &Boxed) -> Vec<(Bytes, Bytes)> {
    let all = PageLimit {
        items_max: 1_000,
        bytes_max: 1 << 30,
    };
    let table = rows::table(rows::BLOB);
    longhaul_storage::read(&*b.log.inner, |v| v.rows(&table, None, Order::Asc, all)).expect("read")
}

fn named(plan: &ResumePlan) -> String {
    match plan {
        ResumePlan::Checkpoint { id, .. } => id.to_string(),
        other => panic!("{other:?}"),
    }
}

async fn listed(b: &Boxed, id: SessionId) -> Vec<Value> {
    b.engine.checkpoints(WS, id).await.expect("listed")
}

#[test]
fn a_blob_comes_back_with_the_claim_and_is_nowhere_else() {
    run(async {
        let b = Boxed::new(config());
        let (id, token) = b.running().await;
        keep(&b, token, "a", b"the harness's own").await;
        b.call(token, "release", json!({})).await.expect("released");
        let grant = b.claim().await;
        assert_eq!(
            grant.granted.blob.as_deref(),
            Some(&b"the harness's own"[..])
        );
        grant.confirm.delivered();
        let resume = &listed(&b, id).await[0]["resume"];
        assert_eq!(
            (&resume["kind"], &resume["size"], &resume["schema"]),
            (&json!("blob"), &json!(17), &json!("v1"))
        );
        let text = STANDARD.encode("the harness's own");
        let log = b
            .engine
            .events(WS, id, super::kit::query(0))
            .await
            .expect("log");
        for event in log.events {
            assert!(!String::from_utf8_lossy(&event).contains(&text));
        }
        check(&b, id);
        // A restart changes nothing; erasing takes it along.
        let b = b.restart(config()).await;
        assert_eq!(blobs(&b).len(), 1);
        b.ask(id, Command::Erase(request())).await.expect("erased");
        assert_eq!(blobs(&b), []);
        b.engine.close().await;
    });
}

#[test]
fn a_blob_that_is_not_what_was_said_is_rejected_once_and_the_next_is_used() {
    run(async {
        let b = Boxed::new(config());
        let (id, token) = b.running().await;
        let first = keep(&b, token, "a", b"first").await;
        for name in ["b", "c"] {
            keep(&b, token, name, b"later").await;
        }
        let stored = blobs(&b);
        let damage = vec![
            RowChange::Put(stored[1].0.clone(), Bytes::from_static(b"LATER")),
            RowChange::Delete(stored[2].0.clone()),
        ];
        now(longhaul_storage::Log::append(
            &*b.log.inner,
            Write {
                rows: damage,
                ..Write::default()
            },
        ))
        .expect("damaged");
        b.call(token, "release", json!({})).await.expect("released");
        let grant = b.claim().await;
        assert_eq!(named(&grant.granted.resume), first);
        assert_eq!(grant.granted.blob.as_deref(), Some(&b"first"[..]));
        let token = grant.token;
        grant.confirm.delivered();
        assert_eq!(count(&b.types(id).await, "checkpoint.rejected"), 2);
        let reasons: Vec<_> = listed(&b, id)
            .await
            .iter()
            .map(|c| c["rejected"].clone())
            .collect();
        assert_eq!(
            reasons,
            [
                json!("its resume blob is gone"),
                json!("its resume blob has another digest"),
                Value::Null
            ]
        );
        b.call(token, "ready", json!({})).await.expect("ready");
        b.call(token, "release", json!({})).await.expect("released");
        assert_eq!(named(&b.claim().await.granted.resume), first);
        assert_eq!(count(&b.types(id).await, "checkpoint.rejected"), 2, "once");
        check(&b, id);
        b.engine.close().await;
    });
}

#[test]
fn blobs_go_with_their_checkpoints() {
    run(async {
        let limits = Limits {
            checkpoints_per_session_max: 2,
            checkpoint_ttl_s: 100,
            ..Limits::default()
        };
        let b = Boxed::new(EngineConfig { limits, ..config() });
        let (id, token) = b.running().await;
        for name in ["a", "b", "c"] {
            keep(&b, token, name, name.as_bytes()).await;
        }
        let kept: Vec<_> = blobs(&b).into_iter().map(|(_, v)| v).collect();
        assert_eq!(kept, ["b", "c"], "the oldest was pruned");
        b.call(token, "release", json!({})).await.expect("released");
        b.world.advance_ms(100_000);
        b.until(id, |_| blobs(&b).is_empty()).await;
        assert!(b.claim().await.granted.blob.is_none());
        check(&b, id);
        b.engine.close().await;
    });
}

#[test]
fn a_fork_has_its_own_copy() {
    run(async {
        let b = Boxed::new(config());
        let (source, token) = b.running().await;
        let made = keep(&b, token, "a", b"state").await;
        let engine = b.engine.clone();
        let checkpoint = made.parse().expect("an id");
        let fork = tokio::spawn(async move {
            let ask = ForkRequest {
                request: request(),
                source,
                selector: Selector::CheckpointId(checkpoint),
                principal: None,
                metadata: None,
                prompt: None,
            };
            engine.fork(ask).await
        });
        let offered = b
            .engine
            .claim(super::kit::RUNNER, 1, std::time::Duration::from_secs(3_600));
        let clone = offered
            .await
            .expect("offered")
            .clones
            .pop()
            .expect("a clone");
        b.engine
            .adopt_clone(
                crate::session::command::Bearer::Trusted,
                clone.token,
                "copy".to_owned(),
            )
            .await
            .expect("adopted");
        fork.await.expect("joined").expect("forked");
        b.ask(source, Command::Erase(request()))
            .await
            .expect("erased");
        assert_eq!(blobs(&b).len(), 1);
        b.say(clone.child, "on").await.expect("said");
        let grant = b.claim().await;
        assert_eq!(grant.session, clone.child);
        assert_eq!(grant.granted.blob.as_deref(), Some(&b"state"[..]));
        check(&b, clone.child);
        b.engine.close().await;
    });
}

#[test]
fn a_blob_has_a_mebibyte_at_most() {
    run(async {
        let b = Boxed::new(config());
        let (_, token) = b.running().await;
        keep(&b, token, "a", &vec![7; BLOB_BYTES_MAX]).await;
        let snapshot = json!({"id": "b", "provider": "ext", "retention": "platform"});
        let with = |data: String| json!({"snapshot": snapshot, "resume": {"kind": "blob", "data_base64": data}});
        for len in [BLOB_BYTES_MAX + 1, BLOB_BYTES_MAX * 2] {
            let body = with(STANDARD.encode(vec![7; len]));
            let refused = b.call(token, "checkpoint", body).await.unwrap_err();
            assert_eq!(refused.code, Code::BlobTooLarge);
        }
        let refused = b.call(token, "checkpoint", with("***".to_owned())).await;
        assert_eq!(refused.unwrap_err().code, Code::FieldInvalid);
        b.engine.close().await;
    });
}
