//! The command: what it prints, how it ends, and that following loses nothing.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{PROGRAM, Server, assert_whole, json_lines, longhaul, stderr, stdout};

/// A server that speaks only the event stream: each connection gets what the script says.
struct Fake {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    /// `connections[n]` is sent to the n-th connection, which is then cut.
    async fn start(connections: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        tokio::spawn(async move {
            for body in connections {
                let (mut peer, _) = listener.accept().await.unwrap();
                let target = target(&mut peer).await;
                noted.lock().unwrap().push(target);
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                            connection: close\r\n\r\n";
                peer.write_all(format!("{head}{body}").as_bytes())
                    .await
                    .unwrap();
                peer.shutdown().await.unwrap();
            }
        });
        Self { url, asked }
    }
}

/// The path and query of a request.
async fn target(peer: &mut TcpStream) -> String {
    let mut text = String::new();
    let mut piece = [0; 1024];
    while !text.contains("\r\n\r\n") {
        let n = peer.read(&mut piece).await.unwrap();
        assert!(n > 0, "a request that ends early: {text}");
        text.push_str(std::str::from_utf8(&piece[..n]).unwrap());
    }
    text.split(' ').nth(1).unwrap().to_owned()
}

fn frame(seq: u64, boundary: bool) -> String {
    let data = json!({ "seq": seq, "type": "agent.message", "boundary": boundary,
        "content": { "text": format!("number {seq}") } });
    format!("id: {seq}\nevent: agent.message\ndata: {data}\n\n")
}

#[tokio::test]
async fn follow_keeps_its_cursor_over_cuts_that_bring_only_heartbeats() {
    let beats = ": beat\n\n: beat\n\n".to_owned();
    let mut script = vec![frame(4, false) + &frame(5, false)];
    script.extend(std::iter::repeat_n(beats, 5));
    // The server repeats 5, cut in the middle of 6, then goes on.
    script.push(frame(5, false) + &frame(6, true)[..20]);
    script.push(frame(6, true));
    let fake = Fake::start(script).await;
    let follow = [
        "session",
        "follow",
        "sess_1",
        "--after",
        "3",
        "--until-boundary",
        "--json",
    ];
    let out = longhaul(&[&follow[..], &["--server", &fake.url]].concat()).await;
    assert!(out.status.success(), "{}", stderr(&out));
    let seqs: Vec<u64> = json_lines(&out)
        .iter()
        .map(|e| e["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(seqs, [4, 5, 6]);
    let asked = fake.asked.lock().unwrap().clone();
    let cursor = |n: u64| format!("/v1/sessions/sess_1/events/stream?after={n}&until=boundary");
    let mut wanted = vec![cursor(3)];
    wanted.extend(std::iter::repeat_n(cursor(5), 7));
    assert_eq!(asked, wanted);
}

#[tokio::test]
async fn follow_gives_up_after_its_retries() {
    let fake = Fake::start(vec![": beat\n\n".to_owned(); 3]).await;
    let follow = ["session", "follow", "sess_1", "--retries", "2", "--json"];
    let out = longhaul(&[&follow[..], &["--server", &fake.url]].concat()).await;
    assert_eq!(out.status.code(), Some(14), "{}", stderr(&out));
    assert_eq!(fake.asked.lock().unwrap().len(), 3);
    let last = stderr(&out).lines().last().unwrap().to_owned();
    let error: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(error["error"]["code"], "cli.unreachable");
}

#[tokio::test]
async fn follow_ends_with_a_terminal_session_and_obeys_reconnect() {
    let again = frame(1, false) + "event: reconnect\ndata: {}\n\n";
    let fake = Fake::start(vec![again, frame(2, false) + "event: end\ndata: {}\n\n"]).await;
    let out = longhaul(&[
        "session", "follow", "sess_1", "--json", "--server", &fake.url,
    ])
    .await;
    assert!(out.status.success(), "{}", stderr(&out));
    assert_eq!(json_lines(&out).len(), 2);
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let mut child = Command::new(PROGRAM)
        .arg("transitions")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Closed before the first line.
    drop(child.stdout.take());
    let status = child.wait().unwrap();
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(status.success(), "{status}: {said}");
    assert_eq!(said, "");
}

#[tokio::test]
async fn usage_errors_and_absent_servers_have_their_own_codes() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    for (args, code) in [
        (vec!["session"], 2),
        (vec!["serve"], 2),
        (vec!["load", "--sessions", "0"], 2),
        (vec!["session", "erase", "sess_1"], 2),
        (vec!["session", "list", "--server", "ftp://x"], 2),
        (
            vec![
                "token",
                "new",
                "--kind",
                "runner",
                "--id",
                "r",
                "--workspace",
                "x y",
                "--scopes",
                "run",
            ],
            2,
        ),
        (vec!["session", "list", "--server", &nobody], 14),
        (vec!["help"], 0),
        (vec!["--version"], 0),
    ] {
        let out = longhaul(&args).await;
        assert_eq!(out.status.code(), Some(code), "{args:?}: {}", stderr(&out));
        assert!(!stderr(&out).contains("panicked"));
    }
}

#[tokio::test]
async fn transitions_are_the_table() {
    let lines = json_lines(&longhaul(&["transitions", "--json"]).await);
    assert_eq!(
        lines.len(),
        longhaul_actors::session::status::TRANSITIONS.len()
    );
    assert_eq!(
        lines[0],
        json!({"from": "pending", "to": "provisioning", "cause": "claim"})
    );
}

#[tokio::test]
async fn a_token_is_shown_once_and_its_line_lets_it_in() {
    let new = [
        "token",
        "new",
        "--kind",
        "principal",
        "--id",
        "ada",
        "--workspace",
        "default",
    ];
    let rest = ["--scopes", "read,write", "--expires-in", "1d", "--json"];
    let out = longhaul(&[&new[..], &rest].concat()).await;
    let made = json_lines(&out).remove(0);
    let secret = made["token"].as_str().unwrap();
    assert!(!made["line"].to_string().contains(secret));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    std::fs::write(&file, format!("{}\n", made["line"])).unwrap();
    let setting = format!("auth.tokens_file={}", file.display());
    let server = Server::start(&[&setting]).await;
    let list = ["session", "list", "--json", "--server"];
    let url = server.url();
    let refused = longhaul(&[&list[..], &[&url]].concat()).await;
    assert_eq!(refused.status.code(), Some(4), "{}", stderr(&refused));
    let allowed = longhaul(&[&list[..], &[&url, "--token", secret]].concat()).await;
    assert_eq!(allowed.status.code(), Some(0), "{}", stderr(&allowed));
}

#[tokio::test]
async fn a_session_from_the_command_line() {
    let server = Server::start(&[]).await;
    let url = server.url();
    let run = async |args: &[&str]| longhaul(&[args, &["--server", &url]].concat()).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agent.json");
    let steps = json!([{ "question": { "questions": [{ "question": "which?" }] } }, { "say": "{{input}}!" }]);
    let agent = json!({ "name": "a", "sandbox": { "provider": "none", "max_duration_seconds": 60 },
        "release": { "instructions": "", "harness": { "kind": "script", "steps": steps } } });
    std::fs::write(&file, agent.to_string()).unwrap();
    let made = run(&["deployment", "create", file.to_str().unwrap()]).await;
    let deployment = stdout(&made).trim().to_owned();
    assert!(
        deployment.starts_with("dep_"),
        "{}{}",
        stdout(&made),
        stderr(&made)
    );
    let listed = run(&["deployment", "list", "--json"]).await;
    assert_eq!(
        json_lines(&listed)[0]["id"],
        deployment.as_str(),
        "{}",
        stderr(&listed)
    );

    let made = run(&[
        "session",
        "create",
        "--deployment",
        &deployment,
        "--metadata",
        "k=v",
    ])
    .await;
    let session = stdout(&made).trim().to_owned();
    assert!(session.starts_with("sess_"), "{}", stderr(&made));
    let sent = run(&["session", "send", &session, "hi", "--follow", "--json"]).await;
    let events = json_lines(&sent);
    assert_eq!(
        events.last().unwrap()["type"],
        "run.parked",
        "{}",
        stdout(&sent)
    );
    let shown = run(&["session", "show", &session]).await;
    assert!(stdout(&shown).contains("paused") && stdout(&shown).contains("question_id"));
    let no = run(&["session", "approve", &session]).await;
    assert_eq!(no.status.code(), Some(5), "{}", stderr(&no));

    let last = events.last().unwrap()["seq"].to_string();
    let answered = run(&["session", "answer", &session, "this one"]).await;
    assert!(answered.status.success(), "{}", stderr(&answered));
    let rest = run(&[
        "session",
        "follow",
        &session,
        "--after",
        &last,
        "--until-boundary",
    ])
    .await;
    assert!(stdout(&rest).contains("hi!"), "{}", stdout(&rest));
    let log = server.log(&session).await;
    assert_whole(&log);

    let listed = run(&["session", "list", "--status", "idle", "--json"]).await;
    assert_eq!(json_lines(&listed)[0]["id"], session.as_str());
    let steered = run(&["session", "steer", &session, "again"]).await;
    assert!(steered.status.success(), "{}", stderr(&steered));
    let canceled = run(&["session", "cancel", &session]).await;
    assert!(
        stdout(&canceled).contains("canceled"),
        "{}",
        stderr(&canceled)
    );
    assert_eq!(
        run(&["session", "send", &session, "late"])
            .await
            .status
            .code(),
        Some(5)
    );
    assert!(
        run(&["session", "erase", &session, "--yes"])
            .await
            .status
            .success()
    );
    assert_eq!(
        run(&["session", "show", &session]).await.status.code(),
        Some(3)
    );
    let unknown = "sess_00000000000000000000000000000000";
    assert_eq!(
        run(&["session", "show", unknown]).await.status.code(),
        Some(3)
    );
    assert_eq!(
        run(&["session", "show", "../x"]).await.status.code(),
        Some(1)
    );
}

#[tokio::test]
async fn a_second_server_is_refused_by_folder_and_by_address() {
    let server = Server::start(&[]).await;
    let data = server.data.to_str().unwrap();
    let same_folder = longhaul(&["serve", "--data", data, "--listen", "127.0.0.1:0"]).await;
    assert_eq!(
        same_folder.status.code(),
        Some(10),
        "{}",
        stderr(&same_folder)
    );
    assert!(stderr(&same_folder).contains(data));
    let other = tempfile::tempdir().unwrap();
    let address = server.url().replace("http://", "");
    let same_address = longhaul(&[
        "serve",
        "--data",
        other.path().to_str().unwrap(),
        "--listen",
        &address,
    ])
    .await;
    assert_eq!(
        same_address.status.code(),
        Some(13),
        "{}",
        stderr(&same_address)
    );
    let verify = longhaul(&["verify", "--data", data]).await;
    assert_eq!(verify.status.code(), Some(10), "{}", stderr(&verify));
    assert!(server.get("/readyz").await.get("status").is_some());
}

#[tokio::test]
async fn serve_stops_in_order_and_its_folder_verifies() {
    let server = Server::start(&[]).await;
    let deployment = server.deployment(json!({ "kind": "external" })).await;
    let session = server.session(&deployment).await;
    server.send(&session, "x").await;
    let stopped = server.stop().await;
    assert_eq!(stopped.status.code(), Some(0));
    let data = &stopped.data;
    let verify = longhaul(&["verify", "--json", "--data", data.to_str().unwrap()]).await;
    assert!(
        verify.status.success(),
        "{}{}",
        stdout(&verify),
        stderr(&verify)
    );
}

#[tokio::test]
async fn serve_refuses_what_it_does_not_know() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("d");
    let data = data.to_str().unwrap();
    for set in ["no.such=1", "runs.lease_s=banana", "runs.lease_s"] {
        let out = longhaul(&[
            "serve",
            "--data",
            data,
            "--listen",
            "127.0.0.1:0",
            "--set",
            set,
        ])
        .await;
        assert_eq!(out.status.code(), Some(2), "{set}: {}", stderr(&out));
    }
    assert!(
        !folder.path().join("d").exists(),
        "a refused start made the folder"
    );
}

#[tokio::test]
async fn the_quickstart_holds_what_it_promises() {
    let out = longhaul(&["quickstart", "--json"]).await;
    assert!(out.status.success(), "{}{}", stdout(&out), stderr(&out));
    let lines = json_lines(&out);
    let last = lines.last().unwrap();
    let fork = &last["fork"];
    assert_eq!(
        fork["files"],
        json!({ "source": ["apples\npears\nplums\n", "3\n"],
            "fork": ["apples\nquinces\n", "3\n2\n"] }),
        "the fork starts with the source's files and changes its own"
    );
    assert_eq!(fork["common_through_seq"], fork["source_last_seq"]);
    assert_ne!(fork["session"], last["session"]);
    let proof = &last["proof"];
    assert_eq!(proof["attempts"], 2, "{proof}");
    assert_eq!(proof["outcomes"], json!(["succeeded"]));
    assert_whole(&lines[..lines.len() - 1]);
}
