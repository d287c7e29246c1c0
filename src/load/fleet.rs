//! The sessions of a load run, and the claims that the harness holds on their runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use longhaul_actors::env::{Clock, SystemClock};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::target::{Call, Lane, Target, deployment, text};
use crate::cli::exit::CliError;
use crate::cli::output::Progress;

/// Sessions made at once.
const MAKERS: usize = 32;
/// Claims asked for at once.
const CLAIMS_AT_ONCE: usize = 64;
/// Callers that claim at once during set-up.
const CLAIMERS: usize = 8;
/// How long a lost claim may take to come back: lease, back-off and a restart.
const RECLAIM_MAX: Duration = Duration::from_secs(120);
/// A claim that made no call for this long is kept alive by a heartbeat.
const BEAT_EVERY: Duration = Duration::from_secs(5);

/// Everything that was set up.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// What is driven.
    pub(crate) target: Target,
    /// The runner that holds the claims.
    pub(crate) runner: String,
    /// One session each.
    pub(crate) slots: Vec<Slot>,
    by_session: HashMap<String, usize>,
    claiming: tokio::sync::Mutex<()>,
    clock: SystemClock,
}

/// A session and its claim.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The session.
    pub(crate) session: String,
    token: Mutex<Option<Arc<Held>>>,
}

/// A claim as held.
#[derive(Debug)]
pub(crate) struct Held {
    /// Its token.
    pub(crate) token: String,
    /// Numbered calls made so far; the caller counts on.
    pub(crate) calls: AtomicU64,
    /// When it was last used, milliseconds of the fleet's clock.
    used_ms: AtomicU64,
}

impl Slot {
    fn held(&self) -> Option<Arc<Held>> {
        self.token
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Fleet {
    /// Makes the sessions, each with one message, and claims their runs.
    pub(crate) async fn muster(
        target: Target,
        sessions: usize,
        bar: &Progress,
    ) -> Result<Arc<Self>, CliError> {
        let mut lane = target.lane();
        let made = lane.must(Call::Deployment, &deployment()).await?;
        let agent = text(&made, "id")?;
        let enrol = json!({ "name": "load", "host_id": "load", "targets": ["*"],
            "snapshot_clone": false, "capacity": sessions });
        let runner = text(&lane.must(Call::Enrol, &enrol).await?, "id")?;
        let ids = make_sessions(&target, &agent, sessions, bar).await?;
        let by_session = ids
            .iter()
            .enumerate()
            .map(|(i, id)| (id.clone(), i))
            .collect();
        let slots = ids.into_iter().map(|session| Slot {
            session,
            token: Mutex::new(None),
        });
        let fleet = Arc::new(Self {
            target,
            runner,
            slots: slots.collect(),
            by_session,
            claiming: tokio::sync::Mutex::new(()),
            clock: SystemClock::new(),
        });
        bar.message("claiming");
        let held = Arc::new(AtomicU64::new(0));
        let mut claimers = JoinSet::new();
        for _ in 0..CLAIMERS.min(sessions.div_ceil(CLAIMS_AT_ONCE)) {
            let (fleet, held, bar) = (Arc::clone(&fleet), Arc::clone(&held), bar.clone());
            claimers.spawn(async move { fleet.claim_all(&held, &bar).await });
        }
        while let Some(result) = claimers.join_next().await {
            result.map_err(|e| CliError::failed("load.setup", e.to_string()))??;
        }
        Ok(fleet)
    }

    async fn claim_all(&self, held: &AtomicU64, bar: &Progress) -> Result<(), CliError> {
        let mut lane = self.target.lane();
        let sessions = self.slots.len() as u64;
        while held.load(Ordering::Relaxed) < sessions {
            let got = self.claim_some(&mut lane).await? as u64;
            let now = held.fetch_add(got, Ordering::Relaxed) + got;
            if got == 0 && now < sessions {
                let detail = format!("only {now} of {sessions} runs could be claimed");
                return Err(CliError::failed("load.claims", detail));
            }
            bar.at(now);
        }
        Ok(())
    }

    /// The claim on a session's run; waits for a new one while it is lost.
    pub(crate) async fn claim(&self, lane: &mut Lane, index: usize) -> Result<Arc<Held>, CliError> {
        let started = self.clock.mono();
        loop {
            let slot = self
                .slots
                .get(index)
                .ok_or_else(|| CliError::failed("load.slot", ""))?;
            if let Some(held) = slot.held() {
                held.used_ms.store(self.now_ms(), Ordering::Relaxed);
                return Ok(held);
            }
            if self.clock.mono().saturating_sub(started) > RECLAIM_MAX {
                let detail = format!("the run of {} was not offered again", slot.session);
                return Err(CliError::failed("load.claims", detail));
            }
            let _one = self.claiming.lock().await;
            if slot.held().is_none() && self.claim_some(lane).await.is_err() {
                // The server is away: it is asked again until the time is over.
                self.clock
                    .sleep_until(self.clock.mono() + Duration::from_millis(50))
                    .await;
            }
        }
    }

    /// A call said that this claim is lost.
    pub(crate) fn lost(&self, index: usize, held: &Arc<Held>) {
        if let Some(slot) = self.slots.get(index) {
            let mut now = slot.token.lock().unwrap_or_else(PoisonError::into_inner);
            if now.as_ref().is_some_and(|h| Arc::ptr_eq(h, held)) {
                *now = None;
            }
        }
    }

    async fn claim_some(&self, lane: &mut Lane) -> Result<usize, CliError> {
        let call = Call::Claims {
            runner: &self.runner,
            max: CLAIMS_AT_ONCE,
        };
        let answer = lane.must(call, &json!({})).await?;
        let claims = answer
            .get("claims")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let mut got = 0;
        for claim in claims {
            let token = text(&claim, "claim_token")?;
            let session = text(&claim, "session_id")?;
            // A session that is not ours: another user's on the same server. Give it back.
            let Some(index) = self.by_session.get(&session) else {
                lane.must(
                    Call::Verb {
                        token: &token,
                        verb: "release",
                    },
                    &json!({}),
                )
                .await?;
                continue;
            };
            lane.must(
                Call::Verb {
                    token: &token,
                    verb: "ready",
                },
                &json!({ "n": 1 }),
            )
            .await?;
            let used_ms = AtomicU64::new(self.now_ms());
            let held = Arc::new(Held {
                token,
                calls: AtomicU64::new(1),
                used_ms,
            });
            if let Some(slot) = self.slots.get(*index) {
                *slot.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
            }
            got += 1;
        }
        Ok(got)
    }

    /// Keeps claims alive that nobody uses (many sessions and few calls). Ends with its task.
    pub(crate) async fn beat(self: Arc<Self>) {
        let mut lane = self.target.lane();
        loop {
            self.clock.sleep_until(self.clock.mono() + BEAT_EVERY).await;
            for index in 0..self.slots.len() {
                let Some(held) = self.slots.get(index).and_then(Slot::held) else {
                    continue;
                };
                let idle = self
                    .now_ms()
                    .saturating_sub(held.used_ms.load(Ordering::Relaxed));
                if u128::from(idle) >= BEAT_EVERY.as_millis() {
                    let call = Call::Verb {
                        token: &held.token,
                        verb: "heartbeat",
                    };
                    // A lost claim is found by its next call, a lost server by everyone.
                    let _ = lane.call(call, b"{}").await;
                    held.used_ms.store(self.now_ms(), Ordering::Relaxed);
                }
            }
        }
    }

    /// Cancels every session: nothing of the run stays live on the server.
    pub(crate) async fn disband(self: &Arc<Self>) {
        let mut makers = JoinSet::new();
        for maker in 0..MAKERS {
            let fleet = Arc::clone(self);
            makers.spawn(async move {
                let mut lane = fleet.target.lane();
                for slot in fleet.slots.iter().skip(maker).step_by(MAKERS) {
                    // A courtesy: what fails here was counted and checked already.
                    let _ = lane
                        .call(
                            Call::Cancel {
                                session: &slot.session,
                            },
                            b"{}",
                        )
                        .await;
                }
            });
        }
        makers.join_all().await;
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.mono().as_millis()).unwrap_or(u64::MAX)
    }
}

async fn make_sessions(
    target: &Target,
    agent: &str,
    count: usize,
    bar: &Progress,
) -> Result<Vec<String>, CliError> {
    bar.message("making sessions");
    let body = json!({ "agent_deployment": agent,
        "events": [{ "type": "user.message", "content": { "text": "go" } }] });
    let done = Arc::new(AtomicU64::new(0));
    let mut makers = JoinSet::new();
    for maker in 0..MAKERS.min(count) {
        let (mut lane, body, done) = (target.lane(), body.clone(), Arc::clone(&done));
        let bar = bar.clone();
        makers.spawn(async move {
            let mut ids = Vec::new();
            for _ in (maker..count).step_by(MAKERS) {
                ids.push(text(&lane.must(Call::Create, &body).await?, "id")?);
                bar.at(done.fetch_add(1, Ordering::Relaxed));
            }
            Ok::<_, CliError>(ids)
        });
    }
    let mut all = Vec::with_capacity(count);
    while let Some(ids) = makers.join_next().await {
        all.extend(ids.map_err(|e| CliError::failed("load.setup", e.to_string()))??);
    }
    Ok(all)
}
