//! `longhaul token …`.

use longhaul_actors::env::Door;
use longhaul_actors::session::payload::WorkspaceRef;
use longhaul_actors::time::rfc3339;
use serde_json::json;

use super::args::{TokenCommand, TokenKind};
use super::exit::CliError;
use super::output::Output;
use crate::auth::{CallerKind, NewToken, Scope, TokenLine};

/// Longest life of a token with an end: ten years.
const LIFE_S_MAX: u64 = 3_650 * 86_400;

/// Makes a token: prints its text once, and the line that lets a server know it.
pub(crate) fn run(command: TokenCommand, out: Output) -> Result<(), CliError> {
    let TokenCommand::New {
        kind,
        id,
        workspace,
        scopes,
        expires_in,
    } = command;
    let door = Door::system();
    let workspace = WorkspaceRef::parse(&workspace)
        .map_err(|_| CliError::usage(format!("{workspace:?} is not `default` or a ws_ id")))?;
    let scopes: Result<Vec<Scope>, CliError> = scopes.iter().map(|s| scope(s)).collect();
    let expires_at = match expires_in {
        Some(text) => {
            let ms = i64::try_from(seconds(&text)?.saturating_mul(1000)).unwrap_or(i64::MAX);
            Some(rfc3339(door.clock.wall_ms().saturating_add(ms)))
        }
        None => None,
    };
    let kind = match kind {
        TokenKind::Principal => CallerKind::Principal,
        TokenKind::Runner => CallerKind::Runner,
    };
    let token = NewToken::mint(&door);
    let hash = token.hash.to_string();
    let line = TokenLine {
        hash,
        workspace,
        kind,
        id,
        scopes: scopes?,
        expires_at,
    };
    let line =
        serde_json::to_value(line).map_err(|e| CliError::failed("cli.token", e.to_string()))?;
    out.line(format!("token (shown only now):\n  {}\n", token.secret))?;
    out.line(format!(
        "line for the server's `auth.tokens_file`:\n  {line}"
    ))?;
    out.value(&json!({ "token": token.secret, "line": line }))
}

fn scope(text: &str) -> Result<Scope, CliError> {
    Scope::parse(text).ok_or_else(|| {
        let known = Scope::ALL.map(Scope::text).join(", ");
        CliError::usage(format!("{text:?} is no scope; there are: {known}"))
    })
}

/// `30d`, `12h`, `15m`, `90s`.
fn seconds(text: &str) -> Result<u64, CliError> {
    let bad = || CliError::usage(format!("{text:?} is no duration like 30d, 12h, 15m or 90s"));
    let unit = text.chars().last().ok_or_else(bad)?;
    let each = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(bad()),
    };
    let count: u64 = text
        .strip_suffix(unit)
        .unwrap_or("")
        .parse()
        .map_err(|_| bad())?;
    let total = count.checked_mul(each).ok_or_else(bad)?;
    if (1..=LIFE_S_MAX).contains(&total) {
        Ok(total)
    } else {
        Err(bad())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_and_bounds() {
        assert_eq!(seconds("30d").unwrap(), 2_592_000);
        assert_eq!(seconds("90s").unwrap(), 90);
        for bad in [
            "",
            "d",
            "30",
            "0d",
            "-1d",
            "99999999999999999999d",
            "4000d",
            "5w",
            "30ä",
        ] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
