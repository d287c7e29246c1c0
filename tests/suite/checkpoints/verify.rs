//! `longhaul verify` reads what checkpoints stand on, names which of them is hit, and changes
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

use super::kit::*;
use crate::support::{Server, json_lines, longhaul, packs};

/// Every file below a folder, with its bytes and its time.
fn everything(folder: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let (mut found, mut open) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(folder) = open.pop() {
        for path in std::fs::read_dir(folder)
            .unwrap()
            .map(|e| e.unwrap().path())
        {
            if path.is_dir() {
                open.push(path);
            } else {
                let changed = path.metadata().unwrap().modified().unwrap();
                found.insert(path.clone(), (std::fs::read(&path).unwrap(), changed));
            }
        }
    }
    found
}

/// What it prints: the findings, and the counts.
async fn verify(data: &Path, exit: i32) -> (Vec<Value>, Value) {
    let before = everything(data);
    let out = longhaul(&["verify", "--json", "--data", data.to_str().unwrap()]).await;
    assert_eq!(out.status.code(), Some(exit), "{out:?}");
    assert_eq!(everything(data), before, "it changes nothing");
    let mut lines = json_lines(&out);
    let at = lines.iter().position(|l| l.get("snapshots").is_some());
    let counts = lines.remove(at.unwrap());
    lines.retain(|l| l.get("reason").is_some());
    (lines, counts)
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_and_missing_packs_are_named_with_the_checkpoints_they_hit() {
    let server = Server::start(&[]).await;
    let session = session_of(&server, shell()).await;
    turn(&server, &session, "head -c 300000 /dev/urandom > big").await;
    let first = packs(&server.data);
    turn(&server, &session, "echo 2 > f").await;
    let listed = checkpoints(&server, &session).await;
    let log = server.log(&session).await;
    let Server {
        process,
        data,
        _folder,
    } = server;
    process.stop().await.unwrap();
    let (found, counts) = verify(&data, 0).await;
    assert_eq!((found.len(), &counts["snapshots"]), (0, &2.into()));

    let all = packs(&data);
    let newest = all.iter().find(|p| !first.contains(p)).unwrap();
    let ids = |n: usize| {
        let (c, seq) = (&listed[n], |id: &Value| {
            let created = log.iter().find(|e| e["content"]["checkpoint_id"] == *id);
            created.unwrap()["seq"].clone()
        });
        (
            c["id"].as_str().unwrap(),
            c["snapshot"]["id"].as_str().unwrap(),
            seq(&c["id"]),
        )
    };
    // The older pack holds what both checkpoints need, the newer one what the newest alone needs.
    for (pack, hit) in [(&first[0], vec![ids(0), ids(1)]), (newest, vec![ids(0)])] {
        let bytes = std::fs::read(pack).unwrap();
        let mut flipped = bytes.clone();
        flipped[40] ^= 1;
        let half = bytes[..bytes.len() / 2].to_vec();
        for damage in [Some(flipped), Some(half), None] {
            match &damage {
                Some(bytes) => std::fs::write(pack, bytes).unwrap(),
                None => std::fs::remove_file(pack).unwrap(),
            }
            let (found, counts) = verify(&data, 12).await;
            assert_eq!(counts["faults"], found.len());
            let mut named = BTreeSet::new();
            for f in &found {
                assert_eq!(f["file"], pack.to_str().unwrap(), "{f}");
                assert_eq!(f["session"], session.as_str(), "{f}");
                let reason = f["reason"].as_str().unwrap();
                let of = hit.iter().position(|(checkpoint, snapshot, seq)| {
                    reason.contains(checkpoint)
                        && reason.contains(snapshot)
                        && f["first_seq"] == *seq
                });
                named.insert(of.unwrap_or_else(|| panic!("{f}")));
            }
            assert_eq!(named.len(), hit.len(), "{found:?}");
            std::fs::write(pack, &bytes).unwrap();
        }
    }
    verify(&data, 0).await;
}
