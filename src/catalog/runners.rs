//! Enrolled runners.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bincode::{Decode, Encode};
use futures_util::FutureExt;
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::codec;
use longhaul_actors::dispatch::RunnerTarget;
use longhaul_actors::ids::RunnerId;
use longhaul_actors::rows;
use longhaul_actors::session::command::ReceiptKey;
use longhaul_actors::session::payload::WorkspaceRef;
use longhaul_actors::time::rfc3339;
use longhaul_storage::{Condition, RowChange};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::Catalog;
use super::deployments::NAME_BYTES_MAX;
use super::store::{Plan, Store, Stored, decode};
use crate::auth::{Caller, NewToken, Scope, TokenHash};

/// Targets of one runner.
pub const TARGETS_MAX: usize = 1_000;
/// Runs that one runner may hold at the same time.
pub const CAPACITY_MAX: u32 = 100_000;
/// Runners kept in memory.
const CACHE_LEN_MAX: usize = 10_000;
/// Where the id of the built-in runner is kept.
const BUILT_IN: RunnerId = RunnerId([0; 16]);

/// `POST /v1/runners`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRunner {
    /// For people.
    pub name: String,
    /// The machine it runs on.
    pub host_id: String,
    /// `<harness_revision>/<sandbox_profile_revision>`, or `*` = every `external` harness.
    pub targets: Vec<String>,
    /// Whether it can clone snapshots.
    #[serde(default)]
    pub snapshot_clone: bool,
    /// Runs it takes at the same time.
    pub capacity: u32,
    /// The id of an earlier enrolment of the same runner, which it takes up again: it stays the
    /// one that has its snapshots. A new token replaces the earlier one.
    #[serde(default)]
    pub id: Option<String>,
    /// `"*"` = serves every workspace (needs the scope `admin`); absent = the caller's own.
    #[serde(default)]
    pub workspaces: Option<String>,
}

/// An enrolled runner, as stored.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct RunnerRow {
    /// For people.
    pub name: String,
    /// The machine it runs on.
    pub host_id: String,
    /// What it advertises, as on the wire.
    pub targets: Vec<String>,
    /// Whether it can clone snapshots.
    pub snapshot_clone: bool,
    /// Runs it takes at the same time.
    pub capacity: u32,
    /// The one workspace it serves; `None` = all.
    pub serves: Option<WorkspaceRef>,
    /// The workspace it belongs to.
    pub owner: WorkspaceRef,
    /// Whether it gets no claims any more.
    pub draining: bool,
    /// Digest of its own token.
    pub token_hash: Option<[u8; 32]>,
    /// Who enrolled it.
    pub created_by: String,
    /// When, milliseconds.
    pub created_at_ms: i64,
}

/// Rows read lately; changed here in step with the log.
#[derive(Default)]
pub(crate) struct Cache(Mutex<HashMap<RunnerId, Arc<RunnerRow>>>);

impl Cache {
    fn get(&self, id: RunnerId) -> Option<Arc<RunnerRow>> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&id)
            .cloned()
    }

    fn put(&self, id: RunnerId, row: Arc<RunnerRow>) {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if map.len() >= CACHE_LEN_MAX {
            map.clear();
        }
        map.insert(id, row);
    }

    fn remove(&self, id: RunnerId) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&id);
    }
}

impl NewRunner {
    fn row(&self, caller: &Caller, open: bool, now_ms: i64) -> Result<RunnerRow, Rejection> {
        let invalid = |detail: String| Rejection::new(Code::FieldInvalid, detail);
        for (field, text) in [("name", &self.name), ("host_id", &self.host_id)] {
            if text.is_empty() || text.len() > NAME_BYTES_MAX {
                return Err(invalid(format!("{field} has 1 to {NAME_BYTES_MAX} bytes")));
            }
        }
        if self.targets.is_empty() || self.targets.len() > TARGETS_MAX {
            return Err(invalid(format!("targets has 1 to {TARGETS_MAX} entries")));
        }
        if !(1..=CAPACITY_MAX).contains(&self.capacity) {
            return Err(invalid(format!("capacity is 1 to {CAPACITY_MAX}")));
        }
        let target = |text: &String| {
            RunnerTarget::parse(text).map(|t| t.to_string()).map_err(|_| {
                invalid(format!(
                    "target {text:?} is neither `*` nor <harness_revision>/<sandbox_profile_revision>"
                ))
            })
        };
        let all = match self.workspaces.as_deref() {
            None => open,
            Some("*") => caller.need(Scope::Admin).map(|()| true)?,
            Some(_) => return Err(invalid("workspaces is `*` or absent".to_owned())),
        };
        Ok(RunnerRow {
            name: self.name.clone(),
            host_id: self.host_id.clone(),
            targets: self.targets.iter().map(target).collect::<Result<_, _>>()?,
            snapshot_clone: self.snapshot_clone,
            capacity: self.capacity,
            serves: (!all).then_some(caller.workspace),
            owner: caller.workspace,
            draining: false,
            token_hash: None,
            created_by: caller.id.clone(),
            created_at_ms: now_ms,
        })
    }
}

impl RunnerRow {
    fn shown(&self, id: RunnerId) -> Value {
        let serves = self
            .serves
            .map_or_else(|| "*".to_owned(), |w| w.to_string());
        json!({
            "id": id,
            "name": self.name,
            "host_id": self.host_id,
            "targets": self.targets,
            "snapshot_clone": self.snapshot_clone,
            "capacity": self.capacity,
            "workspaces": serves,
            "draining": self.draining,
            "created_at": rfc3339(self.created_at_ms),
        })
    }

    /// Whether the caller may act as, or on, this runner.
    fn belongs_to(&self, id: RunnerId, caller: &Caller) -> bool {
        match caller.runner {
            Some(own) => own == id,
            None => self.owner == caller.workspace,
        }
    }
}

impl Catalog {
    /// Enrols a runner. `open`: the server has no tokens, so none is made, and the runner serves
    /// every workspace.
    ///
    /// # Errors
    /// `request.field_invalid`, `auth.scope_missing`, `runner.not_found` for an earlier id that is
    /// none, and those of a write.
    pub async fn enrol_runner(
        &self,
        caller: &Caller,
        new: &NewRunner,
        open: bool,
        receipt: Option<ReceiptKey>,
    ) -> Result<Stored, Rejection> {
        if caller.runner.is_some() {
            // Removing a runner must end what its token can do.
            let detail = "the token of a runner is for that runner alone";
            return Err(Rejection::new(Code::ScopeMissing, detail));
        }
        let row = new.row(caller, open, self.store.now_ms())?;
        let again = new.id.as_deref().map(RunnerId::parse).transpose();
        let again = again.map_err(|e| Rejection::new(Code::IdInvalid, e.to_string()))?;
        let store = &self.store;
        let plan = || {
            let planned = async {
                let mut row = row.clone();
                let (id, before) = match again {
                    None => (RunnerId(store.uuid()), Condition::Absent),
                    Some(id) => {
                        let (bytes, before) = self.owned_row(store, caller, id).await?;
                        row.created_at_ms = before.created_at_ms;
                        (id, Condition::Unchanged(bytes))
                    }
                };
                let token = (!open).then(|| NewToken::for_runner(store.door(), id));
                row.token_hash = token.as_ref().map(|t| t.hash.0);
                let key = rows::runner(id);
                Ok(Plan {
                    conditions: vec![(key.clone(), before)],
                    rows: vec![RowChange::Put(key, codec::encode(&row))],
                    status: 201,
                    body: row.shown(id),
                    once: token.map(|t| ("token", t.secret.into())),
                })
            };
            planned.boxed()
        };
        let stored = self.store.write(receipt, plan).await?;
        if let Some(id) = again {
            self.runners.remove(id);
        }
        Ok(stored)
    }

    /// An enrolled runner that the caller may act on: absent and foreign look alike.
    ///
    /// # Errors
    /// `runner.not_found`.
    pub async fn runner(&self, caller: &Caller, id: RunnerId) -> Result<Arc<RunnerRow>, Rejection> {
        let row = self
            .runner_row(id)
            .await?
            .filter(|r| r.belongs_to(id, caller));
        row.ok_or_else(|| Code::RunnerNotFound.into())
    }

    async fn runner_row(&self, id: RunnerId) -> Result<Option<Arc<RunnerRow>>, Rejection> {
        if id == BUILT_IN {
            return Ok(None);
        }
        if let Some(row) = self.runners.get(id) {
            return Ok(Some(row));
        }
        let Some(bytes) = self.store.row(rows::runner(id)).await? else {
            return Ok(None);
        };
        let row = Arc::new(decode::<RunnerRow>(&bytes)?);
        self.runners.put(id, Arc::clone(&row));
        Ok(Some(row))
    }

    /// The caller that a runner's own token belongs to.
    ///
    /// # Errors
    /// Those of a read.
    pub(crate) async fn runner_by_token(&self, token: &str) -> Result<Option<Caller>, Rejection> {
        let Some(id) = crate::auth::runner_of(token) else {
            return Ok(None);
        };
        let Some(row) = self.runner_row(id).await? else {
            return Ok(None);
        };
        let known = row.token_hash.map(TokenHash);
        Ok(known
            .filter(|k| k.matches(&TokenHash::of(token)))
            .map(|_| Caller {
                workspace: row.owner,
                kind: crate::auth::CallerKind::Runner,
                id: id.to_string(),
                scopes: vec![Scope::Read, Scope::Run],
                runner: Some(id),
            }))
    }

    /// Gives the runner no claims any more.
    ///
    /// # Errors
    /// `runner.not_found`, and those of a write.
    pub async fn drain_runner(
        &self,
        caller: &Caller,
        id: RunnerId,
        receipt: Option<ReceiptKey>,
    ) -> Result<Stored, Rejection> {
        let store = &self.store;
        let plan = || {
            let planned = async {
                let (bytes, mut row) = self.owned_row(store, caller, id).await?;
                row.draining = true;
                let key = rows::runner(id);
                Ok(Plan {
                    conditions: vec![(key.clone(), Condition::Unchanged(bytes))],
                    body: row.shown(id),
                    rows: vec![RowChange::Put(key, codec::encode(&row))],
                    status: 200,
                    once: None,
                })
            };
            planned.boxed()
        };
        let stored = self.store.write(receipt, plan).await?;
        self.runners.remove(id);
        Ok(stored)
    }

    /// Forgets the runner; its live claims end by their leases.
    ///
    /// # Errors
    /// `runner.not_found`, and those of a write.
    pub async fn remove_runner(
        &self,
        caller: &Caller,
        id: RunnerId,
        receipt: Option<ReceiptKey>,
    ) -> Result<Stored, Rejection> {
        let store = &self.store;
        let plan = || {
            let planned = async {
                let (bytes, _) = self.owned_row(store, caller, id).await?;
                let key = rows::runner(id);
                Ok(Plan {
                    conditions: vec![(key.clone(), Condition::Unchanged(bytes))],
                    rows: vec![RowChange::Delete(key)],
                    status: 200,
                    body: json!({ "id": id }),
                    once: None,
                })
            };
            planned.boxed()
        };
        let stored = self.store.write(receipt, plan).await?;
        self.runners.remove(id);
        Ok(stored)
    }

    async fn owned_row(
        &self,
        store: &Store,
        caller: &Caller,
        id: RunnerId,
    ) -> Result<(bytes::Bytes, RunnerRow), Rejection> {
        let found = store
            .row(rows::runner(id))
            .await?
            .filter(|_| id != BUILT_IN);
        let bytes = found.ok_or(Code::RunnerNotFound)?;
        let row: RunnerRow = decode(&bytes)?;
        if row.belongs_to(id, caller) {
            Ok((bytes, row))
        } else {
            Err(Code::RunnerNotFound.into())
        }
    }

    /// The id of this data folder's built-in runner, made on first use.
    ///
    /// # Errors
    /// Those of a write.
    pub async fn built_in_runner(&self) -> Result<RunnerId, Rejection> {
        let key = rows::runner(BUILT_IN);
        if let Some(kept) = self.store.row(key.clone()).await? {
            return Ok(RunnerId(decode(&kept)?));
        }
        let id = self.store.uuid();
        let plan = || {
            let planned = async {
                Ok(Plan {
                    conditions: vec![(key.clone(), Condition::Absent)],
                    rows: vec![RowChange::Put(key.clone(), codec::encode(&id))],
                    status: 201,
                    body: json!({}),
                    once: None,
                })
            };
            planned.boxed()
        };
        self.store.write(None, plan).await?;
        Ok(RunnerId(id))
    }
}
