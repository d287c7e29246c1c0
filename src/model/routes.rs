//! The routes that an operator has set up.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longhaul_actors::env::Door;
use reqwest::Url;

use super::client::{RemoteModel, Shared};
use super::key::Key;
use super::wire::Wire;
use super::{Model, ModelError, ModelRoutes};
use crate::config::ModelsConfig;

/// Longest name of a model, bytes.
const NAME_BYTES_MAX: usize = 200;
/// How long a connection may take to be made.
const CONNECT_S_MAX: Duration = Duration::from_secs(10);

/// Models of providers, by name: `anthropic/<model>` and `openai/<model>`. Where a route leads and
/// what its key is, the operator alone says: an agent's deployment names a route and nothing else.
#[derive(Debug)]
pub struct Routes {
    anthropic: Route,
    openai: Route,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Route {
    name: &'static str,
    wire: Wire,
    url: Url,
    http: reqwest::Client,
    key: Option<Key>,
    key_file: Option<PathBuf>,
}

impl Routes {
    /// The routes of these settings. Keys in the environment are read now, keys in files whenever
    /// a model is asked for. A route without a key stays: it is refused when it is asked for.
    ///
    /// # Errors
    /// [`ModelError::NotConfigured`] if the settings do not fit, or the system's TLS does not work.
    pub fn open(config: &ModelsConfig, door: Door) -> Result<Self, ModelError> {
        Self::with_env(config, door, &|name| std::env::var(name).ok())
    }

    /// [`Routes::open`] with another environment.
    pub(super) fn with_env(
        config: &ModelsConfig,
        door: Door,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ModelError> {
        config
            .check()
            .map_err(|(key, reason)| ModelError::NotConfigured(format!("{key}: {reason}")))?;
        let key = |name: &str| match name {
            "" => None,
            name => env(name).as_deref().and_then(Key::new),
        };
        let (anthropic, openai) = (&config.anthropic, &config.openai);
        let output_tokens_max = anthropic.output_tokens_max;
        Ok(Self {
            anthropic: Route::new(
                "anthropic",
                Wire::Anthropic { output_tokens_max },
                &anthropic.base_url,
                key(&anthropic.api_key_env),
                anthropic.api_key_file.clone(),
            )?,
            openai: Route::new(
                "openai",
                Wire::OpenAi,
                &openai.base_url,
                key(&openai.api_key_env),
                openai.api_key_file.clone(),
            )?,
            shared: Arc::new(Shared::new(config, door)),
        })
    }
}

impl ModelRoutes for Routes {
    fn model(&self, name: &str) -> Result<Arc<dyn Model>, ModelError> {
        let unknown = || {
            let routes = "the routes are `anthropic/<model>` and `openai/<model>`";
            ModelError::NotConfigured(format!("there is no route to the model {name:?}: {routes}"))
        };
        let (route, model) = name.split_once('/').ok_or_else(unknown)?;
        let route = match route {
            "anthropic" => &self.anthropic,
            "openai" => &self.openai,
            _ => return Err(unknown()),
        };
        let fits = model.bytes().all(|b| b.is_ascii_graphic());
        if model.is_empty() || model.len() > NAME_BYTES_MAX || !fits {
            return Err(unknown());
        }
        Ok(Arc::new(RemoteModel {
            name: name.to_owned(),
            model: model.to_owned(),
            wire: route.wire,
            url: route.url.clone(),
            http: route.http.clone(),
            key: route.key()?,
            shared: Arc::clone(&self.shared),
        }))
    }
}

impl Route {
    fn new(
        name: &'static str,
        wire: Wire,
        base_url: &str,
        key: Option<Key>,
        key_file: Option<PathBuf>,
    ) -> Result<Self, ModelError> {
        let wrong = |what: &dyn std::fmt::Display| {
            ModelError::NotConfigured(format!("models.{name}.base_url: {what}"))
        };
        let whole = format!("{}{}", base_url.trim_end_matches('/'), wire.path());
        let url = Url::parse(&whole).map_err(|e| wrong(&e))?;
        let mut http = reqwest::Client::builder()
            .connect_timeout(CONNECT_S_MAX)
            .user_agent(concat!("longhaul/", env!("CARGO_PKG_VERSION")))
            // A redirect would take the key to another host.
            .redirect(reqwest::redirect::Policy::none());
        let host = url.host_str().unwrap_or_default();
        if matches!(host, "localhost" | "127.0.0.1" | "[::1]") {
            http = http.no_proxy();
        }
        let http = http.build().map_err(|e| wrong(&e.without_url()))?;
        Ok(Self {
            name,
            wire,
            url,
            http,
            key,
            key_file,
        })
    }

    /// The key as it is now. Why there is none is for the operator's log: an agent's author learns
    /// no path.
    fn key(&self) -> Result<Key, ModelError> {
        let name = self.name;
        if let Some(path) = &self.key_file {
            return Key::read(path).map_err(|e| {
                let path = path.display();
                tracing::warn!(route = name, %path, error = %e, "the key of a route cannot be read");
                let text = format!("the key of the route `{name}` cannot be read");
                ModelError::NotConfigured(text)
            });
        }
        self.key.clone().ok_or_else(|| {
            let text =
                format!("the route `{name}` has no key (models.{name}.api_key_file, or _env)");
            ModelError::NotConfigured(text)
        })
    }
}
