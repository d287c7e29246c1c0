//! Agent deployments: immutable revisions, numbered from 1.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bincode::{Decode, Encode};
use futures_util::FutureExt;
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::codec;
use longhaul_actors::ids::{DeploymentId, HarnessRevision, SandboxRevision};
use longhaul_actors::rows;
use longhaul_actors::session::command::ReceiptKey;
use longhaul_actors::session::payload::{Pin, WorkspaceRef};
use longhaul_actors::time::rfc3339;
use longhaul_storage::{Condition, Order, PageLimit, ReadError, RowChange, View};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::Catalog;
use super::profile::{Harness, Release, SandboxProfile};
use super::store::{Plan, Stored, decode};

/// Bytes of a deployment's name.
pub const NAME_BYTES_MAX: usize = 256;
/// Revisions of one deployment.
pub const REVISIONS_MAX: u32 = 100_000;
/// Revisions kept in memory.
const CACHE_LEN_MAX: usize = 1_024;

/// `POST /v1/deployments`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDeployment {
    /// For people.
    pub name: String,
    /// What the agent is.
    pub release: Release,
    /// Where it works.
    #[serde(default)]
    pub sandbox: SandboxProfile,
}

/// `POST /v1/deployments/{id}/revisions`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRevision {
    /// What the agent is.
    pub release: Release,
    /// Where it works.
    #[serde(default)]
    pub sandbox: SandboxProfile,
}

/// One revision of a deployment, as stored.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(crate) struct RevisionRow {
    name: String,
    release_json: String,
    sandbox_json: String,
    harness_revision: HarnessRevision,
    sandbox_profile_revision: SandboxRevision,
    external: bool,
    max_duration_seconds: u64,
    created_by: String,
    created_at_ms: i64,
}

/// One revision of a deployment. Never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// The deployment.
    pub id: DeploymentId,
    /// Its number, from 1.
    pub revision: u32,
    row: RevisionRow,
}

/// Revisions read lately: they never change, so nothing has to be told when one is dropped.
#[derive(Default)]
pub(crate) struct Cache(Mutex<Known>);

type Known = HashMap<(DeploymentId, u32), (WorkspaceRef, Arc<Revision>)>;

impl Cache {
    fn get(
        &self,
        workspace: Option<WorkspaceRef>,
        key: (DeploymentId, u32),
    ) -> Option<Arc<Revision>> {
        let map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (owner, revision) = map.get(&key)?;
        workspace
            .is_none_or(|w| w == *owner)
            .then(|| Arc::clone(revision))
    }

    fn put(&self, workspace: WorkspaceRef, revision: &Arc<Revision>) {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if map.len() >= CACHE_LEN_MAX {
            map.clear();
        }
        map.insert(
            (revision.id, revision.revision),
            (workspace, Arc::clone(revision)),
        );
    }
}

impl Revision {
    /// What sessions pin.
    pub fn pin(&self) -> Pin {
        Pin {
            agent_deployment: self.id,
            agent_deployment_revision_number: self.revision,
            harness_revision: self.row.harness_revision,
            sandbox_profile_revision: self.row.sandbox_profile_revision,
            external: self.row.external,
            max_duration_seconds: self.row.max_duration_seconds,
        }
    }

    /// The wire form, values of the release byte for byte as stored.
    pub fn json(&self) -> String {
        let (row, id) = (&self.row, self.id);
        format!(
            "{{\"id\":\"{id}\",\"revision\":{},\"name\":{},\"harness_revision\":\"{}\",\
             \"sandbox_profile_revision\":\"{}\",\"release\":{},\"sandbox\":{},\
             \"created_by\":{},\"created_at\":\"{}\"}}",
            self.revision,
            Value::from(row.name.as_str()),
            row.harness_revision,
            row.sandbox_profile_revision,
            row.release_json,
            row.sandbox_json,
            Value::from(row.created_by.as_str()),
            rfc3339(row.created_at_ms),
        )
    }

    /// The line of a list: without the release.
    fn summary(&self) -> Value {
        json!({
            "id": self.id,
            "revision": self.revision,
            "name": self.row.name,
            "harness_revision": self.row.harness_revision,
            "sandbox_profile_revision": self.row.sandbox_profile_revision,
            "created_at": rfc3339(self.row.created_at_ms),
        })
    }
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The lines.
    pub items: Vec<Value>,
    /// Where the next page starts, if there is one.
    pub next: Option<T>,
}

impl Catalog {
    fn row(
        &self,
        by: &str,
        name: &str,
        release: &Release,
        sandbox: &SandboxProfile,
    ) -> Result<RevisionRow, Rejection> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let detail = format!("name has 1 to {NAME_BYTES_MAX} bytes");
            return Err(Rejection::new(Code::DeploymentInvalid, detail));
        }
        release.check(&self.kinds)?;
        sandbox.check(&self.kinds)?;
        let json = |e: serde_json::Error| Rejection::new(Code::DeploymentInvalid, e.to_string());
        Ok(RevisionRow {
            name: name.to_owned(),
            release_json: serde_json::to_string(release).map_err(json)?,
            sandbox_json: serde_json::to_string(sandbox).map_err(json)?,
            harness_revision: release.harness.revision(),
            sandbox_profile_revision: sandbox.revision(),
            external: matches!(release.harness, Harness::External(_)),
            max_duration_seconds: sandbox.max_duration_seconds,
            created_by: by.to_owned(),
            created_at_ms: self.store.now_ms(),
        })
    }

    /// Makes a deployment with revision 1.
    ///
    /// # Errors
    /// `deployment.invalid`, and those of a write.
    pub async fn create_deployment(
        &self,
        workspace: WorkspaceRef,
        by: &str,
        new: &NewDeployment,
        receipt: Option<ReceiptKey>,
    ) -> Result<Stored, Rejection> {
        let row = self.row(by, &new.name, &new.release, &new.sandbox)?;
        let store = &self.store;
        let plan = || {
            let planned = async {
                let id = DeploymentId(store.uuid());
                Ok(row.clone().plan(workspace, id, 1))
            };
            planned.boxed()
        };
        self.store.write(receipt, plan).await
    }

    /// Adds a revision.
    ///
    /// # Errors
    /// `deployment.not_found`, `deployment.invalid`, and those of a write.
    pub async fn create_revision(
        &self,
        workspace: WorkspaceRef,
        by: &str,
        id: DeploymentId,
        new: &NewRevision,
        receipt: Option<ReceiptKey>,
    ) -> Result<Stored, Rejection> {
        let name = self.revision(workspace, id, None).await?.row.name.clone();
        let row = self.row(by, &name, &new.release, &new.sandbox)?;
        let store = &self.store;
        let plan = || {
            let planned = async {
                let newest = store.read(move |view| newest(view, workspace, id)).await?;
                let (number, _) = newest.ok_or(Code::DeploymentNotFound)?;
                if number >= REVISIONS_MAX {
                    let detail = format!("a deployment has at most {REVISIONS_MAX} revisions");
                    return Err(Rejection::new(Code::DeploymentInvalid, detail));
                }
                Ok(row.clone().plan(workspace, id, number + 1))
            };
            planned.boxed()
        };
        self.store.write(receipt, plan).await
    }

    /// One revision; without a number, the newest.
    ///
    /// # Errors
    /// `deployment.not_found`, `deployment.revision_not_found`.
    pub async fn revision(
        &self,
        workspace: WorkspaceRef,
        id: DeploymentId,
        number: Option<u32>,
    ) -> Result<Arc<Revision>, Rejection> {
        if let Some(n) = number
            && let Some(known) = self.deployments.get(Some(workspace), (id, n))
        {
            return Ok(known);
        }
        let found = self
            .store
            .read(move |view| find(view, workspace, id, number))
            .await?;
        let (number, bytes) = match found {
            Found::Revision(number, bytes) => (number, bytes),
            Found::NoRevision => return Err(Code::RevisionNotFound.into()),
            Found::NoDeployment => return Err(Code::DeploymentNotFound.into()),
        };
        let revision = Arc::new(Revision {
            id,
            revision: number,
            row: decode(&bytes)?,
        });
        self.deployments.put(workspace, &revision);
        Ok(revision)
    }

    /// Deployments of a workspace by id, each with its newest revision.
    ///
    /// # Errors
    /// Those of a read.
    pub async fn list_deployments(
        &self,
        workspace: WorkspaceRef,
        after: Option<DeploymentId>,
        limit: usize,
    ) -> Result<Page<DeploymentId>, Rejection> {
        let found = self
            .store
            .read(move |view| list(view, workspace, after, limit + 1))
            .await?;
        page(found, limit)
    }

    /// Revisions of a deployment by number.
    ///
    /// # Errors
    /// `deployment.not_found`.
    pub async fn list_revisions(
        &self,
        workspace: WorkspaceRef,
        id: DeploymentId,
        after: Option<u32>,
        limit: usize,
    ) -> Result<Page<u32>, Rejection> {
        self.revision(workspace, id, None).await?;
        let from = after.map(|n| rows::deployment(workspace, id, n));
        let bound = PageLimit {
            items_max: limit + 1,
            bytes_max: 4 << 20,
        };
        let read = move |view: &dyn View| {
            let prefix = rows::deployments(workspace, Some(id));
            view.rows(&prefix, from.as_deref(), Order::Asc, bound)
        };
        let found = self.store.read(read).await?;
        let found = found
            .into_iter()
            .filter_map(|(k, v)| Some((id, number_of(&k)?, v)));
        let page = page(found.collect(), limit)?;
        let last = page
            .items
            .last()
            .and_then(|i| i.get("revision"))
            .and_then(Value::as_u64);
        let next = page.next.and(last).and_then(|n| u32::try_from(n).ok());
        Ok(Page {
            items: page.items,
            next,
        })
    }
}

impl RevisionRow {
    fn plan(self, workspace: WorkspaceRef, id: DeploymentId, number: u32) -> Plan {
        let key = rows::deployment(workspace, id, number);
        let value = codec::encode(&self);
        let body = Revision {
            id,
            revision: number,
            row: self,
        }
        .summary();
        Plan {
            conditions: vec![(key.clone(), Condition::Absent)],
            rows: vec![RowChange::Put(key, value)],
            status: 201,
            body,
            once: None,
        }
    }
}

type Row = (DeploymentId, u32, bytes::Bytes);

fn page(mut found: Vec<Row>, limit: usize) -> Result<Page<DeploymentId>, Rejection> {
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|(id, ..)| *id);
    let items = found.into_iter().map(|(id, revision, bytes)| {
        Ok(Revision {
            id,
            revision,
            row: decode(&bytes)?,
        }
        .summary())
    });
    Ok(Page {
        items: items.collect::<Result<_, Rejection>>()?,
        next,
    })
}

enum Found {
    Revision(u32, bytes::Bytes),
    NoRevision,
    NoDeployment,
}

fn find(
    view: &dyn View,
    workspace: WorkspaceRef,
    id: DeploymentId,
    number: Option<u32>,
) -> Result<Found, ReadError> {
    if let Some(n) = number
        && let Some(bytes) = view.row(&rows::deployment(workspace, id, n))?
    {
        return Ok(Found::Revision(n, bytes));
    }
    Ok(match (newest(view, workspace, id)?, number) {
        (None, _) => Found::NoDeployment,
        (Some(_), Some(_)) => Found::NoRevision,
        (Some((n, bytes)), None) => Found::Revision(n, bytes),
    })
}

const ONE: PageLimit = PageLimit {
    items_max: 1,
    bytes_max: 1 << 20,
};

fn newest(
    view: &dyn View,
    workspace: WorkspaceRef,
    id: DeploymentId,
) -> Result<Option<(u32, bytes::Bytes)>, ReadError> {
    let prefix = rows::deployments(workspace, Some(id));
    let row = view.rows(&prefix, None, Order::Desc, ONE)?.pop();
    Ok(row.and_then(|(key, value)| Some((number_of(&key)?, value))))
}

fn list(
    view: &dyn View,
    workspace: WorkspaceRef,
    after: Option<DeploymentId>,
    limit: usize,
) -> Result<Vec<Row>, ReadError> {
    let prefix = rows::deployments(workspace, None);
    let mut from = after.map(|id| rows::deployment(workspace, id, u32::MAX));
    let mut out = Vec::new();
    while out.len() < limit {
        let first = view.rows(&prefix, from.as_deref(), Order::Asc, ONE)?.pop();
        let Some(id) = first.and_then(|(key, _)| id_of(&key)) else {
            break;
        };
        if let Some((number, value)) = newest(view, workspace, id)? {
            out.push((id, number, value));
        }
        from = Some(rows::deployment(workspace, id, u32::MAX));
    }
    Ok(out)
}

/// The last four bytes of a key.
fn number_of(key: &[u8]) -> Option<u32> {
    key.last_chunk().map(|n| u32::from_be_bytes(*n))
}

/// The sixteen bytes before them.
fn id_of(key: &[u8]) -> Option<DeploymentId> {
    let (rest, _) = key.split_last_chunk::<4>()?;
    rest.last_chunk().map(|id| DeploymentId(*id))
}
