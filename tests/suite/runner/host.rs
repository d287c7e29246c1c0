//! A harness and a sandbox provider of the host's own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use longhaul::runner::sandbox::{Entry, Exec, ExecOutput, Launch, Process};
use longhaul::runner::{
    Attempt, BoxFuture, End, Extensions, Failure, Harness, Sandbox, SandboxError, SandboxProvider,
    SandboxRequest, Settlement, message_text,
};
use longhaul::{Config, NewSession, Runtime};
use serde_json::json;

#[derive(Debug)]
struct Echo;

impl Harness for Echo {
    fn kind(&self) -> &str {
        "echo"
    }

    fn run<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<End, Failure>> {
        Box::pin(async move {
            attempt.ready().await?;
            let texts = attempt.claim().inputs.iter().filter_map(message_text);
            let text = texts.collect::<Vec<_>>().join("\n");
            assert_ne!(text, "panic", "as asked");
            attempt
                .sandbox()
                .write_file("said".to_owned(), text.into_bytes())
                .await?;
            let kept = attempt
                .sandbox()
                .read_file("said".to_owned(), 1_000)
                .await?;
            let text = String::from_utf8_lossy(&kept).into_owned();
            attempt
                .event("agent.message", json!({ "text": text }))
                .await?;
            Ok(End::Settle(Settlement::succeeded()))
        })
    }
}

/// Keeps files in memory, and counts its sandboxes.
#[derive(Debug, Clone, Default)]
struct Shelf(Arc<Mutex<(u32, u32)>>);

#[derive(Debug)]
struct Box_ {
    shelf: Shelf,
    files: Mutex<BTreeMap<String, Vec<u8>>>,
}

impl SandboxProvider for Shelf {
    fn kind(&self) -> &str {
        "shelf"
    }

    fn create(&self, _: SandboxRequest) -> BoxFuture<'_, Result<Box<dyn Sandbox>, SandboxError>> {
        Box::pin(async move {
            self.0.lock().unwrap().0 += 1;
            Ok(Box::new(Box_ {
                shelf: self.clone(),
                files: Mutex::default(),
            }) as Box<dyn Sandbox>)
        })
    }
}

fn refuse<T: Send + 'static>() -> BoxFuture<'static, Result<T, SandboxError>> {
    Box::pin(async {
        Err(SandboxError::Unsupported(
            "a shelf only keeps files".to_owned(),
        ))
    })
}

impl Sandbox for Box_ {
    fn exec(&self, _: Exec) -> BoxFuture<'_, Result<ExecOutput, SandboxError>> {
        refuse()
    }

    fn launch(&self, _: Launch) -> BoxFuture<'_, Result<Process, SandboxError>> {
        refuse()
    }

    fn read_file(&self, path: String, _: usize) -> BoxFuture<'_, Result<Vec<u8>, SandboxError>> {
        Box::pin(async move {
            let found = self.files.lock().unwrap().get(&path).cloned();
            found.ok_or(SandboxError::NotFound(path))
        })
    }

    fn write_file(&self, path: String, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), SandboxError>> {
        Box::pin(async move {
            self.files.lock().unwrap().insert(path, bytes);
            Ok(())
        })
    }

    fn list(&self, _: String, _: usize) -> BoxFuture<'_, Result<Vec<Entry>, SandboxError>> {
        refuse()
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.shelf.0.lock().unwrap().1 += 1 })
    }
}

#[tokio::test]
async fn a_host_brings_its_own_harness_and_provider() {
    let shelf = Shelf::default();
    let mut extensions = Extensions::default();
    extensions.add_harness(Arc::new(Echo));
    extensions.add_provider(Arc::new(shelf.clone()));
    let runtime = Runtime::builder(Config::in_memory())
        .extensions(extensions)
        .open()
        .await
        .unwrap();
    let new = json!({ "name": "echo", "sandbox": { "provider": "shelf" },
        "release": { "harness": { "kind": "echo" } } });
    let deployment = runtime
        .deploy(&serde_json::from_value(new).unwrap())
        .await
        .unwrap();
    let session = runtime.start(NewSession::of(deployment.id)).await.unwrap();

    for (text, outcome) in [("hello", "succeeded"), ("panic", "failed")] {
        let after = session.send(text).await.unwrap().events[0].seq;
        let mut follow = session.follow(after).await.unwrap().until_boundary();
        let mut last = None;
        while let Some(event) = follow.next().await {
            let event = event.unwrap();
            if event.kind.text() == "agent.message" {
                assert_eq!(event.content()["text"], text);
            }
            last = Some(event);
        }
        assert_eq!(last.unwrap().content()["outcome"], outcome);
    }
    assert_eq!(*shelf.0.lock().unwrap(), (2, 2));
    runtime.close().await;
}

#[tokio::test]
async fn a_runtime_dropped_without_closing_lets_go_of_its_folders() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::in_folder(folder.path().join("data"));
    drop(Runtime::open(config.clone()).await.unwrap());
    let mut every = tokio::time::interval(std::time::Duration::from_millis(20));
    let mut last = String::new();
    for _ in 0..500 {
        every.tick().await;
        match Runtime::open(config.clone()).await {
            Ok(runtime) => return runtime.close().await,
            Err(e) => last = e.to_string(),
        }
    }
    panic!("still held: {last}");
}

#[tokio::test]
async fn two_runtimes_cannot_share_a_folder_for_sandboxes() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::in_memory();
    config.runner.sandbox_dir = Some(folder.path().join("sandboxes"));
    let first = Runtime::open(config.clone()).await.unwrap();
    let Err(refused) = Runtime::open(config.clone()).await else {
        panic!("opened twice")
    };
    assert!(refused.to_string().contains("in use"), "{refused}");
    first.close().await;
    Runtime::open(config).await.unwrap().close().await;
}
