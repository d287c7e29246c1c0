//! The same calls as actix messages, for hosts that are made of actors.
//!
//! ```no_run
//! # async fn example(runtime: longhaul::Runtime, id: longhaul_actors::ids::SessionId) {
//! use longhaul::messages::{RuntimeActor, Send};
//! let runtime = RuntimeActor::start(runtime);
//! let accepted = runtime.send(Send { session: id, text: "hi".to_owned() }).await;
//! # drop(accepted);
//! # }
//! ```

use actix::{Actor, Addr, Context, Handler, Message, ResponseFuture};
use longhaul_actors::engine::{EventPage, EventQuery};
use longhaul_actors::ids::SessionId;
use serde_json::Value;

use crate::catalog::deployments::NewDeployment;
use crate::error::Error;
use crate::handle::{Accepted, Deployment, NewEvent, NewSession, SubmitOptions};
use crate::runtime::Runtime;

/// Messages that may wait for the actor.
const MAILBOX_LEN_MAX: usize = 1_024;

/// Makes a deployment.
#[derive(Debug, Clone, Message)]
#[rtype(result = "Result<Deployment, Error>")]
pub struct Deploy(pub NewDeployment);

/// Starts a session.
#[derive(Debug, Clone, Message)]
#[rtype(result = "Result<SessionId, Error>")]
pub struct Start(pub NewSession);

/// Sends a message to a session.
#[derive(Debug, Clone, Message)]
#[rtype(result = "Result<Accepted, Error>")]
pub struct Send {
    /// The session.
    pub session: SessionId,
    /// The text.
    pub text: String,
}

/// Submits events to a session: all or none.
#[derive(Debug, Clone, Message)]
#[rtype(result = "Result<Accepted, Error>")]
pub struct Submit {
    /// The session.
    pub session: SessionId,
    /// The events.
    pub events: Vec<NewEvent>,
    /// How.
    pub options: SubmitOptions,
}

/// Shows a session: where it is, and why.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "Result<Value, Error>")]
pub struct Show(pub SessionId);

/// Reads a page of a session's events.
#[derive(Debug, Clone, Message)]
#[rtype(result = "Result<EventPage, Error>")]
pub struct Events {
    /// The session.
    pub session: SessionId,
    /// Which.
    pub query: EventQuery,
}

/// How a session is to be ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Done.
    Complete,
    /// With whatever runs in it.
    Cancel,
    /// Removed but for its tombstone.
    Erase,
}

/// Ends a session.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "Result<(), Error>")]
pub struct End {
    /// The session.
    pub session: SessionId,
    /// How.
    pub how: How,
}

/// A runtime behind an address. Calls run side by side; a full mailbox refuses `try_send`.
pub struct RuntimeActor(Runtime);

impl RuntimeActor {
    /// Starts it on the current arbiter. The runtime stays the host's to close.
    pub fn start(runtime: Runtime) -> Addr<Self> {
        Self::create(|context| {
            context.set_mailbox_capacity(MAILBOX_LEN_MAX);
            Self(runtime)
        })
    }
}

impl Actor for RuntimeActor {
    type Context = Context<Self>;
}

macro_rules! handle {
    ($($message:ty => $result:ty, |$runtime:ident, $m:ident| $call:expr;)+) => {
        $(impl Handler<$message> for RuntimeActor {
            type Result = ResponseFuture<$result>;

            fn handle(&mut self, $m: $message, _: &mut Context<Self>) -> Self::Result {
                let $runtime = self.0.clone();
                Box::pin(async move { $call })
            }
        })+
    };
}

handle! {
    Deploy => Result<Deployment, Error>, |runtime, m| runtime.deploy(&m.0).await;
    Start => Result<SessionId, Error>, |runtime, m| runtime.start(m.0).await.map(|s| s.id());
    Send => Result<Accepted, Error>, |runtime, m| runtime.session(m.session).send(m.text).await;
    Submit => Result<Accepted, Error>, |runtime, m| {
        runtime.session(m.session).submit(&m.events, m.options).await
    };
    Show => Result<Value, Error>, |runtime, m| runtime.session(m.0).show().await;
    Events => Result<EventPage, Error>, |runtime, m| runtime.session(m.session).events(m.query).await;
    End => Result<(), Error>, |runtime, m| {
        let session = runtime.session(m.session);
        match m.how {
            How::Complete => session.complete().await,
            How::Cancel => session.cancel().await,
            How::Erase => session.erase().await,
        }
    };
}
