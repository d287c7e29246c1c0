//! The loop that claims runs and works on them, up to its capacity.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use longhaul_actors::env::Door;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::attached::Attached;
use super::attempt::{Shared, drive};
use super::clones;
use super::harness::Harness;
use super::harness::agent::AgentHarness;
use super::harness::process::ProcessHarness;
use super::harness::script::ScriptHarness;
use super::protocol::{ApiError, Claim, ClaimApi};
use super::sandbox::SandboxProvider;
use super::sandbox::none::NoneProvider;
use super::settings::RunnerConfig;

/// How long one poll for claims waits.
const POLL: Duration = Duration::from_secs(20);
/// Most claims taken by one poll.
const CLAIMS_MAX: usize = 16;
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// The harnesses and sandbox providers of a runner, by kind.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    harnesses: BTreeMap<String, Arc<dyn Harness>>,
    providers: BTreeMap<String, Arc<dyn SandboxProvider>>,
    attached: Option<Arc<Attached>>,
}

impl Registry {
    /// `agent`, `script` and `process`, and the provider `none`.
    pub fn built_in() -> Self {
        let mut registry = Self::default();
        registry.add_harness(Arc::new(AgentHarness::default()));
        registry.add_harness(Arc::new(ScriptHarness));
        registry.add_harness(Arc::new(ProcessHarness));
        registry.add_provider(Arc::new(NoneProvider));
        registry
    }

    /// Adds a harness; one of the same kind is replaced.
    pub fn add_harness(&mut self, harness: Arc<dyn Harness>) {
        self.harnesses.insert(harness.kind().to_owned(), harness);
    }

    /// Adds a provider; one of the same kind is replaced.
    pub fn add_provider(&mut self, provider: Arc<dyn SandboxProvider>) {
        self.providers.insert(provider.kind().to_owned(), provider);
    }

    /// Sandboxes that operations left are taken from here.
    pub(crate) fn take_attached_from(&mut self, attached: Arc<Attached>) {
        self.attached = Some(attached);
    }

    /// Where sandboxes that operations left are.
    pub(crate) fn attached(&self) -> Option<&Arc<Attached>> {
        self.attached.as_ref()
    }

    /// Adds all of another's, which replace those of the same kinds.
    pub fn add_all(&mut self, other: Self) {
        self.harnesses.extend(other.harnesses);
        self.providers.extend(other.providers);
    }

    /// The harness of a kind.
    pub fn harness(&self, kind: &str) -> Option<Arc<dyn Harness>> {
        self.harnesses.get(kind).cloned()
    }

    /// The provider of a kind.
    pub fn provider(&self, kind: &str) -> Option<Arc<dyn SandboxProvider>> {
        self.providers.get(kind).cloned()
    }

    /// The kinds of harnesses, sorted.
    pub fn harness_kinds(&self) -> Vec<String> {
        self.harnesses.keys().cloned().collect()
    }

    /// The kinds of providers, sorted.
    pub fn provider_kinds(&self) -> Vec<String> {
        self.providers.keys().cloned().collect()
    }
}

/// A runner at work. Dropping it stops it without giving its attempts back.
#[derive(Debug)]
pub struct Worker {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    api: Arc<dyn ClaimApi>,
    door: Door,
    drain: Duration,
}

impl Worker {
    /// Starts to claim. Needs a tokio context.
    pub fn start(
        api: Arc<dyn ClaimApi>,
        registry: Registry,
        config: RunnerConfig,
        door: Door,
    ) -> Self {
        let (stop, stopped) = watch::channel(false);
        let drain = Duration::from_secs(config.drain_s_max);
        let shared = Arc::new(Shared {
            api: Arc::clone(&api),
            registry,
            config: Arc::new(config),
            door: door.clone(),
        });
        let task = tokio::spawn(claim_loop(shared, stopped));
        Self {
            stop,
            task,
            api,
            door,
            drain,
        }
    }

    /// Takes no further claim, ends every attempt (each gives its run back) and waits for that,
    /// at most `runner.drain_s_max`.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let over = self
            .door
            .clock
            .sleep_until(self.door.clock.mono() + self.drain);
        let gone = async {
            if let Err(error) = self.api.drain().await {
                tracing::debug!(%error, "the server was not told that this runner stops");
            }
            // A panic of the loop is logged where it happened; it has ended then.
            let _ = (&mut self.task).await;
        };
        tokio::select! {
            () = gone => {}
            () = over => tracing::warn!("some attempts did not let go in time; their claims are left to their leases"),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn claim_loop(shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(shared.config.capacity as usize));
    let mut attempts = JoinSet::new();
    let mut pause = RETRY_MIN;
    loop {
        while let Some(ended) = attempts.try_join_next() {
            note_panic(ended);
        }
        let claims = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            claims = next_claims(&shared, &places) => claims,
        };
        match claims {
            Ok(claims) => {
                pause = RETRY_MIN;
                for json in claims {
                    if clones::is_offer(&json) {
                        attempts.spawn(clones::copy(Arc::clone(&shared), json));
                        continue;
                    }
                    start_attempt(&shared, &places, &mut attempts, json, &stop).await;
                }
            }
            Err(error) => {
                tokio::select! {
                    _ = stop.wait_for(|stop| *stop) => break,
                    () = recover(&shared, &error, pause) => {}
                }
                pause = (pause * 2).min(RETRY_MAX);
            }
        }
    }
    while let Some(ended) = attempts.join_next().await {
        note_panic(ended);
    }
}

async fn next_claims(
    shared: &Shared,
    places: &Semaphore,
) -> Result<Vec<serde_json::Value>, ApiError> {
    // Waits for a free place, then asks for as many as there are.
    let Ok(first) = places.acquire().await else {
        return Ok(Vec::new());
    };
    let max = places.available_permits().saturating_add(1).min(CLAIMS_MAX);
    let claims = shared.api.claims(max, POLL).await;
    drop(first);
    claims
}

async fn start_attempt(
    shared: &Arc<Shared>,
    places: &Arc<Semaphore>,
    attempts: &mut JoinSet<()>,
    json: serde_json::Value,
    stop: &watch::Receiver<bool>,
) {
    let claim = match Claim::parse(json) {
        Ok(claim) => claim,
        Err(reason) => {
            return tracing::error!(reason, "a claim cannot be read; it is left to its lease");
        }
    };
    // There is a place: only this loop takes them, and it asked for no more than were free.
    let Ok(place) = Arc::clone(places).acquire_owned().await else {
        return;
    };
    let (shared, stop) = (Arc::clone(shared), stop.clone());
    attempts.spawn(async move {
        drive(shared, claim, stop).await;
        drop(place);
    });
}

/// Waits a little; enrols again where the server has forgotten this runner.
async fn recover(shared: &Shared, error: &ApiError, pause: Duration) {
    tracing::debug!(%error, "no claims");
    let forgotten = matches!(error, ApiError::Refused(p) if p.code == "runner.not_found" || p.code == "runner.draining");
    if forgotten && let Err(error) = shared.api.enrol().await {
        tracing::warn!(%error, "this runner cannot enrol");
    }
    shared
        .door
        .clock
        .sleep_until(shared.door.clock.mono() + pause)
        .await;
}

fn note_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "an attempt ended by a panic; its claim is left to its lease");
    }
}
