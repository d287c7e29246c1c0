//! What a deployment revision describes: the agent release with its harness, and the sandbox it
//! works in. These are the types that runners read from a claim.

mod agent;
mod sandbox;

use std::collections::BTreeMap;

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::ids::HarnessRevision;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::value::RawValue;
use utoipa::ToSchema;

pub use agent::{
    AgentProfile, ApprovalMode, CustomTool, ModelChoice, ScriptedAnswer, ScriptedCall,
    ScriptedModelProfile, StopHookProfile, SubAgentProfile, ToolChoice, ToolSettings,
};
pub use sandbox::{Isolation, SandboxLimits, SandboxProfile};

/// Bytes of `instructions`.
pub const INSTRUCTIONS_BYTES_MAX: usize = 256 << 10;
/// Steps of one script.
pub const STEPS_MAX: usize = 10_000;
/// Words of a `process` command, and variables of its environment.
pub const COMMAND_WORDS_MAX: usize = 256;
/// Longest sleep of one script step, milliseconds.
pub const SLEEP_MS_MAX: u64 = 24 * 3_600_000;

/// The agent release: what the agent is told, and what drives it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// Given to the harness as they stand.
    #[serde(default)]
    pub instructions: String,
    /// What turns inputs into events.
    pub harness: Harness,
}

/// What turns inputs into events. On the wire an object with `kind` and the fields of that kind.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Harness {
    /// A model in a loop with tools.
    Agent(Box<AgentProfile>),
    /// Fixed steps, without a model.
    Script(ScriptProfile),
    /// A program that speaks the claim protocol over its standard streams.
    Process(ProcessProfile),
    /// A runner of the host's, elsewhere.
    External(ExternalProfile),
    /// A harness that the host registered when it opened the runtime.
    #[serde(untagged)]
    Host(HostProfile),
}

/// When checkpoints are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointMode {
    /// Never.
    Off,
    /// When a turn settles.
    Settle,
    /// After each model call with its tools (`agent` only).
    Turn,
    /// After each pass (`agent` only).
    Pass,
}

/// `script`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptProfile {
    /// Run in order, once per run. Each has one field: `say`, `exec`, `write`, `tool`, `sleep_ms`,
    /// `question`, `approval`, `custom_tool`, `usage` or `fail`.
    #[schema(value_type = Vec<Object>)]
    pub steps: Vec<Step>,
    /// When checkpoints are taken; `settle` where the sandbox can give snapshots, else `off`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointMode>,
}

/// `process`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessProfile {
    /// Program and arguments; started with the sandbox root as its folder.
    pub command: Vec<String>,
    /// Variables added to its environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// When checkpoints are taken; `settle` where the sandbox can give snapshots, else `off`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointMode>,
}

/// `external`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalProfile {
    /// For the host's runner alone; not read here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub config: Option<Box<RawValue>>,
    /// When checkpoints are taken; `settle` where the sandbox can give snapshots, else `off`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointMode>,
}

/// A harness of the host's own, by the kind it registered.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostProfile {
    /// The registered kind.
    pub kind: String,
    /// For that harness alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub config: Option<Box<RawValue>>,
}

impl<'de> Deserialize<'de> for Harness {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let raw = <Box<RawValue>>::deserialize(d)?;
        read_harness(raw.get()).map_err(D::Error::custom)
    }
}

/// Chooses by `kind` first, so that an unknown field is named together with its kind. `kind` is
/// taken out before the rest is read; values that are passed on keep their bytes.
fn read_harness(json: &str) -> Result<Harness, serde_json::Error> {
    let mut fields: BTreeMap<String, Box<RawValue>> = serde_json::from_str(json)?;
    let kind = fields
        .remove("kind")
        .ok_or_else(|| serde_json::Error::custom("missing field `kind` of the harness"))?;
    let kind: String = serde_json::from_str(kind.get())?;
    if !matches!(kind.as_str(), "agent" | "script" | "process" | "external") {
        fields.insert("kind".to_owned(), serde_json::value::to_raw_value(&kind)?);
    }
    let rest = serde_json::to_string(&fields)?;
    match kind.as_str() {
        "agent" => serde_json::from_str(&rest).map(|p| Harness::Agent(Box::new(p))),
        "script" => serde_json::from_str(&rest).map(Harness::Script),
        "process" => serde_json::from_str(&rest).map(Harness::Process),
        "external" => serde_json::from_str(&rest).map(Harness::External),
        _ => serde_json::from_str(&rest).map(Harness::Host),
    }
}

impl Harness {
    /// Its kind on the wire.
    pub fn kind(&self) -> &str {
        match self {
            Self::Agent(_) => "agent",
            Self::Script(_) => "script",
            Self::Process(_) => "process",
            Self::External(_) => "external",
            Self::Host(h) => &h.kind,
        }
    }
}

/// One step of a script: an object with one field.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Says a text (`{{input}}` = the texts of the inputs taken).
    Say(String),
    /// Runs a shell command in the sandbox, as tool `bash`.
    Exec(String),
    /// Writes a file of the sandbox.
    Write(WriteStep),
    /// A recorded call: nothing is executed.
    Tool(ToolStep),
    /// Waits, milliseconds.
    SleepMs(u64),
    /// Asks people; parks, compute released. The content of `agent.question`.
    Question(Box<RawValue>),
    /// Asks for an approval; parks, compute released.
    Approval(ApprovalStep),
    /// Calls a tool of the caller's; parks, compute held.
    CustomTool(CustomToolStep),
    /// Keeps the sandbox's files, where it gives snapshots.
    Checkpoint(CheckpointStep),
    /// Records usage.
    Usage(UsageStep),
    /// Settles the run as failed, with this message.
    Fail(String),
}

/// `{checkpoint: {name}}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointStep {
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// `{write: {path, text}}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteStep {
    /// Relative to the sandbox root.
    pub path: String,
    /// The whole content.
    pub text: String,
}

/// `{tool: {name, input, result}}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolStep {
    /// The tool.
    pub name: String,
    /// Its input, any JSON.
    pub input: Box<RawValue>,
    /// What it answered, any JSON.
    pub result: Box<RawValue>,
}

/// `{usage: {…}}`: the content of `usage.recorded`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct UsageStep {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
    /// Millionths of the account's currency.
    pub cost_micros: u64,
    /// The model that was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// `{approval: {tool, input}}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovalStep {
    /// The tool that would be called.
    pub tool: String,
    /// Its input, any JSON.
    pub input: Box<RawValue>,
}

/// `{custom_tool: {name, input}}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomToolStep {
    /// The tool.
    pub name: String,
    /// Its input, any JSON.
    pub input: Box<RawValue>,
}

/// The kinds that can run here.
#[derive(Debug, Clone, Default)]
pub struct Kinds {
    /// Harness kinds that the host registered, beside `agent`, `script`, `process` and `external`.
    pub harnesses: Vec<String>,
    /// Sandbox providers that the host registered, beside `dir` and `none`.
    pub providers: Vec<String>,
}

fn invalid(detail: impl Into<String>) -> Rejection {
    Rejection::new(Code::DeploymentInvalid, detail)
}

impl Release {
    /// Whether it can run at all.
    ///
    /// # Errors
    /// `deployment.invalid`, naming the field.
    pub fn check(&self, kinds: &Kinds) -> Result<(), Rejection> {
        if self.instructions.len() > INSTRUCTIONS_BYTES_MAX {
            return Err(invalid(format!(
                "release.instructions has more than {INSTRUCTIONS_BYTES_MAX} bytes"
            )));
        }
        self.harness.check_checkpoint()?;
        match &self.harness {
            Harness::Agent(a) => a.check(),
            Harness::Script(s) => s.check(),
            Harness::Process(p) => p.check(),
            Harness::External(_) => Ok(()),
            Harness::Host(h) if kinds.harnesses.contains(&h.kind) => Ok(()),
            Harness::Host(h) => Err(invalid(format!(
                "release.harness.kind {:?} is not one of agent, script, process, external{}",
                h.kind,
                kinds
                    .harnesses
                    .iter()
                    .map(|k| format!(", {k}"))
                    .collect::<String>()
            ))),
        }
    }
}

impl ScriptProfile {
    fn check(&self) -> Result<(), Rejection> {
        if self.steps.is_empty() || self.steps.len() > STEPS_MAX {
            return Err(invalid(format!(
                "release.harness.steps has 1 to {STEPS_MAX} steps"
            )));
        }
        self.steps.iter().enumerate().try_for_each(|(i, step)| {
            step.check()
                .map_err(|e| invalid(format!("release.harness.steps[{i}]: {e}")))
        })
    }
}

impl Step {
    fn check(&self) -> Result<(), String> {
        match self {
            Self::Exec(c) if c.trim().is_empty() => Err("exec is empty".into()),
            Self::Exec(c) if c.contains('\0') => Err("exec has a NUL".into()),
            Self::Write(w) => check_path(&w.path),
            Self::Tool(t) if t.name.is_empty() => Err("tool.name is empty".into()),
            Self::CustomTool(t) if t.name.is_empty() => Err("custom_tool.name is empty".into()),
            Self::Approval(a) if a.tool.is_empty() => Err("approval.tool is empty".into()),
            Self::Question(q) if !q.get().trim_start().starts_with('{') => {
                Err("question is an object".into())
            }
            Self::SleepMs(ms) if *ms > SLEEP_MS_MAX => {
                Err(format!("sleep_ms is at most {SLEEP_MS_MAX}"))
            }
            _ => Ok(()),
        }
    }
}

/// The form of a path; whether it stays inside is decided again when it is opened.
fn check_path(path: &str) -> Result<(), String> {
    let bad = path.is_empty()
        || path.starts_with('/')
        || path.contains('\0')
        || path.split('/').any(|part| part == "..");
    if bad {
        Err("write.path is relative to the sandbox root, without `..`".into())
    } else {
        Ok(())
    }
}

impl ProcessProfile {
    fn check(&self) -> Result<(), Rejection> {
        let program = self.command.first().is_some_and(|p| !p.is_empty());
        let words = self.command.len() <= COMMAND_WORDS_MAX;
        if !program || !words || self.command.iter().any(|w| w.contains('\0')) {
            return Err(invalid(format!(
                "release.harness.command is a program and up to {} arguments, without NUL",
                COMMAND_WORDS_MAX - 1
            )));
        }
        let name = |k: &str| !k.is_empty() && !k.contains(['=', '\0']);
        let env = self.env.iter().all(|(k, v)| name(k) && !v.contains('\0'));
        if !env || self.env.len() > COMMAND_WORDS_MAX {
            return Err(invalid("release.harness.env has bad names or values"));
        }
        Ok(())
    }
}

impl Harness {
    fn check_checkpoint(&self) -> Result<(), Rejection> {
        let mode = match self {
            Self::Script(p) => p.checkpoint,
            Self::Process(p) => p.checkpoint,
            Self::External(_) | Self::Agent(_) | Self::Host(_) => None,
        };
        match mode {
            Some(CheckpointMode::Turn | CheckpointMode::Pass) => Err(invalid(format!(
                "release.harness.checkpoint of a {} harness is off or settle",
                self.kind()
            ))),
            _ => Ok(()),
        }
    }

    /// The id of this profile: the same content has the same id.
    pub fn revision(&self) -> HarnessRevision {
        HarnessRevision(digest("longhaul harness profile v1", self))
    }
}

/// Digest of the stored form: fields in the order of the types, defaults written out.
fn digest(context: &str, profile: &impl Serialize) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    // Plain structs and checked raw JSON: serialising them has no failing case.
    hasher.update(&serde_json::to_vec(profile).unwrap_or_default());
    let mut out = [0; 16];
    hasher.finalize_xof().fill(&mut out);
    out
}

#[cfg(test)]
mod tests;
