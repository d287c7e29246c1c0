//! The two wire formats behind one face: what is sent, and how a stream of events becomes an answer.

mod anthropic;
mod openai;
mod partial;

use reqwest::RequestBuilder;
use serde_json::Value;

use super::{ModelAnswer, ModelRequest};
use crate::sse::Frame;
pub(super) use partial::Fault;

/// How a provider is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    /// Anthropic's Messages.
    Anthropic {
        /// Most tokens of an answer where the request names no number.
        output_tokens_max: u32,
    },
    /// OpenAI's chat completions, which many others speak too.
    OpenAi,
}

impl Wire {
    /// What is appended to the base URL.
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Anthropic { .. } => "/v1/messages",
            Self::OpenAi => "/chat/completions",
        }
    }

    /// The request's headers. `key` is marked as secret: no log of the client shows it.
    pub(super) fn headers(
        self,
        request: RequestBuilder,
        mut key: reqwest::header::HeaderValue,
    ) -> RequestBuilder {
        key.set_sensitive(true);
        match self {
            Self::Anthropic { .. } => request
                .header("x-api-key", key)
                .header("anthropic-version", anthropic::VERSION),
            Self::OpenAi => request.header(reqwest::header::AUTHORIZATION, key),
        }
    }

    /// What the header with the key holds.
    pub(super) fn credential(self, key: &str) -> String {
        match self {
            Self::Anthropic { .. } => key.to_owned(),
            Self::OpenAi => format!("Bearer {key}"),
        }
    }

    /// The request's body.
    pub(super) fn body(self, model: &str, request: &ModelRequest) -> Value {
        match self {
            Self::Anthropic { output_tokens_max } => {
                anthropic::body(model, request, output_tokens_max)
            }
            Self::OpenAi => openai::body(model, request),
        }
    }

    /// A reader of one stream.
    pub(super) fn reader(self) -> Reader {
        match self {
            Self::Anthropic { .. } => Reader::Anthropic(anthropic::Stream::default()),
            Self::OpenAi => Reader::OpenAi(openai::Stream::default()),
        }
    }
}

/// Reads the events of one answer.
#[derive(Debug)]
pub(super) enum Reader {
    /// See [`Wire::Anthropic`].
    Anthropic(anthropic::Stream),
    /// See [`Wire::OpenAi`].
    OpenAi(openai::Stream),
}

impl Reader {
    /// Takes one event; new text goes to `deltas`.
    ///
    /// # Errors
    /// An event that makes no sense, or the provider's own word that it failed.
    pub(super) fn take(
        &mut self,
        frame: &Frame,
        deltas: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), Fault> {
        match self {
            Self::Anthropic(stream) => stream.take(frame, deltas),
            Self::OpenAi(stream) => stream.take(frame, deltas),
        }
    }

    /// Whether nothing more is to come.
    pub(super) const fn is_over(&self) -> bool {
        match self {
            Self::Anthropic(stream) => stream.is_over(),
            Self::OpenAi(stream) => stream.is_over(),
        }
    }

    /// The answer.
    ///
    /// # Errors
    /// [`Fault::Cut`] if its end is missing.
    pub(super) fn answer(self, model: &str) -> Result<ModelAnswer, Fault> {
        match self {
            Self::Anthropic(stream) => stream.answer(model),
            Self::OpenAi(stream) => stream.answer(model),
        }
    }
}
