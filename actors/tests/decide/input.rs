use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::limits::{BATCH_EVENTS_MAX, EVENT_CONTENT_BYTES_MAX};
use longhaul_actors::session::command::Input;
use longhaul_actors::session::event::EventType;
use longhaul_actors::session::input::{Origin, RawEvent, check_json, parse_attempt, parse_events};

fn parse(origin: Origin, events: &str) -> Result<Vec<Input>, Rejection> {
    check_json(events.as_bytes())?;
    let raw: Vec<RawEvent<'_>> = serde_json::from_str(events).expect("events");
    parse_events(origin, &raw)
}

fn code(origin: Origin, events: &str) -> Code {
    parse(origin, events).expect_err("a refusal").code
}

#[test]
fn each_door_writes_its_own_types_only() {
    for (kind, _) in EventType::ALL {
        let text = kind.text();
        let event = format!(r#"[{{"type":"{text}","content":{{}}}}]"#);
        let own = |family: &str| text.starts_with(family);
        let people = parse(Origin::People, &event).map_err(|r| r.code);
        assert_eq!(
            people.err() == Some(Code::EventTypeReserved),
            !own("user."),
            "{text}"
        );
        let runner = parse(Origin::Runner, &event).map_err(|r| r.code);
        let mine = own("agent.") || text == "usage.recorded";
        assert_eq!(
            runner.err() == Some(Code::EventTypeReserved),
            !mine,
            "{text}"
        );
    }
    for reserved in [
        "outcome.x",
        "thread.started",
        "watch.fired",
        "memory.written",
        "project.mounted",
    ] {
        let event = format!(r#"[{{"type":"{reserved}"}}]"#);
        assert_eq!(code(Origin::Runner, &event), Code::EventTypeReserved);
    }
    for unknown in [
        "no.such",
        "",
        "user",
        "user.",
        "USER.message",
        "user.message ",
        "user.messages",
    ] {
        let event = format!(r#"[{{"type":"{unknown}"}}]"#);
        assert_eq!(
            code(Origin::People, &event),
            Code::EventTypeUnknown,
            "{unknown:?}"
        );
    }
}

#[test]
fn contents_of_people_are_strict() {
    for (content, wanted) in [
        (r#"{"text":"a","color":1}"#, Code::FieldUnknown),
        (r#"{}"#, Code::FieldInvalid),
        (r#"{"text":1}"#, Code::FieldInvalid),
        (r#"{"text":"a","blocks":[1]}"#, Code::FieldInvalid),
        (r#"{"blocks":[]}"#, Code::FieldInvalid),
        (r#"[]"#, Code::FieldInvalid),
        (r#"null"#, Code::FieldInvalid),
    ] {
        let event = format!(r#"[{{"type":"user.message","content":{content}}}]"#);
        assert_eq!(code(Origin::People, &event), wanted, "{content}");
    }
}

#[test]
fn an_array_is_no_object() {
    for body in [
        r#"[[]]"#,
        "[]",
        r#"{"events":[["agent.message",{}]]}"#,
        " [1]",
    ] {
        let refusal = parse_attempt("events", body.as_bytes()).expect_err(body);
        assert_eq!(refusal.code, Code::FieldInvalid, "{body}");
    }
    let refusal = parse_attempt("heartbeat", b"[]").expect_err("an array");
    assert_eq!(refusal.code, Code::FieldInvalid);
}

#[test]
fn content_is_kept_to_the_byte() {
    let odd = r#"{"text":"\u0000 \ud83d\ude00 \ufffe \\u0000  é","blocks": null}"#;
    let event = format!(r#"[{{"type":"user.message","content":{odd}}}]"#);
    let inputs = parse(Origin::People, &event).expect("legal JSON");
    assert_eq!(inputs[0].content, odd.as_bytes());
}

#[test]
fn sizes_are_exact() {
    let fits = "x".repeat(EVENT_CONTENT_BYTES_MAX - r#"{"text":""}"#.len());
    let event =
        |text: &str| format!(r#"[{{"type":"user.message","content":{{"text":"{text}"}}}}]"#);
    assert!(parse(Origin::People, &event(&fits)).is_ok());
    assert_eq!(
        code(Origin::People, &event(&format!("{fits}y"))),
        Code::EventTooLarge
    );
    let many = |n: usize| {
        format!(
            "[{}]",
            vec![r#"{"type":"user.message","content":{"text":"a"}}"#; n].join(",")
        )
    };
    assert!(parse(Origin::People, &many(BATCH_EVENTS_MAX)).is_ok());
    assert_eq!(
        code(Origin::People, &many(BATCH_EVENTS_MAX + 1)),
        Code::BatchTooLarge
    );
    assert_eq!(code(Origin::People, "[]"), Code::BatchEmpty);
    let big = format!(r#"{{"type":"user.message","content":{{"text":"{fits}"}}}}"#);
    assert!(
        parse(
            Origin::People,
            &format!("[{}]", [big.as_str(); 4].join(","))
        )
        .is_ok()
    );
    assert_eq!(
        code(
            Origin::People,
            &format!("[{}]", [big.as_str(); 5].join(","))
        ),
        Code::BatchTooLarge
    );
}

#[test]
fn verbs_are_strict() {
    for (verb, body, wanted) in [
        ("ready", r#"{"x":1}"#, Code::FieldUnknown),
        ("heartbeat", r#"{"n":0}"#, Code::FieldInvalid),
        ("heartbeat", r#"{"n":-1}"#, Code::FieldInvalid),
        ("heartbeat", "{", Code::BodyInvalid),
        ("events", "{}", Code::FieldInvalid),
        (
            "events",
            r#"{"events":[{"type":"agent.message","extra":1}]}"#,
            Code::FieldUnknown,
        ),
        ("settle", r#"{"outcome":"continued"}"#, Code::FieldInvalid),
        (
            "settle",
            r#"{"outcome":"succeeded","error":{"code":"a","message":"b"}}"#,
            Code::FieldInvalid,
        ),
        (
            "settle",
            r#"{"outcome":"failed","error":{"code":"","message":"b"}}"#,
            Code::FieldInvalid,
        ),
        (
            "settle",
            r#"{"outcome":"succeeded","usage":{"tokens":1}}"#,
            Code::FieldUnknown,
        ),
        (
            "settle",
            r#"{"outcome":"succeeded","usage":{"input_tokens":-1}}"#,
            Code::FieldInvalid,
        ),
        ("steps", "{}", Code::FieldInvalid),
        ("inputs", r#"{"signal":" "}"#, Code::FieldInvalid),
        ("inputs", r#"{"signals":"s"}"#, Code::FieldUnknown),
        (
            "park",
            r#"{"waiting_on":[{"signal":"s"}]}"#,
            Code::FieldInvalid,
        ),
        ("checkpoint", "{}", Code::FieldInvalid),
        ("reject_checkpoint", "{}", Code::RouteUnknown),
        ("undeliver", "{}", Code::RouteUnknown),
    ] {
        let refusal = parse_attempt(verb, body.as_bytes()).expect_err(body);
        assert_eq!(refusal.code, wanted, "{verb} {body}");
    }
    assert!(parse_attempt("heartbeat", b"").is_ok());
}
