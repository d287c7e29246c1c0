//! The files of a session over checkpoints, pauses, kills and damage.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::kit::*;
use crate::support::{Server, assert_whole, packs};

/// Files of every kind, changed in every way, another one each time.
fn change(cycle: usize) -> String {
    let before = cycle.wrapping_sub(1);
    format!(
        r#"set -e
        [ {cycle} = 0 ] || chmod -R u+w .
        printf %s {cycle} > "f{cycle}"
        printf x > "$(printf 'new\nline {cycle}')"
        printf y > "$(printf 'not utf-8 \377 {cycle}')"
        mkdir -p "empty{cycle}" "deep/a/b{cycle}"
        ln -s /nowhere/at/all "absolute{cycle}"; ln -s gone "deep/dangling{cycle}"
        ln -s "../f{cycle}" "deep/good{cycle}"
        printf '#!/bin/sh\n' > "tool{cycle}"; chmod 0755 "tool{cycle}"
        printf secret > "only-mine{cycle}"; chmod 0400 "only-mine{cycle}"
        truncate -s 32M "sparse{cycle}"
        printf end | dd of="sparse{cycle}" bs=1 seek=16777216 conv=notrunc status=none
        head -c 700000 /dev/urandom > "big{cycle}"
        ln "big{cycle}" "hard{cycle}"
        if [ {cycle} != 0 ]; then
            mv "big{before}" "renamed{before}"; rm -r "empty{before}" "hard{before}"
            printf more >> "f{before}"; chmod 0711 "tool{before}"
        fi
        touch -d '2001-02-03 04:05:06.123456789' "f{cycle}" "deep/a"
        touch -h -d '2002-02-03 04:05:06.987654321' "absolute{cycle}"
        mkdir -p "closed{cycle}"; printf z > "closed{cycle}/in"; chmod 0555 "closed{cycle}""#
    )
}

/// A copy of the files as they are now, to compare with later.
fn reference(server: &Server, folder: &Path, n: usize) -> PathBuf {
    let to = folder.join(n.to_string());
    copy(&work(&server.data), &to);
    to
}

fn assert_sparse(work: &Path, cycle: usize) {
    let about = work.join(format!("sparse{cycle}")).metadata().unwrap();
    assert_eq!(about.len(), 32 << 20);
    assert!(about.blocks() * 512 < 1 << 20, "holes stay holes");
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_and_resume_n_is_like_the_first_also_over_kills() {
    let mut server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    let kept = tempfile::tempdir().unwrap();
    let mut made = Vec::new();
    for cycle in 0..5 {
        exec(&server, &session, &change(cycle)).await;
        let wanted = reference(&server, kept.path(), cycle);
        let paused = op(&server.url(), "pause", json!({ "runtime_id": session })).await;
        let paused = paused.must();
        assert_eq!(paused["runtime"]["status"], "paused");
        assert!(works(&server.data).is_empty(), "the sandbox is gone");
        made.push(paused["checkpoint_id"].as_str().unwrap().to_owned());
        if cycle % 2 == 0 {
            server.process.kill9().unwrap();
            server.process.restart().await.unwrap();
        }
        let resumed = op(&server.url(), "resume", json!({ "runtime_id": session })).await;
        let record = resumed.must()["runtime"].clone();
        assert_eq!(record["runtime_id"], session.as_str(), "the same id");
        assert_eq!(record["status"], "idle");
        let found = work(&server.data);
        assert_same(&wanted, &found, &format!("cycle {cycle}"));
        assert_sparse(&found, cycle);
    }
    // What each checkpoint holds does not change with those after it.
    op(&server.url(), "close", json!({ "runtime_id": session }))
        .await
        .must();
    for (cycle, checkpoint) in made.iter().enumerate() {
        let branch = child(checkout(&server, checkpoint).await);
        read(&server, &branch, "f0").await.must();
        let wanted = kept.path().join(cycle.to_string());
        assert_same(&wanted, &work(&server.data), &format!("checkpoint {cycle}"));
        op(&server.url(), "close", json!({ "runtime_id": branch }))
            .await
            .must();
    }
    assert_whole(&server.log(&session).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoint_and_restore_n_is_like_the_first_whatever_was_wrecked() {
    let mut server = Server::start(&[]).await;
    let mut session = session_of(&server, shell()).await;
    let kept = tempfile::tempdir().unwrap();
    for cycle in 0..5 {
        exec(&server, &session, &change(cycle)).await;
        // By every tool: here a file of the other way in.
        write(&server, &session, "deep/by-write-file", "w").await;
        let wanted = reference(&server, kept.path(), cycle);
        let made = checkpoint(&server, &session).await;
        let wreck = "chmod -R u+w .; find . -mindepth 1 -delete; echo wrecked > f0";
        exec(&server, &session, wreck).await;
        assert_eq!(text(read(&server, &session, "f0").await), "wrecked\n");
        op(&server.url(), "close", json!({ "runtime_id": session }))
            .await
            .must();
        if cycle % 2 == 1 {
            server.process.kill9().unwrap();
            server.process.restart().await.unwrap();
        }
        session = child(checkout(&server, &made).await);
        read(&server, &session, "f0").await.must();
        assert_same(&wanted, &work(&server.data), &format!("cycle {cycle}"));
        assert_sparse(&work(&server.data), cycle);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_go_on_with_the_files_of_the_turn_before() {
    let mut server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    for n in 0..5 {
        let said = turn(&server, &session, &format!("echo {n} >> f; cat f")).await;
        let wanted: String = (0..=n).map(|k| format!("{k}\n")).collect();
        assert_eq!(said, wanted);
        let wanted = if n == 0 { "fresh" } else { "checkpoint" };
        assert_eq!(resumed(&server, &session).await["kind"], wanted);
        assert!(works(&server.data).is_empty(), "nothing between turns");
        if n == 2 {
            server.process.kill9().unwrap();
            server.process.restart().await.unwrap();
        }
    }
}

fn damage(what: &str, pack: &Path) {
    let bytes = std::fs::read(pack).unwrap();
    match what {
        "blank" => std::fs::write(pack, vec![0; bytes.len()]),
        "shorten" => std::fs::write(pack, ""),
        "corrupt" => std::fs::write(pack, bytes.iter().map(|b| b ^ 0x20).collect::<Vec<_>>()),
        _ => std::fs::remove_file(pack),
    }
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_does_not_verify_is_rejected_once_and_never_given_as_an_empty_one() {
    for what in ["blank", "shorten", "corrupt", "remove"] {
        let mut server = Server::start(&[]).await;
        let (runs, works_on) = (
            session_of(&server, shell()).await,
            session_of(&server, shell()).await,
        );
        turn(&server, &runs, "echo kept > f").await;
        write(&server, &works_on, "f", "kept").await;
        op(&server.url(), "pause", json!({ "runtime_id": works_on }))
            .await
            .must();
        server.process.kill9().unwrap();
        let all = packs(&server.data);
        assert!(all.len() >= 2, "{all:?}");
        all.iter().for_each(|pack| damage(what, pack));
        server.process.restart().await.unwrap();

        // A run starts anew, and says why.
        let said = turn(&server, &runs, "cat f 2>/dev/null || echo gone").await;
        assert_eq!(said, "gone\n", "{what}");
        let resume = resumed(&server, &runs).await;
        assert_eq!(
            (&resume["kind"], &resume["reason"]),
            (&json!("event_log_rebuild"), &json!("checkpoint_rejected")),
            "{what}: {resume}"
        );
        turn(&server, &runs, "echo again > f").await;
        assert_eq!(resumed(&server, &runs).await["kind"], "checkpoint");
        let log = server.log(&runs).await;
        assert_whole(&log);
        assert_eq!(of(&log, "checkpoint.rejected").len(), 1, "{what}");

        // An operation is refused, each time, and the pause stays.
        for _ in 0..2 {
            let (path, key) = ("/api/v1/runtimes/resume", [("idempotency-key", "k")]);
            let body = json!({ "runtime_id": works_on });
            let resumed = post(&server.url(), path, &key, &body).await;
            resumed.refused(409, "runtime.checkpoint_rejected");
        }
        let shown = server.get(&format!("/v1/sessions/{works_on}")).await;
        assert_eq!(shown["status"], "paused", "{what}");
        let log = server.log(&works_on).await;
        assert_eq!(of(&log, "checkpoint.rejected").len(), 1, "{what}");
        // An interrupt frees it to its log.
        let events = json!({ "events": [{ "type": "user.interrupt", "content": {} }] });
        server
            .post(&format!("/v1/sessions/{works_on}/events"), events)
            .await;
        server.wait_status(&works_on, &["idle"]).await;
        read(&server, &works_on, "f")
            .await
            .refused(404, "sandbox.not_found");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_there_as_long_as_any_checkpoint_has_it() {
    let server = Server::start(&["retention.checkpoints_per_session_max=2"]).await;
    let session = session_of(&server, shell()).await;
    exec(
        &server,
        &session,
        "head -c 300000 /dev/urandom > big; echo 1 > f",
    )
    .await;
    let first = checkpoint(&server, &session).await;
    let branch = child(checkout(&server, &first).await);
    // Changed, so that the pack of `big` is shared by snapshots that differ.
    exec(&server, &session, "echo 2 > f").await;
    let second = checkpoint(&server, &session).await;
    let third = checkpoint(&server, &session).await;
    let listed: Vec<_> = checkpoints(&server, &session).await;
    let ids: Vec<_> = listed.iter().map(|c| c["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [third.as_str(), second.as_str()]);
    checkout(&server, &first)
        .await
        .refused(404, "checkpoint.not_found");
    // The branch's own checkpoint holds the first one's bytes.
    assert_eq!(text(read(&server, &branch, "f").await), "1\n");
    assert_eq!(exec(&server, &branch, "wc -c < big").await, "300000\n");
    for id in [&second, &third] {
        let branch = child(checkout(&server, id).await);
        assert_eq!(text(read(&server, &branch, "f").await), "2\n");
    }
    let delete = |id: &str, force: bool| {
        let body = json!({ "checkpoint_id": id, "force": force });
        let url = server.url();
        async move { op(&url, "checkpoint/delete-snapshot", body).await }
    };
    let shared = delete(&second, false).await;
    shared.refused(409, "snapshot.shared");
    assert_eq!(shared.json["checkpoint_ids"], json!([third]));
    assert_eq!(
        text(read(&server, &child(checkout(&server, &third).await), "f").await),
        "2\n",
        "refused means untouched"
    );
    let gone = delete(&second, true).await.must();
    assert_eq!(gone["deleted_provider_snapshot"], true);
    assert_eq!(gone["runtime_id"], session.as_str());
    let again = delete(&second, false).await.must();
    assert_eq!(again["deleted_provider_snapshot"], false);
    for id in [&second, &third] {
        checkout(&server, id)
            .await
            .refused(409, "runtime.snapshot_deleted");
    }
    let states: Vec<_> = checkpoints(&server, &session)
        .await
        .iter()
        .map(|c| c["snapshot"]["state"].clone())
        .collect();
    assert_eq!(states, ["deleted", "deleted"], "they stay listed");
    // The attached sandbox still has its files; a fresh snapshot, not the dead reference.
    let fresh = checkpoint(&server, &session).await;
    let branch = child(checkout(&server, &fresh).await);
    assert_eq!(text(read(&server, &branch, "f").await), "2\n");
    delete("ckpt_00000000000000000000000000000000", false)
        .await
        .refused(404, "checkpoint.not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bytes_go_with_the_last_checkpoint_and_with_erasing() {
    let server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    write(&server, &session, "f", "1").await;
    let made = checkpoint(&server, &session).await;
    let branch = child(checkout(&server, &made).await);
    op(&server.url(), "close", json!({ "runtime_id": session }))
        .await
        .must();
    assert!(!packs(&server.data).is_empty());
    let erase = async |id: &str| {
        let path = format!("/v1/sessions/{id}");
        server.must("DELETE", &path, serde_json::Value::Null).await;
    };
    erase(&session).await;
    assert_eq!(
        text(read(&server, &branch, "f").await),
        "1",
        "it outlives its source"
    );
    op(&server.url(), "close", json!({ "runtime_id": branch }))
        .await
        .must();
    erase(&branch).await;
    until("an empty store", async || {
        packs(&server.data).is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_of_the_disk_that_is_there_not_of_an_older_one() {
    let server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    turn(&server, &session, "echo old > f").await;
    turn(&server, &session, "echo new > f").await;
    // Attached and unchanged; then the snapshot that it came from goes.
    assert_eq!(text(read(&server, &session, "f").await), "new\n");
    let newest = checkpoints(&server, &session).await[0]["id"].clone();
    let delete = json!({ "checkpoint_id": newest });
    op(&server.url(), "checkpoint/delete-snapshot", delete)
        .await
        .must();
    let made = checkpoint(&server, &session).await;
    let branch = child(checkout(&server, &made).await);
    assert_eq!(text(read(&server, &branch, "f").await), "new\n");
}

/// Asks it to stop, or kills it; then starts it again.
async fn again(server: &mut Server, kill: bool) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(server.process.pid()).unwrap());
    let signal = match kill {
        true => rustix::process::Signal::KILL,
        false => rustix::process::Signal::TERM,
    };
    rustix::process::kill_process(pid.unwrap(), signal).unwrap();
    let mut every = tokio::time::interval(std::time::Duration::from_millis(10));
    while server.process.ended().unwrap().is_none() {
        every.tick().await;
    }
    server.process.restart().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_operations_did_outlives_the_process() {
    for kill in [false, true] {
        let mut server = Server::start(&[]).await;
        let session = session_of(&server, shell()).await;
        turn(&server, &session, "echo turn > by-turn").await;
        write(&server, &session, "f", "1").await;
        let closed = session_of(&server, shell()).await;
        write(&server, &closed, "f", "1").await;
        op(&server.url(), "close", json!({ "runtime_id": closed }))
            .await
            .must();
        let before = work(&server.data);
        again(&mut server, kill).await;
        assert_eq!(work(&server.data), before, "the only one that is wanted");
        assert_eq!(text(read(&server, &session, "f").await), "1");
        exec(&server, &session, "printf 2 >> f").await;
        again(&mut server, kill).await;
        // The turn goes on with it, and it is kept first.
        assert_eq!(turn(&server, &session, "cat f by-turn").await, "12turn\n");
        assert_eq!(resumed(&server, &session).await["kind"], "attached");
        let listed = checkpoints(&server, &session).await;
        assert_eq!(listed[1]["name"], "attached");
        assert!(works(&server.data).is_empty());
        again(&mut server, kill).await;
        assert!(works(&server.data).is_empty());
        assert_eq!(turn(&server, &session, "cat f").await, "12");
        assert_whole(&server.log(&session).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_waits_over_a_kill_finds_what_operations_did() {
    // Nothing is claimed before the kill: another session has the only place.
    let mut server = Server::start(&["runner.capacity=1", "runs.lease_s=1", "runs.beat_s=1"]).await;
    let slow = session_of(
        &server,
        json!({ "kind": "script", "steps": [{ "sleep_ms": 1_500 }] }),
    )
    .await;
    server.send(&slow, "x").await;
    server.wait_status(&slow, &["running"]).await;
    let session = session_of(&server, shell()).await;
    write(&server, &session, "f", "1").await;
    server.send(&session, "cat f").await;
    again(&mut server, true).await;
    server.wait_status(&session, &["idle"]).await;
    let log = server.log(&session).await;
    assert_eq!(of(&log, "agent.tool_result")[0]["output"], "1");
}
