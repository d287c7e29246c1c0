//! Server-sent events.

use serde_json::json;

use super::kit::{Site, Sse, config};

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_is_where_a_stream_goes_on() {
    let site = Site::open().await;
    let session = site.session().await;
    for i in 0..20 {
        site.message(&session, &i.to_string()).await;
    }
    let last = site.last_seq(&session).await;
    let mut all = site.follow(&session, "?after=0").await;
    for seq in 1..=last {
        let event = all.next().await.unwrap();
        assert_eq!((event.id, &event.data["seq"]), (Some(seq), &json!(seq)));
        assert_eq!(event.data["type"], event.name);
    }
    let path = format!("/v1/sessions/{session}/events/stream");
    let resume = |cursor: u64, query: &str| {
        site.request("GET", &format!("{path}{query}"))
            .header("last-event-id", cursor.to_string())
    };
    let mut rest = Sse::of(resume(last - 2, "?after=0")).await;
    assert_eq!(
        rest.next().await.unwrap().id,
        Some(last - 1),
        "the header wins"
    );

    for bad in [
        "?after=x",
        "?after=",
        "?after=-1",
        &format!("?after={}", last + 100),
    ] {
        site.get(&format!("{path}{bad}"))
            .await
            .code(400, "request.cursor_invalid");
    }
    site.send(resume(last + 100, ""))
        .await
        .code(400, "request.cursor_invalid");
    for bad in ["?until=noon", "?types=x", "?limit=1"] {
        site.get(&format!("{path}{bad}"))
            .await
            .code(400, "request.query_invalid");
    }
    drop((all, rest));
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn history_and_live_join_without_a_gap() {
    let site = std::sync::Arc::new(Site::open().await);
    let session = site.session().await;
    let n = 200;
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let (site, session) = (site.clone(), session.clone());
            tokio::spawn(async move {
                let mut events = site.follow(&session, "?after=0&types=user.message").await;
                for i in 0..n {
                    let event = events.next().await.unwrap();
                    assert_eq!(event.data["content"]["text"], i.to_string());
                }
            })
        })
        .collect();
    for i in 0..n {
        site.message(&session, &i.to_string()).await;
    }
    for reader in readers {
        reader.await.unwrap();
    }
    std::sync::Arc::into_inner(site).unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn until_boundary_ends_with_the_turn() {
    let site = Site::open().await;
    let (session, claim) = site.running().await;
    let mut plain = site.follow(&session, "?after=0&until=boundary").await;
    let mut filtered = site
        .follow(&session, "?after=0&until=boundary&types=agent.message")
        .await;
    let said = json!({ "events": [{ "type": "agent.message", "content": { "text": "hi" } }] });
    site.call(&claim, "events", said).await.must(202);
    site.call(&claim, "settle", json!({ "outcome": "succeeded" }))
        .await
        .must(200);
    let events = plain.rest().await;
    assert_eq!(events.last().unwrap().name, "run.settled");
    let names: Vec<_> = filtered.rest().await.into_iter().map(|e| e.name).collect();
    assert_eq!(
        names,
        ["agent.message"],
        "the boundary ends it, the filter hides it"
    );
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_and_erased_sessions_say_so() {
    let site = Site::open().await;
    let session = site.session().await;
    let mut early = site.follow(&session, "").await;
    site.post(&format!("/v1/sessions/{session}/complete"), json!({}))
        .await
        .must(200);
    let events = early.rest().await;
    let end = events.last().unwrap();
    assert_eq!(
        (end.id, end.name.as_str(), &end.data["status"]),
        (None, "end", &json!("completed"))
    );
    let last = site.last_seq(&session).await;
    let late = site
        .follow(&session, &format!("?after={last}"))
        .await
        .rest()
        .await;
    assert_eq!(late.len(), 1, "only the end is left");

    let other = site.session().await;
    let mut open = site.follow(&other, "").await;
    site.delete(&format!("/v1/sessions/{other}"))
        .await
        .must(200);
    assert_eq!(open.rest().await.last().unwrap().name, "erased");
    let path = format!("/v1/sessions/{other}");
    for suffix in ["", "/events", "/events/stream", "/runs"] {
        site.get(&format!("{path}{suffix}"))
            .await
            .code(410, "session.erased");
    }
    site.submit(&other, "user.message", json!({ "text": "x" }))
        .await
        .code(410, "session.erased");
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quiet_streams_beat_and_old_ones_reconnect() {
    let (site, world) = Site::manual(config()).await;
    let session = site.session().await;
    let mut events = site.follow(&session, "?after=1").await;
    assert_eq!(
        events.block().await,
        Some(None),
        "something to read at once"
    );
    let quiet = async {
        let beat = events.block().await;
        (beat, events.rest().await)
    };
    // Time passes until the stream, which first has to start waiting, is over.
    let pass = async {
        let mut every = tokio::time::interval(std::time::Duration::from_millis(5));
        loop {
            every.tick().await;
            world.advance_ms(15_000);
        }
    };
    let (beat, rest) = tokio::select! { done = quiet => done, () = pass => unreachable!() };
    assert_eq!(beat, Some(None), "a comment, without an id");
    let names: Vec<_> = rest.iter().map(|e| (e.id, e.name.as_str())).collect();
    assert_eq!(names, [(None, "reconnect")]);
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_bounded_and_free_their_place() {
    let mut few = config();
    few.http.streams_max = 3;
    let site = Site::with(few).await;
    let session = site.session().await;
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(site.follow(&session, "").await);
    }
    let path = format!("/v1/sessions/{session}/events/stream");
    site.get(&path).await.code(429, "stream.limit");
    drop(open);
    // The place is free once the server has seen the connection close.
    loop {
        let response = site.request("GET", &path).send().await.unwrap();
        if response.status() == 200 {
            break;
        }
        assert_eq!(response.status(), 429);
    }
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_stops_reading_is_cut_off() {
    use tokio::io::AsyncWriteExt;
    let mut short = config();
    short.http.stalled_write_s_max = 1;
    let site = Site::with(short).await;
    let session = site.session().await;
    let text = "x".repeat(1 << 20 >> 1);
    for _ in 0..40 {
        site.message(&session, &text).await;
    }
    let mut socket = site.connect().await;
    let head =
        format!("GET /v1/sessions/{session}/events/stream HTTP/1.1\r\nhost: localhost\r\n\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    let followers = || site.runtime.engine().stats().followers;
    while followers() == 0 {
        tokio::task::yield_now().await;
    }
    while followers() > 0 {
        tokio::task::yield_now().await;
    }
    drop(socket);
    site.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_stream_stops_nothing() {
    let site = Site::open().await;
    let (session, claim) = site.running().await;
    let events = site.follow(&session, "").await;
    drop(events);
    site.call(&claim, "heartbeat", json!({})).await.must(200);
    assert_eq!(site.show(&session).await["status"], "running");
    site.close().await;
}
