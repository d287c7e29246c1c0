//! Random commands, faults, deaths and restarts against one rule: what was acknowledged is in
//! the log once and in order, and every row is what a fold of the log says.
//!
//! `SEED=n` repeats one of them.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_storage::AppendError;
use serde_json::{Value, json};

use super::kit::{Boxed, Fault, RUNNER, WS, check, config, query, run, runner};
use crate::code::{Code, Kind};
use crate::engine::{ClaimGrant, EngineConfig};
use crate::ids::SessionId;

/// A small generator (SplitMix64): the same seed, the same test.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

#[derive(Default)]
struct Model {
    /// Texts by session: `true` = acknowledged, `false` = nobody knows.
    said: BTreeMap<SessionId, Vec<(String, bool)>>,
    grants: Vec<ClaimGrant>,
    count: u64,
}

fn settings() -> EngineConfig {
    EngineConfig {
        idle_passivate_s: 20,
        sweep_s: 5,
        feed_events_max: 4,
        ..config()
    }
}

async fn step(b: &Boxed, dice: &mut Dice, m: &mut Model) {
    let ids: Vec<SessionId> = m.said.keys().copied().collect();
    let some = |dice: &mut Dice| ids[dice.roll(ids.len() as u64) as usize];
    match dice.roll(16) {
        0..=4 => {
            let id = some(dice);
            let calls = (0..=dice.roll(4)).map(|_| {
                m.count += 1;
                let text = format!("t{}", m.count);
                async move { (b.say(id, &text).await, text) }
            });
            let calls: Vec<_> = calls.collect();
            for (answer, text) in futures_util::future::join_all(calls).await {
                let known = match answer {
                    Ok(_) => true,
                    Err(e) if e.code == Code::OutcomeUnknown => false,
                    // A command that its actor died of may have been written before.
                    Err(e) if e.code == Code::Internal => false,
                    Err(e) => {
                        assert_ne!(e.code.info().kind, Kind::Fault, "{e}");
                        continue;
                    }
                };
                m.said.entry(id).or_default().push((text, known));
            }
        }
        5 | 6 => {
            let got = b
                .engine
                .claim(RUNNER, 3, Duration::ZERO)
                .await
                .unwrap_or_default();
            m.grants.extend(got.claims);
        }
        7..=9 => {
            if m.grants.is_empty() {
                return;
            }
            let at = dice.roll(m.grants.len() as u64) as usize;
            let token = m.grants[at].token;
            let answer = match dice.roll(6) {
                0 => {
                    b.call(token, "settle", json!({"outcome": "succeeded"}))
                        .await
                }
                1 => b.call(token, "release", json!({})).await,
                2 => b.call(token, "inputs", json!({})).await,
                3 | 4 => b.call(token, "ready", json!({})).await,
                _ => b.write(token, "out").await,
            };
            if answer.is_err_and(|e| e.code == Code::ClaimLost) {
                let grant = m.grants.swap_remove(at);
                grant.confirm.delivered();
            }
        }
        10 => {
            let fault = match dice.roll(5) {
                0 => Fault::Refuse(AppendError::Busy),
                1 => Fault::Refuse(AppendError::Conflict { actual: 0 }),
                2 => Fault::Refuse(AppendError::Full {
                    folder: "/x".into(),
                }),
                n => Fault::Unknown(n == 3),
            };
            b.log.fail(fault);
        }
        11 => b.engine.crash_session(some(dice)),
        12 => b.world.advance_ms(dice.roll(12_000)),
        13 => {
            let back = i64::try_from(dice.roll(7_200_000)).expect("small") - 3_600_000;
            b.world.jump_wall_ms(back);
        }
        14 => {
            drop(b.submit(some(dice), "user.interrupt", json!({})).await);
        }
        _ => {
            let id = b.engine.new_session_id();
            if b.create_as(id, &[]).await.is_ok() {
                m.said.insert(id, Vec::new());
            }
        }
    }
}

/// Every text of a session, in the order of the log.
async fn texts(b: &Boxed, id: SessionId) -> Vec<String> {
    let mut out = Vec::new();
    let (mut after, mut seq) = (Some(0), 0);
    while let Some(from) = after {
        let page = b.engine.events(WS, id, query(from)).await.expect("events");
        for event in &page.events {
            let event: Value = serde_json::from_slice(event).expect("JSON");
            seq += 1;
            assert_eq!(event["seq"], seq);
            if event["type"] == "user.message" {
                out.push(event["content"]["text"].as_str().expect("text").to_owned());
            }
        }
        after = page.next_after;
    }
    out
}

async fn verify(b: &Boxed, m: &Model) {
    for (id, said) in &m.said {
        let found = texts(b, *id).await;
        for (text, known) in said {
            let times = found.iter().filter(|t| *t == text).count();
            assert!(
                times == 1 || (times == 0 && !known),
                "{text} of {id}: {times} times"
            );
        }
        check(b, *id);
    }
}

fn one(seed: u64) {
    run(async {
        let mut dice = Dice(seed);
        let mut b = Boxed::new(settings());
        b.engine.enrol(runner(50)).await.expect("enrol");
        let mut m = Model::default();
        for _ in 0..3 {
            m.said.insert(b.create(&[]).await, Vec::new());
        }
        for n in 1..=240 {
            step(&b, &mut dice, &mut m).await;
            if n % 80 == 0 {
                // Those of the old engine give their claims back to it, or are delivered.
                m.grants.drain(..).for_each(|g| g.confirm.delivered());
                b = b.restart(settings()).await;
                b.engine.enrol(runner(50)).await.expect("enrol");
                verify(&b, &m).await;
            }
        }
        // Left alone, nothing stays in a state that only a runner could end.
        m.grants.drain(..).for_each(|g| g.confirm.delivered());
        for id in m.said.keys() {
            let world = b.world.clone();
            b.until(*id, |s| {
                world.advance_ms(10_000);
                s["status"] != "provisioning" && s["status"] != "running"
            })
            .await;
        }
        b.engine.close().await;
    });
}

#[test]
fn acknowledged_means_there_whatever_happens() {
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("SEED is a number")],
        Err(_) => (1..=12).collect(),
    };
    for seed in seeds {
        let played = std::panic::catch_unwind(|| one(seed));
        assert!(played.is_ok(), "SEED={seed}");
    }
}
