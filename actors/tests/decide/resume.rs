//! Going on with a conversation, and with a run that failed.

use longhaul_actors::code::Code;
use longhaul_actors::ids::CheckpointId;
use longhaul_actors::session::command::{Command, Prompt, Resume};
use longhaul_actors::session::decide::OLDER;
use longhaul_actors::session::decision::Reply;
use longhaul_actors::session::event::{Author, AuthorKind, EventType as T};
use longhaul_actors::session::input::{Origin, parse_one};
use longhaul_actors::session::payload::Body;
use serde_json::json;

use crate::kit::{Boxed, author, body, request};

fn prompt(author: Author) -> Prompt {
    let message = parse_one(Origin::People, "user.message", r#"{"text": "on"}"#);
    Prompt {
        author,
        message: message.expect("a message"),
    }
}

pub(crate) fn resume(
    b: &mut Boxed,
    author: Author,
    checkpoint: Option<CheckpointId>,
) -> Result<Reply, longhaul_actors::code::Rejection> {
    b.ask(Command::Resume(Box::new(Resume {
        request: request(None),
        prompt: prompt(author),
        checkpoint,
    })))
}

fn continues(b: &Boxed) -> Option<longhaul_actors::ids::RunId> {
    let queued = |body: &Body| match body {
        Body::RunQueued(q) => Some(q.continues),
        _ => None,
    };
    b.last(queued).flatten()
}

#[test]
fn a_run_that_failed_is_continued_and_one_that_succeeded_is_not() {
    for outcome in ["failed", "succeeded"] {
        let (mut b, token) = Boxed::running();
        b.call(token, "settle", json!({ "outcome": outcome }))
            .expect("settle");
        let last = b.state.last_run.as_ref().map(|r| r.id);
        let reply = resume(&mut b, author(), None).expect("resume");
        assert_eq!(reply.status, 202);
        assert_eq!(body(&reply)["session_id"], json!(b.state.id));
        assert_eq!(body(&reply)["forked"], false);
        let expected = last.filter(|_| outcome == "failed");
        assert_eq!(continues(&b), expected, "{outcome}");
        assert!(b.claim().is_ok());
    }
}

#[test]
fn an_ordinary_message_starts_anew_even_after_a_failure() {
    let (mut b, token) = Boxed::running();
    b.call(token, "settle", json!({ "outcome": "failed" }))
        .expect("settle");
    b.message("else").expect("message");
    assert_eq!(continues(&b), None);
}

#[test]
fn on_a_live_session_it_waits_like_a_message() {
    let (mut b, _) = Boxed::running();
    let from = b.state.last_seq;
    resume(&mut b, author(), None).expect("resume");
    assert_eq!(b.types_after(from), [T::UserMessage]);
    assert_eq!(b.state.untaken_count(), 1);
}

#[test]
fn l5_a_nudge_is_authored_by_the_runtime() {
    let (mut b, token) = Boxed::running();
    b.settle(token, None).expect("settle");
    resume(&mut b, Author::system(), None).expect("resume");
    let message = b.log.iter().rev();
    let message = message
        .map(|e| &e.event.header)
        .find(|h| h.kind == T::UserMessage);
    assert_eq!(message.expect("one").author.kind, AuthorKind::System);
}

#[test]
fn l7_the_newest_checkpoint_goes_on_in_place_and_l6_an_older_one_only_in_a_fork() {
    let mut b = Boxed::new();
    let (older, newest) = (b.turn("a"), b.turn("b"));
    let refused = resume(&mut b, author(), Some(older)).expect_err("older");
    assert_eq!(refused.code, Code::CheckpointNotFound);
    assert!(refused.extras.contains_key(OLDER));
    resume(&mut b, author(), Some(newest)).expect("in place");
    assert_eq!(b.state.untaken_count(), 1);

    let seq = b
        .state
        .checkpoints
        .find(older)
        .expect("listed")
        .created
        .through_sequence;
    let with = |f: &mut longhaul_actors::session::command::Fork| {
        f.prompt = Some(Box::new(prompt(author())));
    };
    let (mut child, reply) = b.fork_with(seq, with).expect("fork");
    assert_eq!(
        (reply.status, body(&reply)["forked"].clone()),
        (202, json!(true))
    );
    assert_eq!(body(&reply)["session_id"], json!(child.state.id));
    assert_eq!(child.state.untaken_count(), 1);
    assert!(child.claim().is_ok(), "it goes on at once");
}

#[test]
fn l13_an_unknown_checkpoint_is_not_a_new_start() {
    let mut b = Boxed::new();
    b.turn("a");
    let from = b.state.last_seq;
    let unknown = CheckpointId([9; 16]);
    let refused = resume(&mut b, author(), Some(unknown)).expect_err("unknown");
    assert_eq!(refused.code, Code::CheckpointNotFound);
    assert!(!refused.extras.contains_key(OLDER));
    assert_eq!(b.state.last_seq, from);
}

#[test]
fn a_session_that_ended_does_not_go_on() {
    let mut b = Boxed::new();
    b.cancel().expect("cancel");
    let refused = resume(&mut b, author(), None).expect_err("terminal");
    assert_eq!(refused.code, Code::SessionTerminal);
}
