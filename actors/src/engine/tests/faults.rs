//! Deaths, conflicts and outcomes that nobody knows.

use longhaul_storage::{AppendError, Expect, Log, StreamId, StreamWrite, Write};
use serde_json::json;

use super::kit::{Boxed, Fault, WS, config, count, eventually, now, run, submit};
use crate::code::Code;
use crate::feed::follower::Follow;

#[test]
fn a_conflict_reloads_and_the_commands_are_decided_anew() {
    run(async {
        let b = Boxed::new(config());
        let id = b.create(&[]).await;
        for _ in 0..3 {
            b.log
                .fail(Fault::Refuse(AppendError::Conflict { actual: 9 }));
        }
        b.say(id, "at the fourth try").await.expect("say");
        for _ in 0..4 {
            b.log
                .fail(Fault::Refuse(AppendError::Conflict { actual: 9 }));
        }
        assert_eq!(b.say(id, "never").await.unwrap_err().code, Code::Busy);
        b.say(id, "again").await.expect("say");
        assert_eq!(count(&b.types(id).await, "user.message"), 2);
        b.engine.close().await;
    });
}

#[test]
fn an_unknown_outcome_is_said_and_the_log_is_read_again() {
    run(async {
        let b = Boxed::new(config());
        let id = b.create(&[]).await;
        let mut follower = b.engine.follow(WS, id, 1, None).await.expect("follow");
        for (written, text) in [(true, "written"), (false, "not written")] {
            b.log.fail(Fault::Unknown(written));
            assert_eq!(
                b.say(id, text).await.unwrap_err().code,
                Code::OutcomeUnknown
            );
        }
        b.say(id, "after").await.expect("say");
        let types = b.types(id).await;
        assert_eq!(count(&types, "user.message"), 2);
        assert_eq!(count(&types, "run.queued"), 1, "the state was read again");
        while follower.cursor() < types.len() as u64 {
            let Follow::Event { seq, .. } = follower.next().await.expect("next") else {
                panic!("an end")
            };
            assert!(seq <= types.len() as u64);
        }
        b.engine.close().await;
    });
}

#[test]
fn a_session_actor_that_dies_with_a_hundred_commands_queued_loses_none() {
    run(async {
        let b = Boxed::new(config());
        let (id, token) = b.running().await;
        b.log.hold();
        let calls: Vec<_> = (0..100)
            .map(|n| {
                let engine = b.engine.clone();
                let command = submit("user.message", json!({"text": n.to_string()}));
                tokio::spawn(async move { engine.command(id, command).await })
            })
            .collect();
        eventually(|| b.engine.stats().commands_open == 100 && b.log.held() == 1).await;
        let slot = b.engine.inner.directory.find(id).expect("in memory");
        let first = slot.addr();
        b.engine.crash_session(id);
        // The dead actor's write lands after its successor is there.
        eventually(|| slot.addr().is_some_and(|a| Some(a) != first)).await;
        b.log.release();
        let mut failed = 0;
        for call in calls {
            match call.await.expect("task") {
                Ok(answer) => assert_eq!(answer.status, 202),
                Err(e) if e.code == Code::Internal => failed += 1,
                Err(e) => assert!(e.code.is_retryable(), "{e}"),
            }
        }
        assert!(failed <= 1, "{failed} failed");
        assert_eq!(count(&b.types(id).await, "user.message"), 101 - failed);
        b.write(token, "the claim is still watched")
            .await
            .expect("events");
        b.say(id, "next").await.expect("say");
        b.world.advance_ms(31_000);
        b.until(id, |s| s["run"]["attempts_lost"] == 1).await;
        b.engine.close().await;
    });
}

#[test]
fn a_session_that_dies_again_and_again_still_answers() {
    run(async {
        let b = Boxed::new(config());
        let id = b.create(&[]).await;
        for n in 0..20 {
            b.engine.crash_session(id);
            let said = b.say(id, &n.to_string()).await;
            assert!(said.is_ok(), "{said:?}");
        }
        assert_eq!(count(&b.types(id).await, "user.message"), 20);
        b.engine.close().await;
    });
}

#[test]
fn another_writer_is_met_at_the_commit() {
    run(async {
        let b = Boxed::new(config());
        let id = b.create(&[]).await;
        // Somebody else moves the log on: here, the session's own event written once more.
        let (record, head) = longhaul_storage::read(&*b.log.inner, |v| {
            let stream = StreamId(id.0);
            let head = v.head(stream)?.expect("head");
            let limit = longhaul_storage::PageLimit {
                items_max: 1,
                bytes_max: 1 << 20,
            };
            let asc = longhaul_storage::Order::Asc;
            Ok((v.records(stream, 0, 1, asc, limit)?.remove(0), head))
        })
        .expect("read");
        let event = crate::session::stored::event_of(&record).expect("event");
        let mut header = event.header.clone();
        header.id = crate::ids::EventId::with_seq([5; 16], 2);
        header.kind = crate::session::event::EventType::UserMessage;
        let new = crate::session::event::NewEvent {
            event: crate::session::event::Event {
                seq: 2,
                header,
                body: crate::session::payload::Body::Opaque,
            },
            content: bytes::Bytes::from_static(b"{\"text\":\"foreign\"}"),
        };
        let write = Write {
            stream: Some(StreamWrite {
                id: StreamId(id.0),
                expect: Expect::Last {
                    seq: head.last_seq,
                    hash: head.last_hash,
                },
                records: vec![crate::session::stored::new_record(&new, false)],
                history: Vec::new(),
                state: None,
                erase: false,
                expire: Vec::new(),
            }),
            ..Write::default()
        };
        now(b.log.inner.append(write)).expect("append");
        b.say(id, "mine").await.expect("say");
        assert_eq!(count(&b.types(id).await, "user.message"), 2);
        assert_eq!(b.show(id).await["untaken_inputs"], 2);
        b.engine.close().await;
    });
}

#[test]
fn a_closed_log_stops_everything() {
    run(async {
        let b = Boxed::new(config());
        let id = b.create(&[]).await;
        b.log.close();
        assert_eq!(b.say(id, "x").await.unwrap_err().code, Code::Stopped);
        assert!(!b.engine.health().is_ready());
        b.engine.close().await;
    });
}

#[test]
fn a_run_actor_that_dies_is_replaced_and_the_lease_still_ends() {
    run(async {
        let b = Boxed::new(config());
        let (id, token) = b.running().await;
        b.world.advance_ms(20_000);
        let slot = b.engine.inner.directory.find(id).expect("in memory");
        slot.addr()
            .expect("live")
            .do_send(crate::session::actor::CrashRun);
        // Renewed after the death: the successor knows of it.
        b.call(token, "heartbeat", json!({})).await.expect("alive");
        b.world.advance_ms(20_000);
        assert_eq!(b.show(id).await["status"], "running");
        b.world.advance_ms(11_000);
        b.until(id, |s| s["run"]["attempts_lost"] == 1).await;
        b.engine.close().await;
    });
}

/// A part dies, as a defect would make it.
#[derive(actix::Message)]
#[rtype(result = "()")]
struct Die;

macro_rules! mortal {
    ($($part:ty),*) => {$(
        impl actix::Handler<Die> for $part {
            type Result = ();
            fn handle(&mut self, _: Die, _: &mut Self::Context) {
                panic!("asked to");
            }
        }
    )*};
}

mortal!(
    crate::shard::Shard,
    crate::dispatch::actor::Dispatcher,
    crate::timer::durable::Durable,
    crate::engine::sweep::Sweeper,
    crate::checkpoint::supervisor::Supervisor
);

#[test]
fn the_death_of_any_part_is_reported_and_everything_is_answered() {
    run(async {
        for part in 0..5 {
            let b = Boxed::new(config());
            let id = b.create(&[]).await;
            b.log.hold();
            let calls: Vec<_> = (0..10)
                .map(|n| {
                    let engine = b.engine.clone();
                    let command = submit("user.message", json!({"text": n.to_string()}));
                    tokio::spawn(async move { engine.command(id, command).await })
                })
                .collect();
            eventually(|| b.engine.stats().commands_open == 10 && b.log.held() == 1).await;
            let parts = b.engine.inner.parts().expect("parts");
            match part {
                0 => parts.shards[0].do_send(Die),
                1 => parts.dispatcher.do_send(Die),
                2 => parts.durable.do_send(Die),
                3 => parts.sweeper.do_send(Die),
                _ => parts.checkpoints.do_send(Die),
            }
            eventually(|| matches!(b.engine.health(), crate::engine::Health::Failed { .. })).await;
            assert_eq!(b.say(id, "x").await.unwrap_err().code, Code::Stopped);
            b.log.release();
            for call in calls {
                match call.await.expect("task") {
                    // What was on its way to the log is still answered by what became of it.
                    Ok(answer) => assert_eq!(answer.status, 202),
                    Err(e) => assert_eq!(e.code, Code::Stopped, "{e}"),
                }
            }
            b.engine.close().await;
        }
    });
}
