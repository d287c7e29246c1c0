//! Contents that expire, over HTTP: quiet ones go, to the last byte; busy and shared ones stay.

use std::path::Path;
use std::time::Duration;

use longhaul::Runtime;
use longhaul::config::Config;
use longhaul_actors::env::ManualWorld;
use serde_json::{Value, json};

use super::forks::{fork, log, path};
use super::kit::{Site, id};

const TTL_S: u64 = 5;
const TTL_MS: u64 = TTL_S * 1_000;

/// A server on a folder, with clocks that move only when told, in a workspace with a policy.
pub(super) struct Place {
    pub(super) site: Site,
    pub(super) world: ManualWorld,
    folder: tempfile::TempDir,
}

fn config(folder: &Path) -> Config {
    let memory = super::kit::config();
    let mut config = Config::in_folder(folder.join("data"));
    config.http = memory.http;
    config.runner = memory.runner;
    config
}

impl Place {
    async fn open() -> Self {
        let (place, workspace) = Self::with(json!({ "content_ttl_s": TTL_S })).await;
        assert_eq!(
            workspace["policy"],
            json!({ "content_ttl_s": TTL_S, "zero_data_retention": false })
        );
        place
    }

    /// With this policy; the workspace too.
    pub(super) async fn with(policy: Value) -> (Self, Value) {
        let folder = tempfile::tempdir().unwrap();
        let (mut site, world) = Site::manual(config(folder.path())).await;
        let made = json!({ "name": "w", "policy": policy });
        let workspace = site.post("/v1/workspaces", made).await.must(201);
        site.headers = vec![("longhaul-workspace", id(&workspace))];
        let place = Self {
            site,
            world,
            folder,
        };
        (place, workspace)
    }

    /// The time that passes while the server is down, and the server after it.
    pub(super) async fn restart(self, down_ms: u64) -> Self {
        let headers = self.site.headers.clone();
        self.site.close().await;
        assert_clean(self.folder.path()).await;
        self.world.advance_ms(down_ms);
        let builder = Runtime::builder(config(self.folder.path()));
        let runtime = builder.door(self.world.door()).open().await.unwrap();
        let mut site = Site::serve(runtime);
        site.headers = headers;
        Self { site, ..self }
    }

    /// How often a text is in the files.
    pub(super) fn count(&self, text: &str) -> usize {
        count(&self.folder.path().join("data"), text.as_bytes())
    }

    pub(super) async fn until_gone(&self, text: &str) {
        until(text, async || self.count(text) == 0).await;
    }

    /// Waits for events that say that contents went.
    async fn until_expired(&self, session: &str, seq: u64) {
        until("expiry", async || {
            let events = log(&self.site, session).await;
            events[seq as usize - 1]["content_state"] == "expired"
        })
        .await;
    }

    /// A session with a settled turn that says these texts.
    async fn lived(&self, asked: &str, answered: &str) -> String {
        let session = self.site.session().await;
        self.turn(&session, asked, answered).await;
        session
    }

    async fn turn(&self, session: &str, asked: &str, answered: &str) -> Value {
        self.site.message(session, asked).await;
        let claim = self.site.claim(&self.site.runner().await).await;
        self.site.call(&claim, "ready", json!({})).await.must(200);
        let said =
            json!({ "events": [{ "type": "agent.message", "content": { "text": answered } }] });
        self.site.call(&claim, "events", said).await.must(202);
        self.site
            .call(&claim, "settle", json!({ "outcome": "succeeded" }))
            .await
            .must(200);
        claim
    }
}

fn count(folder: &Path, text: &[u8]) -> usize {
    let mut found = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found += count(&path, text);
        } else if let Ok(bytes) = std::fs::read(&path) {
            found += bytes.windows(text.len()).filter(|w| *w == text).count();
        }
    }
    found
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..2_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

async fn assert_clean(folder: &Path) {
    let data = folder.join("data");
    let output = tokio::process::Command::new(crate::support::PROGRAM)
        .args(["verify", "--data", data.to_str().unwrap()])
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// A text that no compression hides.
pub(super) fn secret(name: &str) -> String {
    format!("{name}-{}", blake3::hash(name.as_bytes()).to_hex())
}

pub(super) fn states(events: &[Value], kind: &str) -> Vec<String> {
    let of_kind = events.iter().filter(|e| e["type"] == kind);
    let states = of_kind.map(|e| {
        let state = e["content_state"].as_str().unwrap();
        assert_eq!(e["content"].is_null(), state != "present", "{e}");
        state.to_owned()
    });
    states.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn quiet_contents_expire_to_the_last_byte() {
    let place = Place::open().await;
    let site = &place.site;
    let (asked, answered) = (secret("asked"), secret("answered"));
    let session = place.lived(&asked, &answered).await;
    let before = log(site, &session).await;
    let last = before.len() as u64;
    assert!(place.count(&asked) > 0 && place.count(&answered) > 0);
    let mut follower = site.follow(&session, &format!("?after={last}")).await;
    place.world.advance_ms(TTL_MS);

    let told = follower.next().await.unwrap();
    assert_eq!(
        (told.id, &*told.name),
        (Some(last + 1), "content.erased"),
        "{told:?}"
    );
    let after = log(site, &session).await;
    let content = &after[last as usize]["content"];
    assert_eq!(content["reason"], "retention");
    assert_eq!(told.data["content"], *content);
    assert_eq!(states(&after, "user.message"), ["expired"]);
    assert_eq!(states(&after, "agent.message"), ["expired"]);
    for (was, is) in before.iter().zip(&after) {
        let gone = is["content_state"] == "expired";
        let (mut was, mut is) = (was.clone(), is.clone());
        if gone {
            for e in [&mut was, &mut is] {
                e["content"] = Value::Null;
                e["content_state"] = Value::Null;
            }
        }
        assert_eq!(was, is, "everything else stays");
    }
    place.until_gone(&asked).await;
    place.until_gone(&answered).await;

    // A fork over it is refused, at its end and in its middle; before it, it is not.
    for from in [
        json!({ "head": true }),
        json!({ "seq": last }),
        json!({ "seq": 2 }),
    ] {
        let body = json!({ "from": from });
        let refused = site.post(&path(&session, "/fork"), body).await;
        let problem = refused.code(409, "runtime.session_history_unavailable");
        assert!(problem["missing"].is_array(), "{problem}");
    }
    fork(site, &session, json!({ "seq": 1 })).await;

    // The conversation goes on, and the run is told what is missing.
    let claim = place.turn(&session, "on", "yes").await;
    let resume = &claim["resume"];
    assert_eq!(
        (&resume["kind"], &resume["reason"]),
        (&json!("event_log_rebuild"), &json!("history_incomplete"))
    );
    assert_eq!(resume["missing"], content["ranges"]);

    let whole = log(site, &session).await;
    let place = place.restart(0).await;
    assert_eq!(log(&place.site, &session).await, whole);
    assert_eq!(place.count(&asked) + place.count(&answered), 0);
    place.site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn activity_keeps_contents_and_time_passes_while_the_server_is_down() {
    let place = Place::open().await;
    let text = secret("busy");
    let session = place.lived(&text, "a").await;
    for n in 0..4 {
        place.world.advance_ms(TTL_MS - 1_000);
        place.site.message(&session, &n.to_string()).await;
    }
    let events = log(&place.site, &session).await;
    assert!(events.iter().all(|e| e["content_state"] == "present"));
    assert!(events.iter().all(|e| e["type"] != "content.erased"));

    let place = place.restart(TTL_MS).await;
    place.until_expired(&session, events.len() as u64).await;
    place.until_gone(&text).await;
    let erased = |events: &[Value]| states(events, "content.erased").len();
    let events = log(&place.site, &session).await;
    let told = erased(&events);
    // Once is enough, whoever looks again.
    let place = place.restart(10 * TTL_MS).await;
    let again = log(&place.site, &session).await;
    assert_eq!(erased(&again), told);
    place.site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_living_fork_shares_stays_until_it_is_alone() {
    let place = Place::open().await;
    let site = &place.site;
    let [shared, own, theirs] = ["shared", "own", "theirs"].map(secret);
    let source = place.lived(&shared, "a").await;
    let boundary = log(site, &source).await.len() as u64;
    let child = id(&fork(site, &source, json!({ "head": true })).await);
    place.turn(&source, &own, "b").await;
    place.turn(&child, &theirs, "c").await;
    place.world.advance_ms(TTL_MS);
    place.until_gone(&own).await;
    place.until_gone(&theirs).await;
    for session in [&source, &child] {
        let events = log(site, session).await;
        assert_eq!(states(&events, "user.message"), ["present", "expired"]);
        let kept = events.iter().filter(|e| e["type"] == "content.erased");
        for event in kept {
            assert_eq!(event["content"]["kept_seq"], boundary);
        }
    }
    // Of what is whole, a fork can be made.
    let third = id(&fork(site, &child, json!({ "seq": boundary })).await);

    for gone in [&source, &third] {
        site.delete(&path(gone, "")).await.must(200);
    }
    place.world.advance_ms(TTL_MS);
    place.until_gone(&shared).await;
    let events = log(site, &child).await;
    assert_eq!(states(&events, "user.message"), ["expired", "expired"]);
    let body = json!({ "from": { "seq": boundary } });
    site.post(&path(&child, "/fork"), body)
        .await
        .code(409, "runtime.session_history_unavailable");
    place.restart(0).await.site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_input_has_expired_fails_and_the_next_one_runs() {
    let place = Place::open().await;
    let site = &place.site;
    let session = site.session().await;
    site.message(&session, "too late").await;
    let seq = log(site, &session)
        .await
        .iter()
        .position(|e| e["type"] == "user.message")
        .unwrap() as u64
        + 1;
    place.world.advance_ms(TTL_MS);
    place.until_expired(&session, seq).await;
    let runner = site.runner().await;
    let polled = format!("/v1/runners/{runner}/claims?wait_ms=0");
    until("the run fails", async || {
        let answer = site.post(&polled, json!({})).await.must(200);
        assert_eq!(answer["claims"], json!([]), "{answer}");
        let events = log(site, &session).await;
        events.iter().any(|e| {
            e["type"] == "run.settled"
                && e["content"]["error"]["code"] == "runtime.session_history_unavailable"
        })
    })
    .await;
    assert_eq!(site.show(&session).await["status"], "idle");
    site.message(&session, "in time").await;
    let claim = site.claim(&runner).await;
    assert_eq!(claim["inputs"][0]["content"]["text"], "in time");
    place.restart(0).await.site.close().await;
}
