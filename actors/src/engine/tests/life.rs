//! Start, stop, and the whole way of a turn.

use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_storage::Log;
use serde_json::json;

use super::kit::{Boxed, BoxedLog, WS, config, count, eventually, query, request, run, runner};
use crate::code::Code;
use crate::engine::{Engine, EngineConfig, Health};
use crate::env::ManualWorld;
use crate::feed::follower::Follow;
use crate::session::command::{Command, ReceiptKey, Request, Submit};

#[test]
fn one_turn_from_the_message_to_its_end() {
    run(async {
        let b = Boxed::new(config());
        b.engine.enrol(runner(10)).await.expect("enrol");
        let id = b.create(&["hello"]).await;
        let mut follower = b.engine.follow(WS, id, 0, None).await.expect("follow");
        let grant = b.claim().await;
        assert_eq!(grant.session, id);
        assert_eq!(grant.granted.attempt, 1);
        let first: serde_json::Value = serde_json::from_slice(&grant.inputs[0]).expect("JSON");
        assert_eq!(first["content"], json!({"text": "hello"}));
        let token = grant.token;
        grant.confirm.delivered();
        b.call(token, "ready", json!({})).await.expect("ready");
        b.write(token, "hello yourself").await.expect("events");
        let settled = b
            .call(token, "settle", json!({"outcome": "succeeded"}))
            .await
            .expect("settle");
        assert_eq!(settled["status"], "idle");
        let shown = b.show(id).await;
        assert_eq!(shown["last_run"]["outcome"], "succeeded");
        let types = b.types(id).await;
        assert_eq!(types.first().map(String::as_str), Some("session.created"));
        assert_eq!(count(&types, "agent.message"), 1);
        let mut seen = Vec::new();
        while seen.len() < types.len() {
            let Follow::Event { kind, .. } = follower.next().await.expect("next") else {
                panic!("not an event")
            };
            seen.push(kind.text().to_owned());
        }
        assert_eq!(seen, types);
        let runs = b.engine.runs(WS, id, None, 10).await.expect("runs");
        assert_eq!(runs.items.len(), 1);
        assert_eq!(runs.items[0]["state"], "settled");
        let list = b.engine.list(WS, None, 10, None).await.expect("list");
        assert_eq!(list.items.len(), 1);
        b.engine.close().await;
        assert_eq!(follower.next().await, Ok(Follow::Closed));
        assert_eq!(b.say(id, "late").await.unwrap_err().code, Code::Stopped);
        assert_eq!(b.engine.health(), Health::Closed);
    });
}

#[test]
fn a_hundred_engines_one_after_the_other() {
    run(async {
        let world = ManualWorld::new(0);
        let log = BoxedLog::new();
        for round in 0..100u64 {
            let b = Boxed::on(world.clone(), log.clone(), EngineConfig::default());
            let id = b.create(&["hi"]).await;
            assert_eq!(b.show(id).await["untaken_inputs"], 1, "round {round}");
            b.engine.close().await;
            b.engine.close().await;
        }
        assert_eq!(
            log.health(),
            longhaul_storage::Health::Ok,
            "the log is its owner's to close"
        );
    });
}

#[test]
fn dropping_the_last_handle_stops_without_waiting() {
    run(async {
        let b = Boxed::new(config());
        let id = b.create(&[]).await;
        b.log.hold();
        let engine: Engine = b.engine.clone();
        let open = tokio::spawn(async move {
            let follower = engine.follow(WS, id, 0, None).await.expect("follow");
            drop(engine);
            follower
        });
        let mut follower = open.await.expect("task");
        let inner = std::sync::Arc::downgrade(&b.engine.inner);
        drop(b.engine);
        for _ in 0..2 {
            follower.next().await.expect("next");
            if follower.cursor() > 0 {
                break;
            }
        }
        drop(follower);
        eventually(|| inner.strong_count() == 0).await;
    });
}

#[test]
fn closing_answers_everything_that_was_taken() {
    run(async {
        let b = Boxed::new(config());
        let id = b.create(&[]).await;
        b.log.hold();
        let calls: Vec<_> = (0..20)
            .map(|n| {
                let engine = b.engine.clone();
                let command = super::kit::submit("user.message", json!({"text": n.to_string()}));
                tokio::spawn(async move { engine.command(id, command).await })
            })
            .collect();
        eventually(|| b.engine.stats().commands_open == 20 && b.log.held() == 1).await;
        let engine = b.engine.clone();
        let closing = tokio::spawn(async move { engine.close().await });
        eventually(|| b.engine.health() == Health::Closed).await;
        b.log.release();
        closing.await.expect("close");
        for call in calls {
            assert_eq!(call.await.expect("task").expect("accepted").status, 202);
        }
    });
}

#[test]
fn concurrent_commands_of_one_session_share_appends() {
    run(async {
        let b = Boxed::new(config());
        let id = b.create(&[]).await;
        let before = b.log.appends.load(Ordering::SeqCst);
        b.log.hold();
        let calls: Vec<_> = (0..200)
            .map(|n| {
                let engine = b.engine.clone();
                let command = super::kit::submit("user.message", json!({"text": n.to_string()}));
                tokio::spawn(async move { engine.command(id, command).await })
            })
            .collect();
        eventually(|| b.engine.stats().commands_open == 200 && b.log.held() == 1).await;
        b.log.release();
        for call in calls {
            call.await.expect("task").expect("accepted");
        }
        let appends = b.log.appends.load(Ordering::SeqCst) - before;
        assert!(appends <= 3, "{appends} appends for 200 commands");
        assert_eq!(count(&b.types(id).await, "user.message"), 200);
        assert_eq!(b.show(id).await["untaken_inputs"], 200);
        b.engine.close().await;
    });
}

#[test]
fn a_full_session_queue_is_busy_and_loses_nothing() {
    full_queue(EngineConfig {
        command_queue_len_max: 4,
        ..config()
    });
}

#[test]
fn a_session_queue_full_of_bytes_is_busy_and_loses_nothing() {
    full_queue(EngineConfig {
        command_queue_bytes_max: 4 * r#"{"text":"1"}"#.len() + 3,
        ..config()
    });
}

/// A queue with room for four messages of one digit, beside the one being written.
fn full_queue(config: EngineConfig) {
    run(async {
        let b = Boxed::new(config);
        let id = b.create(&[]).await;
        b.log.hold();
        let say = |n: usize| {
            let engine = b.engine.clone();
            let command = super::kit::submit("user.message", json!({"text": n.to_string()}));
            tokio::spawn(async move { engine.command(id, command).await })
        };
        let mut calls = vec![say(0)];
        eventually(|| b.log.held() == 1).await;
        calls.extend((1..10).map(say));
        eventually(|| b.engine.stats().commands_open == 5).await;
        b.log.release();
        let mut accepted = 0;
        for call in calls {
            match call.await.expect("task") {
                Ok(_) => accepted += 1,
                Err(e) => assert_eq!(e.code, Code::Busy),
            }
        }
        assert_eq!(accepted, 5);
        assert_eq!(count(&b.types(id).await, "user.message"), 5);
        b.engine.close().await;
    });
}

#[test]
fn idle_sessions_leave_memory_and_come_back() {
    run(async {
        let b = Boxed::new(EngineConfig {
            idle_passivate_s: 10,
            sweep_s: 5,
            ..config()
        });
        let id = b.create(&["one"]).await;
        assert_eq!(b.engine.stats().sessions_live, 1);
        for round in 0..3 {
            eventually(|| {
                b.world.advance_ms(6_000);
                b.engine.stats().sessions_live == 0
            })
            .await;
            b.say(id, &round.to_string()).await.expect("say");
            assert_eq!(b.engine.stats().sessions_live, 1);
        }
        assert_eq!(count(&b.types(id).await, "user.message"), 4);
        b.engine.close().await;
    });
}

#[test]
fn passivation_races_with_commands_and_none_is_lost() {
    run(async {
        let b = Boxed::new(EngineConfig {
            idle_passivate_s: 0,
            sweep_s: 1,
            ..config()
        });
        let id = b.create(&[]).await;
        for n in 0..300 {
            b.world.advance_ms(1_500);
            b.say(id, &n.to_string()).await.expect("say");
        }
        assert_eq!(count(&b.types(id).await, "user.message"), 300);
        b.engine.close().await;
    });
}

#[test]
fn an_unknown_session_takes_no_memory() {
    run(async {
        let b = Boxed::new(config());
        let id = b.engine.new_session_id();
        assert_eq!(
            b.say(id, "x").await.unwrap_err().code,
            Code::SessionNotFound
        );
        assert_eq!(
            b.engine.show(WS, id).await.unwrap_err().code,
            Code::SessionNotFound
        );
        let read = b.engine.events(WS, id, query(0)).await;
        assert_eq!(read.unwrap_err().code, Code::SessionNotFound);
        let followed = b.engine.follow(WS, id, 0, None).await;
        assert_eq!(followed.err().map(|e| e.code), Some(Code::SessionNotFound));
        eventually(|| b.engine.stats().sessions_live == 0).await;
        b.engine.close().await;
    });
}

#[test]
fn an_erased_session_is_gone_and_purged() {
    run(async {
        let b = Boxed::new(config());
        let (id, token) = b.running().await;
        b.write(token, "secret").await.expect("events");
        let mut follower = b.engine.follow(WS, id, 0, None).await.expect("follow");
        let erased = b.ask(id, Command::Erase(request())).await.expect("erase");
        assert_eq!(erased["erased"], true);
        while follower.next().await.expect("next") != Follow::Erased {}
        assert_eq!(b.say(id, "x").await.unwrap_err().code, Code::SessionErased);
        assert_eq!(
            b.write(token, "x").await.unwrap_err().code,
            Code::SessionErased
        );
        assert_eq!(
            b.engine.show(WS, id).await.unwrap_err().code,
            Code::SessionErased
        );
        let read = b.engine.events(WS, id, query(0)).await;
        assert_eq!(read.unwrap_err().code, Code::SessionErased);
        assert_eq!(
            b.create_as(id, &[]).await.unwrap_err().code,
            Code::SessionErased
        );
        let again = b
            .ask(id, Command::Erase(request()))
            .await
            .expect("idempotent");
        assert_eq!(again, erased);
        assert!(
            b.engine
                .list(WS, None, 10, None)
                .await
                .expect("list")
                .items
                .is_empty()
        );
        // Nothing keyed by it is left, nor the word that bytes remain.
        let log = b.log.clone();
        eventually(|| {
            let rows = longhaul_storage::read(&*log, |v| {
                let limit = longhaul_storage::PageLimit {
                    items_max: 100,
                    bytes_max: 1 << 20,
                };
                let tables = [1u8, 2, 3, 5, 6, 10];
                let order = longhaul_storage::Order::Asc;
                tables
                    .iter()
                    .map(|t| Ok(v.rows(&[*t], None, order, limit)?.len()))
                    .sum()
            });
            rows == Ok(0usize)
        })
        .await;
        b.engine.close().await;
    });
}

#[test]
fn after_a_restart_runs_go_on_while_commands_are_taken() {
    run(async {
        let b = Boxed::new(config());
        let (held, token) = b.running().await;
        let mut queued = Vec::new();
        for _ in 0..20 {
            queued.push(b.create(&["work"]).await);
        }
        let b = b.restart(config()).await;
        b.engine.enrol(runner(1_000)).await.expect("enrol");
        b.create(&[]).await;
        b.write(token, "still here")
            .await
            .expect("the claim lives on");
        let mut found = Vec::new();
        while found.len() < queued.len() {
            for grant in b.claims(7).await {
                found.push(grant.session);
                grant.confirm.delivered();
            }
        }
        found.sort_unstable();
        assert_eq!(found, queued);
        // Nobody renews the claim from before: it ends after one fresh lease.
        eventually(|| b.engine.stats().claims_live == 21).await;
        b.world.advance_ms(31_000);
        let shown = b.until(held, |s| s["status"] == "pending").await;
        assert_eq!(shown["run"]["attempts_lost"], 1);
        assert_eq!(
            b.write(token, "late").await.unwrap_err().code,
            Code::ClaimLost
        );
        b.engine.close().await;
    });
}

#[test]
fn a_dead_part_stops_the_engine_and_says_so() {
    run(async {
        let b = Boxed::new(config());
        let id = b.create(&[]).await;
        b.engine.inner.fail("a test".to_owned());
        assert_eq!(b.say(id, "x").await.unwrap_err().code, Code::Stopped);
        assert_eq!(
            b.engine.health(),
            Health::Failed {
                reason: "a test".to_owned()
            }
        );
        assert!(
            b.engine
                .claim(super::kit::RUNNER, 1, Duration::ZERO)
                .await
                .is_err()
        );
        b.engine.close().await;
    });
}

#[test]
fn answers_to_keys_are_swept_when_they_are_old_and_may_be_used_again() {
    run(async {
        let sweeping = EngineConfig {
            receipt_ttl_s: 3_600,
            sweep_s: 5,
            ..config()
        };
        let b = Boxed::new(sweeping);
        let id = b.create(&[]).await;
        let keyed = || {
            let receipt = Some(ReceiptKey {
                scope: [4; 16],
                body: [5; 16],
            });
            let request = Request {
                receipt,
                ..request()
            };
            let events = vec![super::kit::input("user.message", json!({"text": "once"}))];
            Command::Submit(Submit {
                request,
                expected_seq: None,
                events,
            })
        };
        b.ask(id, keyed()).await.expect("first");
        b.ask(id, keyed()).await.expect("again");
        let receipts = || {
            let rows = longhaul_storage::read(&*b.log.inner, |v| {
                let limit = longhaul_storage::PageLimit {
                    items_max: 10,
                    bytes_max: 1 << 20,
                };
                let order = longhaul_storage::Order::Asc;
                Ok(v.rows(
                    &crate::rows::table(crate::rows::SESSION_RECEIPT),
                    None,
                    order,
                    limit,
                )?
                .len())
            });
            rows.expect("readable")
        };
        b.world.advance_ms(1_800_000);
        b.world.advance_ms(6_000);
        assert_eq!(receipts(), 1);
        b.world.advance_ms(1_800_000);
        eventually(|| {
            b.world.advance_ms(6_000);
            receipts() == 0
        })
        .await;
        b.ask(id, keyed()).await.expect("a new request");
        assert_eq!(count(&b.types(id).await, "user.message"), 2);
        b.engine.close().await;
    });
}
