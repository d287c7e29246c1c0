//! Contents of `session.*`, and what a session is made of.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::{DeploymentId, HarnessRevision, SandboxRevision, WorkspaceId};
use crate::session::status::Status;

/// The agent as pinned at admission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
pub struct Pin {
    /// The deployment.
    pub agent_deployment: DeploymentId,
    /// Its revision, from 1.
    pub agent_deployment_revision_number: u32,
    /// What a runner must be able to drive.
    pub harness_revision: HarnessRevision,
    /// What a runner must be able to make.
    pub sandbox_profile_revision: SandboxRevision,
    /// Whether the harness is the host's own (target `*`).
    pub external: bool,
    /// Longest working time of one attempt after its start-up, seconds.
    pub max_duration_seconds: u64,
}

/// `session.created`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct SessionCreated {
    pub workspace: WorkspaceRef,
    pub principal: String,
    #[serde(flatten)]
    pub pin: Pin,
    #[serde(default)]
    pub metadata: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// What its workspace says of keeping things, as it was at admission.
    #[serde(default, skip_serializing_if = "RetentionPolicy::is_default")]
    pub retention: RetentionPolicy,
}

/// What a workspace says of keeping things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Encode, Decode)]
pub struct RetentionPolicy {
    /// How long checkpoints live, where that is shorter than the server's own, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_ttl_s: Option<u64>,
    /// Whether no content is ever written: it lives in memory, for the run that needs it.
    #[serde(default)]
    pub zero_data_retention: bool,
    /// How long contents of people's and agents' events stay after the last activity of their
    /// session, seconds; `None` = for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_ttl_s: Option<u64>,
}

impl RetentionPolicy {
    /// Whether it says nothing.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A workspace by id, or the `default` one of a server without tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct WorkspaceRef(pub WorkspaceId);

impl WorkspaceRef {
    /// The workspace that exists without being created.
    pub const DEFAULT: Self = Self(WorkspaceId([0; 16]));

    /// Reads `default` or an id.
    pub fn parse(text: &str) -> Result<Self, crate::ids::IdError> {
        if text == "default" {
            Ok(Self::DEFAULT)
        } else {
            WorkspaceId::parse(text).map(Self)
        }
    }
}

impl std::fmt::Display for WorkspaceRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if *self == Self::DEFAULT {
            f.write_str("default")
        } else {
            self.0.fmt(f)
        }
    }
}

impl Serialize for WorkspaceRef {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WorkspaceRef {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// What a session may spend. Absent fields are unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Encode, Decode)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Millionths of the account's currency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros_max: Option<u64>,
    /// Input and output tokens together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_max: Option<u64>,
}

/// `session.updated`: what changed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct SessionUpdated {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
}

/// `session.status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct SessionStatus {
    pub from: Status,
    pub to: Status,
    pub reason: String,
}

/// Why contents are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErasedReason {
    /// Their workspace keeps them so long and no longer.
    Retention,
    /// Somebody asked: they were journals of what is over.
    Pruned,
}

/// `content.erased`: contents have gone; positions, headers and everything derived stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentErased {
    /// Why.
    pub reason: ErasedReason,
    /// No content of people's or agents' events is left from behind `kept_seq` up to here; where
    /// they were pruned, the last position that lost its content.
    pub through_seq: u64,
    /// Up to here they are left, because other living sessions share them (0 = nowhere).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kept_seq: u64,
    /// The positions that lost their content, by range, inclusive and ascending. There are few:
    /// the last one swallows what is between when there would be too many.
    pub ranges: Vec<(u64, u64)>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "that is what serde gives"
)]
fn is_zero(seq: &u64) -> bool {
    *seq == 0
}

/// `session.limit_warning`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct SessionLimitWarning {
    pub events: u64,
    pub events_max: u64,
    pub percent: u8,
}
