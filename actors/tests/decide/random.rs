//! Random histories: whatever is asked in whatever order, every state keeps its promises (the
//! kit checks them after each decision), and no session gets stuck.

use longhaul_actors::ids::ClaimToken;
use longhaul_actors::session::command::{Command, Expiry, SetBudget, Verb};
use longhaul_actors::session::event::EventType;
use longhaul_actors::session::evolve::evolve;
use longhaul_actors::session::projection::Projection;
use longhaul_actors::session::state::{Phase, State};
use proptest::prelude::*;
use serde_json::json;

use crate::kit::{Boxed, request};

#[derive(Debug, Clone)]
enum Move {
    Message,
    Interrupt,
    Cancel,
    Complete,
    Claim,
    Call(u8, &'static str),
    Open(u8, &'static str),
    Result(u8),
    Park(u8, bool, bool),
    Answer(bool),
    Signal,
    Undeliver(u8),
    Expire(u8, u8),
    Wait(u64),
    /// A step is begun: which, how it changes things, and what to do in doubt.
    Begin(u8, u8, bool, bool),
    /// What becomes of a step: how, and which of those ever begun.
    End(u8, u8, u8),
    Poll(u8),
    Budget(u8),
}

fn moves() -> impl Strategy<Value = Move> {
    let token = 0u8..3;
    let open = prop_oneof![
        Just("agent.question"),
        Just("agent.custom_tool_use"),
        Just("agent.tool_use"),
        Just("agent.action_approval_requested")
    ];
    let verb = prop_oneof![
        Just("ready"),
        Just("ready"),
        Just("heartbeat"),
        Just("inputs"),
        Just("release"),
        Just("settle")
    ];
    prop_oneof![
        4 => Just(Move::Message),
        1 => Just(Move::Interrupt),
        1 => (0u8..20).prop_map(|n| if n == 0 { Move::Cancel } else { Move::Message }),
        1 => (0u8..20).prop_map(|n| if n == 0 { Move::Complete } else { Move::Claim }),
        4 => Just(Move::Claim),
        6 => (token.clone(), verb).prop_map(|(t, v)| Move::Call(t, v)),
        3 => (token.clone(), open).prop_map(|(t, o)| Move::Open(t, o)),
        2 => token.clone().prop_map(Move::Result),
        3 => (token.clone(), any::<bool>(), any::<bool>()).prop_map(|(t, h, s)| Move::Park(t, h, s)),
        3 => any::<bool>().prop_map(Move::Answer),
        2 => Just(Move::Signal),
        1 => token.clone().prop_map(Move::Undeliver),
        6 => (token.clone(), 0u8..4, any::<bool>(), any::<bool>())
            .prop_map(|(t, s, f, r)| Move::Begin(t, s, f, r)),
        6 => (token.clone(), 0u8..6, any::<u8>()).prop_map(|(t, h, s)| Move::End(t, h, s)),
        1 => token.clone().prop_map(Move::Poll),
        1 => (0u8..4).prop_map(Move::Budget),
        2 => (token, 0u8..5).prop_map(|(t, k)| Move::Expire(t, k)),
        1 => (0u64..100_000).prop_map(Move::Wait),
    ]
}

fn play(b: &mut Boxed, tokens: &mut Vec<ClaimToken>, m: &Move) {
    // Newest token first, so that most calls are by the live one.
    let token = |back: u8| tokens.iter().rev().nth(usize::from(back)).copied();
    match m {
        Move::Message => drop(b.message("x")),
        Move::Interrupt => drop(b.interrupt()),
        Move::Cancel => drop(b.cancel()),
        Move::Complete => drop(b.complete()),
        Move::Claim => tokens.extend(b.claim()),
        Move::Call(t, verb) => {
            let body = if *verb == "settle" {
                json!({"outcome": "succeeded"})
            } else {
                json!({})
            };
            token(*t)
                .map(|t| drop(b.call(t, verb, body)))
                .unwrap_or_default();
        }
        Move::Open(t, kind) => {
            let events = json!({"events": [{"type": kind, "content": {}}]});
            token(*t)
                .map(|t| drop(b.call(t, "events", events)))
                .unwrap_or_default();
        }
        Move::Result(t) => {
            let open = b.state.items.values().next().map(|i| i.id.to_string());
            let events = json!({"events": [{"type": "agent.tool_result", "content": {"tool_use_id": open, "output": 1}}]});
            token(*t)
                .map(|t| drop(b.call(t, "events", events)))
                .unwrap_or_default();
        }
        Move::Park(t, held, signal) => {
            let item = b.state.items.values().last().map(|i| (i.kind.text(), i.id));
            let on = match item.filter(|_| !signal) {
                Some(("question", id)) => json!({"question_id": id}),
                Some(("approval", id)) => json!({"approval_id": id}),
                Some((_, id)) => json!({"tool_use_id": id}),
                None if b.state.budget_exceeded() => json!({"budget": true}),
                None => json!({"signal": "s", "timeout_ms": 50}),
            };
            let body =
                json!({"waiting_on": [on], "compute": if *held { "held" } else { "released" }});
            token(*t)
                .map(|t| drop(b.call(t, "park", body)))
                .unwrap_or_default();
        }
        Move::Answer(ok) => {
            let item = b.state.items.values().next().map(|i| (i.kind.text(), i.id));
            drop(match item {
                Some(("question", id)) => b.submit(&[(
                    "user.question_answer",
                    json!({"question_id": id, "dismissed": ok}),
                )]),
                Some(("approval", id)) => b.submit(&[(
                    "user.action_approval",
                    json!({"approval_id": id, "decision": if *ok { "granted" } else { "denied" }}),
                )]),
                Some((_, id)) => b.submit(&[(
                    "user.custom_tool_result",
                    json!({"tool_use_id": id, "output": 1}),
                )]),
                None => b.message("y"),
            });
        }
        Move::Signal => drop(b.submit(&[("user.signal", json!({"name": "s"}))])),
        Move::Undeliver(t) => {
            token(*t)
                .map(|t| drop(b.attempt(t, None, Verb::Undeliver)))
                .unwrap_or_default();
        }
        Move::Expire(t, kind) => {
            let parked_seq = b.state.run.as_ref().map_or(0, |r| r.parked_seq);
            let expiry = match (kind, token(*t)) {
                (0, Some(t)) => Expiry::Lease(t.digest()),
                (1, Some(t)) => Expiry::Startup(t.digest()),
                (2, Some(t)) => Expiry::Deadline(t.digest()),
                (3, _) => Expiry::Hold { parked_seq },
                _ => Expiry::Wait {
                    parked_seq,
                    index: 0,
                },
            };
            b.expire(expiry);
        }
        Move::Wait(ms) => b.world.advance_ms(*ms),
        Move::Begin(t, step, sandbox, retry) => {
            let on = if *retry { "retry" } else { "surface" };
            let effects = if *sandbox { "sandbox" } else { "external" };
            let body = json!({
                "op": "begin", "name": format!("s{step}"), "input_digest": "d",
                "effects": effects, "on_doubt": on, "on_failure": on,
            });
            token(*t)
                .map(|t| drop(b.call(t, "steps", body)))
                .unwrap_or_default();
        }
        Move::End(t, how, which) => {
            let begun = b
                .log
                .iter()
                .filter(|e| e.event.header.kind == EventType::StepStarted);
            let begun: Vec<_> = begun.map(|e| e.event.header.id).collect();
            let Some(step) = begun
                .iter()
                .rev()
                .nth(usize::from(*which) % begun.len().max(1))
            else {
                return;
            };
            let error = json!({"code": "a.b", "message": "c"});
            let usage = json!({"input_tokens": 1, "cost_micros": 3, "model": "m"});
            let mut body = match how {
                0 | 1 => json!({"op": "complete", "value": how, "usage": usage}),
                2 => json!({"op": "fail", "error": error}),
                3 => json!({"op": "resolve", "as": "retry"}),
                4 => json!({"op": "resolve", "as": "completed", "value": 1}),
                _ => json!({"op": "resolve", "as": "failed", "error": error}),
            };
            body["step_id"] = json!(step);
            token(*t)
                .map(|t| drop(b.call(t, "steps", body)))
                .unwrap_or_default();
        }
        Move::Poll(t) => {
            token(*t)
                .map(|t| drop(b.call(t, "inputs", json!({"signal": "s"}))))
                .unwrap_or_default();
        }
        Move::Budget(max) => {
            let max = (*max > 0).then(|| u64::from(*max) * 4);
            drop(b.ask(Command::Budget(SetBudget {
                request: request(None),
                cost_micros_max: Some(max),
                tokens_max: None,
            })));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_history_keeps_every_promise(moves in proptest::collection::vec(moves(), 1..60)) {
        let mut b = Boxed::new();
        let mut tokens = Vec::new();
        for m in &moves {
            play(&mut b, &mut tokens, m);
        }
        // Nothing is stuck: a live run is queued, claimed by someone, or waits for something.
        if let Some(run) = &b.state.run {
            match run.phase {
                Phase::Queued => prop_assert!(run.claim.is_none()),
                Phase::Claimed | Phase::Running | Phase::Waiting => prop_assert!(run.claim.is_some()),
                Phase::Parked => prop_assert!(run.claim.is_none() && !run.all_in()),
                Phase::Reconciling => prop_assert!(false, "nothing reconciles yet"),
            }
        }
        // A replay performs nothing: what follows from the folded log is what follows already.
        let mut again = State::new(b.state.id);
        b.log.iter().for_each(|e| evolve(&mut again, &e.event));
        let (live, replayed) = (Projection::of(&b.state), Projection::of(&again));
        prop_assert!(live.effects(&replayed).is_empty() && live.changes(&replayed).is_empty());
        // Each message is taken at most once.
        let mut taken = std::collections::BTreeSet::new();
        for new in &b.log {
            if let longhaul_actors::session::payload::Body::RunInputsTaken(t) = &new.event.body {
                for id in &t.event_ids {
                    prop_assert!(taken.insert(*id), "{id} taken twice");
                }
            }
        }
    }
}
