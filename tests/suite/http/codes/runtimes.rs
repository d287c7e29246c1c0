//! The codes of runtime control.

use std::path::Path;
use std::time::Duration;

use longhaul_actors::env::ManualWorld;
use serde_json::{Value, json};

use super::Seen;
use crate::http::kit::{Answer, Site, config, external, id};

/// A site that makes sandboxes under `folder`.
fn with_sandboxes(folder: &Path) -> longhaul::Config {
    let mut config = config();
    config.runner.enabled = true;
    config.runner.sandbox_dir = Some(folder.join("sandboxes"));
    config
}

async fn session(site: &Site) -> String {
    let mut described = external();
    described["release"]["harness"] = json!({ "kind": "script", "steps": [{ "say": "x" }] });
    described["sandbox"]["provider"] = json!("dir");
    let dep = id(&site.post("/v1/deployments", described).await.must(201));
    let body = json!({ "agent_deployment": dep });
    id(&site.post("/v1/sessions", body).await.must(201))
}

async fn op(site: &Site, verb: &str, session: &str, mut more: Value) -> Answer {
    more["runtime_id"] = json!(session);
    site.post(&format!("/api/v1/runtimes/{verb}"), more).await
}

/// Provokes them.
pub(super) async fn provoke(seen: &mut Seen) {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::with(with_sandboxes(folder.path())).await;
    let none = || json!({});
    let elsewhere = site.session().await;
    seen.take(
        op(&site, "pause", &elsewhere, none()).await,
        "runtime.unsupported_backend",
    );
    let s = session(&site).await;
    seen.take(op(&site, "resume", &s, none()).await, "runtime.not_paused");
    for (path, code) in [("../x", "sandbox.path_invalid"), ("x", "sandbox.not_found")] {
        let told = op(&site, "read-file", &s, json!({ "path": path })).await;
        seen.take(told, code);
    }
    let grow = json!({ "command": "truncate -s 17M big" });
    op(&site, "exec", &s, grow).await.must(200);
    let big = op(&site, "read-file", &s, json!({ "path": "big" })).await;
    seen.take(big, "sandbox.file_too_large");
    let one = op(&site, "checkpoint", &s, none()).await.must(200);
    op(&site, "pause", &s, none()).await.must(200);
    seen.take(
        op(&site, "pause", &s, none()).await,
        "runtime.already_paused",
    );
    seen.take(op(&site, "checkpoint", &s, none()).await, "runtime.paused");
    let delete = json!({ "checkpoint_id": one["checkpoint_id"] });
    let path = "/api/v1/runtimes/checkpoint/delete-snapshot";
    seen.take(site.post(path, delete).await, "snapshot.shared");
    nothing_kept(&site, seen).await;
    // There is no place for sandboxes any more.
    let other = session(&site).await;
    let sandboxes = folder.path().join("sandboxes");
    std::fs::remove_dir_all(&sandboxes).unwrap();
    std::fs::write(&sandboxes, "").unwrap();
    let told = op(&site, "exec", &other, json!({ "command": "true" })).await;
    seen.take(told, "sandbox.failed");
    site.close().await;
    at_once_and_for_long(seen).await;
}

/// A workspace that keeps nothing has no checkpoints.
async fn nothing_kept(site: &Site, seen: &mut Seen) {
    let new = json!({ "name": "z", "policy": { "zero_data_retention": true } });
    let workspace = id(&site.post("/v1/workspaces", new).await.must(201));
    let here = [("longhaul-workspace", workspace.as_str())];
    let mut described = external();
    described["release"]["harness"] = json!({ "kind": "script", "steps": [{ "say": "x" }] });
    described["sandbox"]["provider"] = json!("dir");
    let dep = site.post_with("/v1/deployments", described, &here).await;
    let body = json!({ "agent_deployment": id(&dep.must(201)) });
    let session = site.post_with("/v1/sessions", body, &here).await;
    let of = json!({ "runtime_id": id(&session.must(201)) });
    let told = site
        .post_with("/api/v1/runtimes/checkpoint", of, &here)
        .await;
    seen.take(told, "runtime.zero_data_retention");
}

/// An operation that is under way, until its time is over.
async fn at_once_and_for_long(seen: &mut Seen) {
    let folder = tempfile::tempdir().unwrap();
    let (site, world) = Site::manual(with_sandboxes(folder.path())).await;
    let s = session(&site).await;
    let long = async {
        let command = json!({ "command": "touch started; sleep 600" });
        op(&site, "exec", &s, command).await
    };
    let meanwhile = async {
        let mut every = tokio::time::interval(Duration::from_millis(10));
        while !has_started(&folder.path().join("sandboxes")) {
            every.tick().await;
        }
        let busy = op(&site, "checkpoint", &s, json!({})).await;
        world.advance_ms(301_000);
        busy
    };
    let work = async {
        let (long, busy) = tokio::join!(long, meanwhile);
        seen.take(busy, "runtime.session_busy");
        seen.take(long, "runtime.operation_timeout");
    };
    // The end of the command is waited for by the same clock.
    ticking(&world, work).await;
    ticking(&world, site.close()).await;
}

/// Moves the clock on, a little at a time, until the work is done.
async fn ticking(world: &ManualWorld, work: impl Future<Output = ()>) {
    let mut every = tokio::time::interval(Duration::from_millis(10));
    tokio::pin!(work);
    loop {
        tokio::select! {
            () = &mut work => return,
            _ = every.tick() => world.advance_ms(10),
        }
    }
}

fn has_started(sandboxes: &Path) -> bool {
    let entries = std::fs::read_dir(sandboxes).into_iter().flatten();
    entries
        .flatten()
        .any(|e| e.path().join("work/started").exists())
}
