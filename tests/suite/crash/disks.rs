//! Killed at every fault point of snapshots, checkpoints, forks and their collection: what is
//! listed can be restored, what is not listed is not kept, and no fork is half there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use longhaul::load::server::ServerProcess;
use longhaul_actors::checkpoint::{COLLECT_POINTS, EXPIRY_POINTS};
use longhaul_actors::rows;
use longhaul_storage::fault::SNAPSHOT_POINTS;
use longhaul_storage::{Log, Options, Order, PageLimit, RocksLog, read};
use serde_json::{Value, json};

use super::{Armed, SETTINGS, at_each, chosen};
use crate::support::{Server, assert_whole, call, id, packs, spec};

/// How long a point may take to be reached: some come only after several rounds.
const REACHED_S_MAX: u64 = 120;
/// Only packs of many snapshots are merged, which nothing here asks for: the storage crate's own
/// tests stop there.
const ELSEWHERE: &str = "snapshot::merged";

fn points() -> Vec<&'static str> {
    let mut all = SNAPSHOT_POINTS.to_vec();
    all.extend(longhaul_actors::engine::checkpoint_fault_points());
    // Nothing here lives long enough for its time to be over.
    all.retain(|p| *p != ELSEWHERE && !EXPIRY_POINTS.contains(p));
    chosen(all)
}

/// Settings under which checkpoints come and go.
fn settings() -> Vec<&'static str> {
    let few = ["retention.checkpoints_per_session_max=2"];
    SETTINGS.iter().copied().chain(few).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_every_point_of_a_checkpoints_life() {
    at_each(points(), killed_at).await;
}

/// What the work has come to: forks that were answered, and not erased since.
#[derive(Default)]
struct Made {
    forks: BTreeSet<String>,
    round: usize,
}

async fn killed_at(point: &'static str) -> bool {
    let settings = settings();
    let mut server = Server::start(&settings).await;
    let shell = json!({ "kind": "script", "steps": [{ "exec": "{{input}}" }] });
    let deployment = server.deployment(shell).await;
    let turns = server.session(&deployment).await;
    let operated = server.session(&deployment).await;
    // Shared by all that follow, so that packs outlive parts of themselves.
    server
        .send(&turns, "head -c 200000 /dev/urandom > keep; echo 0 > f")
        .await;
    server.wait_status(&turns, &["idle"]).await;
    let mut made = Made::default();
    server.process.kill9().unwrap();

    let passes = if COLLECT_POINTS.contains(&point) {
        ""
    } else {
        "2*off->"
    };
    let armed = format!("{point}={passes}return");
    let mut process = Armed::start(&server.data, &settings, &armed, REACHED_S_MAX).await;
    while let Some(url) = process.url() {
        // Stops where the server does.
        work(&url, &turns, &operated, &mut made).await;
    }
    let died = process.died();
    server.process.restart().await.unwrap();
    server.wait_status(&turns, &["idle"]).await;
    check(&server, &made, point).await;
    let stopped = server.stop().await;
    collected(&stopped.data, &settings, point).await;
    died
}

/// One round: turns with checkpoints, operations, a fork, a deletion, an erased fork.
async fn work(url: &str, turns: &str, operated: &str, made: &mut Made) -> Option<()> {
    made.round += 1;
    let n = made.round;
    let ask =
        async |method: &str, path: String, body: Value| call(url, method, &path, body).await.ok();
    let command = format!("head -c 60000 /dev/urandom > r; echo {n} > k{n}; echo {n} > f");
    say(url, turns, &command).await?;
    let text = BASE64.encode(format!("{n}\n"));
    let file = json!({ "runtime_id": operated, "path": "f", "content_base64": text });
    ask("POST", "/api/v1/runtimes/write-file".to_owned(), file).await?;
    let runtime = json!({ "runtime_id": operated });
    for verb in ["checkpoint", "pause", "resume"] {
        ask("POST", format!("/api/v1/runtimes/{verb}"), runtime.clone()).await?;
    }
    idle(url, turns).await?;
    let listed = format!("/v1/sessions/{turns}/checkpoints");
    let (_, listed) = ask("GET", listed, Value::Null).await?;
    let listed = listed["checkpoints"].as_array()?.clone();
    let newest = listed.first()?["id"].clone();
    let from = json!({ "from": { "checkpoint_id": newest } });
    let (status, child) = ask("POST", format!("/v1/sessions/{turns}/fork"), from).await?;
    if status == 201 {
        made.forks.insert(id(&child));
    }
    if made.forks.len() > 1 {
        let first = made.forks.pop_first()?;
        ask("DELETE", format!("/v1/sessions/{first}"), Value::Null).await?;
    }
    if n.is_multiple_of(2) {
        let oldest = json!({ "checkpoint_id": listed.last()?["id"], "force": true });
        let path = "/api/v1/runtimes/checkpoint/delete-snapshot".to_owned();
        ask("POST", path, oldest).await?;
    }
    Some(())
}

/// A message of which a turn is made.
pub(super) async fn say(url: &str, session: &str, command: &str) -> Option<()> {
    let said = json!({ "events": [{ "type": "user.message", "content": { "text": command } }] });
    let path = format!("/v1/sessions/{session}/events");
    call(url, "POST", &path, said).await.ok().map(drop)
}

/// Waits for the turn's end, or the server's.
pub(super) async fn idle(url: &str, session: &str) -> Option<()> {
    let mut every = tokio::time::interval(Duration::from_millis(10));
    let path = format!("/v1/sessions/{session}");
    loop {
        every.tick().await;
        let (_, shown) = call(url, "GET", &path, Value::Null).await.ok()?;
        if shown["status"] == "idle" {
            return Some(());
        }
    }
}

/// Every session is whole, every answered fork is there, and every live checkpoint gives its disk.
async fn check(server: &Server, made: &Made, point: &str) {
    let listed = server.get("/v1/sessions?limit=1000").await;
    let ids: BTreeSet<String> = listed["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .map(id)
        .collect();
    for fork in &made.forks {
        assert!(
            ids.contains(fork),
            "{point}: {fork} was answered and is gone"
        );
    }
    for session in ids {
        let log = server.log(&session).await;
        assert_whole(&log);
        let shown = server.get(&format!("/v1/sessions/{session}")).await;
        let of = |kind: &str| log.iter().find(|e| e["type"] == kind);
        let forked = &shown["forked_from"];
        assert_eq!(
            of("session.forked").is_some(),
            !forked.is_null(),
            "{point}: {session}"
        );
        let path = format!("/v1/sessions/{session}/checkpoints");
        let all = server.get(&path).await["checkpoints"].clone();
        if !forked.is_null() {
            let own = all.as_array().unwrap();
            assert!(
                own.iter().any(|c| c["kind"] == "fork"),
                "{point}: {session}: {all}"
            );
        }
        for checkpoint in all.as_array().unwrap() {
            if checkpoint["snapshot"]["state"] == "live" {
                let text = disk(server, checkpoint).await.unwrap();
                belongs(checkpoint, &text, &log, point);
            }
        }
    }
}

/// What `f` holds on a checkpoint's disk, or the code of a refusal.
pub(super) async fn disk(server: &Server, checkpoint: &Value) -> Result<String, String> {
    let refused = |answer: &Value| Err(answer["code"].as_str().unwrap().to_owned());
    let body = json!({ "checkpoint_id": checkpoint["id"] });
    let (status, answer) = server.call("POST", "/api/v1/runtimes/checkout", body).await;
    if status != 200 {
        return refused(&answer);
    }
    let branch = answer["runtime"]["runtime_id"].as_str().unwrap().to_owned();
    let file = json!({ "runtime_id": branch, "path": "f" });
    let (status, answer) = server
        .call("POST", "/api/v1/runtimes/read-file", file)
        .await;
    let path = format!("/v1/sessions/{branch}");
    server.must("DELETE", &path, Value::Null).await;
    if status != 200 {
        return refused(&answer);
    }
    let bytes = BASE64.decode(answer["content_base64"].as_str().unwrap());
    Ok(String::from_utf8(bytes.unwrap()).unwrap())
}

/// The text is that of the turn that the checkpoint ends.
pub(super) fn belongs(checkpoint: &Value, text: &str, log: &[Value], point: &str) {
    let what = format!("{point}: {checkpoint}: {text:?}");
    assert!(text.trim().parse::<usize>().is_ok(), "{what}");
    if checkpoint["kind"] == "settle" {
        let through = checkpoint["through_sequence"].as_u64().unwrap();
        let said = log
            .iter()
            .rev()
            .filter(|e| e["seq"].as_u64().unwrap() < through)
            .find(|e| e["type"] == "user.message")
            .unwrap();
        let said = said["content"]["text"].as_str().unwrap();
        assert!(
            said.ends_with(&format!("echo {} > f", text.trim())),
            "{what} after {said}"
        );
    }
}

/// After starts that collect, the packs on disk are those that rows name, and every reference is
/// that of a listed checkpoint.
pub(super) async fn collected(data: &Path, settings: &[&str], point: &str) {
    let mut seen = Vec::new();
    // A stop may come before the collection beside a start has ended.
    for _ in 0..10 {
        let process = ServerProcess::start(spec(data, settings, &[]))
            .await
            .unwrap();
        process.stop().await.unwrap();
        let wrong = left(data);
        if wrong.is_empty() {
            return;
        }
        seen.push(wrong);
    }
    panic!("{point}: {seen:?}");
}

fn left(data: &Path) -> Vec<String> {
    let log = RocksLog::open(data, Options::default()).unwrap();
    let limit = PageLimit {
        items_max: 100_000,
        bytes_max: 1 << 30,
    };
    let table = |tag: u8| -> Vec<Vec<u8>> {
        let all = read(&*log, |v| {
            v.rows(&rows::table(tag), None, Order::Asc, limit)
        });
        all.unwrap()
            .into_iter()
            .map(|(key, _)| key.to_vec())
            .collect()
    };
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let named: BTreeSet<String> = table(rows::PACK_HOLDER)
        .iter()
        .map(|k| hex(&k[1..17]))
        .collect();
    let mut there = BTreeMap::new();
    for pack in packs(data) {
        there.insert(pack.file_stem().unwrap().to_str().unwrap().to_owned(), ());
    }
    let mut wrong = Vec::new();
    wrong.extend(
        there
            .keys()
            .filter(|p| !named.contains(*p))
            .map(|p| format!("{p} is not named")),
    );
    wrong.extend(
        named
            .iter()
            .filter(|p| !there.contains_key(*p))
            .map(|p| format!("{p} is gone")),
    );
    let listed: BTreeSet<Vec<u8>> = table(rows::CHECKPOINT)
        .iter()
        .map(|k| k[1..].to_vec())
        .collect();
    let holders = table(rows::SNAPSHOT_HOLDER);
    let stray = holders.iter().filter(|k| !listed.contains(&k[17..]));
    wrong.extend(stray.map(|k| format!("{} holds a snapshot", hex(k))));
    let held: BTreeSet<Vec<u8>> = holders.iter().map(|k| k[1..17].to_vec()).collect();
    let snapshots = table(rows::SNAPSHOT);
    let loose = snapshots.iter().filter(|k| !held.contains(&k[1..]));
    wrong.extend(loose.map(|k| format!("{} is held by nothing", hex(k))));
    for tag in [rows::COLLECT, rows::DOOMED] {
        wrong.extend(
            table(tag)
                .iter()
                .map(|k| format!("{} is still there", hex(k))),
        );
    }
    log.close();
    wrong
}
