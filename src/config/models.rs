//! Settings of the routes to models: where they are, and where their keys are found.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `models.*`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelsConfig {
    /// The route `anthropic/<model>`.
    pub anthropic: AnthropicConfig,
    /// The route `openai/<model>`.
    pub openai: OpenAiConfig,
    /// How long one answer may take with all its retries and waits, seconds.
    pub request_s_max: u64,
    /// How often a request is made again.
    pub retries_max: u32,
    /// Requests at the same time, of all routes together; more wait.
    pub concurrency_max: usize,
}

impl Default for ModelsConfig {
    fn default() -> Self {
        Self {
            anthropic: AnthropicConfig::default(),
            openai: OpenAiConfig::default(),
            request_s_max: 600,
            retries_max: 5,
            concurrency_max: 64,
        }
    }
}

/// `models.anthropic.*`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AnthropicConfig {
    /// What `/v1/messages` is appended to.
    pub base_url: String,
    /// The environment variable that holds the key; empty = none.
    pub api_key_env: String,
    /// The file that holds the key; it goes before the variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_file: Option<PathBuf>,
    /// Most tokens of an answer where the agent names no number: this API must be told one.
    pub output_tokens_max: u32,
}

impl Default for AnthropicConfig {
    fn default() -> Self {
        Self {
            base_url: "https://api.anthropic.com".to_owned(),
            api_key_env: "ANTHROPIC_API_KEY".to_owned(),
            api_key_file: None,
            output_tokens_max: 16_384,
        }
    }
}

/// `models.openai.*`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OpenAiConfig {
    /// What `/chat/completions` is appended to.
    pub base_url: String,
    /// The environment variable that holds the key; empty = none.
    pub api_key_env: String,
    /// The file that holds the key; it goes before the variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_file: Option<PathBuf>,
}

impl Default for OpenAiConfig {
    fn default() -> Self {
        Self {
            base_url: "https://api.openai.com/v1".to_owned(),
            api_key_env: "OPENAI_API_KEY".to_owned(),
            api_key_file: None,
        }
    }
}

impl ModelsConfig {
    /// Refuses values that cannot work.
    ///
    /// # Errors
    /// The name of the setting, and what it may be.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let urls = [
            ("models.anthropic.base_url", &self.anthropic.base_url),
            ("models.openai.base_url", &self.openai.base_url),
        ];
        for (key, url) in urls {
            check_url(url).map_err(|reason| (key, reason.to_owned()))?;
        }
        let names = [
            ("models.anthropic.api_key_env", &self.anthropic.api_key_env),
            ("models.openai.api_key_env", &self.openai.api_key_env),
        ];
        for (key, name) in names {
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if !name.chars().all(fits) {
                return Err((key, "is the name of an environment variable".to_owned()));
            }
        }
        let numbers = [
            ("models.request_s_max", self.request_s_max, 1..=86_400),
            ("models.retries_max", u64::from(self.retries_max), 0..=100),
            (
                "models.concurrency_max",
                self.concurrency_max as u64,
                1..=10_000,
            ),
            (
                "models.anthropic.output_tokens_max",
                u64::from(self.anthropic.output_tokens_max),
                1..=10_000_000,
            ),
        ];
        for (key, value, range) in numbers {
            if !range.contains(&value) {
                return Err((key, format!("is {} to {}", range.start(), range.end())));
            }
        }
        Ok(())
    }
}

/// A key stands in no URL: those are logged and shown.
fn check_url(text: &str) -> Result<(), &'static str> {
    let url = reqwest::Url::parse(text).map_err(|_| "is a URL")?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err("is an http:// or https:// URL");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("holds no user and no password");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("has no query and no fragment");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigError, Sources};

    #[test]
    fn the_defaults_fit() {
        assert_eq!(ModelsConfig::default().check(), Ok(()));
    }

    #[test]
    fn urls_hold_no_secrets_and_numbers_have_limits() {
        for bad in [
            "api.openai.com",
            "ftp://host/",
            "https://me:secret@host/",
            "https://host/?key=secret",
            "https://host/#x",
        ] {
            let mut config = ModelsConfig::default();
            config.openai.base_url = bad.to_owned();
            let (key, reason) = config.check().expect_err(bad);
            assert_eq!(key, "models.openai.base_url");
            assert!(!reason.contains("secret"));
        }
        for change in [
            (|c| c.request_s_max = 0) as fn(&mut ModelsConfig),
            |c| c.concurrency_max = 0,
            |c| c.retries_max = 101,
            |c| c.anthropic.output_tokens_max = 0,
            |c| c.anthropic.api_key_env = "A=B".to_owned(),
        ] {
            let mut config = ModelsConfig::default();
            change(&mut config);
            assert!(config.check().is_err(), "{config:?}");
        }
    }

    #[test]
    fn sections_have_parts() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("c.toml");
        let load = |text: &str, env: &[(&str, &str)], set: &[&str]| {
            std::fs::write(&path, text).expect("write");
            let pair = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
            Sources {
                file: Some(path.clone()),
                env: env.iter().map(pair).collect(),
                set: set.iter().map(|s| (*s).to_owned()).collect(),
            }
            .load()
        };
        let config = load(
            "[models]\nretries_max = 1\n[models.openai]\nbase_url = 'http://127.0.0.1:1/v1'\n",
            &[("LONGHAUL__MODELS__ANTHROPIC__API_KEY_ENV", "MINE")],
            &["models.openai.api_key_file=/run/key"],
        );
        let models = config.expect("valid").models;
        assert_eq!(models.retries_max, 1);
        assert_eq!(models.openai.base_url, "http://127.0.0.1:1/v1");
        assert_eq!(models.openai.api_key_env, "OPENAI_API_KEY");
        assert_eq!(models.openai.api_key_file, Some("/run/key".into()));
        assert_eq!(models.anthropic.api_key_env, "MINE");
        for unknown in [
            "[models.open]\nx = 1\n",
            "[runs.lease_s]\nx = 1\n",
            "runs = 1\n",
        ] {
            let refused = load(unknown, &[], &[]);
            assert!(
                matches!(refused, Err(ConfigError::Unknown { .. })),
                "{unknown}"
            );
        }
        let refused = load("[runs.lease_s]\n", &[], &[]);
        assert!(matches!(refused, Err(ConfigError::Invalid { .. })));
    }
}
