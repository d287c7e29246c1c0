//! A runtime with one harness, which is a function.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use longhaul::journal::{Journal, StepError};
use longhaul::runner::{Attempt, BoxFuture, End, Extensions, Failure, Harness, Settlement};
use longhaul::{Config, NewEvent, NewSession, Runtime, SessionHandle};
use longhaul_actors::engine::EventQuery;
use longhaul_storage::{Log, Order};
use serde_json::{Value, json};

/// What a harness in one function is.
pub(super) type Body =
    dyn for<'a> Fn(&'a Attempt, Journal) -> BoxFuture<'a, Result<End, Failure>> + Send + Sync;

pub(super) struct Played(pub(super) &'static str, pub(super) Box<Body>);

impl std::fmt::Debug for Played {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Played")
    }
}

impl Harness for Played {
    fn kind(&self) -> &str {
        self.0
    }

    fn run<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<End, Failure>> {
        Box::pin(async move {
            attempt.ready().await?;
            (self.1)(attempt, Journal::open(attempt)).await
        })
    }
}

/// The run has succeeded.
pub(super) const DONE: fn() -> Result<End, Failure> = || Ok(End::Settle(Settlement::succeeded()));

/// The attempt ends here, as by a crash, and the next one begins.
pub(super) const CRASH: fn() -> Result<End, Failure> = || Ok(End::Release);

/// How often something happened.
#[derive(Debug, Clone, Default)]
pub(super) struct Count(Arc<AtomicU32>);

impl Count {
    pub(super) fn up(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(super) fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// An effect that is counted.
    pub(super) async fn effect<T>(&self, value: T) -> Result<T, StepError> {
        self.up();
        Ok(value)
    }
}

/// A runtime with the harness.
pub(super) struct Stage {
    pub(super) runtime: Runtime,
    pub(super) session: SessionHandle,
}

/// Lost attempts are noticed soon.
pub(super) fn quick(mut config: Config) -> Config {
    config.runs.lease_s = 1;
    config.runs.beat_s = 1;
    config.runs.backoff_ms_min = 10;
    config
}

pub(super) async fn open<F>(config: Config, log: Option<Arc<dyn Log>>, body: F) -> Runtime
where
    F: for<'a> Fn(&'a Attempt, Journal) -> BoxFuture<'a, Result<End, Failure>>
        + Send
        + Sync
        + 'static,
{
    let mut extensions = Extensions::default();
    extensions.add_harness(Arc::new(Played("played", Box::new(body))));
    let mut builder = Runtime::builder(quick(config)).extensions(extensions);
    if let Some(log) = log {
        builder = builder.log(log);
    }
    builder.open().await.unwrap()
}

impl Stage {
    pub(super) async fn new<F>(body: F) -> Self
    where
        F: for<'a> Fn(&'a Attempt, Journal) -> BoxFuture<'a, Result<End, Failure>>
            + Send
            + Sync
            + 'static,
    {
        Self::of(open(Config::in_memory(), None, body).await, "ada").await
    }

    /// A session of a new deployment.
    pub(super) async fn of(runtime: Runtime, principal: &str) -> Self {
        let new = json!({ "name": "played", "sandbox": { "provider": "none" },
            "release": { "harness": { "kind": "played" } } });
        let new = serde_json::from_value(new).unwrap();
        let deployment = runtime.deploy(&new).await.unwrap();
        let session = NewSession::of(deployment.id).principal(principal);
        let session = runtime.start(session).await.unwrap();
        Self { runtime, session }
    }

    /// Lets go of everything: the folder may be opened again.
    pub(super) async fn close(self) {
        drop(self.session);
        self.runtime.close().await;
    }

    /// A turn; what its run settled with.
    pub(super) async fn turn(&self, text: &str) -> Value {
        let after = self.session.send(text).await.unwrap().events[0].seq;
        self.settled(after).await
    }

    /// A turn that succeeds.
    pub(super) async fn succeeds(&self, text: &str) {
        let end = self.turn(text).await;
        assert_eq!(
            end["outcome"],
            "succeeded",
            "{end}\n{:#?}",
            self.log().await
        );
    }

    /// The end of the next run that settles after this position, but for good: not `continued`.
    pub(super) async fn settled(&self, after: u64) -> Value {
        let over = |e: &Value| e["type"] == "run.settled" && e["content"]["outcome"] != "continued";
        self.until(after, over).await["content"].clone()
    }

    /// The next event after this position that is so.
    pub(super) async fn until(&self, after: u64, is: impl Fn(&Value) -> bool) -> Value {
        let search = async {
            let mut follow = self.session.follow(after).await.unwrap();
            while let Some(event) = follow.next().await {
                let event = event.unwrap();
                let shown = json!({"type": event.kind.text(), "seq": event.seq, "content": event.content()});
                if is(&shown) {
                    return shown;
                }
            }
            panic!("the stream has ended");
        };
        match tokio::time::timeout(Duration::from_secs(60), search).await {
            Ok(found) => found,
            Err(_) => panic!("never; {:#?}", self.log().await),
        }
    }

    pub(super) async fn signal(&self, name: &str, payload: Value) -> u64 {
        let content = json!({"name": name, "payload": payload});
        let events = [NewEvent::new("user.signal", content)];
        let sent = self.session.submit(&events, Default::default()).await;
        sent.unwrap().events[0].seq
    }

    /// The whole log.
    pub(super) async fn log(&self) -> Vec<Value> {
        let mut all = Vec::new();
        let mut after = Some(0);
        while let Some(from) = after {
            let query = EventQuery {
                after: Some(from),
                before: None,
                order: Order::Asc,
                limit: 1_000,
                types: None,
            };
            let page = self.session.events(query).await.unwrap();
            let events = page.events.iter();
            all.extend(events.map(|e| serde_json::from_slice::<Value>(e).unwrap()));
            after = page.next_after;
        }
        all
    }

    /// The contents of the log's events of a type.
    pub(super) async fn of_type(&self, kind: &str) -> Vec<Value> {
        let log = self.log().await;
        let of = log.into_iter().filter(|e| e["type"] == kind);
        of.map(|e| e["content"].clone()).collect()
    }
}
