//! Contents that expire, on the log in memory: long sessions, and forks that come too late.

use longhaul_storage::{ContentState, Order, PageLimit, Record, StreamId};
use serde_json::Value;

use super::forks::fork_of;
use super::kit::{Boxed, WS, check, config, count, eventually, request, run};
use crate::code::Code;
use crate::ids::SessionId;
use crate::rows;
use crate::session::command::{Command, Fork};
use crate::session::payload::{RetentionPolicy, Selector};

const TTL_MS: u64 = 60_000;

async fn kept_for_a_minute(b: &Boxed, messages: &[&str]) -> SessionId {
    let retention = RetentionPolicy {
        content_ttl_s: Some(TTL_MS / 1_000),
        ..RetentionPolicy::default()
    };
    let id = b.engine.new_session_id();
    let made = b.create_with(id, messages, retention).await;
    made.expect("create");
    id
}

fn records(b: &Boxed, id: SessionId) -> Vec<Record> {
    let all = PageLimit {
        items_max: usize::MAX,
        bytes_max: usize::MAX,
    };
    let read = longhaul_storage::read(b.log.as_ref(), |v| {
        v.records(StreamId(id.0), 0, u64::MAX, Order::Asc, all)
    });
    read.expect("records")
}

fn expired(b: &Boxed, id: SessionId) -> usize {
    let all = records(b, id);
    let gone = all
        .iter()
        .filter(|r| r.content_state == ContentState::Expired);
    gone.count()
}

fn purge_rows(b: &Boxed) -> usize {
    let all = PageLimit {
        items_max: 100,
        bytes_max: usize::MAX,
    };
    let table = rows::table(rows::PURGE);
    let read = longhaul_storage::read(b.log.as_ref(), |v| v.rows(&table, None, Order::Asc, all));
    read.expect("rows").len()
}

#[test]
fn a_long_session_expires_in_steps_and_takes_writes_meanwhile() {
    run(async {
        let b = Boxed::new(config());
        let id = kept_for_a_minute(&b, &["first"]).await;
        for n in 0..699 {
            b.say(id, &n.to_string()).await.expect("say");
        }
        b.world.advance_ms(TTL_MS);
        eventually(|| expired(&b, id) == 700).await;
        let types = b.types(id).await;
        let steps = count(&types, "content.erased");
        assert!((3..=5).contains(&steps), "{steps} steps");
        eventually(|| purge_rows(&b) == 0).await;
        b.say(id, "later").await.expect("say");
        check(&b, id);
        assert_eq!(expired(&b, id), 700);
        let state = b.engine.state(WS, id).await.expect("state");
        assert!(!state.missing.is_empty() && state.aging.waits());
        // As recovered, so it goes on.
        let b = b.restart(config()).await;
        let again = b.engine.state(WS, id).await.expect("state");
        assert_eq!((again.missing, again.aging), (state.missing, state.aging));
        b.world.advance_ms(TTL_MS);
        eventually(|| expired(&b, id) == 701).await;
        check(&b, id);
        b.engine.close().await;
    });
}

#[test]
fn a_fork_of_what_was_read_before_it_expired_is_not_made() {
    run(async {
        let b = Boxed::new(config());
        let source = kept_for_a_minute(&b, &["secret"]).await;
        let before = b.engine.state(WS, source).await.expect("state");
        b.world.advance_ms(TTL_MS);
        eventually(|| expired(&b, source) == 1).await;
        let child = b.engine.new_session_id();
        let late = Fork {
            request: request(),
            root: source,
            source: before,
            expired: None,
            selector: Selector::Head,
            principal: None,
            metadata: None,
            prompt: None,
            checkpoint: None,
        };
        let refused = b.ask(child, Command::Fork(Box::new(late))).await;
        let code = refused.expect_err("too late").code;
        assert_eq!(code, Code::Busy, "to be asked again");
        let absent = b.engine.state(WS, child).await.expect_err("no child");
        assert_eq!(absent.code, Code::SessionNotFound);
        // Asked again, the answer is for good.
        for selector in [Selector::Head, Selector::Seq(2)] {
            let refused = b.engine.fork(fork_of(source, selector)).await;
            let refused = refused.expect_err("incomplete");
            assert_eq!(refused.code, Code::HistoryUnavailable);
        }
        b.engine.close().await;
    });
}

#[test]
fn an_erasure_takes_what_is_about_to_expire() {
    run(async {
        let b = Boxed::new(config());
        let id = kept_for_a_minute(&b, &["a"]).await;
        b.world.advance_ms(TTL_MS);
        let erased: Value = b.ask(id, Command::Erase(request())).await.expect("erased");
        assert!(erased.is_object());
        eventually(|| purge_rows(&b) == 0).await;
        let gone = longhaul_storage::read(b.log.as_ref(), |v| v.row(&rows::expired(id)));
        assert_eq!(gone.expect("read"), None);
        b.engine.close().await;
    });
}
