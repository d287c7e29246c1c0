//! The API of a host program: handles, streams, actix messages.

use futures_util::StreamExt;
use longhaul::handle::SubmitOptions;
use longhaul::messages::{Deploy, End, Events, How, RuntimeActor, Send, Show, Start, Submit};
use longhaul::{Code, Config, NewEvent, NewSession, Runtime};
use longhaul_actors::engine::EventQuery;
use longhaul_storage::Order;
use serde_json::json;

fn config() -> Config {
    let mut config = Config::in_memory();
    config.runner.enabled = false;
    config
}

fn agent() -> longhaul::catalog::deployments::NewDeployment {
    serde_json::from_value(json!({
        "name": "host", "release": { "harness": { "kind": "external" } },
    }))
    .unwrap()
}

#[tokio::test]
async fn a_session_by_its_handle() {
    let runtime = Runtime::open(config()).await.unwrap();
    let agent = runtime.deploy(&agent()).await.unwrap();
    let new = || {
        NewSession::of(agent.id)
            .metadata("a", 1)
            .idempotency_key("once")
    };
    let session = runtime.start(new()).await.unwrap();
    assert_eq!(runtime.start(new()).await.unwrap().id(), session.id());
    let changed = runtime.start(new().metadata("b", 2)).await.err().unwrap();
    assert_eq!(changed.code, Code::IdempotencyConflict);

    let accepted = session.send("one").await.unwrap();
    assert_eq!(accepted.events[0].kind, "user.message");
    let options = || SubmitOptions {
        expected_seq: Some(1),
        idempotency_key: None,
    };
    let late = session.submit(&[NewEvent::message("two")], options()).await;
    assert_eq!(late.unwrap_err().code, Code::SequenceConflict);
    let bad = [NewEvent::new("no.such", json!({}))];
    let bad = session.submit(&bad, SubmitOptions::default()).await;
    assert_eq!(bad.unwrap_err().code, Code::EventTypeUnknown);
    let none = session.submit(&[], SubmitOptions::default()).await;
    assert_eq!(none.unwrap_err().code, Code::BatchEmpty);

    let past = session.follow(1_000).await.err().unwrap();
    assert_eq!(past.code, Code::CursorInvalid);
    let follow = session.follow(0).await.unwrap();
    session.cancel().await.unwrap();
    let events: Vec<_> = follow.map(|e| e.unwrap()).collect().await;
    let seqs: Vec<u64> = events.iter().map(|e| e.seq).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    let message = events.iter().find(|e| e.kind.text() == "user.message");
    assert_eq!(message.unwrap().content()["text"], "one");
    assert_eq!(session.show().await.unwrap()["status"], "canceled");

    session.erase().await.unwrap();
    assert_eq!(session.show().await.unwrap_err().code, Code::SessionErased);
    runtime.close().await;
}

#[tokio::test]
async fn streams_end_with_the_runtime() {
    let runtime = Runtime::open(config()).await.unwrap();
    let agent = runtime.deploy(&agent()).await.unwrap();
    let session = runtime.start(NewSession::of(agent.id)).await.unwrap();
    let mut follow = session.follow(1).await.unwrap();
    runtime.close().await;
    let last = follow.next().await.unwrap();
    assert_eq!(last.unwrap_err().code, Code::Stopped);
    assert!(follow.next().await.is_none());
    assert_eq!(session.send("x").await.unwrap_err().code, Code::Stopped);
}

#[test]
fn a_session_by_actix_messages() {
    actix::System::new().block_on(async {
        let runtime = Runtime::open(config()).await.unwrap();
        let actor = RuntimeActor::start(runtime.clone());
        let deployment = actor.send(Deploy(agent())).await.unwrap().unwrap();
        let session = actor
            .send(Start(NewSession::of(deployment.id)))
            .await
            .unwrap()
            .unwrap();
        let text = "hi".to_owned();
        actor.send(Send { session, text }).await.unwrap().unwrap();
        let (events, options) = (vec![NewEvent::interrupt()], SubmitOptions::default());
        let submit = Submit {
            session,
            events,
            options,
        };
        assert_eq!(actor.send(submit).await.unwrap().unwrap().events.len(), 1);
        assert_eq!(
            actor.send(Show(session)).await.unwrap().unwrap()["status"],
            "idle"
        );
        let query = EventQuery {
            after: None,
            before: None,
            order: Order::Asc,
            limit: 2,
            types: None,
        };
        let page = actor
            .send(Events { session, query })
            .await
            .unwrap()
            .unwrap();
        assert_eq!((page.events.len(), page.next_after), (2, Some(2)));
        let how = How::Complete;
        actor.send(End { session, how }).await.unwrap().unwrap();
        runtime.close().await;
    });
}

/// No tokio, no actix: a host with an executor of its own.
#[test]
fn any_executor_will_do() {
    let done = futures_executor(async {
        let runtime = Runtime::open(config()).await.unwrap();
        let agent = runtime.deploy(&agent()).await.unwrap();
        let session = runtime.start(NewSession::of(agent.id)).await.unwrap();
        session.send("x").await.unwrap();
        let status = session.show().await.unwrap()["status"].clone();
        runtime.close().await;
        status
    });
    assert_eq!(done, "pending");
}

/// The smallest executor: one future, one parked thread.
fn futures_executor<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return done;
        }
        std::thread::park();
    }
}
