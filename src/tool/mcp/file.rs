//! The operator's file of MCP servers: TOML, or JSON where its name ends so.

use std::path::Path;

use serde::Deserialize;

use super::McpError;

/// Largest file, bytes.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// Servers of one file.
const SERVERS_MAX: usize = 64;
/// Longest name: with `__` and a tool's name it must fit into 64 characters.
const NAME_BYTES_MAX: usize = 24;

/// One server: a command, or an address.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSpec {
    /// What deployments call it: 1 to 24 of `a-z 0-9 -`.
    pub name: String,
    /// A program that speaks MCP over its standard streams.
    #[serde(default)]
    pub command: Option<String>,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// The variables of this process's environment that it gets, beside `PATH`, `HOME`, `LANG`
    /// and `TMPDIR`.
    #[serde(default)]
    pub env_from: Vec<String>,
    /// The address of a server that speaks MCP over HTTP (streamable).
    #[serde(default)]
    pub url: Option<String>,
    /// The variable of this process's environment that holds the bearer token for `url`.
    #[serde(default)]
    pub bearer_from: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    servers: Vec<ServerSpec>,
}

/// Reads a file, and checks that the variables that it names are set.
///
/// # Errors
/// [`McpError::File`] with what is wrong.
pub fn read(path: &Path) -> Result<Vec<ServerSpec>, McpError> {
    let about = |reason: String| McpError::File {
        path: path.display().to_string(),
        reason,
    };
    let length = std::fs::metadata(path)
        .map_err(|e| about(e.to_string()))?
        .len();
    if length > FILE_BYTES_MAX {
        return Err(about(format!("is larger than {FILE_BYTES_MAX} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|e| about(e.to_string()))?;
    let is_json = path.extension().is_some_and(|e| e == "json");
    let servers = parse(&text, is_json).map_err(about)?;
    for server in &servers {
        for name in server.env_from.iter().chain(&server.bearer_from) {
            if std::env::var_os(name).is_none() {
                let name_of = &server.name;
                return Err(about(format!(
                    "server {name_of:?} needs the variable {name}, which is not set"
                )));
            }
        }
    }
    Ok(servers)
}

fn parse(text: &str, is_json: bool) -> Result<Vec<ServerSpec>, String> {
    let file: File = match is_json {
        true => serde_json::from_str(text).map_err(|e| e.to_string())?,
        false => toml::from_str(text).map_err(|e| e.to_string())?,
    };
    let servers = file.servers;
    if servers.len() > SERVERS_MAX {
        return Err(format!("names more than {SERVERS_MAX} servers"));
    }
    for (at, server) in servers.iter().enumerate() {
        check(server).map_err(|why| format!("server {:?} {why}", server.name))?;
        if servers.iter().take(at).any(|s| s.name == server.name) {
            return Err(format!("server {:?} is there twice", server.name));
        }
    }
    Ok(servers)
}

fn check(server: &ServerSpec) -> Result<(), String> {
    let name = &server.name;
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(plain) {
        return Err(format!(
            "needs a name of 1 to {NAME_BYTES_MAX} of `a-z 0-9 -`"
        ));
    }
    match (&server.command, &server.url) {
        (Some(command), None) if command.is_empty() => Err("has an empty `command`".to_owned()),
        (Some(_), None) if server.bearer_from.is_some() => {
            Err("has `bearer_from`, which is for a `url`".to_owned())
        }
        (Some(_), None) => Ok(()),
        (None, Some(_)) if !server.args.is_empty() || !server.env_from.is_empty() => {
            Err("has `args` or `env_from`, which are for a `command`".to_owned())
        }
        (None, Some(url)) if !url.starts_with("http://") && !url.starts_with("https://") => {
            Err("has a `url` that is no http:// or https:// address".to_owned())
        }
        (None, Some(_)) => Ok(()),
        _ => Err("needs either `command` or `url`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_notations_say_the_same() {
        let toml = "[[servers]]\nname = \"files\"\ncommand = \"srv\"\nargs = [\"-x\"]\nenv_from = [\"K\"]\n\
                    [[servers]]\nname = \"web\"\nurl = \"https://x/mcp\"\nbearer_from = \"T\"\n";
        let json = r#"{"servers": [{"name": "files", "command": "srv", "args": ["-x"], "env_from": ["K"]},
            {"name": "web", "url": "https://x/mcp", "bearer_from": "T"}]}"#;
        let servers = parse(toml, false).unwrap();
        assert_eq!(servers, parse(json, true).unwrap());
        assert_eq!(servers.len(), 2);
        assert_eq!(parse("", false).unwrap(), []);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (bad, said) in [
            (r#"{"name": "a"}"#, "either `command` or `url`"),
            (
                r#"{"name": "a", "command": "x", "url": "http://x"}"#,
                "either",
            ),
            (r#"{"name": "A", "command": "x"}"#, "needs a name"),
            (r#"{"name": "a_b", "command": "x"}"#, "needs a name"),
            (r#"{"name": "", "command": "x"}"#, "needs a name"),
            (r#"{"name": "a", "command": ""}"#, "empty `command`"),
            (r#"{"name": "a", "url": "ftp://x"}"#, "no http://"),
            (
                r#"{"name": "a", "url": "http://x", "args": ["y"]}"#,
                "for a `command`",
            ),
            (
                r#"{"name": "a", "command": "x", "bearer_from": "T"}"#,
                "for a `url`",
            ),
            (r#"{"name": "a", "comand": "x"}"#, "unknown field `comand`"),
            (
                r#"{"name": "a", "command": "x"}, {"name": "a", "command": "x"}"#,
                "twice",
            ),
        ] {
            let told = parse(&format!("{{\"servers\": [{bad}]}}"), true).unwrap_err();
            assert!(told.contains(said), "{bad}: {told}");
        }
    }

    #[test]
    fn a_variable_that_is_not_set_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("servers.toml");
        let text =
            "[[servers]]\nname = \"a\"\ncommand = \"x\"\nenv_from = [\"LONGHAUL_NOT_SET\"]\n";
        std::fs::write(&path, text).unwrap();
        let told = read(&path).unwrap_err().to_string();
        assert!(
            told.contains("LONGHAUL_NOT_SET") && told.contains("servers.toml"),
            "{told}"
        );
        assert!(read(&dir.path().join("none")).is_err());
    }
}
