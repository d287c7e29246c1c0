//! The claim protocol: leases and deadlines, deliveries, capacity, polls.

use std::time::Duration;

use serde_json::json;

use super::kit::{Boxed, RUNNER, WS, config, count, eventually, run, runner};
use crate::code::Code;
use crate::engine::EngineConfig;
use crate::limits::Limits;
use crate::session::command::{Bearer, Verb};

#[test]
fn a_silent_runner_loses_its_claim_after_one_lease_and_its_calls_are_fenced() {
    run(async {
        let b = Boxed::new(config());
        let (id, token) = b.running().await;
        b.world.advance_ms(29_000);
        b.call(token, "heartbeat", json!({}))
            .await
            .expect("renewed");
        b.world.advance_ms(29_000);
        b.write(token, "any accepted call renews")
            .await
            .expect("renewed");
        b.world.advance_ms(29_000);
        assert_eq!(b.show(id).await["status"], "running");
        // A refused call renews nothing.
        let bad = b.call(token, "events", json!({"n": 7, "events": []})).await;
        assert!(bad.is_err());
        b.world.advance_ms(1_001);
        b.until(id, |s| s["run"]["blocked_by"] == "backoff").await;
        let lost = b.write(token, "late").await.unwrap_err();
        assert_eq!(
            (lost.code, &lost.extras["reason"]),
            (Code::ClaimLost, &json!("lease"))
        );
        b.world.advance_ms(1_000);
        let again = b.claim().await;
        assert_eq!((again.session, again.granted.attempt), (id, 2));
        b.engine.close().await;
    });
}

#[test]
fn a_runner_that_is_never_ready_loses_the_run_after_the_start_up_time() {
    run(async {
        let limits = Limits {
            startup_s_max: 60,
            lease_s: 100,
            ..Limits::default()
        };
        let b = Boxed::new(EngineConfig { limits, ..config() });
        b.engine.enrol(runner(5)).await.expect("enrol");
        let id = b.create(&["hi"]).await;
        let (_, token) = b.claimed().await;
        eventually(|| b.engine.stats().claims_live == 1).await;
        b.world.advance_ms(59_000);
        b.call(token, "heartbeat", json!({})).await.expect("alive");
        assert_eq!(b.show(id).await["status"], "provisioning");
        b.world.advance_ms(1_001);
        let shown = b.until(id, |s| s["status"] == "pending").await;
        assert_eq!(shown["run"]["attempts_lost"], 1);
        let late = b.call(token, "ready", json!({})).await.unwrap_err();
        assert_eq!(
            (late.code, &late.extras["reason"]),
            (Code::ClaimLost, &json!("startup"))
        );
        b.engine.close().await;
    });
}

#[test]
fn the_absolute_deadline_fails_the_run_whatever_it_does() {
    run(async {
        let b = Boxed::new(config());
        let (id, token) = b.running().await;
        // Start-up 60 s and 120 s of work.
        for _ in 0..8 {
            b.world.advance_ms(20_000);
            b.call(token, "heartbeat", json!({})).await.expect("alive");
        }
        b.world.advance_ms(19_900);
        assert_eq!(b.show(id).await["status"], "running");
        b.world.advance_ms(200);
        let shown = b.until(id, |s| s["status"] == "idle").await;
        assert_eq!(
            shown["last_run"]["error"]["code"],
            "runtime.turn_deadline_exceeded"
        );
        let lost = b.call(token, "heartbeat", json!({})).await.unwrap_err();
        assert_eq!(lost.extras["reason"], "deadline");
        b.engine.close().await;
    });
}

#[test]
fn a_step_of_the_wall_clock_requeues_nobody_and_hides_no_dead_runner() {
    run(async {
        let b = Boxed::new(config());
        let (id, token) = b.running().await;
        b.world.jump_wall_ms(2 * 3_600 * 1_000);
        b.world.advance_ms(10_000);
        b.call(token, "heartbeat", json!({})).await.expect("alive");
        assert_eq!(b.show(id).await["status"], "running");
        b.world.jump_wall_ms(-4 * 3_600 * 1_000);
        b.world.advance_ms(31_000);
        b.until(id, |s| s["status"] == "pending").await;
        b.engine.close().await;
    });
}

#[test]
fn attempts_run_out() {
    run(async {
        let limits = Limits {
            attempts_max: 2,
            ..Limits::default()
        };
        let b = Boxed::new(EngineConfig { limits, ..config() });
        let (id, _) = b.running().await;
        b.world.advance_ms(31_000);
        b.until(id, |s| s["status"] == "pending").await;
        b.world.advance_ms(1_000);
        b.claim().await.confirm.delivered();
        b.until(id, |s| s["run"]["state"] == "claimed").await;
        eventually(|| b.engine.stats().claims_live == 1).await;
        b.world.advance_ms(31_000);
        let shown = b.until(id, |s| s["status"] == "idle").await;
        assert_eq!(
            shown["last_run"]["error"]["code"],
            "runtime.attempts_exhausted"
        );
        b.engine.close().await;
    });
}

#[test]
fn an_undelivered_claim_comes_back_without_an_attempt() {
    run(async {
        let b = Boxed::new(config());
        b.engine.enrol(runner(5)).await.expect("enrol");
        let id = b.create(&["hi"]).await;
        // Granted, and dropped before it was delivered.
        let grant = b.claim().await;
        let token = grant.token;
        drop(grant);
        let again = b.claim().await;
        assert_eq!(again.session, id);
        assert_ne!(again.token, token);
        again.confirm.delivered();
        assert_eq!(b.show(id).await["run"]["attempts_lost"], 0);
        assert_eq!(count(&b.types(id).await, "run.requeued"), 1);
        b.engine.close().await;
    });
}

#[test]
fn a_poll_that_goes_away_takes_no_run_along() {
    run(async {
        let b = Boxed::new(config());
        b.engine.enrol(runner(5)).await.expect("enrol");
        let long = Duration::from_secs(3_600);
        let engine = b.engine.clone();
        let gone = tokio::spawn(async move { engine.claim(RUNNER, 1, long).await });
        eventually(|| b.engine.inner.liveness.is_live(RUNNER)).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        let id = b.create(&["hi"]).await;
        assert_eq!(b.claim().await.session, id);
        // Gone while the session is being asked: the claim is committed, then given back.
        let second = b.create(&["hi"]).await;
        b.log.hold();
        let engine = b.engine.clone();
        let gone = tokio::spawn(async move { engine.claim(RUNNER, 1, long).await });
        eventually(|| b.log.held() > 0).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        b.log.release();
        let mut got = Vec::new();
        while !got.contains(&second) {
            got.push(b.claim().await.session);
        }
        b.engine.close().await;
    });
}

#[test]
fn a_poll_ends_empty_when_its_time_is_over() {
    run(async {
        let b = Boxed::new(config());
        b.engine.enrol(runner(5)).await.expect("enrol");
        assert!(
            b.engine
                .claim(RUNNER, 1, Duration::ZERO)
                .await
                .expect("claim")
                .claims
                .is_empty()
        );
        let engine = b.engine.clone();
        let poll =
            tokio::spawn(async move { engine.claim(RUNNER, 1, Duration::from_secs(5)).await });
        let world = b.world.clone();
        eventually(|| {
            world.advance_ms(1_000);
            poll.is_finished()
        })
        .await;
        assert!(poll.await.expect("task").expect("claim").claims.is_empty());
        let unknown = b
            .engine
            .claim(crate::ids::RunnerId([1; 16]), 1, Duration::ZERO)
            .await;
        assert_eq!(unknown.unwrap_err().code, Code::RunnerNotFound);
        b.engine.close().await;
    });
}

#[test]
fn capacity_and_draining_hold_runs_back_and_are_named() {
    run(async {
        let b = Boxed::new(config());
        let early = b.create(&["nobody there"]).await;
        b.until(early, |s| s["run"]["blocked_by"] == "no_runner")
            .await;
        b.engine.enrol(runner(1)).await.expect("enrol");
        let (_, token) = b.claimed().await;
        let second = b.create(&["full"]).await;
        b.until(second, |s| s["run"]["blocked_by"] == "capacity")
            .await;
        assert!(
            b.engine
                .claim(RUNNER, 1, Duration::ZERO)
                .await
                .expect("claim")
                .claims
                .is_empty()
        );
        b.call(token, "ready", json!({})).await.expect("ready");
        b.call(token, "settle", json!({"outcome": "succeeded"}))
            .await
            .expect("settle");
        b.engine.drain(RUNNER).await.expect("drain");
        let refused = b.engine.claim(RUNNER, 1, Duration::ZERO).await;
        assert_eq!(refused.unwrap_err().code, Code::RunnerDraining);
        b.until(second, |s| s["run"]["blocked_by"] == "no_runner")
            .await;
        b.engine.enrol(runner(1)).await.expect("enrol");
        assert_eq!(b.claim().await.session, second);
        b.engine.close().await;
    });
}

#[test]
fn a_paused_engine_serves_everything_and_hands_out_nothing() {
    run(async {
        let b = Boxed::new(EngineConfig {
            claims_paused: true,
            ..config()
        });
        b.engine.enrol(runner(5)).await.expect("enrol");
        let id = b.create(&["hi"]).await;
        assert!(
            b.engine
                .claim(RUNNER, 1, Duration::ZERO)
                .await
                .expect("claim")
                .claims
                .is_empty()
        );
        b.until(id, |s| s["run"]["blocked_by"] == "paused_start")
            .await;
        b.engine.close().await;
    });
}

#[test]
fn numbered_calls_repeat_their_answer_also_after_a_restart() {
    run(async {
        let b = Boxed::new(config());
        let (id, token) = b.running().await;
        let event = json!({"type": "agent.message", "content": {"text": "once"}});
        let body = json!({"n": 1, "events": [event]});
        let first = b.call(token, "events", body.clone()).await.expect("events");
        assert_eq!(
            b.call(token, "events", body.clone()).await.expect("again"),
            first
        );
        let gap = b
            .call(token, "heartbeat", json!({"n": 3}))
            .await
            .unwrap_err();
        assert_eq!(
            (gap.code, &gap.extras["expected"]),
            (Code::OutOfOrder, &json!(2))
        );
        b.call(token, "heartbeat", json!({"n": 2}))
            .await
            .expect("next");
        let b = b.restart(config()).await;
        assert_eq!(b.call(token, "events", body).await.expect("again"), first);
        b.call(token, "heartbeat", json!({"n": 3}))
            .await
            .expect("next");
        assert_eq!(count(&b.types(id).await, "agent.message"), 1);
        b.engine.close().await;
    });
}

#[test]
fn a_long_poll_for_inputs_ends_with_the_input_and_keeps_the_lease() {
    run(async {
        let b = Boxed::new(config());
        let (id, token) = b.running().await;
        let engine = b.engine.clone();
        let wait = Duration::from_secs(120);
        let poll = tokio::spawn(async move {
            engine
                .attempt(Bearer::Trusted, token, None, Verb::Inputs, wait)
                .await
        });
        eventually(|| b.engine.inner.feed.channel(id).is_some()).await;
        // The open poll is a sign of life, given again at each beat. A beat that the poll begins to
        // wait for only after the clock has moved comes with the next move, before the lease is over.
        let inner = &b.engine.inner;
        let given = |now| eventually(move || inner.liveness.of(RUNNER).last() >= now);
        for _ in 0..8 {
            b.world.advance_ms(10_000);
            let now = inner.timer.now();
            let soon = tokio::time::timeout(Duration::from_secs(1), given(now));
            if soon.await.is_err() {
                b.world.advance_ms(10_000);
                given(inner.timer.now()).await;
            }
            assert_eq!(b.show(id).await["status"], "running");
        }
        assert!(!poll.is_finished());
        b.say(id, "more").await.expect("say");
        let answer = poll.await.expect("task").expect("inputs");
        let body: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(body["inputs"][0]["content"]["text"], "more");
        b.engine.close().await;
    });
}

#[test]
fn a_parked_run_goes_on_with_its_answer_or_its_time_out() {
    run(async {
        let b = Boxed::new(config());
        let (id, token) = b.running().await;
        let ask = json!({"type": "agent.question", "content": {"questions": [{"text": "?"}]}});
        let wrote = b
            .call(token, "events", json!({"events": [ask]}))
            .await
            .expect("events");
        let question = wrote["events"][0]["id"].clone();
        let park = json!({"waiting_on": [{"question_id": question}], "compute": "released"});
        let parked = b.call(token, "park", park).await.expect("park");
        assert_eq!(parked["state"], "parked");
        assert_eq!(b.show(id).await["status"], "paused");
        let answer = json!({"question_id": question, "answers": [["yes"]]});
        b.submit(id, "user.question_answer", answer)
            .await
            .expect("answer");
        let grant = b.claim().await;
        assert!(grant.granted.continues.is_some());
        assert_eq!(grant.inputs.len(), 1);
        let token = grant.token;
        grant.confirm.delivered();
        b.call(token, "ready", json!({})).await.expect("ready");
        // A signal that never comes: a durable timer ends the wait.
        let wait =
            json!({"waiting_on": [{"signal": "go", "timeout_ms": 5_000}], "compute": "released"});
        b.call(token, "park", wait).await.expect("park");
        let b = b.restart(config()).await;
        b.engine.enrol(runner(5)).await.expect("enrol");
        assert_eq!(b.show(id).await["status"], "paused");
        let world = b.world.clone();
        b.until(id, |s| {
            world.advance_ms(500);
            s["status"] == "pending"
        })
        .await;
        let types = b.types(id).await;
        assert_eq!(count(&types, "item.closed"), 2);
        assert!(
            b.engine
                .runs(WS, id, None, 10)
                .await
                .expect("runs")
                .items
                .len()
                >= 3
        );
        b.engine.close().await;
    });
}
