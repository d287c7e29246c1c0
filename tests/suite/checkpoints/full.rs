//! A disk that is really full under the sandboxes or under the snapshots: small ones of their own,
//! in a process of its own.

use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use longhaul::load::server::ServerProcess;
use serde_json::json;

use super::kit::*;
use crate::support::{Server, assert_whole, spec};

const FOLDER: &str = "LONGHAUL_FULL_SANDBOX_TEST_FOLDER";
const NAME: &str = "checkpoints::full::a_full_disk_is_named_and_passes";

#[test]
fn a_full_disk_is_named_and_passes() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let threads = tokio::runtime::Runtime::new().unwrap();
        return threads.block_on(fill(Path::new(&folder)));
    }
    let folder = tempfile::tempdir().unwrap();
    // Mounting needs a user namespace, which not every machine gives: the tests of runtime control
    // have the same with errors of their own.
    let script = "mkdir -p \"$1/data/snapshots\" \"$1/data.sandboxes\" &&
        mount -t tmpfs -o size=4m tmpfs \"$1/data/snapshots\" &&
        mount -t tmpfs -o size=4m tmpfs \"$1/data.sandboxes\" || exit 77
        exec \"$2\" --exact \"$3\"";
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(folder.path())
        .arg(std::env::current_exe().unwrap())
        .arg(NAME)
        .env(FOLDER, folder.path())
        .output();
    match output {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.contains("1 passed"), "{text}");
        }
        Ok(output) if output.status.code() == Some(101) => {
            panic!("{}", String::from_utf8_lossy(&output.stdout));
        }
        other => eprintln!("no disk can be mounted here, so none was filled: {other:?}"),
    }
}

async fn fill(folder: &Path) {
    let data = folder.join("data");
    let process = ServerProcess::start(spec(&data, &[], &[])).await.unwrap();
    let server = Server {
        process,
        data: data.clone(),
        _folder: tempfile::tempdir().unwrap(),
    };
    let session = session_of(&server, shell()).await;
    let file = |path: &str, bytes: usize| {
        json!({ "runtime_id": session, "path": path,
            "content_base64": BASE64.encode(vec![7; bytes]) })
    };
    op(&server.url(), "write-file", file("first", 3 << 20))
        .await
        .must();
    let full = op(&server.url(), "write-file", file("big", 3 << 20)).await;
    full.refused(507, "storage.full");
    assert_eq!(full.json["retryable"], true);
    op(&server.url(), "write-file", file("big", 10))
        .await
        .must();
    assert_eq!(
        text(read(&server, &session, "big").await),
        "\u{7}".repeat(10)
    );

    // Now there is no room for what is kept.
    let ballast = data.join("snapshots/ballast");
    let all = vec![1; 4 << 20];
    std::fs::write(&ballast, all).unwrap_err();
    exec(&server, &session, "head -c 300000 /dev/urandom > new").await;
    let full = op(
        &server.url(),
        "checkpoint",
        json!({ "runtime_id": session }),
    )
    .await;
    full.refused(507, "storage.full");
    assert!(checkpoints(&server, &session).await.is_empty());
    // A turn does not fail for it.
    assert_eq!(turn(&server, &session, "wc -c < new").await, "300000\n");
    let log = server.log(&session).await;
    assert_whole(&log);
    assert_eq!(of(&log, "run.settled")[0]["outcome"], "succeeded");
    let failed = of(&log, "checkpoint.failed");
    let reason = failed[0]["reason"].as_str().unwrap();
    assert!(reason.contains("full"), "{reason}");
    assert!(checkpoints(&server, &session).await.is_empty());

    std::fs::remove_file(&ballast).unwrap();
    // The disk of that turn stayed: it is kept before the next one changes it, and after.
    let again = "echo again > f; wc -c < new";
    assert_eq!(turn(&server, &session, again).await, "300000\n");
    assert_eq!(checkpoints(&server, &session).await.len(), 2);
    server.process.stop().await.unwrap();
}
