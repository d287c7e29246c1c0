//! Followers: history and live events joined, each at its own speed.

use serde_json::json;

use super::kit::{Boxed, Fault, WS, config, eventually, run};
use crate::code::Code;
use crate::engine::EngineConfig;
use crate::feed::follower::{Follow, Follower};
use crate::session::event::EventType;
use crate::session::status::Status;

async fn seqs(follower: &mut Follower, through: u64) -> Vec<u64> {
    let mut out = Vec::new();
    while follower.cursor() < through {
        match follower.next().await.expect("next") {
            Follow::Event { seq, .. } => out.push(seq),
            other => panic!("{other:?}"),
        }
    }
    out
}

#[test]
fn history_and_live_events_join_without_gap_under_load() {
    run(async {
        // A small ring, so that slow followers fall out of it.
        let b = Boxed::new(EngineConfig {
            feed_events_max: 8,
            ..config()
        });
        let (id, token) = b.running().await;
        let engine = b.engine.clone();
        let writer = async {
            for n in 0..400 {
                b.write(token, &n.to_string()).await.expect("events");
                if n % 7 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            b.show(id).await["last_seq"].as_u64().expect("last_seq")
        };
        let reader = |after: u64, slow: bool| {
            let engine = engine.clone();
            async move {
                let mut follower = engine.follow(WS, id, after, None).await.expect("follow");
                let mut seen = after;
                while seen < 400 {
                    let Follow::Event { seq, .. } = follower.next().await.expect("next") else {
                        panic!("an end")
                    };
                    assert_eq!(seq, seen + 1, "gap-free and in order");
                    seen = seq;
                    if slow && seq % 3 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
            }
        };
        let readers = (0..20u64).map(|n| reader(n % 5, n % 2 == 0));
        let (last, _) = tokio::join!(writer, futures_util::future::join_all(readers));
        assert!(last > 400);
        assert_eq!(b.engine.stats().followers, 0, "permits come back");
        b.engine.close().await;
    });
}

#[test]
fn filters_keep_the_cursor_moving_and_ends_are_told() {
    run(async {
        let b = Boxed::new(config());
        let (id, token) = b.running().await;
        let types = Some(vec![EventType::AgentMessage]);
        let mut follower = b.engine.follow(WS, id, 0, types).await.expect("follow");
        b.write(token, "one").await.expect("events");
        let Follow::Event { kind, seq, .. } = follower.next().await.expect("next") else {
            panic!("an end")
        };
        assert_eq!(kind, EventType::AgentMessage);
        b.ask(
            id,
            crate::session::command::Command::Cancel(super::kit::request()),
        )
        .await
        .expect("cancel");
        assert_eq!(follower.next().await, Ok(Follow::Ended(Status::Canceled)));
        assert!(follower.cursor() > seq);
        // One that comes later sees everything, then the end.
        let last = b.show(id).await["last_seq"].as_u64().expect("last_seq");
        let mut late = b.engine.follow(WS, id, 0, None).await.expect("follow");
        assert_eq!(seqs(&mut late, last).await.len() as u64, last);
        assert_eq!(late.next().await, Ok(Follow::Ended(Status::Canceled)));
        b.engine.close().await;
    });
}

#[test]
fn a_cursor_past_the_end_and_too_many_followers_are_refused() {
    run(async {
        let b = Boxed::new(EngineConfig {
            followers_max: 2,
            ..config()
        });
        let id = b.create(&[]).await;
        let past = b
            .engine
            .follow(WS, id, 99, None)
            .await
            .err()
            .map(|e| e.code);
        assert_eq!(past, Some(Code::CursorInvalid));
        let one = b.engine.follow(WS, id, 0, None).await.expect("follow");
        let _two = b.engine.follow(WS, id, 0, None).await.expect("follow");
        let third = b.engine.follow(WS, id, 0, None).await.err().map(|e| e.code);
        assert_eq!(third, Some(Code::StreamsFull));
        drop(one);
        assert!(b.engine.follow(WS, id, 0, None).await.is_ok());
        b.engine.close().await;
    });
}

#[test]
fn a_failed_append_is_never_seen() {
    run(async {
        let b = Boxed::new(config());
        let id = b.create(&[]).await;
        let mut follower = b.engine.follow(WS, id, 1, None).await.expect("follow");
        let full = longhaul_storage::AppendError::Full {
            folder: "/full".into(),
        };
        b.log.fail(Fault::Refuse(full));
        assert_eq!(b.say(id, "lost").await.unwrap_err().code, Code::StorageFull);
        assert_eq!(b.show(id).await["last_seq"], 1);
        b.say(id, "kept").await.expect("say");
        let Follow::Event { seq, json, .. } = follower.next().await.expect("next") else {
            panic!("an end")
        };
        assert_eq!(seq, 2, "a failed append takes no number");
        let event: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
        assert_eq!(event["content"], json!({"text": "kept"}));
        b.engine.close().await;
    });
}

#[test]
fn followers_share_one_serialisation_and_only_followed_sessions_keep_a_ring() {
    run(async {
        let b = Boxed::new(config());
        let (id, token) = b.running().await;
        assert!(b.engine.inner.feed.channel(id).is_none());
        let after = b.show(id).await["last_seq"].as_u64().expect("last_seq");
        let mut one = b.engine.follow(WS, id, after, None).await.expect("follow");
        let mut two = b.engine.follow(WS, id, after, None).await.expect("follow");
        b.write(token, "shared").await.expect("events");
        let (Ok(Follow::Event { json: a, .. }), Ok(Follow::Event { json: b2, .. })) =
            (one.next().await, two.next().await)
        else {
            panic!("not events")
        };
        assert_eq!(a.as_ptr(), b2.as_ptr());
        drop((one, two));
        eventually(|| b.engine.inner.feed.channel(id).is_none()).await;
        b.engine.close().await;
    });
}
