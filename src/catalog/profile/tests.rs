//! What profiles take and refuse.

use super::*;

fn release(json: &str) -> Result<Release, serde_json::Error> {
    serde_json::from_str(json)
}

#[test]
fn every_kind_round_trips() {
    for json in [
        r#"{"instructions":"x","harness":{"kind":"script","steps":[
            {"say":"hi"},{"exec":"ls"},{"write":{"path":"a","text":"b"}},
            {"tool":{"name":"t","input":{"n":1e400},"result":"\u0000"}},{"sleep_ms":3},
            {"question":{}},{"approval":{"tool":"t","input":[]}},
            {"custom_tool":{"name":"t","input":null}},{"usage":{"input_tokens":3,"model":"m"}},
            {"fail":"no"}]}}"#,
        r#"{"harness":{"kind":"process","command":["a","b"],"env":{"K":"v"}}}"#,
        r#"{"harness":{"kind":"external","config":{"z":1,"a":1.50}}}"#,
        r#"{"harness":{"kind":"mine","config":7}}"#,
    ] {
        let read = release(json).expect(json);
        let again = serde_json::to_string(&read).expect("serialises");
        let twice = release(&again).expect(&again);
        assert_eq!(serde_json::to_string(&twice).expect("serialises"), again);
        assert_eq!(read.harness.revision(), twice.harness.revision());
        let kinds = Kinds {
            harnesses: vec!["mine".into()],
            providers: vec![],
        };
        read.check(&kinds).expect(json);
    }
}

#[test]
fn values_passed_on_keep_their_bytes() {
    let read = release(r#"{"harness":{"kind":"script","steps":[{"tool":{"name":"t","input":{"n": 1.50},"result":"\ud83d\ude00"}}]}}"#)
        .expect("valid");
    let stored = serde_json::to_string(&read).expect("serialises");
    assert!(stored.contains(r#"{"n": 1.50}"#) && stored.contains(r#""\ud83d\ude00""#));
}

#[test]
fn what_cannot_run_is_refused() {
    for json in [
        r#"{"harness":{"kind":"script","steps":[]}}"#,
        r#"{"harness":{"kind":"script","steps":[{"exec":" "}]}}"#,
        r#"{"harness":{"kind":"script","steps":[{"write":{"path":"../x","text":""}}]}}"#,
        r#"{"harness":{"kind":"script","steps":[{"question":7}]}}"#,
        r#"{"harness":{"kind":"process","command":[]}}"#,
        r#"{"harness":{"kind":"process","command":["a"],"env":{"A=B":""}}}"#,
        r#"{"harness":{"kind":"nothing"}}"#,
    ] {
        let refused = release(json).expect(json).check(&Kinds::default());
        assert_eq!(refused.expect_err(json).code, Code::DeploymentInvalid);
    }
    for json in [
        r#"{"harness":{"steps":[]}}"#,
        r#"{"harness":{"kind":"script"}}"#,
        r#"{"harness":{"kind":"script","steps":[{"nothing":1}]}}"#,
        r#"{"harness":{"kind":"script","steps":[{"say":"a","fail":"b"}]}}"#,
        r#"{"harness":{"kind":"script","steps":[{"usage":{"input_tokens":1,"tokens":2}}]}}"#,
        r#"{"harness":{"kind":"script","steps":[{"usage":{"input_tokens":-1}}]}}"#,
        r#"{"harness":{"kind":"script","steps":[{"checkpoint":{"title":"x"}}]}}"#,
        r#"{"harness":{"kind":"external","extra":1}}"#,
    ] {
        assert!(release(json).is_err(), "{json}");
    }
}

#[test]
fn sandbox_bounds() {
    let profile = |json: &str| serde_json::from_str::<SandboxProfile>(json);
    let check = |json: &str| profile(json).expect(json).check(&Kinds::default());
    assert!(check(r#"{"provider":"none","max_duration_seconds":1}"#).is_ok());
    for bad in [
        r#"{"provider":"vm"}"#,
        r#"{"max_duration_seconds":0}"#,
        r#"{"max_duration_seconds":604801}"#,
        r#"{"limits":{"output_bytes_max":0}}"#,
        r#"{"limits":{"command_s_max":0}}"#,
    ] {
        assert_eq!(check(bad).expect_err(bad).code, Code::DeploymentInvalid);
    }
    let (a, b) = (profile("{}"), profile(r#"{"max_duration_seconds":5}"#));
    assert_ne!(a.expect("valid").revision(), b.expect("valid").revision());
}

#[test]
fn agents_round_trip_and_bad_ones_are_refused_by_field() {
    let agent = |fields: &str| {
        let json = format!(r#"{{"harness":{{"kind":"agent",{fields}}}}}"#);
        release(&json)
    };
    for fields in [
        r#""model":"anthropic/claude""#,
        r#""model":{"route":"scripted","answers":[{"text":"hi","tool_calls":[{"name":"bash","input":{}}],"usage":{"input_tokens":1}}]},
            "tools":["bash",{"name":"write","approval":"ask"}],"custom_tools":[{"name":"ask_me"}],
            "mcp":["tickets",{"name":"wiki","approval":"ask"}],"agents":[{"name":"helper","tools":["bash"],"agents":[{"name":"deeper"}]}],
            "stop_hooks":[{"exec":"make test"}],"turns_max":5,"passes_max":2,"compact_at_tokens":1000,
            "output_schema":{"type":"object"},"output_tokens_max":100,"tool_s_max":60,"checkpoint":"turn",
            "prices":{"input_micros_per_mtok":3}"#,
    ] {
        let read = agent(fields).expect(fields);
        read.check(&Kinds::default()).expect(fields);
        let again = serde_json::to_string(&read).expect("serialises");
        let twice = release(&again).expect(&again);
        assert_eq!(read.harness.revision(), twice.harness.revision());
    }
    for (fields, name) in [
        (r#""model":"claude""#, "model"),
        (r#""model":{"route":"other","answers":[{}]}"#, "model.route"),
        (
            r#""model":{"route":"scripted","answers":[]}"#,
            "model.answers",
        ),
        (r#""model":"a/b","tools":["a b"]"#, "tools"),
        (
            r#""model":"a/b","tools":["x"],"agents":[{"name":"x"}]"#,
            "tools",
        ),
        (r#""model":"a/b","turns_max":0"#, "turns_max"),
        (r#""model":"a/b","passes_max":1001"#, "passes_max"),
        (r#""model":"a/b","tool_s_max":86401"#, "tool_s_max"),
        (r#""model":"a/b","output_schema":7"#, "output_schema"),
        (
            r#""model":"a/b","stop_hooks":[{"exec":" "}]"#,
            "stop_hooks[0].exec",
        ),
        (
            r#""model":"a/b","agents":[{"name":"x","model":"y"}]"#,
            "agents[0].model",
        ),
    ] {
        let refused = agent(fields).expect(fields).check(&Kinds::default());
        let refused = refused.expect_err(fields);
        assert_eq!(refused.code, Code::DeploymentInvalid);
        let wanted = format!("release.harness.{name} ");
        assert!(refused.detail.starts_with(&wanted), "{}", refused.detail);
    }
    for fields in [
        r#""tools":[]"#,
        r#""model":"a/b","tool":[]"#,
        r#""model":{"route":"scripted","answers":[{"say":"x"}]}"#,
        r#""model":"a/b","tools":[{"name":"x","approval":"maybe"}]"#,
        r#""model":"a/b","checkpoint":"daily""#,
    ] {
        assert!(agent(fields).is_err(), "{fields}");
    }
    let script = r#"{"harness":{"kind":"script","steps":[{"say":"x"}],"checkpoint":"turn"}}"#;
    assert!(
        release(script)
            .expect(script)
            .check(&Kinds::default())
            .is_err()
    );
}
