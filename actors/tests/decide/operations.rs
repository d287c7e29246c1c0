//! The lock of a session's sandbox.

use std::time::Duration;

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::session::command::{Command, ReceiptKey};
use longhaul_actors::session::decision::Reply;
use longhaul_actors::session::operation::{Done, Operate, OperationId, OperationKind, Step};

use crate::kit::{Boxed, request};

fn step(b: &mut Boxed, receipt: Option<ReceiptKey>, step: Step) -> Result<Reply, Rejection> {
    let request = request(receipt);
    b.ask(Command::Operate(Box::new(Operate { request, step })))
}

fn begin(b: &mut Boxed, n: u8, receipt: Option<ReceiptKey>) -> Result<Reply, Rejection> {
    let begin = Step::Begin {
        id: OperationId([n; 16]),
        kind: OperationKind::Checkpoint,
        max: Duration::from_secs(330),
    };
    step(b, receipt, begin)
}

fn end(b: &mut Boxed, n: u8, receipt: Option<ReceiptKey>) -> Result<Reply, Rejection> {
    let result = Box::new(Done {
        succeeded: true,
        ..Done::default()
    });
    let id = OperationId([n; 16]);
    step(b, receipt, Step::End { id, result })
}

#[test]
fn the_lock_ends_by_the_time_that_passes_and_not_by_the_wall_clock() {
    for jump_ms in [1_000_000_000, -1_000_000_000] {
        let mut b = Boxed::new();
        begin(&mut b, 1, None).expect("the lock");
        b.world.jump_wall_ms(jump_ms);
        let refused = begin(&mut b, 2, None).expect_err("held");
        assert_eq!(refused.code, Code::SessionBusy, "jumped by {jump_ms}");
        b.message("hi").expect("message");
        assert!(b.claim().is_err(), "no turn beside it");
        end(&mut b, 1, None).expect("it had the lock all the time");
        b.claim().expect("a turn");
    }
    let mut b = Boxed::new();
    begin(&mut b, 1, None).expect("the lock");
    b.world.jump_wall_ms(-1_000_000_000);
    b.world.advance_ms(330_000);
    begin(&mut b, 2, None).expect("whoever held it has given up");
    let late = end(&mut b, 1, None).expect_err("too late");
    assert_eq!(late.code, Code::SessionBusy);
    end(&mut b, 2, None).expect("the lock is the second one's");
}

#[test]
fn a_repeated_request_takes_no_lock_and_an_end_always_lets_go() {
    let key = Some(ReceiptKey {
        scope: [7; 16],
        body: [8; 16],
    });
    let mut b = Boxed::new();
    begin(&mut b, 1, key).expect("the lock");
    let first = end(&mut b, 1, key).expect("done");
    assert_eq!(begin(&mut b, 2, key).expect("again"), first);
    assert_eq!(b.state.now.operation, None, "nothing is held");
    begin(&mut b, 3, None).expect("the lock is free");
    // Whatever is kept under its key meanwhile: who has the lock gives it back.
    end(&mut b, 3, key).expect("done");
    assert_eq!(b.state.now.operation, None);
}
