//! The conversation as a model sees it: the same in a page, over HTTP, on the command line and for
//! a harness.

use std::sync::{Arc, Mutex};

use longhaul::config::StorageEngine;
use longhaul::runner::{Attempt, BoxFuture, End, Extensions, Failure, Harness, Settlement};
use longhaul::{Config, NewSession, Runtime, api};
use longhaul_actors::engine::TranscriptQuery;
use longhaul_actors::transcript::{Block, Message, Role};
use serde_json::{Value, json};

use crate::support::{longhaul, stdout};

/// Says what it is told, and notes the conversation that it saw.
#[derive(Debug, Clone, Default)]
struct Talker(Arc<Mutex<Vec<Vec<Message>>>>);

impl Harness for Talker {
    fn kind(&self) -> &str {
        "talker"
    }

    fn run<'a>(&'a self, attempt: &'a Attempt) -> BoxFuture<'a, Result<End, Failure>> {
        Box::pin(async move {
            attempt.ready().await?;
            let seen = attempt.transcript().await?;
            self.0.lock().unwrap().push(seen);
            let text = attempt.claim().inputs[0]["content"]["text"]
                .as_str()
                .unwrap();
            let orders: Vec<(String, Value)> = serde_json::from_str(text).unwrap();
            for (kind, mut content) in orders {
                if content["tool_use_id"] == "last" {
                    let seen = attempt.transcript().await?;
                    content["tool_use_id"] = json!(last_call(&seen));
                }
                if content["through_seq"] == "before" {
                    let seen = attempt.transcript().await?;
                    let earlier = &seen[seen.len() - 2];
                    content["through_seq"] = json!(earlier.through_seq);
                }
                attempt.event(&kind, content).await?;
            }
            let seen = attempt.transcript().await?;
            self.0.lock().unwrap().push(seen);
            Ok(End::Settle(Settlement::succeeded()))
        })
    }
}

fn last_call(messages: &[Message]) -> String {
    let blocks = messages.iter().rev().flat_map(|m| m.content.iter().rev());
    let mut calls = blocks.filter_map(|b| match b {
        Block::ToolUse { id, .. } => Some(id.clone()),
        _ => None,
    });
    calls.next().unwrap()
}

fn config() -> Config {
    let mut config = Config::default();
    config.storage.engine = StorageEngine::Memory;
    config.http.listen = ([127, 0, 0, 1], 0).into();
    config.http.workers = 1;
    config
}

const fn query(after: u64, limit: usize, compacted: bool) -> TranscriptQuery {
    TranscriptQuery {
        after,
        limit,
        compacted,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_the_same_by_every_door() {
    let talker = Talker::default();
    let mut own = Extensions::default();
    own.add_harness(Arc::new(talker.clone()));
    let runtime = Runtime::builder(config())
        .extensions(own)
        .open()
        .await
        .unwrap();
    let agent = json!({"name": "t", "sandbox": {"provider": "none", "max_duration_seconds": 60},
        "release": {"instructions": "", "harness": {"kind": "talker"}}});
    let agent = runtime
        .deploy(&serde_json::from_value(agent).unwrap())
        .await
        .unwrap();
    let session = runtime.start(NewSession::of(agent.id)).await.unwrap();
    let turns = [
        json!([["agent.message", {"text": "look"}], ["agent.tool_use", {"name": "ls", "input": {"p": 1}}],
            ["agent.tool_result", {"tool_use_id": "last", "output": "a b"}], ["agent.message", {"text": "two"}]]),
        // Never answered: closed with the turn.
        json!([["agent.tool_use", {"name": "rm", "input": {}}], ["usage.recorded", {"input_tokens": 1}]]),
        json!([["agent.context_compacted", {"summary": "so far", "through_seq": "before"}],
            ["agent.message", {"text": "\u{1b}[31mred", "role": "user"}], ["agent.message", {"text": "end"}]]),
    ];
    let mut follow = session.follow(0).await.unwrap();
    for turn in &turns {
        session.send(turn.to_string()).await.unwrap();
        while !follow.next().await.unwrap().unwrap().boundary {}
    }

    let whole = session.transcript(query(0, 1_000, true)).await.unwrap();
    assert_eq!(whole.next_after, None);
    assert!(
        matches!(&whole.messages[0].content[..], [Block::Summary { text, .. }] if text == "so far")
    );
    let seen = talker.0.lock().unwrap().clone();
    assert_eq!(
        seen.last().unwrap(),
        &whole.messages,
        "the harness sees the same"
    );

    let full = session
        .transcript(query(0, 1_000, false))
        .await
        .unwrap()
        .messages;
    let roles: Vec<Role> = full.iter().map(|m| m.role).collect();
    let (user, agent, tool) = (Role::User, Role::Assistant, Role::Tool);
    let expected = [user, agent, tool, agent, user, agent, tool, user, agent];
    assert_eq!(roles, expected, "{full:#?}");

    for compacted in [true, false] {
        let expected = session
            .transcript(query(0, 1_000, compacted))
            .await
            .unwrap()
            .messages;
        for limit in 1..4 {
            let (mut paged, mut after) = (Vec::new(), 0);
            loop {
                let page = session
                    .transcript(query(after, limit, compacted))
                    .await
                    .unwrap();
                assert!(page.messages.len() <= limit);
                paged.extend(page.messages);
                match page.next_after {
                    Some(next) => {
                        assert!(next > after, "a page always moves");
                        after = next;
                    }
                    None => break,
                }
            }
            assert_eq!(paged, expected, "pages of {limit}");
        }
    }

    // Over HTTP, through the command line.
    let listener = api::bind(&runtime).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served = tokio::spawn(api::serve(runtime.clone(), listener, async {
        drop(stopped.await)
    }));
    let id = session.id().to_string();
    for (flags, expected) in [(&[][..], &whole.messages), (&["--full"][..], &full)] {
        let args = [&["session", "transcript", &id, "--server", &url], flags].concat();
        let plain = stdout(&longhaul(&args).await);
        let json = stdout(&longhaul(&[&args[..], &["--json"]].concat()).await);
        assert!(
            plain.contains("[31mred") && !plain.contains('\u{1b}'),
            "{plain}"
        );
        let lines: Vec<Message> = json
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        assert_eq!(&lines, expected);
    }
    drop(stop);
    served.await.unwrap().unwrap();
    runtime.close().await;
}
