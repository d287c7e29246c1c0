//! The claim protocol without a network: the server is this process.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::engine::{DeliveryGuard, EventQuery};
use longhaul_actors::ids::{CheckpointId, ClaimToken, IdError, RunnerId, SessionId};
use longhaul_actors::session::command::{Bearer, SettleCheckpoint, Verb};
use longhaul_actors::session::event::EventType;
use longhaul_actors::session::payload::WorkspaceRef;
use longhaul_actors::session::step::{StepOp, StepResult};
use longhaul_actors::session::viewer::Viewer;
use longhaul_storage::Order;
use serde_json::Value;

use super::protocol::{ApiError, CallAnswer, ClaimApi, Cursor, EventsPage, EventsQuery, Problem};
use crate::agent::handle::hosted::HostAgents;
use crate::runtime::Runtime;

/// The runtime of this process, as its own runner sees it.
pub(super) struct InProcess {
    runtime: Runtime,
    id: RunnerId,
    capacity: u32,
    /// Agents of the host's own.
    agents: Arc<HostAgents>,
}

impl std::fmt::Debug for InProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InProcess")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl InProcess {
    pub(super) fn new(
        runtime: Runtime,
        id: RunnerId,
        capacity: u32,
        agents: Arc<HostAgents>,
    ) -> Self {
        Self {
            runtime,
            id,
            capacity,
            agents,
        }
    }

    async fn poll(&self, max: usize, wait: Duration) -> Result<Vec<Value>, Rejection> {
        // Copies of disks are for runners elsewhere: the server shares its own snapshots.
        let grants = self.runtime.claims(self.id, max, wait).await?.claims;
        let mut claims = Vec::with_capacity(grants.len());
        let mut unreadable = None;
        for grant in grants {
            match self.runtime.claim_json(&grant).await {
                Ok(json) => claims.push((json, grant.confirm)),
                // Dropped here, the grant goes back to the queue.
                Err(reason) => unreadable = Some(reason),
            }
        }
        if let (Some(reason), true) = (unreadable, claims.is_empty()) {
            return Err(reason);
        }
        // Nothing is waited for from here on, so a dropped poll gives back all or none.
        let deliver = |(json, confirm): (Value, DeliveryGuard)| {
            confirm.delivered();
            json
        };
        Ok(claims.into_iter().map(deliver).collect())
    }

    async fn made(
        &self,
        token: &str,
        verb: &str,
        wait: Duration,
        body: &Value,
        snapshot: Option<&SettleCheckpoint>,
    ) -> Result<CallAnswer, ApiError> {
        let body = body.to_string();
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let body = body.as_bytes();
        let call = match snapshot {
            Some(s) => self.runtime.claim_call_with(token, verb, body, s).boxed(),
            None => self
                .runtime
                .claim_call(Bearer::Trusted, token, verb, wait_ms, body)
                .boxed(),
        };
        let answer = call.await.map_err(refused)?;
        let body = serde_json::from_slice(&answer.body)
            .map_err(|e| refused(Rejection::new(Code::Internal, e.to_string())))?;
        Ok(CallAnswer {
            status: answer.status,
            body,
        })
    }

    async fn page(&self, query: EventsQuery) -> Result<EventsPage, Rejection> {
        let invalid = |e: IdError| Rejection::new(Code::IdInvalid, e.to_string());
        let session = SessionId::parse(&query.session_id).map_err(invalid)?;
        let workspace = query
            .workspace
            .as_deref()
            .map(WorkspaceRef::parse)
            .transpose();
        let workspace = workspace.map_err(invalid)?.unwrap_or(WorkspaceRef::DEFAULT);
        let types: Vec<_> = query
            .types
            .iter()
            .filter_map(|t| EventType::parse(t))
            .collect();
        let (after, before, order) = match query.cursor {
            Cursor::After(after) => (Some(after), None, Order::Asc),
            Cursor::Before(before) => (None, before, Order::Desc),
        };
        let types = (!types.is_empty()).then_some(types);
        let query = EventQuery {
            after,
            before,
            order,
            limit: query.limit,
            types,
        };
        let page = self
            .runtime
            .engine()
            .events(Viewer::all(workspace), session, query)
            .await?;
        let read = |bytes: &bytes::Bytes| {
            serde_json::from_slice(bytes).map_err(|e| Rejection::new(Code::Internal, e.to_string()))
        };
        let events = page.events.iter().map(read).collect::<Result<_, _>>()?;
        Ok(EventsPage {
            events,
            next: page.next_after,
        })
    }
}

fn refused(rejection: Rejection) -> ApiError {
    let info = rejection.code.info();
    ApiError::Refused(Box::new(Problem {
        status: info.status,
        code: info.code.to_owned(),
        detail: rejection.detail,
        retryable: rejection.code.is_retryable(),
        extras: rejection.extras,
    }))
}

impl ClaimApi for InProcess {
    fn enrol(&self) -> BoxFuture<'_, Result<(), ApiError>> {
        async {
            let info = self.agents.info(self.id, self.capacity);
            self.runtime.engine().enrol(info).await.map_err(refused)
        }
        .boxed()
    }

    fn claims(&self, max: usize, wait: Duration) -> BoxFuture<'_, Result<Vec<Value>, ApiError>> {
        async move { self.poll(max, wait).await.map_err(refused) }.boxed()
    }

    fn call<'a>(
        &'a self,
        token: &'a str,
        verb: &'a str,
        wait: Duration,
        body: &'a Value,
    ) -> BoxFuture<'a, Result<CallAnswer, ApiError>> {
        self.made(token, verb, wait, body, None).boxed()
    }

    fn steps<'a>(
        &'a self,
        token: &'a str,
        ops: Vec<StepOp>,
    ) -> BoxFuture<'a, Result<Vec<StepResult>, ApiError>> {
        async move {
            let id = |e: IdError| refused(Rejection::new(Code::IdInvalid, e.to_string()));
            let token = ClaimToken::parse(token).map_err(id)?;
            let call = self.runtime.engine().steps(Bearer::Trusted, token, ops);
            call.await.map_err(refused)
        }
        .boxed()
    }

    fn call_with<'a>(
        &'a self,
        token: &'a str,
        verb: &'a str,
        body: &'a Value,
        snapshot: &'a SettleCheckpoint,
    ) -> BoxFuture<'a, Result<CallAnswer, ApiError>> {
        self.made(token, verb, Duration::ZERO, body, Some(snapshot))
            .boxed()
    }

    fn keeps_snapshots(&self) -> bool {
        true
    }

    fn reject_checkpoint<'a>(
        &'a self,
        token: &'a str,
        checkpoint_id: &'a str,
        reason: &'a str,
        temporary: bool,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let id = |e: IdError| refused(Rejection::new(Code::IdInvalid, e.to_string()));
            let token = ClaimToken::parse(token).map_err(id)?;
            let verb = Verb::RejectCheckpoint {
                checkpoint: CheckpointId::parse(checkpoint_id).map_err(id)?,
                reason: reason.to_owned(),
                temporary,
            };
            let engine = self.runtime.engine();
            let call = engine.attempt(Bearer::Trusted, token, None, verb, Duration::ZERO);
            call.await.map(drop).map_err(refused)
        }
        .boxed()
    }

    fn events(&self, query: EventsQuery) -> BoxFuture<'_, Result<EventsPage, ApiError>> {
        async move { self.page(query).await.map_err(refused) }.boxed()
    }

    fn drain(&self) -> BoxFuture<'_, Result<(), ApiError>> {
        async { self.runtime.engine().drain(self.id).await.map_err(refused) }.boxed()
    }
}
