//! Forks over a restart of the server, and from the command line.

use serde_json::{Value, json};

use crate::support::{Server, assert_whole, json_lines, longhaul, stderr, stdout};

#[tokio::test]
async fn forks_and_families_survive_a_kill() {
    let mut server = Server::start(&["runner.enabled=false"]).await;
    let deployment = server.deployment(json!({ "kind": "external" })).await;
    let a = server.session(&deployment).await;
    server.send(&a, "one").await;
    let fork = async |server: &Server, of: &str, from: Value| {
        let path = format!("/v1/sessions/{of}/fork");
        let child = server.post(&path, json!({ "from": from })).await;
        child["id"].as_str().unwrap().to_owned()
    };
    let b = fork(&server, &a, json!({ "head": true })).await;
    let c = fork(&server, &b, json!({ "seq": 2 })).await;
    let logs = [
        server.log(&a).await,
        server.log(&b).await,
        server.log(&c).await,
    ];
    let tree = server.get(&format!("/v1/sessions/{c}/tree")).await;
    server.process.kill9().unwrap();
    server.process.restart().await.unwrap();
    for (session, log) in [&a, &b, &c].into_iter().zip(&logs) {
        assert_whole(log);
        assert_eq!(server.log(session).await, *log);
    }
    assert_eq!(server.get(&format!("/v1/sessions/{c}/tree")).await, tree);
    server
        .must("DELETE", &format!("/v1/sessions/{a}"), Value::Null)
        .await;
    server.process.kill9().unwrap();
    server.process.restart().await.unwrap();
    assert_eq!(server.log(&c).await, logs[2], "without its first ancestor");
    server.send(&c, "on").await;
    let data = server.data.to_str().unwrap().to_owned();
    let Server {
        process, _folder, ..
    } = server;
    process.stop().await.unwrap();
    let verify = longhaul(&["verify", "--data", &data]).await;
    assert!(verify.status.success(), "{}", stderr(&verify));
}

#[tokio::test]
async fn a_family_from_the_command_line() {
    let server = Server::start(&["runner.enabled=false"]).await;
    let url = server.url();
    let run = async |args: &[&str]| longhaul(&[args, &["--server", &url]].concat()).await;
    let deployment = server.deployment(json!({ "kind": "external" })).await;
    let a = server.session(&deployment).await;
    server.send(&a, "hello").await;
    let forked = run(&["session", "fork", &a]).await;
    let b = stdout(&forked).trim().to_owned();
    assert!(b.starts_with("sess_"), "{}", stderr(&forked));
    let of_b = server.log(&b).await;
    let last = of_b.last().unwrap();
    let (event, cut) = (last["id"].as_str().unwrap(), last["seq"].as_u64().unwrap());
    let at = run(&["session", "fork", &b, "--at", event, "--principal", "ada"]).await;
    let c = stdout(&at).trim().to_owned();
    let as_json = run(&["session", "fork", &a, "--seq", "1", "--json"]).await;
    let d = json_lines(&as_json).remove(0);
    assert_eq!(d["forked_from"]["boundary_seq"], 1);
    let d = d["id"].as_str().unwrap();

    let tree = run(&["session", "tree", &c]).await;
    let shared = server.log(&a).await.len();
    let shared_id = server.log(&a).await[shared - 1]["id"].clone();
    let status = |shown: &Value| shown["status"].as_str().unwrap().to_owned();
    let mut statuses = Vec::new();
    for session in [&a[..], &b, &c, d] {
        statuses.push(status(
            &server.get(&format!("/v1/sessions/{session}")).await,
        ));
    }
    let wanted = format!(
        "{a}  {}\n├─ {b}  {}  forked at {shared}\n│  └─ {c}  {}  forked at {cut}  *\n└─ {d}  {}  forked at 1\n",
        statuses[0], statuses[1], statuses[2], statuses[3]
    );
    assert_eq!(stdout(&tree), wanted, "{}", stderr(&tree));
    let tree = run(&["session", "tree", &c, "--json"]).await;
    assert_eq!(
        json_lines(&tree)[0]["sessions"].as_array().unwrap().len(),
        4
    );

    let diff = run(&["session", "diff", &a, &c]).await;
    let text = stdout(&diff);
    let blocks: Vec<&str> = text.split("\n\n").collect();
    assert_eq!(blocks.len(), 3, "{text}{}", stderr(&diff));
    assert_eq!(
        blocks[0],
        format!("common  through {shared}  {}", shared_id.as_str().unwrap())
    );
    assert!(blocks[1].starts_with(&format!("left    {a}  ")), "{text}");
    assert!(blocks[2].starts_with(&format!("right   {c}  ")), "{text}");
    assert!(
        blocks[2].contains(&format!(
            "session.forked                 from {a} at {shared}\n"
        )),
        "{text}"
    );
    let some = run(&["session", "diff", &a, &c, "--limit", "1"]).await;
    let next = shared + 1;
    assert!(
        stdout(&some).contains(&format!("more after {next}: --right-after {next}")),
        "{}",
        stdout(&some)
    );

    let none = run(&["session", "checkpoints", &a]).await;
    assert!(none.status.success() && stdout(&none).is_empty());
    for (args, code) in [
        (vec!["session", "fork", &a, "--head", "--seq", "1"], 2),
        (vec!["session", "fork", &a, "--seq", "0"], 2),
        (vec!["session", "fork", &a, "--seq", "999"], 3),
        (vec!["session", "fork", &a, "--at", "evt_x"], 1),
        (vec!["session", "diff", &a], 2),
        (
            vec!["session", "tree", "sess_00000000000000000000000000000000"],
            3,
        ),
    ] {
        let out = run(&args).await;
        assert_eq!(out.status.code(), Some(code), "{args:?}: {}", stderr(&out));
    }
}
