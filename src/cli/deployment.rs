//! `longhaul deployment …`.

use serde_json::Value;

use super::args::DeploymentCommand;
use super::client::Client;
use super::exit::CliError;
use super::output::Output;
use super::session::read_text;

/// Runs one of the deployment commands.
pub(crate) async fn run(command: DeploymentCommand, out: Output) -> Result<(), CliError> {
    match command {
        DeploymentCommand::Create { file, at } => {
            let text = read_text(&file)?;
            let body: Value = serde_json::from_str(&text)
                .map_err(|e| CliError::usage(format!("{} is not JSON: {e}", file.display())))?;
            let made = Client::new(&at)?.post("/v1/deployments", &body).await?;
            out.result(made.get("id").and_then(Value::as_str).unwrap_or(""), &made)
        }
        DeploymentCommand::List { at } => {
            let client = Client::new(&at)?;
            let mut path = "/v1/deployments?limit=100".to_owned();
            loop {
                let page = client.get(&path).await?;
                for d in page
                    .get("deployments")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                {
                    let text = |key: &str| d.get(key).and_then(Value::as_str).unwrap_or("");
                    let revision = d.get("revision").map(Value::to_string).unwrap_or_default();
                    let line = format!("{}  revision {revision}  {}", text("id"), text("name"));
                    out.result(line, d)?;
                }
                match page.get("next_page").and_then(Value::as_str) {
                    Some(next) => path = format!("/v1/deployments?limit=100&page={next}"),
                    None => return Ok(()),
                }
            }
        }
    }
}
