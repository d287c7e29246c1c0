//! Workspaces and their retention policy.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bincode::{Decode, Encode};
use futures_util::FutureExt;
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::codec;
use longhaul_actors::ids::WorkspaceId;
use longhaul_actors::rows;
use longhaul_actors::session::command::ReceiptKey;
use longhaul_actors::session::payload::{RetentionPolicy, WorkspaceRef};
use longhaul_actors::time::rfc3339;
use longhaul_storage::{Condition, Order, PageLimit, RowChange};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::Catalog;
use super::deployments::{NAME_BYTES_MAX, Page};
use super::store::{Plan, Stored, decode};

/// Longest life of a checkpoint, seconds.
pub const CHECKPOINT_TTL_S_MAX: u64 = 30 * 24 * 3_600;
/// Ids kept in memory.
const CACHE_LEN_MAX: usize = 10_000;

/// `POST /v1/workspaces`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWorkspace {
    /// For people.
    pub name: String,
    /// How long things are kept.
    #[serde(default)]
    pub policy: Map<String, Value>,
}

/// A workspace, as stored.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
struct WorkspaceRow {
    name: String,
    created_by: String,
    created_at_ms: i64,
    policy: RetentionPolicy,
}

/// A workspace, as stored before there were policies.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
struct PlainRow {
    name: String,
    created_by: String,
    created_at_ms: i64,
}

/// The longer form first: the shorter one ends where its last field would begin.
fn read_row(bytes: &[u8]) -> Result<WorkspaceRow, Rejection> {
    if let Ok(row) = codec::decode::<WorkspaceRow>(bytes) {
        return Ok(row);
    }
    let plain: PlainRow = decode(bytes)?;
    Ok(WorkspaceRow {
        name: plain.name,
        created_by: plain.created_by,
        created_at_ms: plain.created_at_ms,
        policy: RetentionPolicy::default(),
    })
}

/// Workspaces known to exist, with their policies: neither ever changes.
#[derive(Default)]
pub(crate) struct Cache(Mutex<HashMap<WorkspaceId, RetentionPolicy>>);

/// What is to be kept. Refuses values that mean nothing.
fn check_policy(policy: &Map<String, Value>) -> Result<RetentionPolicy, Rejection> {
    let invalid = |detail: String| Rejection::new(Code::PolicyInvalid, detail);
    for (field, value) in policy {
        let means_something = match field.as_str() {
            "checkpoint_ttl_s" => value
                .as_u64()
                .is_some_and(|s| (1..=CHECKPOINT_TTL_S_MAX).contains(&s)),
            "content_ttl_s" => value.as_u64().is_some_and(|s| s > 0),
            "zero_data_retention" => value.is_boolean(),
            _ => {
                let detail = format!("policy has no field `{field}`");
                return Err(Rejection::new(Code::FieldUnknown, detail));
            }
        };
        if !means_something {
            return Err(invalid(format!(
                "policy.{field}: checkpoint_ttl_s is 1 to {CHECKPOINT_TTL_S_MAX}, content_ttl_s \
                 at least 1, zero_data_retention true or false"
            )));
        }
    }
    let flag = policy.get("zero_data_retention").and_then(Value::as_bool);
    Ok(RetentionPolicy {
        checkpoint_ttl_s: policy.get("checkpoint_ttl_s").and_then(Value::as_u64),
        zero_data_retention: flag.unwrap_or(false),
        content_ttl_s: policy.get("content_ttl_s").and_then(Value::as_u64),
    })
}

fn shown(id: WorkspaceRef, row: &WorkspaceRow) -> Value {
    json!({
        "id": id,
        "name": row.name,
        "policy": row.policy,
        "created_at": rfc3339(row.created_at_ms),
    })
}

impl Catalog {
    /// Makes a workspace.
    ///
    /// # Errors
    /// `workspace.policy_invalid`, and those of a write.
    pub async fn create_workspace(
        &self,
        by: &str,
        new: &NewWorkspace,
        receipt: Option<ReceiptKey>,
    ) -> Result<Stored, Rejection> {
        if new.name.is_empty() || new.name.len() > NAME_BYTES_MAX {
            let detail = format!("name has 1 to {NAME_BYTES_MAX} bytes");
            return Err(Rejection::new(Code::FieldInvalid, detail));
        }
        let policy = check_policy(&new.policy)?;
        let store = &self.store;
        let plan = || {
            let planned = async {
                let id = WorkspaceId(store.uuid());
                let row = WorkspaceRow {
                    name: new.name.clone(),
                    created_by: by.to_owned(),
                    created_at_ms: store.now_ms(),
                    policy,
                };
                let key = rows::workspace(id);
                Ok(Plan {
                    conditions: vec![(key.clone(), Condition::Absent)],
                    rows: vec![RowChange::Put(key, codec::encode(&row))],
                    status: 201,
                    body: shown(WorkspaceRef(id), &row),
                    once: None,
                })
            };
            planned.boxed()
        };
        self.store.write(receipt, plan).await
    }

    /// Refuses a workspace that does not exist.
    ///
    /// # Errors
    /// `workspace.not_found`.
    pub async fn need_workspace(&self, workspace: WorkspaceRef) -> Result<(), Rejection> {
        if workspace == WorkspaceRef::DEFAULT || self.known(workspace.0).is_some() {
            return Ok(());
        }
        let row = self.store.row(rows::workspace(workspace.0)).await?;
        let row = read_row(&row.ok_or(Code::WorkspaceNotFound)?)?;
        self.remember(workspace.0, row.policy);
        Ok(())
    }

    /// What a workspace says of keeping things.
    ///
    /// # Errors
    /// Those of a read.
    pub async fn retention(&self, workspace: WorkspaceRef) -> Result<RetentionPolicy, Rejection> {
        if workspace == WorkspaceRef::DEFAULT {
            return Ok(RetentionPolicy::default());
        }
        if let Some(known) = self.known(workspace.0) {
            return Ok(known);
        }
        // A token may belong to a workspace that nobody made: it has no policy.
        let Some(row) = self.store.row(rows::workspace(workspace.0)).await? else {
            return Ok(RetentionPolicy::default());
        };
        let row = read_row(&row)?;
        self.remember(workspace.0, row.policy);
        Ok(row.policy)
    }

    fn remember(&self, id: WorkspaceId, policy: RetentionPolicy) {
        let mut known = self
            .workspaces
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if known.len() >= CACHE_LEN_MAX {
            known.clear();
        }
        known.insert(id, policy);
    }

    fn known(&self, id: WorkspaceId) -> Option<RetentionPolicy> {
        self.workspaces
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&id)
            .copied()
    }

    /// One workspace.
    ///
    /// # Errors
    /// `workspace.not_found`.
    pub async fn workspace(&self, workspace: WorkspaceRef) -> Result<Value, Rejection> {
        if workspace == WorkspaceRef::DEFAULT {
            return Ok(default_workspace());
        }
        let row = self.store.row(rows::workspace(workspace.0)).await?;
        Ok(shown(
            workspace,
            &read_row(&row.ok_or(Code::WorkspaceNotFound)?)?,
        ))
    }

    /// Every workspace by id; the first page starts with `default`.
    ///
    /// # Errors
    /// Those of a read.
    pub async fn list_workspaces(
        &self,
        after: Option<WorkspaceId>,
        limit: usize,
    ) -> Result<Page<WorkspaceId>, Rejection> {
        let from = after.map(rows::workspace);
        let bound = PageLimit {
            items_max: limit + 1,
            bytes_max: 4 << 20,
        };
        let table = rows::table(rows::WORKSPACE);
        let read = self
            .store
            .read(move |v| v.rows(&table, from.as_deref(), Order::Asc, bound));
        let mut found = read.await?;
        let more = found.len() > limit;
        found.truncate(limit);
        let mut items = Vec::with_capacity(found.len() + 1);
        items.extend(after.is_none().then(default_workspace));
        let mut last = None;
        for (key, value) in &found {
            let Some(id) = key.last_chunk().map(|id| WorkspaceId(*id)) else {
                continue;
            };
            items.push(shown(WorkspaceRef(id), &read_row(value)?));
            last = Some(id);
        }
        Ok(Page {
            items,
            next: last.filter(|_| more),
        })
    }
}

fn default_workspace() -> Value {
    json!({
        "id": "default",
        "name": "default",
        "policy": { "zero_data_retention": false },
        "created_at": null,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_means_something_or_is_refused() {
        let check =
            |json: &str| check_policy(&serde_json::from_str(json).expect(json)).map_err(|e| e.code);
        let kept = |change: fn(&mut RetentionPolicy)| {
            let mut policy = RetentionPolicy::default();
            change(&mut policy);
            Ok(policy)
        };
        assert_eq!(check("{}"), kept(|_| {}));
        assert_eq!(check(r#"{"zero_data_retention":false}"#), kept(|_| {}));
        let longest = r#"{"checkpoint_ttl_s":2592000}"#;
        let most = |p: &mut RetentionPolicy| p.checkpoint_ttl_s = Some(CHECKPOINT_TTL_S_MAX);
        assert_eq!(check(longest), kept(most));
        let least = |p: &mut RetentionPolicy| p.content_ttl_s = Some(1);
        assert_eq!(check(r#"{"content_ttl_s":1}"#), kept(least));
        let nothing = |p: &mut RetentionPolicy| p.zero_data_retention = true;
        assert_eq!(check(r#"{"zero_data_retention":true}"#), kept(nothing));
        for bad in [
            r#"{"checkpoint_ttl_s":0}"#,
            r#"{"checkpoint_ttl_s":2592001}"#,
            r#"{"checkpoint_ttl_s":-1}"#,
            r#"{"checkpoint_ttl_s":"1"}"#,
            r#"{"content_ttl_s":0}"#,
            r#"{"content_ttl_s":1.5}"#,
            r#"{"zero_data_retention":1}"#,
            r#"{"checkpoint_ttl_s":60,"zero_data_retention":null}"#,
        ] {
            assert_eq!(check(bad), Err(Code::PolicyInvalid), "{bad}");
        }
        assert_eq!(check(r#"{"ttl":1}"#), Err(Code::FieldUnknown));
    }

    #[test]
    fn rows_from_before_policies_are_read() {
        let plain = PlainRow {
            name: "w".into(),
            created_by: "dev".into(),
            created_at_ms: 7,
        };
        let row = read_row(&codec::encode(&plain)).expect("the old form");
        assert_eq!(row.created_at_ms, 7);
        assert!(row.policy.is_default());
        let policy = RetentionPolicy {
            checkpoint_ttl_s: Some(60),
            ..RetentionPolicy::default()
        };
        let newer = WorkspaceRow { policy, ..row };
        assert_eq!(read_row(&codec::encode(&newer)), Ok(newer));
    }
}
