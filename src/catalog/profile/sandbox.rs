//! Where the tools of an agent act: the sandbox profile of a deployment revision.

use longhaul_actors::code::Rejection;
use longhaul_actors::ids::SandboxRevision;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Kinds, digest, invalid};

/// Longest `max_duration_seconds`: one week.
const MAX_DURATION_S_MAX: u64 = 7 * 24 * 3_600;

/// Where the tools of an agent act.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxProfile {
    /// `dir`, `none`, or one that the host registered.
    pub provider: String,
    /// Longest working time of one attempt after its start-up, seconds (1 to one week).
    pub max_duration_seconds: u64,
    /// How commands must be isolated; absent = as the runner is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Bounds of one command.
    pub limits: SandboxLimits,
}

impl Default for SandboxProfile {
    fn default() -> Self {
        Self {
            provider: "dir".to_owned(),
            max_duration_seconds: 3_600,
            isolation: None,
            limits: SandboxLimits::default(),
        }
    }
}

/// How commands of a sandbox are kept from the rest of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Isolated, or not run at all.
    Required,
    /// Isolated where the machine can.
    #[default]
    Preferred,
    /// Not isolated.
    None,
}

/// Bounds of one command in a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxLimits {
    /// Output that is kept of one command, bytes (1 to 512 KiB).
    pub output_bytes_max: u64,
    /// Memory of one command with all its children, bytes (at least 16 MiB).
    pub memory_bytes_max: u64,
    /// Run time of one command, seconds (1 to one day).
    pub command_s_max: u64,
}

impl Default for SandboxLimits {
    fn default() -> Self {
        Self {
            output_bytes_max: 128 << 10,
            memory_bytes_max: 1 << 30,
            command_s_max: 300,
        }
    }
}

impl SandboxProfile {
    /// Whether it can be made at all.
    ///
    /// # Errors
    /// `deployment.invalid`, naming the field.
    pub fn check(&self, kinds: &Kinds) -> Result<(), Rejection> {
        let known = matches!(self.provider.as_str(), "dir" | "none");
        if !known && !kinds.providers.contains(&self.provider) {
            return Err(invalid(format!(
                "sandbox.provider {:?} is not one of dir, none{}",
                self.provider,
                kinds
                    .providers
                    .iter()
                    .map(|k| format!(", {k}"))
                    .collect::<String>()
            )));
        }
        let between = |field: &str, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(invalid(format!("sandbox.{field} is {min} to {max}")))
            }
        };
        let limits = &self.limits;
        between(
            "max_duration_seconds",
            self.max_duration_seconds,
            1,
            MAX_DURATION_S_MAX,
        )?;
        between(
            "limits.output_bytes_max",
            limits.output_bytes_max,
            1,
            512 << 10,
        )?;
        between(
            "limits.memory_bytes_max",
            limits.memory_bytes_max,
            16 << 20,
            1 << 40,
        )?;
        between("limits.command_s_max", limits.command_s_max, 1, 86_400)
    }

    /// The id of this profile: the same content has the same id.
    pub fn revision(&self) -> SandboxRevision {
        SandboxRevision(digest("longhaul sandbox profile v1", self))
    }
}
