//! The same request again, with its Idempotency-Key: one effect, the first answer, and never a
//! lock that is left behind.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::kit::*;
use crate::support::Server;

async fn keyed(server: &Server, verb: &str, key: &str, body: &Value) -> Told {
    let path = format!("/api/v1/runtimes/{verb}");
    post(&server.url(), &path, &[("idempotency-key", key)], body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_that_takes_a_key_gives_its_first_answer_and_no_lock_stays() {
    let mut server = Server::start(&[]).await;
    for verb in ["checkpoint", "pause", "resume", "close"] {
        let session = session_of(&server, shell()).await;
        write(&server, &session, "f", verb).await;
        let of = json!({ "runtime_id": session });
        if verb == "resume" {
            op(&server.url(), "pause", of.clone()).await.must();
        }
        let first = keyed(&server, verb, "k", &of).await.must();
        let log = server.log(&session).await;
        for again in [false, true] {
            if again {
                server.process.kill9().unwrap();
                server.process.restart().await.unwrap();
            }
            let told = keyed(&server, verb, "k", &of).await.must();
            assert_eq!(told, first, "{verb}, killed before: {again}");
            assert_eq!(server.log(&session).await, log, "{verb} is done once");
        }
        let next = op(&server.url(), "checkpoint", of.clone()).await;
        match verb {
            "close" => next.refused(409, "session.terminal"),
            "pause" => next.refused(409, "runtime.paused"),
            _ => drop(next.must()),
        }
        let mut other = of.clone();
        other["name"] = json!("other");
        if matches!(verb, "checkpoint" | "pause") {
            keyed(&server, verb, "k", &other)
                .await
                .refused(409, "request.idempotency_conflict");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_pause_and_a_resume_the_pauses_key_still_changes_nothing() {
    let server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    write(&server, &session, "f", "1").await;
    let of = json!({ "runtime_id": session });
    let first = keyed(&server, "pause", "k", &of).await.must();
    op(&server.url(), "resume", of.clone()).await.must();
    assert_eq!(keyed(&server, "pause", "k", &of).await.must(), first);
    assert_eq!(text(read(&server, &session, "f").await), "1", "it is free");
    assert_eq!(turn(&server, &session, "cat f").await, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_while_it_is_under_way_waits_for_the_one_answer() {
    let server = Server::start(&[]).await;
    for verb in ["checkpoint", "pause", "resume", "close"] {
        let session = session_of(&server, shell()).await;
        exec(&server, &session, "head -c 3000000 /dev/urandom > big").await;
        let of = json!({ "runtime_id": session });
        if verb == "resume" {
            op(&server.url(), "pause", of.clone()).await.must();
        }
        let before = checkpoints(&server, &session).await.len();
        let all = join_all((0..6).map(|_| keyed(&server, verb, "k", &of))).await;
        let all: Vec<Value> = all.into_iter().map(Told::must).collect();
        assert!(all.iter().all(|told| *told == all[0]), "{verb}: {all:?}");
        let made = usize::from(matches!(verb, "checkpoint" | "pause"));
        let listed = checkpoints(&server, &session).await.len();
        assert_eq!(listed, before + made, "{verb}");
    }
}
