//! The deployment of an agent: found by its name, made or revised where it says something else.

use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::ids::DeploymentId;
use serde_json::{Value, json};

use super::place::Place;
use super::{AgentError, hosted};

/// Pages of deployments that are looked through for one of the name.
const PAGES_MAX: usize = 100;

/// The deployment of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deployed {
    pub(super) id: DeploymentId,
    /// The newest revision.
    pub(super) revision: u32,
}

/// Sees to it that the newest revision of the agent's deployment is this one.
pub(super) async fn deploy(
    place: &Place,
    name: &str,
    wanted: &Value,
) -> Result<Deployed, AgentError> {
    let Some(newest) = find(place, name).await? else {
        return read(&place.create(wanted).await?);
    };
    let found = read(&newest)?;
    let same = |key| newest.get(key) == wanted.get(key);
    if same("release") && same("sandbox") {
        return Ok(found);
    }
    let of = |key| wanted.get(key).cloned().unwrap_or_default();
    let revision = json!({"release": of("release"), "sandbox": of("sandbox")});
    read(&place.revise(found.id, &revision).await?)
}

/// The newest revision of the agent's deployment. Of several the first: all look alike to all.
async fn find(place: &Place, name: &str) -> Result<Option<Value>, AgentError> {
    let mut page = None;
    for _ in 0..PAGES_MAX {
        let (lines, next) = place.deployments(page).await?;
        for line in lines.iter().filter(|l| l.get("name") == Some(&json!(name))) {
            let newest = place.newest(read(line)?.id).await?;
            if hosted::is_of(&newest, name) {
                return Ok(Some(newest));
            }
        }
        match next {
            Some(next) => page = Some(next),
            None => return Ok(None),
        }
    }
    let detail = "there are too many deployments to find the agent's among them";
    Err(Rejection::new(Code::DeploymentInvalid, detail).into())
}

fn read(revision: &Value) -> Result<Deployed, AgentError> {
    let id = revision.get("id").and_then(Value::as_str);
    let id = id.and_then(|id| DeploymentId::parse(id).ok());
    let number = revision.get("revision").and_then(Value::as_u64);
    let number = number.and_then(|n| u32::try_from(n).ok());
    match (id, number) {
        (Some(id), Some(revision)) => Ok(Deployed { id, revision }),
        _ => Err(AgentError::Unreachable(format!(
            "no deployment: {revision}"
        ))),
    }
}
