//! One face of agents, wherever their sessions live: in a runtime of the host's, in a folder, on a
//! server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use longhaul::agent::{AgentError, Server as Elsewhere};
use longhaul::tool::{ToolOutput, from_fn};
use longhaul::{Agent, AgentHandle, Code, Config, NewEvent, Outcome, Resume, Runtime};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::kit::{EACH, Notes, Played, TestTool, Way, calls, plain, says, times, wait};
use crate::support::Server;

/// Where an agent is open, and what must live as long.
enum Kept {
    Runtime(Runtime, tempfile::TempDir),
    Folder(tempfile::TempDir),
    Server(Box<Server>),
}

impl Kept {
    async fn close(self, agent: AgentHandle) {
        agent.close().await;
        match self {
            Self::Runtime(runtime, _folder) => runtime.close().await,
            Self::Folder(_folder) => {}
            Self::Server(server) => drop(server.stop().await),
        }
    }
}

const PLACES: [&str; 3] = ["embedded", "folder", "server"];

async fn open(place: &str, agent: Agent) -> (AgentHandle, Kept) {
    let folder = tempfile::tempdir().unwrap();
    match place {
        "embedded" => {
            let config = Config::in_folder(folder.path().join("data"));
            let runtime = Runtime::open(config).await.unwrap();
            let agent = agent.embed(&runtime).await.unwrap();
            (agent, Kept::Runtime(runtime, folder))
        }
        "folder" => {
            let agent = agent.open(folder.path().join("data")).await.unwrap();
            (agent, Kept::Folder(folder))
        }
        _ => {
            let server = Server::start(&[]).await;
            let at = Elsewhere::at(server.url());
            let agent = agent.connect(at).await.unwrap();
            (agent, Kept::Server(Box::new(server)))
        }
    }
}

fn note(notes: &Notes) -> TestTool {
    TestTool::new("note", Way::Notes, notes)
}

#[tokio::test]
async fn c8_every_place_offers_the_same() {
    for place in PLACES {
        let notes = Notes::default();
        let model = Played::new(vec![
            calls(&[("note", json!({"n": 1}))]),
            says("noted"),
            says("two"),
            says("three"),
            says("other"),
        ]);
        let agent = Agent::new("clerk")
            .instructions("be brief")
            .model(model.clone())
            .tool(note(&notes));
        let (agent, kept) = open(place, agent).await;

        let mut turn = agent.stream("one").await.unwrap();
        let session = turn.session_id();
        let mut kinds = Vec::new();
        while let Some(event) = turn.next().await {
            kinds.push(event.unwrap().kind);
        }
        let one = turn.answer().await.unwrap();
        assert!(kinds.iter().any(|k| k == "agent.tool_result"), "{kinds:?}");
        assert_eq!(kinds.last().unwrap(), "run.settled", "{place}");
        assert_eq!((one.text.as_str(), one.turns), ("noted", 2), "{place}");
        assert_eq!(one.outcome, Outcome::Succeeded);
        assert_eq!((one.usage, one.session_usage), (times(2), times(2)));
        assert_eq!(one.revision, 1);
        assert_eq!(agent.wait(session).await.unwrap(), one, "{place}");
        assert_eq!(notes.lock().unwrap().len(), 1);

        let two = agent.run_in(session, "two").await.unwrap();
        assert_eq!((two.usage, two.session_usage), (EACH, times(3)));
        let listed = agent.list_checkpoints(session, None).await.unwrap();
        assert_eq!(listed.len(), 2, "{place}: {listed:?}");
        let id = |n: usize| listed[n]["id"].as_str().unwrap();

        let in_place = Resume::of(session).prompt("three").from_checkpoint(id(0));
        let three = agent.resume(in_place).await.unwrap();
        assert_eq!((three.session_id, three.text.as_str()), (session, "three"));
        let older = Resume::of(session).prompt("or so").from_checkpoint(id(1));
        let other = agent.resume(older).await.unwrap();
        assert_ne!(other.session_id, session, "{place}");
        let wanted = [
            "user: one",
            r#"agent calls note {"n":1}"#,
            r#"tool: noted {"n":1}"#,
            "agent: noted",
            "user: or so",
        ];
        assert_eq!(plain(&model.saw(4)), wanted, "{place}");
        kept.close(agent).await;
    }
}

#[tokio::test]
async fn steering_interrupts_and_signals_reach_the_session() {
    for place in PLACES {
        let model = Played::new(vec![says("one"), says("two")]).hold(0);
        let (agent, kept) = open(place, Agent::new("clerk").model(model.clone())).await;
        let turn = agent.stream("go").await.unwrap();
        let session = turn.session_id();
        wait("the first call", || model.calls() == 1).await;
        agent.signal(session, "bell", json!(1)).await.unwrap();
        agent.interrupt(session).await.unwrap();
        let interrupted = turn.answer().await.unwrap();
        assert_eq!(interrupted.outcome, Outcome::Interrupted, "{place}");
        model.let_go();
        agent.steer(session, "again").await.unwrap();
        let answer = agent.wait(session).await.unwrap();
        assert_eq!(answer.text, "one", "{place}");
        let shown = agent.show(session).await.unwrap();
        assert_eq!(shown["status"], "idle", "{place}");
        kept.close(agent).await;
    }
}

#[tokio::test]
async fn an_approval_is_waited_for_and_answered() {
    for place in PLACES {
        let notes = Notes::default();
        let model = Played::new(vec![calls(&[("note", json!({}))]), says("done")]);
        let agent = Agent::new("clerk").model(model);
        let (agent, kept) = open(place, agent.tool_with_approval(note(&notes))).await;
        let asked = agent.run("go").await.unwrap();
        let Outcome::Waiting(on) = &asked.outcome else {
            panic!("{place}: {asked:?}");
        };
        assert_eq!((on.len(), notes.lock().unwrap().len()), (1, 0), "{place}");
        let granted = NewEvent::new("user.action_approval", json!({"decision": "granted"}));
        agent.submit(asked.session_id, granted).await.unwrap();
        let answer = agent.wait(asked.session_id).await.unwrap();
        assert_eq!(answer.text, "done", "{place}: {answer:?}");
        assert_eq!(notes.lock().unwrap().len(), 1);
        kept.close(agent).await;
    }
}

#[tokio::test]
async fn answers_are_read_as_types() {
    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Town {
        name: String,
    }
    let model = Played::new(vec![says(r#"{"name": "Ulm"}"#)]);
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    let agent = Agent::new("clerk").model(model.clone());
    let agent = agent.output_schema(schema.clone());
    let (agent, kept) = open("folder", agent).await;
    let town = agent.run_typed::<Town>("where?").await.unwrap();
    assert_eq!(town.value.name, "Ulm");
    assert_eq!(model.asked.lock().unwrap()[0].schema, Some(schema));
    let other = agent.run_typed::<u32>("where?").await.unwrap_err();
    assert!(matches!(other, AgentError::Untyped { .. }), "{other}");
    kept.close(agent).await;

    let none = Agent::new("clerk").model(Played::new(Vec::new()));
    let (agent, kept) = open("folder", none).await;
    let failed = agent.run_typed::<Town>("where?").await.unwrap_err();
    let AgentError::Unfinished(answer) = failed else {
        panic!("{failed}");
    };
    assert!(matches!(&answer.outcome, Outcome::Failed { code, .. } if code == "model.nonsense"));
    kept.close(agent).await;
}

#[tokio::test]
async fn what_an_agent_is_made_of_is_checked_when_it_opens() {
    let folder = tempfile::tempdir().unwrap();
    let open = |agent: Agent| agent.open(folder.path().join("data"));
    let none = open(Agent::new("clerk")).await.unwrap_err();
    assert!(matches!(none, AgentError::Model(_)), "{none}");
    let absent = open(Agent::new("clerk").model("nowhere/none")).await;
    assert!(matches!(absent.unwrap_err(), AgentError::Model(_)));
    let scripted = || Agent::new("clerk").scripted(json!([{"text": "hi"}]));
    let twice = scripted().tool(note(&Notes::default()));
    let twice = open(twice.tool(note(&Notes::default()))).await.unwrap_err();
    assert_eq!(twice.code(), Some(Code::DeploymentInvalid), "{twice}");
    let odd = scripted().built_in("telepathy", longhaul::agent::ApprovalMode::Never);
    assert_eq!(
        open(odd).await.unwrap_err().code(),
        Some(Code::DeploymentInvalid)
    );
    let agent = open(scripted()).await.unwrap();
    assert_eq!(agent.run("?").await.unwrap().text, "hi");
    agent.close().await;
}

#[tokio::test]
async fn an_agent_finds_its_sessions_again_and_changed_instructions_are_for_new_ones() {
    let folder = tempfile::tempdir().unwrap();
    let model = Played::new(vec![says("one"), says("two")]);
    let agent = |told: &str| {
        let agent = Agent::new("clerk").instructions(told).model(model.clone());
        agent.open(folder.path().join("data"))
    };
    let first = agent("be brief").await.unwrap();
    let (deployment, old) = (first.deployment(), first.run("go").await.unwrap());
    first.close().await;
    let second = agent("be long").await.unwrap();
    assert_eq!((second.deployment(), second.revision()), (deployment, 2));
    let again = second.resume(Resume::of(old.session_id).prompt("on")).await;
    assert_eq!(again.unwrap().revision, 1);
    let new = second.run("go").await.unwrap();
    assert_eq!(new.revision, 2);
    second.close().await;
    let third = agent("be long").await.unwrap();
    assert_eq!((third.deployment(), third.revision()), (deployment, 2));
    third.close().await;
    let asked = model.asked.lock().unwrap();
    let told: Vec<&str> = asked.iter().map(|r| r.system.as_str()).collect();
    assert_eq!(told, ["be brief", "be brief", "be long"]);
}

#[tokio::test]
async fn another_users_session_looks_absent() {
    let agent = Agent::new("clerk").scripted(json!([{"text": "a secret"}, {"text": "more"}]));
    let (agent, kept) = open("folder", agent).await;
    let (ann, bob) = (agent.as_user("ann"), agent.as_user("bob"));
    let session = ann.run("hush").await.unwrap().session_id;
    let absent = |error: AgentError| assert_eq!(error.code(), Some(Code::SessionNotFound));
    absent(bob.list_checkpoints(session, None).await.unwrap_err());
    absent(bob.resume(Resume::of(session)).await.unwrap_err());
    absent(bob.run_in(session, "?").await.unwrap_err());
    absent(bob.wait(session).await.unwrap_err());
    absent(bob.show(session).await.unwrap_err());
    assert_eq!(ann.list_checkpoints(session, None).await.unwrap().len(), 1);
    let more = ann
        .resume(Resume::of(session).prompt("and?"))
        .await
        .unwrap();
    assert_eq!(more.text, "more");
    kept.close(agent).await;
}

#[tokio::test]
async fn l11_a_lookup_that_fails_is_an_error_and_no_new_start() {
    let agent = Agent::new("clerk").scripted(json!([{"text": "hi"}]));
    let server = Server::start(&[]).await;
    let at = Elsewhere::at(server.url());
    let agent = agent.clone().connect(at).await.unwrap();
    let session = agent.run("go").await.unwrap().session_id;
    server.stop().await;
    let away = agent.resume(Resume::of(session)).await.unwrap_err();
    assert!(matches!(away, AgentError::Unreachable(_)), "{away}");
    let away = agent.list_checkpoints(session, None).await.unwrap_err();
    assert!(matches!(away, AgentError::Unreachable(_)), "{away}");
    agent.close().await;

    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::open(Config::in_folder(folder.path().join("data")));
    let runtime = runtime.await.unwrap();
    let agent = Agent::new("clerk").scripted(json!([{"text": "hi"}]));
    let agent = agent.embed(&runtime).await.unwrap();
    let session = agent.run("go").await.unwrap().session_id;
    runtime.session(session).erase().await.unwrap();
    let gone = agent.resume(Resume::of(session)).await.unwrap_err();
    assert_eq!(gone.code(), Some(Code::SessionErased), "{gone}");
    runtime.close().await;
    let closed = agent.resume(Resume::of(session)).await.unwrap_err();
    assert_eq!(closed.code(), Some(Code::Stopped), "{closed}");
}

#[tokio::test]
async fn while_no_agent_of_the_name_is_open_its_runs_wait() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::open(Config::in_folder(folder.path().join("data")));
    let runtime = runtime.await.unwrap();
    let model = Played::new(vec![says("one"), says("two")]);
    let agent = || Agent::new("clerk").model(model.clone());
    let first = agent().embed(&runtime).await.unwrap();
    let session = first.run("go").await.unwrap().session_id;
    first.close().await;
    let handle = runtime.session(session);
    handle.send("on").await.unwrap();
    let shown = handle.show().await.unwrap();
    assert_eq!(shown["status"], "pending", "{shown}");
    let again = agent().embed(&runtime).await.unwrap();
    let two = again.wait(session).await.unwrap();
    assert_eq!((two.text.as_str(), model.calls()), ("two", 2));
    runtime.close().await;
}

#[tokio::test]
async fn a_turn_goes_on_over_the_death_of_its_server() {
    let mut server = Server::start(&[]).await;
    let gate = Arc::new(Semaphore::new(0));
    let entered = Arc::new(AtomicUsize::new(0));
    let (closed, enters) = (Arc::clone(&gate), Arc::clone(&entered));
    let schema = json!({"type": "object"});
    let tool = from_fn("work", "Works.", schema, move |_: Value| {
        let (closed, enters) = (Arc::clone(&closed), Arc::clone(&enters));
        async move {
            enters.fetch_add(1, Ordering::SeqCst);
            drop(closed.acquire().await);
            Ok(ToolOutput::text("worked"))
        }
    });
    let model = Played::new(vec![calls(&[("work", json!({}))]), says("done")]);
    let agent = Agent::new("clerk").model(model).tool(tool);
    let agent = agent.connect(Elsewhere::at(server.url())).await.unwrap();
    let mut turn = agent.stream("go").await.unwrap();
    let first = turn.next().await.unwrap().unwrap();
    wait("the tool", || entered.load(Ordering::SeqCst) == 1).await;
    server.process.kill9().unwrap();
    server.process.restart().await.unwrap();
    gate.add_permits(1);
    let mut seqs = vec![first.seq];
    while let Some(event) = turn.next().await {
        seqs.push(event.unwrap().seq);
    }
    // Each event once, in order, over both lives of the server.
    assert!(seqs.windows(2).all(|w| w[1] == w[0] + 1), "{seqs:?}");
    let answer = turn.answer().await.unwrap();
    assert_eq!((answer.text.as_str(), answer.turns), ("done", 2));
    assert_eq!(entered.load(Ordering::SeqCst), 1);
    agent.close().await;
    server.stop().await;
}

/// How many calls of a tool there were at the same time.
#[derive(Debug, Default)]
struct Crowd {
    now: AtomicUsize,
    most: AtomicUsize,
    all: AtomicUsize,
}

/// An agent that calls its tool and says something, by turns.
fn counted(crowd: &Arc<Crowd>) -> Agent {
    let crowd = Arc::clone(crowd);
    let schema = json!({"type": "object"});
    let work = from_fn("work", "Works.", schema, move |_: Value| {
        let crowd = Arc::clone(&crowd);
        async move {
            let now = crowd.now.fetch_add(1, Ordering::SeqCst) + 1;
            crowd.most.fetch_max(now, Ordering::SeqCst);
            crowd.all.fetch_add(1, Ordering::SeqCst);
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            crowd.now.fetch_sub(1, Ordering::SeqCst);
            Ok(ToolOutput::text(""))
        }
    });
    let turn = [calls(&[("work", json!({}))]), says("done")];
    let answers = turn.iter().cycle().take(40).cloned();
    Agent::new("clerk")
        .model(Played::new(answers.collect()))
        .tool(work)
}

#[tokio::test]
async fn j16_two_runs_of_one_session_take_turns_also_from_two_runners() {
    let server = Server::start(&[]).await;
    let crowd = Arc::default();
    let at = || Elsewhere::at(server.url());
    let one = counted(&crowd).connect(at()).await.unwrap();
    let two = counted(&crowd).connect(at()).await.unwrap();
    assert_eq!(one.deployment(), two.deployment());
    let session = one.run("go").await.unwrap().session_id;
    let both = (0..5).map(|_| async {
        let first = one.run_in(session, "one");
        let second = two.run_in(session, "two");
        let (first, second) = tokio::join!(first, second);
        assert!(first.unwrap().is_success() && second.unwrap().is_success());
    });
    futures_util::future::join_all(both).await;
    assert!(crowd.all.load(Ordering::SeqCst) > 1);
    assert_eq!(crowd.most.load(Ordering::SeqCst), 1);
    let log = server.log(&session.to_string()).await;
    let mut live = None;
    for event in &log {
        match event["type"].as_str().unwrap() {
            "run.queued" => assert_eq!(live.replace(&event["run_id"]), None),
            "run.settled" => assert_eq!(live.take(), Some(&event["run_id"])),
            _ => {}
        }
    }
    one.close().await;
    two.close().await;
}
