//! A session in a box: facts from maps, a clock by hand.

use std::collections::BTreeMap;

use bytes::Bytes;
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::env::{Door, ManualWorld};
use longhaul_actors::ids::{
    ClaimToken, DeploymentId, EventId, HarnessRevision, RunId, RunnerId, SandboxRevision,
    SessionId, TokenDigest,
};
use longhaul_actors::limits::Limits;
use longhaul_actors::session::command::{
    AttemptCall, Bearer, ClaimRun, Command, Create, Expiry, ReceiptKey, Request, Submit, Verb,
};
use longhaul_actors::session::decide::decide;
use longhaul_actors::session::decision::{Decision, Reply, RowOp};
use longhaul_actors::session::event::{Author, EventType, NewEvent};
use longhaul_actors::session::evolve::evolve;
use longhaul_actors::session::facts::{
    Earlier, EndedClaim, EndedStep, Facts, ItemFact, Receipt, StoredCall, needs,
};
use longhaul_actors::session::history::history_rows;
use longhaul_actors::session::input::{Origin, parse_attempt, parse_one};
use longhaul_actors::session::journal::{StepKey, StepRow};
use longhaul_actors::session::payload::{Body, Budget, Pin, WorkspaceRef};
use longhaul_actors::session::projection::Projection;
use longhaul_actors::session::state::{Answer, State};
use longhaul_actors::session::viewer::Viewer;
use longhaul_actors::{codec, rows};
use serde_json::{Value, json};

/// The runner of all tests.
pub(crate) const RUNNER: RunnerId = RunnerId([4; 16]);

pub(crate) struct Boxed {
    pub(crate) world: ManualWorld,
    pub(crate) door: Door,
    pub(crate) limits: Limits,
    pub(crate) state: State,
    pub(crate) log: Vec<NewEvent>,
    receipts: BTreeMap<[u8; 16], Receipt>,
    pub(crate) created: BTreeMap<[u8; 16], Earlier>,
    ended: BTreeMap<TokenDigest, EndedClaim>,
    calls: BTreeMap<(TokenDigest, u64), StoredCall>,
    items: BTreeMap<u64, ItemFact>,
    inputs: Vec<Answer>,
    taken: BTreeMap<u64, Vec<Answer>>,
    steps: BTreeMap<StepKey, StepRow>,
    pub(crate) tokens: u8,
    /// Whose bearer comes with the calls.
    pub(crate) by: Bearer,
    /// Who claims.
    pub(crate) runner: RunnerId,
    /// How long checkpoints live, by the policy of the workspace.
    pub(crate) ttl_s: Option<u64>,
    /// What the session may spend.
    pub(crate) budget: Option<Budget>,
    /// Whether the workspace keeps no content.
    pub(crate) keeps_nothing: bool,
    /// What becomes of contents.
    pub(crate) kept: crate::contents::Kept,
    /// The rows that follow from the state, kept by applying changes.
    pub(crate) rows: BTreeMap<Bytes, Bytes>,
}

pub(crate) fn author() -> Author {
    Author::principal("ann")
}

pub(crate) fn request(receipt: Option<ReceiptKey>) -> Request {
    Request {
        viewer: Viewer::all(WorkspaceRef::DEFAULT),
        author: author(),
        request_id: "req-1".into(),
        receipt,
    }
}

pub(crate) fn pin() -> Pin {
    Pin {
        agent_deployment: DeploymentId([1; 16]),
        agent_deployment_revision_number: 1,
        harness_revision: HarnessRevision([2; 16]),
        sandbox_profile_revision: SandboxRevision([3; 16]),
        external: true,
        max_duration_seconds: 120,
    }
}

impl Boxed {
    /// Before anything happened.
    pub(crate) fn empty() -> Self {
        Self::at_world(ManualWorld::new(1_000_000))
    }

    pub(crate) fn at_world(world: ManualWorld) -> Self {
        Self {
            door: world.door(),
            world,
            limits: Limits::default(),
            state: State::new(SessionId([9; 16])),
            log: Vec::new(),
            receipts: BTreeMap::new(),
            created: BTreeMap::new(),
            ended: BTreeMap::new(),
            calls: BTreeMap::new(),
            items: BTreeMap::new(),
            inputs: Vec::new(),
            taken: BTreeMap::new(),
            steps: BTreeMap::new(),
            tokens: 0,
            by: Bearer::Trusted,
            runner: RUNNER,
            ttl_s: None,
            budget: None,
            keeps_nothing: false,
            kept: Default::default(),
            rows: BTreeMap::new(),
        }
    }

    /// A session that was just admitted.
    pub(crate) fn new() -> Self {
        let mut b = Self::empty();
        b.create(json!({})).expect("create");
        b
    }

    /// A session whose first run is claimed and ready.
    pub(crate) fn running() -> (Self, ClaimToken) {
        let mut b = Self::new();
        b.message("hi").expect("message");
        let token = b.claim().expect("claim");
        b.call(token, "ready", json!({})).expect("ready");
        (b, token)
    }

    pub(crate) fn create(&mut self, metadata: Value) -> Result<Reply, Rejection> {
        self.create_with(metadata, None)
    }

    pub(crate) fn create_with(
        &mut self,
        metadata: Value,
        receipt: Option<ReceiptKey>,
    ) -> Result<Reply, Rejection> {
        let metadata = metadata.as_object().cloned().unwrap_or_default();
        self.ask(Command::Create(Box::new(Create {
            request: request(receipt),
            principal: "ann".into(),
            pin: pin(),
            metadata,
            budget: self.budget,
            retention: longhaul_actors::session::payload::RetentionPolicy {
                checkpoint_ttl_s: self.ttl_s,
                zero_data_retention: self.keeps_nothing,
                content_ttl_s: self.kept.ttl_s,
            },
            events: Vec::new(),
        })))
    }

    pub(crate) fn submit(&mut self, events: &[(&str, Value)]) -> Result<Reply, Rejection> {
        self.submit_with(events, None, None)
    }

    pub(crate) fn submit_with(
        &mut self,
        events: &[(&str, Value)],
        receipt: Option<ReceiptKey>,
        expected_seq: Option<u64>,
    ) -> Result<Reply, Rejection> {
        let inputs = events
            .iter()
            .map(|(t, c)| parse_one(Origin::People, t, &c.to_string()));
        let events = inputs.collect::<Result<_, _>>()?;
        self.ask(Command::Submit(Submit {
            request: request(receipt),
            expected_seq,
            events,
        }))
    }

    pub(crate) fn message(&mut self, text: &str) -> Result<Reply, Rejection> {
        self.submit(&[("user.message", json!({"text": text}))])
    }

    pub(crate) fn interrupt(&mut self) -> Result<Reply, Rejection> {
        self.submit(&[("user.interrupt", json!({}))])
    }

    pub(crate) fn cancel(&mut self) -> Result<Reply, Rejection> {
        self.ask(Command::Cancel(request(None)))
    }

    pub(crate) fn complete(&mut self) -> Result<Reply, Rejection> {
        self.ask(Command::Complete(request(None)))
    }

    /// Claims the queued run under a new token.
    pub(crate) fn claim(&mut self) -> Result<ClaimToken, Rejection> {
        self.tokens += 1;
        let token = ClaimToken {
            session: self.state.id,
            secret: [self.tokens; 16],
        };
        let run = self.state.run.as_ref().map_or(RunId([0; 16]), |r| r.id);
        let claim = ClaimRun {
            run,
            runner: self.runner,
            token: token.digest(),
        };
        self.ask(Command::Claim(claim)).map(|_| token)
    }

    pub(crate) fn call(
        &mut self,
        token: ClaimToken,
        verb: &str,
        body: Value,
    ) -> Result<Reply, Rejection> {
        let (n, verb) = parse_attempt(verb, body.to_string().as_bytes())?;
        self.attempt(token, n, verb)
    }

    pub(crate) fn attempt(
        &mut self,
        token: ClaimToken,
        n: Option<u64>,
        verb: Verb,
    ) -> Result<Reply, Rejection> {
        self.ask(Command::Attempt(AttemptCall {
            by: self.by,
            token: token.digest(),
            n,
            verb,
        }))
    }

    /// Opens an item as the agent, and gives its id.
    pub(crate) fn open(&mut self, token: ClaimToken, kind: &str) -> EventId {
        let events = json!({"events": [{"type": kind, "content": {"tool": "x"}}]});
        let reply = self.call(token, "events", events).expect("open");
        EventId::parse(body(&reply)["events"][0]["id"].as_str().expect("id")).expect("id")
    }

    pub(crate) fn expire(&mut self, expiry: Expiry) -> Reply {
        self.ask(Command::Expire(expiry))
            .expect("expiries are never refused")
    }

    /// Decides, checks what must hold of every decision, and folds.
    pub(crate) fn ask(&mut self, command: Command) -> Result<Reply, Rejection> {
        let facts = self.facts(&command);
        let env = self.door.env(&self.limits);
        let decision = decide(&self.state, &facts, &command, &env)?;
        self.check(&decision);
        self.fold(&decision);
        self.kept.again_ms = decision.again_ms;
        Ok(decision.reply)
    }

    fn facts(&self, command: &Command) -> Facts {
        let n = needs(&self.state, command);
        let last_n = |t: TokenDigest| {
            self.calls
                .keys()
                .filter(|(token, _)| *token == t)
                .map(|(_, n)| *n)
                .max()
                .unwrap_or(0)
        };
        Facts {
            blobs: BTreeMap::new(),
            receipt: n
                .receipt
                .or(n.created)
                .and_then(|k| self.receipts.get(&k).cloned()),
            created: n.created.and_then(|k| self.created.get(&k).cloned()),
            ended_claim: n.ended_claim.and_then(|t| self.ended.get(&t).cloned()),
            last_n: n.calls.map_or(0, |(t, _)| last_n(t)),
            call: n.calls.and_then(|k| self.calls.get(&k).cloned()),
            items: n
                .items
                .iter()
                .filter_map(|id| self.items.get(&id.seq()).map(|f| (*id, f.clone())))
                .collect(),
            inputs: n.inputs_from.map_or_else(Vec::new, |from| {
                self.inputs
                    .iter()
                    .filter(|a| a.seq >= from)
                    .copied()
                    .collect()
            }),
            taken: n
                .taken_by
                .and_then(|q| self.taken.get(&q).cloned())
                .unwrap_or_default(),
            aged: n.aged.map(|aging| self.aged(&aging)),
            steps: n
                .steps
                .iter()
                .filter_map(|k| Some((*k, self.steps.get(k)?.clone())))
                .collect(),
            step_ids: n
                .step_ids
                .iter()
                .filter_map(|id| Some((*id, self.ended_step(*id)?)))
                .collect(),
        }
    }

    fn ended_step(&self, id: EventId) -> Option<EndedStep> {
        let (key, row) = self.steps.iter().find(|(_, row)| row.id == id)?;
        let content = self.log[row.done_seq as usize - 1].content.clone();
        Some(EndedStep {
            key: *key,
            row: row.clone(),
            content: (!self.kept.has_gone(row.done_seq)).then_some(content),
        })
    }

    pub(crate) fn first(&self, decision: &Decision) -> Option<EventType> {
        decision.events.first().map(|e| e.event.header.kind)
    }

    pub(crate) fn note(&mut self, new: &NewEvent) {
        evolve(&mut self.state, &new.event);
        for row in history_rows(&self.state, new) {
            let key = u128::from_be_bytes(row.key);
            let answer = |bytes: &[u8]| {
                let id = EventId(bytes.try_into().expect("16 bytes"));
                Answer { seq: id.seq(), id }
            };
            match row.kind {
                rows::HISTORY_INPUT => self.inputs.push(answer(&row.value)),
                rows::HISTORY_TAKEN => {
                    self.taken
                        .entry((key >> 64) as u64)
                        .or_default()
                        .push(answer(&row.value));
                }
                rows::HISTORY_ITEM => {
                    self.items
                        .insert(key as u64, codec::decode(&row.value).expect("item"));
                }
                rows::HISTORY_STEP => {
                    let step = codec::decode(&row.value).expect("step");
                    self.steps.insert(row.key, step);
                }
                _ => {}
            }
        }
        self.log.push(new.clone());
    }

    fn fold(&mut self, decision: &Decision) {
        let before = match self.first(decision) {
            // A fork begins without rows of its own.
            Some(EventType::SessionForked) => Projection::default(),
            _ => Projection::of(&self.state),
        };
        decision.events.iter().for_each(|new| self.note(new));
        self.let_go(&decision.expire);
        self.apply(&before, decision);
        for row in &decision.rows {
            match row.clone() {
                RowOp::Operation(operation) => self.state.now.operation = operation,
                RowOp::Attached(attached) => self.state.now.attached = attached,
                RowOp::Unread(unread) => self.state.now.unread = Some(unread),
                RowOp::Receipt(k, r) => drop(self.receipts.insert(k, r)),
                RowOp::Created(k, made) => {
                    let erased = false;
                    self.created.insert(k, Earlier { made, erased });
                }
                RowOp::Call(t, n, c) => drop(self.calls.insert((t, n), c)),
                RowOp::Ended(t, e) => {
                    self.calls.retain(|(token, _), _| *token != t);
                    self.ended.insert(t, e);
                }
                RowOp::PutSnapshot(..)
                | RowOp::HoldSnapshot(_)
                | RowOp::PutBlob(..)
                | RowOp::DropBlob(_) => {}
            }
        }
        self.check_state();
    }

    pub(crate) fn types(&self) -> Vec<EventType> {
        self.log.iter().map(|e| e.event.header.kind).collect()
    }

    /// The types of the events after `seq`.
    pub(crate) fn types_after(&self, seq: u64) -> Vec<EventType> {
        let new = self.log.iter().filter(|e| e.event.seq > seq);
        new.map(|e| e.event.header.kind).collect()
    }

    pub(crate) fn last<T>(&self, pick: impl Fn(&Body) -> Option<T>) -> Option<T> {
        self.log.iter().rev().find_map(|e| pick(&e.event.body))
    }

    /// `ask`, and nothing may have changed.
    pub(crate) fn refused(
        &mut self,
        code: Code,
        ask: impl FnOnce(&mut Self) -> Result<Reply, Rejection>,
    ) -> Rejection {
        let (state, events) = (self.state.clone(), self.log.len());
        let refusal = ask(self).expect_err("a refusal");
        assert_eq!(refusal.code, code, "{refusal}");
        assert_eq!((&self.state, self.log.len()), (&state, events));
        refusal
    }
}

pub(crate) fn body(reply: &Reply) -> Value {
    serde_json::from_slice(&reply.body).expect("JSON")
}
