//! Pages.

use serde_json::{Value, json};

use super::kit::{Site, config, external, id};

/// Walks all pages of a list and gives back the `id`s.
async fn walk(site: &Site, path: &str, name: &str, limit: usize) -> Vec<Value> {
    let (mut all, mut page) = (Vec::new(), String::new());
    loop {
        let answer = site
            .get(&format!("{path}?limit={limit}{page}"))
            .await
            .must(200);
        let items = answer[name].as_array().unwrap();
        assert!(items.len() <= limit + 1);
        all.extend(items.iter().cloned());
        match answer["next_page"].as_str() {
            Some(next) => page = format!("&page={next}"),
            None => return all,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_complete_at_any_page_size() {
    let site = Site::open().await;
    let mut deployments = Vec::new();
    for _ in 0..5 {
        deployments.push(json!(site.deployment().await));
        site.post("/v1/workspaces", json!({ "name": "w" }))
            .await
            .must(201);
    }
    let dep = deployments[0].as_str().unwrap();
    let mut revision = external();
    revision.as_object_mut().unwrap().remove("name");
    for _ in 0..4 {
        site.post(
            &format!("/v1/deployments/{dep}/revisions"),
            revision.clone(),
        )
        .await
        .must(201);
    }
    let mut sessions = Vec::new();
    for _ in 0..5 {
        let made = site
            .post("/v1/sessions", json!({ "agent_deployment": dep }))
            .await
            .must(201);
        sessions.push(json!(id(&made)));
    }
    for limit in [1, 2, 5, 100] {
        let ids = |items: Vec<Value>| {
            items
                .into_iter()
                .map(|i| i["id"].clone())
                .collect::<Vec<_>>()
        };
        let listed = walk(&site, "/v1/deployments", "deployments", limit).await;
        assert_eq!(listed[0]["revision"], 5, "the newest revision is shown");
        assert_eq!(ids(listed), deployments);
        assert_eq!(
            ids(walk(&site, "/v1/sessions", "sessions", limit).await),
            sessions
        );
        let path = format!("/v1/deployments/{dep}/revisions");
        let revisions = walk(&site, &path, "revisions", limit).await;
        let numbers: Vec<u64> = revisions
            .iter()
            .map(|r| r["revision"].as_u64().unwrap())
            .collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        let workspaces = walk(&site, "/v1/workspaces", "workspaces", limit).await;
        assert_eq!(
            (workspaces.len(), &workspaces[0]["id"]),
            (6, &json!("default"))
        );
    }
    let done = sessions[2].as_str().unwrap();
    site.post(&format!("/v1/sessions/{done}/complete"), json!({}))
        .await
        .must(200);
    let found = site.get("/v1/sessions?status=completed").await.must(200);
    assert_eq!(found["sessions"].as_array().unwrap().len(), 1);
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_go_both_ways_and_through_filters() {
    let site = Site::open().await;
    let session = site.session().await;
    for i in 0..10 {
        site.message(&session, &i.to_string()).await;
    }
    let last = site.last_seq(&session).await;
    let path = format!("/v1/sessions/{session}/events");
    let (mut seqs, mut after) = (Vec::new(), 0);
    loop {
        let page = site
            .get(&format!("{path}?after={after}&limit=3"))
            .await
            .must(200);
        assert_eq!(
            (&page["last_seq"], &page["first_available_seq"]),
            (&json!(last), &json!(1))
        );
        seqs.extend(
            page["events"]
                .as_array()
                .unwrap()
                .iter()
                .map(|e| e["seq"].as_u64().unwrap()),
        );
        match page["next_after"].as_u64() {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(seqs, (1..=last).collect::<Vec<_>>());

    let (mut back, mut before) = (Vec::new(), String::new());
    loop {
        let page = site
            .get(&format!("{path}?order=desc&limit=3{before}"))
            .await
            .must(200);
        back.extend(
            page["events"]
                .as_array()
                .unwrap()
                .iter()
                .map(|e| e["seq"].as_u64().unwrap()),
        );
        match page["next_before"].as_u64() {
            Some(next) => before = format!("&before={next}"),
            None => break,
        }
    }
    assert_eq!(back, (1..=last).rev().collect::<Vec<_>>());

    let (mut texts, mut after) = (Vec::new(), 0);
    loop {
        let page = site
            .get(&format!("{path}?after={after}&limit=2&types=user.message"))
            .await
            .must(200);
        for event in page["events"].as_array().unwrap() {
            texts.push(event["content"]["text"].as_str().unwrap().to_owned());
        }
        match page["next_after"].as_u64() {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(texts.concat(), "0123456789");
    let past = site
        .get(&format!("{path}?after={}", last + 100))
        .await
        .must(200);
    assert_eq!(
        past["events"],
        json!([]),
        "past the end of a list is an empty page"
    );
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn big_events_make_small_pages() {
    let mut large = config();
    large.http.body_bytes_max = 8 << 20;
    let site = Site::with(large).await;
    let session = site.session().await;
    let text = "x".repeat((1 << 20) - 64);
    for _ in 0..9 {
        site.message(&session, &text).await;
    }
    let (mut pages, mut count, mut after) = (0, 0, 0);
    loop {
        let path =
            format!("/v1/sessions/{session}/events?after={after}&limit=1000&types=user.message");
        let answer = site.get(&path).await;
        assert!(answer.text.len() < 6 << 20);
        let page = answer.must(200);
        count += page["events"].as_array().unwrap().len();
        pages += 1;
        match page["next_after"].as_u64() {
            Some(next) => after = next,
            None => break,
        }
    }
    assert!(count == 9 && pages >= 2, "{count} events on {pages} pages");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed() {
    let site = Site::open().await;
    let (session, claim) = site.running().await;
    site.call(&claim, "settle", json!({ "outcome": "succeeded" }))
        .await
        .must(200);
    site.message(&session, "again").await;
    let runs = walk(&site, &format!("/v1/sessions/{session}/runs"), "runs", 1).await;
    assert_eq!(runs.len(), 2);
    assert_eq!(
        (&runs[0]["state"], &runs[0]["outcome"]),
        (&json!("settled"), &json!("succeeded"))
    );
    assert_eq!(runs[1]["state"], "queued");
    site.close().await;
}
