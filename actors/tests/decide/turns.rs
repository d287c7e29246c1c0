use longhaul_actors::code::Code;
use longhaul_actors::session::payload::Outcome;
use longhaul_actors::session::projection::{Effect, Projection};
use longhaul_actors::session::state::State;
use longhaul_actors::session::status::Status;
use serde_json::json;

use crate::kit::Boxed;

#[test]
fn a_settlement_may_end_the_session() {
    let (mut b, token) = Boxed::running();
    b.message("left").expect("message");
    b.call(
        token,
        "settle",
        json!({"outcome": "failed", "session_failed": true}),
    )
    .expect("settle");
    assert_eq!(b.state.status, Status::Failed);
    assert!(b.state.run.is_none(), "nothing runs in it again");
    b.refused(Code::SessionTerminal, |b| b.message("late"));
}

#[test]
fn a_failed_run_does_not_end_the_conversation() {
    let (mut b, token) = Boxed::running();
    let error = json!({"code": "model.refused", "message": "no"});
    b.call(
        token,
        "settle",
        json!({"outcome": "failed", "error": error}),
    )
    .expect("settle");
    assert_eq!(b.state.status, Status::Idle);
    let last = b.state.last_run.as_ref().expect("settled");
    assert_eq!(
        (last.outcome, last.error.as_ref().map(|e| e.code.as_str())),
        (Outcome::Failed, Some("model.refused"))
    );
    b.message("again").expect("message");
}

#[test]
fn effects_follow_from_rows_alone() {
    let (b, token) = Boxed::running();
    let none = Projection::of(&State::new(b.state.id));
    let now = Projection::of(&b.state);
    let effects = none.effects(&now);
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, Effect::Watch(c) if c.token == token.digest()))
    );
    assert!(
        now.effects(&now).is_empty(),
        "nothing changed, nothing to do"
    );
    assert!(now.changes(&now).is_empty());
    let gone = now.effects(&none);
    assert!(
        gone.iter()
            .any(|e| matches!(e, Effect::Unwatch(c) if c.token == token.digest()))
    );
    assert_eq!(none.changes(&now).len(), now.rows().len());
}
